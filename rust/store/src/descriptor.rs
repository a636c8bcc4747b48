// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The 8-byte descriptor of a stored page. Only this file knows its layout:
//!
//! ```text
//! bits  0..2    kind: 0 provisional payload, 1 fill, 2 ref, 3 payload (a place is never 0, so neither is
//!               a descriptor)
//! bits  2..14   owner
//! bits 14..64   fill:    2 bits form, 48 bits value
//!               ref:     24 bits number of the base, 1 bit kind of base, 25 bits checksum
//!               payload: place
//! ```

use core::num::NonZeroU64;

use super::codec::BaseId;
use super::place::PLACE_BITS;
use super::Place;

const KIND_BITS: u32 = 2;
const OWNER_BITS: u32 = 12;
const BASE_BITS: u32 = 24;
const BODY_SHIFT: u32 = KIND_BITS + OWNER_BITS;
const BODY_BITS: u32 = u64::BITS - BODY_SHIFT;
const FILL_BITS: u32 = BODY_BITS - 2;

const _: () = assert!(BODY_BITS >= PLACE_BITS);

const KIND_PROVISIONAL: u64 = 0;
const KIND_FILL: u64 = 1;
const KIND_REF: u64 = 2;
const KIND_PAYLOAD: u64 = 3;

/// Bits of the page checksum that [`Entry::Ref`] keeps (the low ones).
pub const REF_CRC_BITS: u32 = BODY_BITS - BASE_BITS - 1;

/// Number of distinct [`Owner`] values.
pub const MAX_OWNERS: usize = 1 << OWNER_BITS;

const fn mask(bits: u32) -> u64 {
    1u64.wrapping_shl(bits).wrapping_sub(1)
}

/// Index of the sandbox that an entry belongs to, below [`MAX_OWNERS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner(u16);

impl Owner {
    /// The owner with this index; `None` from [`MAX_OWNERS`] on.
    pub const fn new(index: u16) -> Option<Self> {
        if (index as usize) < MAX_OWNERS {
            Some(Self(index))
        } else {
            None
        }
    }

    /// Its index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// What the store holds for a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A page that repeats one 8-byte word.
    Fill {
        /// Sandbox that stored the page.
        owner: Owner,
        /// The word, in native byte order of the (little-endian) page.
        word: u64,
    },
    /// A page equal to a template page or to a reference page.
    Ref {
        /// Sandbox that stored the page.
        owner: Owner,
        /// The page that it equals.
        base: BaseId,
        /// The low [`REF_CRC_BITS`] bits of the page's CRC-32C.
        crc: u32,
    },
    /// A page in a payload of its own.
    Payload {
        /// Sandbox that stored the page.
        owner: Owner,
        /// Where the payload lies in the owner's arena.
        place: Place,
        /// Whether it was made in a hurry and waits for a second look. Then the page's index follows
        /// it, in as many bytes as a [unit](super::UNIT_BYTES) has.
        provisional: bool,
    },
}

impl Entry {
    /// Sandbox that stored the page.
    pub const fn owner(&self) -> Owner {
        match *self {
            Entry::Fill { owner, .. } | Entry::Ref { owner, .. } | Entry::Payload { owner, .. } => {
                owner
            }
        }
    }
}

/// An [`Entry`] in 8 bytes, never all zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Descriptor(NonZeroU64);

impl Descriptor {
    /// Packs an entry.
    ///
    /// `None` when it does not fit: a fill word of none of the packable forms (the page then needs
    /// a payload), a base or a checksum out of its range, a place of all zeros.
    pub const fn pack(entry: Entry) -> Option<Self> {
        let (kind, body) = match entry {
            Entry::Fill { word, .. } => match pack_fill(word) {
                Some(body) => (KIND_FILL, body),
                None => return None,
            },
            Entry::Ref { base, crc, .. } => {
                let (number, reference) = match base {
                    BaseId::Template(ordinal) => (ordinal, 0),
                    BaseId::Reference(id) => (id, 1),
                };
                if number as u64 > mask(BASE_BITS) || crc as u64 > mask(REF_CRC_BITS) {
                    return None;
                }
                let base = number as u64 | (reference << BASE_BITS);
                (KIND_REF, base | ((crc as u64) << (BASE_BITS + 1)))
            }
            Entry::Payload {
                place,
                provisional: false,
                ..
            } => (KIND_PAYLOAD, place.to_bits()),
            Entry::Payload {
                place,
                provisional: true,
                ..
            } => (KIND_PROVISIONAL, place.to_bits()),
        };
        let owner = entry.owner().0 as u64;
        match NonZeroU64::new((body << BODY_SHIFT) | (owner << KIND_BITS) | kind) {
            Some(bits) => Some(Self(bits)),
            None => None,
        }
    }

    /// The entry that was packed.
    pub const fn unpack(self) -> Entry {
        let owner = self.owner();
        let body = self.0.get() >> BODY_SHIFT;
        match self.0.get() & mask(KIND_BITS) {
            KIND_FILL => Entry::Fill {
                owner,
                word: unpack_fill(body),
            },
            KIND_REF => {
                let number = (body & mask(BASE_BITS)) as u32;
                Entry::Ref {
                    owner,
                    base: if (body >> BASE_BITS) & 1 == 0 {
                        BaseId::Template(number)
                    } else {
                        BaseId::Reference(number)
                    },
                    crc: (body >> (BASE_BITS + 1)) as u32,
                }
            }
            kind => Entry::Payload {
                owner,
                place: Place::from_bits(body),
                provisional: kind == KIND_PROVISIONAL,
            },
        }
    }

    /// Sandbox that stored the page.
    pub const fn owner(self) -> Owner {
        Owner(((self.0.get() >> KIND_BITS) & mask(OWNER_BITS)) as u16)
    }

    pub(super) const fn to_bits(self) -> u64 {
        self.0.get()
    }

    pub(super) const fn from_bits(bits: u64) -> Option<Self> {
        match NonZeroU64::new(bits) {
            Some(bits) => Some(Self(bits)),
            None => None,
        }
    }
}

// Forms of a fill word: which 48 of its 64 bits carry the information.
/// Sign-extended low 48 bits: small numbers of either sign, user and kernel pointers.
const FILL_SIGNED: u64 = 0;
/// High 48 bits over zeros: floating-point constants.
const FILL_HIGH: u64 = 1;
/// Low 32 bits, twice: repeated bytes, 16-bit and 32-bit values.
const FILL_TWICE: u64 = 2;

const fn pack_fill(word: u64) -> Option<u64> {
    let low = word & mask(FILL_BITS);
    if sign_extend(low) == word {
        Some((FILL_SIGNED << FILL_BITS) | low)
    } else if word & 0xffff == 0 {
        Some((FILL_HIGH << FILL_BITS) | (word >> 16))
    } else if word >> 32 == word & mask(32) {
        Some((FILL_TWICE << FILL_BITS) | word & mask(32))
    } else {
        None
    }
}

const fn unpack_fill(body: u64) -> u64 {
    let value = body & mask(FILL_BITS);
    match body >> FILL_BITS {
        FILL_SIGNED => sign_extend(value),
        FILL_HIGH => value << 16,
        _ => (value << 32) | value & mask(32),
    }
}

const fn sign_extend(value: u64) -> u64 {
    (((value << 16) as i64) >> 16) as u64
}
