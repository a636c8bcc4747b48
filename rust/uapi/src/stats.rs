// SPDX-License-Identifier: GPL-2.0 OR MIT

//! How pages are encoded, and what is counted.

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
    /// [sensitive](super::SANDBOX_SENSITIVE) sandboxes.
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

/// Counts of a sandbox's `load_latency` in sysfs: number `i` is of loads that took 2^i to 2^(i+1)
/// nanoseconds, the last one of all that took longer.
pub const LATENCY_BUCKETS: usize = 32;

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

const _: () = {
    assert!(size_of::<PageStats>() == 8 * (2 * REPRESENTATION_SLOTS + 17));
    assert!(size_of::<MemoryStats>() == 72);
    assert!(size_of::<Stats>() == 8 + size_of::<PageStats>() + size_of::<MemoryStats>());
};
