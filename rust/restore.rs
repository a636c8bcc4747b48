// SPDX-License-Identifier: GPL-2.0

//! The restore workers: jobs that bring pages of requests (prefetch.rs) back before they are touched, and
//! hit tests that find out whether they were (ffi/restore_worker.c calls both).
//!
//! # Races
//!
//! A job keeps nothing but the request and, while it runs, the memory of the process.
//!
//! - The process exits, or begins another program: a job cannot keep its memory any more, or is the
//!   last to do so and lets others free it (`mmput_async()`). The rest of the request is dropped.
//! - It unmaps, moves or discards pages, or forks: a batch holds mmap_lock for read, and looks at each
//!   page under it (ffi/restore.c).
//! - Its number passes to another process: nothing looks it up again.
//! - It goes to another cgroup: seen before each batch. Pages of at most one batch are restored for
//!   whom their slots are charged to.
//! - The sandbox is detached: seen before each batch, under RCU; so what is reaped is not counted for.
//!   Restoring a page of a detached sandbox would be right, too.
//! - It begins to wait: seen likewise. The rest is dropped, for reclaim would take it again.
//! - An entry is loaded by somebody else, freed or stored again, stores are drained, hooks removed: a
//!   job loads as a fault does and relies on nothing else.
//! - Somebody holds mmap_lock, and does not let go: a batch leaves its pages, a test says nothing of its.
//!   So nobody holds up what serves others, nor unloading.
//! - Memory gets short: room is looked for before each batch, and a batch never reclaims.
//! - The module goes: the device is gone by then, jobs and tests are stopped and waited for before the
//!   state goes, and with it what is queued.

use kernel::prelude::*;
use kernel::sync::atomic::Relaxed;
use kernel::sync::rcu;

use crate::bindings;
use crate::codec::PAGE_SIZE;
use crate::control;
use crate::counters::Counters;
use crate::prefetch::{Next, Request, Work, JOB_PAGES};
use crate::process::{Memory, Outcome, Room, BATCH};
use crate::sandbox::Sandbox;
use crate::state::{self, State};
use crate::uapi::{self, FaultKind, FaultRecord, NOT_DECODED};

/// Tries of a page that is being read from a disk, or that somebody else has locked.
const TRIES: usize = 3;

/// Nice value of jobs and tests: a tool that computes keeps three quarters of a CPU that it shares with one.
const NICE: c_int = 5;

/// The workers; stopped when dropped.
pub(crate) struct Workers;

impl Workers {
    /// Gets them ready. Called once, when the module loads.
    pub(crate) fn new() -> Self {
        // SAFETY: Nothing has kicked them yet.
        unsafe { bindings::agentzip_restore_init() };
        Self
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        // SAFETY: May sleep, as we may.
        unsafe { bindings::agentzip_restore_stop() };
    }
}

/// Lets what is queued be looked at, after the switch was set.
pub(crate) fn kick() {
    // SAFETY: Workers that were stopped do not begin again.
    unsafe { bindings::agentzip_restore_kick(1) };
}

/// Calls `f` with an attached sandbox, under RCU.
pub(crate) fn attached<R>(
    state: &State,
    cgroup_id: u64,
    f: impl FnOnce(&Sandbox) -> R,
) -> Option<R> {
    let rcu = rcu::read_lock();
    let owner = state.registry.get(cgroup_id, &rcu)?;
    let sandbox = state.sandboxes.get(owner.index(), &rcu)?;
    (sandbox.cgroup_id == cgroup_id && sandbox.is_attached()).then(|| f(sandbox))
}

/// Counts something for the store and for the sandbox, attached or not, if there is one.
fn count(state: &State, cgroup_id: u64, f: impl Fn(&Counters)) {
    f(&state.counters);
    let _ = control::with_sandbox(state, cgroup_id, |sandbox| f(&sandbox.counters));
}

/// Runs a job, if there is one. Returns whether there may be another.
#[no_mangle]
extern "C" fn agentzip_rs_restore_job() -> bool {
    let Some(state) = state::get() else {
        return false;
    };
    match state.requests.next() {
        Some(Next::Job(work)) => job(state, &work),
        Some(Next::Expired(request, pages)) => count(state, request.cgroup_id, |counters| {
            counters.prefetch.dropped.add(pages)
        }),
        None => return false,
    }
    true
}

/// Whether to go on with a request.
fn is_wanted(state: &State, request: &Request) -> bool {
    state.prefetch.load(Relaxed) != 0
        && !request.is_expired()
        && attached(state, request.cgroup_id, |sandbox| sandbox.waits()) == Some(request.waits)
}

fn job(state: &State, work: &Work) {
    // SAFETY: It ends in this function.
    let before = unsafe { bindings::agentzip_job_begin(NICE) };
    let mut outcomes = [Outcome::Left; JOB_PAGES];
    let outcomes = outcomes.get_mut(..work.pages().len()).unwrap_or_default();
    let over = match work.request.process.memory() {
        Some(memory) => restore(state, work, &memory, outcomes),
        None => true,
    };
    let mut restored = 0u64;
    for (i, outcome) in outcomes.iter().enumerate() {
        restored |= u64::from(*outcome == Outcome::Restored) << i;
    }
    let is_tested = work.request.is_tested();
    let tested = if is_tested { restored } else { 0 };
    let dropped = state.requests.done(work, tested, over);
    // SAFETY: Begun above, by this thread.
    let ns = unsafe { bindings::agentzip_job_end(before) };
    let with = |wanted| outcomes.iter().filter(|o| **o == wanted).count() as u64;
    count(state, work.request.cgroup_id, |counters| {
        let prefetch = &counters.prefetch;
        prefetch.ns.add(ns);
        prefetch.pages.add(with(Outcome::Restored));
        if !is_tested {
            prefetch.untested.add(with(Outcome::Restored));
        }
        prefetch.present.add(with(Outcome::Present));
        prefetch.absent.add(with(Outcome::Absent));
        let not_had = with(Outcome::Left) + with(Outcome::Failed);
        prefetch.dropped.add(not_had + dropped);
    });
}

/// Restores the pages of a job. Returns whether the rest of the request is to be dropped.
fn restore(state: &State, work: &Work, memory: &Memory<'_>, outcomes: &mut [Outcome]) -> bool {
    for try_ in 0..TRIES {
        if try_ > 0 {
            // SAFETY: May sleep, as we may.
            unsafe { bindings::agentzip_job_pause() };
        }
        let batches = work.pages().chunks(BATCH).zip(outcomes.chunks_mut(BATCH));
        for (pages, outcomes) in batches {
            if !outcomes.contains(&Outcome::Left) {
                continue;
            }
            if !is_wanted(state, &work.request)
                || memory.room(work.request.cgroup_id, pages.len()) != Room::Enough
                || restore_left(memory, pages, outcomes).is_err()
            {
                return true;
            }
            // SAFETY: May sleep, as we may, and nothing is locked; unloading waits for the work item.
            unsafe { bindings::agentzip_give_way() };
        }
        if !outcomes.contains(&Outcome::Left) {
            break;
        }
    }
    false
}

/// Restores those pages of a batch that are left.
fn restore_left(memory: &Memory<'_>, pages: &[u64], outcomes: &mut [Outcome]) -> Result {
    let mut left = [0u64; BATCH];
    let mut count = 0;
    let is_left = |pair: &(&u64, &Outcome)| *pair.1 == Outcome::Left;
    let pairs = pages.iter().zip(outcomes.iter()).filter(is_left);
    for (to, (page, _)) in left.iter_mut().zip(pairs) {
        *to = *page;
        count += 1;
    }
    let mut new = [Outcome::Left; BATCH];
    let result = memory.restore(left.get(..count).unwrap_or_default(), &mut new);
    let places = outcomes.iter_mut().filter(|o| **o == Outcome::Left);
    for (place, new) in places.zip(new) {
        *place = new;
    }
    result
}

/// Tests what is due.
#[no_mangle]
extern "C" fn agentzip_rs_hit_test() {
    let Some(state) = state::get() else { return };
    while let Some(work) = state.requests.next_test() {
        test(state, &work);
    }
}

/// Makes all hit tests of a sandbox that are still to come, as what they go by is about to be cleared. May
/// sleep.
pub(crate) fn test_now(state: &State, cgroup_id: u64) {
    while let Some(work) = state.requests.test_of(cgroup_id) {
        test(state, &work);
    }
}

/// Finds out which of the pages that a job restored were accessed since. Of a sandbox that is detached,
/// of a process that is gone or whose mappings cannot be looked at, and of pages that are mapped no more,
/// nothing is said.
fn test(state: &State, work: &Work) {
    let request = &work.request;
    if attached(state, request.cgroup_id, |_| ()).is_none() {
        return;
    }
    let Some(memory) = request.process.memory() else {
        return;
    };
    // SAFETY: It ends in this function.
    let before = unsafe { bindings::agentzip_job_begin(NICE) };
    let (mut hits, mut misses) = (0, 0);
    let pages = work.pages();
    let is_restored = |i: usize| i < pages.len() && work.restored >> i & 1 != 0;
    let mut first = 0;
    while let Some(&start) = pages.get(first) {
        if !is_restored(first) {
            first += 1;
            continue;
        }
        // A run of neighbours.
        let mut count = 1;
        let address = |n: usize| start + (n * PAGE_SIZE) as u64;
        while is_restored(first + count) && pages.get(first + count) == Some(&address(count)) {
            count += 1;
        }
        let mut states = [0u8; JOB_PAGES];
        let states = states.get_mut(..count).unwrap_or_default();
        // Who holds the lock for too long is not waited for again and again.
        if memory.states(start, states, false).is_err() {
            break;
        }
        for state in states.iter() {
            match *state {
                0 => {}
                state if state & uapi::PAGE_ACCESSED != 0 => hits += 1,
                _ => misses += 1,
            }
        }
        note(state, request, start, states);
        first += count;
    }
    drop(memory);
    // SAFETY: Begun above, by this thread.
    let ns = unsafe { bindings::agentzip_job_end(before) };
    count(state, request.cgroup_id, |counters| {
        counters.prefetch.hits.add(hits);
        counters.prefetch.misses.add(misses);
        counters.prefetch.ns.add(ns);
    });
}

/// Tells the recorder what has become of neighbouring pages.
fn note(state: &State, request: &Request, start: u64, states: &[u8]) {
    attached(state, request.cgroup_id, |sandbox| {
        for (page, state) in states.iter().enumerate() {
            let kind = match *state {
                0 => continue,
                state if state & uapi::PAGE_ACCESSED != 0 => FaultKind::Hit,
                _ => FaultKind::Miss,
            };
            sandbox.recorder.note(FaultRecord {
                // SAFETY: Not in an NMI.
                time_ns: unsafe { bindings::agentzip_now_ns() },
                address: start + (page * PAGE_SIZE) as u64,
                tgid: request.process.tgid,
                representation: NOT_DECODED,
                kind: kind as u8,
                ..FaultRecord::default()
            });
        }
    });
}
