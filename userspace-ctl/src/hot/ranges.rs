// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Sets of pages as runs: ascending, apart from each other, none empty.

use agentzip_uapi::Range;

/// Bytes of all runs.
pub fn bytes(runs: &[Range]) -> u64 {
    runs.iter().fold(0, |sum, run| {
        sum.saturating_add(run.end.saturating_sub(run.start))
    })
}

/// What is in `runs` and not in `holes`.
pub fn subtract(runs: &[Range], holes: &[Range]) -> Vec<Range> {
    let mut left = Vec::with_capacity(runs.len());
    let mut holes = holes.iter().copied().peekable();
    for run in runs {
        let mut start = run.start;
        while let Some(hole) = holes.peek().filter(|hole| hole.start < run.end) {
            push(&mut left, start, hole.start);
            start = start.max(hole.end);
            if hole.end >= run.end {
                // It may reach into the next run.
                break;
            }
            holes.next();
        }
        push(&mut left, start, run.end);
    }
    left
}

/// What is in both.
pub fn intersect(one: &[Range], other: &[Range]) -> Vec<Range> {
    let mut both = Vec::new();
    let (mut i, mut j) = (0, 0);
    while let (Some(a), Some(b)) = (one.get(i), other.get(j)) {
        push(&mut both, a.start.max(b.start), a.end.min(b.end));
        if a.end <= b.end {
            i += 1;
        } else {
            j += 1;
        }
    }
    both
}

/// What is in at least `least` of these sets.
pub fn in_many<'a>(sets: impl IntoIterator<Item = &'a [Range]>, least: usize) -> Vec<Range> {
    let mut steps: Vec<(u64, i32)> = Vec::new();
    for run in sets.into_iter().flatten().filter(|run| run.start < run.end) {
        steps.push((run.start, 1));
        steps.push((run.end, -1));
    }
    steps.sort_unstable();
    let least = i64::try_from(least.max(1)).unwrap_or(i64::MAX);
    let mut found: Vec<Range> = Vec::new();
    let (mut depth, mut from) = (0_i64, None);
    for (at, step) in steps {
        depth += i64::from(step);
        match (from, depth >= least) {
            (None, true) => from = Some(at),
            (Some(start), false) => {
                push(&mut found, start, at);
                from = None;
            }
            _ => {}
        }
    }
    found
}

/// Cuts runs into groups of at most `most` bytes and `ranges` runs, for one call each.
pub fn batches(runs: &[Range], most: u64, ranges: usize) -> Vec<Vec<Range>> {
    let (most, ranges) = (most.max(1), ranges.max(1));
    let mut batches: Vec<Vec<Range>> = Vec::new();
    let mut room = 0;
    for run in runs {
        let mut start = run.start;
        while start < run.end {
            let full = batches.last().is_none_or(|batch| batch.len() >= ranges);
            if room == 0 || full {
                batches.push(Vec::new());
                room = most;
            }
            let end = run.end.min(start.saturating_add(room));
            if let Some(batch) = batches.last_mut() {
                batch.push(Range { start, end });
            }
            room -= end - start;
            start = end;
        }
    }
    batches
}

/// Appends a run, to the last one where it begins at its end.
fn push(runs: &mut Vec<Range>, start: u64, end: u64) {
    if start >= end {
        return;
    }
    match runs.last_mut() {
        Some(last) if last.end == start => last.end = end,
        _ => runs.push(Range { start, end }),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// Runs from numbers, each of which is a unit of length 1.
    pub fn runs(of: &BTreeSet<u64>) -> Vec<Range> {
        let mut runs = Vec::new();
        for at in of {
            push(&mut runs, *at, at + 1);
        }
        runs
    }

    fn units(of: &[Range]) -> BTreeSet<u64> {
        of.iter().flat_map(|run| run.start..run.end).collect()
    }

    fn is_proper(runs: &[Range]) -> bool {
        runs.iter().all(|run| run.start < run.end)
            && runs.windows(2).all(|pair| pair[0].end < pair[1].start)
    }

    fn set() -> impl Strategy<Value = BTreeSet<u64>> {
        proptest::collection::btree_set(0_u64..64, 0..40)
    }

    proptest! {
        #[test]
        fn as_sets_of_numbers(a in set(), b in set()) {
            let (left, both) = (subtract(&runs(&a), &runs(&b)), intersect(&runs(&a), &runs(&b)));
            prop_assert!(is_proper(&left) && is_proper(&both));
            prop_assert_eq!(units(&left), &a - &b);
            prop_assert_eq!(units(&both), &a & &b);
            prop_assert_eq!(bytes(&left) + bytes(&both), a.len() as u64);
        }

        #[test]
        fn counted_as_numbers(sets in proptest::collection::vec(set(), 0..8), least in 0_usize..9) {
            let all: Vec<Vec<Range>> = sets.iter().map(runs).collect();
            let found = in_many(all.iter().map(Vec::as_slice), least);
            prop_assert!(is_proper(&found));
            let naive: BTreeSet<u64> = (0..64)
                .filter(|at| sets.iter().filter(|set| set.contains(at)).count() >= least.max(1))
                .collect();
            prop_assert_eq!(units(&found), naive);
        }

        #[test]
        fn batches_cover_everything_once(a in set(), most in 0_u64..9, ranges in 0_usize..5) {
            let batches = batches(&runs(&a), most, ranges);
            let mut last = 0;
            for batch in &batches {
                prop_assert!(!batch.is_empty() && batch.len() <= ranges.max(1));
                prop_assert!(bytes(batch) <= most.max(1));
                for run in batch {
                    prop_assert!(run.start >= last && run.start < run.end);
                    last = run.end;
                }
            }
            prop_assert_eq!(units(&batches.concat()), a);
        }
    }
}
