// SPDX-License-Identifier: GPL-2.0

//! The Rust end of the hooks (ffi/hooks.c): handlers that decide, replacements that act.
//!
//! Handlers run with preemption off, which the RCU guard they take makes visible to Rust. They
//! never sleep, never allocate, never call a hooked function.

use core::marker::PhantomData;

use kernel::prelude::*;
use kernel::sync::rcu;

use crate::bindings;
use crate::state;
use crate::store;
use crate::store_policy::Slot;

/// A swap slot as the kernel writes it: the value of a `swp_entry_t`.
#[derive(Clone, Copy)]
pub(crate) struct RawSlot(pub(crate) usize);

impl RawSlot {
    /// The slot by the store's name. `None` when it has none: then the store never held it.
    pub(crate) fn name(self) -> Option<Slot> {
        // SAFETY: Pure arithmetic on the value of a swap entry.
        let (swap_type, offset) = unsafe {
            (
                bindings::agentzip_slot_type(self.0),
                bindings::agentzip_slot_offset(self.0),
            )
        };
        Slot::new(swap_type, offset as u64)
    }
}

/// Evidence that we are inside a replacement: `agentzip_inflight` is read-locked.
pub(crate) struct InFlight(PhantomData<*mut ()>);

/// A folio that a swap entry point was called with.
///
/// # Invariants
///
/// The folio is locked, in the swap cache, and stays so for the lifetime of this value. In a
/// replacement of load it is not uptodate, and nobody else sees its bytes.
pub(crate) struct Folio(*mut bindings::folio);

impl Folio {
    /// The kernel's number of the slot of page `i`, below [`Self::pages`].
    pub(crate) fn raw_slot(&self, i: usize) -> RawSlot {
        // SAFETY: By the type invariants the folio is valid.
        let first = unsafe { bindings::agentzip_folio_slot(self.0) };
        // The offset is in the low bits.
        RawSlot(first.wrapping_add(i))
    }

    /// The slot of page `i`. `None` when the store cannot name it.
    pub(crate) fn slot(&self, i: usize) -> Option<Slot> {
        self.raw_slot(i).name()
    }

    /// Number of pages, and of slots.
    pub(crate) fn pages(&self) -> usize {
        // SAFETY: As above.
        unsafe { bindings::agentzip_folio_nr_pages(self.0) }
    }

    /// Page index of the first page. Stale in load.
    pub(crate) fn index(&self) -> u64 {
        // SAFETY: As above.
        unsafe { bindings::agentzip_folio_index(self.0) as u64 }
    }

    /// Address of page `i`, below [`Self::pages`].
    pub(crate) fn address(&self, i: usize) -> *mut crate::codec::Page {
        // SAFETY: As above.
        unsafe { bindings::agentzip_folio_page_address(self.0, i) }.cast()
    }

    /// Memory cgroup that the folio is charged to, or null; valid as long as the guard.
    pub(crate) fn memcg(&self, _rcu: &rcu::Guard) -> *mut bindings::mem_cgroup {
        // SAFETY: As above; RCU keeps the result alive.
        unsafe { bindings::agentzip_folio_memcg(self.0) }
    }

    /// Ends a load.
    pub(crate) fn finish_load(self, end: LoadEnd) {
        // SAFETY: By the type invariants the folio is locked; this value ends here.
        unsafe {
            match end {
                LoadEnd::Kept => bindings::agentzip_folio_loaded(self.0),
                LoadEnd::Dropped => bindings::agentzip_folio_loaded_dirty(self.0),
                LoadEnd::Failed => bindings::agentzip_folio_failed(self.0),
            }
        }
    }
}

/// How a load ends; the folio is unlocked in every case.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum LoadEnd {
    /// Uptodate and clean: the entry stays.
    Kept,
    /// Uptodate and dirty: the entry is gone.
    Dropped,
    /// Not uptodate.
    Failed,
}

/// Handler of `zswap_store()`: whether to redirect to ours.
#[no_mangle]
extern "C" fn agentzip_rs_store_hook(folio: *mut bindings::folio) -> bool {
    // INVARIANT: The swap core's contract.
    let folio = Folio(folio);
    state::get().is_some_and(|state| store::store_hook(state, &folio))
}

/// Handler of `zswap_load()`: whether to redirect to ours.
#[no_mangle]
extern "C" fn agentzip_rs_load_hook(folio: *mut bindings::folio) -> bool {
    // INVARIANT: The swap core's contract.
    let folio = Folio(folio);
    state::get().is_some_and(|state| store::load_hook(state, &folio))
}

/// Handler of `zswap_invalidate()`: observes and erases.
#[no_mangle]
extern "C" fn agentzip_rs_invalidate_hook(slot: usize) {
    if let (Some(state), Some(slot)) = (state::get(), RawSlot(slot).name()) {
        store::erase(state, slot);
    }
}

/// Replacement of `zswap_store()`.
#[no_mangle]
extern "C" fn agentzip_rs_store(folio: *mut bindings::folio) -> bool {
    // INVARIANT: The swap core's contract.
    let folio = Folio(folio);
    // The caller in hooks.c holds `agentzip_inflight`.
    let inflight = InFlight(PhantomData);
    state::get().is_some_and(|state| store::store(state, &folio, &inflight))
}

/// Replacement of `zswap_load()`.
#[no_mangle]
extern "C" fn agentzip_rs_load(folio: *mut bindings::folio) -> c_int {
    // INVARIANT: The swap core's contract.
    let folio = Folio(folio);
    // The caller in hooks.c holds `agentzip_inflight`.
    let inflight = InFlight(PhantomData);
    match state::get() {
        Some(state) => match store::load(state, folio, &inflight) {
            Ok(()) => 0,
            Err(error) => error.to_errno(),
        },
        None => {
            // Cannot happen: the module is pinned while hooks exist.
            folio.finish_load(LoadEnd::Failed);
            EIO.to_errno()
        }
    }
}

/// Calls the host's `zswap_invalidate()`. Not from a handler.
pub(crate) fn host_invalidate(slot: RawSlot, _inflight: &InFlight) {
    // SAFETY: The host's function takes any slot, in task context.
    unsafe { bindings::agentzip_zswap_invalidate(slot.0) };
}
