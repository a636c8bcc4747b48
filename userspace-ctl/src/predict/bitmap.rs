// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Predictor: the access bitmap, that is, which pages had been accessed when the wait began; and which
//! pages there are at all.

/// Neighbouring pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stretch {
    key: u64,
    pages: u32,
    /// Waits in a row at whose beginning they had been accessed, at most [`MOST_WAITS`].
    waits: u32,
}

/// From so many waits on it makes no difference.
const MOST_WAITS: u32 = 4;

/// First probabilities, by the number of waits; the mixer finds the true ones.
const PROBABILITY: [f32; MOST_WAITS as usize] = [0.5, 0.65, 0.75, 0.8];

/// The pages that had been accessed.
#[derive(Clone, Debug, Default)]
pub(super) struct Accessed {
    stretches: Vec<Stretch>,
    most: usize,
}

impl Accessed {
    /// Room for so many stretches; the longest stay.
    pub(super) fn limit(&mut self, most: usize) {
        self.most = most;
        shrink(&mut self.stretches, most);
    }

    /// A wait began: ascending keys of the pages accessed.
    pub(super) fn learn(&mut self, accessed: &[u64]) {
        let mut stretches: Vec<Stretch> = Vec::new();
        let mut old = self.stretches.iter().peekable();
        for &key in accessed {
            while old.next_if(|s| s.key + u64::from(s.pages) <= key).is_some() {}
            let before = old.peek().filter(|s| s.key <= key).map_or(0, |s| s.waits);
            let waits = (before + 1).min(MOST_WAITS);
            match stretches.last_mut() {
                Some(s) if s.key + u64::from(s.pages) == key && s.waits == waits => s.pages += 1,
                _ => stretches.push(Stretch {
                    key,
                    pages: 1,
                    waits,
                }),
            }
        }
        shrink(&mut stretches, self.most);
        stretches.shrink_to_fit();
        self.stretches = stretches;
    }

    /// Pages and the probability that the next turn touches them, by ascending keys.
    pub(super) fn shares(&self) -> impl Iterator<Item = (u64, f32)> + '_ {
        self.stretches.iter().flat_map(|s| {
            let waits = s.waits.clamp(1, MOST_WAITS) as usize;
            (0..u64::from(s.pages)).map(move |page| (s.key + page, PROBABILITY[waits - 1]))
        })
    }

    /// How many stretches there are.
    pub(super) fn len(&self) -> usize {
        self.stretches.len()
    }

    /// Forgets the pages that `keep` says no to; a stretch belongs to one process.
    pub(super) fn retain(&mut self, keep: impl Fn(u64) -> bool) {
        self.stretches.retain(|s| keep(s.key));
    }
}

fn shrink(stretches: &mut Vec<Stretch>, most: usize) {
    if stretches.len() > most {
        stretches.sort_unstable_by_key(|s| (std::cmp::Reverse(s.pages), s.key));
        stretches.truncate(most);
        stretches.sort_unstable_by_key(|s| s.key);
        stretches.shrink_to_fit();
    }
}

/// The pages that exist: what is predicted elsewhere cannot be out.
#[derive(Clone, Debug, Default)]
pub(super) struct Extents {
    /// Keys: first, and the one after the last.
    ranges: Vec<(u64, u64)>,
    /// Pages that there are; more are in the ranges where there was no room for all.
    pages: u64,
    most: usize,
}

impl Extents {
    /// Room for so many ranges. Where more are needed, pages in the smallest gaps count as existing.
    pub(super) fn limit(&mut self, most: usize) {
        self.most = most;
        self.fit();
    }

    /// The pages are these: ascending keys.
    pub(super) fn set(&mut self, keys: &[u64]) {
        self.set_runs(keys.iter().map(|&key| (key, 1)));
    }

    /// The same in runs: ascending first keys, each with the number of pages.
    pub(super) fn set_runs(&mut self, runs: impl IntoIterator<Item = (u64, u64)>) {
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        self.pages = 0;
        for (key, pages) in runs {
            self.pages += pages;
            match ranges.last_mut() {
                Some(range) if range.1 == key => range.1 += pages,
                _ => ranges.push((key, key + pages)),
            }
        }
        self.ranges = ranges;
        self.fit();
        self.ranges.shrink_to_fit();
    }

    /// The ranges: first key, and the one after the last.
    pub(super) fn ranges(&self) -> &[(u64, u64)] {
        &self.ranges
    }

    /// All pages, by ascending keys, unless more than half of what is in the ranges does not exist.
    pub(super) fn keys(&self) -> Option<impl Iterator<Item = u64> + '_> {
        let ranges = self.ranges.iter();
        self.is_exact()
            .then(|| ranges.flat_map(|range| range.0..range.1))
    }

    /// A page may exist: always when nothing is known of its process.
    pub(super) fn may_hold(&self, key: u64) -> bool {
        let next = self.ranges.partition_point(|range| range.1 <= key);
        let before = next.checked_sub(1).and_then(|i| self.ranges.get(i));
        let after = self.ranges.get(next);
        let role = |key: u64| key >> super::place::PAGE_BITS;
        if after.is_some_and(|range| range.0 <= key) {
            return true;
        }
        let known = |range: Option<&(u64, u64)>| range.is_some_and(|r| role(r.0) == role(key));
        !known(before) && !known(after)
    }

    /// A page is in a range.
    pub(super) fn holds(&self, key: u64) -> bool {
        let next = self.ranges.partition_point(|range| range.1 <= key);
        self.ranges.get(next).is_some_and(|range| range.0 <= key)
    }

    /// Most of what is in the ranges exists: there was room for them.
    pub(super) fn is_exact(&self) -> bool {
        let inside: u64 = self.ranges.iter().map(|range| range.1 - range.0).sum();
        inside <= self.pages.saturating_mul(2)
    }

    /// How many ranges there are.
    pub(super) fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Forgets all.
    pub(super) fn clear(&mut self) {
        (self.ranges, self.pages) = (Vec::new(), 0);
    }

    fn fit(&mut self) {
        let mut gap = 1;
        while self.ranges.len() > self.most && gap < 1 << 62 {
            self.ranges.dedup_by(|next, range| {
                let near = next.0 - range.1 <= gap;
                if near {
                    range.1 = next.1;
                }
                near
            });
            gap *= 2;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_longer_in_a_row_the_likelier() {
        let mut accessed = Accessed::default();
        accessed.limit(100);
        accessed.learn(&[1, 2, 3, 9]);
        assert_eq!(accessed.len(), 2);
        accessed.learn(&[2, 3, 4, 9]);
        let shares: Vec<_> = accessed.shares().collect();
        assert_eq!(shares, [(2, 0.65), (3, 0.65), (4, 0.5), (9, 0.65)]);
        accessed.learn(&[]);
        assert_eq!(accessed.shares().count(), 0);
        accessed.learn(&[9]);
        assert_eq!(accessed.shares().next(), Some((9, 0.5)));
    }

    #[test]
    fn the_longest_stretches_stay() {
        let mut accessed = Accessed::default();
        accessed.limit(2);
        accessed.learn(&[1, 10, 11, 20, 30, 31, 32]);
        let keys: Vec<_> = accessed.shares().map(|s| s.0).collect();
        assert_eq!(keys, [10, 11, 30, 31, 32]);
    }

    proptest! {
        #[test]
        fn keeps_what_it_is_told(waits in prop::collection::vec(prop::collection::btree_set(0u64..200, 0..150), 1..6)) {
            let mut accessed = Accessed::default();
            accessed.limit(1000);
            let mut rows = [0u32; 200];
            for wait in &waits {
                accessed.learn(&wait.iter().copied().collect::<Vec<_>>());
                for (key, row) in rows.iter_mut().enumerate() {
                    *row = if wait.contains(&(key as u64)) { *row + 1 } else { 0 };
                }
            }
            let expected: Vec<(u64, f32)> = (0..200)
                .filter(|&key| rows[key] > 0)
                .map(|key| (key as u64, PROBABILITY[rows[key].min(4) as usize - 1]))
                .collect();
            prop_assert_eq!(accessed.shares().collect::<Vec<_>>(), expected);
        }

        /// What exists is never denied, however little room there is.
        #[test]
        fn extents_hold_all_pages(keys in prop::collection::btree_set(0u64..5000, 0..300), most in 1usize..20) {
            let mut extents = Extents::default();
            extents.limit(most);
            extents.set(&keys.iter().copied().collect::<Vec<_>>());
            prop_assert!(extents.len() <= most);
            for key in &keys {
                prop_assert!(extents.may_hold(*key));
            }
            let mut exact = Extents::default();
            exact.limit(usize::MAX);
            exact.set(&keys.iter().copied().collect::<Vec<_>>());
            let held: BTreeSet<u64> = (0..5000).filter(|&k| exact.may_hold(k)).collect();
            if !keys.is_empty() {
                prop_assert_eq!(&held, &keys);
            }
            prop_assert_eq!(exact.keys().into_iter().flatten().collect::<BTreeSet<_>>(), keys.clone());
            prop_assert!(keys.iter().all(|&key| exact.holds(key)));
            if let Some(inside) = extents.keys() {
                let inside: BTreeSet<u64> = inside.collect();
                prop_assert!(inside.is_superset(&keys) && inside.len() <= keys.len() * 2);
            }
            prop_assert!(!exact.holds(6000));
            prop_assert!(exact.may_hold(1 << super::super::place::PAGE_BITS), "another process");
        }
    }
}
