// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What is brought back: before what is taken, within the budget, and all of it for a quiesced sandbox.

use super::*;
use crate::predict::Trigger;

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
