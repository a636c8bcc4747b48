// SPDX-License-Identifier: GPL-2.0

//! Store, load and erase: what happens to a page on its way out and back.
//!
//! # Contract
//!
//! frontswap's old one: `store(folio) -> bool`, `load(folio) -> 0 | -EIO | -EINVAL`, `erase(slot)`.
//! An entry is kept on load, and the folio stays clean: reclaiming it again while it is clean needs
//! no store at all. The entry dies with the slot, or when the page is stored again.
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
//! meanwhile: table.rs. The rest, by pair:
//!
//! * store / detach: the replacement looks the sandbox up itself. If it finds it, it is a reader in
//!   flight, and the worker frees a detached sandbox only when, after waiting for such readers, it
//!   has no entry: an entry always has its sandbox. If not, it declines.
//! * load, erase / reaping of a sandbox: as the entry exists, the sandbox has an entry.
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

use kernel::fmt;
use kernel::prelude::*;
use kernel::sync::atomic::{Atomic, Relaxed};
use kernel::sync::rcu;
use kernel::time::{Instant, Monotonic};

use crate::bindings;
use crate::codec::{self, Base, DecodeError, Encoded, Page, Representation, PAGE_SIZE};
use crate::counters::Decline;
use crate::hooks::{host_invalidate, Folio, InFlight};
use crate::pool::Handle;
use crate::sandbox::Sandbox;
use crate::scratch::Scratch;
use crate::state::State;
use crate::store_policy::template::MAX_CANDIDATES;
use crate::store_policy::{zsmalloc_cost, Descriptor, Entry, Owner, REF_CRC_BITS};
use crate::table::Slot;

/// Most bytes, everything counted, that a stored page may occupy.
const MAX_COST: usize = PAGE_SIZE - 1;

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
        && (0..folio.pages()).any(|i| state.table.get(folio.slot().offset_by(i)).is_some())
}

/// Erases our entry of a slot, if there is one.
pub(crate) fn erase(state: &State, slot: Slot) {
    if state.table.is_empty() {
        return;
    }
    if let Some(descriptor) = state.table.erase(slot) {
        dispose(state, descriptor);
    }
}

/// Erases our entries of all slots of a folio.
fn erase_all(state: &State, folio: &Folio) {
    if state.table.is_empty() {
        return;
    }
    let pages = folio.pages();
    let mut i = 0;
    while i < pages {
        let (done, descriptor) = state
            .table
            .erase_first(folio.slot().offset_by(i), pages.saturating_sub(i));
        if let Some(descriptor) = descriptor {
            dispose(state, descriptor);
        }
        i = i.saturating_add(done);
    }
}

/// Ends an entry that was taken out of the table. Does not sleep.
fn dispose(state: &State, descriptor: Descriptor) {
    let (representation, len) = match descriptor.unpack() {
        Entry::Fill { .. } => (Representation::Fill, 0),
        Entry::Ref { .. } => (Representation::Ref, 0),
        Entry::Payload { handle, .. } => {
            let handle = Handle::from_raw(handle);
            let mut header = [0; codec::HEADER_LEN];
            // SAFETY: The handle came out of the table, where live ones of payloads are, and we are
            // its only owner; every payload has a header. Freed after its last use.
            let header = unsafe {
                let header = state
                    .pool
                    .read(handle, codec::HEADER_LEN, &mut header, codec::header);
                state.pool.remove(handle);
                header
            };
            match header {
                Ok(header) => (header.representation, header.len.into()),
                // Counted as what it was not; the pool is corrupt, and every load of it says so.
                Err(_) => (Representation::Zstd, 0),
            }
        }
    };
    let rcu = rcu::read_lock();
    state.counters.erased(representation, len);
    if let Some(sandbox) = state.sandboxes.get(descriptor.owner().index(), &rcu) {
        sandbox.counters.erased(representation, len);
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
        host_invalidate(folio.slot().offset_by(i), inflight);
    }
    let owner = {
        let rcu = rcu::read_lock();
        // SAFETY: `folio.memcg()` is valid as long as the guard.
        unsafe { state.registry.owner_of_memcg(folio.memcg(&rcu), &rcu) }
    };
    let sandbox =
        owner.and_then(|owner| Some((owner, state.sandboxes.get(owner.index(), inflight)?)));
    let Some((owner, sandbox)) = sandbox else {
        state.counters.declined(Decline::Detached, folio.pages());
        return false;
    };
    for i in 0..folio.pages() {
        if let Err(why) = store_page(state, owner, sandbox, folio, i) {
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

fn store_page(
    state: &State,
    owner: Owner,
    sandbox: &Sandbox,
    folio: &Folio,
    i: usize,
) -> Result<(), Decline> {
    if !state.accepts_stores() {
        return Err(Decline::Detached);
    }
    let mut scratch = state.scratch.lock().ok_or(Decline::NoMemory)?;
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
    let (encoded, template_backed) = encode(sandbox, index, &mut scratch);
    let ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(0);
    state.counters.encode_ns.add(ns);
    sandbox.counters.encode_ns.add(ns);

    let encoded = encoded.ok_or(Decline::Incompressible)?;
    let slot = folio.slot().offset_by(i);
    let (representation, len) = insert(state, owner, sandbox, slot, encoded, &mut scratch)?;
    drop(scratch);

    for counters in [&state.counters, &sandbox.counters] {
        counters.stored(representation, len);
        if template_backed {
            counters.template_backed.add(1);
        }
    }
    trace_store(sandbox, folio, i, Some(representation), len, ns);
    Ok(())
}

/// Encodes the page in the scratch. Also says whether the template has its index.
fn encode(sandbox: &Sandbox, index: u64, scratch: &mut Scratch) -> (Option<Encoded>, bool) {
    let candidates = sandbox.template.pages.candidates(index);
    let rcu = rcu::read_lock();
    const NONE: Page = [0; PAGE_SIZE];
    let mut bases = [Base {
        ordinal: 0,
        page: &NONE,
    }; MAX_CANDIDATES];
    let mut count = 0;
    for (base, &ordinal) in bases.iter_mut().zip(candidates.as_slice()) {
        if let Some(page) = sandbox.template.pages.page(ordinal, &rcu) {
            *base = Base { ordinal, page };
            count += 1;
        }
    }
    let buffers = &mut *scratch.buffers;
    let encoded = codec::encode(
        &buffers.page,
        bases.get(..count).unwrap_or_default(),
        &zsmalloc_cost,
        MAX_COST,
        &mut buffers.codec,
        &mut scratch.zstd,
        &mut buffers.payload,
    );
    (encoded, !candidates.is_empty())
}

/// Makes the entry of a slot out of an encoded page. The payload is in the scratch.
fn insert(
    state: &State,
    owner: Owner,
    sandbox: &Sandbox,
    slot: Slot,
    encoded: Encoded,
    scratch: &mut Scratch,
) -> Result<(Representation, usize), Decline> {
    let buffers = &mut *scratch.buffers;
    let crc_mask = (1u32 << REF_CRC_BITS) - 1;
    let (small, representation, len) = match encoded {
        Encoded::Fill(word) => match Descriptor::pack(Entry::Fill { owner, word }) {
            Some(descriptor) => (Some(descriptor), Representation::Fill, 0),
            None => {
                let len =
                    codec::encode_fill(&buffers.page, &mut scratch.zstd, &mut buffers.payload)
                        .ok_or(Decline::Incompressible)?;
                (None, Representation::Fill, len)
            }
        },
        Encoded::Ref { ordinal, crc } => {
            let crc = crc & crc_mask;
            let entry = Entry::Ref {
                owner,
                ordinal,
                crc,
            };
            let descriptor = Descriptor::pack(entry).ok_or(Decline::Incompressible)?;
            (Some(descriptor), Representation::Ref, 0)
        }
        Encoded::Payload {
            representation,
            len,
        } => (None, representation, len),
    };
    let descriptor = match small {
        Some(descriptor) => descriptor,
        None => {
            let payload = buffers.payload.get(..len).ok_or(Decline::Incompressible)?;
            let handle = state.pool.insert(payload).map_err(|_| Decline::NoMemory)?;
            let entry = Entry::Payload {
                owner,
                handle: handle.into_raw(),
            };
            match Descriptor::pack(entry) {
                Some(descriptor) => descriptor,
                None => {
                    // SAFETY: In no slot and without readers: we just made it.
                    unsafe { state.pool.remove(handle) };
                    return Err(Decline::NoMemory);
                }
            }
        }
    };
    // Before the entry can be seen, so that an erase never comes first.
    sandbox.entries.add(1);
    match state.table.replace(slot, descriptor) {
        Ok(old) => {
            if let Some(old) = old {
                dispose(state, old);
            }
            Ok((representation, len))
        }
        Err(_) => {
            if let Entry::Payload { handle, .. } = descriptor.unpack() {
                // SAFETY: In no slot and without readers: the table refused it.
                unsafe { state.pool.remove(Handle::from_raw(handle)) };
            }
            sandbox.entries.sub(1);
            Err(Decline::NoMemory)
        }
    }
}

// ---- load ----

/// Why a load failed.
enum LoadError {
    /// The entry, its sandbox or its payload is not there: cannot happen.
    Missing,
    Decode(DecodeError),
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("its entry vanished"),
            Self::Decode(error) => core::fmt::Display::fmt(error, f),
        }
    }
}

impl From<DecodeError> for LoadError {
    fn from(error: DecodeError) -> Self {
        Self::Decode(error)
    }
}

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
        folio.finish_load(false);
        return Err(EINVAL);
    }
    let slot = folio.slot();
    let scratch = state.scratch.lock();
    let start = Instant::<Monotonic>::now();
    let descriptor = state.table.get(slot);
    let sandbox = descriptor.and_then(|d| state.sandboxes.get(d.owner().index(), inflight));
    let result = match (descriptor, sandbox, scratch) {
        (Some(descriptor), Some(sandbox), Some(mut scratch)) => {
            decode(state, descriptor, sandbox, &folio, &mut scratch)
        }
        _ => Err(LoadError::Missing),
    };
    let ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(0);
    let success = result.is_ok();
    for counters in [Some(&state.counters), sandbox.map(|s| &s.counters)]
        .into_iter()
        .flatten()
    {
        if success {
            counters.loads.add(1);
            counters.decode_ns.add(ns);
        } else {
            counters.load_errors.add(1);
        }
    }
    let cgroup_id = sandbox.map_or(0, |s| s.cgroup_id);
    let (representation, len) = match &result {
        Ok((representation, len)) => (*representation as c_int, *len as c_uint),
        Err(_) => (-1, 0),
    };
    let errno = if success { 0 } else { EIO.to_errno() };
    // SAFETY: A tracepoint takes any values.
    unsafe { bindings::agentzip_trace_load(cgroup_id, slot.0, representation, len, errno, ns) };
    if let Err(error) = &result {
        // Loud, but a page that is touched again and again must not flood the log.
        let errors = state.counters.load_errors.get();
        if errors.is_power_of_two() {
            pr_err!(
                "load: slot {:#x} of cgroup {}: {}; the page is lost (EIO); {} such loads so far\n",
                slot.0,
                cgroup_id,
                error,
                errors
            );
        }
    }
    folio.finish_load(success);
    result.map(|_| ()).map_err(|_| EIO)
}

/// Decodes an entry into its folio. Allocates nothing.
fn decode(
    state: &State,
    descriptor: Descriptor,
    sandbox: &Sandbox,
    folio: &Folio,
    scratch: &mut Scratch,
) -> Result<(Representation, usize), LoadError> {
    // SAFETY: By the invariants of `Folio` the page is ours alone until the load ends.
    let out = unsafe { &mut *folio.address(0) };
    match descriptor.unpack() {
        Entry::Fill { word, .. } => {
            codec::decode_fill(word, out);
            Ok((Representation::Fill, 0))
        }
        Entry::Ref { ordinal, crc, .. } => {
            let rcu = rcu::read_lock();
            let base = sandbox
                .template
                .pages
                .page(ordinal, &rcu)
                .ok_or(DecodeError::NoBase)?;
            codec::decode_ref(base, crc, REF_CRC_BITS, &mut scratch.zstd, out)?;
            Ok((Representation::Ref, 0))
        }
        Entry::Payload { handle, .. } => {
            let handle = Handle::from_raw(handle);
            let buffers = &mut *scratch.buffers;
            // SAFETY: The folio lock keeps the slot, and with it the payload, alive.
            let header = unsafe {
                state.pool.read(
                    handle,
                    codec::HEADER_LEN,
                    &mut buffers.payload,
                    codec::header,
                )
            }?;
            let len = usize::from(header.len);
            let rcu = rcu::read_lock();
            let codec = &mut buffers.codec;
            let zstd = &mut scratch.zstd;
            // SAFETY: As above. The payload has the length that `store_page()` wrote into its header,
            // whose check byte just passed.
            let representation = unsafe {
                state
                    .pool
                    .read(handle, len, &mut buffers.payload, |payload| {
                        codec::decode(
                            payload,
                            |ordinal| sandbox.template.pages.page(ordinal, &rcu),
                            codec,
                            zstd,
                            out,
                        )
                    })
            }?;
            Ok((representation, len))
        }
    }
}

fn trace_store(
    sandbox: &Sandbox,
    folio: &Folio,
    i: usize,
    representation: Option<Representation>,
    len: usize,
    ns: u64,
) {
    // SAFETY: A tracepoint takes any values.
    unsafe {
        bindings::agentzip_trace_store(
            sandbox.cgroup_id,
            folio.slot().offset_by(i).0,
            folio.index().wrapping_add(i as u64),
            representation.map_or(-1, |r| r as c_int),
            len as c_uint,
            ns,
        )
    };
}
