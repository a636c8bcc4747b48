// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Templates: the index of any page numbers, and any ranges of a sandbox over them, are refused or find
//! what a plain search finds.
//!
//! An input is a number of pages (1 byte), the index of the first (8 bytes) and the steps from each to the
//! next (1 byte: 254 is one back, 255 is to where 8 more bytes say), then ranges (24 bytes each).

use std::convert::Infallible;

use agentzip_store::ranges::{self, candidates, translate, PageRange, RangesError};
use agentzip_store::template::{self, lookup, BuildError, Run, MAX_CANDIDATES};

use crate::input::Input;

/// Most ranges that are taken off an input.
const MOST_RANGES: usize = 64;

/// The index of a template.
struct Index {
    runs: Vec<Run>,
    layers: template::Layers,
    /// Positions of the pages that have an ordinal, by ordinal.
    positions: Vec<usize>,
}

/// The target.
pub fn target(data: &[u8]) {
    let mut input = Input::new(data);
    let indexes = indexes(&mut input);
    let Some(index) = index(&indexes) else {
        return;
    };
    for &page in &indexes {
        let same = (0..indexes.len()).filter(|at| indexes[*at] == page);
        let expected: Vec<usize> = same.take(MAX_CANDIDATES).collect();
        let found = lookup(&index.runs, &index.layers, page);
        let found = found.as_slice().iter();
        let found: Vec<usize> = found.map(|&n| index.positions[n as usize]).collect();
        assert_eq!(found, expected, "page {page:#x}");
    }
    let mut given = Vec::new();
    while !input.is_empty() && given.len() < MOST_RANGES {
        given.push(PageRange {
            index: input.u64(),
            template_index: input.u64(),
            len: input.u64(),
        });
    }
    check_ranges(&given, &index);
}

/// The page indexes of an input.
fn indexes(input: &mut Input<'_>) -> Vec<u64> {
    let count = input.u8();
    let mut at = input.u64();
    let mut indexes = Vec::new();
    for _ in 0..count {
        indexes.push(at);
        at = match input.u8() {
            254 => at.wrapping_sub(1),
            255 => input.u64(),
            step => at.wrapping_add(step.into()),
        };
    }
    indexes
}

/// The index of these pages; `None` when they are refused.
fn index(indexes: &[u64]) -> Option<Index> {
    let mut runs = Vec::new();
    let mut positions = Vec::new();
    let assign = |position, ordinal: u32| {
        assert_eq!(ordinal as usize, positions.len());
        positions.push(position);
        Ok::<(), Infallible>(())
    };
    let push = |run| {
        runs.push(run);
        Ok(())
    };
    let built = template::build(indexes.iter().copied(), assign, push);
    assert_eq!(built.is_ok(), indexes.is_sorted());
    match built {
        Ok(built) => Some(Index {
            runs,
            layers: built.layers,
            positions,
        }),
        Err(error) => {
            assert_eq!(error, BuildError::Unsorted);
            None
        }
    }
}

fn check_ranges(given: &[PageRange], index: &Index) {
    let mut sorted = Vec::new();
    let built = ranges::build(given, |range| {
        sorted.push(range);
        Ok::<(), Infallible>(())
    });
    let layers = match built {
        Ok(layers) => layers,
        Err(RangesError::Unsorted) => {
            assert!(!given.is_sorted_by_key(|range| range.index));
            return;
        }
        Err(_) => return,
    };
    assert_eq!(sorted.len(), given.len());
    for range in given {
        // None of these overflows: it would have been refused.
        let end = range.index + range.len;
        for page in [range.index, end - 1, end] {
            let mut found: Vec<u64> = translate(&sorted, &layers, page).collect();
            found.sort_unstable();
            assert_eq!(found, plain(given, page), "page {page:#x}");
            let find = |page| lookup(&index.runs, &index.layers, page);
            let all = candidates(&sorted, &layers, page, true, find);
            let mut all = all.as_slice().to_vec();
            assert!(all.len() <= MAX_CANDIDATES);
            let known = index.positions.len();
            assert!(all.iter().all(|ordinal| (*ordinal as usize) < known));
            all.sort_unstable();
            assert!(all.windows(2).all(|pair| pair[0] != pair[1]), "{all:?}");
        }
    }
}

/// The template's page indexes for one of the sandbox, in ascending order.
fn plain(given: &[PageRange], page: u64) -> Vec<u64> {
    let mut found: Vec<u64> = given
        .iter()
        .filter(|range| (range.index..range.index + range.len).contains(&page))
        .map(|range| range.template_index + (page - range.index))
        .collect();
    found.sort_unstable();
    found
}
