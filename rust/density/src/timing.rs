// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Times of single operations.

use std::hint::black_box;
use std::time::Instant;

use serde::Serialize;

/// No operation on a page takes so long, ns.
pub const INTERRUPTED_NS: u32 = 1_000_000;

/// Reads of the clock from which its cost is known.
const READS: usize = 20_001;

/// A clock that takes its own cost off.
#[derive(Clone, Copy)]
pub struct Clock {
    cost_ns: u64,
}

impl Clock {
    /// Measures what reading the clock costs.
    pub fn new() -> Self {
        let mut costs: Vec<u64> = (0..READS)
            .map(|_| {
                let start = Instant::now();
                black_box(());
                start.elapsed().as_nanos() as u64
            })
            .collect();
        costs.sort_unstable();
        Self {
            cost_ns: costs[READS / 2],
        }
    }

    /// Runs an operation and adds its time to `samples`.
    pub fn time<T>(&self, samples: &mut Samples, operation: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = black_box(operation());
        let ns = start.elapsed().as_nanos() as u64;
        samples.add(ns.saturating_sub(self.cost_ns));
        result
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

/// Times of many operations, ns.
#[derive(Clone, Default)]
pub struct Samples(Vec<u32>);

impl Samples {
    /// Adds one. What took longer than [`INTERRUPTED_NS`] is left out: the machine did something
    /// else meanwhile.
    pub fn add(&mut self, ns: u64) {
        match u32::try_from(ns) {
            Ok(ns) if ns <= INTERRUPTED_NS => self.0.push(ns),
            _ => {}
        }
    }

    /// The latest.
    pub fn last(&self) -> Option<u64> {
        self.0.last().copied().map(u64::from)
    }

    /// Sums them up.
    pub fn times(&self) -> Times {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let count = sorted.len();
        let at = |part: usize| sorted.get((count * part / 100).min(count.saturating_sub(1)));
        let sum: u64 = sorted.iter().copied().map(u64::from).sum();
        Times {
            count: count as u64,
            median: at(50).copied().unwrap_or(0).into(),
            mean: sum.checked_div(count as u64).unwrap_or(0),
            p99: at(99).copied().unwrap_or(0).into(),
        }
    }
}

/// Statistics of times, ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Times {
    /// Number of operations.
    pub count: u64,
    /// Half of them took at most this.
    pub median: u64,
    /// Their mean.
    pub mean: u64,
    /// 99 of 100 took at most this.
    pub p99: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics() {
        let mut samples = Samples::default();
        assert_eq!(samples.times(), Times::default());
        for ns in (1..=200).rev() {
            samples.add(ns);
        }
        let expected = Times {
            count: 200,
            median: 101,
            mean: 100,
            p99: 199,
        };
        assert_eq!(samples.times(), expected);
    }

    #[test]
    fn the_clocks_cost_is_taken_off() {
        let clock = Clock::new();
        let mut samples = Samples::default();
        for _ in 0..1001 {
            clock.time(&mut samples, || ());
        }
        assert!(samples.times().median <= clock.cost_ns);
    }
}
