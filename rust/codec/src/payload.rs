// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The frame around a payload:
//!
//! ```text
//! 4 B   CRC-32C of the page
//! 1 B   5 bits format (high), 3 bits padding
//! ...   body
//! ...   padding: as many zero bytes as the header says, up to a multiple of 8
//! ```
//!
//! Its length is not in it: a store hands out memory in units of [`UNIT`] bytes and knows how many
//! of them a payload has.
//!
//! The body of a format with a dictionary begins with the dictionary's number, 1 byte, that of a
//! format with a base with the base's number, 3 bytes. Whether that is the
//! number of a template page or of a reference page is in the format.
//!
//! The body of a padded page begins with the length of what encodes it, 2 bytes, and is filled up with
//! zeros: such a payload is [`PADDED_LEN`] bytes long whatever the page holds.
//!
//! A format number names a representation *and* the version of its body. A number that was once
//! given keeps its meaning; a change of a body takes a new number.

use super::{BaseId, PAGE_SIZE};

/// Version of the set of body formats that the encoder writes.
pub const PAYLOAD_VERSION: u32 = 5;

/// Payloads are padded to a multiple of so many bytes.
pub const UNIT: usize = 8;

/// Bytes of a payload before its body.
pub const HEADER_LEN: usize = 5;

/// Longest payload in bytes, padding included.
pub const MAX_PAYLOAD: usize = PAGE_SIZE - UNIT;

/// Bytes of every padded payload. Two of them fill a page of the store, so none is ever split.
pub const PADDED_LEN: usize = 2040;

/// Bytes of the length in the body of a padded payload.
const LENGTH_LEN: usize = 2;

/// Longest zstd block of a padded payload.
pub(super) const PADDED_ROOM: usize = PADDED_LEN - HEADER_LEN - LENGTH_LEN;

/// Bytes of the number of a base.
pub(super) const BASE_LEN: usize = 3;

/// Bytes of the number of a dictionary.
pub(super) const DICTIONARY_LEN: usize = 1;

const PAD_BITS: u32 = 3;
const PAD_MASK: u8 = (1 << PAD_BITS) - 1;

const _: () = assert!(UNIT == 1 << PAD_BITS);
const _: () = assert!(MAX_PAYLOAD % UNIT == 0);
const _: () = assert!(PADDED_LEN % UNIT == 0 && PADDED_LEN <= MAX_PAYLOAD);
const _: () = assert!(PADDED_ROOM <= u16::MAX as usize);
// What header() reads.
const _: () = assert!(HEADER_LEN + BASE_LEN <= UNIT);

/// How a page is encoded. Same numbers as in the control interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Representation {
    /// One 8-byte word, repeated.
    Fill = 0,
    /// Equal to a base.
    Ref = 1,
    /// Changed words against a base.
    Delta = 2,
    /// The same, compressed with zstd.
    DeltaZstd = 3,
    /// The page by itself, compressed with zstd.
    Zstd = 4,
    /// The page compressed with zstd, with a base as what came before it.
    Prefix = 5,
    /// The page compressed with zstd and a dictionary.
    Dict = 6,
    /// The page by itself, compressed with zstd and filled up to [`PADDED_LEN`] bytes.
    Padded = 7,
}

/// Body formats. Never reuse a number: 1 to 5 had other headers and bodies, 19 was a block that went on
/// after its base's own. 0, 11, 13, 20, 21 and 31 stay unused, so that memory of zeros, of the kernel's
/// poison (0x5a, 0x6b, 0xa5, 0xaa) or of ones is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Format {
    /// The word.
    Fill = 8,
    /// Base, then a change stream (delta.rs).
    DeltaTemplate = 9,
    /// The same.
    DeltaReference = 10,
    /// Base, then a split change stream (delta.rs) as one zstd block without frame or prefix.
    DeltaZstdTemplate = 14,
    /// The same.
    DeltaZstdReference = 15,
    /// Base, then the page as one zstd block without frame, the base being its prefix.
    PrefixTemplate = 16,
    /// The same.
    PrefixReference = 17,
    /// The page as one zstd block without frame or prefix.
    Zstd = 18,
    /// Number of a dictionary, 1 byte, then the page as one zstd block without frame.
    Dict = 22,
    /// Length, 2 bytes, then the page as one zstd block of so many bytes without frame or prefix, then zeros.
    Padded = 23,
}

/// Which base a format has.
#[derive(Clone, Copy)]
enum BaseKind {
    None,
    Template,
    Reference,
}

impl Format {
    const fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            8 => Self::Fill,
            9 => Self::DeltaTemplate,
            10 => Self::DeltaReference,
            14 => Self::DeltaZstdTemplate,
            15 => Self::DeltaZstdReference,
            16 => Self::PrefixTemplate,
            17 => Self::PrefixReference,
            18 => Self::Zstd,
            22 => Self::Dict,
            23 => Self::Padded,
            _ => return None,
        })
    }

    pub(super) const fn delta(base: BaseId) -> Self {
        match base {
            BaseId::Template(_) => Self::DeltaTemplate,
            BaseId::Reference(_) => Self::DeltaReference,
        }
    }

    pub(super) const fn delta_zstd(base: BaseId) -> Self {
        match base {
            BaseId::Template(_) => Self::DeltaZstdTemplate,
            BaseId::Reference(_) => Self::DeltaZstdReference,
        }
    }

    pub(super) const fn prefix(base: BaseId) -> Self {
        match base {
            BaseId::Template(_) => Self::PrefixTemplate,
            BaseId::Reference(_) => Self::PrefixReference,
        }
    }

    pub(super) const fn representation(self) -> Representation {
        match self {
            Self::Fill => Representation::Fill,
            Self::DeltaTemplate | Self::DeltaReference => Representation::Delta,
            Self::DeltaZstdTemplate | Self::DeltaZstdReference => Representation::DeltaZstd,
            Self::PrefixTemplate | Self::PrefixReference => Representation::Prefix,
            Self::Zstd => Representation::Zstd,
            Self::Dict => Representation::Dict,
            Self::Padded => Representation::Padded,
        }
    }

    const fn base_kind(self) -> BaseKind {
        match self {
            Self::Fill | Self::Zstd | Self::Dict | Self::Padded => BaseKind::None,
            Self::DeltaTemplate | Self::DeltaZstdTemplate | Self::PrefixTemplate => {
                BaseKind::Template
            }
            Self::DeltaReference | Self::DeltaZstdReference | Self::PrefixReference => {
                BaseKind::Reference
            }
        }
    }
}

/// Why a payload was not decoded. The page buffer then holds arbitrary bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// Shorter than its header says, or than a header.
    Truncated,
    /// Unknown format number.
    Header,
    /// The payload has a base and none was given.
    NoBase,
    /// The payload has a dictionary and none was given.
    NoDictionary,
    /// The length in a padded payload, or the payload's own, is wrong, or what fills it up is not zero.
    Padding,
    /// The change stream is malformed.
    Delta,
    /// zstd refused its block, or the content has the wrong length.
    Zstd,
    /// The page came out with another checksum.
    Checksum,
}

impl core::fmt::Display for DecodeError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Truncated => "payload is truncated",
            Self::Header => "payload header is invalid",
            Self::NoBase => "base page does not exist",
            Self::NoDictionary => "dictionary does not exist",
            Self::Padding => "padded payload is malformed",
            Self::Delta => "change stream is malformed",
            Self::Zstd => "zstd block is malformed",
            Self::Checksum => "page has the wrong checksum",
        })
    }
}

/// What the first [`UNIT`] bytes of a payload say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// CRC-32C of the page.
    pub crc: u32,
    /// How the page is encoded; never [`Representation::Ref`], which has no payload.
    pub representation: Representation,
    /// The page that [`decode`](super::decode) needs beside the payload.
    pub base: Option<BaseId>,
    /// Bytes of padding at the end of the payload, less than [`UNIT`].
    pub padding: u8,
    /// The dictionary that [`decode_dictionary`](super::decode_dictionary) needs.
    pub dictionary: Option<u8>,
}

impl Header {
    /// Bytes of a payload before what encodes the page: header, and number of the base or the
    /// dictionary.
    pub const fn body_at(&self) -> usize {
        match (self.base, self.dictionary) {
            (Some(_), _) => HEADER_LEN + BASE_LEN,
            (None, Some(_)) => HEADER_LEN + DICTIONARY_LEN,
            (None, None) => HEADER_LEN,
        }
    }
}

/// Reads the header of a payload, of which it needs the first [`UNIT`] bytes only.
///
/// # Errors
///
/// [`DecodeError::Truncated`] with fewer bytes, [`DecodeError::Header`] when they make no sense.
pub fn header(start: &[u8]) -> Result<Header, DecodeError> {
    parse(start).map(|(header, _)| header)
}

pub(super) fn parse(start: &[u8]) -> Result<(Header, Format), DecodeError> {
    let Some(&[c0, c1, c2, c3, packed, b0, b1, b2]) = start.first_chunk::<UNIT>() else {
        return Err(DecodeError::Truncated);
    };
    let format = Format::from_number(packed >> PAD_BITS).ok_or(DecodeError::Header)?;
    let number = u32::from_le_bytes([b0, b1, b2, 0]);
    let header = Header {
        crc: u32::from_le_bytes([c0, c1, c2, c3]),
        representation: format.representation(),
        base: match format.base_kind() {
            BaseKind::None => None,
            BaseKind::Template => Some(BaseId::Template(number)),
            BaseKind::Reference => Some(BaseId::Reference(number)),
        },
        padding: packed & PAD_MASK,
        dictionary: (format == Format::Dict).then_some(b0),
    };
    Ok((header, format))
}

/// The body of a payload without the base's or dictionary's number and the padding.
pub(super) fn body<'p>(payload: &'p [u8], header: &Header) -> Result<&'p [u8], DecodeError> {
    payload
        .len()
        .checked_sub(header.padding.into())
        .and_then(|end| payload.get(header.body_at()..end))
        .ok_or(DecodeError::Truncated)
}

/// Makes the body of a padded payload of a block. False when that is too long.
pub(super) fn write_padded(out: &mut [u8; MAX_PAYLOAD], block: &[u8]) -> bool {
    let Some((length, room)) = out
        .get_mut(HEADER_LEN..PADDED_LEN)
        .and_then(<[u8]>::split_first_chunk_mut::<LENGTH_LEN>)
    else {
        return false;
    };
    let (Ok(len), Some((place, rest))) = (
        u16::try_from(block.len()),
        room.split_at_mut_checked(block.len()),
    ) else {
        return false;
    };
    *length = len.to_le_bytes();
    place.copy_from_slice(block);
    rest.fill(0);
    true
}

/// The block of a padded payload.
pub(super) fn padded_block<'p>(
    payload: &'p [u8],
    header: &Header,
) -> Result<&'p [u8], DecodeError> {
    if payload.len() != PADDED_LEN || header.padding != 0 {
        return Err(DecodeError::Padding);
    }
    let (length, room) = body(payload, header)?
        .split_first_chunk::<LENGTH_LEN>()
        .ok_or(DecodeError::Padding)?;
    let (block, rest) = room
        .split_at_checked(u16::from_le_bytes(*length).into())
        .ok_or(DecodeError::Padding)?;
    match rest.iter().all(|&byte| byte == 0) {
        true => Ok(block),
        false => Err(DecodeError::Padding),
    }
}

/// A length in bytes with padding, at most `UNIT - 1` more. `len` is far below `usize::MAX`.
pub(super) const fn padded(len: usize) -> usize {
    len.wrapping_add(UNIT - 1) & !(UNIT - 1)
}

/// Writes header and padding of a payload of `len` bytes, header included. Returns its length with
/// padding, `None` when it is out of range.
pub(super) fn write_header(
    out: &mut [u8; MAX_PAYLOAD],
    crc: u32,
    format: Format,
    len: usize,
) -> Option<usize> {
    if !(UNIT..=MAX_PAYLOAD).contains(&len) {
        return None;
    }
    let end = padded(len);
    let padding = out.get_mut(len..end)?;
    padding.fill(0);
    let packed = ((format as u8) << PAD_BITS) | padding.len() as u8;
    let [c0, c1, c2, c3] = crc.to_le_bytes();
    *out.first_chunk_mut::<HEADER_LEN>()? = [c0, c1, c2, c3, packed];
    Some(end)
}
