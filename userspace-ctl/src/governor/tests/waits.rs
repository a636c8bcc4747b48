// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What a wait is used for: when jobs begin, go on and end, told by hints or observed.

use super::*;
use crate::predict::Trigger;
use crate::schedule::fair::QUANTUM;

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
