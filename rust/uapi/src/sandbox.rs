// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Sandboxes: attached and detached, where their memory lies in the template, what their agents do.

use super::{Name, Signature, NAME_LEN, SIGNATURE_LEN};

/// Flag of [`SandboxAttach`]: the sandbox's pages share nothing with others, and all take the same room. It is
/// in no group (`EINVAL` when one is named).
pub const SANDBOX_SENSITIVE: u32 = 1;

/// Argument of `SANDBOX_ATTACH`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct SandboxAttach {
    /// Open file descriptor of a cgroup v2 directory.
    pub cgroup_fd: i32,
    /// 0 or [`SANDBOX_SENSITIVE`].
    pub flags: u32,
    /// Template that the sandbox was cloned from.
    pub template: Name,
    /// Group; all zero means a group of the template's own name, or of its own if it is sensitive.
    pub group: Name,
    /// Trust domain; all zero means [`DEFAULT_DOMAIN`](super::DEFAULT_DOMAIN). Must be the template's (`EPERM`).
    pub domain: Name,
    /// Out: id of the cgroup, the name of its directory below `sandboxes/`.
    pub cgroup_id: u64,
}

/// Argument of `SANDBOX_ATTACH`, second version.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct SandboxAttachSigned {
    /// The first version.
    pub attach: SandboxAttach,
    /// Fingerprint of what the sandbox was cloned from; all zero: not checked. One that differs from
    /// the template's is `EKEYREJECTED`, unless the template has none.
    pub signature: Signature,
}

/// Argument of `SANDBOX_DETACH`: new stores stop, entries stay loadable.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct SandboxDetach {
    /// Which.
    pub cgroup_id: u64,
    /// Out: entries that the sandbox still has.
    pub entries: u64,
}

/// Most ranges in one [`SandboxRanges`].
pub const MAX_SANDBOX_RANGES: u32 = 1024;

/// Addresses of a sandbox that were filled from its template, and from where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct SandboxRange {
    /// First address, page aligned.
    pub start: u64,
    /// Address after the last; page aligned, greater than `start`.
    pub end: u64,
    /// Where the first page lies in the template, page aligned: its offset in the file that the
    /// template was made from, else its address in the process.
    pub offset: u64,
}

/// Argument of `SANDBOX_RANGES`: replaces the ranges of an attached sandbox.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct SandboxRanges {
    /// Which.
    pub cgroup_id: u64,
    /// User address of an array of [`SandboxRange`], ascending by `start`. Ranges of several
    /// processes may overlap, at most eight at any address.
    pub ranges: u64,
    /// Length of that array, up to [`MAX_SANDBOX_RANGES`]; 0: none any more.
    pub nr_ranges: u32,
    /// Must be 0.
    pub reserved: u32,
}

/// What the agent of a sandbox is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Phase {
    /// A tool runs.
    Running = 0,
    /// The agent waits for the LLM; its pages may be made small.
    Waiting = 1,
    /// The LLM answers; pages come back.
    Resuming = 2,
}

impl Phase {
    /// Every phase, in the order of its number.
    pub const ALL: [Phase; 3] = [Phase::Running, Phase::Waiting, Phase::Resuming];

    /// The name in sysfs and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Phase::Running => "running",
            Phase::Waiting => "waiting",
            Phase::Resuming => "resuming",
        }
    }

    /// The phase with this number.
    pub fn from_raw(raw: u32) -> Option<Phase> {
        Self::ALL.into_iter().find(|&p| p as u32 == raw)
    }

    /// The phase with this [`name`](Self::name).
    pub fn from_name(name: &str) -> Option<Phase> {
        Self::ALL.into_iter().find(|p| p.name() == name)
    }
}

/// Argument of `SANDBOX_PHASE`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct SandboxPhase {
    /// Which.
    pub cgroup_id: u64,
    /// A [`Phase`].
    pub phase: u32,
    /// Must be 0.
    pub reserved: u32,
}

const _: () = {
    assert!(size_of::<SandboxAttach>() == 8 + 3 * NAME_LEN + 8);
    assert!(size_of::<SandboxAttachSigned>() == size_of::<SandboxAttach>() + SIGNATURE_LEN);
    assert!(size_of::<SandboxDetach>() == 16);
    assert!(size_of::<SandboxRange>() == 24);
    assert!(size_of::<SandboxRanges>() == 24);
    assert!(size_of::<SandboxPhase>() == 16);
};
