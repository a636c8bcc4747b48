// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Predictor: page-to-page transitions. What was faulted in soon after a page before will be again.
//!
//! For each page the pages among the next two faults of the same thread are counted: a follower that
//! another fault gets before now and then is still found. From the latest faults of a turn, and from its
//! beginning, the likeliest chains are followed, their probabilities multiplied. Only demand faults
//! teach: of pages restored ahead of need nobody knows in which order they were touched.

use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

/// Followers that are remembered of a page.
const FOLLOWERS: usize = 4;

/// Faults back that a page counts as a follower of.
const REACH: usize = 2;

/// Threads of a sandbox that are told apart at a time.
const THREADS: usize = 8;

/// A count at which all counts of a page are halved: what was is outweighed by what is.
const HALVED_AT: u16 = 32;

/// Chains end at this probability.
const LEAST: f32 = 0.1;

#[derive(Clone, Copy, Debug, Default)]
struct Node {
    followers: [u64; FOLLOWERS],
    counts: [u16; FOLLOWERS],
    /// How often it was faulted in.
    seen: u16,
    /// When, for the last time.
    used: u32,
}

/// Which knowledge it is: that of a template.
pub(super) type Space = u32;

/// Followers of pages.
#[derive(Clone, Debug, Default)]
pub(super) struct Transitions {
    nodes: BTreeMap<(Space, u64), Node>,
    most: usize,
    clock: u32,
}

/// The latest faults of a sandbox's threads.
#[derive(Clone, Debug, Default)]
pub(super) struct Recent(Vec<(i32, [u64; REACH], usize)>);

impl Recent {
    /// A turn, or a tool, begins: `from` stands for that.
    pub(super) fn begin(&mut self, from: u64) {
        self.0.clear();
        self.0.push((i32::MIN, [from; REACH], 1));
    }

    /// What the thread faulted in before; for its first fault what the turn began with.
    fn before(&mut self, thread: i32) -> usize {
        if let Some(place) = self.0.iter().position(|t| t.0 == thread) {
            // The latest is at the end.
            let recent = self.0.remove(place);
            self.0.push(recent);
        } else {
            let begin = self.0.iter().find(|t| t.0 == i32::MIN).copied();
            let (_, from, count) = begin.unwrap_or_default();
            if self.0.len() > THREADS {
                let oldest = usize::from(begin.is_some());
                self.0.remove(oldest);
            }
            self.0.push((thread, from, count));
        }
        self.0.len() - 1
    }

    /// The latest page of each thread, the latest thread first; before there is one, what the turn began
    /// with.
    fn latest(&self) -> impl Iterator<Item = u64> + '_ {
        let only = self.0.len() == 1;
        let threads = self.0.iter().rev();
        threads
            .filter(move |t| t.2 > 0 && (only || t.0 != i32::MIN))
            .map(|t| t.1[0])
    }
}

impl Transitions {
    /// Room for so many pages.
    pub(super) fn limit(&mut self, most: usize) {
        self.most = most;
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.nodes.len()
    }

    /// A thread touched a page that was out.
    pub(super) fn demand(&mut self, space: Space, recent: &mut Recent, key: u64, thread: i32) {
        self.clock = self.clock.saturating_add(1);
        let place = recent.before(thread);
        let Some((_, before, count)) = recent.0.get_mut(place) else {
            return;
        };
        for &from in &before[..*count] {
            if from != key {
                if let Some(node) = self.nodes.get_mut(&(space, from)) {
                    node.follow(key);
                } else {
                    // It was forgotten meanwhile.
                    self.node(space, from).follow(key);
                }
            }
        }
        before.rotate_right(1);
        before[0] = key;
        *count = (*count + 1).min(REACH);
        self.node(space, key);
    }

    /// A turn begins: counts how often it was begun with.
    pub(super) fn begin(&mut self, space: Space, recent: &mut Recent, from: u64) {
        self.clock = self.clock.saturating_add(1);
        recent.begin(from);
        self.node(space, from);
    }

    /// The node of a page, seen once more.
    fn node(&mut self, space: Space, key: u64) -> &mut Node {
        if self.nodes.len() >= self.most {
            self.forget();
        }
        let used = self.clock;
        let node = self.nodes.entry((space, key)).or_default();
        if node.seen >= HALVED_AT {
            node.seen /= 2;
            for count in &mut node.counts {
                *count /= 2;
            }
        }
        node.seen += 1;
        node.used = used;
        node
    }

    /// Pages that the chains from the latest faults lead to, at most `most`, with their probabilities.
    pub(super) fn foresee(&self, space: Space, recent: &Recent, most: usize) -> Vec<(u64, f32)> {
        let mut best: BTreeMap<u64, f32> = BTreeMap::new();
        let mut done: BTreeSet<u64> = BTreeSet::new();
        // Probabilities are positive: their bits are in their order.
        let mut queue: BinaryHeap<(u32, u64)> = BinaryHeap::new();
        for key in recent.latest() {
            done.insert(key);
            queue.push((1f32.to_bits(), key));
        }
        let mut foreseen = Vec::new();
        while let Some((bits, key)) = queue.pop() {
            let probability = f32::from_bits(bits);
            if best.get(&key).is_some_and(|&p| p > probability) {
                continue;
            }
            if !done.contains(&key) {
                if foreseen.len() >= most {
                    break;
                }
                done.insert(key);
                foreseen.push((key, probability));
            }
            let Some(node) = self.nodes.get(&(space, key)) else {
                continue;
            };
            for (&follower, &count) in node.followers.iter().zip(&node.counts) {
                let share = f32::from(count) / (f32::from(node.seen) + 0.5);
                let chance = probability * share.min(0.98);
                let known = best.get(&follower).copied().unwrap_or(0.0);
                if count > 0 && chance >= LEAST && chance > known && !done.contains(&follower) {
                    best.insert(follower, chance);
                    queue.push((chance.to_bits(), follower));
                }
            }
        }
        foreseen
    }

    /// Bytes that it takes: nodes of the map are two thirds full.
    pub(super) fn bytes(&self) -> usize {
        self.nodes.len() * (size_of::<((Space, u64), Node)>() * 3 / 2)
    }

    /// Forgets pages of which `keep` says no.
    pub(super) fn retain(&mut self, keep: impl Fn(Space, u64) -> bool) {
        self.nodes.retain(|&(space, key), _| keep(space, key));
    }

    /// Makes room: the quarter that was unused for longest goes.
    fn forget(&mut self) {
        let mut used: Vec<u32> = self.nodes.values().map(|node| node.used).collect();
        if used.is_empty() {
            return;
        }
        let place = (used.len() / 4).min(used.len() - 1);
        let (_, &mut limit, _) = used.select_nth_unstable(place);
        self.nodes.retain(|_, node| node.used > limit);
    }
}

impl Node {
    fn follow(&mut self, key: u64) {
        let known = self
            .followers
            .iter()
            .zip(&self.counts)
            .position(|(&follower, &count)| follower == key && count > 0);
        if let Some(place) = known {
            self.counts[place] = self.counts[place].saturating_add(1).min(self.seen.max(1));
            return;
        }
        // The least counted one makes room when it counts no more than 1, else it counts less.
        let least = (0..FOLLOWERS).min_by_key(|&i| self.counts[i]).unwrap_or(0);
        if self.counts[least] <= 1 {
            self.followers[least] = key;
            self.counts[least] = 1;
        } else {
            self.counts[least] -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn keys(foreseen: &[(u64, f32)]) -> BTreeSet<u64> {
        foreseen.iter().map(|f| f.0).collect()
    }

    fn table(most: usize) -> Transitions {
        let mut transitions = Transitions::default();
        transitions.limit(most);
        transitions
    }

    fn turn(transitions: &mut Transitions, recent: &mut Recent, keys: &[u64]) {
        transitions.begin(1, recent, u64::MAX);
        for &key in keys {
            transitions.demand(1, recent, key, 7);
        }
    }

    #[test]
    fn a_chain_is_followed_from_the_beginning_and_from_the_middle() {
        let mut transitions = table(1000);
        let mut recent = Recent::default();
        let chain = [50, 3, 900, 12, 7000, 1];
        for _ in 0..6 {
            turn(&mut transitions, &mut recent, &chain);
        }
        turn(&mut transitions, &mut recent, &[]);
        let foreseen = transitions.foresee(1, &recent, 10);
        assert_eq!(keys(&foreseen), BTreeSet::from(chain));
        turn(&mut transitions, &mut recent, &[900]);
        let foreseen = transitions.foresee(1, &recent, 2);
        assert_eq!(keys(&foreseen), BTreeSet::from([12, 7000]));
        assert!(foreseen.iter().all(|f| f.1 > 0.75), "{foreseen:?}");
        assert!(
            transitions.foresee(2, &recent, 10).is_empty(),
            "other templates"
        );
    }

    #[test]
    fn a_fault_in_between_does_not_break_it() {
        let mut transitions = table(1000);
        let mut recent = Recent::default();
        for number in 0..8 {
            turn(&mut transitions, &mut recent, &[1, 1000 + number, 2, 3]);
        }
        turn(&mut transitions, &mut recent, &[1]);
        let foreseen = transitions.foresee(1, &recent, 2);
        assert_eq!(keys(&foreseen), BTreeSet::from([2, 3]));
    }

    #[test]
    fn what_stopped_being_true_is_outweighed() {
        let mut transitions = table(1000);
        let mut recent = Recent::default();
        for _ in 0..30 {
            turn(&mut transitions, &mut recent, &[1, 2]);
        }
        for _ in 0..40 {
            turn(&mut transitions, &mut recent, &[1, 5]);
        }
        turn(&mut transitions, &mut recent, &[1]);
        let foreseen = transitions.foresee(1, &recent, 1);
        assert_eq!(foreseen[0].0, 5);
    }

    #[test]
    fn the_longest_unused_go() {
        let mut transitions = table(100);
        let mut recent = Recent::default();
        for key in 0..10_000 {
            transitions.demand(1, &mut recent, key, 1);
            assert!(transitions.len() <= 100);
        }
        assert!(transitions.nodes.contains_key(&(1, 9_999)));
        assert!(!transitions.nodes.contains_key(&(1, 0)));
    }

    proptest! {
        #[test]
        fn bounded_and_probable(
            faults in prop::collection::vec((0u64..60, 0i32..20), 0..600),
            most in 0usize..50,
        ) {
            let mut transitions = table(40);
            let mut recent = Recent::default();
            transitions.begin(1, &mut recent, u64::MAX);
            for (key, thread) in faults {
                transitions.demand(1, &mut recent, key, thread);
                prop_assert!(recent.0.len() <= THREADS + 1);
            }
            prop_assert!(transitions.len() <= 40);
            let foreseen = transitions.foresee(1, &recent, most);
            prop_assert!(foreseen.len() <= most);
            prop_assert!(foreseen.iter().all(|f| (LEAST..1.0).contains(&f.1)));
            prop_assert!(foreseen.windows(2).all(|pair| pair[0].1 >= pair[1].1));
            let mut keys: Vec<u64> = foreseen.iter().map(|f| f.0).collect();
            keys.sort_unstable();
            keys.dedup();
            prop_assert_eq!(keys.len(), foreseen.len());
        }
    }
}
