// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Leaves of the slot table: one page of descriptors for neighbouring swap slots.

use super::Descriptor;

/// Descriptors in a [`Leaf`].
pub const SLOTS: usize = 511;

/// Swap types: those that a [`Slot`](super::Slot) can name.
pub const MAX_SWAP_TYPES: u32 = 1 << super::slot::TYPE_BITS;

/// Bits of the leaf number that count leaves of one swap type, before the type's own bits.
const LEAF_LOW_BITS: u32 = 24;
const TYPE_BITS: u32 = MAX_SWAP_TYPES.trailing_zeros();

/// Where the descriptor of a swap slot lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotAddress {
    /// Number of the leaf. Dense for each swap type, small where types and offsets are small, so
    /// that a radix tree keyed by it stays flat.
    pub leaf: u64,
    /// Position in the leaf, below [`SLOTS`].
    pub index: usize,
}

/// Where the descriptor of the slot at `offset` (in pages) of a swap type lives.
///
/// Different slots have different addresses for every type below [`MAX_SWAP_TYPES`]; higher bits
/// of the type are ignored.
pub const fn locate(swap_type: u32, offset: u64) -> SlotAddress {
    let number = offset / SLOTS as u64;
    let swap_type = (swap_type & (MAX_SWAP_TYPES - 1)) as u64;
    let low = number & ((1 << LEAF_LOW_BITS) - 1);
    let high = number >> LEAF_LOW_BITS;
    SlotAddress {
        leaf: low | (swap_type << LEAF_LOW_BITS) | (high << (LEAF_LOW_BITS + TYPE_BITS)),
        index: (offset % SLOTS as u64) as usize,
    }
}

/// One page of the slot table: [`SLOTS`] descriptors and the count of those in use.
///
/// # Invariants
///
/// `used` is the number of non-zero elements of `slots`. All bytes zero is a valid, empty leaf.
#[repr(C)]
pub struct Leaf {
    used: u64,
    slots: [u64; SLOTS],
}

const _: () = assert!(size_of::<Leaf>() == 4096 && align_of::<Leaf>() == 8);

impl Leaf {
    /// An empty leaf.
    pub const fn new() -> Self {
        Self {
            used: 0,
            slots: [0; SLOTS],
        }
    }

    /// The descriptor at `index`; `None` when it is empty or `index` is not below [`SLOTS`].
    pub fn get(&self, index: usize) -> Option<Descriptor> {
        self.slots
            .get(index)
            .copied()
            .and_then(Descriptor::from_bits)
    }

    /// Puts `new` at `index` and returns what was there.
    ///
    /// Does nothing when `index` is not below [`SLOTS`].
    pub fn replace(&mut self, index: usize, new: Option<Descriptor>) -> Option<Descriptor> {
        let slot = self.slots.get_mut(index)?;
        let bits = new.map_or(0, Descriptor::to_bits);
        let old = Descriptor::from_bits(core::mem::replace(slot, bits));
        // INVARIANT: one element changed, from `old` to `new`.
        self.used = self
            .used
            .wrapping_add(new.is_some().into())
            .wrapping_sub(old.is_some().into());
        old
    }

    /// Calls `f` with the descriptor at `index`, which it may replace by another. `None` when it is
    /// empty or `index` is not below [`SLOTS`].
    pub fn update<R>(&mut self, index: usize, f: impl FnOnce(&mut Descriptor) -> R) -> Option<R> {
        let slot = self.slots.get_mut(index)?;
        let mut descriptor = Descriptor::from_bits(*slot)?;
        let result = f(&mut descriptor);
        // INVARIANT: A descriptor is never zero: `used` is still right.
        *slot = descriptor.to_bits();
        Some(result)
    }

    /// Descriptors in use.
    pub fn used(&self) -> usize {
        self.used as usize
    }

    /// Whether no descriptor is in use.
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }
}

impl Default for Leaf {
    fn default() -> Self {
        Self::new()
    }
}
