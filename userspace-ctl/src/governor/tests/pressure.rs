// SPDX-License-Identifier: GPL-2.0 OR MIT

//! When memory is short: who is taken from, who is held back and who is let in.

use super::*;

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
