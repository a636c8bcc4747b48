// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What is chosen at random: all of it follows from the seed of the round.

use crate::suite::fixture::page::{Kind, Rng, Spec};

/// A source of choices.
pub struct Random(Rng);

impl Random {
    /// That of one part of a round; parts differ by their number.
    pub fn new(seed: u64, part: u64) -> Random {
        Random(Rng::new(
            seed ^ part.wrapping_add(1).wrapping_mul(0xd6e8_feb8_6659_fd93),
        ))
    }

    /// The next 64 bits.
    pub fn next(&mut self) -> u64 {
        self.0.next()
    }

    /// A number below `end`, which is not 0.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() >> 16) as usize % end
    }

    /// True in so many of a hundred cases.
    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// One of these, of which there is at least one.
    pub fn of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }

    /// One of these, by their weights, whose sum is not 0.
    pub fn weighted<'a, T>(&mut self, all: &'a [(T, usize)]) -> &'a T {
        let mut at = self.below(all.iter().map(|(_, weight)| weight).sum());
        for (one, weight) in all {
            match at.checked_sub(*weight) {
                Some(rest) => at = rest,
                None => return one,
            }
        }
        unreachable!("the sum is that of all weights")
    }

    /// A stretch of at most `most` of so many pages: the first one, and how many.
    pub fn part(&mut self, pages: usize, most: usize) -> (usize, usize) {
        let from = self.below(pages);
        (from, 1 + self.below((pages - from).min(most)))
    }

    /// What a page may hold: zeros, a constant, its template page with some words changed, pages that
    /// siblings resemble, pages that nobody resembles, noise.
    pub fn spec(&mut self, page: usize) -> Spec {
        let seed = self.next() as u32;
        let words = (self.next() % 300) as u16;
        match self.below(16) {
            0 => Spec::ZERO,
            1 => Spec::new(Kind::Fill, seed),
            2..=5 => Spec::new(Kind::Heap, page as u32).edited(words, seed),
            6 | 7 => Spec::new(Kind::Heap, page as u32).edited(words % 8, seed),
            8..=10 => Spec::new(Kind::Text, page as u32 % 64).edited(words % 24, seed),
            11 => Spec::new(Kind::Text, page as u32 % 64).edited(1, seed % 8),
            12 | 13 => Spec::new(Kind::Heap, seed),
            14 => Spec::new(Kind::Text, seed),
            _ => Spec::new(Kind::Random, seed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_follow_from_the_seed() {
        let choices = |seed, part| {
            let mut random = Random::new(seed, part);
            (0..32).map(|_| random.below(1000)).collect::<Vec<_>>()
        };
        assert_eq!(choices(1, 2), choices(1, 2));
        assert_ne!(choices(1, 2), choices(1, 3));
        assert_ne!(choices(1, 2), choices(2, 2));
    }

    #[test]
    fn weights_and_parts() {
        let mut random = Random::new(7, 0);
        let mut seen = [0; 3];
        for _ in 0..1000 {
            seen[*random.weighted(&[(0, 1), (1, 0), (2, 9)])] += 1;
            let (from, pages) = random.part(10, 4);
            assert!((1..=4).contains(&pages) && from + pages <= 10);
        }
        assert!(
            seen[0] > 0 && seen[1] == 0 && seen[2] > 5 * seen[0],
            "{seen:?}"
        );
    }
}
