// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The frame around a payload:
//!
//! ```text
//! 4 B   CRC-32C of the page
//! 2 B   12 bits length of the payload, these 7 bytes included; 4 bits format
//! 1 B   check of the 6 bytes before
//! ...   body
//! ```
//!
//! The check is there because the length is used before the checksum of the page can be: whoever
//! reads a payload out of an allocator must not read past its end because a bit flipped.
//!
//! A format number names a representation *and* the version of its body. A number that was once
//! given keeps its meaning; a change of a body takes a new number.

use super::PAGE_SIZE;

/// Version of the set of body formats that the encoder writes.
pub const PAYLOAD_VERSION: u32 = 1;

/// Bytes of a payload before its body.
pub const HEADER_LEN: usize = 7;

/// Longest payload in bytes.
pub const MAX_PAYLOAD: usize = PAGE_SIZE - 8;

const LEN_BITS: u32 = 12;
const LEN_MASK: u16 = (1 << LEN_BITS) - 1;

const _: () = assert!(MAX_PAYLOAD <= LEN_MASK as usize);

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
}

/// Body formats. Never reuse a number; 0 stays unused, so that an all-zero payload is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Format {
    /// The word.
    Fill = 1,
    /// Ordinal, then a change stream (delta.rs).
    Delta = 2,
    /// Ordinal, then a split change stream as a zstd frame without its magic number (zstd.rs).
    DeltaZstd = 3,
    /// The page as a zstd frame without the seven bytes that start every frame of a page.
    Zstd = 4,
    /// The page as a zstd frame whose start differs.
    ZstdFrame = 5,
}

impl Format {
    const fn from_number(number: u16) -> Option<Self> {
        Some(match number {
            1 => Self::Fill,
            2 => Self::Delta,
            3 => Self::DeltaZstd,
            4 => Self::Zstd,
            5 => Self::ZstdFrame,
            _ => return None,
        })
    }

    pub(super) const fn representation(self) -> Representation {
        match self {
            Self::Fill => Representation::Fill,
            Self::Delta => Representation::Delta,
            Self::DeltaZstd => Representation::DeltaZstd,
            Self::Zstd | Self::ZstdFrame => Representation::Zstd,
        }
    }
}

/// Why a payload was not decoded. The page buffer then holds arbitrary bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// Shorter than its header says, or than a header.
    Truncated,
    /// Unknown format number, or an impossible length.
    Header,
    /// The base that the payload names does not exist.
    NoBase,
    /// The change stream is malformed.
    Delta,
    /// zstd refused its frame, or the content has the wrong length.
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
            Self::Delta => "change stream is malformed",
            Self::Zstd => "zstd frame is malformed",
            Self::Checksum => "page has the wrong checksum",
        })
    }
}

/// What the first [`HEADER_LEN`] bytes of a payload say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// CRC-32C of the page.
    pub crc: u32,
    /// Length of the payload in bytes, header included; [`HEADER_LEN`] to [`MAX_PAYLOAD`].
    pub len: u16,
    /// How the page is encoded.
    pub representation: Representation,
}

/// Reads the header of a payload, of which it needs the first [`HEADER_LEN`] bytes only.
///
/// # Errors
///
/// [`DecodeError::Truncated`] with fewer bytes, [`DecodeError::Header`] when they make no sense.
pub fn header(payload: &[u8]) -> Result<Header, DecodeError> {
    parse(payload).map(|(header, _)| header)
}

/// The check byte of a header: the top byte of a product with an odd number, into which every bit
/// of the header goes.
fn check(crc: u32, packed: u16) -> u8 {
    let fields = (u64::from(packed) << 32) | u64::from(crc);
    let product = fields.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    product.to_be_bytes()[0]
}

pub(super) fn parse(payload: &[u8]) -> Result<(Header, Format), DecodeError> {
    let Some(&[c0, c1, c2, c3, l0, l1, checked]) = payload.first_chunk::<HEADER_LEN>() else {
        return Err(DecodeError::Truncated);
    };
    let crc = u32::from_le_bytes([c0, c1, c2, c3]);
    let packed = u16::from_le_bytes([l0, l1]);
    if checked != check(crc, packed) {
        return Err(DecodeError::Header);
    }
    let len = packed & LEN_MASK;
    let format = Format::from_number(packed >> LEN_BITS).ok_or(DecodeError::Header)?;
    if (len as usize) < HEADER_LEN || len as usize > MAX_PAYLOAD {
        return Err(DecodeError::Header);
    }
    let header = Header {
        crc,
        len,
        representation: format.representation(),
    };
    Ok((header, format))
}

/// Writes the header of a payload of `len` bytes in all. `None` when `len` is out of range.
pub(super) fn write_header(
    out: &mut [u8; MAX_PAYLOAD],
    crc: u32,
    format: Format,
    len: usize,
) -> Option<()> {
    if !(HEADER_LEN..=MAX_PAYLOAD).contains(&len) {
        return None;
    }
    let packed = len as u16 | ((format as u16) << LEN_BITS);
    let [c0, c1, c2, c3] = crc.to_le_bytes();
    let [l0, l1] = packed.to_le_bytes();
    *out.first_chunk_mut::<HEADER_LEN>()? = [c0, c1, c2, c3, l0, l1, check(crc, packed)];
    Some(())
}
