// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The daemon's mind: what happened goes in, what is to be done comes out. It reads no clock, no
//! file, and does nothing itself, so that a day of two hundred sandboxes can be tried in seconds.
//!
//! [`Governor::handle`] takes an [`Input`] and the time; [`Governor::effects`] gives what follows.
//! [`Governor::next_timer`] says when it wants to be called again if nothing happens until then:
//! [`Input::Clock`].

mod answer;
mod compress;
mod foresee;
mod hot;
#[cfg(test)]
mod random;
mod sandbox;
#[cfg(test)]
mod tests;
mod tick;
mod wake;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use agentzip_uapi::Phase;
use serde::Serialize;

pub use answer::{Admit, Overview, View};
pub use hot::HotRound;
pub use sandbox::{Profile, Reason};

use crate::config::Config;
use crate::hint::Hint;
use crate::lifecycle::{Action, Event, Machine, State, Time, Times};
use crate::predict::Trigger;
use crate::schedule::admission::{Admission, SETTLING};
use crate::schedule::budget::Budget;
use crate::schedule::fair::Ring;
use crate::schedule::watermark::{Memory, Watermark};
use compress::Pace;
use sandbox::{Job, Sandbox};

/// Name of a sandbox: the id of its cgroup.
pub type Id = u64;

/// What happens.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// A sandbox is there.
    Appeared {
        /// Which.
        id: Id,
        /// What it is weighed by.
        profile: Profile,
        /// The module's phase of it, when the module had it before the daemon started.
        known: Option<Phase>,
    },
    /// The module has it now: it can be told phases.
    Attached(Id),
    /// So many bytes were taken from it before we knew of it.
    Taken(Id, u64),
    /// Its profile is another one now.
    Profile(Id, Profile),
    /// It is there no more.
    Gone(Id),
    /// Its runtime says what it does.
    Hint(Id, Hint),
    /// Memory of the host.
    Memory(Memory),
    /// What the files of its cgroup say.
    Sample(Id, Sample),
    /// All samples of a round were given.
    Sampled,
    /// A job that [`Effect::Start`] asked for has ended.
    JobDone(Id, Done),
    /// What [`Effect::Restore`] asked for has ended, with the CPU time that it took.
    Restored(Id, Duration),
    /// What is restored ahead of need took so much CPU time.
    Prefetched(Duration),
    /// How far compression may go, 0 to 1: see [`crate::predict::Scope`].
    Scope(f64),
    /// A round of [`Governor::hot_round`] has ended, with the CPU time that it took.
    HotSampled(Duration),
    /// Bring it back and do nothing to it until it is released.
    Quiesce(Id),
    /// Ends that.
    Release(Id),
    /// The configuration is another one now.
    Config(Box<Config>),
    /// Time went on.
    Clock,
}

/// What the files of a sandbox's cgroup say.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    /// `memory.current`, in bytes.
    pub current: u64,
    /// `usage_usec` of `cpu.stat`; asked for by [`Needs::cpu`].
    pub cpu_usec: Option<u64>,
    /// `some avg10` of `memory.pressure`, as a part of 1; asked for by [`Needs::psi`].
    pub psi: Option<f64>,
}

/// What has to be read of a sandbox in a round besides `memory.current`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// `cpu.stat`.
    pub cpu: bool,
    /// `memory.pressure`.
    pub psi: bool,
}

/// What a job came to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Done {
    /// Bytes that were taken.
    pub reclaimed: u64,
    /// CPU time of the worker.
    pub cpu: Duration,
    /// Time that passed.
    pub elapsed: Duration,
    /// It was stopped before it had what it should take.
    pub stopped: bool,
    /// Why nothing more can be taken, where that is known.
    pub reason: Option<Reason>,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Tell the module the phase.
    Phase(Id, Phase),
    /// Tell the module zstd's level of the second look.
    Level(Id, u32),
    /// Start to take that many bytes out; ends with [`Input::JobDone`].
    Start {
        /// From which sandbox.
        id: Id,
        /// How many bytes.
        bytes: u64,
        /// Its file cache first.
        file_first: bool,
    },
    /// End that at once.
    Stop(Id),
    /// Bring pages of it back ahead of need, for this reason; ends with [`Input::Restored`].
    Restore(Id, Trigger),
    /// Bring all of it back; ends with [`Input::Restored`], too.
    Return(Id),
    /// End that at once: it begins to wait again. It still ends with [`Input::Restored`].
    EndRestore(Id),
    /// Hold all its processes.
    Freeze(Id),
    /// Let them go on.
    Thaw(Id),
    /// The second look may take that many percent of one processor.
    SecondLook(u32),
    /// Something that an operator may want to know.
    Note(Note),
}

/// Something that an operator may want to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note {
    /// Memory is short, or no longer; percent of memory used.
    Short(bool, u32),
    /// A sandbox is held until there is memory for it: how many bytes it needs.
    Held(Id, u64),
    /// It goes on; `true`: though there was no room, as it was held for as long as it may be.
    Freed(Id, bool),
    /// Nothing can be taken from it.
    Helpless(Id, Reason),
    /// It came from one state into another one.
    State(Id, State, State),
}

/// All that the daemon knows and plans.
#[derive(Debug)]
pub struct Governor {
    config: Config,
    /// Nothing is begun: see [`Governor::hold_still`].
    still: bool,
    cpus: f64,
    times: Times,
    sandboxes: BTreeMap<Id, Sandbox>,
    /// Those that have a deadline.
    cooling: BTreeSet<Id>,
    memory: Memory,
    watermark: Watermark,
    budget: Budget,
    pace: Pace,
    ring: Ring,
    /// Jobs that run, those of sandboxes that are gone included.
    jobs: usize,
    /// Jobs of sandboxes that are gone.
    orphans: BTreeMap<Id, Job>,
    restores: wake::Restores,
    /// When a wait is about to end, and why that is known.
    ends: BTreeMap<Id, (Time, Trigger)>,
    /// How far compression may go: less than 1 while the objective is missed.
    scope: f64,
    admission: Admission,
    /// When the last round of samples was.
    sampled: Time,
    /// When the last round of samples of hot pages was.
    hot_sampled: Time,
    /// A running sandbox stalls for memory.
    strained: bool,
    second_look: Option<u32>,
    effects: Vec<Effect>,
}

/// Totals, for `status` and the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Sandboxes in each state, in the order of [`crate::lifecycle::State::ALL`].
    pub states: [usize; 5],
    /// Jobs that run.
    pub jobs: usize,
    /// Sandboxes whose turn to be compressed has not come yet.
    pub queued: usize,
    /// Sandboxes that are held until there is memory for them.
    pub held: usize,
}

impl Governor {
    /// A governor of a machine with so many processors.
    pub fn new(config: Config, cpus: usize, now: Time) -> Governor {
        let cpus = cpus.max(1) as f64;
        let budget = Budget::new(config.schedule.cpu_budget.part() * cpus, now);
        let times = times(&config);
        Governor {
            still: false,
            pace: Pace::new(config.time_scale),
            admission: Admission::new(SETTLING.mul_f64(config.time_scale)),
            times,
            config,
            cpus,
            sandboxes: BTreeMap::new(),
            cooling: BTreeSet::new(),
            memory: Memory::default(),
            watermark: Watermark::default(),
            budget,
            ring: Ring::default(),
            jobs: 0,
            orphans: BTreeMap::new(),
            restores: wake::Restores::default(),
            ends: BTreeMap::new(),
            scope: 1.0,
            sampled: now,
            hot_sampled: now,
            strained: false,
            second_look: None,
            effects: Vec::new(),
        }
    }

    /// While it holds still it learns what there is, and begins nothing. Otherwise it would take from
    /// sandboxes whose latest hint it has not heard yet.
    pub fn hold_still(&mut self, still: bool) {
        self.still = still;
    }

    /// Its configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// It knows this sandbox.
    pub fn knows(&self, id: Id) -> bool {
        self.sandboxes.contains_key(&id)
    }

    /// Every sandbox.
    pub fn ids(&self) -> impl Iterator<Item = Id> + '_ {
        self.sandboxes.keys().copied()
    }

    /// Takes what has happened. What concerns a sandbox that is not known changes nothing.
    pub fn handle(&mut self, input: Input, now: Time) {
        self.budget.advance(now);
        // A round is many samples, and nothing is decided before its end.
        let decides = !matches!(input, Input::Sample(..) | Input::Memory(_));
        match input {
            Input::Appeared { id, profile, known } => self.appeared(id, profile, known, now),
            Input::Attached(id) => self.attached(id),
            Input::Taken(id, bytes) => self.was_taken(id, bytes),
            Input::Profile(id, profile) => self.set_profile(id, profile),
            Input::Gone(id) => self.gone(id),
            Input::Hint(id, hint) => {
                let event = Event::Hint(hint);
                self.event(id, &event, now);
                self.foresee(id, &event, now);
            }
            Input::Memory(memory) => self.memory = memory,
            Input::Sample(id, sample) => self.sample(id, sample, now),
            Input::Sampled => self.tick(now),
            Input::JobDone(id, done) => self.job_done(id, done, now),
            Input::Restored(id, cpu) => self.restored(id, cpu),
            Input::HotSampled(cpu) | Input::Prefetched(cpu) => self.charge(cpu),
            Input::Scope(scope) => self.scope = scope.clamp(0.0, 1.0),
            Input::Quiesce(id) => self.quiesce(id),
            Input::Release(id) => self.release(id, now),
            Input::Config(config) => self.reconfigure(*config),
            Input::Clock => self.clock(now),
        }
        if self.still || (!decides && self.admission.held() == 0) {
            return;
        }
        self.review(now);
        self.start_restores(now);
        self.start_jobs(now);
        self.share_second_look();
    }

    /// What is to be done since the last call, in this order.
    pub fn effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// When it wants [`Input::Clock`] if nothing else happens. The rounds of samples are not in
    /// it: see [`Governor::next_round`].
    pub fn next_timer(&self, now: Time) -> Option<Time> {
        let cooling = self
            .cooling
            .iter()
            .filter_map(|id| self.sandboxes.get(id)?.machine.deadline(&self.times))
            .min();
        [
            cooling,
            self.admission.deadline(),
            // Memory may be freed by anyone at any time.
            (self.admission.held() > 0).then(|| now.saturating_add(self.scaled(wake::REVIEW))),
            self.restores.timer(&self.budget, self.restore_timeout()),
            self.jobs_timer(now),
            self.second_look_timer(),
            self.next_end(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// When the next round of samples is due.
    pub fn next_round(&self) -> Time {
        let period = self.config.time(self.config.schedule.period);
        self.sampled.saturating_add(period)
    }

    fn scaled(&self, time: Duration) -> Duration {
        time.mul_f64(self.config.time_scale)
    }

    fn appeared(&mut self, id: Id, profile: Profile, known: Option<Phase>, now: Time) {
        if self.sandboxes.contains_key(&id) {
            return self.set_profile(id, profile);
        }
        let machine = match known {
            Some(phase) => Machine::recovered(phase, now, &self.times),
            None => Machine::new(now),
        };
        self.sandboxes
            .insert(id, Sandbox::new(machine, profile, now));
        if let Some(phase) = known {
            if let Some(sandbox) = self.sandboxes.get_mut(&id) {
                sandbox.attached = true;
            }
            self.level(id);
            if phase == Phase::Waiting {
                self.want(id, false);
            }
        }
    }

    fn was_taken(&mut self, id: Id, bytes: u64) {
        if let Some(sandbox) = self.sandboxes.get_mut(&id) {
            sandbox.taken = sandbox.taken.max(bytes);
        }
    }

    /// It is held until there is memory for it.
    pub fn holds(&self, id: Id) -> bool {
        self.admission.holds(id)
    }

    fn attached(&mut self, id: Id) {
        let Some(sandbox) = self.sandboxes.get_mut(&id) else {
            return;
        };
        sandbox.attached = true;
        let phase = sandbox.phase();
        self.level(id);
        self.effects
            .extend(phase.map(|phase| Effect::Phase(id, phase)));
    }

    fn set_profile(&mut self, id: Id, profile: Profile) {
        let Some(sandbox) = self.sandboxes.get_mut(&id) else {
            return;
        };
        if sandbox.profile != profile {
            sandbox.profile = profile;
            self.level(id);
        }
    }

    /// Tells the module the level of a sandbox's profile.
    fn level(&mut self, id: Id) {
        if let Some(sandbox) = self.sandboxes.get(&id).filter(|sandbox| sandbox.attached) {
            let level = sandbox.profile.weights(&self.config).level;
            self.effects.push(Effect::Level(id, level));
        }
    }

    fn gone(&mut self, id: Id) {
        if let Some(sandbox) = self.sandboxes.remove(&id) {
            self.cooling.remove(&id);
            self.ring.remove(id);
            self.restores.forget(id);
            self.ends.remove(&id);
            self.admission.forget(id);
            if let Some(job) = sandbox.job {
                // It takes a worker until it has ended.
                self.orphans.insert(id, job);
                self.effects.push(Effect::Stop(id));
            }
        }
    }

    /// Runs the state machine and does what it asks for.
    fn event(&mut self, id: Id, event: &Event, now: Time) {
        let Some(sandbox) = self.sandboxes.get_mut(&id) else {
            return;
        };
        if let Event::Hint(_) = event {
            sandbox.hints += 1;
        }
        let (machine, actions) = sandbox.machine.step(event, now, &self.times);
        let from = std::mem::replace(&mut sandbox.machine, machine).state();
        match machine.deadline(&self.times) {
            Some(_) => self.cooling.insert(id),
            None => self.cooling.remove(&id),
        };
        for action in actions {
            match action {
                Action::Phase(phase) => self.tell(id, phase),
                Action::Compress => self.wait_begins(id),
                Action::Stop => self.wakes(id, now),
                Action::Restore => self.want_restore(id, Trigger::FirstToken, now),
            }
        }
        match machine.state() {
            State::Compressed | State::Cooling => {}
            State::Terminated => self.finish(id),
            // Nothing is taken from what works, whatever it was begun for.
            State::Running if !machine.runs_a_tool() => {}
            State::Running | State::Resuming => self.stop(id),
        }
        // Last, as it is told to any number of subscribers.
        if machine.state() != from {
            let note = Note::State(id, from, machine.state());
            self.effects.push(Effect::Note(note));
        }
    }

    /// Tells the module a phase, unless the sandbox is held still or not attached yet.
    fn tell(&mut self, id: Id, phase: Phase) {
        let told = self
            .sandboxes
            .get(&id)
            .is_some_and(|sandbox| sandbox.attached && !sandbox.quiesced);
        if told {
            self.effects.push(Effect::Phase(id, phase));
        }
    }

    fn clock(&mut self, now: Time) {
        let is_due = |id: &Id| {
            let machine = &self.sandboxes.get(id)?.machine;
            let deadline = machine.deadline(&self.times)?;
            // A time in the future: the clock went back.
            Some(deadline <= now || machine.since() > now)
        };
        let cooling = self.cooling.iter().copied();
        let due: Vec<Id> = cooling.filter(|id| is_due(id) == Some(true)).collect();
        for id in due {
            self.event(id, &Event::Clock, now);
        }
        self.see_ends(now);
    }

    fn reconfigure(&mut self, config: Config) {
        self.budget
            .set_rate(config.schedule.cpu_budget.part() * self.cpus);
        self.times = times(&config);
        self.config = config;
        let ids: Vec<Id> = self.ids().collect();
        for id in ids {
            self.level(id);
        }
    }
}

fn times(config: &Config) -> Times {
    Times {
        cooling: config.time(config.schedule.cooling),
        expect: config.time(config.schedule.expect),
    }
}
