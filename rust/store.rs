// SPDX-License-Identifier: GPL-2.0

//! Store, load and erase: what happens to a page on its way out and back.
//!
//! # Contract
//!
//! frontswap's old one: `store(folio) -> bool`, `load(folio) -> 0 | -EIO | -EINVAL`, `erase(slot)`.
//! An entry is kept on load, and the folio stays clean: reclaiming it again while it is clean needs
//! no store at all. The entry dies with the slot, or when the page is stored again. Only when little
//! is left of the store's or the sandbox's bound, or `keep_on_load` is off, does a load end the entry, and make
//! the folio dirty.
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
//! * a store gives way at its end, to who waits for the CPU: its folio is locked and its entries are
//!   there, as if it had been preempted; SRCU keeps the module, and drain waits for it;
//! * kill switch, drain: a store under way may still add entries after the switch was set; drain
//!   waits for those.
//!
//! # Bytes
//!
//! A page is copied once, and encoded from the copy: O_DIRECT or a device may write the original
//! meanwhile, and then any mixture of old and new is as right as with a swap device. Decoding checks
//! the CRC-32C of the page; a mismatch is EIO for this page (SIGBUS for who touches it), never wrong
//! bytes.
//!
//! # Sensitive sandboxes
//!
//! Whose a page is, and so whether it is stored [padded](engine::Policy::padded), is found when it is stored. A
//! task that moves, and a child in another cgroup, bring no page with them: what they write from then on is
//! the new cgroup's. An entry stays what it is until its slot is freed or stored again: the sandbox that it
//! was stored for keeps it, detached or not, and a load goes by the payload. The flag of a sandbox is
//! fixed for as long as it lives, so no store can see it change.

use kernel::fmt;
use kernel::prelude::*;
use kernel::sync::atomic::{Atomic, Relaxed};
use kernel::sync::rcu;
use kernel::time::{Instant, Monotonic};

use crate::bindings;
use crate::codec::{Representation, PAGE_SIZE};
use crate::counters::Decline;
use crate::hooks::{host_invalidate, Folio, InFlight, LoadEnd};
use crate::pages::{self, Limit};
use crate::platform::{MemoryCgroup, Need, Site};
use crate::samples;
use crate::sandbox::Sandbox;
use crate::state::State;
use crate::store_policy::engine::{self, Erased, LoadError, Loaded, Platform, Refusal, Stored};
use crate::store_policy::{Entry, Owner, Slot};
use crate::streak::is_noise;

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
    state.counters.erased(erased);
    let rcu = rcu::read_lock();
    if let Some(sandbox) = state.sandboxes.get(erased.owner.index(), &rcu) {
        sandbox.counters.erased(erased);
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
    let site = Site::new(state);
    let site = site.paid_by(&payer, Need::Store);
    for i in 0..folio.pages() {
        if let Err(why) = store_page(&site, owner, sandbox, folio, i) {
            // All or nothing: the pages before this one.
            erase_all(state, folio);
            if matches!(why, Decline::Incompressible) {
                sandbox.streak.refused();
            }
            state.counters.declined(why, folio.pages());
            sandbox.counters.declined(why, folio.pages());
            trace_store(sandbox, folio, i, None, 0, 0);
            return false;
        }
    }
    sandbox.streak.ends();
    // SAFETY: Reclaim may sleep, and we hold nothing that must not; the caller's count of stores under way keeps
    // the module.
    unsafe { bindings::agentzip_give_way() };
    true
}

/// The sandbox that a folio belongs to. The folio lock does not keep its memory cgroup: when that is
/// removed, the folio passes to the parent.
fn find_payer(state: &State, folio: &Folio) -> Option<(Owner, MemoryCgroup)> {
    let rcu = rcu::read_lock();
    // SAFETY: `folio.memcg()` is valid as long as the guard.
    let (owner, memcg) = unsafe { state.registry.owner_of_memcg(folio.memcg(&rcu), &rcu) }?;
    // SAFETY: As above.
    let payer = unsafe { MemoryCgroup::get(memcg) }?;
    Some((owner, payer))
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
    let index = folio.index().wrapping_add(i as u64);
    if sandbox.streak.lasts() {
        // The template is nothing to the pages of a sensitive one.
        let based =
            !sandbox.is_sensitive() && site.template_bases(owner, index, |bases| !bases.is_empty());
        // SAFETY: Page `i` of a folio that our caller keeps.
        if !based && unsafe { is_noise(folio.address(i)) } {
            return Err(Decline::Incompressible);
        }
    }
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
    let buffers = &mut *scratch.buffers;
    site.full.set(false);
    // Before the entry can be seen, so that an erase never comes first.
    sandbox.entries.add(1);
    let mut policy = state.policy();
    policy.padded = sandbox.is_sensitive();
    let stored = engine::store(
        site,
        &policy,
        owner,
        slot,
        index,
        &buffers.page,
        &mut buffers.work,
        &mut scratch.zstd,
    );
    if policy.padded {
        scratch.wipe_after_encode();
    }
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
        if stored.provisional {
            counters.provisional.add(1);
        }
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
            // Arming waits for the kernel to ask for single pages only, but for one race: hooks.c.
            pr_warn!("load: large folio refused, which should not have been asked for\n");
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
    if let (Some(sandbox), Ok(loaded)) = (sandbox, &result) {
        sandbox.recorder.decoded(slot, loaded.representation, ns);
    }
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
        (Ok(_), Some(slot)) if !keeps(state, sandbox) => {
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
    if result.is_ok() {
        let ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(0);
        state.counters.took(ns);
        if let Some(sandbox) = sandbox {
            sandbox.counters.took(ns);
        }
    }
    result.map(|_| ()).map_err(|_| EIO)
}

/// Whether the entry of a page that is back in memory stays: unless nobody wants that, or so little is left of
/// a bound that a page is better not kept twice.
fn keeps(state: &State, sandbox: Option<&Sandbox>) -> bool {
    state.keep_on_load.load(Relaxed) != 0 && !is_tight(state, sandbox)
}

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
    if may_be_sensitive(&result) {
        scratch.wipe_after_decode();
    }
    (owner, result)
}

/// Decodes the entry of a slot into `buffers` if it is of this group and its payload at least `least`
/// bytes long. Returns whether it did.
///
/// Nobody keeps the slot from being freed or stored meanwhile: then what the payload needs may be gone,
/// or another page may have its number, and the checksum of the page decides.
pub(crate) fn sample(
    state: &State,
    group: &crate::group::Group,
    slot: Slot,
    least: usize,
    buffers: &mut samples::Buffers,
) -> bool {
    let site = Site::new(state);
    let is_of_group =
        |owner| site.sandbox(owner, |sandbox| core::ptr::eq(&*sandbox.group, group)) == Some(true);
    let payload = &mut buffers.payload;
    let found = site.entry(slot, |descriptor| match descriptor.unpack() {
        Entry::Payload {
            owner,
            place,
            provisional,
        } if is_of_group(owner) => site
            .arena(owner, |arenas| arenas.of(provisional).read(place, payload))
            .flatten(),
        Entry::Payload { .. } | Entry::Fill { .. } | Entry::Ref { .. } => None,
    });
    if found.flatten().is_none_or(|bytes| bytes < least) {
        return false;
    }
    let Some(mut scratch) = state.scratch.lock() else {
        return false;
    };
    let scratch = &mut *scratch;
    let work = &mut scratch.buffers.work;
    let loaded = engine::peek(&site, slot, work, &mut scratch.zstd, &mut buffers.page);
    // The slot may be another sandbox's by now, a sensitive one's even.
    if may_be_sensitive(&loaded) {
        scratch.wipe_after_decode();
    }
    let good = loaded.is_ok_and(|loaded| is_of_group(loaded.owner));
    if !good {
        pages::zero(&mut buffers.page);
    }
    good
}

/// Whether something of a sensitive sandbox's page may be left in the scratch that it was decoded with. Of a
/// damaged payload anything may have been brought back.
fn may_be_sensitive(result: &Result<Loaded, LoadError>) -> bool {
    let padded = |loaded: &Loaded| loaded.representation == Representation::Padded;
    result.as_ref().map_or(true, padded)
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
