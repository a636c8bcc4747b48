// SPDX-License-Identifier: GPL-2.0

//! Sandboxes: one attached cgroup v2 directory, with what is below it.
//!
//! A sandbox object outlives its attachment while entries exist that its processes stored: they
//! need its template. Its life: attached -> detached -> (last entry gone) reaped by the worker.
//! `entries` rises before an entry is published in the slot table and falls after it has left it, so
//! that zero, seen after a grace period that followed the detach, is final.

use kernel::prelude::*;
use kernel::sync::atomic::{Acquire, Atomic, Relaxed, Release};
use kernel::sync::Arc;

use crate::counters::{Counter, Counters};
use crate::sysfs::Node;
use crate::template::Template;
use crate::uapi::{Name, Phase};

/// A sandbox.
pub(crate) struct Sandbox {
    pub(crate) cgroup_id: u64,
    /// Ids of the cgroup's ancestors when it was attached.
    pub(crate) ancestors: KVec<u64>,
    pub(crate) template: Arc<Template>,
    /// Id of the template in its table.
    pub(crate) template_id: usize,
    pub(crate) group: Name,
    pub(crate) domain: Name,
    phase: Atomic<u32>,
    attached: Atomic<u32>,
    /// Entries in the slot table, or about to be.
    pub(crate) entries: Counter,
    pub(crate) counters: Counters,
    /// Its directory in sysfs.
    _node: Node,
}

impl Sandbox {
    pub(crate) fn new(
        cgroup_id: u64,
        ancestors: KVec<u64>,
        template: Arc<Template>,
        template_id: usize,
        group: Name,
        domain: Name,
        node: Node,
    ) -> Self {
        Self {
            cgroup_id,
            ancestors,
            template,
            template_id,
            group,
            domain,
            phase: Atomic::new(Phase::Running as u32),
            attached: Atomic::new(1),
            entries: Counter::new(),
            counters: Counters::new(),
            _node: node,
        }
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
}
