// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The inside of one page of an arena: a header and an address-ordered list of holes.
//!
//! Positions and lengths count units of 8 bytes. Units 0 and 1 are the header, the other
//! [`CAPACITY`] are payloads and holes:
//!
//! ```text
//! unit 0   bits  0..32  previous page of the list   bits 32..64  next page of the list
//! unit 1   bits  0..9   free units                  bits  9..18  units of the largest hole
//!          bits 18..27  first hole, 0 for none      bit  27      marked
//!          bits 32..64  check over the other bits and the number of the page
//! hole     bits  0..16  next hole, 0 for none       bits 16..32  its units
//! ```
//!
//! Holes are never adjacent. The check tells a page of the arena from anything else, so a header
//! that was overwritten leads nowhere.

use core::ops::Range;

use super::super::pages::{read_u64, write_u64};
use super::super::place::{Place, NO_PAGE, PLACE_BITS, UNIT_BYTES};
use super::super::PAGE_BYTES;

/// Bytes of a page, to be read as units.
pub(super) type Bytes = [u8; PAGE_BYTES];

/// Units of a page that payloads and holes share.
pub(super) const CAPACITY: u16 = UNITS - HEADER_UNITS;

const UNITS: u16 = (PAGE_BYTES / UNIT_BYTES) as u16;
const HEADER_UNITS: u16 = 2;

/// Most holes of a page: every other unit.
const MAX_HOLES: u16 = CAPACITY.div_ceil(2);

const FIELD_BITS: u32 = 9;
const FIELD: u64 = (1 << FIELD_BITS) - 1;
const MARKED_SHIFT: u32 = 3 * FIELD_BITS;

/// Odd factors with bits all over, so that a change of any bit reaches the upper half.
const MIX: [u64; 2] = [0x9fb2_1c65_1e98_df25, 0xd6e8_feb8_6659_fd93];

/// The unit at `at`; 0 past the end.
#[inline(always)]
pub(super) fn load(bytes: &Bytes, at: u16) -> u64 {
    read_u64(bytes, (at as usize).wrapping_mul(UNIT_BYTES))
}

/// Changes the unit at `at`; nothing past the end.
#[inline(always)]
pub(super) fn store(bytes: &mut Bytes, at: u16, value: u64) {
    write_u64(bytes, (at as usize).wrapping_mul(UNIT_BYTES), value);
}

/// Whether units `at..at + units` exist and lie behind the header.
#[inline(always)]
const fn within(at: u16, units: u16) -> bool {
    at >= HEADER_UNITS && at < UNITS && units > 0 && units <= UNITS - at
}

/// Units of payload in a fragment.
pub(super) const fn data_units(place: Place) -> u16 {
    place.units().saturating_sub(place.continued() as u16)
}

/// Where in its page the payload bytes of a fragment are, behind its link. `None` when it does not
/// lie behind the header and before the end, or has no payload.
#[inline(always)]
pub(super) fn data(place: Place) -> Option<Range<usize>> {
    let units = data_units(place);
    if !within(place.offset(), place.units()) || units == 0 {
        return None;
    }
    let skipped = place.offset().wrapping_add(u16::from(place.continued()));
    let start = (skipped as usize).wrapping_mul(UNIT_BYTES);
    let len = (units as usize).wrapping_mul(UNIT_BYTES);
    Some(start..start.wrapping_add(len))
}

/// A hole, as its first unit describes it.
#[derive(Clone, Copy)]
struct Hole {
    at: u16,
    units: u16,
    next: u16,
}

impl Hole {
    /// The hole at `at`; `None` when there cannot be one.
    #[inline(always)]
    fn load(bytes: &Bytes, at: u16) -> Option<Self> {
        let word = load(bytes, at);
        let (next, units) = (word as u16, (word >> 16) as u16);
        let valid = within(at, units) && (next == 0 || next > at.wrapping_add(units));
        valid.then_some(Self { at, units, next })
    }

    #[inline(always)]
    fn store(&self, bytes: &mut Bytes) {
        store(
            bytes,
            self.at,
            u64::from(self.next) | (u64::from(self.units) << 16),
        );
    }

    /// The unit behind it.
    fn end(&self) -> u16 {
        self.at.wrapping_add(self.units)
    }
}

/// What the first two units of a page say.
///
/// # Invariants
///
/// `free` is the sum of the holes, `largest` the units of the largest one, and `first` leads to all
/// of them in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// Neighbours in the list of pages that this one is in, or [`NO_PAGE`].
    pub(super) previous: u32,
    pub(super) next: u32,
    /// The page is to be emptied: nothing is put into it.
    pub(super) marked: bool,
    free: u16,
    largest: u16,
    first: u16,
}

impl Header {
    /// Makes one hole of a page and returns the header, which is not written yet.
    pub(super) fn format(bytes: &mut Bytes) -> Self {
        Hole {
            at: HEADER_UNITS,
            units: CAPACITY,
            next: 0,
        }
        .store(bytes);
        Self {
            previous: NO_PAGE,
            next: NO_PAGE,
            marked: false,
            free: CAPACITY,
            largest: CAPACITY,
            first: HEADER_UNITS,
        }
    }

    /// Reads the header of a page; `None` when it is none, or that of another page.
    #[inline]
    pub(super) fn load(bytes: &Bytes, page: u32) -> Option<Self> {
        let (links, fields) = (load(bytes, 0), load(bytes, 1));
        if fields >> 32 != check(links, fields, page) {
            return None;
        }
        Some(Self {
            previous: links as u32,
            next: (links >> 32) as u32,
            marked: (fields >> MARKED_SHIFT) & 1 != 0,
            free: (fields & FIELD) as u16,
            largest: ((fields >> FIELD_BITS) & FIELD) as u16,
            first: ((fields >> (2 * FIELD_BITS)) & FIELD) as u16,
        })
    }

    /// Writes the header of a page.
    #[inline]
    pub(super) fn save(&self, bytes: &mut Bytes, page: u32) {
        let links = u64::from(self.previous) | (u64::from(self.next) << 32);
        let fields = u64::from(self.free)
            | (u64::from(self.largest) << FIELD_BITS)
            | (u64::from(self.first) << (2 * FIELD_BITS))
            | (u64::from(self.marked) << MARKED_SHIFT);
        store(bytes, 0, links);
        store(bytes, 1, fields | (check(links, fields, page) << 32));
    }

    /// Makes the page none of the arena's, so that a place which still names it leads nowhere.
    pub(super) fn wipe(bytes: &mut Bytes) {
        store(bytes, 0, 0);
        store(bytes, 1, 0);
    }

    /// Forgets the holes, which turned out to be broken: nothing is put into them any more.
    pub(super) fn abandon(&mut self) {
        (self.free, self.largest, self.first) = (0, 0, 0);
    }

    /// Units in holes.
    pub(super) fn free(&self) -> u16 {
        self.free
    }

    /// Units of the largest hole.
    pub(super) fn largest(&self) -> u16 {
        self.largest
    }

    /// Takes `units` units, at least 1, out of the smallest hole that has them, and returns where
    /// they begin. `None`, and nothing has changed, when there is none.
    pub(super) fn take(&mut self, bytes: &mut Bytes, units: u16) -> Option<u16> {
        // The chosen hole and the one before it; the largest of the others.
        let mut best: Option<(Hole, Option<Hole>)> = None;
        let mut others = 0;
        let mut before = None;
        let mut at = self.first;
        for _ in 0..MAX_HOLES {
            if at == 0 {
                break;
            }
            let hole = Hole::load(bytes, at)?;
            let better = hole.units >= units && best.is_none_or(|(b, _)| hole.units < b.units);
            let loser = match best {
                Some((chosen, _)) if better => chosen.units,
                None if better => 0,
                _ => hole.units,
            };
            others = others.max(loser);
            if better {
                best = Some((hole, before));
                if hole.units == units && units < self.largest {
                    // No better one can follow, and the largest is another.
                    others = self.largest;
                    break;
                }
            }
            before = Some(hole);
            at = hole.next;
        }
        let (mut hole, before) = best?;
        // The units come off the end, so that the hole keeps its place in the list.
        hole.units = hole.units.wrapping_sub(units);
        let start = hole.end();
        if hole.units > 0 {
            hole.store(bytes);
        } else {
            match before {
                Some(mut before) => {
                    before.next = hole.next;
                    before.store(bytes);
                }
                None => self.first = hole.next,
            }
        }
        // INVARIANT: one hole lost `units` units, all others are as they were.
        self.free = self.free.saturating_sub(units);
        self.largest = others.max(hole.units);
        Some(start)
    }

    /// Makes the `units` units from `at` on a hole, or part of one. `None`, and nothing has
    /// changed, when some of them are no payload. With `wipe` they are overwritten with zeros first.
    pub(super) fn give(
        &mut self,
        bytes: &mut Bytes,
        at: u16,
        units: u16,
        wipe: bool,
    ) -> Option<()> {
        if !within(at, units) {
            return None;
        }
        let mut before: Option<Hole> = None;
        let mut next = self.first;
        for _ in 0..MAX_HOLES {
            if next == 0 || next >= at {
                break;
            }
            let hole = Hole::load(bytes, next)?;
            next = hole.next;
            before = Some(hole);
        }
        let mut hole = Hole { at, units, next };
        if next != 0 {
            if next < hole.end() {
                return None;
            }
            if next == hole.end() {
                let after = Hole::load(bytes, next)?;
                hole.units = hole.units.wrapping_add(after.units);
                hole.next = after.next;
            }
        }
        if before.is_some_and(|before| before.end() > at) {
            return None;
        }
        if wipe {
            let start = (at as usize).wrapping_mul(UNIT_BYTES);
            let len = (units as usize).wrapping_mul(UNIT_BYTES);
            if let Some(freed) = bytes.get_mut(start..start.wrapping_add(len)) {
                freed.fill(0);
            }
        }
        let largest = match before {
            Some(mut before) if before.end() == at => {
                before.units = before.units.wrapping_add(hole.units);
                before.next = hole.next;
                before.store(bytes);
                before.units
            }
            Some(mut before) => {
                before.next = at;
                before.store(bytes);
                hole.store(bytes);
                hole.units
            }
            None => {
                self.first = at;
                hole.store(bytes);
                hole.units
            }
        };
        // INVARIANT: one hole grew to `largest` units, or there is a new one.
        self.free = self.free.wrapping_add(units);
        self.largest = self.largest.max(largest);
        Some(())
    }
}

/// The check of a header: a hash of all other bits and of the page's number.
#[inline(always)]
fn check(links: u64, fields: u64, page: u32) -> u64 {
    let fields = u64::from(fields as u32) | (u64::from(page) << 32);
    let mixed = (links ^ MIX[1]).wrapping_mul(MIX[0]);
    let mixed = (mixed ^ (mixed >> 32) ^ fields).wrapping_mul(MIX[1]);
    mixed >> 32
}

/// The unit that the continued fragment at `home` begins with: the place of the next fragment, and
/// above it a check that depends on both.
pub(super) fn link(next: Place, home: Place) -> u64 {
    let mixed = next.to_bits().wrapping_mul(MIX[0]) ^ home.to_bits().wrapping_mul(MIX[1]);
    let mixed = (mixed ^ (mixed >> 32)).wrapping_mul(MIX[1]);
    next.to_bits() | ((mixed >> PLACE_BITS) << PLACE_BITS)
}

/// The place in the link of the fragment at `home`; `None` when it is no link.
pub(super) fn follow(word: u64, home: Place) -> Option<Place> {
    let next = Place::from_bits(word);
    (link(next, home) == word).then_some(next)
}
