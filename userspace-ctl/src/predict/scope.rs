// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The one objective, `slo.first_tool_p99`, and what it does to all parts: while it is missed they narrow,
//! while it is met they widen.

use std::time::Duration;

/// Least scope: something is compressed always.
pub const MIN_SCOPE: f64 = 0.1;

/// Misses in a row that narrow.
const MISSES: u32 = 2;

/// Good observations in a row that widen.
const MEETS: u32 = 4;

/// A narrowing leaves so much of the scope.
const NARROWED: f64 = 0.7;

/// A widening adds so much.
const WIDER: f64 = 0.05;

/// The objective is met with room to spare below this share of it.
const ROOM: f64 = 0.8;

/// How far the controller may go, [`MIN_SCOPE`] to 1.
///
/// It falls fast (0.7 times) and rises slowly (0.05 more), and stays where it is between 80% of the
/// objective and the objective itself, so that it does not swing.
#[derive(Clone, Debug, PartialEq)]
pub struct Scope {
    objective: Duration,
    value: f64,
    missed: u32,
    met: u32,
}

impl Scope {
    /// The full scope, 1.
    pub fn new(objective: Duration) -> Scope {
        Scope {
            objective,
            value: 1.0,
            missed: 0,
            met: 0,
        }
    }

    /// Takes the 99th percentile of the latency of first tools, once for each time that it was measured
    /// anew; returns the scope.
    pub fn observe(&mut self, p99: Duration) -> f64 {
        let missed = p99 > self.objective;
        let met = p99 < self.objective.mul_f64(ROOM);
        self.missed = if missed { self.missed + 1 } else { 0 };
        self.met = if met { self.met + 1 } else { 0 };
        if self.missed >= MISSES {
            self.value = (self.value * NARROWED).max(MIN_SCOPE);
            self.missed = 0;
        }
        if self.met >= MEETS {
            self.value = (self.value + WIDER).min(1.0);
            self.met = 0;
        }
        self.value
    }

    /// The scope, [`MIN_SCOPE`] to 1.
    pub fn value(&self) -> f64 {
        self.value
    }

    /// A number between `narrow` and `wide`: `narrow` at scope 0, `wide` at scope 1.
    pub fn between(&self, narrow: f64, wide: f64) -> f64 {
        narrow + (wide - narrow) * self.value
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn narrows_while_missed_and_widens_while_met() {
        let mut scope = Scope::new(ms(10));
        assert_eq!(scope.observe(ms(25)), 1.0, "one miss is chance");
        assert_eq!(scope.observe(ms(25)), 0.7);
        for _ in 0..100 {
            scope.observe(ms(25));
        }
        assert_eq!(scope.value(), MIN_SCOPE);
        for _ in 0..100 {
            scope.observe(ms(9));
        }
        assert_eq!(scope.value(), MIN_SCOPE, "just met is no reason to widen");
        for _ in 0..4 {
            scope.observe(ms(7));
        }
        assert!((scope.value() - 0.15).abs() < 1e-9);
        for _ in 0..100 {
            scope.observe(ms(7));
        }
        assert_eq!(scope.value(), 1.0);
        assert_eq!(scope.between(3.0, 6.0), 6.0);
    }

    /// Against a machine whose latency grows with the scope it finds a place and stays near it.
    #[test]
    fn settles() {
        let mut scope = Scope::new(ms(10));
        let mut latest = Vec::new();
        for step in 0..400 {
            let p99 = Duration::from_secs_f64(0.020 * scope.value());
            let value = scope.observe(p99);
            if step >= 100 {
                latest.push(value);
            }
        }
        // The objective is met up to scope 0.5, with room to spare below 0.4.
        assert!(latest.iter().all(|v| (0.3..=0.5).contains(v)), "{latest:?}");
    }

    proptest! {
        #[test]
        fn stays_in_its_range(observed in prop::collection::vec(any::<u32>(), 0..200)) {
            let mut scope = Scope::new(ms(2000));
            for us in observed {
                let value = scope.observe(Duration::from_micros(us.into()));
                prop_assert!((MIN_SCOPE..=1.0).contains(&value));
            }
        }
    }
}
