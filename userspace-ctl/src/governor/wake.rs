// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Sandboxes that come back: held while there is no memory for them, then restored.

use std::collections::VecDeque;
use std::time::Duration;

use agentzip_uapi::Phase;

use super::sandbox::Profile;
use super::{Effect, Governor, Id, Note};
use crate::lifecycle::{State, Time};
use crate::predict::Trigger;
use crate::schedule::admission::{Release, Wish};
use crate::schedule::budget::Budget;

/// How often those that are held are reviewed.
pub const REVIEW: Duration = Duration::from_millis(250);
/// A restore that runs for longer is stuck: the owner of a process can make the kernel wait for it for as
/// long as it likes. It takes no turn of others any more, and nobody waits for its end.
const STUCK: Duration = Duration::from_secs(10);
/// With so many stuck ones none is begun, as each has a thread.
const MOST_STUCK: usize = 64;

/// A restore that was begun.
#[derive(Clone, Copy, Debug)]
struct Begun {
    id: Id,
    since: Time,
    /// CPU time that was set aside for it.
    estimate: Duration,
}

/// A restore whose turn has not come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Waiting {
    id: Id,
    /// Since when, and why; `None`: all of it is to come back, for as long as that takes.
    ahead: Option<(Time, Trigger)>,
}

/// Restores that wait for their turn, and those that run.
#[derive(Debug, Default)]
pub(super) struct Restores {
    waiting: VecDeque<Waiting>,
    running: Vec<Begun>,
    stuck: Vec<Begun>,
}

impl Restores {
    pub fn forget(&mut self, id: Id) {
        self.waiting.retain(|other| other.id != id);
    }

    /// It wants nothing back for itself any more; what a tool waits for it still gets.
    pub fn forget_own(&mut self, id: Id) {
        self.waiting
            .retain(|other| other.id != id || other.ahead.is_none());
    }

    /// A tool waits for it, and its turn has not come.
    pub fn is_asked_for(&self, id: Id) -> bool {
        self.waiting.contains(&Waiting { id, ahead: None })
    }

    /// Sets those aside that do not end.
    fn look_for_stuck(&mut self, now: Time, limit: Duration) {
        let stuck = &mut self.stuck;
        self.running.retain_mut(|begun| {
            // When the clock went back, its time begins anew.
            begun.since = now.min(begun.since);
            let runs = now.saturating_sub(begun.since) < limit;
            if !runs {
                stuck.push(*begun);
            }
            runs
        });
    }

    /// One has ended. Returns the CPU time that was set aside for it.
    fn ended(&mut self, id: Id) -> Duration {
        for begun in [&mut self.running, &mut self.stuck] {
            if let Some(index) = begun.iter().position(|begun| begun.id == id) {
                return begun.swap_remove(index).estimate;
            }
        }
        Duration::ZERO
    }

    pub fn are_pending(&self) -> bool {
        !self.waiting.is_empty() || !self.running.is_empty()
    }

    pub fn is_running(&self, id: Id) -> bool {
        let mut all = self.running.iter().chain(&self.stuck);
        all.any(|begun| begun.id == id)
    }

    /// It runs, or waits for its turn.
    pub fn is_pending(&self, id: Id) -> bool {
        self.is_running(id) || self.waiting.iter().any(|other| other.id == id)
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
            .filter_map(|other| Some(other.ahead?.0.saturating_add(timeout)));
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
        self.ends.remove(&id);
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
                    self.want_restore(id, Trigger::FirstToken, now);
                }
            }
        }
    }

    pub(super) fn restore_timeout(&self) -> Duration {
        self.config.time(self.config.prefetch.queue_timeout)
    }

    /// Its pages come back before they are touched, if there is time.
    pub(super) fn want_restore(&mut self, id: Id, trigger: Trigger, now: Time) {
        let Some(sandbox) = self.sandboxes.get(&id) else {
            return;
        };
        // All of one that is quiesced comes back anyway.
        let wanted = self.is_on(trigger) && sandbox.turns.has_any(now) && !sandbox.quiesced;
        if wanted && !self.admission.holds(id) {
            self.restores.forget(id);
            let ahead = Some((now, trigger));
            self.restores.waiting.push_back(Waiting { id, ahead });
        }
    }

    pub(super) fn start_restores(&mut self, now: Time) {
        let timeout = self.restore_timeout();
        self.restores.look_for_stuck(now, self.scaled(STUCK));
        let most = self.config.prefetch.max_concurrency.get() as usize;
        for _ in 0..self.restores.waiting.len() {
            let Some(waiting) = self.restores.waiting.pop_front() else {
                break;
            };
            let id = waiting.id;
            let sandbox = self.sandboxes.get(&id);
            let quiesced = sandbox.is_some_and(|s| s.quiesced);
            let state = sandbox.map(|s| s.machine.state());
            // What has gone on since brings its pages back itself, by touching them.
            let timely = waiting
                .ahead
                .is_none_or(|(_, trigger)| fits(trigger, state));
            if !quiesced && !timely {
                continue;
            }
            // A tool waits for one that is quiesced, whatever the budget says.
            let room = self.restores.running.len() < most
                && self.restores.stuck.len() < MOST_STUCK
                && (quiesced || self.budget.is_open());
            // What is still being taken would be out again.
            let waits = quiesced || state == Some(State::Compressed);
            let taking = waits && sandbox.is_some_and(|s| s.job.is_some());
            let room = room && !taking;
            let late = waiting
                .ahead
                .is_some_and(|(since, _)| now.saturating_sub(since.min(now)) >= timeout);
            if room && !self.restores.is_running(id) {
                // Bringing a page back takes about a third of taking it.
                let estimate = sandbox.map_or(Duration::ZERO, |s| self.pace.cpu(s.needs) / 3);
                self.budget.reserve(estimate);
                let since = now;
                self.restores.running.push(Begun {
                    id,
                    since,
                    estimate,
                });
                let trigger = waiting.ahead.filter(|_| !quiesced);
                self.effects.push(match trigger {
                    Some((_, trigger)) => Effect::Restore(id, trigger),
                    None => Effect::Return(id),
                });
            } else if !late {
                let ahead = waiting.ahead.map(|(since, why)| (since.min(now), why));
                self.restores.waiting.push_back(Waiting { id, ahead });
            }
        }
    }

    pub(super) fn restored(&mut self, id: Id, cpu: Duration) {
        let estimate = self.restores.ended(id);
        self.budget.settle(estimate, cpu);
    }

    /// A quiesced sandbox is still to be brought back: a restore that ends now was begun before.
    pub fn is_to_come_back(&self, id: Id) -> bool {
        self.restores.is_asked_for(id)
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
        self.ends.remove(&id);
        self.restores.waiting.push_back(Waiting { id, ahead: None });
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
        self.restores.forget_own(id);
        if self.admission.forget(id) {
            self.effects.push(Effect::Thaw(id));
        }
    }
}

/// A sandbox is still in what a restore for this reason is for.
fn fits(trigger: Trigger, state: Option<State>) -> bool {
    let wanted = match trigger {
        Trigger::FirstToken => State::Resuming,
        Trigger::ToolStart | Trigger::Demand | Trigger::Rest => State::Running,
        Trigger::Message | Trigger::MidWait | Trigger::Background => State::Compressed,
    };
    state == Some(wanted)
}
