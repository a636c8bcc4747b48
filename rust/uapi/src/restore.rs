// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Pages of a process: restored ahead of need, and looked at.

/// Most ranges in one [`Prefetch`].
pub const MAX_PREFETCH_RANGES: u32 = 16_384;

/// Most pages in one [`Prefetch`].
pub const MAX_PREFETCH_PAGES: u64 = 1 << 18;

/// Longest [`Prefetch::timeout_ms`] and [`Prefetch::hit_window_ms`].
pub const MAX_PREFETCH_MS: u32 = 600_000;

/// What 0 means in [`Prefetch::timeout_ms`] and [`Prefetch::hit_window_ms`].
pub const DEFAULT_PREFETCH_MS: u32 = 500;

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
    /// User address of an array of [`Range`](super::Range)s: page aligned, not empty; they may overlap, in any
    /// order.
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

/// Most pages in one [`PageStates`].
pub const MAX_PAGE_STATES: u64 = 1 << 18;

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

const _: () = {
    assert!(size_of::<Prefetch>() == 48);
    assert!(size_of::<PageStates>() == 40);
};
