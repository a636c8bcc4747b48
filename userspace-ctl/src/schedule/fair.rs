// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Deficit round robin: everyone in the ring gets bytes in proportion to its weight, whatever the
//! size of what it then takes.

use std::collections::{HashMap, VecDeque};

/// Bytes that a weight of 1 gets in each round.
pub const QUANTUM: u64 = 16 << 20;

/// A ring of those that want work.
#[derive(Clone, Debug, Default)]
pub struct Ring {
    order: VecDeque<u64>,
    deficit: HashMap<u64, u64>,
}

/// What the ring is told about its head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// It may take at most this many bytes now.
    Take(u64),
    /// It may take nothing now, and keeps its place for the next round.
    Skip,
    /// It wants nothing any more.
    Leave,
}

impl Ring {
    /// Nobody wants anything.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// How many are in it.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Those that are in it, in order.
    pub fn ids(&self) -> impl Iterator<Item = u64> + '_ {
        self.order.iter().copied()
    }

    /// Adds one at the end, unless it is there.
    pub fn add(&mut self, id: u64) {
        if !self.order.contains(&id) {
            self.order.push_back(id);
            self.deficit.entry(id).or_insert(0);
        }
    }

    /// Takes one out; what it did not take is forgotten.
    pub fn remove(&mut self, id: u64) {
        self.order.retain(|other| *other != id);
        self.deficit.remove(&id);
    }

    /// The next one that may take something, with how many bytes; it leaves the ring until it is
    /// [added](Ring::add) again. Each is asked once at most.
    ///
    /// `weight` is relative; what is not between 0.1 and 10 counts as the nearer of the two.
    pub fn next(
        &mut self,
        mut weight: impl FnMut(u64) -> f64,
        mut turn: impl FnMut(u64) -> Turn,
    ) -> Option<(u64, u64)> {
        for _ in 0..self.order.len() {
            let id = self.order.pop_front()?;
            match turn(id) {
                Turn::Leave => {
                    self.deficit.remove(&id);
                }
                Turn::Skip => self.order.push_back(id),
                Turn::Take(most) => {
                    let share = (QUANTUM as f64 * weight(id).clamp(0.1, 10.0)) as u64;
                    let deficit = self.deficit.entry(id).or_insert(0);
                    // What one could not take once may be made up for, but not without bound.
                    let credit = deficit.saturating_add(share).min(4 * QUANTUM);
                    let bytes = credit.min(most);
                    *deficit = credit - bytes;
                    return Some((id, bytes));
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives out `rounds` turns; each takes at most `most(id)`.
    fn shares(
        ids: u64,
        turns: usize,
        weight: impl Fn(u64) -> f64,
        most: impl Fn(u64) -> u64,
    ) -> Vec<f64> {
        let mut ring = Ring::default();
        (0..ids).for_each(|id| ring.add(id));
        let mut got = vec![0.0; ids as usize];
        for _ in 0..turns {
            let (id, bytes) = ring.next(&weight, |id| Turn::Take(most(id))).unwrap();
            got[id as usize] += bytes as f64;
            ring.add(id);
        }
        got
    }

    /// 1: all the same.
    fn jain(values: &[f64]) -> f64 {
        let sum: f64 = values.iter().sum();
        let squares: f64 = values.iter().map(|v| v * v).sum();
        sum * sum / (values.len() as f64 * squares)
    }

    #[test]
    fn a_hundred_alike_get_the_same() {
        let got = shares(100, 1000, |_| 1.0, |_| u64::MAX);
        assert_eq!(jain(&got), 1.0);
    }

    #[test]
    fn small_bites_are_made_up_for() {
        // One may take only half a quantum at a time, one time in two nothing is lost.
        let got = shares(
            2,
            400,
            |_| 1.0,
            |id| if id == 0 { QUANTUM } else { u64::MAX },
        );
        assert!(jain(&got) > 0.99, "{got:?}");
    }

    #[test]
    fn weights_count() {
        let got = shares(2, 400, |id| if id == 0 { 0.5 } else { 1.5 }, |_| u64::MAX);
        assert!((got[1] / got[0] - 3.0).abs() < 0.05, "{got:?}");
        let got = shares(
            2,
            400,
            |id| if id == 0 { f64::NAN } else { 1e9 },
            |_| u64::MAX,
        );
        assert!(got.iter().all(|bytes| bytes.is_finite()));
    }

    #[test]
    fn those_that_may_not_keep_their_place() {
        let mut ring = Ring::default();
        (1..=3).for_each(|id| ring.add(id));
        ring.add(2);
        assert_eq!(ring.len(), 3);
        let turn = |id| match id {
            1 => Turn::Skip,
            2 => Turn::Leave,
            _ => Turn::Take(u64::MAX),
        };
        assert_eq!(ring.next(|_| 1.0, turn), Some((3, QUANTUM)));
        assert_eq!(ring.next(|_| 1.0, turn), None);
        assert_eq!(ring.len(), 1);
        ring.remove(1);
        assert!(ring.is_empty());
        assert_eq!(ring.next(|_| 1.0, turn), None);
    }

    #[test]
    fn nobody_starves() {
        let mut ring = Ring::default();
        (0..50).for_each(|id| ring.add(id));
        let mut seen = std::collections::HashSet::new();
        for _ in 0..50 {
            let (id, _) = ring.next(|id| id as f64, |_| Turn::Take(u64::MAX)).unwrap();
            ring.add(id);
            seen.insert(id);
        }
        assert_eq!(seen.len(), 50);
    }
}
