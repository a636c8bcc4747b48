// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Pages and streams as little-endian 8-byte words, without panics.

use super::{Page, PAGE_SIZE};

/// Bytes in a word.
pub(super) const WORD: usize = 8;

/// Words in a page.
pub(super) const WORDS: usize = PAGE_SIZE / WORD;

/// The word that starts at byte `at`; 0 when that is past the end.
#[inline(always)]
pub(super) fn load(bytes: &[u8], at: usize) -> u64 {
    match bytes.get(at..).and_then(|rest| rest.first_chunk::<WORD>()) {
        Some(word) => u64::from_le_bytes(*word),
        None => 0,
    }
}

/// Stores a word at byte `at`; false when it does not fit.
#[inline(always)]
pub(super) fn store(bytes: &mut [u8], at: usize, word: u64) -> bool {
    match bytes
        .get_mut(at..)
        .and_then(|rest| rest.first_chunk_mut::<WORD>())
    {
        Some(place) => {
            *place = word.to_le_bytes();
            true
        }
        None => false,
    }
}

/// Fills a page with a word.
pub(super) fn fill(page: &mut Page, word: u64) {
    let bytes = word.to_le_bytes();
    for place in page.chunks_exact_mut(WORD) {
        place.copy_from_slice(&bytes);
    }
}

/// The word that the page repeats, if it does.
pub(super) fn repeated(page: &Page) -> Option<u64> {
    let first = load(page, 0);
    // Almost every page that is no fill page fails at once.
    if load(page, WORD) != first || load(page, PAGE_SIZE - WORD) != first {
        return None;
    }
    page.chunks_exact(WORD)
        .all(|word| load(word, 0) == first)
        .then_some(first)
}
