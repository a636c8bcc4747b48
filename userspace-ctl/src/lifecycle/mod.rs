// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What a sandbox is in, and what follows from what happens to it: a pure function.
//!
//! | event | new state | kernel's phase | besides |
//! |---|---|---|---|
//! | hint `llm-wait` | Compressed | waiting | compress |
//! | hint `message-near` | as it was | | |
//! | hint `first-token` | Resuming | resuming | stop, restore |
//! | hint `tool-start` | Running | running | stop |
//! | hint `tool-end` | as it was | | no tool runs any more |
//! | hint `idle` | Cooling | running | stop; hints no longer say what it does, observation does |
//! | hint `done` | Terminated | | stop |
//! | left alone, no hints | Running -> Cooling | | |
//! | cooling is over | Cooling -> Compressed | waiting | compress |
//! | touched, no hints | Cooling, Compressed -> Running | running | stop |
//!
//! A hint counts whatever the state is, so hints that are repeated, lost or out of order do no harm
//! beyond the next hint. Terminated is final: a cgroup that is used again is attached again.
//!
//! The clock may jump. A time in the future means that it went back: the state's time then begins
//! anew, so that no deadline is further away than its length.

#[cfg(test)]
mod tests;

use std::time::Duration;

use agentzip_uapi::Phase;
use serde::Serialize;

use crate::hint::Hint;

/// A point in time, counted from any point that stays the same.
pub type Time = Duration;

/// What a sandbox is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It works, as far as we know.
    Running,
    /// It seems to have stopped: observed before it is compressed.
    Cooling,
    /// It waits, and its memory is taken out.
    Compressed,
    /// The LLM answers: its memory comes back.
    Resuming,
    /// It is finished. Nothing is done to it any more.
    Terminated,
}

impl State {
    /// Every state.
    pub const ALL: [State; 5] = [
        State::Running,
        State::Cooling,
        State::Compressed,
        State::Resuming,
        State::Terminated,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            State::Running => "running",
            State::Cooling => "cooling",
            State::Compressed => "compressed",
            State::Resuming => "resuming",
            State::Terminated => "terminated",
        }
    }

    /// What the module is told; `None`: what it was told last stays.
    pub fn phase(self) -> Option<Phase> {
        match self {
            State::Running | State::Cooling => Some(Phase::Running),
            State::Compressed => Some(Phase::Waiting),
            State::Resuming => Some(Phase::Resuming),
            State::Terminated => None,
        }
    }
}

/// What happens to a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Its runtime says what it does.
    Hint(Hint),
    /// It ran or used its memory since it was last looked at.
    Touched,
    /// It did not.
    Untouched,
    /// Time went on.
    Clock,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Tell the module.
    Phase(Phase),
    /// Take its memory out.
    Compress,
    /// End that at once.
    Stop,
    /// Bring its memory back.
    Restore,
}

/// Lengths of time that the machine goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// How long a sandbox is observed before it is compressed.
    pub cooling: Duration,
    /// Length of a wait of which nothing is said.
    pub expect: Duration,
}

/// A sandbox's state, with what the next event needs to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Machine {
    state: State,
    /// When the state, or the wait, began.
    #[serde(skip)]
    since: Time,
    /// Hints say what it does; observation does not count.
    hinted: bool,
    /// A tool runs in it.
    tool: bool,
    /// How long the wait was expected to be when it began; `None`: nobody knows.
    #[serde(skip)]
    expect: Option<Duration>,
}

impl Machine {
    /// A sandbox of which nothing is known yet.
    pub fn new(now: Time) -> Machine {
        Machine {
            state: State::Running,
            since: now,
            hinted: false,
            tool: false,
            expect: None,
        }
    }

    /// A sandbox of which only the module's phase is known, after the controller was restarted. A
    /// sandbox that waits is taken for one that was told so by a hint; in one that runs a tool may
    /// run, until it is seen to be left alone.
    pub fn recovered(phase: Phase, now: Time, times: &Times) -> Machine {
        let (state, hinted, expect) = match phase {
            Phase::Running => (State::Running, false, None),
            Phase::Waiting => (State::Compressed, true, Some(times.expect)),
            Phase::Resuming => (State::Resuming, true, None),
        };
        Machine {
            state,
            since: now,
            hinted,
            tool: phase == Phase::Running,
            expect,
        }
    }

    /// Its state.
    pub fn state(&self) -> State {
        self.state
    }

    /// When the state, or the wait, began.
    pub fn since(&self) -> Time {
        self.since
    }

    /// A tool is known to run in it: nothing may be taken from it.
    pub fn runs_a_tool(&self) -> bool {
        self.tool
    }

    /// Hints say what it does, so that it need not be observed.
    pub fn is_hinted(&self) -> bool {
        self.hinted
    }

    /// For how much longer it is likely to wait; `None` when it does not wait, or nobody knows.
    ///
    /// A wait that is longer than was expected is expected to go on for half as long as it is
    /// overdue: the longer it has lasted against expectation, the longer it will.
    pub fn remaining(&self, now: Time) -> Option<Duration> {
        let expect = self.expect.filter(|_| self.state == State::Compressed)?;
        let waited = now.saturating_sub(self.since);
        Some(match expect.checked_sub(waited) {
            Some(remaining) if !remaining.is_zero() => remaining,
            _ => waited.saturating_sub(expect) / 2,
        })
    }

    /// When its wait is expected to end; `None` when it does not wait, or nobody knows.
    pub fn expected_end(&self) -> Option<Time> {
        let expect = self.expect.filter(|_| self.state == State::Compressed)?;
        Some(self.since.saturating_add(expect))
    }

    /// When [`Machine::remaining`] is this much again, if the wait goes on for longer than expected.
    pub fn remains_at(&self, time: Duration) -> Option<Time> {
        let expect = self.expect.filter(|_| self.state == State::Compressed)?;
        let overdue = time.saturating_mul(2);
        Some(self.since.saturating_add(expect).saturating_add(overdue))
    }

    /// When it wants an [`Event::Clock`].
    pub fn deadline(&self, times: &Times) -> Option<Time> {
        (self.state == State::Cooling).then(|| self.since.saturating_add(times.cooling))
    }

    /// The state after an event, and what is to be done, in this order.
    pub fn step(mut self, event: &Event, now: Time, times: &Times) -> (Machine, Vec<Action>) {
        if self.since > now {
            self.since = now;
        }
        let from = self.state;
        if from == State::Terminated {
            return (self, Vec::new());
        }
        match event {
            Event::Hint(hint) => self.take(hint, now, times),
            Event::Touched => {
                if !self.hinted && matches!(from, State::Cooling | State::Compressed) {
                    self.enter(State::Running, now);
                } else if from == State::Cooling {
                    self.since = now;
                }
            }
            Event::Untouched => {
                if !self.hinted && from == State::Running {
                    self.enter(State::Cooling, now);
                    self.tool = false;
                }
            }
            Event::Clock => {}
        }
        // Time is looked at with every event, so that a lost timer delays nothing for ever.
        if self.deadline(times).is_some_and(|deadline| now >= deadline) {
            self.enter(State::Compressed, now);
        }
        let again = matches!(event, Event::Hint(Hint::LlmWait { .. }));
        (self, actions(from, self.state, again))
    }

    fn take(&mut self, hint: &Hint, now: Time, times: &Times) {
        let observed = !std::mem::replace(&mut self.hinted, true);
        match hint {
            Hint::LlmWait { expect } => {
                self.enter(State::Compressed, now);
                self.expect = Some(expect.unwrap_or(times.expect));
                self.tool = false;
            }
            Hint::MessageNear { .. } => self.hinted = !observed,
            Hint::FirstToken => {
                self.enter(State::Resuming, now);
                self.tool = false;
            }
            Hint::ToolStart { .. } => {
                self.enter(State::Running, now);
                self.tool = true;
            }
            Hint::ToolEnd => self.tool = false,
            Hint::Idle => {
                // A repeated one does not put the end of cooling off, nor undo what came of it.
                let out = observed && self.state == State::Compressed;
                if self.state != State::Cooling && !out {
                    self.enter(State::Cooling, now);
                }
                self.tool = false;
                self.hinted = false;
            }
            Hint::Done => {
                self.enter(State::Terminated, now);
                self.tool = false;
            }
        }
    }

    fn enter(&mut self, state: State, now: Time) {
        self.state = state;
        self.since = now;
        self.expect = None;
    }
}

/// What a change of state asks for. `again`: the sandbox began to wait, also if it did before.
fn actions(from: State, to: State, again: bool) -> Vec<Action> {
    let mut actions = Vec::new();
    if from == State::Compressed && to != from {
        // First of all: it is about to need what is being taken.
        actions.push(Action::Stop);
    }
    if let Some(phase) = to.phase().filter(|_| to.phase() != from.phase()) {
        actions.push(Action::Phase(phase));
    }
    match to {
        State::Compressed if from != to || again => actions.push(Action::Compress),
        State::Resuming if from != to => actions.push(Action::Restore),
        _ => {}
    }
    actions
}
