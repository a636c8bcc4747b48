// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Sandboxes that come back: held while there is no memory for them, then restored.

use std::collections::VecDeque;
use std::time::Duration;

use agentzip_uapi::Phase;

use super::sandbox::Profile;
use super::{Effect, Governor, Id, Note};
use crate::lifecycle::{State, Time};
use crate::schedule::admission::{Release, Wish};
use crate::schedule::budget::Budget;

/// How often those that are held are reviewed.
pub const REVIEW: Duration = Duration::from_millis(250);

/// Restores that wait for their turn, and those that run.
#[derive(Debug, Default)]
pub(super) struct Restores {
    /// With the time since when; `None`: for as long as it takes.
    waiting: VecDeque<(Id, Option<Time>)>,
    /// With the CPU time that was set aside.
    running: Vec<(Id, Duration)>,
}

impl Restores {
    pub fn forget(&mut self, id: Id) {
        self.waiting.retain(|(other, _)| *other != id);
    }

    pub fn are_pending(&self) -> bool {
        !self.waiting.is_empty() || !self.running.is_empty()
    }

    pub fn is_running(&self, id: Id) -> bool {
        self.running.iter().any(|(other, _)| *other == id)
    }

    /// It runs, or waits for its turn.
    pub fn is_pending(&self, id: Id) -> bool {
        self.is_running(id) || self.waiting.iter().any(|(other, _)| *other == id)
    }

    /// When the first may begin for which there is no CPU time now, or is dropped.
    pub fn timer(&self, budget: &Budget, timeout: Duration) -> Option<Time> {
        if self.waiting.is_empty() {
            return None;
        }
        let opens = (!budget.is_open()).then(|| budget.opens_at());
        let dropped = self
            .waiting
            .iter()
            .filter_map(|(_, since)| Some((*since)?.saturating_add(timeout)));
        dropped.chain(opens).min()
    }
}

impl Governor {
    /// A sandbox that was compressed goes on.
    pub(super) fn wakes(&mut self, id: Id, now: Time) {
        self.stop(id);
        let Some(sandbox) = self.sandboxes.get_mut(&id) else {
            return;
        };
        sandbox.woke = Some(now);
        sandbox.turns.take(now);
        sandbox.dry = None;
        let wish = Wish {
            id,
            need: std::mem::take(&mut sandbox.taken),
            interactive: sandbox.profile == Profile::Interactive,
            limit: sandbox.profile.hold(&self.config),
        };
        sandbox.needs = wish.need;
        if sandbox.quiesced || sandbox.machine.state() == State::Terminated {
            return;
        }
        let resume_below = self.config.schedule.batch_resume_below.part();
        if !self.admission.ask(wish, &self.memory, resume_below, now) {
            self.effects.push(Effect::Freeze(id));
            self.effects.push(Effect::Note(Note::Held(id, wish.need)));
        }
    }

    /// Lets those go on for whom there is memory now.
    pub(super) fn review(&mut self, now: Time) {
        if self.admission.held() == 0 && self.admission.promised() == 0 {
            return;
        }
        let resume_below = self.config.schedule.batch_resume_below.part();
        for (id, why) in self.admission.review(&self.memory, resume_below, now) {
            self.effects.push(Effect::Thaw(id));
            self.effects
                .push(Effect::Note(Note::Freed(id, why == Release::Limit)));
            if let Some(sandbox) = self.sandboxes.get_mut(&id) {
                sandbox.woke = Some(now);
                if sandbox.machine.state() == State::Resuming {
                    self.want_restore(id, now);
                }
            }
        }
    }

    pub(super) fn restore_timeout(&self) -> Duration {
        self.config.time(self.config.prefetch.queue_timeout)
    }

    /// The LLM answers: its pages come back before they are touched, if there is time.
    pub(super) fn want_restore(&mut self, id: Id, now: Time) {
        let Some(sandbox) = self.sandboxes.get(&id) else {
            return;
        };
        let may = self.config.prefetch.on_first_token && sandbox.turns.has_any(now);
        let wanted = may || sandbox.quiesced;
        if wanted && !self.admission.holds(id) {
            self.restores.forget(id);
            self.restores.waiting.push_back((id, Some(now)));
        }
    }

    pub(super) fn start_restores(&mut self, now: Time) {
        let timeout = self.restore_timeout();
        let most = self.config.prefetch.max_concurrency.get() as usize;
        for _ in 0..self.restores.waiting.len() {
            let Some((id, since)) = self.restores.waiting.pop_front() else {
                break;
            };
            let sandbox = self.sandboxes.get(&id);
            let quiesced = sandbox.is_some_and(|s| s.quiesced);
            let state = sandbox.map(|s| s.machine.state());
            // A tool that has begun brings its pages back itself, by touching them.
            if !quiesced && state != Some(State::Resuming) {
                continue;
            }
            // A tool waits for one that is quiesced, whatever the budget says.
            let room = self.restores.running.len() < most && (quiesced || self.budget.is_open());
            // What is still being taken would be out again.
            let taking = quiesced && sandbox.is_some_and(|s| s.job.is_some());
            let room = room && !taking;
            let since = since.map(|since| since.min(now));
            let late = since.is_some_and(|since| now.saturating_sub(since) >= timeout);
            if room && !self.restores.is_running(id) {
                // Bringing a page back takes about a third of taking it.
                let estimate = sandbox.map_or(Duration::ZERO, |s| self.pace.cpu(s.needs) / 3);
                self.budget.reserve(estimate);
                self.restores.running.push((id, estimate));
                self.effects.push(Effect::Restore(id));
            } else if !late {
                self.restores.waiting.push_back((id, since));
            }
        }
    }

    pub(super) fn restored(&mut self, id: Id, cpu: Duration) {
        let running = &mut self.restores.running;
        let estimate = match running.iter().position(|(other, _)| *other == id) {
            Some(index) => running.swap_remove(index).1,
            None => Duration::ZERO,
        };
        self.budget.settle(estimate, cpu);
    }

    /// Holds a sandbox still: nothing is taken from it until it is released.
    pub(super) fn quiesce(&mut self, id: Id) {
        self.stop(id);
        if self.admission.forget(id) {
            self.effects.push(Effect::Thaw(id));
        }
        let Some(sandbox) = self.sandboxes.get_mut(&id) else {
            return;
        };
        sandbox.quiesced = true;
        sandbox.needs = std::mem::take(&mut sandbox.taken);
        if sandbox.attached {
            // The second look works on sandboxes that wait.
            self.effects.push(Effect::Phase(id, Phase::Running));
        }
        self.restores.forget(id);
        self.restores.waiting.push_back((id, None));
    }

    /// Ends that: the sandbox is treated as its state says again.
    pub(super) fn release(&mut self, id: Id, now: Time) {
        let Some(sandbox) = self.sandboxes.get_mut(&id) else {
            return;
        };
        if !std::mem::replace(&mut sandbox.quiesced, false) {
            return;
        }
        sandbox.woke = Some(now);
        let state = sandbox.machine.state();
        if let (true, Some(phase)) = (sandbox.attached, sandbox.phase()) {
            self.effects.push(Effect::Phase(id, phase));
        }
        if state == State::Compressed {
            self.want(id, false);
        }
    }

    /// A sandbox is finished: nothing is done to it any more.
    pub(super) fn finish(&mut self, id: Id) {
        self.stop(id);
        self.restores.forget(id);
        if self.admission.forget(id) {
            self.effects.push(Effect::Thaw(id));
        }
    }
}
