// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Lists of the pages of an arena, by the class of their largest hole.
//!
//! Below 32 units each length is a class of its own; above that there are eight to a doubling. The
//! marked pages have a list to themselves. The links lie in the pages' headers.

use super::super::place::{MAX_PAGE_NUMBER, NO_PAGE};
use super::super::Pages;
use super::page::Header;

/// Number of classes.
const CLASSES: usize = u64::BITS as usize;

/// The list of the marked pages.
pub(super) const MARKED: usize = CLASSES;

/// Most pages that [`Lists::find`] looks at in a class where not all of them are fit.
const MAX_LOOKS: usize = 8;

/// Class of a largest hole of `units` units.
const fn class_of(units: u16) -> usize {
    if units < 32 {
        return units as usize;
    }
    let log = units.ilog2();
    let eighth = (units >> (log - 3)) as usize & 7;
    let class = 32 + (log as usize - 5) * 8 + eighth;
    if class < CLASSES {
        class
    } else {
        CLASSES - 1
    }
}

const _: () = assert!(class_of(511) == CLASSES - 1 && class_of(479) == CLASSES - 2);

/// The list that a page with this header is in.
fn list_of(header: &Header) -> usize {
    if header.marked {
        MARKED
    } else {
        class_of(header.largest())
    }
}

/// Heads of the lists.
///
/// # Invariants
///
/// Every page of the arena is in the list that its header names. Bit N of `filled` says whether
/// the list of class N has a page.
pub(super) struct Lists {
    heads: [u32; CLASSES + 1],
    filled: u64,
}

impl Lists {
    pub(super) const fn new() -> Self {
        Self {
            heads: [NO_PAGE; CLASSES + 1],
            filled: 0,
        }
    }

    /// The header of a page; `None` when there is no such page.
    pub(super) fn header<P: Pages>(pages: &P, page: u32) -> Option<Header> {
        if page > MAX_PAGE_NUMBER {
            return None;
        }
        Header::load(pages.bytes(page), page)
    }

    /// The first page of a list and its header.
    pub(super) fn first<P: Pages>(&mut self, pages: &P, list: usize) -> Option<(u32, Header)> {
        let page = *self.heads.get(list)?;
        if page == NO_PAGE {
            return None;
        }
        let header = Self::header(pages, page);
        if header.is_none() {
            // Overwritten by someone else: what follows cannot be reached any more.
            self.set_head(list, NO_PAGE);
        }
        header.map(|header| (page, header))
    }

    /// Takes any page out, without regard to what it holds.
    pub(super) fn pop<P: Pages>(&mut self, pages: &P) -> Option<u32> {
        for list in 0..=MARKED {
            if let Some((page, header)) = self.first(pages, list) {
                self.set_head(list, header.next);
                return Some(page);
            }
        }
        None
    }

    fn set_head(&mut self, list: usize, page: u32) {
        if let Some(head) = self.heads.get_mut(list) {
            *head = page;
        }
        if list < CLASSES {
            let bit = 1u64.wrapping_shl(list as u32);
            if page == NO_PAGE {
                self.filled &= !bit;
            } else {
                self.filled |= bit;
            }
        }
    }

    /// The filled class next above or equal to `class`.
    fn filled_from(&self, class: usize) -> Option<usize> {
        let above = self.filled & u64::MAX.checked_shl(class as u32)?;
        (above != 0).then_some(above.trailing_zeros() as usize)
    }

    /// The filled class next below `class`, except that of the full pages.
    fn filled_below(&self, class: usize) -> Option<usize> {
        let kept = (CLASSES as u32).saturating_sub(class as u32);
        let below = (self.filled & !1) & u64::MAX.checked_shr(kept)?;
        below.checked_ilog2().map(|class| class as usize)
    }

    /// A page with a hole of `units` units, out of the smallest class that has one.
    pub(super) fn find<P: Pages>(&mut self, pages: &P, units: u16) -> Option<u32> {
        let own = class_of(units);
        let mut candidate = self.first(pages, own);
        for _ in 0..MAX_LOOKS {
            let Some((page, header)) = candidate else {
                break;
            };
            if header.largest() >= units {
                return Some(page);
            }
            candidate = Self::header(pages, header.next).map(|next| (header.next, next));
        }
        let mut class = own;
        // Each turn ends the search or empties a list.
        for _ in 0..CLASSES {
            class = self.filled_from(class.wrapping_add(1))?;
            if let Some((page, _)) = self.first(pages, class) {
                return Some(page);
            }
        }
        None
    }

    /// Calls `visit` with at most `limit` pages and their headers, from the highest class down,
    /// without the full pages, until it returns false.
    pub(super) fn descend<P: Pages>(
        &mut self,
        pages: &P,
        limit: usize,
        mut visit: impl FnMut(u32, Header) -> bool,
    ) {
        let mut class = CLASSES;
        let mut candidate = None;
        let mut visits = 0;
        while visits < limit {
            let Some((page, header)) = candidate else {
                // Each turn goes down a class.
                let Some(below) = self.filled_below(class) else {
                    return;
                };
                class = below;
                candidate = self.first(pages, class);
                continue;
            };
            if !visit(page, header) {
                return;
            }
            visits = visits.wrapping_add(1);
            candidate = Self::header(pages, header.next).map(|next| (header.next, next));
        }
    }

    /// Puts a page, which is in no list, into the one that its header names.
    pub(super) fn link<P: Pages>(&mut self, pages: &mut P, page: u32, header: &mut Header) {
        let list = list_of(header);
        header.previous = NO_PAGE;
        header.next = match self.first(pages, list) {
            Some((next, mut after)) => {
                after.previous = page;
                after.save(pages.bytes_mut(next), next);
                next
            }
            None => NO_PAGE,
        };
        self.set_head(list, page);
    }

    /// Takes a page out of its list. `header` is as it was when the page was linked, save for the
    /// links.
    pub(super) fn unlink<P: Pages>(&mut self, pages: &mut P, page: u32, header: &Header) {
        let list = list_of(header);
        if let Some(mut after) = Self::header(pages, header.next) {
            after.previous = header.previous;
            after.save(pages.bytes_mut(header.next), header.next);
        }
        match Self::header(pages, header.previous) {
            Some(mut before) => {
                before.next = header.next;
                before.save(pages.bytes_mut(header.previous), header.previous);
            }
            None if self.heads.get(list) == Some(&page) => self.set_head(list, header.next),
            None => {}
        }
    }

    /// Writes the changed header of a page, whose header was `old`, and moves the page to another
    /// list where that is due.
    pub(super) fn update<P: Pages>(
        &mut self,
        pages: &mut P,
        page: u32,
        old: &Header,
        mut new: Header,
    ) {
        if list_of(old) != list_of(&new) {
            self.unlink(pages, page, old);
            self.link(pages, page, &mut new);
        }
        new.save(pages.bytes_mut(page), page);
    }
}
