// SPDX-License-Identifier: GPL-2.0

//! Which cgroups are sandboxes.
//!
//! Maps the id of an attached cgroup to the [`Owner`] of its sandbox. Cgroup ids are never used
//! again, so the registry pins no cgroup: a removed one is simply never asked for. A page belongs to
//! the nearest attached ancestor of its memory cgroup, for tasks live in child cgroups too.
//!
//! Locking: lookups run under RCU with no lock, in the hooks of every page that is swapped out;
//! insertion and removal hold the control lock.

use kernel::bindings as kbindings;
use kernel::error::to_result;
use kernel::prelude::*;
use kernel::sync::atomic::{Atomic, Relaxed};
use kernel::sync::rcu;
use kernel::types::Opaque;

use crate::bindings;
use crate::store_policy::Owner;

/// The registry.
///
/// # Invariants
///
/// `map` is an initialised XArray that holds value entries (`xa_mk_value()`) only.
#[pin_data(PinnedDrop)]
pub(crate) struct Registry {
    #[pin]
    map: Opaque<kbindings::xarray>,
    /// Number of attached cgroups: lets every hook leave at once when there is none.
    attached: Atomic<usize>,
}

// SAFETY: An XArray locks itself; value entries own nothing.
unsafe impl Send for Registry {}
// SAFETY: As above; readers are under RCU.
unsafe impl Sync for Registry {}

/// `xa_mk_value()`.
fn value_entry(owner: Owner) -> *mut c_void {
    core::ptr::without_provenance_mut(owner.index() << 1 | 1)
}

/// `xa_to_value()`; `None` for an empty entry.
fn owner_of(entry: *mut c_void) -> Option<Owner> {
    if entry.is_null() {
        return None;
    }
    Owner::new(u16::try_from(entry.addr() >> 1).ok()?)
}

impl Registry {
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            // INVARIANT: Initialised and empty.
            map <- Opaque::ffi_init(|map| {
                // SAFETY: `map` is valid for writes.
                unsafe { kbindings::xa_init_flags(map, 0) }
            }),
            attached: Atomic::new(0),
        })
    }

    /// Whether no cgroup is attached.
    pub(crate) fn is_empty(&self) -> bool {
        self.attached.load(Relaxed) == 0
    }

    /// The sandbox of this very cgroup.
    pub(crate) fn get(&self, cgroup_id: u64, _rcu: &rcu::Guard) -> Option<Owner> {
        // SAFETY: By the type invariants `map` is an XArray; RCU is held.
        owner_of(unsafe { kbindings::xa_load(self.map.get(), cgroup_id as usize) })
    }

    /// The sandbox that a memory cgroup, or the nearest of its ancestors, belongs to, with the memory
    /// cgroup that was attached.
    ///
    /// # Safety
    ///
    /// `memcg` is null or valid for the lifetime of the RCU guard.
    pub(crate) unsafe fn owner_of_memcg(
        &self,
        mut memcg: *mut bindings::mem_cgroup,
        rcu: &rcu::Guard,
    ) -> Option<(Owner, *mut bindings::mem_cgroup)> {
        while !memcg.is_null() {
            // SAFETY: `memcg` is valid under RCU, by our caller's promise or as the parent of one
            // that is: a memory cgroup holds a reference to its parent.
            let id = unsafe { bindings::agentzip_memcg_cgroup_id(memcg) };
            if let Some(owner) = self.get(id, rcu) {
                return Some((owner, memcg));
            }
            // SAFETY: As above.
            memcg = unsafe { bindings::agentzip_memcg_parent(memcg) };
        }
        None
    }

    /// The sandbox that the current task is in: the one of its cgroup or of the nearest of its
    /// ancestors.
    pub(crate) fn owner_of_current(&self, rcu: &rcu::Guard) -> Option<Owner> {
        // SAFETY: RCU is held for as long as the result is used.
        let mut cgroup = unsafe { bindings::agentzip_current_cgroup() };
        while !cgroup.is_null() {
            // SAFETY: `cgroup` is valid under RCU: the task's own, or the parent of one that is, to
            // which that holds a reference.
            let id = unsafe { bindings::agentzip_cgroup_id(cgroup) };
            if let Some(owner) = self.get(id, rcu) {
                return Some(owner);
            }
            // SAFETY: As above.
            cgroup = unsafe { bindings::agentzip_cgroup_parent(cgroup) };
        }
        None
    }

    /// Makes a cgroup a sandbox. May sleep; the caller holds the control lock.
    pub(crate) fn insert(&self, cgroup_id: u64, owner: Owner) -> Result {
        // INVARIANT: A value entry.
        // SAFETY: By the type invariants `map` is an XArray.
        let old = unsafe {
            kbindings::xa_store(
                self.map.get(),
                cgroup_id as usize,
                value_entry(owner),
                kbindings::GFP_KERNEL,
            )
        };
        // SAFETY: `old` is what `xa_store()` returned.
        to_result(unsafe { kbindings::xa_err(old) })?;
        if old.is_null() {
            self.attached.add(1, Relaxed);
        }
        Ok(())
    }

    /// Makes a cgroup no sandbox. The caller holds the control lock. Hooks that run now may still
    /// see the former state.
    pub(crate) fn remove(&self, cgroup_id: u64) {
        // SAFETY: By the type invariants `map` is an XArray.
        let old = unsafe { kbindings::xa_erase(self.map.get(), cgroup_id as usize) };
        if !old.is_null() {
            self.attached.add(1usize.wrapping_neg(), Relaxed);
        }
    }
}

#[pinned_drop]
impl PinnedDrop for Registry {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: By the type invariants `map` is an XArray; nobody else uses it any more.
        unsafe { kbindings::xa_destroy(self.map.get()) };
    }
}
