// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The template index against a plain map.

use agentzip_store::template::{build, lookup, BuildError, Built, Run, MAX_CANDIDATES};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Builds the index of sorted page indexes. Returns it and the position of each ordinal's page.
fn build_all(indexes: &[u64]) -> (Vec<Run>, Built, Vec<usize>) {
    let mut runs = Vec::new();
    let mut positions = Vec::new();
    let assign = |position, ordinal: u32| {
        assert_eq!(ordinal as usize, positions.len());
        positions.push(position);
        Ok::<(), ()>(())
    };
    let push = |run| {
        runs.push(run);
        Ok(())
    };
    let built = build(indexes.iter().copied(), assign, push).unwrap();
    assert_eq!(built.pages as usize, positions.len());
    (runs, built, positions)
}

fn check(indexes: &[u64]) {
    let (runs, built, positions) = build_all(indexes);
    let mut expected: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    for (position, &index) in indexes.iter().enumerate() {
        expected.entry(index).or_default().push(position);
    }
    for (&index, all) in &expected {
        let candidates = lookup(&runs, &built.layers, index);
        let found: Vec<usize> = candidates
            .as_slice()
            .iter()
            .map(|&ordinal| positions[ordinal as usize])
            .collect();
        assert_eq!(found, all[..all.len().min(MAX_CANDIDATES)], "index {index}");
        assert_eq!(candidates.len(), found.len());
        for absent in [index.wrapping_sub(1), index.wrapping_add(1)] {
            let known = expected.contains_key(&absent);
            assert_eq!(lookup(&runs, &built.layers, absent).is_empty(), !known);
        }
    }
}

proptest! {
    #[test]
    fn agrees_with_a_map(
        // Gaps of 0 make several pages of one index, gaps of 1 make runs.
        start in prop_oneof![0..5u64, Just(0x7f12_3456_7000), Just(u64::MAX - 2000)],
        gaps in prop::collection::vec(
            prop_oneof![6 => Just(1u64), 2 => Just(0), 1 => 2..5u64],
            0..400,
        ),
    ) {
        let mut at = start;
        let indexes: Vec<u64> = gaps.into_iter().map(|gap| { at += gap; at }).collect();
        check(&indexes);
    }

    #[test]
    fn many_pages_of_one_index(counts in prop::collection::vec(0..14usize, 0..30)) {
        let indexes: Vec<u64> = (100u64..)
            .zip(counts)
            .flat_map(|(index, count)| std::iter::repeat_n(index, count))
            .collect();
        check(&indexes);
    }
}

#[test]
fn runs_are_maximal() {
    // 1000 neighbouring pages, each twice: one run a layer.
    let indexes: Vec<u64> = (0..2000).map(|n| 50 + n / 2).collect();
    let (runs, built, _) = build_all(&indexes);
    let expected = [
        Run {
            index: 50,
            ordinal: 0,
            len: 1000,
        },
        Run {
            index: 50,
            ordinal: 1000,
            len: 1000,
        },
    ];
    assert_eq!(runs, expected);
    assert_eq!(lookup(&runs, &built.layers, 57).as_slice(), [7, 1007]);
}

#[test]
fn an_empty_template_has_nothing() {
    let (runs, built, _) = build_all(&[]);
    assert!(runs.is_empty());
    assert!(lookup(&runs, &built.layers, 0).is_empty());
    // Layers that do not belong to the runs find nothing, and do not panic.
    let (_, built, _) = build_all(&[1, 2, 2]);
    assert!(lookup(&[], &built.layers, 1).is_empty());
}

#[test]
fn errors() {
    let nothing = |_: usize, _: u32| Ok::<(), &str>(());
    let result = build([2, 1].into_iter(), nothing, |_| Ok(()));
    assert_eq!(result, Err(BuildError::Unsorted));
    let result = build([1, 2].into_iter(), |_, _| Err("assign"), |_| Ok(()));
    assert_eq!(result, Err(BuildError::Callback("assign")));
    let result = build([1, 3].into_iter(), nothing, |_| Err("push"));
    assert_eq!(result, Err(BuildError::Callback("push")));
    let too_many = build(0..=1 << 24, nothing, |_| Ok(()));
    assert_eq!(too_many, Err(BuildError::TooManyPages));
}
