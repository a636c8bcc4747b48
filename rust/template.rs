// SPDX-License-Identifier: GPL-2.0

//! Templates: immutable pages that sandboxes were cloned from.
//!
//! # Lifetime of a page
//!
//! A template holds one reference to each of its pages: pages of a process or of a file that nobody
//! can write in place (template_scan.c and template_file.c say when that is certain), which cost
//! nothing while the process maps them or the file exists, and private copies of the others. When
//! the owner lets go of a page kept by reference, reclaim would give it a swap slot that it never
//! leaves, or would look at it for ever; the worker then replaces it by a copy off the LRU
//! ([`TemplatePages::adopt_orphans`]).
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
use crate::content::ContentIndex;
use crate::counters::Counter;
use crate::store_policy::template::{
    build, lookup, BuildError, Candidates, Layers, Run, MAX_PAGES,
};
use crate::sysfs::Node;
use crate::uapi::{Name, Signature};

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
    /// Takes over the caller's reference to a scanned page.
    fn new(page: *mut bindings::page, copied: bool) -> Self {
        // INVARIANT: The reference that the scan gave us.
        Self(Atomic::new(
            page.expose_provenance() | if copied { COPIED } else { 0 },
        ))
    }

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
#[pin_data]
pub(crate) struct Template {
    pub(crate) name: Name,
    pub(crate) domain: Name,
    /// What it was made of, for comparison only; all zero: not known.
    pub(crate) signature: Signature,
    pub(crate) pages: TemplatePages,
    #[pin]
    pub(crate) content: ContentIndex,
    /// Its directory in sysfs.
    _node: Node,
}

impl Template {
    pub(crate) fn new(
        name: Name,
        domain: Name,
        signature: Signature,
        pages: TemplatePages,
        node: Node,
    ) -> impl PinInit<Self> {
        pin_init!(Self {
            name,
            domain,
            signature,
            pages,
            content <- ContentIndex::new(),
            _node: node,
        })
    }
}

/// What the pages of a template were taken from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// A process: page indexes are those of its addresses.
    Process,
    /// A file: page indexes are positions in it.
    File,
}

impl Source {
    /// The name in sysfs.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Process => "process",
            Self::File => "file",
        }
    }
}

/// The pages of a template and their index.
pub(crate) struct TemplatePages {
    pub(crate) source: Source,
    runs: KVVec<Run>,
    layers: Layers,
    /// By ordinal.
    pages: KVVec<PageRef>,
    copied: Counter,
    /// Pages kept by reference that the last full pass of the worker found orphaned and could not copy.
    orphans: Atomic<u64>,
    /// Pages in the ranges, or in the part of the file, that were passed over.
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

/// Room for one batch of a scan.
fn new_batch() -> Result<KVVec<bindings::agentzip_scanned_page>> {
    Ok(KVVec::with_capacity(SCAN_BATCH, GFP_KERNEL)?)
}

/// Adds a batch to what was found: one call of a scan function, which returns how many elements it
/// wrote, or an errno.
///
/// # Safety
///
/// `scan` initialises as many elements as it returns, at most [`SCAN_BATCH`], and gives the caller a
/// reference to each of their pages.
unsafe fn scan_batch(
    batch: &mut KVVec<bindings::agentzip_scanned_page>,
    found: &mut KVVec<Scanned>,
    scan: impl FnOnce(*mut bindings::agentzip_scanned_page) -> c_int,
) -> Result {
    if found.len() > MAX_PAGES as usize {
        return Err(E2BIG);
    }
    found.reserve(SCAN_BATCH, GFP_KERNEL)?;
    let count = scan(batch.as_mut_ptr());
    let count = kernel::error::to_result(count.min(0)).map(|()| count as usize)?;
    // SAFETY: By our caller's promise the first `count` elements are initialised.
    let pages = unsafe { core::slice::from_raw_parts(batch.as_ptr(), count) };
    for page in pages {
        let copied = page.copied != 0;
        found.push_within_capacity(Scanned {
            index: page.index,
            page: PageRef::new(page.page, copied),
            copied,
        })?;
    }
    Ok(())
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
    let mut batch = new_batch()?;
    let mut addr = range.start as usize;
    while addr < range.end as usize {
        // SAFETY: `mm` is alive, as we hold a reference; the batch has room for what is asked, and
        // the scan initialises what it returns.
        unsafe {
            scan_batch(&mut batch, found, |out| {
                bindings::agentzip_template_scan(
                    mm.cast(),
                    &mut addr,
                    range.end as usize,
                    out,
                    SCAN_BATCH as u32,
                    skipped,
                )
            })
        }?;
    }
    Ok(())
}

/// The file that a template is made from.
///
/// # Invariants
///
/// The pointer came from `agentzip_template_file_open()`.
struct SourceFile {
    file: *mut bindings::file,
    sealed: bool,
}

impl SourceFile {
    /// `EBADF` when the descriptor is not open for reading, `EINVAL` when it is no regular file.
    fn open(fd: i32) -> Result<Self> {
        let mut sealed = false;
        // SAFETY: May sleep, as we may.
        let file = unsafe { bindings::agentzip_template_file_open(fd, &mut sealed) };
        // INVARIANT: Just opened.
        Ok(Self {
            file: kernel::error::from_err_ptr(file)?,
            sealed,
        })
    }

    /// Its size in pages.
    fn pages(&self) -> u64 {
        // SAFETY: By the type invariants the file is open.
        unsafe { bindings::agentzip_template_file_pages(self.file) }
    }

    /// The pages from `index` to `end` that are neither holes nor zero.
    fn scan(&self, mut index: u64, end: u64) -> Result<KVVec<Scanned>> {
        let mut found = KVVec::new();
        let mut batch = new_batch()?;
        while index < end {
            // SAFETY: By the type invariants the file is open; the batch has room for what is asked,
            // and the scan initialises what it returns.
            unsafe {
                scan_batch(&mut batch, &mut found, |out| {
                    bindings::agentzip_template_file_scan(
                        self.file,
                        self.sealed,
                        &mut index,
                        end,
                        out,
                        SCAN_BATCH as u32,
                    )
                })
            }?;
        }
        Ok(found)
    }
}

impl Drop for SourceFile {
    fn drop(&mut self) {
        // SAFETY: By the type invariants; closed once, here.
        unsafe { bindings::agentzip_template_file_close(self.file) };
    }
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
        let found = scan(pid, ranges, &mut skipped)?;
        Self::new(Source::Process, found, skipped)
    }

    /// Takes the pages of a file: `length` bytes from `offset` on, both multiples of the page size,
    /// as far as the file goes; with `length` 0 all of them. May sleep.
    ///
    /// # Errors
    ///
    /// `EBADF` when the descriptor is not open for reading, `EINVAL` for anything but a regular file,
    /// `ENODATA` when there are only holes and zeros, `E2BIG` for more than 2^24 other pages,
    /// `EINTR`, `ENOMEM`, and errors of reading the file.
    pub(crate) fn read_file(fd: i32, offset: u64, length: u64) -> Result<Self> {
        let file = SourceFile::open(fd)?;
        let start = offset / PAGE_SIZE as u64;
        let end = match length / PAGE_SIZE as u64 {
            0 => u64::MAX,
            pages => start.saturating_add(pages),
        };
        let end = end.min(file.pages());
        let found = file.scan(start, end)?;
        let skipped = end.saturating_sub(start).saturating_sub(found.len() as u64);
        Self::new(Source::File, found, skipped)
    }

    /// Builds the index of scanned pages.
    fn new(source: Source, mut found: KVVec<Scanned>, mut skipped: u64) -> Result<Self> {
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
            source,
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

    /// Number of pages; ordinals are below it.
    pub(crate) fn len(&self) -> usize {
        self.pages.len()
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
        // nobody writes them: template_scan.c, template_file.c.
        unsafe {
            bindings::agentzip_page_address(PageRef::page(bits))
                .cast::<Page>()
                .as_ref()
        }
    }

    /// Replaces pages that only we hold by copies: those of the next [`ADOPT_SLICE`] pages, round
    /// after round. May sleep; one caller at a time (the control lock).
    pub(crate) fn adopt_orphans(&self) {
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
            if !unsafe { bindings::agentzip_page_orphaned(PageRef::page(bits)) } {
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
