// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A day of two hundred sandboxes on a model of a host, with random agents, storms and restarts of the
//! daemon. Nothing is real but the governor; the clock is the model's.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::time::Duration;

use agentzip_ctl::config::Config;
use agentzip_ctl::governor::{Done, Effect, Governor, Id, Input, Profile, Sample};
use agentzip_ctl::lifecycle::{State, Time};
use agentzip_ctl::schedule::watermark::Memory;
use agentzip_uapi::Phase;

const MIB: u64 = 1 << 20;
const CPUS: usize = 8;
const TOTAL: u64 = 7 << 30;
const SANDBOXES: u64 = 200;
const HOUR: Duration = Duration::from_secs(3600);

/// A generator that is good enough, and always the same (splitmix64).
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }

    fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low)
    }

    fn chance(&mut self, one_in: u64) -> bool {
        self.below(one_in) == 0
    }
}

/// What an agent does next, or what the host has finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    Agent(Id),
    JobDone(Id),
    Restored(Id),
    Storm,
    Restart,
}

/// A sandbox of the model.
struct Model {
    /// It uses hints.
    hints: bool,
    resident: u64,
    /// What it needs to work with.
    needs: u64,
    works: bool,
    phase: Phase,
    cpu_usec: u64,
    job: Option<(u64, Time)>,
    stopping: bool,
    restoring: bool,
    /// Its next step.
    turn: u32,
}

struct World {
    dice: Dice,
    governor: Governor,
    now: Time,
    next: BinaryHeap<Reverse<(Time, u64, Happening)>>,
    sequence: u64,
    sandboxes: BTreeMap<Id, Model>,
    /// Those that are held, and since when.
    frozen: BTreeMap<Id, Time>,
    /// Jobs that run.
    jobs: usize,
    /// Those of sandboxes that are gone.
    orphans: BTreeSet<Id>,
    /// CPU time of all jobs and restores since the daemon started.
    cpu: Duration,
    started: Time,
    /// For the end: what was seen at all.
    seen: Seen,
}

#[derive(Debug, Default)]
struct Seen {
    jobs: u64,
    stops: u64,
    holds: u64,
    restores: u64,
    file_first: u64,
    restarts: u64,
    observed: u64,
    longest_hold: Duration,
    steps: u64,
}

impl World {
    fn new(seed: u64) -> World {
        let mut world = World {
            dice: Dice(seed),
            governor: Governor::new(Config::default(), CPUS, Duration::ZERO),
            now: Duration::ZERO,
            next: BinaryHeap::new(),
            sequence: 0,
            sandboxes: BTreeMap::new(),
            frozen: BTreeMap::new(),
            jobs: 0,
            orphans: BTreeSet::new(),
            cpu: Duration::ZERO,
            started: Duration::ZERO,
            seen: Seen::default(),
        };
        for id in 1..=SANDBOXES {
            world.spawn(id);
        }
        for hour in 1..24 {
            world.at(HOUR * hour, Happening::Storm);
            world.at(HOUR * hour + Duration::from_secs(600), Happening::Restart);
        }
        world
    }

    fn at(&mut self, time: Time, what: Happening) {
        self.sequence += 1;
        self.next.push(Reverse((time, self.sequence, what)));
    }

    fn after(&mut self, ms: u64, what: Happening) {
        self.at(self.now + Duration::from_millis(ms), what);
    }

    fn profile(id: Id) -> Profile {
        match id % 2 {
            0 => Profile::Interactive,
            _ => Profile::Batch,
        }
    }

    fn spawn(&mut self, id: Id) {
        let needs = self.dice.between(16, 80) * MIB;
        let model = Model {
            hints: id % 5 != 0,
            resident: needs,
            needs,
            works: true,
            phase: Phase::Running,
            cpu_usec: 0,
            job: None,
            stopping: false,
            restoring: false,
            turn: 0,
        };
        self.sandboxes.insert(id, model);
        self.input(Input::Appeared {
            id,
            profile: World::profile(id),
            known: None,
        });
        self.input(Input::Attached(id));
        if self.sandboxes[&id].hints {
            self.hint(id, "tool-start");
        }
        let wait = self.dice.below(60_000);
        self.after(wait, Happening::Agent(id));
    }

    fn memory(&self) -> Memory {
        let resident: u64 = self.sandboxes.values().map(|s| s.resident).sum();
        Memory {
            total: TOTAL,
            available: TOTAL.saturating_sub(resident),
            swap_free: 1 << 40,
        }
    }

    /// Gives the governor something and does what it says.
    fn input(&mut self, input: Input) {
        self.governor.handle(input, self.now);
        for effect in self.governor.effects() {
            self.obey(effect);
        }
    }

    fn obey(&mut self, effect: Effect) {
        let now = self.now;
        match effect {
            Effect::Phase(id, phase) => self.sandboxes.get_mut(&id).unwrap().phase = phase,
            Effect::Start {
                id,
                bytes,
                file_first,
            } => {
                self.seen.jobs += 1;
                self.seen.file_first += u64::from(file_first);
                let sandbox = self.sandboxes.get_mut(&id).unwrap();
                assert!(sandbox.job.is_none(), "{id} has a job");
                assert!(!sandbox.restoring, "{id} is being restored");
                assert!(!(sandbox.hints && sandbox.works), "{id} works");
                sandbox.job = Some((bytes, now));
                self.jobs += 1;
                sandbox.stopping = false;
                let takes = (bytes / MIB) * 3;
                self.after(takes.max(1), Happening::JobDone(id));
            }
            Effect::Stop(id) => {
                self.seen.stops += 1;
                if let Some(sandbox) = self.sandboxes.get_mut(&id) {
                    assert!(
                        sandbox.job.is_some() && !sandbox.stopping,
                        "{id} has no job"
                    );
                    sandbox.stopping = true;
                }
                self.after(2, Happening::JobDone(id));
            }
            Effect::Restore(id, _) | Effect::Return(id) => {
                self.seen.restores += 1;
                let sandbox = self.sandboxes.get_mut(&id).unwrap();
                assert!(!sandbox.restoring, "{id} is being restored");
                sandbox.restoring = true;
                self.after(20, Happening::Restored(id));
            }
            Effect::Freeze(id) => {
                self.seen.holds += 1;
                assert!(self.frozen.insert(id, now).is_none(), "{id} is frozen");
            }
            Effect::Thaw(id) => {
                let since = self.frozen.remove(&id).expect("thawed what was not frozen");
                self.seen.longest_hold = self.seen.longest_hold.max(now - since);
            }
            Effect::EndRestore(id) => assert!(self.sandboxes[&id].restoring, "{id}"),
            Effect::Level(..) | Effect::SecondLook(_) | Effect::Note(_) => {}
        }
    }

    fn hint(&mut self, id: Id, text: &str) {
        let mut texts = vec![text.to_owned()];
        // Hints are repeated now and then, and a wrong one comes in between.
        if self.dice.chance(20) {
            texts.push(text.to_owned());
        }
        if self.dice.chance(50) {
            texts.insert(0, "tool-end".to_owned());
        }
        if self.dice.chance(20) {
            texts.push("message-near;in=300".to_owned());
        }
        for text in texts {
            self.input(Input::Hint(id, text.parse().unwrap()));
        }
    }

    /// One step of an agent: works, waits, resumes; or it ends and another one comes.
    fn agent(&mut self, id: Id) {
        let Some(sandbox) = self.sandboxes.get_mut(&id) else {
            return;
        };
        sandbox.turn += 1;
        let (turn, hints) = (sandbox.turn, sandbox.hints);
        let step = match (hints, turn % 4) {
            (true, step) => step,
            // Without hints it works and waits only.
            (false, step) => step % 2,
        };
        match step {
            1 => {
                sandbox.works = false;
                // Some expectations are far off, and some are missing.
                let wait = self.dice.between(1000, 480_000);
                let text = match self.dice.below(4) {
                    0 => "llm-wait".to_owned(),
                    1 => format!("llm-wait;expect={}", wait / 10),
                    _ => format!("llm-wait;expect={wait}"),
                };
                if hints {
                    self.hint(id, &text);
                }
                self.after(wait, Happening::Agent(id));
            }
            2 => {
                self.hint(id, "first-token");
                let wait = self.dice.between(50, 3000);
                self.after(wait, Happening::Agent(id));
            }
            3 => {
                sandbox.works = true;
                self.hint(id, "tool-start;tool=pytest");
                let wait = self.dice.between(500, 240_000);
                self.after(wait, Happening::Agent(id));
            }
            _ => {
                sandbox.works = true;
                if hints {
                    self.hint(id, "tool-end");
                    let sandbox = self.sandboxes.get_mut(&id).unwrap();
                    sandbox.works = false;
                }
                if self.dice.chance(200) {
                    return self.end(id);
                }
                let wait = self.dice.between(100, 240_000);
                self.after(wait, Happening::Agent(id));
            }
        }
    }

    /// A sandbox ends; another one takes its place.
    fn end(&mut self, id: Id) {
        if self.sandboxes[&id].hints && self.dice.chance(2) {
            self.hint(id, "done");
        }
        let model = self.sandboxes.remove(&id).unwrap();
        if model.job.is_some() {
            self.orphans.insert(id);
        }
        self.frozen.remove(&id);
        self.input(Input::Gone(id));
        // Ids are not used again.
        self.spawn(id + 1000);
    }

    fn job_done(&mut self, id: Id) {
        let (bytes, began, stopping) = match self.sandboxes.get_mut(&id) {
            // The stop, or the regular end, came before.
            Some(sandbox) => match sandbox.job.take() {
                Some((bytes, began)) => (bytes, began, std::mem::take(&mut sandbox.stopping)),
                None => return,
            },
            None if self.orphans.remove(&id) => (0, self.now, true),
            None => return,
        };
        self.jobs -= 1;
        let elapsed = self.now - began;
        let mut reclaimed = 0;
        if let Some(sandbox) = self.sandboxes.get_mut(&id) {
            let least = sandbox.needs / 8;
            let part = match stopping {
                true => bytes.min((elapsed.as_millis() as u64 / 3) * MIB),
                false => bytes,
            };
            reclaimed = part.min(sandbox.resident.saturating_sub(least));
            sandbox.resident -= reclaimed;
        }
        // Jobs take more or less CPU time than planned.
        let cpu = Duration::from_micros(reclaimed / MIB * self.dice.between(300, 4000) + 500);
        self.cpu += cpu;
        self.input(Input::JobDone(
            id,
            Done {
                reclaimed,
                cpu,
                elapsed: elapsed.max(cpu),
                stopped: stopping,
                reason: None,
            },
        ));
    }

    fn round(&mut self) {
        let ids: Vec<Id> = self.sandboxes.keys().copied().collect();
        // What works uses its memory again.
        for (id, sandbox) in &mut self.sandboxes {
            if sandbox.works && !self.frozen.contains_key(id) {
                sandbox.resident = sandbox.needs.max(sandbox.resident);
                sandbox.cpu_usec += 1_000_000;
            }
        }
        let memory = self.memory();
        self.input(Input::Memory(memory));
        for id in ids {
            let needs = self.governor.needs(id);
            let sandbox = &self.sandboxes[&id];
            let sample = Sample {
                current: sandbox.resident,
                cpu_usec: needs.cpu.then_some(sandbox.cpu_usec),
                psi: needs
                    .psi
                    .then_some(if self.dice.chance(500) { 0.2 } else { 0.01 }),
            };
            self.input(Input::Sample(id, sample));
        }
        self.input(Input::Sampled);
    }

    /// Every sandbox that waits wakes at once.
    fn storm(&mut self) {
        let ids: Vec<Id> = self.sandboxes.keys().copied().collect();
        for id in ids {
            let sandbox = self.sandboxes.get_mut(&id).unwrap();
            if sandbox.hints && !sandbox.works {
                sandbox.works = true;
                sandbox.turn = 3;
                self.hint(id, "tool-start");
            }
        }
    }

    /// The daemon is killed, and another one begins with what module and cgroups say.
    fn restart(&mut self) {
        self.seen.restarts += 1;
        self.frozen.clear();
        self.orphans.clear();
        self.jobs = 0;
        let config = self.governor.config().clone();
        self.governor = Governor::new(config, CPUS, self.now);
        self.started = self.now;
        self.cpu = Duration::ZERO;
        let ids: Vec<Id> = self.sandboxes.keys().copied().collect();
        for id in ids {
            let sandbox = self.sandboxes.get_mut(&id).unwrap();
            // Its workers died with it, and what it held goes on.
            sandbox.job = None;
            sandbox.restoring = false;
            let known = Some(sandbox.phase);
            self.input(Input::Appeared {
                id,
                profile: World::profile(id),
                known,
            });
        }
        self.next.retain(|Reverse((_, _, what))| {
            !matches!(what, Happening::JobDone(_) | Happening::Restored(_))
        });
    }

    fn check(&mut self) {
        self.seen.steps += 1;
        let config = self.governor.config();
        let workers = config.schedule.compress_workers.get() as usize;
        assert!(self.jobs <= workers, "{} jobs", self.jobs);
        // CPU time: the rate, one bucket, and what the last jobs took too much.
        let rate = config.schedule.cpu_budget.part() * CPUS as f64;
        let bound = rate * ((self.now - self.started).as_secs_f64() + 1.0) + 0.5;
        assert!(self.cpu.as_secs_f64() <= bound, "{:?} > {bound}", self.cpu);
        for (id, since) in &self.frozen {
            let limit = World::profile(*id).hold_limit(config) + Duration::from_millis(1);
            assert!(
                self.now - *since <= limit,
                "{id} is held for {:?}",
                self.now - *since
            );
        }
    }

    /// What is too long for every step.
    fn check_each(&mut self) {
        for (id, sandbox) in &self.sandboxes {
            let view = self.governor.view(*id, self.now).unwrap();
            assert_eq!(
                Some(sandbox.phase),
                view.state.phase().or(Some(sandbox.phase)),
                "{id}"
            );
            assert_eq!(view.held, self.frozen.contains_key(id), "{id}");
            assert_eq!(view.compressing, sandbox.job.is_some(), "{id}");
            if view.tool {
                assert!(sandbox.job.is_none() || sandbox.stopping, "{id}");
            }
            if view.state == State::Compressed && !view.hinted {
                self.seen.observed += 1;
            }
        }
        assert_eq!(self.governor.ids().count(), self.sandboxes.len());
    }

    fn run(&mut self, until: Time) {
        let mut stuck = 0;
        while self.now < until {
            let timer = self.governor.next_timer(self.now);
            let round = self.governor.next_round();
            let event = self.next.peek().map(|Reverse((time, ..))| *time);
            let next = [timer, Some(round), event]
                .into_iter()
                .flatten()
                .min()
                .unwrap();
            // A timer in the past that nothing comes of is a busy loop.
            stuck = if next > self.now { 0 } else { stuck + 1 };
            assert!(stuck < 1000, "busy at {:?}: {timer:?}", self.now);
            self.now = self.now.max(next);
            if event == Some(next) {
                let Reverse((_, _, what)) = self.next.pop().unwrap();
                match what {
                    Happening::Agent(id) => self.agent(id),
                    Happening::JobDone(id) => self.job_done(id),
                    Happening::Restored(id) => {
                        if let Some(sandbox) = self.sandboxes.get_mut(&id) {
                            sandbox.restoring = false;
                            sandbox.resident = sandbox.needs;
                        }
                        let cpu = Duration::from_millis(10);
                        self.cpu += cpu;
                        self.input(Input::Restored(id, cpu));
                    }
                    Happening::Storm => self.storm(),
                    Happening::Restart => self.restart(),
                }
            } else if next == round {
                self.round();
                self.check_each();
            } else {
                let memory = self.memory();
                self.input(Input::Memory(memory));
                self.input(Input::Clock);
            }
            self.check();
        }
    }
}

trait HoldLimit {
    fn hold_limit(self, config: &Config) -> Duration;
}

impl HoldLimit for Profile {
    fn hold_limit(self, config: &Config) -> Duration {
        match self {
            Profile::Interactive => config.time(config.schedule.hold_interactive),
            Profile::Batch => config.time(config.schedule.hold_batch),
        }
    }
}

#[test]
fn a_day_of_two_hundred_sandboxes() {
    let mut world = World::new(1);
    world.run(HOUR * 24);
    let seen = &world.seen;
    println!("{seen:?}");
    // Everything that the rules are about did occur.
    assert!(
        seen.jobs > 10_000 && seen.stops > 20 && seen.restores > 1000,
        "{seen:?}"
    );
    assert!(
        seen.holds > 100 && seen.file_first > 100 && seen.observed > 1000,
        "{seen:?}"
    );
    assert_eq!(seen.restarts, 23);
    assert!(seen.longest_hold >= Duration::from_secs(2), "{seen:?}");
}
