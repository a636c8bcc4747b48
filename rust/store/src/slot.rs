// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Names of swap slots.

/// Bits of the offset of a slot.
const OFFSET_BITS: u32 = 34;

/// Bits of the swap type: the kernel's `MAX_SWAPFILES_SHIFT`.
pub(super) const TYPE_BITS: u32 = 5;

/// A swap slot: swap type and offset, in [`Slot::BITS`] bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(u64);

impl Slot {
    /// Width of a slot's name.
    pub const BITS: u32 = TYPE_BITS + OFFSET_BITS;

    /// The slot at `offset` (in pages) of the area with this swap type.
    ///
    /// `None` when it cannot be named: an offset from 2^34 pages (64 TiB) on, a type from 32 on.
    pub const fn new(swap_type: u32, offset: u64) -> Option<Self> {
        if swap_type >> TYPE_BITS != 0 || offset >> OFFSET_BITS != 0 {
            return None;
        }
        Some(Self(((swap_type as u64) << OFFSET_BITS) | offset))
    }

    /// Its swap type.
    pub const fn swap_type(self) -> u32 {
        (self.0 >> OFFSET_BITS) as u32
    }

    /// Its offset in the area, in pages.
    pub const fn offset(self) -> u64 {
        self.0 & ((1 << OFFSET_BITS) - 1)
    }

    /// The slot `n` after this one in the same area; `None` past the last that can be named.
    pub const fn offset_by(self, n: u64) -> Option<Self> {
        match self.offset().checked_add(n) {
            Some(offset) => Self::new(self.swap_type(), offset),
            None => None,
        }
    }

    /// Its name, below 2^[`Slot::BITS`].
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// The slot with this name.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits & ((1 << Self::BITS) - 1))
    }
}
