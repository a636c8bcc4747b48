// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Ranges against a plain search through all of them.

use agentzip_store::ranges::{
    build, candidates, translate, Layers, PageRange, RangesError, MAX_DEPTH,
};
use agentzip_store::template::{self, MAX_CANDIDATES};
use proptest::prelude::*;

fn range(index: u64, template_index: u64, len: u64) -> PageRange {
    PageRange {
        index,
        template_index,
        len,
    }
}

fn build_all(given: &[PageRange]) -> Result<(Vec<PageRange>, Layers), RangesError<()>> {
    let mut ranges = Vec::new();
    let layers = build(given, |range| {
        ranges.push(range);
        Ok(())
    })?;
    Ok((ranges, layers))
}

/// The template's indexes for an index, sorted.
fn plain(given: &[PageRange], index: u64) -> Vec<u64> {
    let mut found: Vec<u64> = given
        .iter()
        .filter(|r| (r.index..r.index + r.len).contains(&index))
        .map(|r| r.template_index + (index - r.index))
        .collect();
    found.sort_unstable();
    found
}

fn translated(ranges: &[PageRange], layers: &Layers, index: u64) -> Vec<u64> {
    let mut found: Vec<u64> = translate(ranges, layers, index).collect();
    found.sort_unstable();
    found
}

/// Most ranges over each other.
fn depth(given: &[PageRange]) -> usize {
    let at_start = |r: &PageRange| plain(given, r.index).len();
    given.iter().map(at_start).max().unwrap_or(0)
}

proptest! {
    #[test]
    fn agrees_with_a_plain_search(
        base in prop_oneof![Just(0u64), Just(0x7f12_3456_7000), Just(u64::MAX - 1000)],
        given in prop::collection::vec((0..400u64, 0..1000u64, 1..60u64), 0..40),
    ) {
        let mut given: Vec<PageRange> = given
            .into_iter()
            .map(|(index, template_index, len)| range(base + index, template_index, len))
            .collect();
        given.sort_by_key(|r| r.index);
        match build_all(&given) {
            Err(error) => {
                prop_assert_eq!(error, RangesError::TooDeep);
                prop_assert!(depth(&given) > MAX_DEPTH);
            }
            Ok((ranges, layers)) => {
                prop_assert!(depth(&given) <= MAX_DEPTH);
                prop_assert_eq!(ranges.len(), given.len());
                for index in (base..base + 470).chain([0, u64::MAX]) {
                    prop_assert_eq!(translated(&ranges, &layers, index), plain(&given, index));
                }
            }
        }
    }
}

#[test]
fn no_ranges_find_nothing() {
    let (ranges, layers) = build_all(&[]).unwrap();
    assert_eq!(translated(&ranges, &layers, 0), []);
    assert_eq!(translated(&[], &Layers::default(), 7), []);
    // Layers that do not belong to the ranges find nothing, and do not panic.
    let (_, layers) = build_all(&[range(1, 1, 9), range(2, 50, 9)]).unwrap();
    assert_eq!(translated(&[], &layers, 3), []);
}

#[test]
fn a_range_may_end_at_the_last_page_index() {
    let (ranges, layers) = build_all(&[range(u64::MAX - 9, 5, 9)]).unwrap();
    assert_eq!(translated(&ranges, &layers, u64::MAX - 1), [13]);
    assert_eq!(translated(&ranges, &layers, u64::MAX), []);
}

#[test]
fn bad_ranges_are_refused_and_nothing_is_pushed() {
    let refused = |given: &[PageRange]| {
        build(given, |_| -> Result<(), ()> {
            panic!("a range was pushed of {given:?}")
        })
        .unwrap_err()
    };
    assert_eq!(refused(&[range(5, 5, 0)]), RangesError::Invalid);
    assert_eq!(refused(&[range(u64::MAX, 0, 1)]), RangesError::Invalid);
    assert_eq!(refused(&[range(0, u64::MAX, 1)]), RangesError::Invalid);
    assert_eq!(refused(&[range(1, 0, u64::MAX)]), RangesError::Invalid);
    let unsorted = [range(5, 0, 1), range(4, 0, 1)];
    assert_eq!(refused(&unsorted), RangesError::Unsorted);
    let deep: Vec<PageRange> = (0..=MAX_DEPTH as u64)
        .map(|n| range(10 + n, n * 100, 50))
        .collect();
    assert_eq!(refused(&deep), RangesError::TooDeep);
    build_all(&deep[1..]).unwrap();
    let result = build(&deep[1..], |_| Err("full"));
    assert_eq!(result, Err(RangesError::Callback("full")));
}

/// A template with pages at these indexes.
fn index_of(pages: &[u64]) -> (Vec<template::Run>, template::Layers) {
    let mut runs = Vec::new();
    let built = template::build(
        pages.iter().copied(),
        |_, _| Ok::<(), ()>(()),
        |run| {
            runs.push(run);
            Ok(())
        },
    )
    .unwrap();
    (runs, built.layers)
}

#[test]
fn candidates_are_a_union_without_repetition() {
    let (runs, template_layers) = index_of(&(0..100).collect::<Vec<u64>>());
    let lookup = |index| template::lookup(&runs, &template_layers, index);
    let given = [range(50, 0, 10), range(55, 5, 10), range(58, 90, 10)];
    let (ranges, layers) = build_all(&given).unwrap();
    let found = |index, same_index| {
        candidates(&ranges, &layers, index, same_index, lookup)
            .as_slice()
            .to_vec()
    };
    assert_eq!(found(52, false), [2]);
    assert_eq!(found(52, true), [2, 52]);
    // Two ranges that say the same, and a third.
    assert_eq!(found(58, false), [8, 90]);
    // The same page by its range and by its own index.
    let (ranges, layers) = build_all(&[range(7, 7, 1)]).unwrap();
    let all = candidates(&ranges, &layers, 7, true, lookup);
    assert_eq!(all.as_slice(), [7]);
    // Ranges that lead out of the template.
    let (ranges, layers) = build_all(&[range(7, 1 << 40, 1)]).unwrap();
    assert!(candidates(&ranges, &layers, 7, false, lookup).is_empty());
}

#[test]
fn candidates_are_bounded() {
    // Five pages of each of two indexes.
    let (runs, template_layers) = index_of(&[1, 1, 1, 1, 1, 2, 2, 2, 2, 2]);
    let lookup = |index| template::lookup(&runs, &template_layers, index);
    let (ranges, layers) = build_all(&[range(9, 1, 1), range(9, 2, 1)]).unwrap();
    let all = candidates(&ranges, &layers, 9, false, lookup);
    assert_eq!(all.len(), MAX_CANDIDATES);
    let mut sorted = all.as_slice().to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    assert_eq!(sorted.len(), MAX_CANDIDATES, "{all:?}");
}
