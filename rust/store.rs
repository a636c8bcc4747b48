// SPDX-License-Identifier: GPL-2.0

//! Store, load and erase: what happens to a page on its way out and back.
//!
//! # Contract
//!
//! frontswap's old one: `store(folio) -> bool`, `load(folio) -> 0 | -EIO | -EINVAL`, `erase(slot)`.
//! An entry is kept on load, and the folio stays clean: reclaiming it again while it is clean needs
//! no store at all. The entry dies with the slot, or when the page is stored again. Only when little
//! is left of the store's or the sandbox's bound does a load end the entry, and make the folio dirty.
//!
//! # Which copy of a slot is the newest
//!
//! A slot may have been written by us, by zswap or by the swap device at different times; the swap
//! core asks us first, then zswap, then reads the device. So whoever stores must erase the others:
//!
//! * every store of a sandbox's folio, taken or declined, erases zswap's entries of its slots
//!   (declined: false goes back to the swap core, which writes to the device);
//! * every store of any other folio erases ours, in the hook, before the host's store runs.
//!
//! Pages that are all zero are marked by the swap core before it calls anybody. An entry of such a
//! slot stays, unread, until the slot is freed or stored again.
//!
//! # Races
//!
//! Store and load of one slot exclude each other by the folio lock, and the slot cannot be freed
//! meanwhile: table.rs. What happens between entries, reference pages, promotion and compaction is in
//! the text of the engine (store/src/engine/mod.rs), which this file gives the kernel's locks and
//! pages to. The rest, by pair:
//!
//! * store / detach: the replacement looks the sandbox up itself. If it finds it, it is a reader in
//!   flight, and the worker frees a detached sandbox only when, after waiting for such readers, it
//!   has no entry: an entry always has its sandbox. If not, it declines.
//! * load, erase, promotion / reaping of a sandbox: as the entry exists, the sandbox has an entry. An
//!   erase takes the descriptor out of the table first, but gives the count back last. Promotion
//!   reaches the sandbox of a sibling only under the lock of a slot that has an entry of it.
//! * encode, decode / replacement of a template page: both under RCU: template.rs.
//! * template removal: refused while a sandbox refers to it.
//! * disarm: refused while an entry exists; then hooks.c waits for whoever is inside.
//! * kill switch, drain: a store under way may still add entries after the switch was set; drain
//!   waits for those.
//!
//! # Bytes
//!
//! A page is copied once, and encoded from the copy: O_DIRECT or a device may write the original
//! meanwhile, and then any mixture of old and new is as right as with a swap device. Decoding checks
//! the CRC-32C of the page; a mismatch is EIO for this page (SIGBUS for who touches it), never wrong
//! bytes.

use core::cell::Cell;

use kernel::fmt;
use kernel::prelude::*;
use kernel::sync::atomic::{Atomic, Relaxed};
use kernel::sync::rcu;
use kernel::time::{Instant, Monotonic};

use crate::bindings;
use crate::codec::{Base, BaseId, Page, Representation, PAGE_SIZE};
use crate::counters::Decline;
use crate::hooks::{host_invalidate, Folio, InFlight, LoadEnd};
use crate::pages::{self, DirectMap, Limit, Payer};
use crate::sandbox::Sandbox;
use crate::state::State;
use crate::store_policy::engine::{
    self, Account, Erased, LoadError, Loaded, NoMemory, Platform, Promoted, Refusal, Stored,
};
use crate::store_policy::template::MAX_CANDIDATES;
use crate::store_policy::{Arena, Descriptor, Group, Index, Owner, Slot, MAX_SWAP_TYPES};

/// The kernel as the engine's platform.
struct Site<'a> {
    state: &'a State,
    /// Who pays for the arena of the sandbox that stores. `None` outside a store.
    payer: Option<&'a MemoryCgroup>,
    /// Whether a page was refused because a bound is reached, not for lack of memory.
    full: Cell<bool>,
}

impl<'a> Site<'a> {
    /// For everything that allocates no page of an arena.
    fn new(state: &'a State) -> Self {
        Self {
            state,
            payer: None,
            full: Cell::new(false),
        }
    }

    fn sandbox<R>(&self, owner: Owner, f: impl FnOnce(&Sandbox) -> R) -> Option<R> {
        let rcu = rcu::read_lock();
        self.state.sandboxes.get(owner.index(), &rcu).map(f)
    }
}

impl Platform for Site<'_> {
    type Pages = DirectMap;

    fn entry<R>(&self, slot: Slot, f: impl FnOnce(&mut Descriptor) -> R) -> Option<R> {
        self.state.table.entry(slot, f)
    }

    fn put(&self, slot: Slot, new: Descriptor) -> Result<Option<Descriptor>, NoMemory> {
        self.state.table.replace(slot, new).map_err(|_| NoMemory)
    }

    fn take(&self, slot: Slot) -> Option<Descriptor> {
        self.state.table.erase(slot)
    }

    fn arena<R>(&self, owner: Owner, f: impl FnOnce(&mut Arena<DirectMap>) -> R) -> Option<R> {
        self.sandbox(owner, |sandbox| f(&mut sandbox.arena.lock()))
    }

    fn is_compacting(&self, owner: Owner) -> bool {
        self.sandbox(owner, |sandbox| sandbox.compacting.load(Relaxed) != 0) == Some(true)
    }

    fn group<R>(&self, owner: Owner, f: impl FnOnce(&mut Group<DirectMap>) -> R) -> Option<R> {
        self.sandbox(owner, |sandbox| f(&mut sandbox.group.shared.lock()))
    }

    fn same_group(&self, a: Owner, b: Owner) -> bool {
        let group = |owner| self.sandbox(owner, |sandbox| core::ptr::from_ref(&*sandbox.group));
        a == b || group(a).is_some_and(|first| group(b) == Some(first))
    }

    fn template_bases<R>(&self, owner: Owner, index: u64, f: impl FnOnce(&[Base<'_>]) -> R) -> R {
        let rcu = rcu::read_lock();
        const NONE: Page = [0; PAGE_SIZE];
        let mut bases = [Base {
            id: BaseId::Template(0),
            page: &NONE,
        }; MAX_CANDIDATES];
        let mut count = 0;
        if let Some(sandbox) = self.state.sandboxes.get(owner.index(), &rcu) {
            let pages = &sandbox.template.pages;
            let candidates = sandbox.candidates(index);
            for (base, &ordinal) in bases.iter_mut().zip(candidates.as_slice()) {
                if let Some(page) = pages.page(ordinal, &rcu) {
                    *base = Base {
                        id: BaseId::Template(ordinal),
                        page,
                    };
                    count += 1;
                }
            }
        }
        f(bases.get(..count).unwrap_or_default())
    }

    fn template_page<R>(
        &self,
        owner: Owner,
        ordinal: u32,
        f: impl FnOnce(&Page) -> R,
    ) -> Option<R> {
        let rcu = rcu::read_lock();
        let sandbox = self.state.sandboxes.get(owner.index(), &rcu)?;
        sandbox.template.pages.page(ordinal, &rcu).map(f)
    }

    fn template_index<R>(&self, owner: Owner, f: impl FnOnce(&Index<DirectMap>) -> R) -> Option<R> {
        self.sandbox(owner, |sandbox| sandbox.template.content.with(f))
    }

    fn allocate(&self, owner: Owner, account: Account) -> Option<u32> {
        let bounded = self.state.max_bytes.allows(pages::bytes());
        match account {
            Account::Group if bounded => pages::allocate(Payer::Nobody),
            Account::Group => None,
            Account::Sandbox => {
                let within = self.sandbox(owner, |sandbox| {
                    sandbox.max_bytes.allows(sandbox.arena_bytes())
                });
                if !bounded || within != Some(true) {
                    self.full.set(true);
                    return None;
                }
                pages::allocate(Payer::Cgroup(self.payer?.0))
            }
        }
    }

    fn free(&self, page: u32) {
        pages::free(page);
    }

    fn promoted(&self, promoted: &Promoted) {
        self.state.counters.promoted(promoted.from, promoted.bytes);
        self.sandbox(promoted.owner, |maker| {
            maker.counters.promoted(promoted.from, promoted.bytes)
        });
    }
}

// ---- handlers ----

/// Whether a store is for us. Otherwise erases our entries of the folio's slots.
pub(crate) fn store_hook(state: &State, folio: &Folio) -> bool {
    if !state.registry.is_empty() && state.accepts_stores() {
        let rcu = rcu::read_lock();
        // SAFETY: `folio.memcg()` is valid as long as the guard.
        let owner = unsafe { state.registry.owner_of_memcg(folio.memcg(&rcu), &rcu) };
        if owner.is_some() {
            return true;
        }
    }
    erase_all(state, folio);
    false
}

/// Whether a load is for us: we hold any of the folio's slots.
pub(crate) fn load_hook(state: &State, folio: &Folio) -> bool {
    !state.table.is_empty()
        && (0..folio.pages()).any(|i| folio.slot(i).is_some_and(|slot| state.table.has(slot)))
}

/// Erases our entry of a slot, if there is one.
pub(crate) fn erase(state: &State, slot: Slot) {
    if state.table.is_empty() {
        return;
    }
    if let Some(erased) = engine::erase(&Site::new(state), slot) {
        note_erased(state, &erased);
    }
}

/// Erases our entries of all slots of a folio.
fn erase_all(state: &State, folio: &Folio) {
    if state.table.is_empty() {
        return;
    }
    let Some(first) = folio.slot(0) else { return };
    let pages = folio.pages();
    let mut i = 0;
    while i < pages {
        let Some(slot) = first.offset_by(i as u64) else {
            return;
        };
        let (done, descriptor) = state.table.erase_first(slot, pages.saturating_sub(i));
        if let Some(descriptor) = descriptor {
            let erased = engine::release(&Site::new(state), descriptor);
            note_erased(state, &erased);
        }
        i = i.saturating_add(done);
    }
}

/// Counts the end of an entry, all of which is gone.
fn note_erased(state: &State, erased: &Erased) {
    state.counters.erased(erased.representation, erased.bytes);
    let rcu = rcu::read_lock();
    if let Some(sandbox) = state.sandboxes.get(erased.owner.index(), &rcu) {
        sandbox.counters.erased(erased.representation, erased.bytes);
        // Last: from now on the sandbox may be reaped.
        sandbox.entries.sub(1);
    }
}

// ---- store ----

/// Stores a folio, all of its pages or none. False: the swap core writes it to the device.
pub(crate) fn store(state: &State, folio: &Folio, inflight: &InFlight) -> bool {
    // First: it runs through our own invalidate hook, which is there whenever ours of store is. So
    // this erases zswap's entries and ours; whatever comes now is newer.
    for i in 0..folio.pages() {
        host_invalidate(folio.raw_slot(i), inflight);
    }
    let found = find_payer(state, folio).and_then(|(owner, payer)| {
        Some((owner, state.sandboxes.get(owner.index(), inflight)?, payer))
    });
    let Some((owner, sandbox, payer)) = found else {
        state.counters.declined(Decline::Detached, folio.pages());
        return false;
    };
    let site = Site {
        payer: Some(&payer),
        ..Site::new(state)
    };
    for i in 0..folio.pages() {
        if let Err(why) = store_page(&site, owner, sandbox, folio, i) {
            // All or nothing: the pages before this one.
            erase_all(state, folio);
            state.counters.declined(why, folio.pages());
            sandbox.counters.declined(why, folio.pages());
            trace_store(sandbox, folio, i, None, 0, 0);
            return false;
        }
    }
    true
}

/// A reference to the memory cgroup of a sandbox, which pays for its arena.
///
/// # Invariants
///
/// The value owns the reference.
struct MemoryCgroup(*mut bindings::mem_cgroup);

impl Drop for MemoryCgroup {
    fn drop(&mut self) {
        // SAFETY: By the type invariants the reference is ours, and it ends here.
        unsafe { bindings::agentzip_memcg_put(self.0) };
    }
}

/// The sandbox that a folio belongs to. The folio lock does not keep its memory cgroup: when that is
/// removed, the folio passes to the parent.
fn find_payer(state: &State, folio: &Folio) -> Option<(Owner, MemoryCgroup)> {
    let rcu = rcu::read_lock();
    // SAFETY: `folio.memcg()` is valid as long as the guard.
    let (owner, memcg) = unsafe { state.registry.owner_of_memcg(folio.memcg(&rcu), &rcu) }?;
    // SAFETY: As above.
    if !unsafe { bindings::agentzip_memcg_tryget(memcg) } {
        return None;
    }
    // INVARIANT: Just taken.
    Some((owner, MemoryCgroup(memcg)))
}

fn store_page(
    site: &Site<'_>,
    owner: Owner,
    sandbox: &Sandbox,
    folio: &Folio,
    i: usize,
) -> Result<(), Decline> {
    let state = site.state;
    if !state.accepts_stores() {
        return Err(Decline::Detached);
    }
    let slot = folio.slot(i).ok_or(Decline::Full)?;
    let mut scratch = state.scratch.lock().ok_or(Decline::NoMemory)?;
    let scratch = &mut *scratch;
    let start = Instant::<Monotonic>::now();
    // SAFETY: Page `i` of a folio that our caller keeps; the scratch is elsewhere. Somebody may
    // write the page meanwhile: see "Bytes" above.
    unsafe {
        core::ptr::copy_nonoverlapping(
            folio.address(i).cast::<u8>(),
            scratch.buffers.page.as_mut_ptr(),
            PAGE_SIZE,
        )
    };
    let index = folio.index().wrapping_add(i as u64);
    let buffers = &mut *scratch.buffers;
    site.full.set(false);
    // Before the entry can be seen, so that an erase never comes first.
    sandbox.entries.add(1);
    let stored = engine::store(
        site,
        &state.policy(),
        owner,
        slot,
        index,
        &buffers.page,
        &mut buffers.work,
        &mut scratch.zstd,
    );
    let ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(0);
    state.counters.encode_ns.add(ns);
    sandbox.counters.encode_ns.add(ns);
    match stored {
        Ok(stored) => {
            note_stored(state, sandbox, &stored);
            let representation = Some(stored.representation);
            trace_store(sandbox, folio, i, representation, stored.bytes, ns);
            Ok(())
        }
        Err(refusal) => {
            sandbox.entries.sub(1);
            Err(match refusal {
                Refusal::Incompressible => Decline::Incompressible,
                Refusal::NoMemory if site.full.get() => Decline::Full,
                Refusal::NoMemory => Decline::NoMemory,
            })
        }
    }
}

/// Counts a store and what it changed elsewhere.
fn note_stored(state: &State, sandbox: &Sandbox, stored: &Stored) {
    for counters in [&state.counters, &sandbox.counters] {
        counters.stored(stored.representation, stored.bytes);
        if stored.template_backed {
            counters.template_backed.add(1);
        }
    }
    if let Some(erased) = &stored.replaced {
        note_erased(state, erased);
    }
}

// ---- load ----

/// Loads a folio of which we hold a slot. Unlocks it in every case; uptodate when it succeeds.
///
/// # Errors
///
/// `EINVAL` for a large folio: it may be ours in part only. `EIO` when a check failed.
pub(crate) fn load(state: &State, folio: Folio, inflight: &InFlight) -> Result {
    if folio.pages() != 1 {
        static WARNED: Atomic<u32> = Atomic::new(0);
        if WARNED.xchg(1, Relaxed) == 0 {
            pr_warn!("load: large folio from a synchronous swap device refused; write Y, then N to /sys/module/zswap/parameters/enabled\n");
        }
        state.counters.load_errors.add(1);
        folio.finish_load(LoadEnd::Failed);
        return Err(EINVAL);
    }
    let start = Instant::<Monotonic>::now();
    let (owner, result) = decode(state, &folio);
    let ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(0);
    let sandbox = owner.and_then(|owner| state.sandboxes.get(owner.index(), inflight));
    for counters in [Some(&state.counters), sandbox.map(|s| &s.counters)]
        .into_iter()
        .flatten()
    {
        if result.is_ok() {
            counters.loads.add(1);
            counters.decode_ns.add(ns);
        } else {
            counters.load_errors.add(1);
        }
    }
    let cgroup_id = sandbox.map_or(0, |s| s.cgroup_id);
    let slot = folio.raw_slot(0).0;
    let (representation, bytes, errno) = match &result {
        Ok(loaded) => (loaded.representation as c_int, loaded.bytes as c_uint, 0),
        Err(_) => (-1, 0, EIO.to_errno()),
    };
    // SAFETY: A tracepoint takes any values.
    unsafe { bindings::agentzip_trace_load(cgroup_id, slot, representation, bytes, errno, ns) };
    if let Err(error) = &result {
        // Loud, but a page that is touched again and again must not flood the log.
        let errors = state.counters.load_errors.get();
        if errors.is_power_of_two() {
            pr_err!(
                "load: slot {:#x} of cgroup {}: {}; the page is lost (EIO); {} such loads so far\n",
                slot,
                cgroup_id,
                Shown(error),
                errors
            );
        }
    }
    let end = match (&result, folio.slot(0)) {
        (Err(_), _) => LoadEnd::Failed,
        (Ok(_), Some(slot)) if is_tight(state, sandbox) => {
            // The folio is locked: nobody loads or stores the slot until it is dirty.
            erase(state, slot);
            for counters in [Some(&state.counters), sandbox.map(|s| &s.counters)] {
                counters.into_iter().for_each(|c| c.dropped.add(1));
            }
            LoadEnd::Dropped
        }
        (Ok(_), _) => LoadEnd::Kept,
    };
    folio.finish_load(end);
    result.map(|_| ()).map_err(|_| EIO)
}

/// Whether so little is left of a bound that a page which is back in memory is better not kept twice.
fn is_tight(state: &State, sandbox: Option<&Sandbox>) -> bool {
    state.max_bytes.is_near(pages::bytes())
        || sandbox.is_some_and(|sandbox| {
            sandbox.max_bytes.get() != Limit::NONE
                && sandbox.max_bytes.is_near(sandbox.arena_bytes())
        })
}

/// An error of the store policy, which knows only the core library's formatting.
struct Shown<'a>(&'a LoadError);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        core::fmt::Display::fmt(self.0, f)
    }
}

/// Decodes the entry of a folio's slot into it. Allocates nothing. Also returns whose entry it was.
fn decode(state: &State, folio: &Folio) -> (Option<Owner>, Result<Loaded, LoadError>) {
    let Some(slot) = folio.slot(0) else {
        return (None, Err(LoadError::Empty));
    };
    let owner = state.table.entry(slot, |descriptor| descriptor.owner());
    let Some(mut scratch) = state.scratch.lock() else {
        return (owner, Err(LoadError::Missing));
    };
    let scratch = &mut *scratch;
    // SAFETY: By the invariants of `Folio` the page is ours alone until the load ends.
    let out = unsafe { &mut *folio.address(0) };
    let work = &mut scratch.buffers.work;
    let result = engine::load(&Site::new(state), slot, work, &mut scratch.zstd, out);
    (owner, result)
}

/// Reference pages that compaction looks at in one go.
const COMPACT_BATCH: u32 = 64;

/// Leaves of the slot table that a round of compaction walks: some milliseconds.
const COMPACT_LEAVES: usize = 128;

/// Where the walk of a compaction is. Kept by the control lock.
#[derive(Clone, Copy)]
pub(crate) struct Walk {
    swap_type: u32,
    offset: u64,
}

/// Calls `f` with every sandbox and its owner. The caller holds the control lock.
fn for_each_sandbox(state: &State, mut f: impl FnMut(Owner, &Sandbox)) {
    for id in 0..state.sandboxes.capacity() {
        let owner = u16::try_from(id).ok().and_then(Owner::new);
        if let (Some(owner), Some(sandbox)) = (owner, state.sandboxes.share(id)) {
            f(owner, &sandbox);
        }
    }
}

/// Moves payloads out of pages that hold little, and gives those back: the next part of it.
///
/// Called by the worker, which holds the control lock. A compaction marks pages of all arenas that it
/// pays for, walks the whole table, in as many rounds as it takes, and ends.
pub(crate) fn compact(state: &State, walk: &mut Option<Walk>) {
    let site = Site::new(state);
    for_each_sandbox(state, |owner, _| compact_group(&site, owner));
    let Some(mut at) = walk.take().or_else(|| begin_compaction(state)) else {
        return;
    };
    for _ in 0..COMPACT_LEAVES {
        let next = state.table.walk(at.swap_type, at.offset, |slot| {
            engine::compact_entry(&site, slot);
        });
        match next {
            Some(offset) => at.offset = offset,
            None => {
                at = Walk {
                    swap_type: at.swap_type + 1,
                    offset: 0,
                }
            }
        }
        if at.swap_type >= MAX_SWAP_TYPES {
            end_compaction(state);
            return;
        }
    }
    *walk = Some(at);
}

/// Marks pages of every arena that compaction pays for. `None` when there are none.
fn begin_compaction(state: &State) -> Option<Walk> {
    let mut any = false;
    for_each_sandbox(state, |_, sandbox| {
        if !sandbox.arena.lock().is_sparse() {
            return;
        }
        // First: a relocation must not overlook what is marked.
        sandbox.compacting.store(1, Relaxed);
        let mut marked = false;
        while sandbox.arena.lock().begin_compaction() {
            marked = true;
        }
        if marked {
            any = true;
        } else {
            end_of(sandbox);
        }
    });
    any.then_some(Walk {
        swap_type: 0,
        offset: 0,
    })
}

fn end_compaction(state: &State) {
    for_each_sandbox(state, |_, sandbox| {
        if sandbox.compacting.load(Relaxed) != 0 {
            end_of(sandbox);
        }
    });
}

fn end_of(sandbox: &Sandbox) {
    while sandbox.arena.lock().end_compaction() {}
    sandbox.compacting.store(0, Relaxed);
}

fn compact_group(site: &Site<'_>, owner: Owner) {
    let begun = site.group(owner, |group| {
        group.arena.is_sparse() && group.arena.begin_compaction()
    });
    if begun != Some(true) {
        return;
    }
    while site.group(owner, |group| group.arena.begin_compaction()) == Some(true) {}
    let mut next = Some(0);
    while let Some(first) = next {
        next = engine::compact_group(site, owner, first, COMPACT_BATCH);
    }
    while site.group(owner, |group| group.arena.end_compaction()) == Some(true) {}
}

fn trace_store(
    sandbox: &Sandbox,
    folio: &Folio,
    i: usize,
    representation: Option<Representation>,
    bytes: usize,
    ns: u64,
) {
    // SAFETY: A tracepoint takes any values.
    unsafe {
        bindings::agentzip_trace_store(
            sandbox.cgroup_id,
            folio.raw_slot(i).0,
            folio.index().wrapping_add(i as u64),
            representation.map_or(-1, |r| r as c_int),
            bytes as c_uint,
            ns,
        )
    };
}
