// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The index of hints: what it finds, what it forgets, and how it grows.

mod owned_pages;

use agentzip_store::{
    key_of_feature, key_of_index, mix, Index, Where, MAX_PAGE_NUMBER, MAX_SLOTS, PAGE_BYTES,
};
use owned_pages::{owned_pages, OwnedPages, Owner};
use proptest::prelude::*;
use std::collections::{HashMap, HashSet};

const PAGE_ENTRIES: u64 = PAGE_BYTES as u64 / 8;

struct Grown {
    index: Index<OwnedPages>,
    owner: Owner,
}

impl Grown {
    fn new(max_pages: u32) -> Self {
        let (pages, owner) = owned_pages(max_pages as usize + 1);
        let index = Index::new(pages, max_pages);
        Self { index, owner }
    }

    /// Adds one page if the index wants it.
    fn grow(&mut self) -> bool {
        let wanted = self.index.wants_page();
        if wanted {
            let page = self.owner.take();
            assert!(self.index.add_page(page), "wanted and not taken");
        }
        wanted
    }

    /// Adds pages, wanted or not, until it has `pages`.
    fn fill(&mut self, pages: u64) {
        while self.index.pages() < pages {
            let page = self.owner.take();
            assert!(self.index.add_page(page));
        }
    }

    fn insert(&mut self, key: u64, hint: Where) {
        while self.grow() {}
        self.index.insert(key, hint);
        assert_eq!(self.index.pages(), self.owner.given());
    }

    /// Number of these slots whose hint, under the key of their number, is found.
    fn found(&self, slots: impl Iterator<Item = u64>) -> usize {
        slots
            .filter(|&slot| self.index.lookup(mix(slot)) == Some(Where::Slot(slot)))
            .count()
    }
}

#[test]
fn every_kind_of_hint_comes_back() {
    let mut grown = Grown::new(4);
    let hints = [
        Where::Slot(0),
        Where::Slot(1 << 32),
        Where::Slot(2 << 32),
        Where::Slot(MAX_SLOTS - 1),
        Where::Reference(0),
        Where::Reference((1 << 24) - 1),
        Where::Reference(u32::MAX),
        Where::Template(0),
        Where::Template(u32::MAX),
    ];
    // Keys with extreme tags and sets.
    let keys = [0, u64::MAX, 0xff_ffff, !0xff_ffff, 0xfff, 0xfff000];
    for (count, key) in (1..).zip(keys) {
        assert_eq!(grown.index.lookup(key), None);
        for hint in hints {
            grown.insert(key, hint);
            assert_eq!(grown.index.lookup(key), Some(hint));
            assert_eq!(grown.index.entries(), count);
        }
    }
    grown.insert(1, Where::Slot(MAX_SLOTS));
    assert_eq!(grown.index.lookup(1), None);
    assert_eq!(grown.index.entries(), keys.len() as u64);
}

#[test]
fn without_pages_it_holds_nothing() {
    let mut grown = Grown::new(8);
    assert!(grown.index.wants_page());
    for _ in 0..2 {
        grown.index.insert(5, Where::Slot(5));
        assert_eq!(grown.index.lookup(5), None);
        assert!(!grown.index.replace(5, Where::Slot(5), Where::Slot(6)));
        assert_eq!(grown.index.entries(), 0);
        // The first page is the directory's.
        assert!(grown.grow());
    }
    grown.index.insert(5, Where::Slot(5));
    assert_eq!(grown.index.lookup(5), Some(Where::Slot(5)));
}

#[test]
fn takes_no_page_beyond_its_bound() {
    for (max_pages, takes) in [
        (0, 0),
        (1, 0),
        (2, 2),
        (3, 3),
        (1025, 1025),
        (1026, 1025),
        (1027, 1027),
    ] {
        let mut grown = Grown::new(max_pages);
        let mut taken = 0;
        loop {
            let page = grown.owner.take();
            if !grown.index.add_page(page) {
                grown.owner.give_back(page);
                break;
            }
            taken += 1;
        }
        assert_eq!((grown.index.pages(), taken), (takes, takes));
        assert!(!grown.index.wants_page());
        grown.index.insert(1, Where::Slot(1));
        assert_eq!(grown.index.entries(), u64::from(takes > 0));
        grown.index.clear(|page| grown.owner.give_back(page));
        assert_eq!(grown.owner.given(), 0);
    }
    let mut grown = Grown::new(4);
    assert!(!grown.index.add_page(MAX_PAGE_NUMBER + 1));
    assert_eq!(grown.index.pages(), 0);
}

#[test]
fn replaces_only_what_it_knows() {
    let mut grown = Grown::new(2);
    let key = key_of_index(77);
    let (slot, reference) = (Where::Slot(1), Where::Reference(9));
    grown.insert(key, slot);
    assert!(grown.index.replace(key, slot, slot));
    assert!(grown.index.replace(key, slot, reference));
    assert!(!grown.index.replace(key, slot, Where::Reference(8)));
    assert!(!grown.index.replace(key, slot, slot));
    assert!(!grown.index.replace(key ^ 1, reference, slot));
    // Out of range: nothing happens.
    let nowhere = Where::Slot(MAX_SLOTS);
    assert!(!grown.index.replace(key, reference, nowhere));
    assert!(!grown.index.replace(key, nowhere, slot));
    assert_eq!(grown.index.lookup(key), Some(reference));
    assert_eq!(grown.index.entries(), 1);
}

#[test]
fn one_key_takes_one_entry() {
    let mut grown = Grown::new(2);
    for slot in 0..64 {
        grown.insert(mix(slot), Where::Slot(slot));
    }
    let popular = key_of_feature(1, 0);
    for slot in 1000..2000 {
        grown.insert(popular, Where::Slot(slot));
        // Twice the same is once.
        grown.insert(popular, Where::Slot(slot));
        assert_eq!(grown.index.lookup(popular), Some(Where::Slot(slot)));
        assert_eq!(grown.index.entries(), 65);
    }
    assert_eq!(grown.found(0..64), 64);
}

#[test]
fn finds_nearly_everything_while_it_grows() {
    let mut grown = Grown::new(100);
    let mut worst = 1.0f64;
    for slot in 0..30_000u64 {
        grown.insert(mix(slot), Where::Slot(slot));
        if slot % 500 == 499 {
            let share = grown.found(0..=slot) as f64 / (slot + 1) as f64;
            worst = worst.min(share);
            // A page is there as soon as it is needed, and not before.
            let pages = grown.index.pages() - 1;
            let entries = grown.index.entries();
            assert!(entries <= pages * PAGE_ENTRIES / 4 * 3);
            assert!(entries >= (pages - 1) * PAGE_ENTRIES / 4 * 3);
        }
    }
    println!("found while growing: {:.3}% at worst", worst * 100.0);
    assert!(worst > 0.985, "{worst}");
}

#[test]
fn a_full_one_forgets_the_oldest() {
    for max_pages in [2, 13, 24] {
        let mut grown = Grown::new(max_pages);
        let capacity = u64::from(max_pages - 1) * PAGE_ENTRIES;
        let inserted = capacity * 5;
        for slot in 0..inserted {
            grown.insert(mix(slot), Where::Slot(slot));
            // A hint that is given again and again stays.
            grown.insert(mix(u64::MAX), Where::Template(1));
        }
        assert_eq!(grown.index.pages(), max_pages.into());
        let entries = grown.index.entries();
        assert!(
            entries <= capacity && entries > capacity * 95 / 100,
            "{entries}"
        );
        assert_eq!(grown.index.lookup(mix(u64::MAX)), Some(Where::Template(1)));
        // The last half of its capacity is there, what came five times before is not.
        let recent = capacity / 2;
        let found = grown.found(inserted - recent..inserted) as u64;
        assert!(found > recent * 97 / 100, "{found} of {recent}");
        assert!((grown.found(0..recent) as u64) < recent / 50);
    }
}

#[test]
fn few_hints_are_of_another_key() {
    let mut grown = Grown::new(129);
    for slot in 0..50_000 {
        grown.insert(mix(slot), Where::Slot(slot));
    }
    let wrong = (50_000..1_050_000u64)
        .filter(|&other| grown.index.lookup(mix(other)).is_some())
        .count();
    println!("wrong hints: {wrong} in a million");
    assert!(wrong < 500, "{wrong}");
}

#[test]
fn work_is_bounded() {
    let mut grown = Grown::new(1100);
    grown.fill(1050);
    for slot in 0..20_000u64 {
        let key = mix(slot);
        grown.owner.touched();
        grown.index.insert(key, Where::Slot(slot));
        // Two tables of the directory, two pages of entries.
        assert!(grown.owner.touched() <= 4);
        grown.index.lookup(key);
        assert!(grown.owner.touched() <= 4);
        grown
            .index
            .replace(key, Where::Slot(slot), Where::Reference(1));
        assert!(grown.owner.touched() <= 4);
    }
    let pages = grown.index.pages();
    grown.fill(1100);
    assert_eq!(pages + 50, grown.index.pages());

    // Where room has to be made: the other sets of 16 entries besides.
    let mut grown = Grown::new(60);
    let mut most = 0;
    for slot in 0..40_000u64 {
        while grown.index.wants_page() {
            grown.grow();
            // Table, the page that is split, the new one.
            assert!((1..=3).contains(&grown.owner.touched()));
        }
        grown.index.insert(mix(slot), Where::Slot(slot));
        most = most.max(grown.owner.touched());
    }
    assert!((4..=19).contains(&most), "{most}");
}

#[test]
fn clear_gives_everything_back() {
    let mut grown = Grown::new(1030);
    for _ in 0..2 {
        grown.fill(1030);
        for slot in 0..1000 {
            grown.insert(mix(slot), Where::Slot(slot));
        }
        assert_eq!(grown.found(0..1000), 1000);
        grown.index.clear(|page| grown.owner.give_back(page));
        assert_eq!((grown.index.pages(), grown.index.entries()), (0, 0));
        assert_eq!(grown.owner.given(), 0);
        assert_eq!(grown.found(0..1000), 0);
    }
}

#[test]
fn mixing_spreads_every_bit() {
    const SAMPLES: u64 = 1000;
    for bit in 0..64 {
        let mut flips = [0u64; 64];
        for sample in 0..SAMPLES {
            // Small numbers, as page indexes are.
            let changed = mix(sample) ^ mix(sample ^ (1 << bit));
            for (at, flips) in flips.iter_mut().enumerate() {
                *flips += (changed >> at) & 1;
            }
        }
        let fair = SAMPLES * 2 / 5..=SAMPLES * 3 / 5;
        assert!(
            flips.iter().all(|flips| fair.contains(flips)),
            "bit {bit}: {flips:?}"
        );
    }
}

#[test]
fn keys_differ() {
    let edges: Vec<u64> = (0..63).flat_map(|bit| [(1 << bit) - 1, 1 << bit]).collect();
    let indexes: HashSet<u64> = (0..1000).chain(edges).collect();
    let mut keys: HashSet<u64> = indexes.iter().copied().map(key_of_index).collect();
    let mut features = 0;
    for number in [0, 1, 7, 255] {
        for feature in (0..1000).chain([1 << 31, u32::MAX]) {
            keys.insert(key_of_feature(number, feature));
            features += 1;
        }
    }
    assert_eq!(keys.len(), indexes.len() + features);
}

#[derive(Clone, Debug)]
enum Step {
    Insert(u64, Where),
    Replace(u64, Where, Where),
    Grow,
    Clear,
}

/// Few keys and few hints, so that steps meet.
fn step() -> impl Strategy<Value = Step> {
    let key = || (0..600u64).prop_map(mix);
    let hint = || {
        prop_oneof![
            (0..6u64).prop_map(Where::Slot),
            (0..3u32).prop_map(Where::Reference),
            (0..2u32).prop_map(Where::Template),
        ]
    };
    prop_oneof![
        400 => (key(), hint()).prop_map(|(key, hint)| Step::Insert(key, hint)),
        40 => (key(), hint(), hint()).prop_map(|(key, from, to)| Step::Replace(key, from, to)),
        8 => Just(Step::Grow),
        1 => Just(Step::Clear),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The model may know what the index forgot, never the reverse.
    #[test]
    fn agrees_with_a_map(steps in prop::collection::vec(step(), 0..1500)) {
        let mut grown = Grown::new(6);
        let mut model: HashMap<u64, Where> = HashMap::new();
        let keys: Vec<u64> = (0..600).map(mix).collect();
        let tags: HashSet<u64> = keys.iter().map(|key| key & 0xff_ffff).collect();
        prop_assert_eq!(tags.len(), keys.len(), "no two keys may be taken for each other");
        let all = |grown: &Grown| -> Vec<Option<Where>> {
            let all: Vec<_> = keys.iter().map(|&key| grown.index.lookup(key)).collect();
            let known = all.iter().flatten().count();
            assert_eq!(known as u64, grown.index.entries());
            all
        };
        for step in steps {
            match step {
                Step::Insert(key, hint) => {
                    grown.index.insert(key, hint);
                    if grown.index.pages() >= 2 {
                        prop_assert_eq!(grown.index.lookup(key), Some(hint));
                        model.insert(key, hint);
                    }
                }
                Step::Replace(key, from, to) => {
                    let before = grown.index.lookup(key);
                    let replaced = grown.index.replace(key, from, to);
                    prop_assert_eq!(replaced, before == Some(from));
                    if replaced {
                        prop_assert_eq!(grown.index.lookup(key), Some(to));
                        model.insert(key, to);
                    } else {
                        prop_assert_eq!(grown.index.lookup(key), before);
                    }
                }
                // Whether it is wanted or not: nothing may be lost.
                Step::Grow => {
                    let before = all(&grown);
                    let page = grown.owner.take();
                    if !grown.index.add_page(page) {
                        grown.owner.give_back(page);
                    }
                    prop_assert_eq!(all(&grown), before);
                }
                Step::Clear => {
                    grown.index.clear(|page| grown.owner.give_back(page));
                    prop_assert_eq!(grown.owner.given(), 0);
                    model.clear();
                }
            }
        }
        for (key, hint) in keys.iter().zip(all(&grown)) {
            if hint.is_some() {
                prop_assert_eq!(hint, model.get(key).copied());
            }
        }
    }
}
