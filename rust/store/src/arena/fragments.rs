// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Payloads in one or several fragments: finding room for them, following and freeing them.

use super::super::place::{Place, MAX_PAGE_NUMBER};
use super::super::{Pages, Released};
use super::lists::Lists;
use super::page::{self, Header, CAPACITY};
use super::{Arena, MAX_FRAGMENTS};

/// Units of the smallest hole that a payload is split for. One of them is the link.
const MIN_SPLIT: u16 = 5;

/// Up to [`MAX_FRAGMENTS`] places: the fragments of a payload in their order.
#[derive(Clone, Copy)]
pub(super) struct Fragments {
    places: [Place; MAX_FRAGMENTS],
    len: usize,
}

impl Fragments {
    const fn new() -> Self {
        Self {
            places: [Place::from_bits(0); MAX_FRAGMENTS],
            len: 0,
        }
    }

    /// Adds a fragment; dropped when there are [`MAX_FRAGMENTS`].
    fn push(&mut self, place: Place) {
        if let Some(next) = self.places.get_mut(self.len) {
            *next = place;
            self.len = self.len.wrapping_add(1);
        }
    }

    /// Units of payload in all of them.
    pub(super) fn data_units(&self) -> u16 {
        self.as_slice().iter().fold(0, |sum: u16, &place| {
            sum.saturating_add(page::data_units(place))
        })
    }

    pub(super) fn as_slice(&self) -> &[Place] {
        self.places.get(..self.len).unwrap_or_default()
    }

    /// Whether all but the last of the possible fragments are there.
    fn is_almost_full(&self) -> bool {
        self.len.wrapping_add(1) >= MAX_FRAGMENTS
    }
}

impl<P: Pages> Arena<P> {
    /// The payload bytes of a fragment, and the place of the one that follows.
    ///
    /// `None` when the place or its link is broken.
    #[inline]
    pub(super) fn fragment(&self, place: Place) -> Option<(&[u8], Option<Place>)> {
        let span = page::data(place)?;
        if place.page() > MAX_PAGE_NUMBER {
            return None;
        }
        let bytes = self.pages.bytes(place.page());
        let next = if place.continued() {
            Some(page::follow(page::load(bytes, place.offset()), place)?)
        } else {
            None
        };
        Some((bytes.get(span)?, next))
    }

    /// All fragments of a payload, and whether they are complete: no link is broken.
    pub(super) fn fragments(&self, place: Place) -> (Fragments, bool) {
        let mut fragments = Fragments::new();
        let mut next = Some(place);
        for _ in 0..MAX_FRAGMENTS {
            let Some(place) = next else {
                return (fragments, true);
            };
            fragments.push(place);
            match self.fragment(place) {
                Some((_, after)) => next = after,
                None => return (fragments, false),
            }
        }
        (fragments, next.is_none())
    }

    /// Takes fragments for `units` units of payload and links them.
    ///
    /// Fragments come out of the largest holes, the last one out of the smallest that does, or out
    /// of the spare page. `None`, and nothing has changed, when there is no room.
    pub(super) fn allocate(&mut self, units: u16, spare: &mut Option<u32>) -> Option<Fragments> {
        if let Some(page) = self.lists.find(&self.pages, units) {
            if let Some(place) = self.take(page, units, false) {
                let mut whole = Fragments::new();
                whole.push(place);
                return Some(whole);
            }
        }
        let (parts, left) = self.plan(units);
        if left > 0 && spare.is_none() {
            return None;
        }
        let mut fragments = Fragments::new();
        let mut left = units;
        for part in parts.as_slice() {
            let taken = if part.continued() {
                self.take(part.page(), part.units(), true)
            } else {
                // It need not be one of the largest holes.
                let page = self.lists.find(&self.pages, left).unwrap_or(part.page());
                self.take(page, left, false)
            };
            // A page that was overwritten: the others may not do then.
            let Some(place) = taken else {
                break;
            };
            left = left.saturating_sub(page::data_units(place));
            fragments.push(place);
        }
        if left > 0 {
            let place = spare.take().and_then(|page| {
                self.add(page);
                self.take(page, left, false)
            });
            let Some(place) = place else {
                for &place in fragments.as_slice() {
                    self.give(place, None);
                }
                return None;
            };
            fragments.push(place);
        }
        self.join(&fragments);
        Some(fragments)
    }

    /// The parts that `units` units of payload would be split into, each in another page, and the
    /// units that remain. Of the parts only page, units and whether they are continued count.
    fn plan(&mut self, units: u16) -> (Fragments, u16) {
        let mut parts = Fragments::new();
        let mut left = units;
        self.lists
            .descend(&self.pages, MAX_FRAGMENTS, |number, header| {
                let largest = header.largest();
                if largest >= left {
                    parts.push(Place::new(number, 0, left, false));
                    left = 0;
                } else if largest >= MIN_SPLIT && !parts.is_almost_full() {
                    let part = Place::new(number, 0, largest, true);
                    parts.push(part);
                    left = left.saturating_sub(page::data_units(part));
                } else {
                    return false;
                }
                left > 0
            });
        (parts, left)
    }

    /// Writes the links of the fragments of a payload.
    fn join(&mut self, fragments: &Fragments) {
        let places = fragments.as_slice();
        for (&place, &next) in places.iter().zip(places.iter().skip(1)) {
            let bytes = self.pages.bytes_mut(place.page());
            page::store(bytes, place.offset(), page::link(next, place));
        }
    }

    /// Adds an empty page.
    fn add(&mut self, page: u32) {
        let bytes = self.pages.bytes_mut(page);
        let mut header = Header::format(bytes);
        self.lists.link(&mut self.pages, page, &mut header);
        header.save(self.pages.bytes_mut(page), page);
        self.all.add(&header);
    }

    /// Takes a fragment out of a page.
    ///
    /// `None` when the page has no such hole, which its header said it had: it was overwritten, and
    /// nothing is put there any more.
    fn take(&mut self, page: u32, units: u16, continued: bool) -> Option<Place> {
        let old = Lists::header(&self.pages, page)?;
        let mut new = old;
        let at = new.take(self.pages.bytes_mut(page), units);
        if at.is_none() {
            new.abandon();
        }
        self.update(page, &old, new);
        let place = Place::new(page, at?, units, continued);
        self.payload_units = self
            .payload_units
            .wrapping_add(page::data_units(place).into());
        Some(place)
    }

    /// Frees a fragment; its page leaves the arena when it has no other and `released` has room.
    ///
    /// `None`, and nothing happens, when there cannot be such a fragment.
    fn give(&mut self, place: Place, released: Option<&mut Released>) -> Option<()> {
        page::data(place)?;
        let page = place.page();
        let old = Lists::header(&self.pages, page)?;
        let mut new = old;
        new.give(
            self.pages.bytes_mut(page),
            place.offset(),
            place.units(),
            self.wipes,
        )?;
        self.payload_units = self
            .payload_units
            .saturating_sub(page::data_units(place).into());
        let emptied = new.free() == CAPACITY;
        if emptied && released.is_some_and(|released| released.push(page)) {
            self.lists.unlink(&mut self.pages, page, &old);
            Header::wipe(self.pages.bytes_mut(page));
            self.all.remove(&old);
            if old.marked {
                self.marked.remove(&old);
            }
        } else {
            self.update(page, &old, new);
        }
        Some(())
    }

    /// Frees the fragments of a payload and returns the units of payload that they had.
    pub(super) fn free(&mut self, fragments: &Fragments, released: &mut Released) -> u16 {
        let mut units = 0u16;
        for &place in fragments.as_slice() {
            if self.give(place, Some(released)).is_some() {
                units = units.saturating_add(page::data_units(place));
            }
        }
        units
    }

    /// Writes the changed header of a page, whose header was `old`.
    pub(super) fn update(&mut self, page: u32, old: &Header, new: Header) {
        self.all.remove(old);
        self.all.add(&new);
        if old.marked {
            self.marked.remove(old);
        }
        if new.marked {
            self.marked.add(&new);
        }
        self.lists.update(&mut self.pages, page, old, new);
    }
}
