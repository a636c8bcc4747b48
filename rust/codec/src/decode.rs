// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Bringing pages back.

use super::payload::{parse, DecodeError, Format, Representation, HEADER_LEN};
use super::{delta, words, zstd, Backend, Page, Scratch, PAGE_SIZE};

/// Bytes of a base ordinal.
pub(super) const ORDINAL_LEN: usize = 3;

/// Decodes a payload that [`encode`](super::encode) or [`encode_fill`](super::encode_fill) made.
///
/// `payload` may be longer than the payload (allocators round up), not shorter. `base` finds the
/// page that the payload names; it is called at most once. The checksum of the page is always
/// checked.
///
/// # Errors
///
/// Any [`DecodeError`]. `out` then holds arbitrary bytes that nobody may see.
pub fn decode<'a, B: Backend>(
    payload: &[u8],
    base: impl FnOnce(u32) -> Option<&'a Page>,
    scratch: &mut Scratch,
    backend: &mut B,
    out: &mut Page,
) -> Result<Representation, DecodeError> {
    let (header, format) = parse(payload)?;
    let body = payload
        .get(HEADER_LEN..header.len.into())
        .ok_or(DecodeError::Truncated)?;
    match format {
        Format::Fill => {
            let word = <[u8; 8]>::try_from(body).map_err(|_| DecodeError::Header)?;
            words::fill(out, u64::from_le_bytes(word));
        }
        Format::Delta => {
            let stream = copy_base(body, base, out)?;
            delta::apply_joined(stream, out).ok_or(DecodeError::Delta)?;
        }
        Format::DeltaZstd => {
            let frame = copy_base(body, base, out)?;
            let Scratch {
                stream,
                frame: buffer,
            } = scratch;
            let stream = zstd::decompress(zstd::MAGIC, frame, buffer, backend, stream)
                .and_then(|len| stream.get(..len))
                .ok_or(DecodeError::Zstd)?;
            delta::apply_split(stream, out).ok_or(DecodeError::Delta)?;
        }
        Format::Zstd | Format::ZstdFrame => {
            let start = match format {
                Format::Zstd => zstd::PAGE_START,
                _ => &[],
            };
            let len = zstd::decompress(start, body, &mut scratch.frame, backend, out);
            if len != Some(PAGE_SIZE) {
                return Err(DecodeError::Zstd);
            }
        }
    }
    if backend.crc32c(out) != header.crc {
        return Err(DecodeError::Checksum);
    }
    Ok(header.representation)
}

/// Copies the base that a body names to `out` and returns what follows its ordinal.
#[inline]
fn copy_base<'p, 'a>(
    body: &'p [u8],
    base: impl FnOnce(u32) -> Option<&'a Page>,
    out: &mut Page,
) -> Result<&'p [u8], DecodeError> {
    let (&[o0, o1, o2], rest) = body
        .split_first_chunk::<ORDINAL_LEN>()
        .ok_or(DecodeError::Truncated)?;
    let ordinal = u32::from_le_bytes([o0, o1, o2, 0]);
    *out = *base(ordinal).ok_or(DecodeError::NoBase)?;
    Ok(rest)
}

/// Decodes a page that repeats one word.
pub fn decode_fill(word: u64, out: &mut Page) {
    words::fill(out, word);
}

/// Decodes a page that equals `base`. `crc` is the low `crc_bits` bits (at most 32) of its CRC-32C.
///
/// # Errors
///
/// [`DecodeError::Checksum`] when the base is not the page that was encoded.
pub fn decode_ref<B: Backend>(
    base: &Page,
    crc: u32,
    crc_bits: u32,
    backend: &mut B,
    out: &mut Page,
) -> Result<(), DecodeError> {
    *out = *base;
    let mask = match 1u32.checked_shl(crc_bits) {
        Some(limit) => limit.wrapping_sub(1),
        None => u32::MAX,
    };
    if (backend.crc32c(out) ^ crc) & mask != 0 {
        return Err(DecodeError::Checksum);
    }
    Ok(())
}
