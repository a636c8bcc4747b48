// SPDX-License-Identifier: GPL-2.0

//! A fixed table of reference-counted objects, looked up by a small number without a lock.
//!
//! Readers are RCU readers or replacements in flight ([`InFlight`]). The control lock serialises
//! insertion and removal. Whoever removes an object waits for both kinds of reader before it drops
//! the reference ([`synchronize_readers`]).

use core::mem::ManuallyDrop;

use kernel::alloc::KVVec;
use kernel::prelude::*;
use kernel::sync::atomic::{Acquire, Atomic, Release};
use kernel::sync::rcu;
use kernel::sync::Arc;

use crate::bindings;
use crate::hooks::InFlight;

/// Evidence that the caller is one of the readers that [`synchronize_readers`] waits for.
///
/// # Safety
///
/// While a value of an implementing type exists, [`synchronize_readers`] must not return if it was
/// called after the value came into being.
pub(crate) unsafe trait ReadGuard {}

// SAFETY: `synchronize_readers()` waits for RCU readers.
unsafe impl ReadGuard for rcu::Guard {}

// SAFETY: `synchronize_readers()` waits for replacements in flight.
unsafe impl ReadGuard for InFlight {}

/// Waits until every reader that may have seen the table's former contents is gone. May sleep.
pub(crate) fn synchronize_readers() {
    rcu::synchronize_rcu();
    // SAFETY: May sleep, as our caller may.
    unsafe { bindings::agentzip_wait_inflight() };
}

/// The table.
///
/// # Invariants
///
/// Each element is null or came from `Arc::into_raw()`, and the table owns that reference.
pub(crate) struct IdTable<T> {
    slots: KVVec<Atomic<*mut T>>,
}

// SAFETY: The table owns `Arc<T>`s and hands out `&T` to readers on any CPU.
unsafe impl<T: Send + Sync> Send for IdTable<T> {}
// SAFETY: As above; the elements are atomic.
unsafe impl<T: Send + Sync> Sync for IdTable<T> {}

impl<T> IdTable<T> {
    /// An empty table with room for ids 0 to `capacity` - 1.
    pub(crate) fn new(capacity: usize) -> Result<Self> {
        let mut slots = KVVec::with_capacity(capacity, GFP_KERNEL)?;
        for _ in 0..capacity {
            slots.push(Atomic::new(core::ptr::null_mut()), GFP_KERNEL)?;
        }
        Ok(Self { slots })
    }

    /// The object with this id.
    pub(crate) fn get<'a>(&'a self, id: usize, _guard: &'a impl ReadGuard) -> Option<&'a T> {
        let ptr = self.slots.get(id)?.load(Acquire);
        // SAFETY: By the type invariants a non-null element points to a live object. If it is
        // removed from now on, its reference is dropped only after readers such as our caller.
        unsafe { ptr.as_ref() }
    }

    /// Calls `f` with every object and its id.
    pub(crate) fn for_each(&self, guard: &impl ReadGuard, mut f: impl FnMut(usize, &T)) {
        for id in 0..self.slots.len() {
            if let Some(object) = self.get(id, guard) {
                f(id, object);
            }
        }
    }

    /// An id that is free, until the control lock is released.
    pub(crate) fn free_id(&self) -> Result<usize> {
        self.slots
            .iter()
            .position(|slot| slot.load(Acquire).is_null())
            .ok_or(ENOSPC)
    }

    /// Fills a free id. The caller holds the control lock since it called [`Self::free_id`].
    pub(crate) fn fill(&self, id: usize, object: Arc<T>) {
        if let Some(slot) = self.slots.get(id) {
            // INVARIANT: The element takes over the reference.
            slot.store(Arc::into_raw(object).cast_mut(), Release);
        }
    }

    /// Empties an id. The caller holds the control lock, and calls [`synchronize_readers`] before
    /// it drops what it got.
    pub(crate) fn take(&self, id: usize) -> Option<Arc<T>> {
        let slot = self.slots.get(id)?;
        let ptr = slot.load(Acquire);
        if ptr.is_null() {
            return None;
        }
        // INVARIANT: The reference passes to our caller.
        slot.store(core::ptr::null_mut(), Release);
        // SAFETY: By the type invariants `ptr` came from `Arc::into_raw()`, and the element no
        // longer owns it.
        Some(unsafe { Arc::from_raw(ptr) })
    }

    /// Another reference to the object with this id. The caller holds the control lock.
    pub(crate) fn share(&self, id: usize) -> Option<Arc<T>> {
        let ptr = self.slots.get(id)?.load(Acquire);
        if ptr.is_null() {
            return None;
        }
        // SAFETY: By the type invariants `ptr` came from `Arc::into_raw()` and the element owns a
        // reference, which nobody takes while our caller holds the control lock.
        let owned = ManuallyDrop::new(unsafe { Arc::from_raw(ptr) });
        Some(Arc::clone(&owned))
    }

    /// Number of ids.
    pub(crate) fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// Drops every object. The caller has made the table unreachable and waited for its readers.
    pub(crate) fn clear(&self) {
        for id in 0..self.slots.len() {
            drop(self.take(id));
        }
    }

    /// Bytes that the table itself occupies.
    pub(crate) fn bytes(&self) -> u64 {
        (self.slots.capacity() * size_of::<Atomic<*mut T>>()) as u64
    }
}

impl<T> Drop for IdTable<T> {
    fn drop(&mut self) {
        // No reader is left: we have `&mut self`.
        self.clear();
    }
}
