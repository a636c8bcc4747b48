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
use crate::table::Slot;

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
    /// First slot.
    pub(crate) fn slot(&self) -> Slot {
        // SAFETY: By the type invariants the folio is valid.
        Slot(unsafe { bindings::agentzip_folio_slot(self.0) })
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

    /// Ends a load: uptodate and unlocked when it succeeded, only unlocked when not.
    pub(crate) fn finish_load(self, success: bool) {
        // SAFETY: By the type invariants the folio is locked; this value ends here.
        unsafe {
            if success {
                bindings::agentzip_folio_loaded(self.0)
            } else {
                bindings::agentzip_folio_failed(self.0)
            }
        }
    }
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
    if let Some(state) = state::get() {
        store::erase(state, Slot(slot));
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
            folio.finish_load(false);
            EIO.to_errno()
        }
    }
}

/// Calls the host's `zswap_invalidate()`. Not from a handler.
pub(crate) fn host_invalidate(slot: Slot, _inflight: &InFlight) {
    // SAFETY: The host's function takes any slot, in task context.
    unsafe { bindings::agentzip_zswap_invalidate(slot.0) };
}
