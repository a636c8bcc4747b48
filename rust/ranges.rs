// SPDX-License-Identifier: GPL-2.0

//! Where the memory of a sandbox lies in its template, as user space said it.
//!
//! Stores look the ranges up under RCU. Whoever replaces them holds the control lock, and waits for
//! RCU before it drops the former ones.

use kernel::prelude::*;
use kernel::sync::atomic::{Acquire, Atomic, Release};
use kernel::sync::rcu;

use crate::codec::PAGE_SIZE;
use crate::store_policy::ranges::{build, candidates, Layers, PageRange, RangesError};
use crate::store_policy::template::Candidates;
use crate::template::{Source, TemplatePages};
use crate::uapi::SandboxRange;

/// Ranges that do not change any more.
pub(crate) struct Ranges {
    /// In the order of their layers.
    ranges: KVec<PageRange>,
    layers: Layers,
}

impl Ranges {
    /// Checks and sorts what user space gave.
    ///
    /// # Errors
    ///
    /// `EINVAL` when an address or an offset is not page aligned, a range is empty or not in
    /// ascending order; `E2BIG` when too many lie over each other; `ENOMEM`.
    pub(crate) fn new(given: &[SandboxRange]) -> Result<Self> {
        let page = PAGE_SIZE as u64;
        let mut pages = KVec::with_capacity(given.len(), GFP_KERNEL)?;
        for range in given {
            if (range.start | range.end | range.offset) % page != 0 {
                return Err(EINVAL);
            }
            let bytes = range.end.checked_sub(range.start).ok_or(EINVAL)?;
            pages.push_within_capacity(PageRange {
                index: range.start / page,
                template_index: range.offset / page,
                len: bytes / page,
            })?;
        }
        let mut ranges = KVec::with_capacity(pages.len(), GFP_KERNEL)?;
        let layers = build(&pages, |range| ranges.push_within_capacity(range)).map_err(
            |error| match error {
                RangesError::Invalid | RangesError::Unsorted => EINVAL,
                RangesError::TooDeep | RangesError::TooMany => E2BIG,
                RangesError::Callback(_) => ENOMEM,
            },
        )?;
        Ok(Self { ranges, layers })
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }
}

/// The present ranges of a sandbox.
///
/// # Invariants
///
/// Null, or from `KBox::into_raw()`; the cell owns the box.
pub(crate) struct RangesCell(Atomic<*mut Ranges>);

// SAFETY: The cell owns a `Ranges`, which has no interior mutability.
unsafe impl Send for RangesCell {}
// SAFETY: As above; the pointer is atomic.
unsafe impl Sync for RangesCell {}

impl RangesCell {
    /// No ranges.
    pub(crate) fn new() -> Self {
        Self(Atomic::new(core::ptr::null_mut()))
    }

    fn get<'a>(&'a self, _rcu: &'a rcu::Guard) -> Option<&'a Ranges> {
        // SAFETY: By the type invariants; whoever replaces it waits for RCU before dropping it.
        unsafe { self.0.load(Acquire).as_ref() }
    }

    /// Replaces the ranges. The caller holds the control lock, and waits for RCU before it drops
    /// what it got.
    pub(crate) fn replace(&self, ranges: Option<KBox<Ranges>>) -> Option<KBox<Ranges>> {
        let old = self.0.load(Acquire);
        // INVARIANT: The cell takes over the box; the former one passes to our caller.
        self.0.store(
            ranges.map_or(core::ptr::null_mut(), KBox::into_raw),
            Release,
        );
        // SAFETY: By the type invariants it came from `KBox::into_raw()`, and the cell no longer
        // owns it.
        (!old.is_null()).then(|| unsafe { KBox::from_raw(old) })
    }

    /// Number of ranges.
    pub(crate) fn len(&self, rcu: &rcu::Guard) -> u64 {
        self.get(rcu).map_or(0, |ranges| ranges.ranges.len() as u64)
    }

    /// Bytes that they occupy.
    pub(crate) fn bytes(&self, rcu: &rcu::Guard) -> u64 {
        self.get(rcu).map_or(0, |ranges| {
            (size_of::<Ranges>() + ranges.ranges.capacity() * size_of::<PageRange>()) as u64
        })
    }

    /// Ordinals of the template pages for a page index of the sandbox. Without a range, memory of
    /// the sandbox has its template page at the same index; never, if the template is from a file.
    pub(crate) fn candidates(&self, pages: &TemplatePages, index: u64) -> Candidates {
        let same_index = pages.source == Source::Process;
        let rcu = rcu::read_lock();
        let (ranges, layers) = match self.get(&rcu) {
            Some(Ranges { ranges, layers }) => (ranges.as_slice(), *layers),
            None => (&[][..], Layers::default()),
        };
        candidates(ranges, &layers, index, same_index, |index| {
            pages.candidates(index)
        })
    }
}

impl Drop for RangesCell {
    fn drop(&mut self) {
        // No reader is left: we have `&mut self`.
        drop(self.replace(None));
    }
}
