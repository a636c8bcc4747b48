// SPDX-License-Identifier: GPL-2.0 OR MIT

use super::*;
use proptest::prelude::*;

const TIMES: Times = Times {
    cooling: Duration::from_secs(30),
    expect: Duration::from_secs(10),
};

fn at(seconds: u64) -> Time {
    Duration::from_secs(seconds)
}

fn hint(text: &str) -> Event {
    Event::Hint(text.parse().unwrap())
}

/// The machine after these events, one a second, and the last actions.
fn after(events: &[Event]) -> (Machine, Vec<Action>) {
    let mut machine = Machine::new(at(0));
    let mut last = Vec::new();
    for (event, second) in events.iter().zip(1..) {
        (machine, last) = machine.step(event, at(second), &TIMES);
    }
    (machine, last)
}

#[test]
fn a_turn() {
    let wait = hint("llm-wait;expect=8000");
    let (machine, actions) = after(&[hint("tool-start"), wait.clone()]);
    assert_eq!(machine.state(), State::Compressed);
    assert_eq!(actions, [Action::Phase(Phase::Waiting), Action::Compress]);
    assert_eq!(machine.remaining(at(5)), Some(at(5)));
    // Overdue: the more, the longer.
    assert_eq!(machine.remaining(at(10)), Some(at(0)));
    assert_eq!(machine.remaining(at(30)), Some(at(10)));
    assert_eq!(machine.remains_at(at(10)), Some(at(30)));
    let (machine, actions) = after(&[wait.clone(), hint("first-token")]);
    assert_eq!(machine.state(), State::Resuming);
    assert_eq!(
        actions,
        [
            Action::Stop,
            Action::Phase(Phase::Resuming),
            Action::Restore
        ]
    );
    assert_eq!(machine.remaining(at(5)), None);
    let (machine, actions) = after(&[wait.clone(), hint("first-token"), hint("tool-start;tool=x")]);
    assert_eq!(machine.state(), State::Running);
    assert!(machine.runs_a_tool());
    assert_eq!(actions, [Action::Phase(Phase::Running)]);
    let (machine, actions) = after(&[hint("tool-start"), hint("tool-end")]);
    assert_eq!(
        (machine.state(), machine.runs_a_tool()),
        (State::Running, false)
    );
    assert_eq!(actions, []);
    let (machine, actions) = after(&[wait, hint("done"), hint("llm-wait")]);
    assert_eq!((machine.state(), actions), (State::Terminated, vec![]));
}

#[test]
fn without_expect_ten_seconds() {
    let (machine, _) = after(&[hint("llm-wait")]);
    assert_eq!(machine.remaining(at(1)), Some(TIMES.expect));
}

#[test]
fn a_second_wait_begins_anew() {
    let (machine, actions) = after(&[hint("llm-wait;expect=9000"), hint("llm-wait;expect=4000")]);
    assert_eq!(actions, [Action::Compress]);
    assert_eq!(machine.remaining(at(2)), Some(at(4)));
}

#[test]
fn observation_without_hints() {
    let start = Machine::new(at(0));
    let (cooling, actions) = start.step(&Event::Untouched, at(5), &TIMES);
    assert_eq!((cooling.state(), actions), (State::Cooling, vec![]));
    assert_eq!(cooling.deadline(&TIMES), Some(at(35)));
    let (touched, _) = cooling.step(&Event::Touched, at(10), &TIMES);
    assert_eq!(touched.state(), State::Running);
    let (same, actions) = cooling.step(&Event::Untouched, at(34), &TIMES);
    assert_eq!((same, actions), (cooling, vec![]));
    let (out, actions) = cooling.step(&Event::Clock, at(35), &TIMES);
    assert_eq!(out.state(), State::Compressed);
    assert_eq!(actions, [Action::Phase(Phase::Waiting), Action::Compress]);
    assert_eq!(out.remaining(at(40)), None);
    let (back, actions) = out.step(&Event::Touched, at(50), &TIMES);
    assert_eq!(back.state(), State::Running);
    assert_eq!(actions, [Action::Stop, Action::Phase(Phase::Running)]);
}

#[test]
fn hints_outweigh_observation() {
    for events in [
        [hint("llm-wait"), Event::Touched],
        [hint("tool-start"), Event::Untouched],
        [hint("first-token"), Event::Untouched],
    ] {
        let (machine, actions) = after(&events);
        let (told, _) = after(&events[..1]);
        assert_eq!((machine.state(), actions), (told.state(), vec![]));
    }
    // Until a hint gives that up.
    let (machine, _) = after(&[hint("tool-start"), hint("idle")]);
    assert_eq!(machine.state(), State::Cooling);
    let (machine, _) = after(&[hint("tool-start"), hint("idle"), Event::Touched]);
    assert_eq!(machine.state(), State::Running);
    let (machine, _) = after(&[hint("idle"), Event::Touched, Event::Untouched]);
    assert_eq!(machine.state(), State::Cooling);
}

#[test]
fn a_clock_that_goes_back() {
    let cooling = Machine::new(at(1000))
        .step(&hint("idle"), at(1000), &TIMES)
        .0;
    let (machine, _) = cooling.step(&Event::Clock, at(10), &TIMES);
    assert_eq!(machine.deadline(&TIMES), Some(at(40)));
    let wait = Machine::new(at(1000))
        .step(&hint("llm-wait"), at(1000), &TIMES)
        .0;
    assert_eq!(wait.remaining(at(10)), Some(TIMES.expect));
}

#[test]
fn recovered_from_the_module() {
    for (phase, state) in [
        (Phase::Running, State::Running),
        (Phase::Waiting, State::Compressed),
        (Phase::Resuming, State::Resuming),
    ] {
        let machine = Machine::recovered(phase, at(7), &TIMES);
        assert_eq!((machine.state(), machine.since()), (state, at(7)));
        assert_eq!(machine.state().phase(), Some(phase));
    }
}

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        (0u64..100_000).prop_map(|ms| hint(&format!("llm-wait;expect={ms}"))),
        Just(hint("llm-wait")),
        Just(hint("first-token")),
        Just(hint("tool-start;tool=pytest")),
        Just(hint("tool-end")),
        Just(hint("idle")),
        Just(Event::Touched),
        Just(Event::Untouched),
        Just(Event::Clock),
    ]
}

/// Times that jump both ways, now and then far.
fn any_time() -> impl Strategy<Value = Time> {
    prop_oneof![
        8 => (0u64..200_000).prop_map(Duration::from_millis),
        1 => Just(Duration::ZERO),
        1 => Just(Duration::MAX),
    ]
}

/// What the host knows of a sandbox, from the actions alone.
#[derive(Debug, PartialEq)]
struct Told {
    phase: Phase,
    compressing: bool,
}

fn run(events: &[(Event, Time)]) -> (Machine, Told) {
    let mut machine = Machine::new(Duration::ZERO);
    let mut told = Told {
        phase: Phase::Running,
        compressing: false,
    };
    for (event, now) in events {
        let before = machine;
        let (after, actions) = machine.step(event, *now, &TIMES);
        machine = after;
        for action in actions {
            match action {
                Action::Phase(phase) => {
                    assert_ne!(phase, told.phase, "told twice");
                    told.phase = phase;
                }
                Action::Compress => told.compressing = true,
                Action::Stop => {
                    assert!(told.compressing, "stopped what does not run");
                    told.compressing = false;
                }
                Action::Restore => assert!(!told.compressing),
            }
        }
        // The state says all that was told.
        if let Some(phase) = machine.state().phase() {
            assert_eq!(phase, told.phase);
        }
        assert_eq!(told.compressing, machine.state() == State::Compressed);
        assert!(machine.since() <= *now);
        assert!(!machine.runs_a_tool() || machine.state() == State::Running);
        // A hint says the state, whatever the state was.
        let state = machine.state();
        match event {
            _ if before.state() == State::Terminated => assert_eq!(state, State::Terminated),
            Event::Hint(Hint::LlmWait { .. }) => assert_eq!(state, State::Compressed),
            Event::Hint(Hint::FirstToken) => assert_eq!(state, State::Resuming),
            Event::Hint(Hint::ToolStart { .. }) => assert_eq!(state, State::Running),
            Event::Hint(Hint::Idle) => assert!(matches!(state, State::Cooling | State::Compressed)),
            Event::Hint(Hint::Done) => assert_eq!(state, State::Terminated),
            Event::Hint(Hint::ToolEnd | Hint::MessageNear { .. }) | Event::Clock => {
                let timed = before.state() == State::Cooling && state == State::Compressed;
                assert!(state == before.state() || timed);
            }
            Event::Touched | Event::Untouched => {}
        }
    }
    (machine, told)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_states_and_actions_agree(
        events in prop::collection::vec((any_event(), any_time()), 0..60),
    ) {
        run(&events);
    }

    #[test]
    fn a_repeated_hint_changes_nothing(
        events in prop::collection::vec((any_event(), any_time()), 0..20),
        event in any_event(),
        now in any_time(),
    ) {
        prop_assume!(matches!(event, Event::Hint(_)));
        let (machine, _) = run(&events);
        let (once, _) = machine.step(&event, now, &TIMES);
        let (twice, actions) = once.step(&event, now, &TIMES);
        prop_assert_eq!(once, twice);
        prop_assert!(actions.is_empty() || actions == [Action::Compress]);
    }

    #[test]
    fn after_a_hint_the_past_does_not_matter(
        events in prop::collection::vec((any_event(), any_time()), 0..20),
        now in any_time(),
    ) {
        let (machine, _) = run(&events);
        for last in ["llm-wait;expect=5", "first-token", "tool-start"] {
            let (one, _) = machine.step(&hint(last), now, &TIMES);
            let (other, _) = Machine::new(now).step(&hint(last), now, &TIMES);
            prop_assert_eq!(one, other);
        }
    }

    #[test]
    fn cooling_ends_whatever_the_clock_did(
        events in prop::collection::vec((any_event(), any_time()), 0..20),
        now in 0u64..1_000_000,
    ) {
        let (machine, _) = run(&events);
        let (machine, _) = machine.step(&Event::Clock, Duration::from_millis(now), &TIMES);
        let later = Duration::from_millis(now) + TIMES.cooling;
        let (machine, _) = machine.step(&Event::Clock, later, &TIMES);
        prop_assert_ne!(machine.state(), State::Cooling);
    }

    #[test]
    fn done_is_the_end(
        events in prop::collection::vec((any_event(), any_time()), 0..20),
        more in prop::collection::vec((any_event(), any_time()), 0..20),
    ) {
        let all: Vec<_> = events.into_iter().chain([(hint("done"), at(1))]).chain(more).collect();
        let (machine, told) = run(&all);
        prop_assert_eq!(machine.state(), State::Terminated);
        prop_assert!(!told.compressing);
    }
}
