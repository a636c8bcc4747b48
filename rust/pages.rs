// SPDX-License-Identifier: GPL-2.0

//! The pages that payloads, reference pages and content indexes live in, named by page frame number.
//!
//! A page of a sandbox's arena is charged to the sandbox's memory cgroup, which so pays for its
//! compressed bytes; in reclaim the charge is forced when the cgroup is at its limit, for the page
//! that it makes room for is larger. Pages of a group are charged to nobody; the group's budget and
//! the limit of the whole store bound them.
//!
//! The pages cannot be moved: memory that holds some cannot be taken offline.

use kernel::sync::atomic::{Atomic, Relaxed};

use crate::bindings;
use crate::bindings::agentzip_page_need as need;
use crate::counters::Counter;
use crate::store_policy::{Pages, MAX_PAGE_NUMBER, PAGE_BYTES};

/// Pages in use, of all arenas, tables and indexes. The module's rather than the state's: the last
/// pages go when the state is being taken down.
static IN_USE: Counter = Counter::new();

/// Access to pages through the direct map.
///
/// # Invariants
///
/// Values exist only inside the structures of `store_policy`, which pass only numbers that
/// [`allocate`] returned, that were given to them and that they have not given back.
#[derive(Clone)]
pub(crate) struct DirectMap;

impl DirectMap {
    fn address(page: u32) -> *mut [u8; PAGE_BYTES] {
        // SAFETY: Pure arithmetic.
        unsafe { bindings::agentzip_store_page_address(page as usize) }.cast()
    }
}

impl Pages for DirectMap {
    fn bytes(&self, page: u32) -> &[u8; PAGE_BYTES] {
        // SAFETY: By the type invariants the page is allocated and belongs to the structure that
        // owns `self`, which is borrowed.
        unsafe { &*Self::address(page) }
    }

    fn bytes_mut(&mut self, page: u32) -> &mut [u8; PAGE_BYTES] {
        // SAFETY: As above; `self`, and so the structure, is borrowed mutably.
        unsafe { &mut *Self::address(page) }
    }
}

/// Who a page is for.
#[derive(Clone, Copy)]
pub(crate) enum Payer {
    /// The memory cgroup of a sandbox, or null for nobody. It is valid during the call.
    Cgroup(*mut bindings::mem_cgroup),
    /// The same, and the caller may wait for memory.
    CgroupWaiting(*mut bindings::mem_cgroup),
    /// Nobody. Optional: leaves the reserves of reclaim alone.
    Nobody,
    /// Nobody, and the caller may wait for memory.
    NobodyWaiting,
}

/// A zeroed page. `None` when there is no memory; sleeps only for [`Payer::CgroupWaiting`] and
/// [`Payer::NobodyWaiting`].
pub(crate) fn allocate(payer: Payer) -> Option<u32> {
    let none = core::ptr::null_mut();
    let (memcg, need) = match payer {
        Payer::Cgroup(memcg) => (memcg, need::AGENTZIP_PAGE_FOR_RECLAIM),
        Payer::CgroupWaiting(memcg) => (memcg, need::AGENTZIP_PAGE_CAN_WAIT),
        Payer::Nobody => (none, need::AGENTZIP_PAGE_OPTIONAL),
        Payer::NobodyWaiting => (none, need::AGENTZIP_PAGE_CAN_WAIT),
    };
    // SAFETY: `memcg` is null or valid.
    let pfn = unsafe { bindings::agentzip_store_page_alloc(memcg, need) };
    let page = u32::try_from(pfn).ok().filter(|&page| page != 0)?;
    if page > MAX_PAGE_NUMBER {
        // SAFETY: Just allocated.
        unsafe { bindings::agentzip_store_page_free(pfn) };
        return None;
    }
    IN_USE.add(1);
    Some(page)
}

/// Overwrites a buffer with zeros, before it leaves the module. The compiler must not think that nobody looks
/// at it any more.
pub(crate) fn zero(buffer: &mut [u8]) {
    buffer.fill(0);
    core::hint::black_box(buffer);
}

/// Frees a page that [`allocate`] returned and that no structure holds any more, with nothing left in it:
/// whoever gets it next may read it before it is written to, if the kernel runs with `init_on_alloc=0`. That
/// takes 0.1 to 0.2 us in the cache and some us out of it, once for all payloads of the page. Who frees a
/// whole index under a spinlock frees 512 pages at most. Does not sleep.
pub(crate) fn free(page: u32) {
    // SAFETY: By our caller's promise it is ours alone.
    zero(unsafe { &mut *DirectMap::address(page) });
    // SAFETY: By our caller's promise.
    unsafe { bindings::agentzip_store_page_free(page as usize) };
    IN_USE.sub(1);
}

/// Bytes of the pages in use.
pub(crate) fn bytes() -> u64 {
    IN_USE.get() * PAGE_BYTES as u64
}

/// A bound on bytes that can be changed at any time.
pub(crate) struct Limit(Atomic<u64>);

impl Limit {
    /// No bound.
    pub(crate) const NONE: u64 = u64::MAX;

    pub(crate) const fn new(bytes: u64) -> Self {
        Self(Atomic::new(bytes))
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }

    pub(crate) fn set(&self, bytes: u64) {
        self.0.store(bytes, Relaxed);
    }

    /// Whether less than one part in 16 is left.
    pub(crate) fn is_near(&self, used: u64) -> bool {
        let bound = self.get();
        used > bound - bound / 16
    }

    /// Whether one page more than `used` bytes is within the bound.
    pub(crate) fn allows(&self, used: u64) -> bool {
        used.saturating_add(PAGE_BYTES as u64) <= self.get()
    }
}
