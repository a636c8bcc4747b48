// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The control device: a typed interface, behind a trait that tests implement.

mod kernel;

use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use agentzip_uapi::{FaultRecord, Name, Phase, Range, SandboxRange};

pub use kernel::KernelDevice;

use crate::error::Result;
use crate::{Signature, PAGE_SIZE};

/// State of the module, as it reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Info {
    /// Version of its control interface.
    pub abi_version: u32,
    /// The hooks are installed.
    pub armed: bool,
    /// New stores are accepted.
    pub enabled: bool,
    /// Drained, and not armed again since.
    pub draining: bool,
}

/// What a template is made of.
#[derive(Debug)]
pub enum Source {
    /// Memory of a process.
    Process {
        /// Process that holds the pages.
        pid: i32,
        /// Sorted, not overlapping.
        ranges: Vec<Range>,
    },
    /// A part of a file.
    File {
        /// Open for reading.
        file: File,
        /// Its first byte.
        offset: u64,
        /// Its length in bytes; 0: to the end of the file.
        length: u64,
    },
}

/// A template to be.
#[derive(Debug)]
pub struct NewTemplate {
    /// What it is made of.
    pub source: Source,
    /// Name.
    pub name: Name,
    /// Domain; all zero for the default.
    pub domain: Name,
    /// Fingerprint of the source.
    pub signature: Signature,
}

/// Pages of a new template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TemplatePages {
    /// Kept by reference.
    pub referenced: u64,
    /// Copied.
    pub copied: u64,
    /// In the ranges or in the part of the file, but left out.
    pub skipped: u64,
}

/// What a sandbox is attached as.
#[derive(Clone, Copy, Debug)]
pub struct NewSandbox {
    /// Template that it was cloned from.
    pub template: Name,
    /// Group; all zero for the default.
    pub group: Name,
    /// Domain; all zero for the default.
    pub domain: Name,
    /// Fingerprint of what it was cloned from.
    pub signature: Signature,
    /// Its pages share nothing.
    pub sensitive: bool,
}

/// Why a command failed.
#[derive(Debug)]
pub enum Failure {
    /// The device could not be opened; the error is complete.
    Open(crate::Error),
    /// The module refused.
    Refused {
        /// Its answer.
        errno: io::Error,
        /// How many sandboxes use the object, where the module says so.
        users: Option<u64>,
    },
}

impl From<io::Error> for Failure {
    fn from(errno: io::Error) -> Self {
        Failure::Refused { errno, users: None }
    }
}

/// Pages that a group has stored.
#[derive(Clone, Debug)]
pub struct Samples {
    /// The pages.
    pub pages: Vec<[u8; PAGE_SIZE as usize]>,
    /// Where to go on; `None` after the last page.
    pub next: Option<u64>,
}

/// Faults that were taken out of a sandbox's ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultsTaken {
    /// Records that were written to the buffer; fewer than fit there when the ring is empty now.
    pub records: usize,
    /// Records that were lost since the sandbox was attached, as its ring was full.
    pub lost: u64,
}

/// How a restore ahead of need is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Haste {
    /// Age at which what was not begun is dropped: up to [`agentzip_uapi::MAX_PREFETCH_MS`].
    pub timeout: Duration,
    /// Time within which an access makes a restored page a hit; the same bound.
    pub hit_window: Duration,
    /// Requests with a greater one go first.
    pub priority: u32,
    /// What becomes of the pages is looked at, and recorded.
    pub tested: bool,
}

impl Failure {
    /// The kernel's errno; `None` when it was not asked.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Failure::Open(error) => error.errno(),
            Failure::Refused { errno, .. } => errno.raw_os_error(),
        }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Open(error) => error.fmt(f),
            Failure::Refused { errno, .. } => errno.fmt(f),
        }
    }
}

/// The commands of the module.
pub trait Device {
    /// State of the module.
    fn info(&self) -> Result<Info, Failure>;
    /// Installs the hooks.
    fn arm(&self) -> Result<(), Failure>;
    /// Removes the hooks.
    fn disarm(&self) -> Result<(), Failure>;
    /// Registers a template.
    fn template_add(&self, template: &NewTemplate) -> Result<TemplatePages, Failure>;
    /// Removes a template.
    fn template_remove(&self, name: &Name) -> Result<(), Failure>;
    /// Makes the cgroup behind an open directory a sandbox; returns its id.
    fn sandbox_attach(&self, cgroup: &File, sandbox: &NewSandbox) -> Result<u64, Failure>;
    /// Replaces the ranges that say where the memory of a sandbox lies in its template.
    fn sandbox_ranges(&self, cgroup_id: u64, ranges: &[SandboxRange]) -> Result<(), Failure>;
    /// Ends new stores of a sandbox; returns how many entries it still has.
    fn sandbox_detach(&self, cgroup_id: u64) -> Result<u64, Failure>;
    /// Tells what the agent in the sandbox does.
    fn sandbox_phase(&self, cgroup_id: u64, phase: Phase) -> Result<(), Failure>;
    /// Gives the group of a sandbox a dictionary; returns its number.
    fn dictionary_add(&self, cgroup_id: u64, content: &[u8]) -> Result<u32, Failure>;
    /// Retires the current dictionary of a sandbox's group; returns its number.
    fn dictionary_retire(&self, cgroup_id: u64) -> Result<u32, Failure>;
    /// Some of the pages that a sandbox's group has stored with payloads of at least `least` bytes. The
    /// first call's cursor is 0.
    fn dictionary_samples(
        &self,
        cgroup_id: u64,
        least: u32,
        cursor: u64,
    ) -> Result<Samples, Failure>;
    /// Ends new stores of all sandboxes; returns how many entries are left.
    fn drain(&self) -> Result<u64, Failure>;

    /// Begins to record the faults of a sandbox in a ring of so many records, or ends it with 0. The
    /// eventfd is signalled when the ring becomes half full. `ENOTTY`: the module is older.
    fn sandbox_record(
        &self,
        cgroup_id: u64,
        records: u32,
        eventfd: Option<BorrowedFd<'_>>,
    ) -> Result<(), Failure>;
    /// Takes the oldest records out of the ring of a sandbox.
    fn faults_read(&self, cgroup_id: u64, room: &mut [FaultRecord])
        -> Result<FaultsTaken, Failure>;
    /// Restores pages of a process of a sandbox ahead of need; returns how many were queued.
    fn prefetch(
        &self,
        cgroup_id: u64,
        pid: i32,
        ranges: &[Range],
        haste: Haste,
    ) -> Result<u64, Failure>;
    /// What the page table of a process of a sandbox says about the pages of a range, a byte for each;
    /// `clear` ends that they count as accessed.
    fn page_states(
        &self,
        cgroup_id: u64,
        pid: i32,
        range: Range,
        clear: bool,
    ) -> Result<Vec<u8>, Failure>;
}
