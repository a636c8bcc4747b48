// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The control device: a typed interface, behind a trait that tests implement.

mod kernel;

use std::fs::File;
use std::io;

use agentzip_uapi::{Name, Phase, Range};

pub use kernel::KernelDevice;

use crate::error::Result;

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
#[derive(Clone, Debug)]
pub struct NewTemplate {
    /// Process that holds the pages.
    pub pid: i32,
    /// Sorted, not overlapping.
    pub ranges: Vec<Range>,
    /// Name.
    pub name: Name,
    /// Domain; all zero for the default.
    pub domain: Name,
}

/// Pages of a new template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TemplatePages {
    /// Kept by reference.
    pub referenced: u64,
    /// Copied.
    pub copied: u64,
    /// In the ranges, but left out.
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
    /// Ends new stores of a sandbox; returns how many entries it still has.
    fn sandbox_detach(&self, cgroup_id: u64) -> Result<u64, Failure>;
    /// Tells what the agent in the sandbox does.
    fn sandbox_phase(&self, cgroup_id: u64, phase: Phase) -> Result<(), Failure>;
    /// Ends new stores of all sandboxes; returns how many entries are left.
    fn drain(&self) -> Result<u64, Failure>;
}
