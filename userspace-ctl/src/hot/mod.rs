// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Pages that a sandbox writes all the time (`encode.hot_skip`): found by samples while it works, and
//! left where they are when it is compressed.
//!
//! The kernel's soft-dirty bits say which pages a process wrote since they were last cleared. The
//! [`sampler`] reads and clears them in each `schedule.sample_period`; the [`window`] of the last samples
//! says which pages are hot; [`take`] takes the others out by `process_madvise`, as `memory.reclaim`
//! can leave nothing out. What touches the machine is behind the traits of [`process`].
//!
//! A mistake in any of this takes a page too many out, or one too few. It changes no memory.

#[cfg(test)]
pub(crate) mod fake;
pub mod process;
pub mod ranges;
pub mod sampler;
pub mod take;
pub mod window;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use agentzip_uapi::Range;

use crate::governor::Id;

/// A process, or what it was before an exec: the number alone is given to others later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity {
    /// Its number.
    pub pid: i32,
    /// When it started, in clock ticks since boot.
    pub started: u64,
    /// Where its stack began: another place after an exec, by randomisation.
    pub stack: u64,
    /// Where its arguments are.
    pub arguments: u64,
}

/// A sandbox whose processes are meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Id of its cgroup.
    pub id: Id,
    /// Where the directory is in the file system.
    pub path: PathBuf,
    /// Its path in the hierarchy, beginning with a slash.
    pub name: String,
}

/// The hot pages of a sandbox.
#[derive(Debug, Default)]
pub struct HotSet(BTreeMap<Identity, Pages>);

#[derive(Debug)]
struct Pages {
    runs: Vec<Range>,
    /// The kernel was told that it may take them first.
    cold: AtomicBool,
}

impl HotSet {
    /// Says what is hot in a process.
    pub fn insert(&mut self, process: Identity, runs: Vec<Range>) {
        if !runs.is_empty() {
            let cold = AtomicBool::new(false);
            self.0.insert(process, Pages { runs, cold });
        }
    }

    /// What is hot in a process: runs in the order of their addresses.
    pub fn of(&self, process: &Identity) -> &[Range] {
        self.0.get(process).map_or(&[], |pages| &pages.runs)
    }

    /// The kernel need not be told of this process's again.
    pub fn is_cold(&self, process: &Identity) -> bool {
        let pages = self.0.get(process);
        pages.is_none_or(|pages| pages.cold.load(Ordering::Relaxed))
    }

    /// It was told of them.
    pub fn set_cold(&self, process: &Identity) {
        if let Some(pages) = self.0.get(process) {
            pages.cold.store(true, Ordering::Relaxed);
        }
    }

    /// Nothing is.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Bytes of all hot pages; a page in two processes counts twice.
    pub fn bytes(&self) -> u64 {
        let each = self.0.values().map(|pages| ranges::bytes(&pages.runs));
        each.fold(0, u64::saturating_add)
    }
}
