// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Predictor: the working set, as shares of turns that touched a page.
//!
//! After a turn each page that was touched gets weight 1, and all older weight, that of the turns too, is
//! multiplied by a constant below 1. A page's weight divided by that of the turns is the share of the
//! turns that touched it, recent ones counting more. Half a turn that touched nothing is added to the
//! divisor: a single turn proves little.

/// Weight of the turn that touched nothing.
const DOUBT: f32 = 0.5;

/// Weight at which a page is forgotten.
const FORGOTTEN: f32 = 0.04;

/// Share of the turns from which on a page is touched at nearly every resume.
const NEARLY_EVERY: f32 = 0.9;

/// Weight of the turns from which on that can be told.
const ENOUGH_TURNS: f32 = 2.2;

#[derive(Clone, Copy, Debug)]
struct Entry {
    key: u64,
    weight: f32,
    /// Turn at whose end the weight was that.
    turn: u32,
}

/// Pages and how often they are touched.
#[derive(Clone, Debug)]
pub(super) struct WorkingSet {
    entries: Vec<Entry>,
    /// What a weight becomes in 0 to 63 turns.
    decay: [f32; 64],
    turn: u32,
    turns: f32,
    most: usize,
}

impl WorkingSet {
    /// Weight halves in so many turns.
    pub(super) fn new(half_life: f32, most: usize) -> WorkingSet {
        let once = 0.5f32.powf(1.0 / half_life.max(0.1));
        let mut decay = [1.0; 64];
        for age in 1..64 {
            decay[age] = decay[age - 1] * once;
        }
        WorkingSet {
            entries: Vec::new(),
            decay,
            turn: 0,
            turns: 0.0,
            most,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// How many turns it rests on, older ones counting less.
    pub(super) fn turns(&self) -> f32 {
        self.turns
    }

    /// Room for so many pages from now on.
    pub(super) fn limit(&mut self, most: usize) {
        self.most = most;
        self.shrink();
    }

    /// A turn touched these pages: ascending keys. Nobody knows whether it touched the `unknown` ones, for
    /// they were there already: how probable they are does not change.
    pub(super) fn learn(&mut self, touched: &[u64], unknown: &[u64]) {
        let before = self.turns.max(1.0);
        self.turn += 1;
        self.turns = self.turns * self.decay[1] + 1.0;
        let mut unknown = unknown.iter().copied().peekable();
        let old = std::mem::take(&mut self.entries);
        let mut entries = Vec::with_capacity(old.len().max(touched.len()));
        let mut touched = touched.iter().copied().peekable();
        let fresh = |key, weight| Entry {
            key,
            weight,
            turn: self.turn,
        };
        for entry in old {
            while let Some(key) = touched.next_if(|&key| key < entry.key) {
                entries.push(fresh(key, 1.0));
            }
            let weight = self.weight(&entry);
            if touched.next_if_eq(&entry.key).is_some() {
                entries.push(fresh(entry.key, weight + 1.0));
                continue;
            }
            while unknown.next_if(|&key| key < entry.key).is_some() {}
            if unknown.next_if_eq(&entry.key).is_some() {
                entries.push(fresh(entry.key, weight + weight / self.decay[1] / before));
            } else if weight > FORGOTTEN {
                entries.push(entry);
            }
        }
        entries.extend(touched.map(|key| fresh(key, 1.0)));
        self.entries = entries;
        self.shrink();
        self.entries
            .shrink_to(self.entries.len() + self.entries.len() / 8);
    }

    /// What others learned: ascending keys with the share of turns that touched them. It stands for so
    /// many turns, and goes as they would.
    pub(super) fn prior(&mut self, shares: &[(u64, f32)], turns: f32) {
        self.turns += turns;
        let mut entries: Vec<Entry> = self.entries.to_vec();
        entries.extend(shares.iter().map(|&(key, share)| Entry {
            key,
            weight: share * turns,
            turn: self.turn,
        }));
        entries.sort_by_key(|entry| entry.key);
        entries.dedup_by(|second, first| {
            let same = first.key == second.key;
            if same {
                first.weight = self.weight(first) + self.weight(second);
                first.turn = self.turn;
            }
            same
        });
        self.entries = entries;
        self.shrink();
    }

    /// Pages and the probability that the next turn touches them, by ascending keys.
    pub(super) fn shares(&self) -> impl Iterator<Item = (u64, f32)> + '_ {
        let turns = self.turns + DOUBT;
        self.entries
            .iter()
            .map(move |entry| (entry.key, self.weight(entry) / turns))
    }

    /// The same without the doubt: what was.
    pub(super) fn history(&self) -> impl Iterator<Item = (u64, f32)> + '_ {
        let turns = self.turns.max(f32::MIN_POSITIVE);
        self.entries
            .iter()
            .map(move |entry| (entry.key, (self.weight(entry) / turns).min(1.0)))
    }

    /// Pages that are touched at nearly every resume, by ascending keys.
    pub(super) fn head(&self) -> impl Iterator<Item = u64> + '_ {
        let known = self.turns >= ENOUGH_TURNS;
        let often = self.history().filter(|(_, share)| *share >= NEARLY_EVERY);
        often.map(|(key, _)| key).filter(move |_| known)
    }

    /// The probability that the next turn touches a page.
    pub(super) fn share(&self, key: u64) -> f32 {
        let found = self.entries.binary_search_by_key(&key, |entry| entry.key);
        let entry = found.ok().and_then(|place| self.entries.get(place));
        entry.map_or(0.0, |entry| self.weight(entry) / (self.turns + DOUBT))
    }

    /// Bytes that it takes.
    pub(super) fn bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>()
    }

    /// Forgets the pages that `keep` says no to.
    pub(super) fn retain(&mut self, keep: impl Fn(u64) -> bool) {
        self.entries.retain(|entry| keep(entry.key));
    }

    fn weight(&self, entry: &Entry) -> f32 {
        let age = (self.turn - entry.turn) as usize;
        entry.weight * self.decay.get(age).copied().unwrap_or(0.0)
    }

    /// Forgets the least touched pages, as far as there is no room.
    fn shrink(&mut self) {
        if self.entries.len() <= self.most {
            return;
        }
        let mut entries = std::mem::take(&mut self.entries);
        let by_weight = |a: &Entry, b: &Entry| {
            let order = self.weight(b).total_cmp(&self.weight(a));
            order.then(a.key.cmp(&b.key))
        };
        if self.most > 0 {
            entries.select_nth_unstable_by(self.most - 1, by_weight);
        }
        entries.truncate(self.most);
        entries.sort_unstable_by_key(|entry| entry.key);
        entries.shrink_to_fit();
        self.entries = entries;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn share(set: &WorkingSet, key: u64) -> f32 {
        let found = set.shares().find(|s| s.0 == key).map_or(0.0, |s| s.1);
        assert_eq!(found, set.share(key));
        found
    }

    #[test]
    fn what_nobody_can_see_changes_nothing() {
        let mut set = WorkingSet::new(12.0, 100);
        for _ in 0..30 {
            set.learn(&[1, 2, 3], &[]);
        }
        let before = share(&set, 2);
        for _ in 0..30 {
            set.learn(&[1], &[2]);
        }
        assert!((share(&set, 2) - before).abs() < 0.02);
        assert!(share(&set, 3) < 0.2);
    }

    #[test]
    fn probability_is_the_share_of_turns() {
        let mut set = WorkingSet::new(12.0, 100);
        for turn in 0..60 {
            match turn % 4 {
                0 => set.learn(&[1, 2], &[]),
                _ => set.learn(&[1], &[]),
            }
        }
        assert!(share(&set, 1) > 0.95);
        assert!((share(&set, 2) - 0.25).abs() < 0.06, "{}", share(&set, 2));
        assert_eq!(set.head().collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn one_turn_proves_little_and_three_make_a_head() {
        let mut set = WorkingSet::new(4.0, 100);
        set.learn(&[5], &[]);
        assert!((0.5..0.75).contains(&share(&set, 5)));
        assert_eq!(set.head().count(), 0);
        set.learn(&[5], &[]);
        set.learn(&[5], &[]);
        assert!(share(&set, 5) > 0.8);
        assert_eq!(set.head().count(), 1);
    }

    #[test]
    fn forgets_what_stopped() {
        let mut set = WorkingSet::new(4.0, 100);
        for _ in 0..20 {
            set.learn(&[1, 2], &[]);
        }
        for _ in 0..4 {
            set.learn(&[2], &[]);
        }
        assert!(
            (share(&set, 1) - 0.47).abs() < 0.05,
            "half: {}",
            share(&set, 1)
        );
        for _ in 0..40 {
            set.learn(&[2], &[]);
        }
        assert_eq!(set.len(), 1);
    }

    #[test]
    fn what_others_learned_is_overruled() {
        let mut set = WorkingSet::new(4.0, 100);
        set.prior(&[(1, 1.0), (2, 0.5)], 3.0);
        assert!(share(&set, 1) > 0.8);
        assert!((share(&set, 2) - 0.43).abs() < 0.01);
        for _ in 0..12 {
            set.learn(&[2], &[]);
        }
        assert!(share(&set, 1) < 0.1 && share(&set, 2) > 0.8);
        // What is known already and what is told add up.
        set.prior(&[(2, 1.0), (3, 1.0)], 3.0);
        assert_eq!(set.shares().filter(|s| s.0 == 2).count(), 1);
        assert!(share(&set, 2) > share(&set, 3));
    }

    proptest! {
        #[test]
        fn bounded_sorted_and_probable(
            turns in prop::collection::vec(prop::collection::btree_set(0u64..300, 0..200), 0..40),
            most in 0usize..150,
        ) {
            let mut set = WorkingSet::new(3.0, most);
            for turn in turns {
                set.learn(&turn.into_iter().collect::<Vec<_>>(), &[]);
                prop_assert!(set.len() <= most);
                let shares: Vec<_> = set.shares().collect();
                prop_assert!(shares.windows(2).all(|pair| pair[0].0 < pair[1].0));
                prop_assert!(shares.iter().all(|s| (0.0..1.0).contains(&s.1)));
            }
        }
    }

    #[test]
    fn without_room_the_most_touched_stay() {
        let mut set = WorkingSet::new(8.0, 10);
        let often: Vec<u64> = (100..110).collect();
        for turn in 0..30u64 {
            let mut touched: Vec<u64> = (turn * 50..turn * 50 + 40).map(|k| 1000 + k).collect();
            touched.splice(0..0, often.iter().copied());
            set.learn(&touched, &[]);
        }
        assert_eq!(set.shares().map(|s| s.0).collect::<Vec<_>>(), often);
    }
}
