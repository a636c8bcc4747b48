// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Bringing pages back.

use super::payload::{body, padded_block, parse, DecodeError, Format, Header, Representation};
use super::{delta, words, Backend, Page, Scratch, PAGE_SIZE};

/// Decodes a payload that an [`Encoder`](super::Encoder) finished.
///
/// `payload` is all of it, padding included. `base` is the page that [`header`](super::header) says
/// it needs, if it needs one. The checksum of the page is checked.
///
/// # Errors
///
/// Any [`DecodeError`]. `out` then holds arbitrary bytes that nobody may see.
pub fn decode<B: Backend>(
    payload: &[u8],
    base: Option<&Page>,
    scratch: &mut Scratch,
    backend: &mut B,
    out: &mut Page,
) -> Result<Representation, DecodeError> {
    let header = decode_unchecked(payload, base, scratch, backend, out)?;
    check(&header, backend, out)
}

/// Decodes as [`decode`] does, without a look at the checksum: for a page that is only the base of another
/// one, whose own checksum is then checked.
///
/// # Errors
///
/// As for [`decode`], but that wrong bytes may pass.
pub fn decode_unchecked<B: Backend>(
    payload: &[u8],
    base: Option<&Page>,
    scratch: &mut Scratch,
    backend: &mut B,
    out: &mut Page,
) -> Result<Header, DecodeError> {
    let (header, format) = parse(payload)?;
    let body = body(payload, &header)?;
    match format {
        Format::Fill => {
            let word = <[u8; 8]>::try_from(body).map_err(|_| DecodeError::Truncated)?;
            words::fill(out, u64::from_le_bytes(word));
        }
        Format::DeltaTemplate
        | Format::DeltaReference
        | Format::DeltaZstdTemplate
        | Format::DeltaZstdReference => {
            *out = *base.ok_or(DecodeError::NoBase)?;
            change(format, body, scratch, backend, out)?;
        }
        Format::PrefixTemplate | Format::PrefixReference => {
            let base = base.ok_or(DecodeError::NoBase)?;
            whole(backend.decompress(base, body, out))?;
        }
        Format::Zstd => whole(backend.decompress(&[], body, out))?,
        Format::Padded => {
            let block = padded_block(payload, &header)?;
            whole(backend.decompress(&[], block, out))?;
        }
        Format::Dict => return Err(DecodeError::NoDictionary),
    }
    Ok(header)
}

/// Decodes a payload of changed words ([`Representation::Delta`] or [`Representation::DeltaZstd`]) into
/// `page`, which holds its base. The checksum is checked.
///
/// # Errors
///
/// Any [`DecodeError`], [`DecodeError::NoBase`] for another representation. `page` then holds arbitrary
/// bytes that nobody may see.
pub fn decode_onto<B: Backend>(
    payload: &[u8],
    scratch: &mut Scratch,
    backend: &mut B,
    page: &mut Page,
) -> Result<Representation, DecodeError> {
    let (header, format) = parse(payload)?;
    change(format, body(payload, &header)?, scratch, backend, page)?;
    check(&header, backend, page)
}

/// Changes the words of a page as the body of a format says.
fn change<B: Backend>(
    format: Format,
    body: &[u8],
    scratch: &mut Scratch,
    backend: &mut B,
    page: &mut Page,
) -> Result<(), DecodeError> {
    match format {
        Format::DeltaTemplate | Format::DeltaReference => delta::apply_joined(body, page),
        Format::DeltaZstdTemplate | Format::DeltaZstdReference => {
            let stream = backend
                .decompress(&[], body, &mut scratch.stream)
                .and_then(|len| scratch.stream.get(..len))
                .ok_or(DecodeError::Zstd)?;
            delta::apply_split(stream, page)
        }
        _ => return Err(DecodeError::NoBase),
    }
    .ok_or(DecodeError::Delta)
}

/// Decodes a payload that needs a [dictionary](Header::dictionary). The checksum of the page is checked.
///
/// # Errors
///
/// As for [`decode`].
pub fn decode_dictionary<B: Backend>(
    payload: &[u8],
    dictionary: &B::Dictionary,
    backend: &mut B,
    out: &mut Page,
) -> Result<Representation, DecodeError> {
    let header = decode_dictionary_unchecked(payload, dictionary, backend, out)?;
    check(&header, backend, out)
}

/// Decodes as [`decode_dictionary`] does, for what [`decode_unchecked`] is for.
///
/// # Errors
///
/// As for [`decode_unchecked`].
pub fn decode_dictionary_unchecked<B: Backend>(
    payload: &[u8],
    dictionary: &B::Dictionary,
    backend: &mut B,
    out: &mut Page,
) -> Result<Header, DecodeError> {
    let (header, format) = parse(payload)?;
    if format != Format::Dict {
        return Err(DecodeError::Header);
    }
    let body = body(payload, &header)?;
    whole(backend.decompress_with(dictionary, body, out))?;
    Ok(header)
}

fn check<B: Backend>(
    header: &Header,
    backend: &mut B,
    out: &Page,
) -> Result<Representation, DecodeError> {
    if backend.crc32c(out) != header.crc {
        return Err(DecodeError::Checksum);
    }
    Ok(header.representation)
}

/// Whether zstd brought back a whole page.
fn whole(len: Option<usize>) -> Result<(), DecodeError> {
    match len {
        Some(PAGE_SIZE) => Ok(()),
        _ => Err(DecodeError::Zstd),
    }
}

/// Decodes a page that repeats one word.
pub fn decode_fill(word: u64, out: &mut Page) {
    words::fill(out, word);
}

/// Decodes a page that equals `base`. `crc` is the low `crc_bits` bits (at most 32) of its CRC-32C.
///
/// # Errors
///
/// As for [`check_ref`].
pub fn decode_ref<B: Backend>(
    base: &Page,
    crc: u32,
    crc_bits: u32,
    backend: &mut B,
    out: &mut Page,
) -> Result<(), DecodeError> {
    *out = *base;
    check_ref(backend.crc32c(out), crc, crc_bits)
}

/// Checks a page that equals a base: `found` is the CRC-32C of the base, `crc` the low `crc_bits` bits (at
/// most 32) of the page's.
///
/// # Errors
///
/// [`DecodeError::Checksum`] when the base is not the page that was encoded.
pub fn check_ref(found: u32, crc: u32, crc_bits: u32) -> Result<(), DecodeError> {
    let mask = match 1u32.checked_shl(crc_bits) {
        Some(limit) => limit.wrapping_sub(1),
        None => u32::MAX,
    };
    if (found ^ crc) & mask != 0 {
        return Err(DecodeError::Checksum);
    }
    Ok(())
}
