// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Sketches: pages that share content share features, others do not.

mod common;

use agentzip_codec::{sketch, Page, Sketch, Words, FEATURES, NO_FEATURE, PAGE_SIZE};
use common::pages::{changed, from_words, moved, random, texture};
use proptest::prelude::*;

/// Features that two sketches have in common.
fn common_features(a: &Sketch, b: &Sketch) -> usize {
    let pairs = a.iter().zip(b);
    pairs.filter(|(a, b)| a == b && **a != NO_FEATURE).count()
}

fn noise(seed: u64) -> Box<Page> {
    let mut next = random(seed);
    from_words(|_| next())
}

proptest! {
    #[test]
    fn the_same_page_has_the_same_sketch(page in texture()) {
        prop_assert_eq!(sketch(&page), sketch(&page.clone()));
    }

    #[test]
    fn a_page_that_repeats_a_word_has_one_feature(word in 1u64..) {
        let sketch = sketch(&from_words(|_| word));
        let found = sketch.iter().filter(|&&feature| feature != NO_FEATURE);
        prop_assert_eq!(found.count(), 1);
    }
}

/// Every bin is in use, and no feature is the mark of a missing one.
#[test]
fn pages_have_all_features() {
    for seed in 0..200 {
        assert!(!sketch(&noise(seed)).contains(&NO_FEATURE), "{seed}");
    }
}

/// Zero is everywhere and says nothing.
#[test]
fn zeros_have_no_features() {
    assert_eq!(sketch(&[0; PAGE_SIZE]), [NO_FEATURE; FEATURES]);
    let sparse = from_words(|n| if n % 100 == 7 { 0x1234_5678 } else { 0 });
    assert_eq!(sketch(&sparse), sketch(&from_words(|_| 0x1234_5678)));
}

/// A sixteenth of the words changed.
#[test]
fn changed_pages_share_features() {
    let (mut shared, mut found) = (0, 0);
    const PAGES: usize = 500;
    for seed in 0..PAGES as u64 {
        let page = noise(seed);
        let mut next = random(!seed);
        let changes: Vec<_> = (0..32).map(|_| (next() as usize % 512, 1)).collect();
        let common = common_features(&sketch(&page), &sketch(&changed(&page, &changes)));
        shared += common;
        found += usize::from(common > 0);
    }
    // About 0.94 of the words are left; common ones over all: 0.88.
    assert!(shared * 100 > PAGES * FEATURES * 84, "{shared}");
    assert!(shared * 100 < PAGES * FEATURES * 95, "{shared}");
    assert!(found * 100 >= PAGES * 99, "{found}");
}

/// Content that moves by words, within a page of other content.
#[test]
fn moved_pages_share_features() {
    let (mut shared, mut found) = (0, 0);
    const PAGES: usize = 500;
    for seed in 0..PAGES as u64 {
        let page = noise(seed);
        let mut other = moved(&page, 8 * (1 + seed as usize % 400));
        other[3072..].copy_from_slice(&noise(!seed)[3072..]);
        let common = common_features(&sketch(&page), &sketch(&other));
        shared += common;
        found += usize::from(common > 0);
    }
    // Three quarters in common, of five quarters in all.
    assert!(shared * 100 > PAGES * FEATURES * 51, "{shared}");
    assert!(found * 100 >= PAGES * 94, "{found}");
}

#[test]
fn other_pages_share_none() {
    for seed in 0..500 {
        let common = common_features(&sketch(&noise(seed)), &sketch(&noise(!seed)));
        assert_eq!(common, 0, "{seed}");
    }
}

/// The order of the words does not matter, their values do.
#[test]
fn features_tell_words_apart() {
    let pattern = [1u64, 2, 3, 4, 5];
    let sketch_of = |pattern: [u64; 5]| sketch(&from_words(|n| pattern[n % 5]));
    let first = sketch_of(pattern);
    assert_eq!(sketch_of([5, 4, 3, 2, 1]), first);
    for other in [[6, 7, 8, 9, 10], [11, 12, 13, 14, 15]] {
        assert_eq!(common_features(&sketch_of(other), &first), 0);
    }
}

/// What two pages have in common is counted by word, wherever it lies.
#[test]
fn words_in_common() {
    for seed in 0..100 {
        let page = noise(seed);
        let words = Words::of(&page);
        let all = words.in_common(&page);
        // Words whose bits coincide count once.
        assert!((450..=512).contains(&all), "{all}");
        assert_eq!(words.in_common(&from_words(|_| 0)), 0);
        let mut half = moved(&page, 8 * (seed as usize % 400));
        half[2048..].copy_from_slice(&noise(!seed)[2048..]);
        let common = words.in_common(&half);
        // Half of them, and one in eight of the others by chance.
        assert!((230..=320).contains(&common), "{common}");
    }
}
