// SPDX-License-Identifier: GPL-2.0 OR MIT

//! CPU time: two workers, the budget, fair shares of it, and what is left for the second look.

use super::*;
use crate::predict::Trigger;
use crate::schedule::fair::QUANTUM;

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
