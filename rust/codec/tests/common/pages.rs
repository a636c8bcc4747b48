// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Pages to try: of several textures, and changed from one another in several ways.

use agentzip_codec::{Page, PAGE_SIZE};
use proptest::prelude::*;

const WORDS: usize = PAGE_SIZE / 8;

/// A page whose words come from `word`.
pub fn from_words(mut word: impl FnMut(usize) -> u64) -> Box<Page> {
    let mut page = Box::new([0; PAGE_SIZE]);
    for (n, place) in page.chunks_exact_mut(8).enumerate() {
        place.copy_from_slice(&word(n).to_le_bytes());
    }
    page
}

/// SplitMix64: cheap and good enough.
pub fn random(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed;
    move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

/// A page of one of the textures that memory has.
pub fn texture() -> impl Strategy<Value = Box<Page>> {
    (0..6u8, any::<u64>()).prop_map(|(kind, seed)| {
        let mut next = random(seed);
        match kind {
            0 => from_words(|_| 0),
            1 => from_words(|_| seed),
            // Pointers.
            2 => from_words(|_| 0x7f12_3400_0000 | next() & 0x0fff_fff0),
            // Small numbers.
            3 => from_words(|_| next() & 0xff),
            // Few distinct words.
            4 => from_words(|_| (next() % 5) << 32),
            // Noise.
            _ => from_words(|_| next()),
        }
    })
}

/// What to do to a page to get another: words to change and how.
pub fn changes() -> impl Strategy<Value = Vec<(usize, u64)>> {
    let bits = prop_oneof![
        // Some low bytes.
        (any::<u64>(), 0..8u32).prop_map(|(bits, keep)| bits >> (keep * 8)),
        // Some bytes in the middle.
        (any::<u64>(), 0..8u32, 0..8u32).prop_map(|(bits, cut, up)| bits >> (cut * 8) << (up * 8)),
        // One bit.
        (0..64u32).prop_map(|bit| 1 << bit),
    ];
    let few = prop::collection::vec((0..WORDS, bits.clone()), 0..12);
    let many = prop::collection::vec((0..WORDS, bits.clone()), 0..600);
    let run = (0..WORDS, prop::collection::vec(bits, 0..WORDS)).prop_map(|(start, bits)| {
        let places = (start..WORDS).zip(bits);
        places.collect()
    });
    prop_oneof![3 => few, 2 => many, 1 => run]
}

/// The page after these changes.
pub fn changed(base: &Page, changes: &[(usize, u64)]) -> Box<Page> {
    let mut page = Box::new(*base);
    for &(word, bits) in changes {
        for (place, bits) in page[word * 8..][..8].iter_mut().zip(bits.to_le_bytes()) {
            *place ^= bits;
        }
    }
    page
}

/// The page with its content moved by so many bytes, in a circle.
pub fn moved(base: &Page, bytes: usize) -> Box<Page> {
    let mut page = Box::new(*base);
    page.rotate_left(bytes % PAGE_SIZE);
    page
}
