// SPDX-License-Identifier: GPL-2.0 OR MIT

use std::path::Path;
use std::time::Duration;

use super::super::tests::Desk;
use super::super::{Effect, Id, Input, Profile};
use crate::config::{Config, PrefetchMode};
use crate::predict::Trigger;

const MIB: u64 = 1 << 20;
const S: fn(u64) -> Duration = Duration::from_secs;
const MS: fn(u64) -> Duration = Duration::from_millis;

/// What comes back is planned; all else has its default.
fn planned() -> Config {
    let mut config = Config::default();
    config.prefetch.mode = PrefetchMode::Auto;
    config
}

/// A desk with a sandbox that waits and is compressed; what comes back is planned, unless told otherwise.
fn waiting(config: &str, hint: &str) -> Desk {
    let mut config = Config::parse(Path::new("a"), config).unwrap();
    if config.prefetch.mode == PrefetchMode::All {
        config.prefetch.mode = PrefetchMode::Auto;
    }
    let mut desk = Desk::with(config);
    desk.sandbox(1, Profile::Interactive);
    desk.hint(1, hint);
    desk.done(1, 100 * MIB);
    desk.dry(1);
    desk
}

fn restores(effects: &[Effect]) -> Vec<(Id, Trigger)> {
    let each = effects.iter().filter_map(|effect| match effect {
        Effect::Restore(id, trigger) => Some((*id, *trigger)),
        _ => None,
    });
    each.collect()
}

#[test]
fn a_message_that_is_near_is_prepared_for_once() {
    let mut desk = waiting("", "llm-wait;expect=5000");
    assert_eq!(
        restores(&desk.hint(1, "message-near")),
        [(1, Trigger::Message)]
    );
    desk.on(Input::Restored(1, Duration::ZERO));
    assert_eq!(restores(&desk.hint(1, "message-near;in=100")), []);
    // It waits still, and is not taken while it may be needed.
    desk.memory(90);
    let effects = desk.round(200 * MIB, 0.0);
    assert_eq!(Desk::starts(&effects), []);
    assert_eq!(
        restores(&desk.hint(1, "first-token")),
        [(1, Trigger::FirstToken)]
    );
    // Of one that does not wait nothing is out.
    assert_eq!(restores(&desk.hint(1, "message-near")), []);
}

#[test]
fn a_message_that_is_far_is_waited_for() {
    let mut desk = waiting("", "llm-wait;expect=5000");
    assert_eq!(restores(&desk.hint(1, "message-near;in=3000")), []);
    let timer = desk.governor.next_timer(desk.now).unwrap();
    assert!(timer <= desk.now + S(2));
    assert_eq!(restores(&desk.pass(MS(1900))), []);
    assert_eq!(restores(&desk.pass(MS(100))), [(1, Trigger::Message)]);
    // One whose message came meanwhile.
    let mut desk = waiting("", "llm-wait;expect=5000");
    desk.hint(1, "message-near;in=3000");
    desk.hint(1, "first-token");
    assert_eq!(restores(&desk.pass(S(5))), []);
}

#[test]
fn the_end_of_a_long_wait_is_prepared_for() {
    let mut desk = waiting("", "llm-wait;expect=60000");
    let effects = desk.pass(MS(58_900));
    assert_eq!(restores(&effects), []);
    assert_eq!(restores(&desk.pass(MS(200))), [(1, Trigger::MidWait)]);
    desk.on(Input::Restored(1, Duration::ZERO));
    // It did not end: after min_residency it is taken again, once.
    assert_eq!(Desk::starts(&desk.round(200 * MIB, 0.0)), []);
    let effects = desk.round(200 * MIB, 0.0);
    assert_eq!(Desk::starts(&effects).len(), 1, "{effects:?}");
    desk.dry(1);
    for _ in 0..10 {
        let effects = desk.round(200 * MIB, 0.0);
        assert_eq!(restores(&effects), []);
    }
    // Not of a wait that is hardly longer than what came back has to stay.
    let mut desk = waiting("", "llm-wait;expect=10500");
    assert_eq!(restores(&desk.pass(S(10))), []);
    assert_eq!(restores(&desk.pass(S(1))), []);
}

#[test]
fn not_while_memory_is_short_and_not_when_switched_off() {
    let mut desk = waiting("", "llm-wait;expect=60000");
    desk.memory(90);
    desk.round(200 * MIB, 0.0);
    assert_eq!(restores(&desk.hint(1, "message-near")), []);
    assert_eq!(restores(&desk.pass(S(60))), []);
    for (off, hint) in [
        ("on_message = false", "message-near"),
        ("on_first_token = false", "first-token"),
        ("on_tool_start = false", "tool-start"),
        ("mode = \"off\"", "message-near"),
        ("mode = \"off\"", "first-token"),
        ("mode = \"off\"", "tool-start"),
    ] {
        let mut desk = waiting(&format!("[prefetch]\n{off}\n"), "llm-wait;expect=60000");
        assert_eq!(restores(&desk.hint(1, hint)), [], "{off}");
        let mut desk = waiting("", "llm-wait;expect=60000");
        assert_eq!(restores(&desk.hint(1, hint)).len(), 1, "{hint}");
    }
    let off = "[prefetch]\nbefore_expected_end = false\n";
    let mut desk = waiting(off, "llm-wait;expect=60000");
    assert_eq!(restores(&desk.pass(S(60))), []);
}

#[test]
fn in_the_background_only_where_that_is_wanted() {
    let rounds = |config: &str, used: u64| {
        let mut desk = waiting(config, "llm-wait;expect=600000");
        desk.memory(used);
        let mut all = Vec::new();
        for _ in 0..5 {
            all.extend(restores(&desk.round(100 * MIB, 0.0)));
        }
        all
    };
    assert_eq!(rounds("", 30), []);
    let on = "[prefetch]\nbackground = true\n";
    assert_eq!(rounds(on, 30), [(1, Trigger::Background)]);
    assert_eq!(rounds(on, 70), []);
}

#[test]
fn a_job_that_runs_ends_before_pages_come_back() {
    let mut desk = Desk::with(planned());
    desk.sandbox(1, Profile::Interactive);
    desk.hint(1, "llm-wait;expect=60000");
    let effects = desk.hint(1, "message-near");
    assert_eq!(effects, [Effect::Stop(1)]);
    assert_eq!(restores(&desk.done(1, 10 * MIB)), [(1, Trigger::Message)]);
}

/// While the objective is missed, short waits of interactive sandboxes are left alone.
#[test]
fn a_narrow_scope_spares_short_waits() {
    let starts = |scope: f64, profile, expect: u64, used| {
        let mut desk = Desk::with(planned());
        desk.memory(used);
        desk.sandbox(1, profile);
        desk.round(100 * MIB, 0.0);
        desk.on(Input::Scope(scope));
        let effects = desk.hint(1, &format!("llm-wait;expect={expect}"));
        !Desk::starts(&effects).is_empty()
    };
    assert!(starts(1.0, Profile::Interactive, 5000, 50));
    assert!(!starts(0.7, Profile::Interactive, 5000, 50));
    assert!(starts(0.7, Profile::Interactive, 9500, 50));
    assert!(!starts(0.1, Profile::Interactive, 9500, 50));
    assert!(starts(0.1, Profile::Batch, 5000, 50));
    // A wait that lasts longer than was said is none of those.
    let mut desk = Desk::with(planned());
    desk.sandbox(1, Profile::Interactive);
    desk.on(Input::Scope(0.7));
    desk.hint(1, "llm-wait;expect=5000");
    let timer = desk.governor.next_timer(desk.now).unwrap();
    desk.now = timer + MS(1);
    let effects = desk.on(Input::Clock);
    assert_eq!(Desk::starts(&effects).len(), 1, "{timer:?} {effects:?}");
}

#[test]
fn everything_comes_back_with_the_first_token_only() {
    let mut config = planned();
    config.prefetch.mode = PrefetchMode::All;
    config.prefetch.background = true;
    let desk = Desk::with(config);
    let on = |trigger| desk.governor.is_on(trigger);
    assert!(on(Trigger::FirstToken));
    for trigger in [
        Trigger::Message,
        Trigger::ToolStart,
        Trigger::MidWait,
        Trigger::Background,
    ] {
        assert!(!on(trigger), "{trigger:?}");
    }
}
