// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Sandboxes that come and go, and a configuration that changes under them.

use super::*;
use crate::schedule::fair::QUANTUM;

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
