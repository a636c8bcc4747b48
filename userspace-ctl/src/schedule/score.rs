// SPDX-License-Identifier: GPL-2.0 OR MIT

//! How much a sandbox is worth compressing: `w1*pressure + w2*idle - w3*access - w4*resume`.

use std::time::Duration;

use crate::config::Weights;
use crate::lifecycle::Time;

/// Over which time uses of a sandbox count.
pub const ACCESS_WINDOW: Duration = Duration::from_secs(300);

/// The wait that counts half: a sandbox that is expected to wait this long has an idle term of 0.5.
const HALF_WAIT: Duration = Duration::from_secs(30);

/// The restore that costs half.
const HALF_RESTORE: Duration = Duration::from_secs(1);

/// The terms, each from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Terms {
    /// How much the host needs memory: 0 at the low watermark or below, 1 at the high one.
    pub pressure: f64,
    /// How long it is going to wait: 0.5 for 30 s.
    pub idle: f64,
    /// For which part of the last five minutes it was in use.
    pub access: f64,
    /// What its return costs: 0.5 for a second of restoring.
    pub resume: f64,
}

impl Terms {
    /// The score: at most `w1 + w2`, at least `-(w3 + w4)`.
    pub fn score(&self, weights: &Weights) -> f64 {
        let part = |term: f64| {
            if term.is_nan() {
                0.0
            } else {
                term.clamp(0.0, 1.0)
            }
        };
        weights.pressure * part(self.pressure) + weights.idle * part(self.idle)
            - weights.access * part(self.access)
            - weights.resume * part(self.resume)
    }
}

/// The pressure term: `used`, `low` and `high` are parts of 1.
pub fn pressure(used: f64, low: f64, high: f64) -> f64 {
    ((used - low) / (high - low).max(0.01)).clamp(0.0, 1.0)
}

/// The idle term of a sandbox that is going to wait this long.
pub fn idle(wait: Duration) -> f64 {
    saturation(wait, HALF_WAIT)
}

/// The resume term of a sandbox whose return takes this long.
pub fn resume(restore: Duration) -> f64 {
    saturation(restore, HALF_RESTORE)
}

/// 0 for nothing, 0.5 for `half`, nearly 1 for much more.
fn saturation(time: Duration, half: Duration) -> f64 {
    let time = time.as_secs_f64();
    time / (time + half.as_secs_f64())
}

/// For which part of the last minutes a sandbox was in use: an average that forgets exponentially.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Access {
    part: f64,
    at: Time,
}

impl Access {
    /// A sandbox that was just made is in use.
    pub fn new(now: Time) -> Access {
        Access { part: 1.0, at: now }
    }

    /// Since the last call it was in use, or not.
    pub fn record(&mut self, in_use: bool, now: Time) {
        let passed = now.saturating_sub(self.at).as_secs_f64();
        self.at = now;
        let keep = (-passed / ACCESS_WINDOW.as_secs_f64()).exp();
        self.part = self.part * keep + if in_use { 1.0 - keep } else { 0.0 };
    }

    /// The access term.
    pub fn part(&self) -> f64 {
        self.part
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Profiles;
    use proptest::prelude::*;

    #[test]
    fn the_terms_point_the_right_way() {
        let weights: Weights = Profiles::default().interactive.into();
        let score = |terms: Terms| terms.score(&weights);
        let base = Terms {
            pressure: 0.5,
            idle: 0.5,
            access: 0.5,
            resume: 0.5,
        };
        assert!(
            score(Terms {
                pressure: 1.0,
                ..base
            }) > score(base)
        );
        assert!(score(Terms { idle: 1.0, ..base }) > score(base));
        assert!(
            score(Terms {
                access: 1.0,
                ..base
            }) < score(base)
        );
        assert!(
            score(Terms {
                resume: 1.0,
                ..base
            }) < score(base)
        );
        // Batch gives way to pressure sooner.
        let batch: Weights = Profiles::default().batch.into();
        let used = Terms {
            pressure: 1.0,
            access: 0.8,
            ..Terms::default()
        };
        assert!(used.score(&batch) > 0.1 && used.score(&weights) < 0.1);
    }

    #[test]
    fn terms_of_single_values() {
        assert_eq!(pressure(0.5, 0.6, 0.75), 0.0);
        assert_eq!(pressure(0.9, 0.6, 0.75), 1.0);
        assert_eq!(idle(Duration::from_secs(30)), 0.5);
        assert_eq!(idle(Duration::ZERO), 0.0);
        assert_eq!(resume(Duration::from_secs(1)), 0.5);
    }

    #[test]
    fn access_forgets() {
        let mut access = Access::new(Duration::ZERO);
        access.record(false, ACCESS_WINDOW);
        assert!((access.part() - (-1.0f64).exp()).abs() < 1e-9);
        for second in 0..3000 {
            access.record(second % 2 == 0, ACCESS_WINDOW + Duration::from_secs(second));
        }
        assert!((access.part() - 0.5).abs() < 0.01, "{access:?}");
        // The clock goes back: nothing happens.
        let before = access.part();
        access.record(true, Duration::ZERO);
        assert_eq!(access.part(), before);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_terms_give_a_bounded_score(terms in prop::array::uniform4(any::<f64>())) {
            let weights: Weights = Profiles::default().batch.into();
            let [pressure, idle, access, resume] = terms;
            let score = Terms { pressure, idle, access, resume }.score(&weights);
            prop_assert!((-0.2001..=0.8001).contains(&score), "{}", score);
        }
    }
}
