// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Content sketches: a few numbers by which pages that resemble each other are found, and how much
//! two pages have in common.
//!
//! Every word in the page but zero has a hash. Its top bits put it into one of [`FEATURES`] bins;
//! the feature of a bin is made of the smallest hash in it. So a feature depends on one word only,
//! two pages have it in common about as often as they share words, and where in the page these lie
//! does not matter.

use super::words::{load, WORD, WORDS};
use super::Page;

/// Features of a page.
pub const FEATURES: usize = 4;

/// Features of a page, each in its own position; [`NO_FEATURE`] where there is none.
pub type Sketch = [u32; FEATURES];

/// Stands for a missing feature: the page has no word for that position.
pub const NO_FEATURE: u32 = 0;

/// Odd, of random bits.
const MIX_FIRST: u64 = 0x9e37_79b9_7f4a_7c15;
const MIX_SECOND: u64 = 0xd1b5_4a32_d192_ed03;
const MIX_FEATURE: u64 = 0xf135_7aea_2e62_a9c5;

const BIN_BITS: u32 = FEATURES.trailing_zeros();

const _: () = assert!(FEATURES.is_power_of_two() && FEATURES > 1);

/// Spreads the bits of a word; 0 for 0 only.
#[inline(always)]
fn mix(word: u64) -> u64 {
    let mixed = word.wrapping_mul(MIX_FIRST);
    (mixed ^ (mixed >> 32)).wrapping_mul(MIX_SECOND)
}

/// Makes the sketch of a page.
pub fn sketch(page: &Page) -> Sketch {
    let mut least = [u64::MAX; FEATURES];
    for word in page.chunks_exact(WORD) {
        let hash = mix(load(word, 0));
        if hash == 0 {
            continue;
        }
        let bin = hash.wrapping_shr(64 - BIN_BITS) as usize;
        if let Some(least) = least.get_mut(bin) {
            *least = (*least).min(hash << BIN_BITS);
        }
    }
    least.map(|hash| match hash {
        u64::MAX => NO_FEATURE,
        // The top bits of a least hash are mostly zero: mix again.
        _ => ((hash.wrapping_mul(MIX_FEATURE) >> 32) as u32).max(NO_FEATURE.wrapping_add(1)),
    })
}

/// Bits of a [`Words`] for each word of a page.
const SPREAD: usize = 8;

const SET_BITS: u32 = (SPREAD * WORDS).trailing_zeros();

/// The words of a page, to be looked for in others.
#[derive(Clone)]
pub struct Words([u64; SPREAD * WORDS / 64]);

impl Words {
    /// The words of a page, without zero.
    pub fn of(page: &Page) -> Self {
        let mut words = Self([0; SPREAD * WORDS / 64]);
        for word in page.chunks_exact(WORD) {
            let (place, bit) = Self::at(load(word, 0));
            if let Some(bits) = words.0.get_mut(place) {
                *bits |= bit;
            }
        }
        words
    }

    /// Counts those of the words that `page` has too, each once; by chance one in eight that it has
    /// not.
    pub fn in_common(&self, page: &Page) -> u32 {
        let mut left = self.clone();
        let mut count = 0u32;
        for word in page.chunks_exact(WORD) {
            let (place, bit) = Self::at(load(word, 0));
            if let Some(bits) = left.0.get_mut(place) {
                count = count.wrapping_add(u32::from(*bits & bit != 0));
                *bits &= !bit;
            }
        }
        count
    }

    #[inline(always)]
    fn at(word: u64) -> (usize, u64) {
        let hash = mix(word).wrapping_shr(64 - SET_BITS);
        ((hash / 64) as usize, u64::from(word != 0) << (hash % 64))
    }
}
