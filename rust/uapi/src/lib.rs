// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The control interface of `/dev/agentzip`, defined once for the module and for the controller.
//!
//! Kbuild compiles this file into the module, cargo compiles it into the `agentzip-uapi` crate.
//! The C view of the same interface is `Documentation/ABI/agentzip.h`.
//!
//! Every argument structure starts with nothing but fixed-size fields and has explicit padding.
//! Its size is part of the ioctl number and versions it: the kernel dispatches on the ioctl's
//! *number* only, accepts a longer structure when the bytes it does not know are zero (else
//! `E2BIG`), takes what an earlier version lacks as zero, and refuses a size that no version had
//! (`EINVAL`). A later version is a structure of its own that begins with the earlier one. Reserved
//! fields must be zero.

#![cfg_attr(not(CONFIG_RUST), no_std)]
#![forbid(unsafe_code)]

/// Version of this interface, reported by [`Info::abi_version`].
pub const ABI_VERSION: u32 = 5;

/// Path of the control device.
pub const DEVICE_PATH: &str = "/dev/agentzip";

/// Root of the module's sysfs tree.
pub const SYSFS_PATH: &str = "/sys/kernel/agentzip";

/// ioctl type ("magic") byte.
pub const IOC_MAGIC: u32 = 0xA2;

/// Longest template, group or domain name in bytes, without the terminating NUL.
pub const NAME_MAX: usize = 47;

/// Size of a name field: NUL-padded bytes, at least one NUL at the end.
pub const NAME_LEN: usize = NAME_MAX + 1;

/// Most address ranges in one [`TemplateAdd`].
pub const MAX_RANGES: u32 = 65_536;

/// Most ranges in one [`SandboxRanges`].
pub const MAX_SANDBOX_RANGES: u32 = 1024;

/// Least and most bytes of a dictionary in [`DictionaryAdd`].
pub const MIN_DICTIONARY: u32 = 256;

/// See [`MIN_DICTIONARY`].
pub const MAX_DICTIONARY: u32 = 1 << 20;

/// Most pages in one [`DictionarySamples`].
pub const MAX_SAMPLES: u32 = 16_384;

/// [`DictionarySamples::cursor`] after the last page.
pub const SAMPLES_END: u64 = u64::MAX;

/// Least and most records in the ring of a [`SandboxRecord`].
pub const MIN_RECORDS: u32 = 64;

/// See [`MIN_RECORDS`].
pub const MAX_RECORDS: u32 = 16_384;

/// Most ranges in one [`Prefetch`].
pub const MAX_PREFETCH_RANGES: u32 = 16_384;

/// Most pages in one [`Prefetch`].
pub const MAX_PREFETCH_PAGES: u64 = 1 << 18;

/// Longest [`Prefetch::timeout_ms`] and [`Prefetch::hit_window_ms`].
pub const MAX_PREFETCH_MS: u32 = 600_000;

/// What 0 means in [`Prefetch::timeout_ms`] and [`Prefetch::hit_window_ms`].
pub const DEFAULT_PREFETCH_MS: u32 = 500;

/// Most pages in one [`PageStates`].
pub const MAX_PAGE_STATES: u64 = 1 << 18;

/// Counts of a sandbox's `load_latency` in sysfs: number `i` is of loads that took 2^i to 2^(i+1)
/// nanoseconds, the last one of all that took longer.
pub const LATENCY_BUCKETS: usize = 32;

/// Size of a [`Signature`] in bytes.
pub const SIGNATURE_LEN: usize = 32;

/// What a template was made of, as a fingerprint that user space computes and the module only
/// compares; all zero: none.
pub type Signature = [u8; SIGNATURE_LEN];

/// A name field: ASCII letters, digits, `.`, `_`, `-`; NUL-padded.
pub type Name = [u8; NAME_LEN];

/// Builds a name field.
///
/// Returns `None` when `text` is empty, longer than [`NAME_MAX`], or has a character other than
/// ASCII letters, digits, `.`, `_` and `-`, or starts with a dot (names become directory names).
pub fn name_from_str(text: &str) -> Option<Name> {
    let bytes = text.as_bytes();
    let mut name = [0; NAME_LEN];
    name.get_mut(..bytes.len())?.copy_from_slice(bytes);
    // Zero bytes at its end would look like padding.
    name_as_str(&name)
        .is_some_and(|found| found == text)
        .then_some(name)
}

/// Reads a name field back; `None` when it breaks the rules of [`name_from_str`].
pub fn name_as_str(name: &Name) -> Option<&str> {
    let len = name.iter().position(|&b| b == 0)?;
    let (text, padding) = name.split_at(len);
    let legal = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    if text.is_empty()
        || text.len() > NAME_MAX
        || text.first() == Some(&b'.')
        || !text.iter().all(legal)
        || !padding.iter().all(|&b| b == 0)
    {
        return None;
    }
    core::str::from_utf8(text).ok()
}

/// Name of the domain that is meant when a name field is all zero.
pub const DEFAULT_DOMAIN: &str = "default";

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

/// How an entry encodes its page. Indexes [`PageStats::pages`] and [`PageStats::bytes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Representation {
    /// One 8-byte word, repeated.
    Fill = 0,
    /// Equal to a template page or to a reference page.
    Ref = 1,
    /// Changed words against a template page or a reference page.
    Delta = 2,
    /// The same, compressed with zstd.
    DeltaZstd = 3,
    /// The page by itself, compressed with zstd.
    Zstd = 4,
    /// The page compressed with zstd, a template page or a reference page being its prefix.
    Prefix = 5,
    /// The page compressed with zstd and a dictionary of the group.
    Dict = 6,
    /// The page by itself, compressed with zstd and filled up to one length for all: the pages of
    /// [sensitive](SANDBOX_SENSITIVE) sandboxes.
    Padded = 7,
}

/// Length of the per-representation arrays; unused positions are zero.
pub const REPRESENTATION_SLOTS: usize = 16;

impl Representation {
    /// Every representation, in the order of its number.
    pub const ALL: [Representation; 8] = [
        Representation::Fill,
        Representation::Ref,
        Representation::Delta,
        Representation::DeltaZstd,
        Representation::Zstd,
        Representation::Prefix,
        Representation::Dict,
        Representation::Padded,
    ];

    /// The name in sysfs, tracepoints and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Representation::Fill => "fill",
            Representation::Ref => "ref",
            Representation::Delta => "delta",
            Representation::DeltaZstd => "delta_zstd",
            Representation::Zstd => "zstd",
            Representation::Prefix => "prefix",
            Representation::Dict => "dict",
            Representation::Padded => "padded",
        }
    }
}

/// A half-open range of user addresses, page aligned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Range {
    /// First byte.
    pub start: u64,
    /// Byte after the last; greater than `start`.
    pub end: u64,
}

/// Argument of `INFO`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Info {
    /// Out: [`ABI_VERSION`] of the module.
    pub abi_version: u32,
    /// Out: 1 while the hooks are armed.
    pub armed: u32,
    /// Out: 1 while stores are accepted (the `enabled` file).
    pub enabled: u32,
    /// Out: 1 after `DRAIN`, until the next `ARM`.
    pub draining: u32,
}

/// Argument of `TEMPLATE_ADD`: registers pages of a live process.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct TemplateAdd {
    /// Process that holds the pages (in the caller's pid namespace); it should be stopped.
    pub pid: i32,
    /// Must be 0.
    pub flags: u32,
    /// User address of an array of [`Range`], sorted, not overlapping.
    pub ranges: u64,
    /// Length of that array, 1 to [`MAX_RANGES`].
    pub nr_ranges: u32,
    /// Must be 0.
    pub reserved: u32,
    /// Name, unique among templates.
    pub name: Name,
    /// Trust domain; all zero means [`DEFAULT_DOMAIN`].
    pub domain: Name,
    /// Out: pages kept by reference, which cost nothing while the process lives.
    pub pages_referenced: u64,
    /// Out: pages that had to be copied.
    pub pages_copied: u64,
    /// Out: pages in the ranges that were skipped: absent, swapped out, zero, file-backed, shared,
    /// KSM, hugetlb or device pages, and those beyond the eighth of one page index.
    pub pages_skipped: u64,
}

/// Argument of `TEMPLATE_ADD`, second version.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct TemplateAddSigned {
    /// The first version.
    pub add: TemplateAdd,
    /// Fingerprint of the process; all zero: none.
    pub signature: Signature,
}

/// Argument of `TEMPLATE_ADD_FILE`: registers pages of a regular file. The page index of a template
/// page is its number in the file.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct TemplateAddFile {
    /// File descriptor, open for reading.
    pub fd: i32,
    /// Must be 0.
    pub flags: u32,
    /// First byte, page aligned.
    pub offset: u64,
    /// Number of bytes, page aligned; 0, or more than there are: to the end of the file.
    pub length: u64,
    /// Name, unique among templates.
    pub name: Name,
    /// Trust domain; all zero means [`DEFAULT_DOMAIN`].
    pub domain: Name,
    /// Fingerprint of the contents; all zero: none.
    pub signature: Signature,
    /// Out: pages kept by reference, which cost nothing while the file lives: those of a memfd that
    /// nobody can write or truncate any more.
    pub pages_referenced: u64,
    /// Out: pages that had to be copied.
    pub pages_copied: u64,
    /// Out: pages that were skipped: holes, and pages of zeros only.
    pub pages_skipped: u64,
}

/// Argument of `TEMPLATE_REMOVE`. `EBUSY` while sandboxes or entries use it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct TemplateRemove {
    /// Which.
    pub name: Name,
    /// Out, on `EBUSY`: sandboxes (attached, or detached with entries) that use it.
    pub users: u64,
}

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
    /// Trust domain; all zero means [`DEFAULT_DOMAIN`]. Must be the template's (`EPERM`).
    pub domain: Name,
    /// Out: id of the cgroup, the name of its directory below `sandboxes/`.
    pub cgroup_id: u64,
}

/// Flag of [`SandboxAttach`]: the sandbox's pages share nothing with others, and all take the same room. It is
/// in no group (`EINVAL` when one is named).
pub const SANDBOX_SENSITIVE: u32 = 1;

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

/// Argument of `SANDBOX_DETACH`: new stores stop, entries stay loadable.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct SandboxDetach {
    /// Which.
    pub cgroup_id: u64,
    /// Out: entries that the sandbox still has.
    pub entries: u64,
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

/// Argument of `DICTIONARY_ADD`: the pages that the group of a sandbox stores from now on may be
/// compressed with this dictionary. The former one stays as long as payloads need it.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct DictionaryAdd {
    /// Any sandbox of the group.
    pub cgroup_id: u64,
    /// User address of the dictionary, in zstd's format; it is copied.
    pub content: u64,
    /// Its length, [`MIN_DICTIONARY`] to [`MAX_DICTIONARY`].
    pub length: u32,
    /// Out: its number in the group, which is given anew when the dictionary is gone.
    pub number: u32,
}

/// Argument of `DICTIONARY_RETIRE`: new payloads of the group are made without a dictionary.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct DictionaryRetire {
    /// Any sandbox of the group.
    pub cgroup_id: u64,
    /// Out: number of the dictionary that was the current one.
    pub number: u32,
    /// Must be 0.
    pub reserved: u32,
}

/// Argument of `DICTIONARY_SAMPLES`: pages that a group has stored, to train a dictionary with.
///
/// A call takes limited time: it may return fewer pages than there is room for, even none, before the
/// last.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct DictionarySamples {
    /// Any sandbox of the group.
    pub cgroup_id: u64,
    /// User address of room for the pages.
    pub buffer: u64,
    /// How many fit there, 1 to [`MAX_SAMPLES`].
    pub capacity: u32,
    /// Least bytes of the payload of a page.
    pub least: u32,
    /// In: 0, or what the call before returned. Out: where to go on, [`SAMPLES_END`] after the last page.
    pub cursor: u64,
    /// Out: pages written.
    pub pages: u32,
    /// Must be 0.
    pub reserved: u32,
}

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
    /// A [`Representation`] or [`NOT_DECODED`].
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

/// [`Prefetch::flags`]: what becomes of the pages is not looked at: they are neither hits nor misses, and give
/// no records. For what nobody expects to be touched, but might be. Accessed bits are cleared all the same.
pub const PREFETCH_UNTESTED: u32 = 1;

/// Argument of `PREFETCH`: restores pages of a process ahead of need, in the background, in the order
/// of the ranges.
///
/// What is present already costs a lookup, what is not swapped out is left as it is. The rest of a
/// request is dropped when it is older than its timeout, when the sandbox is detached, when the
/// process ends, and when the sandbox or the machine has too little memory left.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Prefetch {
    /// The sandbox that the process is in.
    pub cgroup_id: u64,
    /// User address of an array of [`Range`]s: page aligned, not empty; they may overlap, in any order.
    pub ranges: u64,
    /// Length of that array, 1 to [`MAX_PREFETCH_RANGES`].
    pub nr_ranges: u32,
    /// The process, as numbered in the caller's pid namespace.
    pub pid: i32,
    /// Age in milliseconds at which what was not begun is dropped, up to [`MAX_PREFETCH_MS`]; 0 means
    /// [`DEFAULT_PREFETCH_MS`].
    pub timeout_ms: u32,
    /// Time in milliseconds within which an access of a restored page makes it a hit, up to
    /// [`MAX_PREFETCH_MS`]; 0 means [`DEFAULT_PREFETCH_MS`].
    pub hit_window_ms: u32,
    /// Requests with a greater one go first.
    pub priority: u32,
    /// [`PREFETCH_UNTESTED`], or 0.
    pub flags: u32,
    /// Out: pages that were queued.
    pub pages: u64,
}

/// [`PageStates::flags`]: clears the accessed bit of every page that is looked at. Before that, pages of the
/// sandbox that were restored ahead of need and are within their hit window have their hit test.
pub const PAGE_STATES_CLEAR: u32 = 1;

/// State of a page, in the array of a [`PageStates`]: it is mapped.
pub const PAGE_PRESENT: u8 = 1;

/// The same: it was accessed since its accessed bit was last cleared; only with [`PAGE_PRESENT`].
pub const PAGE_ACCESSED: u8 = 2;

/// The same: it is swapped out.
pub const PAGE_SWAPPED: u8 = 4;

/// Argument of `PAGE_STATES`: what the page table of a process in a sandbox says about its pages.
/// Anonymous pages only (and private copies of pages of files), for all others the state is 0.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct PageStates {
    /// The sandbox that the process is in.
    pub cgroup_id: u64,
    /// First address, page aligned.
    pub start: u64,
    /// Address after the last, page aligned; at most [`MAX_PAGE_STATES`] pages.
    pub end: u64,
    /// User address of room for a byte for each page.
    pub states: u64,
    /// The process, as numbered in the caller's pid namespace.
    pub pid: i32,
    /// Of [`PAGE_STATES_CLEAR`].
    pub flags: u32,
}

/// Counters about pages, kept for each sandbox and for the whole store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PageStats {
    /// Entries now, by [`Representation`].
    pub pages: [u64; REPRESENTATION_SLOTS],
    /// Their payload bytes in the sandbox's arena, headers and rounding to 8 bytes included, by
    /// [`Representation`].
    pub bytes: [u64; REPRESENTATION_SLOTS],
    /// Pages stored since the start.
    pub stores: u64,
    /// Pages loaded since the start.
    pub loads: u64,
    /// Entries that died since the start (slot freed, stored again, or taken over by the host).
    pub erased: u64,
    /// Pages declined because no representation paid.
    pub declined_incompressible: u64,
    /// Pages declined because memory for a payload or for the table was missing.
    pub declined_nomem: u64,
    /// Pages declined because the bound of the store or of the sandbox was reached.
    pub declined_full: u64,
    /// Pages declined because the sandbox was detached, or stores were switched off, between hook
    /// and store.
    pub declined_detached: u64,
    /// Loads that failed a check: `EIO`, never wrong bytes.
    pub load_errors: u64,
    /// Pages stored since the start whose index the template has.
    pub template_backed: u64,
    /// Entries whose payload became a reference page since the start: they are [`Representation::Ref`]
    /// now.
    pub promoted: u64,
    /// Entries that a load ended since the start, because less than a sixteenth was left of the bound
    /// of the store or of the sandbox: the page is then written again when it is reclaimed.
    pub dropped: u64,
    /// Entries now that wait for a second look; they are in `pages` and `bytes` too.
    pub provisional: u64,
    /// Entries that a second look has encoded again since the start: provisional ones, and those that a
    /// new dictionary made shorter.
    pub second_look_pages: u64,
    /// Bytes of payloads that it has saved since the start in the arenas of sandboxes.
    pub second_look_bytes: u64,
    /// Nanoseconds spent in it.
    pub second_look_ns: u64,
    /// Nanoseconds spent in encoding in reclaim, pages that no representation paid for included.
    pub encode_ns: u64,
    /// Nanoseconds spent in decoding.
    pub decode_ns: u64,
}

/// Argument of `STATS`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Stats {
    /// In: 0 for the whole store, else the cgroup id of a sandbox.
    pub cgroup_id: u64,
    /// Out.
    pub page: PageStats,
    /// Out, whole store only: what it occupies.
    pub memory: MemoryStats,
}

/// What the store occupies, in bytes; no byte is in two fields. Left out, as the kernel does not
/// say: sysfs nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct MemoryStats {
    /// Pages of the sandboxes' arenas, holes and rounding included.
    pub arenas: u64,
    /// Pages of the groups' reference pages and of their tables.
    pub references: u64,
    /// Pages of the content indexes of groups and templates.
    pub sketches: u64,
    /// Slot table.
    pub table: u64,
    /// Template pages that live only because the module holds them.
    pub template_pages: u64,
    /// Template indexes.
    pub template_index: u64,
    /// Scratch pages and codec contexts; does not grow with the number of sandboxes.
    pub scratch: u64,
    /// Sandbox and template objects.
    pub objects: u64,
    /// Dictionaries of the groups: contents, and zstd's tables.
    pub dictionaries: u64,
}

impl MemoryStats {
    /// The sum of all fields.
    pub fn total(&self) -> u64 {
        self.arenas
            + self.references
            + self.sketches
            + self.table
            + self.template_pages
            + self.template_index
            + self.scratch
            + self.objects
            + self.dictionaries
    }
}

/// Argument of `DRAIN`: stops new stores and waits for those under way.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Drain {
    /// Out: entries left; they go as their slots are freed (swapoff frees all).
    pub entries: u64,
}

const fn ioc(dir: u32, nr: u32, size: usize) -> u32 {
    (dir << 30) | ((size as u32) << 16) | (IOC_MAGIC << 8) | nr
}

/// ioctl numbers: the lowest byte of the command of the same name.
pub mod nr {
    /// See [`super::INFO`].
    pub const INFO: u32 = 0x00;
    /// See [`super::ARM`].
    pub const ARM: u32 = 0x01;
    /// See [`super::DISARM`].
    pub const DISARM: u32 = 0x02;
    /// See [`super::TEMPLATE_ADD`].
    pub const TEMPLATE_ADD: u32 = 0x10;
    /// See [`super::TEMPLATE_REMOVE`].
    pub const TEMPLATE_REMOVE: u32 = 0x11;
    /// See [`super::TEMPLATE_ADD_FILE`].
    pub const TEMPLATE_ADD_FILE: u32 = 0x12;
    /// See [`super::SANDBOX_ATTACH`].
    pub const SANDBOX_ATTACH: u32 = 0x20;
    /// See [`super::SANDBOX_DETACH`].
    pub const SANDBOX_DETACH: u32 = 0x21;
    /// See [`super::SANDBOX_PHASE`].
    pub const SANDBOX_PHASE: u32 = 0x22;
    /// See [`super::SANDBOX_RANGES`].
    pub const SANDBOX_RANGES: u32 = 0x23;
    /// See [`super::DICTIONARY_ADD`].
    pub const DICTIONARY_ADD: u32 = 0x28;
    /// See [`super::DICTIONARY_RETIRE`].
    pub const DICTIONARY_RETIRE: u32 = 0x29;
    /// See [`super::DICTIONARY_SAMPLES`].
    pub const DICTIONARY_SAMPLES: u32 = 0x2a;
    /// See [`super::SANDBOX_RECORD`].
    pub const SANDBOX_RECORD: u32 = 0x40;
    /// See [`super::FAULTS_READ`].
    pub const FAULTS_READ: u32 = 0x41;
    /// See [`super::PREFETCH`].
    pub const PREFETCH: u32 = 0x42;
    /// See [`super::PAGE_STATES`].
    pub const PAGE_STATES: u32 = 0x43;
    /// See [`super::STATS`].
    pub const STATS: u32 = 0x30;
    /// See [`super::DRAIN`].
    pub const DRAIN: u32 = 0x31;
}

/// Reports version and state: [`Info`].
pub const INFO: u32 = ioc(2, nr::INFO, size_of::<Info>());
/// Installs the hooks, ends draining; no argument. `EBUSY` when another user redirects one of the
/// functions, `EALREADY` when armed.
pub const ARM: u32 = ioc(0, nr::ARM, 0);
/// Removes the hooks; no argument. `EBUSY` while entries exist, `EALREADY` when not armed.
pub const DISARM: u32 = ioc(0, nr::DISARM, 0);
/// See [`TemplateAdd`].
pub const TEMPLATE_ADD: u32 = ioc(3, nr::TEMPLATE_ADD, size_of::<TemplateAdd>());
/// See [`TemplateAddSigned`].
pub const TEMPLATE_ADD_SIGNED: u32 = ioc(3, nr::TEMPLATE_ADD, size_of::<TemplateAddSigned>());
/// See [`TemplateAddFile`].
pub const TEMPLATE_ADD_FILE: u32 = ioc(3, nr::TEMPLATE_ADD_FILE, size_of::<TemplateAddFile>());
/// See [`TemplateRemove`].
pub const TEMPLATE_REMOVE: u32 = ioc(3, nr::TEMPLATE_REMOVE, size_of::<TemplateRemove>());
/// See [`SandboxAttach`].
pub const SANDBOX_ATTACH: u32 = ioc(3, nr::SANDBOX_ATTACH, size_of::<SandboxAttach>());
/// See [`SandboxAttachSigned`].
pub const SANDBOX_ATTACH_SIGNED: u32 = ioc(3, nr::SANDBOX_ATTACH, size_of::<SandboxAttachSigned>());
/// See [`SandboxRanges`].
pub const SANDBOX_RANGES: u32 = ioc(1, nr::SANDBOX_RANGES, size_of::<SandboxRanges>());
/// See [`SandboxDetach`].
pub const SANDBOX_DETACH: u32 = ioc(3, nr::SANDBOX_DETACH, size_of::<SandboxDetach>());
/// See [`SandboxPhase`].
pub const SANDBOX_PHASE: u32 = ioc(1, nr::SANDBOX_PHASE, size_of::<SandboxPhase>());
/// See [`DictionaryAdd`].
pub const DICTIONARY_ADD: u32 = ioc(3, nr::DICTIONARY_ADD, size_of::<DictionaryAdd>());
/// See [`DictionaryRetire`].
pub const DICTIONARY_RETIRE: u32 = ioc(3, nr::DICTIONARY_RETIRE, size_of::<DictionaryRetire>());
/// See [`DictionarySamples`].
pub const DICTIONARY_SAMPLES: u32 = ioc(3, nr::DICTIONARY_SAMPLES, size_of::<DictionarySamples>());
/// See [`SandboxRecord`].
pub const SANDBOX_RECORD: u32 = ioc(1, nr::SANDBOX_RECORD, size_of::<SandboxRecord>());
/// See [`FaultsRead`].
pub const FAULTS_READ: u32 = ioc(3, nr::FAULTS_READ, size_of::<FaultsRead>());
/// See [`Prefetch`].
pub const PREFETCH: u32 = ioc(3, nr::PREFETCH, size_of::<Prefetch>());
/// See [`PageStates`].
pub const PAGE_STATES: u32 = ioc(1, nr::PAGE_STATES, size_of::<PageStates>());
/// See [`Stats`].
pub const STATS: u32 = ioc(3, nr::STATS, size_of::<Stats>());
/// See [`Drain`].
pub const DRAIN: u32 = ioc(2, nr::DRAIN, size_of::<Drain>());

// Layout: no implicit padding anywhere, so that no kernel byte leaks and both sides agree.
const _: () = {
    assert!(size_of::<Range>() == 16);
    assert!(size_of::<Info>() == 16);
    assert!(size_of::<TemplateAdd>() == 24 + 2 * NAME_LEN + 24);
    assert!(size_of::<TemplateAddSigned>() == size_of::<TemplateAdd>() + SIGNATURE_LEN);
    assert!(size_of::<TemplateAddFile>() == 24 + 2 * NAME_LEN + SIGNATURE_LEN + 24);
    assert!(size_of::<TemplateRemove>() == NAME_LEN + 8);
    assert!(size_of::<SandboxAttach>() == 8 + 3 * NAME_LEN + 8);
    assert!(size_of::<SandboxAttachSigned>() == size_of::<SandboxAttach>() + SIGNATURE_LEN);
    assert!(size_of::<SandboxRange>() == 24);
    assert!(size_of::<SandboxRanges>() == 24);
    assert!(size_of::<SandboxDetach>() == 16);
    assert!(size_of::<SandboxPhase>() == 16);
    assert!(size_of::<DictionaryAdd>() == 24);
    assert!(size_of::<DictionaryRetire>() == 16);
    assert!(size_of::<DictionarySamples>() == 40);
    assert!(size_of::<SandboxRecord>() == 16);
    assert!(size_of::<FaultRecord>() == 32);
    assert!(size_of::<FaultsRead>() == 32);
    assert!(size_of::<Prefetch>() == 48);
    assert!(size_of::<PageStates>() == 40);
    assert!(size_of::<PageStats>() == 8 * (2 * REPRESENTATION_SLOTS + 17));
    assert!(size_of::<MemoryStats>() == 72);
    assert!(size_of::<Stats>() == 8 + size_of::<PageStats>() + size_of::<MemoryStats>());
    assert!(size_of::<Drain>() == 8);
    assert!(NAME_LEN % 8 == 0);
};
