// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The alarm: prefetch became worse than it used to be, or the objective is missed.
//!
//! A change elsewhere, of sampling for example, can ruin prefetch without any error. So the share of
//! hits is compared with its own long-term mean, and latency with the objective. Results come in blocks;
//! three blocks in a row raise the alarm, and three clear it, at thresholds that lie apart: noise
//! does neither.

use std::time::Duration;

/// Least results of a block.
pub const BLOCK: u64 = 256;

/// Blocks, or latencies, in a row that raise or clear.
pub const IN_A_ROW: u32 = 3;

/// Blocks before the mean is one to compare with.
const LEARNING: u32 = 4;

/// A block is low when its hit ratio is so much below the mean.
const DROP: f64 = 0.15;

/// It is well again when it is less than that below.
const RECOVERED: f64 = 0.075;

/// Share of a new block in the mean: three quarters are forgotten in about 44 blocks.
const LEARN: f64 = 1.0 / 32.0;

/// The same while the alarm is raised or a block is low: what is wrong becomes usual only slowly.
const LEARN_LOW: f64 = 1.0 / 512.0;

/// A latency is well again below this share of the objective.
const WELL: f64 = 0.8;

/// What an alarm is about.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Cause {
    /// Fewer of the pages restored ahead of need are touched than usual.
    HitRatio {
        /// The long-term mean.
        usual: f64,
        /// That of the latest block.
        now: f64,
    },
    /// `slo.first_tool_p99` is missed.
    Latency {
        /// The objective.
        objective: Duration,
        /// The latest.
        now: Duration,
    },
}

/// What an observation changed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Change {
    /// The alarm is raised.
    Raised(Cause),
    /// It is over.
    Cleared(Cause),
}

/// Raised after so many bad observations in a row, cleared after so many good ones.
#[derive(Clone, Copy, Debug, Default)]
struct Latch {
    raised: bool,
    row: u32,
}

impl Latch {
    /// Takes an observation: whether it is bad, and whether it is good. Says if it turned.
    fn observe(&mut self, bad: bool, good: bool) -> bool {
        let against = if self.raised { good } else { bad };
        self.row = if against { self.row + 1 } else { 0 };
        let turned = self.row >= IN_A_ROW;
        if turned {
            self.raised = !self.raised;
            self.row = 0;
        }
        turned
    }
}

/// Both alarms.
#[derive(Clone, Debug)]
pub struct Alarm {
    objective: Option<Duration>,
    hits: u64,
    results: u64,
    blocks: u32,
    usual: f64,
    now: f64,
    low: Latch,
    late: Latch,
}

impl Alarm {
    /// With the objective `slo.first_tool_p99`, if there is one.
    pub fn new(objective: Option<Duration>) -> Alarm {
        Alarm {
            objective,
            hits: 0,
            results: 0,
            blocks: 0,
            usual: 0.0,
            now: 0.0,
            low: Latch::default(),
            late: Latch::default(),
        }
    }

    /// Tells how pages ended that were restored ahead of need, of all sandboxes together. Blocks of
    /// [`BLOCK`] results or more are judged.
    pub fn ended(&mut self, hits: u64, misses: u64) -> Option<Change> {
        self.hits += hits;
        self.results += hits + misses;
        if self.results < BLOCK {
            return None;
        }
        let now = self.hits as f64 / self.results as f64;
        (self.hits, self.results) = (0, 0);
        self.now = now;
        self.blocks = self.blocks.saturating_add(1);
        if self.blocks <= LEARNING {
            self.usual += (now - self.usual) / f64::from(self.blocks);
            return None;
        }
        let usual = self.usual;
        let low = now < usual - DROP;
        let turned = self.low.observe(low, now > usual - RECOVERED);
        let learn = if low || self.low.raised {
            LEARN_LOW
        } else {
            LEARN
        };
        self.usual += (now - usual) * learn;
        turned.then(|| self.low.change(Cause::HitRatio { usual, now }))
    }

    /// Tells the 99th percentile of the latency of first tools, at most once for each time that it was
    /// measured anew.
    pub fn first_tool(&mut self, p99: Duration) -> Option<Change> {
        let objective = self.objective?;
        let turned = self
            .late
            .observe(p99 > objective, p99 < objective.mul_f64(WELL));
        let cause = Cause::Latency {
            objective,
            now: p99,
        };
        turned.then(|| self.late.change(cause))
    }

    /// Prefetch is worse than usual.
    pub fn is_low(&self) -> bool {
        self.low.raised
    }

    /// The objective is missed.
    pub fn is_late(&self) -> bool {
        self.late.raised
    }

    /// Long-term mean of the hit ratio; `None` until it is one to compare with.
    pub fn usual(&self) -> Option<f64> {
        (self.blocks >= LEARNING).then_some(self.usual)
    }

    /// Hit ratio of the latest block, if there was one.
    pub fn now(&self) -> Option<f64> {
        (self.blocks > 0).then_some(self.now)
    }
}

impl Latch {
    fn change(&self, cause: Cause) -> Change {
        match self.raised {
            true => Change::Raised(cause),
            false => Change::Cleared(cause),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Hits among `n` results of a ratio, with the noise that independent pages have.
    fn noisy(state: &mut u64, ratio: f64, n: u64) -> (u64, u64) {
        let mut hits = 0;
        for _ in 0..n {
            *state ^= *state << 13;
            *state ^= *state >> 7;
            *state ^= *state << 17;
            hits += u64::from(((*state >> 11) as f64) < ratio * (1u64 << 53) as f64);
        }
        (hits, n - hits)
    }

    #[test]
    fn a_fall_from_72_to_41_percent_raises_it_and_a_recovery_clears_it() {
        let mut alarm = Alarm::new(None);
        let mut state = 7;
        let mut feed = |alarm: &mut Alarm, ratio, blocks| {
            let mut changes = Vec::new();
            for _ in 0..blocks {
                let (hits, misses) = noisy(&mut state, ratio, BLOCK);
                changes.extend(alarm.ended(hits, misses));
            }
            changes
        };
        assert_eq!(feed(&mut alarm, 0.72, 200), []);
        assert!((alarm.usual().unwrap() - 0.72).abs() < 0.03);
        assert_eq!(feed(&mut alarm, 0.41, 2), [], "two blocks may be chance");
        let raised = feed(&mut alarm, 0.41, 1);
        assert!(
            matches!(raised[..], [Change::Raised(Cause::HitRatio { usual, now })]
                if (usual - 0.72).abs() < 0.03 && (now - 0.41).abs() < 0.1),
            "{raised:?}"
        );
        assert!(alarm.is_low());
        assert_eq!(feed(&mut alarm, 0.41, 50), [], "it stays, and says so once");
        assert!(alarm.is_low());
        let cleared = feed(&mut alarm, 0.72, 3);
        assert!(matches!(cleared[..], [Change::Cleared(_)]), "{cleared:?}");
    }

    #[test]
    fn noise_and_slow_change_leave_it_silent() {
        let mut alarm = Alarm::new(None);
        let mut state = 99;
        for block in 0..5000u32 {
            // Sandboxes differ: the ratio itself wanders by 0.1 to both sides, within a slow slide.
            let wander = 0.1 * f64::from(block % 7) / 6.0 - 0.05;
            let slide = 0.2 * f64::from(block) / 5000.0;
            let (hits, misses) = noisy(&mut state, 0.8 + wander - slide, BLOCK);
            assert_eq!(alarm.ended(hits, misses), None, "block {block}");
        }
        // A bad block now and then is none either.
        for _ in 0..100 {
            for ratio in [0.1, 0.1, 0.7, 0.7] {
                let (hits, misses) = noisy(&mut state, ratio, BLOCK);
                assert_eq!(alarm.ended(hits, misses), None);
            }
        }
    }

    #[test]
    fn latency_against_the_objective() {
        let ms = Duration::from_millis;
        let mut alarm = Alarm::new(Some(ms(10)));
        for _ in 0..20 {
            assert_eq!(alarm.first_tool(ms(25)), None);
            assert_eq!(alarm.first_tool(ms(25)), None);
            assert_eq!(alarm.first_tool(ms(7)), None);
        }
        alarm.first_tool(ms(25));
        alarm.first_tool(ms(25));
        let raised = Change::Raised(Cause::Latency {
            objective: ms(10),
            now: ms(11),
        });
        assert_eq!(alarm.first_tool(ms(11)), Some(raised));
        assert!(alarm.is_late() && !alarm.is_low());
        // Just below the objective is not well again.
        for _ in 0..20 {
            assert_eq!(alarm.first_tool(ms(9)), None);
        }
        alarm.first_tool(ms(7));
        alarm.first_tool(ms(7));
        assert!(matches!(alarm.first_tool(ms(7)), Some(Change::Cleared(_))));
        assert!(!alarm.is_late());
        assert_eq!(Alarm::new(None).first_tool(ms(1000)), None);
    }

    proptest! {
        /// Changes alternate, whatever comes.
        #[test]
        fn raised_and_cleared_in_turn(ends in prop::collection::vec((0u64..600, 0u64..600), 0..400)) {
            let mut alarm = Alarm::new(None);
            let mut raised = false;
            for (hits, misses) in ends {
                match alarm.ended(hits, misses) {
                    Some(Change::Raised(_)) => prop_assert!(!std::mem::replace(&mut raised, true)),
                    Some(Change::Cleared(_)) => prop_assert!(std::mem::replace(&mut raised, false)),
                    None => {}
                }
                prop_assert_eq!(alarm.is_low(), raised);
            }
        }
    }
}
