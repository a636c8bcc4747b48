// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Records of page faults.

/// Least and most records in the ring of a [`SandboxRecord`].
pub const MIN_RECORDS: u32 = 64;

/// See [`MIN_RECORDS`].
pub const MAX_RECORDS: u32 = 16_384;

/// Argument of `SANDBOX_RECORD`: begins, changes or ends the recording of a sandbox's page faults.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct SandboxRecord {
    /// Which.
    pub cgroup_id: u64,
    /// Size of the ring: a power of two, [`MIN_RECORDS`] to [`MAX_RECORDS`]; 0: no ring, nothing is
    /// recorded. A ring of another size is a new one: what was in the former is lost, and counted.
    pub records: u32,
    /// An eventfd that is signalled when the ring becomes half full; -1: none. It replaces the former.
    pub eventfd: i32,
}

/// What a [`FaultRecord`] is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FaultKind {
    /// A thread touched a page that was swapped out, and waited for it.
    Demand = 0,
    /// A page that was restored ahead of need was accessed within the hit window.
    Hit = 1,
    /// One that was not.
    Miss = 2,
}

impl FaultKind {
    /// The kind with this number.
    pub fn from_raw(raw: u8) -> Option<FaultKind> {
        [FaultKind::Demand, FaultKind::Hit, FaultKind::Miss]
            .into_iter()
            .find(|&kind| kind as u8 == raw)
    }
}

/// [`FaultRecord::flags`]: the access was a write.
pub const FAULT_WRITE: u8 = 1;

/// [`FaultRecord::representation`] of a page that the store did not decode for this fault: it was in
/// the swap cache already, or comes from zswap or from disk.
pub const NOT_DECODED: u8 = 0xff;

/// A page fault of a sandbox, or the end of a page that was restored ahead of need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct FaultRecord {
    /// When, in nanoseconds of `CLOCK_MONOTONIC`.
    pub time_ns: u64,
    /// Address of the page in the process.
    pub address: u64,
    /// The process (thread group), as numbered in the initial pid namespace.
    pub tgid: i32,
    /// The thread; 0 where no thread waited.
    pub tid: i32,
    /// Nanoseconds that decoding the page took; at most `u32::MAX`; 0 when it was [`NOT_DECODED`].
    pub decode_ns: u32,
    /// A [`Representation`](super::Representation) or [`NOT_DECODED`].
    pub representation: u8,
    /// A [`FaultKind`].
    pub kind: u8,
    /// Of [`FAULT_WRITE`].
    pub flags: u8,
    /// 0.
    pub reserved: u8,
}

/// Argument of `FAULTS_READ`: takes the oldest records out of the ring of a sandbox.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct FaultsRead {
    /// Which.
    pub cgroup_id: u64,
    /// User address of room for [`FaultRecord`]s.
    pub buffer: u64,
    /// How many fit there, 1 to [`MAX_RECORDS`].
    pub capacity: u32,
    /// Out: records written; fewer than `capacity` when the ring is empty now.
    pub records: u32,
    /// Out: records of this sandbox that were lost since it was attached, as its ring was full.
    pub lost: u64,
}

const _: () = {
    assert!(size_of::<SandboxRecord>() == 16);
    assert!(size_of::<FaultRecord>() == 32);
    assert!(size_of::<FaultsRead>() == 32);
};
