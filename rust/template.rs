// SPDX-License-Identifier: GPL-2.0

//! Templates: immutable pages that sandboxes were cloned from.
//!
//! # Lifetime of a page
//!
//! A template holds one reference to each of its pages: pages of the owner that nobody can write in
//! place (template_scan.c says when that is certain), which cost nothing while the owner maps them,
//! and private copies of the others. When the owner lets go of a page kept by reference, its
//! mapcount falls to 0 and reclaim would give it a swap slot that it never leaves; the worker then
//! replaces it by a copy off the LRU ([`TemplatePages::adopt_unmapped`]).
//!
//! # Races
//!
//! Encode and decode read a page under RCU, from the moment they load its pointer to the moment they
//! are done with its bytes. Replacing a page stores the new pointer, waits for RCU, then puts the old
//! page; old and new have the same contents, so it does not matter which one a reader sees. Removing
//! a template needs the control lock and no sandbox that refers to it, hence no entry.

use kernel::prelude::*;
use kernel::sync::atomic::{Acquire, Atomic, Relaxed, Release};
use kernel::sync::rcu;

use crate::bindings;
use crate::codec::{Page, PAGE_SIZE};
use crate::counters::Counter;
use crate::store_policy::template::{
    build, lookup, BuildError, Candidates, Layers, Run, MAX_PAGES,
};
use crate::sysfs::Node;
use crate::uapi::Name;

/// Pages scanned in one go, under one hold of the owner's mmap_lock.
const SCAN_BATCH: usize = 128;

/// Pages replaced by copies between two RCU grace periods.
const ADOPT_BATCH: usize = 256;

/// Pages that a round of the worker looks at.
const ADOPT_SLICE: usize = 65_536;

/// One reference to a page, and whether the page is a private copy.
///
/// # Invariants
///
/// Bits 1.. are the address of a `struct page` (aligned to 8 bytes or more) of which this value
/// owns a reference; bit 0 is set for a private copy.
struct PageRef(Atomic<usize>);

const COPIED: usize = 1;

impl PageRef {
    fn page(bits: usize) -> *mut bindings::page {
        core::ptr::with_exposed_provenance_mut(bits & !COPIED)
    }
}

impl Drop for PageRef {
    fn drop(&mut self) {
        // SAFETY: By the type invariants the reference is ours, and it ends here.
        unsafe { bindings::agentzip_page_put(Self::page(self.0.load(Relaxed))) };
    }
}

/// A template.
pub(crate) struct Template {
    pub(crate) name: Name,
    pub(crate) domain: Name,
    pub(crate) pages: TemplatePages,
    /// Its directory in sysfs.
    _node: Node,
}

impl Template {
    pub(crate) fn new(name: Name, domain: Name, pages: TemplatePages, node: Node) -> Self {
        Self {
            name,
            domain,
            pages,
            _node: node,
        }
    }
}

/// The pages of a template and their index.
pub(crate) struct TemplatePages {
    runs: KVVec<Run>,
    layers: Layers,
    /// By ordinal.
    pages: KVVec<PageRef>,
    copied: Counter,
    /// Pages kept by reference that the last full pass of the worker found unmapped and could not copy.
    orphans: Atomic<u64>,
    /// Pages in the ranges that were passed over.
    pub(crate) skipped: u64,
    /// Where the worker's pass over the pages is, and the orphans it has met so far.
    cursor: Atomic<usize>,
    pass_orphans: Atomic<u64>,
}

/// A page of a scan, before it has an ordinal.
struct Scanned {
    index: u64,
    page: PageRef,
    copied: bool,
}

fn scan(pid: i32, ranges: &[crate::uapi::Range], skipped: &mut u64) -> Result<KVVec<Scanned>> {
    // SAFETY: No preconditions.
    let mm = unsafe { bindings::agentzip_mm_of_pid(pid) };
    let mm = kernel::error::from_err_ptr(mm.cast::<kernel::bindings::mm_struct>())?;
    let mut found = KVVec::new();
    let mut result = Ok(());
    for range in ranges {
        result = scan_range(mm, range, &mut found, skipped);
        if result.is_err() {
            break;
        }
    }
    // SAFETY: Gives back the reference that `agentzip_mm_of_pid()` took.
    unsafe { kernel::bindings::mmput(mm) };
    result.map(|()| found)
}

fn scan_range(
    mm: *mut kernel::bindings::mm_struct,
    range: &crate::uapi::Range,
    found: &mut KVVec<Scanned>,
    skipped: &mut u64,
) -> Result {
    let mut batch =
        KVVec::<bindings::agentzip_scanned_page>::with_capacity(SCAN_BATCH, GFP_KERNEL)?;
    let mut addr = range.start as usize;
    while addr < range.end as usize {
        if found.len() > MAX_PAGES as usize {
            return Err(E2BIG);
        }
        found.reserve(SCAN_BATCH, GFP_KERNEL)?;
        // SAFETY: `mm` is alive, as we hold a reference; the batch has room for what is asked.
        let count = unsafe {
            bindings::agentzip_template_scan(
                mm.cast(),
                &mut addr,
                range.end as usize,
                batch.as_mut_ptr(),
                SCAN_BATCH as u32,
                skipped,
            )
        };
        let count = kernel::error::to_result(count.min(0)).map(|()| count as usize)?;
        // SAFETY: The scan initialised the first `count` elements.
        let pages = unsafe { core::slice::from_raw_parts(batch.as_ptr(), count) };
        for page in pages {
            let copied = page.copied != 0;
            let bits = page.page.expose_provenance() | if copied { COPIED } else { 0 };
            found.push_within_capacity(Scanned {
                index: page.index,
                // INVARIANT: The scan gave us one reference.
                page: PageRef(Atomic::new(bits)),
                copied,
            })?;
        }
    }
    Ok(())
}

impl TemplatePages {
    /// Takes the pages of a process. `ranges` are sorted and do not overlap. May sleep.
    ///
    /// # Errors
    ///
    /// `ESRCH` without such a process, `ENODATA` when no page in the ranges can be held, `E2BIG`
    /// for more than 2^24 pages, `EINTR`, `ENOMEM`.
    pub(crate) fn scan(pid: i32, ranges: &[crate::uapi::Range]) -> Result<Self> {
        let mut skipped = 0;
        let mut found = scan(pid, ranges, &mut skipped)?;
        if found.is_empty() {
            return Err(ENODATA);
        }
        found.sort_unstable_by_key(|page| page.index);

        // The ordinal of a page is its position in order of layers; most templates have one layer.
        let mut runs = KVVec::new();
        let mut order = KVVec::<u32>::with_capacity(found.len(), GFP_KERNEL)?;
        let built = build(
            found.iter().map(|page| page.index),
            |position, _ordinal| {
                order
                    .push_within_capacity(position as u32)
                    .map_err(|_| ENOMEM)
            },
            |run| runs.push(run, GFP_KERNEL).map_err(Error::from),
        )
        .map_err(|error| match error {
            BuildError::TooManyPages => E2BIG,
            BuildError::Callback(error) => error,
            BuildError::Unsorted => EINVAL,
        })?;

        let copied = Counter::new();
        let mut pages = KVVec::with_capacity(order.len(), GFP_KERNEL)?;
        for &position in order.iter() {
            let Some(page) = found.get_mut(position as usize) else {
                return Err(EINVAL);
            };
            if page.copied {
                copied.add(1);
            }
            let bits = page.page.0.load(Relaxed);
            // SAFETY: `bits` names a page of which `page` owns a reference.
            unsafe { bindings::agentzip_page_get(PageRef::page(bits)) };
            // INVARIANT: The reference that we just took.
            pages.push_within_capacity(PageRef(Atomic::new(bits)))?;
        }
        // Pages that got no ordinal (too many of one index) go with `found`.
        skipped += found.len() as u64 - u64::from(built.pages);
        shrink(&mut runs)?;
        Ok(Self {
            runs,
            layers: built.layers,
            pages,
            copied,
            orphans: Atomic::new(0),
            skipped,
            cursor: Atomic::new(0),
            pass_orphans: Atomic::new(0),
        })
    }

    /// Ordinals of the pages with this index.
    pub(crate) fn candidates(&self, index: u64) -> Candidates {
        lookup(&self.runs, &self.layers, index)
    }

    /// The page with this ordinal.
    pub(crate) fn page<'a>(&'a self, ordinal: u32, _rcu: &'a rcu::Guard) -> Option<&'a Page> {
        let bits = self.pages.get(ordinal as usize)?.0.load(Acquire);
        // SAFETY: By the type invariants we own a reference to the page, or did when RCU was taken;
        // then it is put only after a grace period. The direct map covers its 4096 bytes, and
        // nobody writes them: template_scan.c.
        unsafe {
            bindings::agentzip_page_address(PageRef::page(bits))
                .cast::<Page>()
                .as_ref()
        }
    }

    /// Replaces pages that no page table maps any more by copies: those of the next
    /// [`ADOPT_SLICE`] pages, round after round. May sleep; one caller at a time (the control lock).
    pub(crate) fn adopt_unmapped(&self) {
        let start = self.cursor.load(Relaxed);
        let end = start.saturating_add(ADOPT_SLICE).min(self.pages.len());
        let mut orphans = self.pass_orphans.load(Relaxed);
        let mut old = KVVec::<PageRef>::new();
        for page in self.pages.get(start..end).unwrap_or_default() {
            let bits = page.0.load(Relaxed);
            if bits & COPIED != 0 {
                continue;
            }
            // SAFETY: By the type invariants the page is alive.
            if !unsafe { bindings::agentzip_page_unmapped(PageRef::page(bits)) } {
                continue;
            }
            if old.reserve(1, GFP_KERNEL).is_err() {
                orphans += 1;
                continue;
            }
            // SAFETY: May sleep; returns a page of our own or null.
            let copy = unsafe { bindings::agentzip_page_copy(PageRef::page(bits)) };
            if copy.is_null() {
                orphans += 1;
                continue;
            }
            // INVARIANT: The reference to the copy moves in, that to the old page moves out.
            page.0.store(copy.expose_provenance() | COPIED, Release);
            self.copied.add(1);
            // Cannot fail: reserved above.
            drop(old.push_within_capacity(PageRef(Atomic::new(bits))));
            if old.len() >= ADOPT_BATCH {
                rcu::synchronize_rcu();
                old.clear();
            }
        }
        if end == self.pages.len() {
            self.orphans.store(orphans, Relaxed);
            self.pass_orphans.store(0, Relaxed);
            self.cursor.store(0, Relaxed);
        } else {
            self.pass_orphans.store(orphans, Relaxed);
            self.cursor.store(end, Relaxed);
        }
        if !old.is_empty() {
            // Readers of the old pages are RCU readers.
            rcu::synchronize_rcu();
        }
    }

    /// Pages kept by reference.
    pub(crate) fn referenced(&self) -> u64 {
        (self.pages.len() as u64).saturating_sub(self.copied.get())
    }

    /// Pages that are private copies.
    pub(crate) fn copied(&self) -> u64 {
        self.copied.get()
    }

    /// Bytes of pages that live only because we hold them.
    pub(crate) fn page_bytes(&self) -> u64 {
        (self.copied.get() + self.orphans.load(Relaxed)) * PAGE_SIZE as u64
    }

    /// Bytes of the index: runs and page pointers.
    pub(crate) fn index_bytes(&self) -> u64 {
        (self.runs.capacity() * size_of::<Run>() + self.pages.capacity() * size_of::<PageRef>())
            as u64
    }
}

/// Gives back what growing a vector left unused.
fn shrink(runs: &mut KVVec<Run>) -> Result {
    let mut exact = KVVec::with_capacity(runs.len(), GFP_KERNEL)?;
    exact.extend_from_slice(runs, GFP_KERNEL)?;
    *runs = exact;
    Ok(())
}
