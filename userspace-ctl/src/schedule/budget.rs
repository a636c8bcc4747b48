// SPDX-License-Identifier: GPL-2.0 OR MIT

//! CPU time that may be spent: a bucket that fills at a fixed rate.
//!
//! What a job takes is known when it has ended, so its estimate is set aside when it begins and
//! replaced by what it took. A job that took more than there was leaves a debt; nothing begins until
//! that is paid. So over any time the work takes no more than its rate, one bucket, and what the
//! last job of each worker took too much.

use std::time::Duration;

use crate::lifecycle::Time;

/// How long the bucket takes to fill: what was not used for longer is lost.
const CAPACITY: Duration = Duration::from_secs(1);

/// A bucket of CPU time.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Seconds of CPU time for each second.
    rate: f64,
    /// Seconds of CPU time that are there; negative: owed.
    level: f64,
    at: Time,
}

impl Budget {
    /// A full bucket.
    pub fn new(rate: f64, now: Time) -> Budget {
        let rate = if rate.is_finite() {
            rate.max(0.001)
        } else {
            0.001
        };
        Budget {
            rate,
            level: rate * CAPACITY.as_secs_f64(),
            at: now,
        }
    }

    /// Seconds of CPU time for each second.
    pub fn rate(&self) -> f64 {
        self.rate
    }

    /// Changes the rate; debts stay.
    pub fn set_rate(&mut self, rate: f64) {
        let fresh = Budget::new(rate, self.at);
        self.rate = fresh.rate;
        self.level = self.level.min(fresh.level);
    }

    /// Lets time go on. When the clock went back, none has passed.
    pub fn advance(&mut self, now: Time) {
        let passed = now.saturating_sub(self.at).as_secs_f64();
        self.at = now;
        self.level = (self.level + passed * self.rate).min(self.full());
    }

    fn full(&self) -> f64 {
        self.rate * CAPACITY.as_secs_f64()
    }

    /// Something may begin.
    pub fn is_open(&self) -> bool {
        self.level > 0.0
    }

    /// What is not spent now is lost.
    pub fn is_full(&self) -> bool {
        // It fills in steps, which round.
        self.level >= self.full() * 0.999
    }

    /// Sets an estimate aside.
    pub fn reserve(&mut self, estimate: Duration) {
        self.level -= estimate.as_secs_f64();
    }

    /// Replaces an estimate by what was taken.
    pub fn settle(&mut self, estimate: Duration, taken: Duration) {
        self.level += estimate.as_secs_f64() - taken.as_secs_f64();
    }

    /// When something may begin, if nothing happens until then.
    pub fn opens_at(&self) -> Time {
        self.reaches(0.0)
    }

    /// When it will be full, if nothing happens until then.
    pub fn full_at(&self) -> Time {
        self.reaches(self.full())
    }

    fn reaches(&self, level: f64) -> Time {
        let wait = ((level - self.level) / self.rate).clamp(0.0, 86_400.0);
        // A millisecond more, so that it is open then.
        self.at
            .saturating_add(Duration::from_secs_f64(wait))
            .saturating_add(Duration::from_millis(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[test]
    fn jobs_of_unknown_cost_keep_to_the_rate() {
        // Half a processor; each job takes three times its estimate, as soon as it may begin.
        let mut budget = Budget::new(0.5, Duration::ZERO);
        let (mut now, mut used) = (Duration::ZERO, Duration::ZERO);
        while now < Duration::from_secs(60) {
            budget.advance(now);
            if budget.is_open() {
                budget.reserve(MS(10));
                now += MS(30);
                budget.advance(now);
                budget.settle(MS(10), MS(30));
                used += MS(30);
            } else {
                now = budget.opens_at();
            }
        }
        let part = used.as_secs_f64() / now.as_secs_f64();
        assert!((0.49..0.52).contains(&part), "{part}");
    }

    #[test]
    fn what_is_not_used_is_lost() {
        let mut budget = Budget::new(0.25, Duration::ZERO);
        budget.advance(Duration::from_secs(3600));
        assert!(budget.is_full());
        budget.reserve(MS(251));
        assert!(!budget.is_open() && !budget.is_full());
        budget.settle(MS(251), MS(125));
        let full = budget.full_at();
        assert!(
            (MS(500)..=MS(502)).contains(&(full - Duration::from_secs(3600))),
            "{full:?}"
        );
        budget.advance(full);
        assert!(budget.is_full());
    }

    #[test]
    fn the_clock_may_jump() {
        let mut budget = Budget::new(0.5, Duration::from_secs(1000));
        budget.reserve(Duration::from_secs(1));
        budget.advance(Duration::ZERO);
        assert!(!budget.is_open());
        let opens = budget.opens_at();
        assert!(opens <= Duration::from_millis(1002), "{opens:?}");
        budget.advance(opens);
        assert!(budget.is_open());
        budget.advance(Duration::MAX);
        budget.settle(Duration::ZERO, Duration::MAX);
        assert!(!budget.is_open());
        let _ = budget.opens_at();
    }

    #[test]
    fn no_rate_stops_it_for_ever() {
        for rate in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(Budget::new(rate, Duration::ZERO).is_open());
        }
    }
}
