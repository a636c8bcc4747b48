// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Where payloads lie: the 50 bits that a descriptor, a reference or a link holds.
//!
//! ```text
//! bits  0..31   page number
//! bits 31..40   offset in the page, in units
//! bits 40..49   length in units
//! bit  49       continued elsewhere
//! ```

/// Bytes of a unit, in which offsets and lengths count.
pub const UNIT_BYTES: usize = 8;

/// The number of no page.
pub const NO_PAGE: u32 = mask(PAGE_BITS) as u32;

/// The largest page number.
pub const MAX_PAGE_NUMBER: u32 = NO_PAGE - 1;

/// Width of [`Place::to_bits`] in bits.
pub const PLACE_BITS: u32 = CONTINUED_SHIFT + 1;

const PAGE_BITS: u32 = 31;
const UNIT_BITS: u32 = 9;
const OFFSET_SHIFT: u32 = PAGE_BITS;
const UNITS_SHIFT: u32 = OFFSET_SHIFT + UNIT_BITS;
const CONTINUED_SHIFT: u32 = UNITS_SHIFT + UNIT_BITS;

const fn mask(bits: u32) -> u64 {
    1u64.wrapping_shl(bits).wrapping_sub(1)
}

/// Where a payload lies, or the first fragment of one, or a later fragment.
///
/// Any value of the fields can occur in one that was made from foreign bits; the arena checks them
/// before use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place(u64);

impl Place {
    pub(super) const fn new(page: u32, offset: u16, units: u16, continued: bool) -> Self {
        Self(
            (page as u64 & mask(PAGE_BITS))
                | ((offset as u64 & mask(UNIT_BITS)) << OFFSET_SHIFT)
                | ((units as u64 & mask(UNIT_BITS)) << UNITS_SHIFT)
                | ((continued as u64) << CONTINUED_SHIFT),
        )
    }

    /// The place in [`PLACE_BITS`] bits.
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// The place that was packed; higher bits are ignored.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits & mask(PLACE_BITS))
    }

    /// Number of the page, at most [`NO_PAGE`].
    pub const fn page(self) -> u32 {
        (self.0 & mask(PAGE_BITS)) as u32
    }

    /// Offset in the page in units of [`UNIT_BYTES`], below 512.
    pub const fn offset(self) -> u16 {
        ((self.0 >> OFFSET_SHIFT) & mask(UNIT_BITS)) as u16
    }

    /// Length in the page in units of [`UNIT_BYTES`], below 512; the link of a continued fragment
    /// is part of it.
    pub const fn units(self) -> u16 {
        ((self.0 >> UNITS_SHIFT) & mask(UNIT_BITS)) as u16
    }

    /// Whether the fragment begins with a link to the next one.
    pub const fn continued(self) -> bool {
        (self.0 >> CONTINUED_SHIFT) & 1 != 0
    }
}
