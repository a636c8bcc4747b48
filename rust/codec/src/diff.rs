// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Which words of a page differ from a base.

use super::words::{load, WORD, WORDS};
use super::Page;

const GROUP: usize = 64;
const LINE: usize = 64;

/// One bit for each word of a page: set where the word differs.
#[derive(Clone, Copy)]
pub(super) struct Changed {
    groups: [u64; WORDS / GROUP],
    count: u32,
}

impl Changed {
    /// Compares two pages.
    #[inline]
    pub(super) fn between(page: &Page, base: &Page) -> Self {
        let mut groups = [0; WORDS / GROUP];
        let mut count = 0u32;
        for ((bits, page), base) in groups
            .iter_mut()
            .zip(page.chunks_exact(GROUP * WORD))
            .zip(base.chunks_exact(GROUP * WORD))
        {
            *bits = compare_group(page, base);
            count = count.wrapping_add(bits.count_ones());
        }
        Self { groups, count }
    }

    /// Number of words that differ.
    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// The positions of the words that differ, ascending.
    #[inline(always)]
    pub(super) fn words(&self) -> ChangedWords<'_> {
        ChangedWords {
            groups: self.groups.iter(),
            // The first group is number 0.
            offset: 0usize.wrapping_sub(GROUP),
            bits: 0,
        }
    }
}

/// Iterator over the positions of changed words.
pub(super) struct ChangedWords<'a> {
    groups: core::slice::Iter<'a, u64>,
    offset: usize,
    bits: u64,
}

impl Iterator for ChangedWords<'_> {
    type Item = usize;

    #[inline(always)]
    fn next(&mut self) -> Option<usize> {
        while self.bits == 0 {
            self.bits = *self.groups.next()?;
            self.offset = self.offset.wrapping_add(GROUP);
        }
        let low = self.bits.trailing_zeros() as usize;
        self.bits &= self.bits.wrapping_sub(1);
        Some(self.offset.wrapping_add(low))
    }
}

/// Compares 64 words, by cache lines: most lines of most pages are equal.
#[inline(always)]
fn compare_group(page: &[u8], base: &[u8]) -> u64 {
    let mut bits = 0u64;
    for (page, base) in page.chunks_exact(LINE).zip(base.chunks_exact(LINE)) {
        bits >>= LINE / WORD;
        let mut any = 0;
        for (page, base) in page.chunks_exact(WORD).zip(base.chunks_exact(WORD)) {
            any |= load(page, 0) ^ load(base, 0);
        }
        if any != 0 {
            for (word, (page, base)) in page
                .chunks_exact(WORD)
                .zip(base.chunks_exact(WORD))
                .enumerate()
            {
                let differs = load(page, 0) != load(base, 0);
                bits |= u64::from(differs) << (GROUP - LINE / WORD).wrapping_add(word);
            }
        }
    }
    bits
}
