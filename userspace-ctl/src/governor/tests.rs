// SPDX-License-Identifier: GPL-2.0 OR MIT

use super::*;
use crate::predict::Trigger;
use crate::schedule::fair::QUANTUM;

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

/// A governor, its clock, and all that it asked for.
pub struct Desk {
    pub governor: Governor,
    pub now: Time,
    pub all: Vec<Effect>,
}

impl Desk {
    /// Two processors, half of the memory used.
    pub fn new() -> Desk {
        Desk::with(Config::default())
    }

    pub fn with(config: Config) -> Desk {
        let mut desk = Desk {
            governor: Governor::new(config, 2, Duration::from_secs(1)),
            now: Duration::from_secs(1),
            all: Vec::new(),
        };
        desk.memory(50);
        desk
    }

    /// What follows from this, but for what is only told, and the share of the second look.
    pub fn on(&mut self, input: Input) -> Vec<Effect> {
        self.governor.handle(input, self.now);
        let mut effects = self.governor.effects();
        effects.retain(|effect| {
            !matches!(
                effect,
                Effect::Note(Note::State(..)) | Effect::SecondLook(_)
            )
        });
        self.all.extend(&effects);
        effects
    }

    pub fn memory(&mut self, used_percent: u64) {
        self.on(Input::Memory(Memory {
            total: 100 * GIB,
            available: (100 - used_percent) * GIB,
            swap_free: 100 * GIB,
        }));
    }

    pub fn sandbox(&mut self, id: Id, profile: Profile) {
        self.on(Input::Appeared {
            id,
            profile,
            known: None,
        });
        self.on(Input::Attached(id));
    }

    pub fn hint(&mut self, id: Id, text: &str) -> Vec<Effect> {
        self.on(Input::Hint(id, text.parse().unwrap()))
    }

    /// A job took this much, in a millisecond.
    pub fn done(&mut self, id: Id, reclaimed: u64) -> Vec<Effect> {
        self.on(Input::JobDone(
            id,
            Done {
                reclaimed,
                cpu: Duration::from_millis(1),
                elapsed: Duration::from_millis(1),
                ..Done::default()
            },
        ))
    }

    /// Two jobs found nothing.
    pub fn dry(&mut self, id: Id) {
        self.done(id, 0);
        self.done(id, 0);
    }

    pub fn pass(&mut self, time: Duration) -> Vec<Effect> {
        self.now += time;
        self.on(Input::Clock)
    }

    /// A round in which every sandbox has this much, after a period.
    pub fn round(&mut self, current: u64, psi: f64) -> Vec<Effect> {
        self.now += Duration::from_secs(5);
        let ids: Vec<Id> = self.governor.ids().collect();
        let mut effects = Vec::new();
        for id in ids {
            let needs = self.governor.needs(id);
            let sample = Sample {
                current,
                cpu_usec: needs.cpu.then_some(7),
                psi: needs.psi.then_some(psi),
            };
            effects.extend(self.on(Input::Sample(id, sample)));
        }
        effects.extend(self.on(Input::Sampled));
        effects
    }

    pub fn starts(effects: &[Effect]) -> Vec<(Id, u64, bool)> {
        effects
            .iter()
            .filter_map(|effect| match effect {
                Effect::Start {
                    id,
                    bytes,
                    file_first,
                } => Some((*id, *bytes, *file_first)),
                _ => None,
            })
            .collect()
    }
}

#[test]
fn a_wait_is_used_and_ends_at_the_first_token() {
    let mut desk = Desk::new();
    desk.sandbox(1, Profile::Interactive);
    let effects = desk.hint(1, "llm-wait;expect=8000");
    assert_eq!(effects[0], Effect::Phase(1, Phase::Waiting));
    assert_eq!(Desk::starts(&effects), [(1, QUANTUM / 2, false)]);
    // It goes on while it brings something.
    let effects = desk.done(1, QUANTUM / 2);
    assert_eq!(Desk::starts(&effects).len(), 1);
    let effects = desk.hint(1, "first-token");
    assert_eq!(
        effects,
        [
            Effect::Stop(1),
            Effect::Phase(1, Phase::Resuming),
            Effect::Restore(1, Trigger::FirstToken)
        ]
    );
    // What the stopped job still took does not start another one.
    assert_eq!(desk.done(1, MIB), []);
    assert_eq!(desk.governor.view(1, desk.now).unwrap().taken, MIB);
}

#[test]
fn two_dry_jobs_are_the_end() {
    let mut desk = Desk::new();
    desk.sandbox(1, Profile::Interactive);
    desk.hint(1, "llm-wait;expect=60000");
    assert_eq!(Desk::starts(&desk.done(1, MIB)).len(), 1);
    // One may find pages on their way to a device.
    assert_eq!(Desk::starts(&desk.done(1, 0)).len(), 1);
    assert_eq!(Desk::starts(&desk.done(1, 0)), []);
    assert!(!desk.governor.view(1, desk.now).unwrap().queued);
    desk.pass(Duration::from_secs(1));
    // There is but the end of the wait to be ready for, a second before it.
    assert_eq!(
        desk.governor.next_timer(desk.now),
        Some(Duration::from_secs(60))
    );
}

#[test]
fn nothing_begins_that_the_wait_cannot_finish() {
    let mut desk = Desk::new();
    desk.sandbox(1, Profile::Interactive);
    // 1 MiB takes 2.6 ms: worth it from twice that on.
    assert_eq!(Desk::starts(&desk.hint(1, "llm-wait;expect=5")), []);
    // Unless it is late: then it is likely to go on.
    let timer = desk.governor.next_timer(desk.now).unwrap();
    assert!(
        (5..60).contains(&(timer - desk.now).as_millis()),
        "{timer:?}"
    );
    let before = std::mem::replace(&mut desk.now, timer);
    assert_eq!(Desk::starts(&desk.on(Input::Clock)).len(), 1);
    desk.now = before;
    desk.dry(1);
    let effects = desk.hint(1, "llm-wait;expect=20");
    let starts = Desk::starts(&effects);
    assert_eq!(starts.len(), 1);
    assert!((MIB..5 * MIB).contains(&starts[0].1), "{starts:?}");
}

#[test]
fn no_more_than_two_workers_and_nobody_is_forgotten() {
    let mut desk = Desk::new();
    for id in 1..=100 {
        desk.sandbox(id, Profile::Interactive);
        desk.hint(id, "llm-wait;expect=600000");
    }
    assert_eq!(
        Desk::starts(&desk.all),
        [(1, QUANTUM / 2, false), (2, QUANTUM / 2, false)]
    );
    let mut turns = vec![0u32; 101];
    let mut running = vec![1, 2];
    for _ in 0..1000 {
        desk.now += Duration::from_millis(10);
        let id = running.remove(0);
        let effects = desk.done(id, 16 * MIB);
        turns[id as usize] += 1;
        running.extend(Desk::starts(&effects).iter().map(|(id, ..)| *id));
        assert_eq!(running.len(), 2);
    }
    assert!(
        turns[1..].iter().all(|turns| (9..=11).contains(turns)),
        "{turns:?}"
    );
}

#[test]
fn over_budget_is_queued() {
    let mut desk = Desk::new();
    desk.sandbox(1, Profile::Interactive);
    desk.hint(1, "llm-wait;expect=600000");
    // Two seconds of CPU time; half a second for each is allowed.
    let effects = desk.on(Input::JobDone(
        1,
        Done {
            reclaimed: QUANTUM,
            cpu: Duration::from_secs(2),
            elapsed: Duration::from_secs(2),
            ..Done::default()
        },
    ));
    assert_eq!(Desk::starts(&effects), []);
    let timer = desk.governor.next_timer(desk.now).unwrap();
    let wait = timer - desk.now;
    assert!((2900..3100).contains(&wait.as_millis()), "{wait:?}");
    assert!(desk.governor.view(1, desk.now).unwrap().queued);
    desk.now = timer;
    assert_eq!(Desk::starts(&desk.on(Input::Clock)).len(), 1);
}

#[test]
fn a_tool_is_left_alone_under_pressure_too() {
    let mut desk = Desk::new();
    desk.sandbox(1, Profile::Batch);
    desk.sandbox(2, Profile::Batch);
    desk.hint(1, "tool-start;tool=pytest");
    desk.hint(2, "tool-start");
    desk.hint(2, "tool-end");
    desk.memory(90);
    let effects = desk.round(GIB, 0.0);
    assert!(effects.contains(&Effect::Note(Note::Short(true, 90))));
    assert_eq!(
        Desk::starts(&effects),
        [(2, Desk::starts(&effects)[0].1, true)]
    );
    // A tool begins: at once nothing more is taken.
    assert_eq!(desk.hint(2, "tool-start"), [Effect::Stop(2)]);
    assert_eq!(desk.done(2, 16 * MIB), []);
}

#[test]
fn pressure_spares_who_is_expected_back_and_who_just_came() {
    let mut desk = Desk::new();
    desk.memory(90);
    desk.sandbox(1, Profile::Interactive);
    desk.hint(1, "llm-wait;expect=20000");
    desk.dry(1);
    assert_eq!(Desk::starts(&desk.round(GIB, 0.0)), []);
    desk.hint(1, "llm-wait;expect=100000");
    desk.dry(1);
    let starts = Desk::starts(&desk.round(GIB, 0.0));
    assert_eq!(starts.len(), 1);
    assert!(starts[0].2, "file cache first");
    // Nothing was found: it is not tried again until it has grown.
    desk.dry(1);
    assert_eq!(Desk::starts(&desk.round(GIB, 0.0)), []);
    assert_eq!(Desk::starts(&desk.round(GIB, 0.0)), []);
    assert_eq!(Desk::starts(&desk.round(2 * GIB, 0.0)).len(), 1);
    // Just woken.
    desk.dry(1);
    desk.hint(1, "first-token");
    desk.hint(1, "tool-start");
    desk.hint(1, "tool-end");
    assert_eq!(Desk::starts(&desk.round(2 * GIB, 0.0)), []);
}

#[test]
fn stalls_of_running_sandboxes_end_taking_from_those_that_do_not_wait() {
    let mut desk = Desk::new();
    desk.sandbox(1, Profile::Batch);
    desk.hint(1, "tool-start");
    desk.hint(1, "tool-end");
    desk.memory(90);
    // The first round finds memory short, the second reads the stalls.
    let effects = desk.round(GIB, 0.5);
    assert_eq!(Desk::starts(&effects).len(), 1);
    desk.done(1, 16 * MIB);
    desk.hint(1, "tool-start");
    desk.done(1, 16 * MIB);
    desk.on(Input::Restored(1, Duration::ZERO));
    desk.hint(1, "tool-end");
    assert_eq!(Desk::starts(&desk.round(3 * GIB, 0.5)), []);
    assert!(desk.governor.overview().strained);
    assert_eq!(Desk::starts(&desk.round(4 * GIB, 0.05)).len(), 1);
}

#[test]
fn pressure_ends_below_the_low_mark() {
    let mut desk = Desk::new();
    desk.sandbox(1, Profile::Batch);
    desk.hint(1, "tool-start");
    desk.hint(1, "tool-end");
    desk.memory(90);
    assert_eq!(Desk::starts(&desk.round(GIB, 0.0)).len(), 1);
    desk.memory(70);
    assert!(!desk.round(GIB, 0.0).contains(&Effect::Stop(1)));
    desk.memory(55);
    assert!(desk.round(GIB, 0.0).contains(&Effect::Stop(1)));
    assert_eq!(desk.done(1, 16 * MIB), []);
}

#[test]
fn without_hints_a_sandbox_is_observed() {
    let mut desk = Desk::new();
    desk.sandbox(1, Profile::Interactive);
    // The first sample says nothing, the second that nothing ran.
    desk.round(GIB, 0.0);
    desk.round(GIB, 0.0);
    assert_eq!(
        desk.governor.view(1, desk.now).unwrap().state,
        State::Cooling
    );
    let timer = desk.governor.next_timer(desk.now).unwrap();
    assert_eq!(timer, desk.now + Duration::from_secs(30));
    desk.now = timer;
    let effects = desk.on(Input::Clock);
    assert_eq!(Desk::starts(&effects).len(), 1);
    desk.done(1, 16 * MIB);
    desk.done(1, 0);
    desk.round(100 * MIB, 0.0);
    let effects = desk.round(110 * MIB, 0.0);
    assert!(
        effects.contains(&Effect::Phase(1, Phase::Running)),
        "{effects:?}"
    );
    assert_eq!(
        desk.governor.view(1, desk.now).unwrap().state,
        State::Running
    );
}

#[test]
fn reasons_are_told_once_and_trying_pauses() {
    let mut desk = Desk::new();
    desk.sandbox(1, Profile::Interactive);
    let helpless = |desk: &mut Desk| {
        desk.hint(1, "llm-wait;expect=900000");
        desk.on(Input::JobDone(
            1,
            Done {
                reason: Some(Reason::SwapMax),
                ..Done::default()
            },
        ))
    };
    let note = Effect::Note(Note::Helpless(1, Reason::SwapMax));
    assert_eq!(helpless(&mut desk), [note]);
    assert_eq!(helpless(&mut desk), []);
    let view = desk.governor.view(1, desk.now).unwrap();
    assert_eq!(view.reason, Some(Reason::SwapMax));
    // Under pressure it is not tried again and again.
    desk.memory(90);
    assert_eq!(Desk::starts(&desk.round(GIB, 0.0)), []);
}

#[test]
fn without_swap_nothing_is_tried() {
    let mut desk = Desk::new();
    desk.on(Input::Memory(Memory {
        total: 100 * GIB,
        available: 50 * GIB,
        swap_free: 0,
    }));
    desk.sandbox(1, Profile::Interactive);
    assert_eq!(Desk::starts(&desk.hint(1, "llm-wait;expect=60000")), []);
    let view = desk.governor.view(1, desk.now).unwrap();
    assert_eq!(view.reason, Some(Reason::NoSwap));
    desk.memory(50);
    assert_eq!(Desk::starts(&desk.pass(Duration::from_secs(1))).len(), 1);
}

#[test]
fn a_waking_storm_is_held_back_and_served() {
    let mut desk = Desk::new();
    for id in 1..=10 {
        desk.sandbox(id, Profile::Batch);
        desk.hint(id, "llm-wait;expect=600000");
    }
    let mut jobs: Vec<Id> = Desk::starts(&desk.all).iter().map(|s| s.0).collect();
    while let Some(id) = jobs.pop() {
        desk.now += Duration::from_secs(1);
        let taken = desk.governor.view(id, desk.now).unwrap().taken;
        let effects = desk.done(id, if taken == 0 { 10 * GIB } else { 0 });
        jobs.extend(Desk::starts(&effects).iter().map(|s| s.0));
    }
    // 35 GiB are there above the reserve, and 80% used is the bound: three may go on.
    desk.memory(60);
    for id in 1..=10 {
        desk.hint(id, "tool-start");
    }
    assert_eq!(desk.governor.overview().counts.held, 8);
    assert!(desk.all.contains(&Effect::Freeze(10)));
    assert!(!desk.all.contains(&Effect::Freeze(1)));
    assert!(matches!(desk.governor.admit(1), Admit::Wait { .. }));
    // Memory comes free, one by one; the promises are in the numbers after a while.
    desk.pass(Duration::from_secs(6));
    assert_eq!(desk.governor.overview().counts.held, 6);
    // One of them waits again before its turn.
    let effects = desk.hint(10, "llm-wait");
    assert!(effects.contains(&Effect::Thaw(10)));
    desk.memory(99);
    let effects = desk.pass(Duration::from_secs(30));
    assert!(effects.contains(&Effect::Note(Note::Freed(9, true))));
    assert_eq!(desk.governor.overview().counts.held, 0);
    for id in 1..=10 {
        let count = |wanted: Effect| desk.all.iter().filter(|e| **e == wanted).count();
        assert_eq!(count(Effect::Freeze(id)), count(Effect::Thaw(id)), "{id}");
    }
}

#[test]
fn quiesce_holds_until_released() {
    let mut desk = Desk::new();
    desk.sandbox(1, Profile::Interactive);
    desk.hint(1, "llm-wait;expect=60000");
    let effects = desk.on(Input::Quiesce(1));
    assert_eq!(effects, [Effect::Stop(1), Effect::Phase(1, Phase::Running)]);
    // When nothing is being taken any more.
    assert_eq!(desk.done(1, MIB), [Effect::Return(1)]);
    assert_eq!(desk.hint(1, "llm-wait;expect=60000"), []);
    desk.memory(95);
    assert_eq!(Desk::starts(&desk.round(GIB, 0.0)), []);
    desk.on(Input::Restored(1, Duration::from_millis(3)));
    let effects = desk.on(Input::Release(1));
    assert_eq!(effects[0], Effect::Phase(1, Phase::Waiting));
    assert_eq!(Desk::starts(&effects).len(), 1);
}

#[test]
fn restores_go_first_between_the_watermarks() {
    let mut desk = Desk::new();
    desk.memory(70);
    desk.sandbox(1, Profile::Interactive);
    desk.sandbox(2, Profile::Interactive);
    assert_eq!(
        desk.hint(1, "first-token")[1],
        Effect::Restore(1, Trigger::FirstToken)
    );
    assert_eq!(Desk::starts(&desk.hint(2, "llm-wait;expect=60000")), []);
    let effects = desk.on(Input::Restored(1, Duration::from_millis(1)));
    assert_eq!(Desk::starts(&effects).len(), 1);
}

#[test]
fn restores_that_come_too_late_are_dropped() {
    let mut desk = Desk::new();
    desk.sandbox(1, Profile::Interactive);
    desk.on(Input::Restored(9, Duration::from_secs(3)));
    assert!(!desk
        .hint(1, "first-token")
        .contains(&Effect::Restore(1, Trigger::FirstToken)));
    let timer = desk.governor.next_timer(desk.now).unwrap();
    assert_eq!(timer, desk.now + Duration::from_millis(500));
    assert_eq!(desk.pass(Duration::from_millis(500)), []);
    // Only the second look waits, for the debt to be paid.
    desk.pass(Duration::from_secs(6));
    assert_eq!(desk.governor.next_timer(desk.now), None);
}

#[test]
fn the_second_look_gets_what_is_left() {
    let share = |desk: &Desk| desk.governor.overview().second_look;
    let mut desk = Desk::new();
    desk.sandbox(1, Profile::Interactive);
    // A quarter of two processors.
    assert_eq!(share(&desk), Some(50));
    desk.hint(1, "llm-wait;expect=600000");
    assert_eq!(share(&desk), Some(1));
    desk.now += Duration::from_secs(1);
    desk.on(Input::JobDone(
        1,
        Done {
            cpu: Duration::from_millis(600),
            ..Done::default()
        },
    ));
    desk.pass(Duration::from_millis(250));
    desk.done(1, 0);
    // Nothing more is to be done for this wait, which may be over long before the next round. But
    // first what the jobs took is made up for.
    assert_eq!(share(&desk), Some(1));
    let timer = desk.governor.next_timer(desk.now).unwrap();
    let pause = (timer - desk.now).as_millis();
    assert!((900..1100).contains(&pause), "{pause} ms");
    desk.pass(Duration::from_millis(800));
    assert_eq!(share(&desk), Some(1));
    desk.pass(Duration::from_millis(300));
    assert_eq!(share(&desk), Some(50));
    // While a restore runs, which is paid for at its end, it stands back as well.
    assert!(desk
        .hint(1, "first-token")
        .contains(&Effect::Restore(1, Trigger::FirstToken)));
    assert_eq!(share(&desk), Some(1));
    desk.on(Input::Restored(1, Duration::from_millis(100)));
    assert_eq!(share(&desk), Some(1));
    desk.pass(Duration::from_millis(210));
    assert_eq!(share(&desk), Some(50));
    assert_eq!(desk.governor.next_timer(desk.now), None);
    // A module that was loaded anew has heard of nothing.
    desk.governor.handle(Input::Clock, desk.now);
    assert!(!desk.governor.effects().contains(&Effect::SecondLook(50)));
    desk.governor.tell_again();
    desk.governor.handle(Input::Clock, desk.now);
    let effects = desk.governor.effects();
    assert!(effects.contains(&Effect::SecondLook(50)), "{effects:?}");
}

#[test]
fn what_is_gone_leaves_nothing_behind() {
    let mut desk = Desk::new();
    for id in 1..=3 {
        desk.sandbox(id, Profile::Interactive);
        desk.hint(id, "llm-wait;expect=600000");
    }
    assert_eq!(desk.on(Input::Gone(1)), [Effect::Stop(1)]);
    // Its worker is busy until it says so.
    assert_eq!(desk.governor.overview().counts.jobs, 2);
    assert_eq!(Desk::starts(&desk.done(1, MIB)), [(3, QUANTUM / 2, false)]);
    desk.on(Input::Gone(2));
    desk.on(Input::Gone(3));
    desk.done(2, 0);
    desk.done(3, 0);
    desk.done(3, 0);
    assert_eq!(desk.hint(3, "llm-wait"), []);
    assert_eq!(desk.governor.overview().counts, Counts::default());
    desk.pass(Duration::from_secs(1));
    assert_eq!(desk.governor.next_timer(desk.now), None);
}

#[test]
fn rebuilt_from_the_module() {
    let mut desk = Desk::new();
    for (id, phase) in [
        (1, Phase::Waiting),
        (2, Phase::Running),
        (3, Phase::Resuming),
    ] {
        desk.on(Input::Appeared {
            id,
            profile: Profile::Batch,
            known: Some(phase),
        });
    }
    assert_eq!(Desk::starts(&desk.all), [(1, QUANTUM / 2, false)]);
    assert_eq!(desk.governor.overview().counts.states, [1, 0, 1, 1, 0]);
    assert!(!desk
        .all
        .iter()
        .any(|effect| matches!(effect, Effect::Phase(..))));
}

#[test]
fn phases_before_the_module_has_it_are_made_up_for() {
    let mut desk = Desk::new();
    desk.on(Input::Appeared {
        id: 1,
        profile: Profile::Batch,
        known: None,
    });
    let effects = desk.hint(1, "llm-wait;expect=1");
    assert_eq!(effects, []);
    let effects = desk.on(Input::Attached(1));
    assert_eq!(
        effects,
        [Effect::Level(1, 6), Effect::Phase(1, Phase::Waiting)]
    );
}

#[test]
fn a_new_configuration() {
    let mut desk = Desk::new();
    desk.sandbox(1, Profile::Batch);
    let mut config = Config::default();
    config.profile.batch.level = 3;
    config.schedule.cpu_budget = crate::config::Percent::new(50);
    let effects = desk.on(Input::Config(Box::new(config)));
    assert_eq!(effects, [Effect::Level(1, 3)]);
    assert_eq!(desk.governor.overview().cpu_budget, 1.0);
}

#[test]
fn admission_of_new_sandboxes() {
    let mut desk = Desk::new();
    assert_eq!(desk.governor.admit(GIB), Admit::Yes);
    // 26 GiB are 1 more than stay free below 75%.
    assert!(matches!(desk.governor.admit(26 * GIB), Admit::No { .. }));
    desk.sandbox(1, Profile::Batch);
    desk.hint(1, "llm-wait");
    desk.round(2 * GIB, 0.0);
    let Admit::Wait { reason, retry_ms } = desk.governor.admit(26 * GIB) else {
        panic!("no wait");
    };
    assert!(reason.contains("have 2147483648 to give"), "{reason}");
    assert_eq!(retry_ms, 5000);
    assert!(matches!(desk.governor.admit(90 * GIB), Admit::No { .. }));
    let new = Governor::new(Config::default(), 2, Duration::ZERO);
    assert!(matches!(new.admit(1), Admit::Wait { .. }));
}

/// 1: all the same.
fn jain(values: &[f64]) -> f64 {
    let sum: f64 = values.iter().sum();
    let squares: f64 = values.iter().map(|v| v * v).sum();
    sum * sum / (values.len() as f64 * squares)
}

/// Runs jobs that are asked for, each at this speed (bytes and CPU time a millisecond), for so long; returns
/// what was taken from each, and the CPU time.
fn run_jobs(
    desk: &mut Desk,
    time: Duration,
    each_ms: u64,
    cpu_part: f64,
) -> (BTreeMap<Id, f64>, Duration) {
    let mut running: Vec<(Time, Id, u64)> = Vec::new();
    let mut taken = BTreeMap::new();
    let mut cpu = Duration::ZERO;
    let end = desk.now + time;
    let mut effects = std::mem::take(&mut desk.all);
    while desk.now < end {
        for (id, bytes, _) in Desk::starts(&effects) {
            running.push((desk.now + Duration::from_millis(bytes / each_ms), id, bytes));
        }
        running.sort();
        let timer = desk.governor.next_timer(desk.now);
        match running.first().copied() {
            Some((at, id, bytes)) if timer.is_none_or(|timer| at <= timer) => {
                running.remove(0);
                desk.now = desk.now.max(at);
                let elapsed = Duration::from_millis(bytes / each_ms);
                let used = elapsed.mul_f64(cpu_part);
                cpu += used;
                *taken.entry(id).or_insert(0.0) += bytes as f64;
                effects = desk.on(Input::JobDone(
                    id,
                    Done {
                        reclaimed: bytes,
                        cpu: used,
                        elapsed,
                        ..Done::default()
                    },
                ));
            }
            _ => {
                desk.now = desk.now.max(timer.unwrap_or(end)).min(end);
                effects = desk.on(Input::Clock);
            }
        }
    }
    (taken, cpu)
}

#[test]
fn eight_that_wait_together_get_the_same() {
    let mut desk = Desk::new();
    for id in 1..=8 {
        let profile = if id % 2 == 0 {
            Profile::Batch
        } else {
            Profile::Interactive
        };
        desk.sandbox(id, profile);
        desk.hint(id, "llm-wait;expect=600000");
    }
    // In the middle of it, and with scores that differ.
    let (taken, _) = run_jobs(&mut desk, Duration::from_secs(5), 400 << 10, 0.9);
    let shares: Vec<f64> = taken.values().copied().collect();
    assert_eq!(shares.len(), 8);
    assert!(jain(&shares) >= 0.95, "{shares:?}");
}

#[test]
fn the_budget_is_held_and_used() {
    for (each_ms, cpu_part) in [(400 << 10, 0.9), (50 << 10, 1.0), (2 << 20, 0.3)] {
        let mut desk = Desk::new();
        for id in 1..=8 {
            desk.sandbox(id, Profile::Batch);
            desk.hint(id, "llm-wait;expect=80000000");
        }
        let time = Duration::from_secs(60);
        let (_, cpu) = run_jobs(&mut desk, time, each_ms, cpu_part);
        // A quarter of two processors, unless two workers cannot use as much.
        let allowed = time.mul_f64(0.5).min(time.mul_f64(2.0 * cpu_part));
        let part = cpu.as_secs_f64() / allowed.as_secs_f64();
        assert!((0.9..=1.1).contains(&part), "{part} at {each_ms}");
    }
}

#[test]
fn one_that_goes_round_in_circles_does_not_use_what_is_others() {
    let mut desk = Desk::new();
    desk.sandbox(1, Profile::Interactive);
    for _ in 0..1000 {
        desk.now += Duration::from_millis(1);
        desk.hint(1, "llm-wait;expect=60000");
        desk.hint(1, "first-token");
        desk.done(1, MIB);
        desk.on(Input::Restored(1, Duration::ZERO));
    }
    assert!(Desk::starts(&desk.all).len() <= 12);
    let restores = desk
        .all
        .iter()
        .filter(|e| **e == Effect::Restore(1, Trigger::FirstToken))
        .count();
    assert!(restores <= 12, "{restores}");
    // The module was told each time, and later all is as ever.
    let phases = desk
        .all
        .iter()
        .filter(|e| matches!(e, Effect::Phase(..)))
        .count();
    assert!(phases >= 2000, "{phases}");
    desk.now += Duration::from_secs(20);
    assert_eq!(
        Desk::starts(&desk.hint(1, "llm-wait;expect=60000")).len(),
        1
    );
}

/// One that does not end, as a process of the sandbox may see to, takes nothing from the others.
#[test]
fn a_restore_that_hangs_stands_in_nobodys_way() {
    let mut desk = Desk::new();
    let most = Config::default().prefetch.max_concurrency.get().into();
    desk.memory(70);
    for id in 1..=most + 2 {
        desk.sandbox(id, Profile::Interactive);
    }
    for id in 1..=most {
        desk.hint(id, "llm-wait;expect=60000");
        assert!(desk
            .hint(id, "first-token")
            .contains(&Effect::Restore(id, Trigger::FirstToken)));
    }
    for id in 1..=most {
        desk.done(id, 0);
    }
    // What comes back goes first.
    let last = most + 1;
    assert_eq!(Desk::starts(&desk.hint(last, "llm-wait;expect=60000")), []);
    let effects = desk.pass(Duration::from_secs(11));
    assert_eq!(Desk::starts(&effects).len(), 1, "{effects:?}");
    desk.hint(last + 1, "llm-wait;expect=60000");
    let effects = desk.hint(last + 1, "first-token");
    assert!(
        effects.contains(&Effect::Restore(last + 1, Trigger::FirstToken)),
        "{effects:?}"
    );
    // No second one for the same sandbox, until the first has ended after all.
    desk.hint(1, "llm-wait;expect=60000");
    let effects = desk.hint(1, "first-token");
    assert!(
        !effects.contains(&Effect::Restore(1, Trigger::FirstToken)),
        "{effects:?}"
    );
    let effects = desk.on(Input::Restored(1, Duration::ZERO));
    assert!(
        effects.contains(&Effect::Restore(1, Trigger::FirstToken)),
        "{effects:?}"
    );
}

/// Whatever the sandbox says meanwhile.
#[test]
fn a_tool_that_waits_for_a_quiesced_sandbox_gets_it() {
    for hint in ["done", "llm-wait", "first-token", "tool-start", "idle"] {
        let mut desk = Desk::new();
        desk.sandbox(1, Profile::Interactive);
        desk.hint(1, "llm-wait;expect=60000");
        desk.dry(1);
        desk.hint(1, "first-token");
        // The one that runs was begun before.
        let effects = desk.on(Input::Quiesce(1));
        assert!(!effects.contains(&Effect::Return(1)), "{effects:?}");
        assert!(desk.governor.is_to_come_back(1));
        desk.hint(1, hint);
        desk.pass(Duration::from_secs(5));
        let effects = desk.on(Input::Restored(1, Duration::ZERO));
        assert!(effects.contains(&Effect::Return(1)), "{hint}: {effects:?}");
        assert!(!desk.governor.is_to_come_back(1));
        desk.on(Input::Restored(1, Duration::ZERO));
    }
}

/// The daemon was stopped, the machine was suspended, or somebody's pages are very slow to take.
#[test]
fn slow_jobs_do_not_end_all_work_for_ever() {
    let mut desk = Desk::new();
    let slow = |desk: &mut Desk, elapsed| {
        desk.on(Input::JobDone(
            1,
            Done {
                reclaimed: 16 * MIB,
                cpu: Duration::from_millis(50),
                elapsed: Duration::from_secs(elapsed),
                ..Done::default()
            },
        ))
    };
    desk.sandbox(1, Profile::Interactive);
    desk.sandbox(2, Profile::Interactive);
    desk.hint(1, "llm-wait;expect=36000000");
    slow(&mut desk, 3600);
    let effects = desk.hint(2, "llm-wait;expect=10000");
    assert!(!Desk::starts(&effects).is_empty(), "{effects:?}");
    desk.hint(2, "tool-start");
    desk.done(2, 0);
    desk.on(Input::Restored(2, Duration::ZERO));
    for _ in 0..40 {
        slow(&mut desk, 3600);
    }
    desk.hint(1, "tool-start");
    desk.done(1, 0);
    assert_eq!(Desk::starts(&desk.hint(2, "llm-wait;expect=10000")), []);
    desk.hint(2, "tool-start");
    for _ in 0..120 {
        desk.round(GIB, 0.0);
    }
    let effects = desk.hint(2, "llm-wait;expect=10000");
    assert!(!Desk::starts(&effects).is_empty(), "{effects:?}");
}

#[test]
fn restores_count_before_they_end() {
    let mut desk = Desk::new();
    for id in 1..=4 {
        desk.sandbox(id, Profile::Interactive);
        desk.hint(id, "llm-wait;expect=600000");
    }
    let mut jobs: Vec<Id> = Desk::starts(&desk.all).iter().map(|s| s.0).collect();
    while let Some(id) = jobs.pop() {
        let taken = desk.governor.view(id, desk.now).unwrap().taken;
        let effects = desk.done(id, if taken == 0 { GIB } else { 0 });
        jobs.extend(Desk::starts(&effects).iter().map(|s| s.0));
    }
    // By the pace so far a gigabyte costs little; make it dear.
    desk.on(Input::Appeared {
        id: 9,
        profile: Profile::Batch,
        known: None,
    });
    desk.hint(9, "llm-wait;expect=600000");
    for _ in 0..20 {
        desk.on(Input::JobDone(
            9,
            Done {
                reclaimed: MIB,
                cpu: Duration::from_millis(3),
                elapsed: Duration::from_millis(3),
                ..Done::default()
            },
        ));
    }
    desk.hint(9, "done");
    desk.now += Duration::from_secs(30);
    for id in 1..=4 {
        desk.hint(id, "first-token");
    }
    let restores = desk
        .all
        .iter()
        .filter(|e| matches!(e, Effect::Restore(..)))
        .count();
    assert_eq!(restores, 1, "one of them takes the whole bucket");
}

#[test]
fn a_wait_ends_the_restore_before_it() {
    let mut desk = Desk::new();
    desk.sandbox(1, Profile::Interactive);
    assert!(desk
        .hint(1, "first-token")
        .contains(&Effect::Restore(1, Trigger::FirstToken)));
    let effects = desk.hint(1, "llm-wait;expect=60000");
    assert_eq!(
        effects,
        [Effect::Phase(1, Phase::Waiting), Effect::EndRestore(1)]
    );
    let effects = desk.on(Input::Restored(1, Duration::from_millis(1)));
    assert_eq!(Desk::starts(&effects).len(), 1);
}

/// What is at once to be done comes before what subscribers are told.
#[test]
fn a_stop_does_not_wait_for_subscribers() {
    let mut desk = Desk::new();
    desk.sandbox(1, Profile::Interactive);
    desk.hint(1, "llm-wait;expect=60000");
    let hint = Input::Hint(1, "first-token".parse().unwrap());
    desk.governor.handle(hint, desk.now);
    let effects = desk.governor.effects();
    let place = |is: fn(&Effect) -> bool| effects.iter().position(is).unwrap();
    let stop = place(|effect| matches!(effect, Effect::Stop(1)));
    let note = place(|effect| matches!(effect, Effect::Note(Note::State(..))));
    assert!(stop < note, "{effects:?}");
}
