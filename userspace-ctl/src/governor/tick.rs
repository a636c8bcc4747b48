// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The rounds of samples: who is in use, who is worth compressing, and whether memory is short.

use std::time::Duration;

use super::sandbox::Sandbox;
use super::{Effect, Governor, Id, Needs, Note, Sample};
use crate::lifecycle::{Event, State, Time};
use crate::schedule::score::{self, Terms};

/// A sandbox that ran for less than this part of a round counts as left alone.
const IDLE_PART: f64 = 0.002;
/// A compressed sandbox that grows by more than this has been used. The kernel counts in batches.
const GROWTH: u64 = 1 << 20;

impl Governor {
    /// What has to be read of a sandbox in this round.
    pub fn needs(&self, id: Id) -> Needs {
        let Some(sandbox) = self.sandboxes.get(&id) else {
            return Needs::default();
        };
        let state = sandbox.machine.state();
        let observed = !sandbox.machine.is_hinted();
        Needs {
            cpu: matches!(state, State::Cooling) || (observed && state == State::Running),
            psi: self.watermark.is_short() && matches!(state, State::Running | State::Resuming),
        }
    }

    pub(super) fn sample(&mut self, id: Id, sample: Sample, now: Time) {
        let period = now.saturating_sub(self.sampled.min(now));
        let Some(sandbox) = self.sandboxes.get_mut(&id) else {
            return;
        };
        sandbox.current = sample.current;
        sandbox.dry = sandbox.dry.map(|dry| dry.min(sample.current));
        sandbox.psi = sample.psi.unwrap_or(0.0);
        let ran = match (sandbox.cpu_usec, sample.cpu_usec) {
            (Some(before), Some(after)) => {
                let ran = Duration::from_micros(after.saturating_sub(before));
                Some(ran > period.mul_f64(IDLE_PART))
            }
            _ => None,
        };
        sandbox.cpu_usec = sample.cpu_usec;
        let state = sandbox.machine.state();
        let event = match state {
            State::Compressed => {
                sandbox.low = sandbox.low.min(sample.current);
                let grown = sample.current > sandbox.low.saturating_add(GROWTH);
                (grown && !sandbox.machine.is_hinted()).then_some(Event::Touched)
            }
            State::Running | State::Cooling => ran.map(|ran| match ran {
                true => Event::Touched,
                false => Event::Untouched,
            }),
            State::Resuming | State::Terminated => None,
        };
        let in_use = match state {
            State::Running | State::Resuming => event != Some(Event::Untouched),
            State::Cooling | State::Compressed => event == Some(Event::Touched),
            State::Terminated => false,
        };
        sandbox.access.record(in_use, now);
        if let Some(event) = event {
            self.event(id, &event, now);
        }
    }

    /// A round is complete: ranks the sandboxes, and takes from the best when memory is short.
    pub(super) fn tick(&mut self, now: Time) {
        self.sampled = now;
        self.pace.fade();
        // Deadlines are met even when a timer got lost.
        self.clock(now);
        let schedule = &self.config.schedule;
        let [low, high] = [schedule.hysteresis_low, schedule.hysteresis_high].map(|p| p.part());
        let used = self.memory.used();
        if self.watermark.update(used, low, high) {
            let short = self.watermark.is_short();
            self.effects
                .push(Effect::Note(Note::Short(short, (used * 100.0) as u32)));
        }
        let limit = schedule.psi_limit.part();
        self.strained = self.sandboxes.values().any(|sandbox| sandbox.psi > limit);
        self.rank(used, low, high, now);
        if self.watermark.is_short() {
            for id in self.candidates(now) {
                self.want(id, true);
            }
        } else {
            self.end_pressure();
        }
        self.take_again(now);
        self.restore_in_background(now);
    }

    /// Gives each sandbox its score.
    fn rank(&mut self, used: f64, low: f64, high: f64, now: Time) {
        let pressure = score::pressure(used, low, high);
        for sandbox in self.sandboxes.values_mut() {
            // Bringing a page back takes about a third of taking it.
            let restore = self.pace.cpu(sandbox.current.max(sandbox.taken)) / 3;
            let terms = Terms {
                pressure,
                idle: score::idle(likely_wait(sandbox, now)),
                access: sandbox.access.part(),
                resume: score::resume(restore),
            };
            sandbox.score = terms.score(&sandbox.profile.weights(&self.config));
        }
    }

    /// From whom something is taken as memory is short, the best first.
    fn candidates(&self, now: Time) -> Vec<Id> {
        let schedule = &self.config.schedule;
        let keep = self.config.time(schedule.keep_if_expected_within);
        let residency = self.config.time(schedule.min_residency);
        let threshold = schedule.score_threshold.get();
        let mut candidates: Vec<(&Id, f64)> = self
            .sandboxes
            .iter()
            .filter(|(id, sandbox)| {
                let machine = &sandbox.machine;
                let state = machine.state();
                let may = match state {
                    State::Running => !machine.runs_a_tool() && !self.strained,
                    State::Cooling => !self.strained,
                    State::Compressed => true,
                    State::Resuming | State::Terminated => false,
                };
                let soon = machine.remaining(now).is_some_and(|wait| wait < keep);
                let fresh = [sandbox.woke, sandbox.restored]
                    .into_iter()
                    .flatten()
                    .any(|back| now.saturating_sub(back.min(now)) < residency);
                let dry = sandbox
                    .dry
                    .is_some_and(|dry| sandbox.current <= dry.saturating_add(GROWTH));
                may && !soon
                    && !dry
                    && !sandbox.pauses(now)
                    && !fresh
                    && !sandbox.quiesced
                    && !self.admission.holds(**id)
                    && sandbox.job.is_none()
                    && sandbox.score >= threshold
            })
            .map(|(id, sandbox)| (id, sandbox.score))
            .collect();
        candidates.sort_by(|a, b| b.1.total_cmp(&a.1));
        candidates.into_iter().map(|(id, _)| *id).collect()
    }

    /// Memory is no longer short: what was wanted for that reason only is not wanted any more.
    fn end_pressure(&mut self) {
        let mut over = Vec::new();
        for (id, sandbox) in &mut self.sandboxes {
            if let Some(want) = sandbox.want.as_mut().filter(|want| want.pressure) {
                want.pressure = false;
                if sandbox.machine.state() != State::Compressed {
                    over.push(*id);
                }
            }
        }
        for id in over {
            self.stop(id);
        }
    }

    /// The second look gets the budget while nobody else needs it: nothing is taken out or brought back, nor
    /// waits for that, and the bucket is full. Then what it takes would be lost, so that all together stay
    /// within the budget. Else it stands back.
    pub(super) fn share_second_look(&mut self) {
        let share = match self.is_quiet() && self.budget.is_full() {
            true => (self.budget.rate() * 100.0) as u32,
            false => 1,
        };
        self.set_second_look(share.clamp(1, 100));
    }

    fn is_quiet(&self) -> bool {
        !self.has_backlog() && !self.restores.are_pending()
    }

    /// When the second look may have more, if nothing happens until then.
    pub(super) fn second_look_timer(&self) -> Option<Time> {
        (self.is_quiet() && !self.budget.is_full()).then(|| self.budget.full_at())
    }

    /// The module is another one: it has not heard of anything.
    pub fn tell_again(&mut self) {
        self.second_look = None;
    }

    fn set_second_look(&mut self, share: u32) {
        if self.second_look != Some(share) {
            self.second_look = Some(share);
            self.effects.push(Effect::SecondLook(share));
        }
    }
}

/// For how much longer a sandbox is likely to be left alone.
fn likely_wait(sandbox: &Sandbox, now: Time) -> Duration {
    let machine = &sandbox.machine;
    match machine.state() {
        // One that was left alone for a time is likely to be for as long again.
        State::Cooling | State::Compressed => machine
            .remaining(now)
            .unwrap_or_else(|| now.saturating_sub(machine.since().min(now))),
        State::Running | State::Resuming | State::Terminated => Duration::ZERO,
    }
}
