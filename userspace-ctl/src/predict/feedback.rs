// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What prefetch brought and what it cost: one set of figures for all parts.

use std::collections::VecDeque;
use std::ops::AddAssign;
use std::time::Duration;

use super::place::{Seen, What};

/// Counts since the start, of a sandbox or of all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Demand faults.
    pub demand: u64,
    /// Pages restored ahead of need that were touched within the hit window.
    pub hits: u64,
    /// Pages restored ahead of need that were not.
    pub misses: u64,
    /// Nanoseconds that demand faults waited for decoding.
    pub stall_ns: u64,
    /// Nanoseconds of CPU that restoring ahead of need took.
    pub cost_ns: u64,
}

impl Figures {
    /// Counts records of a ring.
    pub fn count(&mut self, seen: &[Seen]) {
        for one in seen {
            match one.what {
                What::Demand => {
                    self.demand += 1;
                    self.stall_ns += u64::from(one.stall_ns);
                }
                What::Hit => self.hits += 1,
                What::Miss => self.misses += 1,
            }
        }
    }

    /// Share of the faults that would have been without prefetch, and were not: hits / (hits + demand
    /// faults). `None`: there were none.
    pub fn coverage(&self) -> Option<f64> {
        share(self.hits, self.hits + self.demand)
    }

    /// Share of the pages restored ahead of need that were touched in time. `None`: there were none.
    pub fn hit_ratio(&self) -> Option<f64> {
        share(self.hits, self.hits + self.misses)
    }

    /// Share of the pages restored ahead of need that were not touched in time. `None`: there were none.
    pub fn waste(&self) -> Option<f64> {
        share(self.misses, self.hits + self.misses)
    }

    /// Nanoseconds of CPU for each hit. `None`: there was none.
    pub fn cost_per_hit(&self) -> Option<f64> {
        (self.hits > 0).then(|| self.cost_ns as f64 / self.hits as f64)
    }
}

impl AddAssign for Figures {
    fn add_assign(&mut self, other: Figures) {
        self.demand += other.demand;
        self.hits += other.hits;
        self.misses += other.misses;
        self.stall_ns += other.stall_ns;
        self.cost_ns += other.cost_ns;
    }
}

fn share(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

/// Samples that [`Latencies`] keeps.
const KEPT: usize = 512;

/// The latest of a series of latencies, for their quantiles.
#[derive(Clone, Debug, Default)]
pub struct Latencies(VecDeque<Duration>);

impl Latencies {
    /// Fewest samples that have a 99th percentile worth the name.
    pub const ENOUGH: usize = 20;

    /// Adds one; the oldest of more than 512 goes.
    pub fn push(&mut self, latency: Duration) {
        if self.0.len() == KEPT {
            self.0.pop_front();
        }
        self.0.push_back(latency);
    }

    /// How many there are, at most 512.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// There are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The 99th percentile; `None` for fewer than [`Self::ENOUGH`].
    pub fn p99(&self) -> Option<Duration> {
        if self.len() < Self::ENOUGH {
            return None;
        }
        let mut sorted: Vec<Duration> = self.0.iter().copied().collect();
        sorted.sort_unstable();
        sorted.get((sorted.len() * 99).div_ceil(100) - 1).copied()
    }

    /// Forgets all of them.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::super::place::{Place, Role};
    use super::*;

    #[test]
    fn ratios() {
        let seen = |what, stall_ns| Seen {
            at: Duration::ZERO,
            place: Place {
                role: Role(0),
                page: 1,
            },
            thread: 1,
            write: false,
            what,
            stall_ns,
        };
        let mut figures = Figures::default();
        assert_eq!(figures.coverage(), None);
        assert_eq!(figures.hit_ratio(), None);
        assert_eq!(figures.cost_per_hit(), None);
        figures.count(&[
            seen(What::Demand, 700),
            seen(What::Hit, 0),
            seen(What::Hit, 0),
            seen(What::Hit, 0),
            seen(What::Miss, 0),
        ]);
        figures.cost_ns = 6000;
        assert_eq!(figures.coverage(), Some(0.75));
        assert_eq!(figures.hit_ratio(), Some(0.75));
        assert_eq!(figures.waste(), Some(0.25));
        assert_eq!(figures.cost_per_hit(), Some(2000.0));
        assert_eq!(figures.stall_ns, 700);
        let mut total = figures;
        total += figures;
        assert_eq!((total.hits, total.demand, total.misses), (6, 2, 2));
        assert_eq!((total.stall_ns, total.cost_ns), (1400, 12000));
    }

    #[test]
    fn p99_of_the_latest() {
        let mut latencies = Latencies::default();
        for ms in 1..20 {
            latencies.push(Duration::from_millis(ms));
        }
        assert_eq!(latencies.p99(), None);
        latencies.push(Duration::from_millis(20));
        assert_eq!(latencies.p99(), Some(Duration::from_millis(20)));
        for ms in 1..=1000 {
            latencies.push(Duration::from_millis(ms));
        }
        // Of 489 to 1000 the 507th.
        assert_eq!(latencies.len(), 512);
        assert_eq!(latencies.p99(), Some(Duration::from_millis(995)));
        latencies.clear();
        assert!(latencies.is_empty());
    }
}
