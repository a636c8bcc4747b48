// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Hot pages (`encode.hot_skip`): whose pages are sampled, when, for how much CPU time, and from whom
//! they are taken nevertheless.
//!
//! Sampled is what is not waiting: sandboxes that work, where that says what is hot, and those that cool
//! down, where what was hot ceases to be. What was hot when a wait began stays where it is for the wait,
//! unless memory is short.

use std::time::Duration;

use super::{Governor, Id};
use crate::hot::window::Measure;
use crate::lifecycle::{State, Time};

/// Shortest time between two rounds, whatever the configuration says.
const SHORTEST: Duration = Duration::from_millis(100);
/// Part of the CPU budget that samples may take.
const PART: f64 = 0.1;

/// What a round of samples may look at.
#[derive(Clone, Debug, PartialEq)]
pub struct HotRound {
    /// These sandboxes.
    pub ids: Vec<Id>,
    /// What is hot.
    pub measure: Measure,
    /// Time between two rounds.
    pub every: Duration,
    /// CPU time that it may take.
    pub allowance: Duration,
}

impl Governor {
    /// When the next round of samples is due; `None` when nothing is to be sampled.
    pub fn next_hot_round(&self) -> Option<Time> {
        let any = self.config.encode.hot_skip && self.sampled_ids().next().is_some();
        any.then(|| self.hot_sampled.saturating_add(self.hot_period()))
    }

    /// Begins a round that is due. `None` when there is no CPU time for it.
    pub fn hot_round(&mut self, now: Time) -> Option<HotRound> {
        self.next_hot_round()?;
        self.hot_sampled = now;
        self.budget.advance(now);
        if !self.budget.is_open() {
            return None;
        }
        let every = self.hot_period();
        let window = self.config.time(self.config.schedule.period);
        Some(HotRound {
            ids: self.sampled_ids().collect(),
            measure: Measure::new(window, every),
            every,
            allowance: every.mul_f64(self.budget.rate() * PART),
        })
    }

    /// Whether a job of this sandbox leaves its hot pages where they are. Not when it waits and memory is
    /// short: then all that it has not needed since the wait began goes.
    pub fn spares_hot(&self, id: Id) -> bool {
        let waits_in_need = self.sandboxes.get(&id).is_some_and(|sandbox| {
            sandbox.machine.state() == State::Compressed
                && sandbox.want.is_some_and(|want| want.pressure)
        });
        self.config.encode.hot_skip && !waits_in_need
    }

    /// CPU time that samples took.
    pub(super) fn charge(&mut self, cpu: Duration) {
        self.budget.settle(Duration::ZERO, cpu);
    }

    fn hot_period(&self) -> Duration {
        let period = self.config.time(self.config.schedule.sample_period);
        period.max(SHORTEST)
    }

    fn sampled_ids(&self) -> impl Iterator<Item = Id> + '_ {
        let sampled = self.sandboxes.iter().filter(|(_, sandbox)| {
            let state = sandbox.machine.state();
            // Who reads a quiesced one may use the same bits.
            matches!(state, State::Running | State::Cooling) && !sandbox.quiesced
        });
        sampled.map(|(id, _)| *id)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Done, Input, Profile};
    use super::*;
    use crate::config::Config;
    use crate::hint::Hint;
    use crate::schedule::watermark::Memory;

    const S: fn(u64) -> Duration = Duration::from_secs;

    fn governor(hot_skip: bool) -> Governor {
        let mut config = Config::default();
        config.encode.hot_skip = hot_skip;
        let mut governor = Governor::new(config, 4, Duration::ZERO);
        for id in [1, 2] {
            let input = Input::Appeared {
                id,
                profile: Profile::Interactive,
                known: None,
            };
            governor.handle(input, Duration::ZERO);
        }
        governor
    }

    fn wait(governor: &mut Governor, id: Id, now: Time) {
        let expect = Some(S(3600));
        let hint = Hint::LlmWait { expect };
        governor.handle(Input::Hint(id, hint), now);
    }

    #[test]
    fn off_is_off() {
        let mut governor = governor(false);
        assert_eq!(governor.next_hot_round(), None);
        assert_eq!(governor.hot_round(S(5)), None);
        assert!(!governor.spares_hot(1));
    }

    #[test]
    fn what_does_not_wait_is_sampled_each_second() {
        let mut governor = governor(true);
        assert_eq!(governor.next_hot_round(), Some(S(1)));
        let round = governor.hot_round(S(1)).unwrap();
        assert_eq!(round.ids, [1, 2]);
        assert_eq!((round.measure.samples, round.measure.writes), (5, 5));
        assert_eq!(
            (round.every, round.allowance),
            (S(1), Duration::from_millis(100))
        );
        assert_eq!(governor.next_hot_round(), Some(S(2)));
        wait(&mut governor, 1, S(2));
        assert_eq!(governor.hot_round(S(2)).unwrap().ids, [2]);
        governor.handle(Input::Quiesce(2), S(2));
        assert_eq!(governor.next_hot_round(), None);
        governor.handle(Input::Release(2), S(2));
        wait(&mut governor, 2, S(2));
        assert_eq!(governor.next_hot_round(), None);
    }

    #[test]
    fn samples_are_within_the_budget() {
        let mut governor = governor(true);
        governor.handle(Input::HotSampled(S(3)), S(1));
        // Three seconds of CPU time were taken, of one for each second: no round until that is paid.
        assert_eq!(governor.hot_round(S(1)), None);
        assert_eq!(governor.next_hot_round(), Some(S(2)));
        assert_eq!(governor.hot_round(S(2)), None);
        assert!(governor.hot_round(S(4)).is_some());
    }

    #[test]
    fn a_wait_when_memory_is_short_spares_nothing() {
        let mut governor = governor(true);
        wait(&mut governor, 1, S(1));
        assert!(governor.spares_hot(1) && governor.spares_hot(2));
        let memory = Memory {
            total: 100 << 30,
            available: 10 << 30,
            swap_free: 100 << 30,
        };
        // What the wait began with has ended.
        for _ in 0..2 {
            governor.handle(Input::JobDone(1, Done::default()), S(2));
        }
        governor.handle(Input::Memory(memory), S(60));
        governor.handle(Input::Sampled, S(60));
        assert!(governor.overview().short);
        assert!(!governor.spares_hot(1) && governor.spares_hot(2));
    }
}
