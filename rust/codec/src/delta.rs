// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Change streams: the words of a page that differ from its base.
//!
//! A change is a token and 1 to 8 literal bytes, which replace that many bytes of one word. Most
//! changes are pointers and reference counts, of which only the low bytes differ; the token tells
//! which. Tokens have one byte where words change side by side, two where they are apart:
//!
//! ```text
//! 0nnngggg            g words skipped, then the low n+1 bytes of a word
//! 1sssnnng gggggggg   g words skipped (big endian, 9 bits), then n+1 bytes of a word from byte s
//! ```
//!
//! In a *joined* stream each token is followed by its literals. A *split* stream has all tokens
//! first, which zstd likes better, and the length of the tokens (2 bytes) before them.

use super::diff::Changed;
use super::words::{load, store, WORD, WORDS};
use super::Page;

const SHORT_SKIP: usize = 1 << 4;
const LONG: u8 = 0x80;

/// Shortest change in a stream: a token of one byte and one literal byte.
pub(super) const MIN_CHANGE: usize = 2;

/// Bytes of the token length before a split stream.
const SPLIT_HEAD: usize = 2;

/// Longest split stream: every word changed in all its bytes, with the slack of the last store.
pub(super) const MAX_SPLIT: usize = SPLIT_HEAD + WORDS * (1 + WORD) + WORD;

// The nine bits of a long token skip any number of words.
const _: () = assert!(WORDS <= 1 << 9);

/// A part of a word that changed: `len` bytes from byte `start`.
struct Change {
    literal: u64,
    start: u32,
    len: u32,
}

impl Change {
    /// `None` when the words are equal.
    #[inline(always)]
    fn between(page: u64, base: u64) -> Option<Self> {
        let bits = page ^ base;
        if bits == 0 {
            return None;
        }
        let start = bits.trailing_zeros() / 8;
        let end = 8u32.wrapping_sub(bits.leading_zeros() / 8);
        Some(Self {
            literal: page.wrapping_shr(start.wrapping_mul(8)),
            start,
            len: end.wrapping_sub(start),
        })
    }

    /// Applies the change to a word of the base.
    #[inline(always)]
    fn apply(&self, base: u64) -> u64 {
        let shift = self.start.wrapping_mul(8);
        let mask = low_bytes(self.len).wrapping_shl(shift);
        base & !mask | self.literal.wrapping_shl(shift) & mask
    }
}

/// A mask of the low `len` bytes, 1 to 8.
#[inline(always)]
fn low_bytes(len: u32) -> u64 {
    u64::MAX.wrapping_shr(64u32.wrapping_sub(len.wrapping_mul(8)))
}

/// Writes a token at the start of `out`, of which it needs two bytes. Returns its length.
#[inline(always)]
fn write_token(out: &mut [u8], skip: usize, start: u32, len: u32) -> Option<usize> {
    let place = out.first_chunk_mut::<2>()?;
    let len_bits = (len.wrapping_sub(1) & 7) as u8;
    if start == 0 && skip < SHORT_SKIP {
        *place = [(len_bits << 4) | skip as u8, 0];
        Some(1)
    } else {
        let high = ((skip >> 8) & 1) as u8;
        *place = [
            LONG | ((start as u8) << 4) | (len_bits << 1) | high,
            skip as u8,
        ];
        Some(2)
    }
}

/// Reads a token off `tokens`: words skipped, first byte, number of bytes.
#[inline(always)]
fn read_token(tokens: &[u8]) -> Option<(usize, u32, u32, &[u8])> {
    let (&first, rest) = tokens.split_first()?;
    if first & LONG == 0 {
        let len = u32::from(first >> 4).wrapping_add(1);
        Some((usize::from(first & 0x0f), 0, len, rest))
    } else {
        let (&low, rest) = rest.split_first()?;
        let start = u32::from((first >> 4) & 7);
        let len = u32::from((first >> 1) & 7).wrapping_add(1);
        let skip = (usize::from(first & 1) << 8) | usize::from(low);
        Some((skip, start, len, rest))
    }
}

/// Reads `len` literal bytes, 1 to 8, off `literals`.
#[inline(always)]
fn read_literal(literals: &[u8], len: u32) -> Option<(u64, &[u8])> {
    let rest = literals.get(len as usize..)?;
    let literal = match literals.first_chunk::<WORD>() {
        // Bytes beyond `len` are masked off when the change is applied.
        Some(word) => u64::from_le_bytes(*word),
        None => {
            let bytes = literals.iter().take(len as usize);
            bytes.rfold(0, |word, &byte| (word << 8) | u64::from(byte))
        }
    };
    Some((literal, rest))
}

/// Writes the joined stream. Returns its length, `None` when it does not fit with 8 bytes to spare.
#[inline]
pub(super) fn encode_joined(
    page: &Page,
    base: &Page,
    changed: &Changed,
    out: &mut [u8],
) -> Option<usize> {
    let mut at = 0usize;
    let mut next = 0usize;
    for (word, change) in changes(page, base, changed) {
        let skip = word.wrapping_sub(next);
        let token = write_token(out.get_mut(at..)?, skip, change.start, change.len)?;
        at = at.wrapping_add(token);
        if !store(out, at, change.literal) {
            return None;
        }
        at = at.wrapping_add(change.len as usize);
        next = word.wrapping_add(1);
    }
    Some(at)
}

/// Writes the split stream. Returns its length, `None` when it does not fit.
pub(super) fn encode_split(
    page: &Page,
    base: &Page,
    changed: &Changed,
    out: &mut [u8; MAX_SPLIT],
) -> Option<usize> {
    let mut at = SPLIT_HEAD;
    let mut next = 0usize;
    for (word, change) in changes(page, base, changed) {
        let skip = word.wrapping_sub(next);
        let token = write_token(out.get_mut(at..)?, skip, change.start, change.len)?;
        at = at.wrapping_add(token);
        next = word.wrapping_add(1);
    }
    let tokens = u16::try_from(at.wrapping_sub(SPLIT_HEAD)).ok()?;
    *out.first_chunk_mut::<SPLIT_HEAD>()? = tokens.to_le_bytes();
    for (_, change) in changes(page, base, changed) {
        if !store(out, at, change.literal) {
            return None;
        }
        at = at.wrapping_add(change.len as usize);
    }
    Some(at)
}

/// The changed words and what changed in them.
#[inline(always)]
fn changes<'a>(
    page: &'a Page,
    base: &'a Page,
    changed: &'a Changed,
) -> impl Iterator<Item = (usize, Change)> + 'a {
    changed.words().filter_map(|word| {
        let byte = word.wrapping_mul(WORD);
        let change = Change::between(load(page, byte), load(base, byte))?;
        Some((word, change))
    })
}

/// Applies a joined stream to `out`, which holds the base. `None` when the stream is malformed.
#[inline]
pub(super) fn apply_joined(mut stream: &[u8], out: &mut Page) -> Option<()> {
    let mut word = 0usize;
    while !stream.is_empty() {
        let (skip, start, len, rest) = read_token(stream)?;
        let (literal, rest) = read_literal(rest, len)?;
        let change = Change {
            literal,
            start,
            len,
        };
        word = apply(out, word.wrapping_add(skip), &change)?;
        stream = rest;
    }
    Some(())
}

/// Applies a split stream to `out`, which holds the base. `None` when the stream is malformed.
pub(super) fn apply_split(stream: &[u8], out: &mut Page) -> Option<()> {
    let (&head, rest) = stream.split_first_chunk::<SPLIT_HEAD>()?;
    let (mut tokens, mut literals) = rest.split_at_checked(u16::from_le_bytes(head).into())?;
    let mut word = 0usize;
    while !tokens.is_empty() {
        let (skip, start, len, rest) = read_token(tokens)?;
        tokens = rest;
        let (literal, rest) = read_literal(literals, len)?;
        literals = rest;
        let change = Change {
            literal,
            start,
            len,
        };
        word = apply(out, word.wrapping_add(skip), &change)?;
    }
    literals.is_empty().then_some(())
}

/// Applies one change to a word of `out` and returns the position of the next.
#[inline(always)]
fn apply(out: &mut Page, word: usize, change: &Change) -> Option<usize> {
    let place = out
        .get_mut(word.wrapping_mul(WORD)..)?
        .first_chunk_mut::<WORD>()?;
    *place = change.apply(u64::from_le_bytes(*place)).to_le_bytes();
    Some(word.wrapping_add(1))
}
