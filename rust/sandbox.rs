// SPDX-License-Identifier: GPL-2.0

//! Sandboxes: one attached cgroup v2 directory, with what is below it.
//!
//! A sandbox object outlives its attachment while entries exist that its processes stored: they
//! need its template, its arena and its group. Its life: attached -> detached -> (last entry gone)
//! reaped by the worker. `entries` rises before an entry is published in the slot table and falls
//! after all of it is gone, so that zero, seen after a grace period that followed the detach, is
//! final.

use kernel::prelude::*;
use kernel::sync::atomic::{Acquire, Atomic, Relaxed, Release};
use kernel::sync::{new_spinlock, Arc, SpinLock};

use crate::counters::{Counter, Counters};
use crate::group::Group;
use crate::pages::{self, DirectMap, Limit};
use crate::ranges::RangesCell;
use crate::store_policy::template::Candidates;
use crate::store_policy::Arena;
use crate::sysfs::Node;
use crate::template::Template;
use crate::uapi::Phase;

/// A sandbox.
#[pin_data(PinnedDrop)]
pub(crate) struct Sandbox {
    pub(crate) cgroup_id: u64,
    /// Ids of the cgroup's ancestors when it was attached.
    pub(crate) ancestors: KVec<u64>,
    pub(crate) template: Arc<Template>,
    pub(crate) group: Arc<Group>,
    /// Where its memory lies in the template.
    pub(crate) ranges: RangesCell,
    phase: Atomic<u32>,
    attached: Atomic<u32>,
    /// Entries in the slot table, or about to be.
    pub(crate) entries: Counter,
    pub(crate) counters: Counters,
    /// Bound on the bytes of its arena.
    pub(crate) max_bytes: Limit,
    /// Whether pages of the arena are marked for compaction.
    pub(crate) compacting: Atomic<u32>,
    /// Payloads of its entries. Nests inside the lock of a slot.
    #[pin]
    pub(crate) arena: SpinLock<Arena<DirectMap>>,
    /// Its directory in sysfs.
    _node: Node,
}

impl Sandbox {
    pub(crate) fn new(
        cgroup_id: u64,
        ancestors: KVec<u64>,
        template: Arc<Template>,
        group: Arc<Group>,
        node: Node,
    ) -> impl PinInit<Self> {
        pin_init!(Self {
            cgroup_id,
            ancestors,
            template,
            group,
            ranges: RangesCell::new(),
            phase: Atomic::new(Phase::Running as u32),
            attached: Atomic::new(1),
            entries: Counter::new(),
            counters: Counters::new(),
            max_bytes: Limit::new(Limit::NONE),
            compacting: Atomic::new(0),
            // INVARIANT: Inside a structure of the store policy.
            arena <- new_spinlock!(Arena::new(DirectMap), "agentzip_arena"),
            _node: node,
        })
    }

    /// Ordinals of the template pages that a page with this index may be like.
    pub(crate) fn candidates(&self, index: u64) -> Candidates {
        self.ranges.candidates(&self.template.pages, index)
    }

    /// What the agent is doing, as last told.
    pub(crate) fn phase(&self) -> Phase {
        Phase::from_raw(self.phase.load(Relaxed)).unwrap_or(Phase::Running)
    }

    /// Notes what the agent is doing. `ENOENT` when detached.
    pub(crate) fn set_phase(&self, phase: Phase) -> Result {
        if !self.is_attached() {
            return Err(ENOENT);
        }
        self.phase.store(phase as u32, Relaxed);
        Ok(())
    }

    /// Whether stores of its pages are taken.
    pub(crate) fn is_attached(&self) -> bool {
        self.attached.load(Acquire) != 0
    }

    /// The caller holds the control lock.
    pub(crate) fn set_attached(&self, attached: bool) {
        self.attached.store(attached.into(), Release);
    }

    /// Bytes of the pages of its arena.
    pub(crate) fn arena_bytes(&self) -> u64 {
        self.arena.lock().pages() * kernel::page::PAGE_SIZE as u64
    }
}

#[pinned_drop]
impl PinnedDrop for Sandbox {
    fn drop(self: Pin<&mut Self>) {
        // Without entries there are no payloads, and an arena keeps no empty page: this finds one
        // only when a damaged page kept it from being given back.
        self.arena.lock().clear(pages::free);
    }
}
