// SPDX-License-Identifier: GPL-2.0 OR MIT

//! How often one sandbox may set much in motion: a bucket of turns.
//!
//! A turn, from a wait to the next, costs a start of reclaim and a restore. Agents take seconds for one;
//! a runtime that goes round in circles, or means harm, could take thousands, and with them the CPU
//! budget of all others. Its state is always what its hints say, and it is always told to the module;
//! only what costs has to wait.

use std::time::Duration;

use crate::lifecycle::Time;

/// Turns that may be taken at once.
const BURST: f64 = 10.0;
/// Time after which there is one more.
const EACH: Duration = Duration::from_secs(1);

/// Turns that are left.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Allowance {
    left: f64,
    at: Time,
}

impl Allowance {
    /// All of them.
    pub fn new(now: Time) -> Allowance {
        Allowance {
            left: BURST,
            at: now,
        }
    }

    /// There is one left.
    pub fn has_any(&self, now: Time) -> bool {
        self.after(now) >= 1.0
    }

    /// When there will be one.
    pub fn next(&self, now: Time) -> Time {
        if self.has_any(now) {
            return now;
        }
        let missing = (1.0 - self.after(now)).clamp(0.0, 1.0);
        // A millisecond more, so that it is there then.
        let wait = EACH.mul_f64(missing) + Duration::from_millis(1);
        now.saturating_add(wait)
    }

    /// Takes one, if there is one.
    pub fn take(&mut self, now: Time) {
        let left = self.after(now);
        self.left = if left >= 1.0 { left - 1.0 } else { left };
        self.at = now;
    }

    fn after(&self, now: Time) -> f64 {
        // When the clock went back, no time has passed.
        let passed = now.saturating_sub(self.at).as_secs_f64() / EACH.as_secs_f64();
        (self.left + passed).min(BURST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_at_once_then_one_a_second() {
        let at = Duration::from_millis;
        let mut allowance = Allowance::new(at(0));
        let mut taken = 0;
        for ms in 0..20_000 {
            if allowance.has_any(at(ms)) {
                taken += 1;
            }
            allowance.take(at(ms));
        }
        assert_eq!(taken, 29);
        let next = allowance.next(at(19_999));
        assert!(next >= at(19_999) && next < at(21_100), "{next:?}");
        assert!(allowance.has_any(next));
        assert_eq!(allowance.next(next), next);
        assert!(!allowance.has_any(at(0)));
        assert!(allowance.has_any(at(40_000)));
    }
}
