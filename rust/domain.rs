// SPDX-License-Identifier: GPL-2.0

//! Domains: whose sandboxes may know of each other's pages.
//!
//! The groups of a domain share one object, so that a walk over all groups can count those of each
//! domain, and the domains, as it goes.
//!
//! Its life: a group that comes into being takes the object of a group with the same domain that the table
//! of sandboxes leads to, or makes one when there is none; the object goes with the last group that has it.
//! Groups come into the table under the control lock, each with the object that is there already. So all
//! groups that the table leads to and that are of one domain have one object.
//!
//! - When making a sandbox fails, its group goes, and a new object with it. No count has to be put right:
//!   each walk counts anew.
//! - Who writes samples may hold a group that the table does not lead to any more. No walk meets it, and
//!   it never comes back: its domain, if a sandbox of that is attached meanwhile, gets another object.

use kernel::prelude::*;
use kernel::sync::atomic::{Atomic, Relaxed};
use kernel::sync::Arc;

use crate::uapi::Name;

/// A domain that has groups.
pub(crate) struct Domain {
    pub(crate) name: Name,
    /// How many of its groups the last walk has met. Under the control lock.
    groups: Atomic<u64>,
}

impl Domain {
    pub(crate) fn new(name: Name) -> Result<Arc<Self>> {
        let domain = Self {
            name,
            groups: Atomic::new(0),
        };
        Ok(Arc::new(domain, GFP_KERNEL)?)
    }

    /// A walk over the groups is to begin: it has met none. The caller holds the control lock.
    pub(crate) fn begin_count(&self) {
        self.groups.store(0, Relaxed);
    }

    /// The walk meets one of its groups. Returns whether that is the first. The caller holds the control
    /// lock.
    pub(crate) fn count_group(&self) -> bool {
        let before = self.groups();
        self.groups.store(before + 1, Relaxed);
        before == 0
    }

    /// How many of its groups the last walk has met. The caller holds the control lock.
    pub(crate) fn groups(&self) -> u64 {
        self.groups.load(Relaxed)
    }
}
