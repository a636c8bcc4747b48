// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Choosing the representation of a page.

use super::decode::ORDINAL_LEN;
use super::diff::Changed;
use super::payload::{write_header, Format, Representation, HEADER_LEN, MAX_PAYLOAD};
use super::{delta, words, zstd, Backend, Base, Page, Scratch, MAX_ORDINAL};

/// A delta whose payload is at most this long is final: a second stage would save little.
const DELTA_FINAL: usize = 192;

/// With more changed words than this, the page by itself is as small as a compressed delta.
const MAX_CHANGED: u32 = 384;

/// A compressed delta whose payload is at most this long is final.
const DELTA_ZSTD_FINAL: usize = 768;

/// What [`encode`] made of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoded {
    /// The page repeats this word; nothing was written.
    Fill(u64),
    /// The page equals a base; nothing was written.
    Ref {
        /// Ordinal of the base.
        ordinal: u32,
        /// CRC-32C of the page.
        crc: u32,
    },
    /// A payload was written to the start of the output.
    Payload {
        /// How the page is encoded.
        representation: Representation,
        /// Length of the payload in bytes, at most [`MAX_PAYLOAD`].
        len: usize,
    },
}

/// Encodes a page in the way that costs least.
///
/// `bases` are the pages that may resemble it, most likely first; those with an ordinal from
/// [`MAX_ORDINAL`] on are ignored. `cost` gives the true cost in bytes of a payload of some length
/// and must not decrease with the length; a payload that costs more than `limit` is not worth
/// storing. The page must not change during the call: copy it first.
///
/// Returns `None` when no representation is within `limit`.
pub fn encode<B: Backend>(
    page: &Page,
    bases: &[Base<'_>],
    cost: &impl Fn(usize) -> usize,
    limit: usize,
    scratch: &mut Scratch,
    backend: &mut B,
    out: &mut [u8; MAX_PAYLOAD],
) -> Option<Encoded> {
    if let Some(word) = words::repeated(page) {
        return Some(Encoded::Fill(word));
    }
    let nearest = nearest(page, bases);
    let crc = backend.crc32c(page);
    let mut best: Option<Candidate> = None;
    if let Some((base, changed)) = &nearest {
        if changed.count() == 0 {
            return Some(Encoded::Ref {
                ordinal: base.ordinal,
                crc,
            });
        }
        if changed.count() <= MAX_CHANGED {
            best = write_delta(page, base, changed, out);
            if is_longer(&best, DELTA_FINAL) {
                try_delta_zstd(page, base, changed, cost, scratch, backend, out, &mut best);
            }
        }
    }
    if is_longer(&best, DELTA_ZSTD_FINAL) {
        try_zstd(page, cost, scratch, backend, out, &mut best);
    }
    let best = best?;
    if cost(best.len) > limit {
        return None;
    }
    write_header(out, crc, best.format, best.len)?;
    Some(Encoded::Payload {
        representation: best.format.representation(),
        len: best.len,
    })
}

/// Encodes a page that repeats a word as a payload, for where the word itself cannot be kept.
///
/// Returns the length of the payload; `None` when the page does not repeat a word.
pub fn encode_fill<B: Backend>(
    page: &Page,
    backend: &mut B,
    out: &mut [u8; MAX_PAYLOAD],
) -> Option<usize> {
    let word = words::repeated(page)?;
    let body = put(out, HEADER_LEN, &word.to_le_bytes())?;
    write_header(out, backend.crc32c(page), Format::Fill, body)?;
    Some(body)
}

/// A body in the output buffer: its format, and the length of the payload.
#[derive(Clone, Copy)]
struct Candidate {
    format: Format,
    len: usize,
}

/// The base from which the fewest words differ.
#[inline]
fn nearest<'b, 'a>(page: &Page, bases: &'b [Base<'a>]) -> Option<(&'b Base<'a>, Changed)> {
    let mut best: Option<(&Base<'_>, Changed)> = None;
    for base in bases.iter().filter(|base| base.ordinal < MAX_ORDINAL) {
        let changed = Changed::between(page, base.page);
        if best
            .as_ref()
            .is_none_or(|(_, least)| changed.count() < least.count())
        {
            let done = changed.count() == 0;
            best = Some((base, changed));
            if done {
                break;
            }
        }
    }
    best
}

#[inline]
fn write_delta(
    page: &Page,
    base: &Base<'_>,
    changed: &Changed,
    out: &mut [u8; MAX_PAYLOAD],
) -> Option<Candidate> {
    let at = put_ordinal(out, base.ordinal)?;
    let stream = delta::encode_joined(page, base.page, changed, out.get_mut(at..)?)?;
    Some(Candidate {
        format: Format::Delta,
        len: at.wrapping_add(stream),
    })
}

/// Replaces `best` by a compressed delta if that costs less.
#[expect(
    clippy::too_many_arguments,
    reason = "one call site, all of them plain"
)]
#[inline(never)]
fn try_delta_zstd<B: Backend>(
    page: &Page,
    base: &Base<'_>,
    changed: &Changed,
    cost: &impl Fn(usize) -> usize,
    scratch: &mut Scratch,
    backend: &mut B,
    out: &mut [u8; MAX_PAYLOAD],
    best: &mut Option<Candidate>,
) -> Option<()> {
    let len = delta::encode_split(page, base.page, changed, &mut scratch.stream)?;
    let stream = scratch.stream.get(..len)?;
    let frame = zstd::compress(stream, &mut scratch.frame, backend)?;
    let body = frame.strip_prefix(zstd::MAGIC)?;
    let at = HEADER_LEN.wrapping_add(ORDINAL_LEN);
    let candidate = Candidate {
        format: Format::DeltaZstd,
        len: at.wrapping_add(body.len()),
    };
    if pays(candidate, best, cost) {
        put_ordinal(out, base.ordinal)?;
        put(out, at, body)?;
        *best = Some(candidate);
    }
    Some(())
}

/// Replaces `best` by the compressed page if that costs less.
#[inline(never)]
fn try_zstd<B: Backend>(
    page: &Page,
    cost: &impl Fn(usize) -> usize,
    scratch: &mut Scratch,
    backend: &mut B,
    out: &mut [u8; MAX_PAYLOAD],
    best: &mut Option<Candidate>,
) -> Option<()> {
    let frame = zstd::compress(page, &mut scratch.frame, backend)?;
    let (format, body) = match frame.strip_prefix(zstd::PAGE_START) {
        Some(body) => (Format::Zstd, body),
        None => (Format::ZstdFrame, frame),
    };
    let candidate = Candidate {
        format,
        len: HEADER_LEN.wrapping_add(body.len()),
    };
    if pays(candidate, best, cost) {
        put(out, HEADER_LEN, body)?;
        *best = Some(candidate);
    }
    Some(())
}

/// Whether the best so far is longer than `len`, or nothing.
fn is_longer(best: &Option<Candidate>, len: usize) -> bool {
    best.as_ref().is_none_or(|best| best.len > len)
}

/// Whether a candidate fits and costs less than the best so far.
fn pays(new: Candidate, best: &Option<Candidate>, cost: &impl Fn(usize) -> usize) -> bool {
    new.len <= MAX_PAYLOAD
        && best
            .as_ref()
            .is_none_or(|best| cost(new.len) < cost(best.len))
}

/// Writes the ordinal of a base where the body begins. Returns the position after it.
fn put_ordinal(out: &mut [u8; MAX_PAYLOAD], ordinal: u32) -> Option<usize> {
    let [o0, o1, o2, _] = ordinal.to_le_bytes();
    put(out, HEADER_LEN, &[o0, o1, o2])
}

/// Copies `bytes` to position `at`. Returns the position after them, `None` when they do not fit.
fn put(out: &mut [u8; MAX_PAYLOAD], at: usize, bytes: &[u8]) -> Option<usize> {
    let end = at.checked_add(bytes.len())?;
    out.get_mut(at..end)?.copy_from_slice(bytes);
    Some(end)
}
