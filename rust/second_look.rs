// SPDX-License-Identifier: GPL-2.0

//! The second look: what reclaim stored in a hurry is encoded again, with everything there is, while
//! the agent waits (ffi/worker.c calls [`agentzip_rs_second_look`]). When a group has got a new
//! dictionary, entries that were made without it are tried with it, once.
//!
//! # Whose entries
//!
//! Those of sandboxes whose agent waits, or whose phases nobody has ever told; never of sensitive ones. The phase is looked at
//! before each page: a sandbox that goes on working is left alone within one page. One cursor goes
//! round the slot table, so each sandbox has its turn however many entries another has.
//!
//! # Races
//!
//! An entry may be loaded, freed or stored again at any time: the engine replaces it only while its
//! payload is what was looked at (store/src/engine/improve.rs). What is left is the sandbox. Between
//! reading its entry and putting a new payload into its arena the entry may die, the sandbox be
//! reaped, and its number be given to another. So a look counts as an entry of the sandbox, from
//! before it reads the descriptor until it is done, and that count rises under RCU with the entry that
//! it is for still in the table after it: until then the sandbox has an entry, from then
//! on it has this one, and reaping waits for neither to be left. The slot may pass to another sandbox
//! after that, which nobody keeps: the engine is told whose entry to look at and leaves that one alone.
//!
//! Between two looks it gives way to who waits for its CPU: nothing is counted or held then but its own
//! scratch. During a look it may be preempted, under RCU and with the sandbox counted: reaping and
//! whoever waits for readers wait for as long.

use kernel::prelude::*;
use kernel::sync::atomic::Relaxed;
use kernel::sync::rcu;
use kernel::sync::{new_mutex, Mutex};
use kernel::time::{Delta, Instant, Monotonic};

use crate::bindings;
use crate::codec::Level;
use crate::compaction::Walk;
use crate::counters::Counters;
use crate::platform::{MemoryCgroup, Need, Site};
use crate::sandbox::Sandbox;
use crate::scratch::Scratch;
use crate::state::{self, State};
use crate::store_policy::engine::{self, Improved, Platform, Renewed};
use crate::store_policy::{Owner, Slot, MAX_SWAP_TYPES};

/// Time after which a round ends, ns: the worker can be stopped between rounds, and pauses there when it
/// may take a part of a CPU's time only.
const ROUND_NS: i64 = 50_000_000;

/// Nice value of rounds: nobody waits for what they do. Not more, for a look encodes under RCU, whose other
/// users wait for it.
const NICE: c_int = 10;

/// Most CPU time that a round is counted with, ns.
const MAX_ROUND_NS: i64 = 4 * ROUND_NS;

/// What the worker works with.
pub(crate) struct Worker {
    look: Pin<KBox<Mutex<Look>>>,
    bytes: u64,
}

impl Worker {
    pub(crate) fn new() -> Result<Self> {
        let look = Look::new()?;
        Ok(Self {
            bytes: look.scratch.bytes(),
            look: KBox::pin_init(new_mutex!(look, "agentzip_look"), GFP_KERNEL)?,
        })
    }

    /// Bytes of its buffers; fixed.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// The worker's own.
struct Look {
    scratch: Scratch,
    /// Where the walk over the slot table is.
    at: Walk,
    /// Whether the walk is to try a new dictionary, too.
    renewing: bool,
    /// Entries that were looked at since the walk began.
    found: u64,
    /// The pause after the last round.
    rest: Option<Rest>,
}

/// The worker has used up its share of the time.
#[derive(Clone, Copy)]
struct Rest {
    until: Instant<Monotonic>,
    /// The share, in percent: with another one the pause is over.
    percent: u32,
}

impl Look {
    fn new() -> Result<Self> {
        Ok(Self {
            scratch: Scratch::with_dictionaries()?,
            at: Walk::START,
            renewing: false,
            found: 0,
            rest: None,
        })
    }
}

/// A round of the worker. Returns after how many ms there should be another, less than 0 for none.
#[no_mangle]
extern "C" fn agentzip_rs_second_look() -> c_int {
    match state::get().and_then(turn) {
        // Never early.
        Some(pause) => pause.as_millis_ceil().try_into().unwrap_or(c_int::MAX),
        None => -1,
    }
}

/// A round, unless the worker has used up its share of the time: then it waits. Returns the pause
/// before another round, if there should be one.
fn turn(state: &State) -> Option<Delta> {
    let mut look = state.look.look.lock();
    let start = Instant::<Monotonic>::now();
    let percent = state.second_look_percent.load(Relaxed);
    let rest = look.rest.filter(|rest| rest.percent == percent);
    let left = rest.map(|rest| rest.until - start);
    if let Some(left) = left.filter(|left| left.as_nanos() > 0) {
        return Some(left);
    }
    // SAFETY: It ends here.
    let before = unsafe { bindings::agentzip_job_begin(NICE) };
    let more = round(state, &mut look);
    // SAFETY: Begun above, by this thread.
    let took = unsafe { bindings::agentzip_job_end(before) };
    let took = i64::try_from(took).unwrap_or(i64::MAX).min(MAX_ROUND_NS);
    let share = i64::from(percent.clamp(1, 100));
    let pause = Delta::from_nanos(took / share * (100 - share));
    let until = Instant::now() + pause;
    look.rest = Some(Rest { until, percent });
    more.then_some(pause)
}

/// Lets the worker begin, if there is something to do. Housekeeping does so about once a second.
pub(crate) fn kick() {
    // SAFETY: A worker that was stopped does not begin again.
    unsafe { bindings::agentzip_second_look_kick() };
}

/// Whether entries of the sandbox are looked at again now.
fn is_wanted(sandbox: &Sandbox) -> bool {
    sandbox.is_attached()
        && !sandbox.is_sensitive()
        && sandbox.may_look_again()
        && (sandbox.counters.provisional.get() != 0 || sandbox.is_behind())
}

/// Whether there are entries to look at again.
pub(crate) fn is_due(state: &State) -> bool {
    let mut due = false;
    if state.second_look.load(Relaxed) != 0 {
        let rcu = rcu::read_lock();
        state
            .sandboxes
            .for_each(&rcu, |_, sandbox| due |= is_wanted(sandbox));
    }
    due
}

/// Looks at entries for a while. Returns whether there should be another round.
fn round(state: &State, look: &mut Look) -> bool {
    let start = Instant::<Monotonic>::now();
    while is_due(state) {
        if look.at == Walk::START {
            look.renewing = begin_renewal(state);
        }
        if look.at.swap_type >= MAX_SWAP_TYPES {
            let found = look.found;
            look.at = Walk::START;
            look.found = 0;
            end_renewal(state);
            if found == 0 {
                // What is left cannot be made better now: no memory, or somebody is at it.
                return false;
            }
            // Another walk, if that is still due.
            return true;
        }
        // The rest of a leaf at a time.
        let Walk { swap_type, offset } = look.at;
        let mut left = None;
        let next = state.table.walk(swap_type, offset, |slot| {
            if left.is_some() || slot.offset() < offset {
                return;
            }
            if start.elapsed().as_nanos() >= ROUND_NS {
                left = Some(slot.offset());
                return;
            }
            if look_at(state, slot, look.renewing, &mut look.scratch) {
                look.found += 1;
            }
            // SAFETY: May sleep, as the look may; only its own mutex is held, and unloading waits for the
            // work item.
            unsafe { bindings::agentzip_give_way() };
        });
        if let Some(offset) = left {
            look.at = Walk { swap_type, offset };
            return true;
        }
        look.at = match next {
            Some(offset) => Walk { swap_type, offset },
            None => Walk {
                swap_type: swap_type + 1,
                offset: 0,
            },
        };
    }
    false
}

/// A walk begins. Returns whether it is to try a new dictionary for anybody.
fn begin_renewal(state: &State) -> bool {
    let mut any = false;
    let rcu = rcu::read_lock();
    state.sandboxes.for_each(&rcu, |_, sandbox| {
        any |= sandbox.is_behind() && sandbox.begin_renewal();
    });
    any
}

fn end_renewal(state: &State) {
    let rcu = rcu::read_lock();
    state
        .sandboxes
        .for_each(&rcu, |_, sandbox| sandbox.end_renewal());
}

/// What is done with an entry.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Task {
    /// It is provisional: everything is tried.
    Improve,
    /// It, or the reference page that it names, was made without the group's dictionary: that is tried.
    Renew,
}

impl Task {
    /// The owner of the slot's entry if this is to be done with it.
    fn owner(self, site: &Site<'_>, slot: Slot) -> Option<Owner> {
        match self {
            Self::Improve => engine::provisional(site, slot),
            Self::Renew => engine::dated(site, slot),
        }
    }
}

/// Looks at a slot's entry again if that is wanted. Returns whether it was made better.
fn look_at(state: &State, slot: Slot, renewing: bool, scratch: &mut Scratch) -> bool {
    let improved = look_for(state, slot, Task::Improve, scratch);
    improved || (renewing && look_for(state, slot, Task::Renew, scratch))
}

fn look_for(state: &State, slot: Slot, task: Task, scratch: &mut Scratch) -> bool {
    let site = Site::new(state);
    let Some(Pinned {
        owner,
        cgroup_id,
        effort,
    }) = pin(state, &site, slot, task)
    else {
        return false;
    };
    let start = Instant::<Monotonic>::now();
    let payer = MemoryCgroup::of_cgroup(cgroup_id);
    let made = payer.as_ref().and_then(|payer| {
        let site = site.paid_by(payer, Need::Exchange);
        let buffers = &mut *scratch.buffers;
        let (page, work) = (&mut buffers.page, &mut buffers.work);
        let zstd = &mut scratch.zstd;
        let mut policy = state.policy();
        // With literals as they are, so that pages decode as fast.
        policy.limits.level = effort;
        match task {
            Task::Improve => {
                engine::improve(&site, &policy, owner, slot, page, work, zstd).map(Made::Improved)
            }
            Task::Renew => {
                engine::renew(&site, &policy, owner, slot, page, work, zstd).map(Made::Renewed)
            }
        }
    });
    let ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(0);
    let rcu = rcu::read_lock();
    // It is there: the pin keeps it.
    if let Some(sandbox) = state.sandboxes.get(owner.index(), &rcu) {
        for counters in [&state.counters, &sandbox.counters] {
            counters.second_look_ns.add(ns);
            if let Some(made) = &made {
                note(counters, made);
            }
        }
        // Last: from now on the sandbox may be reaped.
        sandbox.entries.sub(1);
    }
    made.is_some()
}

/// What a look has led to.
enum Made {
    Improved(Improved),
    Renewed(Renewed),
}

fn note(counters: &Counters, made: &Made) {
    let parts = |improved: &Improved| {
        (
            (improved.from, improved.bytes_before),
            (improved.representation, improved.bytes),
        )
    };
    match made {
        Made::Improved(improved) => {
            let (before, now) = parts(improved);
            counters.improved(before, now);
        }
        Made::Renewed(Renewed::Entry(improved)) => {
            let (before, now) = parts(improved);
            counters.renewed(before, now);
        }
        // Its payload is the group's, which is counted where it lies.
        Made::Renewed(Renewed::Reference { .. }) => {}
    }
}

/// What a look needs to know of the sandbox that is kept for it.
struct Pinned {
    owner: Owner,
    cgroup_id: u64,
    effort: Level,
}

/// Counts a look as an entry of the sandbox whose entry is at the slot, if it is to be looked at.
fn pin(state: &State, site: &Site<'_>, slot: Slot, task: Task) -> Option<Pinned> {
    // Until the count is either kept or given back: the sandbox stays in memory.
    let rcu = rcu::read_lock();
    let owner = site.entry(slot, |descriptor| descriptor.owner())?;
    let sandbox = state.sandboxes.get(owner.index(), &rcu)?;
    if !is_wanted(sandbox) || (task == Task::Renew && !sandbox.is_behind()) {
        return None;
    }
    if task.owner(site, slot) != Some(owner) {
        return None;
    }
    sandbox.entries.add(1);
    // Its number cannot have passed to another in between: this is still a reader of that table.
    if task.owner(site, slot) == Some(owner) {
        return Some(Pinned {
            owner,
            cgroup_id: sandbox.cgroup_id,
            effort: sandbox.effort(),
        });
    }
    sandbox.entries.sub(1);
    None
}
