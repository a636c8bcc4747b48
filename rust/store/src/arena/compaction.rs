// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Emptying sparse pages into the holes of others.
//!
//! The owner of the arena knows the places of its payloads, the arena does not. So it marks pages,
//! which then take no payloads any more; the owner offers every place that it has, one at a time and
//! in any order; and the arena moves those which lie in marked pages. No step needs a new page.

use core::ops::Range;

use super::super::place::Place;
use super::super::{Pages, Released};
use super::fragments::Fragments;
use super::lists::{Lists, MARKED};
use super::page::{self, CAPACITY};
use super::{Arena, Totals};

/// Most pages that one call marks or unmarks.
const STEP: usize = 64;

/// Most pages that one call looks at.
const LOOKS: usize = 2 * STEP;

/// An arena is sparse when one part in this many of its units is in holes.
const SPARSE_PART: u64 = 256;

/// After a compaction in vain the holes have to grow by one part in this many.
const SETTLED_PART: u64 = 8;

/// Fewest pages that holes must amount to for an arena to be sparse.
const SPARSE_PAGES: u64 = 4;

/// Bytes that are copied at once.
const CHUNK: usize = 256;

impl<P: Pages> Arena<P> {
    /// Whether so much of the arena is in holes that compaction pays; more than the last one left
    /// behind, if that gave nothing back.
    pub const fn is_sparse(&self) -> bool {
        let free = self.all.free_units;
        let free_pages = free / CAPACITY as u64;
        free_pages >= SPARSE_PAGES
            && free_pages >= self.all.pages / SPARSE_PART
            && free
                > self
                    .settled_units
                    .saturating_add(self.settled_units / SETTLED_PART)
    }

    /// Marks some of the emptiest pages, as far as the holes of the others can take their payloads.
    /// True if it marked any: there may be more then. The lock can be dropped between calls.
    #[must_use]
    pub fn begin_compaction(&mut self) -> bool {
        if self.pages_before.is_none() {
            self.pages_before = Some(self.all.pages);
        }
        let (all, mut marked) = (self.all, self.marked);
        let mut sources = [0u32; STEP];
        let mut count = 0usize;
        self.lists.descend(&self.pages, LOOKS, |page, header| {
            let Some(source) = sources.get_mut(count) else {
                return false;
            };
            let mut with = marked;
            with.add(&header);
            // A part of the room will be in holes that nothing fits into.
            let room = all.free_units.saturating_sub(with.free_units) / 4 * 3;
            let emptier = u64::from(header.free()).wrapping_mul(all.pages) > all.free_units;
            if emptier && with.used_units() <= room {
                marked = with;
                *source = page;
                count = count.wrapping_add(1);
            }
            true
        });
        let before = self.marked.pages;
        for &page in sources.get(..count).unwrap_or_default() {
            self.mark(page, true);
        }
        self.marked.pages > before
    }

    /// Moves the payload at `place` if part of it is in a marked page and there is room elsewhere,
    /// and returns its new place; the old one is free then.
    ///
    /// Pages that became empty leave the arena through `released`; where that is full, they stay.
    pub fn relocate(&mut self, place: Place, released: &mut Released) -> Option<Place> {
        if self.marked.pages == 0 {
            return None;
        }
        let (old, complete) = self.fragments(place);
        let in_marked = |place: &Place| {
            Lists::header(&self.pages, place.page()).is_some_and(|header| header.marked)
        };
        if !complete || !old.as_slice().iter().any(in_marked) {
            return None;
        }
        let new = self.allocate(old.data_units(), &mut None)?;
        self.copy(&old, &new);
        self.free(&old, released);
        new.as_slice().first().copied()
    }

    /// Unmarks pages that are still marked. True if some are left: call again then. The lock can be
    /// dropped between calls.
    #[must_use]
    pub fn end_compaction(&mut self) -> bool {
        let before = self.marked.pages;
        for _ in 0..STEP {
            let Some((page, _)) = self.lists.first(&self.pages, MARKED) else {
                self.marked = Totals::ZERO;
                self.settle();
                return false;
            };
            self.mark(page, false);
        }
        let more = (1..before).contains(&self.marked.pages);
        if !more {
            self.settle();
        }
        more
    }

    /// Notes what a compaction that gave nothing back has left: it is not worth another one.
    fn settle(&mut self) {
        if self
            .pages_before
            .take()
            .is_some_and(|before| self.all.pages >= before)
        {
            self.settled_units = self.all.free_units;
        }
    }

    fn mark(&mut self, page: u32, marked: bool) {
        if let Some(old) = Lists::header(&self.pages, page) {
            let mut new = old;
            new.marked = marked;
            self.update(page, &old, new);
        }
    }

    /// Copies a payload from one set of fragments to another of the same length.
    fn copy(&mut self, from: &Fragments, to: &Fragments) {
        let mut chunk = [0u8; CHUNK];
        let mut from = Cursor::new(from);
        let mut to = Cursor::new(to);
        while let (Some((source, read)), Some((target, write))) = (from.rest(), to.rest()) {
            let len = read.len().min(write.len()).min(CHUNK);
            let read = self
                .pages
                .bytes(source)
                .get(read)
                .and_then(|data| data.get(..len));
            let (Some(read), Some(chunk)) = (read, chunk.get_mut(..len)) else {
                return;
            };
            chunk.copy_from_slice(read);
            let write = self.pages.bytes_mut(target).get_mut(write);
            if let Some(write) = write.and_then(|data| data.get_mut(..len)) {
                write.copy_from_slice(chunk);
            }
            from.advance(len);
            to.advance(len);
        }
    }
}

/// A position in the payload that fragments hold.
struct Cursor<'a> {
    fragments: &'a [Place],
    /// Bytes of the first of them that were passed.
    passed: usize,
}

impl<'a> Cursor<'a> {
    fn new(fragments: &'a Fragments) -> Self {
        Self {
            fragments: fragments.as_slice(),
            passed: 0,
        }
    }

    /// The page and the bytes in it, at least one, from the position to the fragment's end.
    fn rest(&mut self) -> Option<(u32, Range<usize>)> {
        while let Some((&place, later)) = self.fragments.split_first() {
            let span = page::data(place)?;
            let start = span.start.wrapping_add(self.passed);
            if start < span.end {
                return Some((place.page(), start..span.end));
            }
            self.fragments = later;
            self.passed = 0;
        }
        None
    }

    fn advance(&mut self, bytes: usize) {
        self.passed = self.passed.wrapping_add(bytes);
    }
}
