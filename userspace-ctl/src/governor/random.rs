// SPDX-License-Identifier: GPL-2.0 OR MIT

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

/// A script of inputs that nobody would write, to three sandboxes.
fn any_input() -> impl Strategy<Value = Input> {
    let id = 1u64..4;
    let hint = prop::sample::select(vec![
        "llm-wait",
        "llm-wait;expect=1",
        "llm-wait;expect=900000",
        "first-token",
        "tool-start",
        "tool-end",
        "idle",
        "done",
    ]);
    let reason = prop::option::of(Just(Reason::SwapMax));
    let done = (0u64..1 << 31, 0u64..5000, any::<bool>(), reason).prop_map(
        |(reclaimed, cpu, stopped, reason)| Done {
            reclaimed,
            cpu: Duration::from_millis(cpu),
            elapsed: Duration::from_millis(cpu),
            stopped,
            reason,
        },
    );
    let profile = prop::bool::ANY.prop_map(|batch| match batch {
        true => Profile::Batch,
        false => Profile::Interactive,
    });
    let known = prop::option::of(prop::sample::select(Phase::ALL.to_vec()));
    let sample = (
        any::<u64>(),
        prop::option::of(any::<u64>()),
        prop::option::of(any::<f64>()),
    );
    prop_oneof![
        4 => (id.clone(), profile.clone(), known)
            .prop_map(|(id, profile, known)| Input::Appeared { id, profile, known }),
        1 => id.clone().prop_map(Input::Attached),
        1 => (id.clone(), profile).prop_map(|(id, profile)| Input::Profile(id, profile)),
        1 => id.clone().prop_map(Input::Gone),
        12 => (id.clone(), hint)
            .prop_map(|(id, hint)| Input::Hint(id, hint.parse().unwrap())),
        4 => (any::<u64>(), any::<u64>(), any::<u64>()).prop_map(|(total, available, swap_free)| {
            Input::Memory(Memory { total, available, swap_free })
        }),
        4 => (id.clone(), sample).prop_map(|(id, (current, cpu_usec, psi))| {
            Input::Sample(id, Sample { current, cpu_usec, psi })
        }),
        3 => Just(Input::Sampled),
        6 => (id.clone(), done).prop_map(|(id, done)| Input::JobDone(id, done)),
        3 => (id.clone(), 0u64..9000)
            .prop_map(|(id, ms)| Input::Restored(id, Duration::from_millis(ms))),
        1 => id.clone().prop_map(Input::Quiesce),
        2 => id.prop_map(Input::Release),
        2 => Just(Input::Clock),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        cases: 400,
        ..ProptestConfig::default()
    })]

    #[test]
    fn whatever_comes_effects_make_sense(
        script in prop::collection::vec((any_input(), 0u64..100_000), 0..120),
    ) {
        let mut governor = Governor::new(Config::default(), 2, Duration::ZERO);
        let mut jobs = BTreeSet::new();
        let mut frozen = BTreeSet::new();
        let mut quiesced = BTreeSet::new();
        for (input, now) in script {
            // The clock jumps both ways.
            let now = Duration::from_millis(now);
            match &input {
                // The end of a job that was not begun means nothing; of one that was, it is over.
                Input::JobDone(id, _) => {
                    jobs.remove(id);
                }
                Input::Gone(id) => {
                    frozen.remove(id);
                    quiesced.remove(id);
                }
                Input::Quiesce(id) if governor.knows(*id) => {
                    quiesced.insert(*id);
                }
                Input::Release(id) => {
                    quiesced.remove(id);
                }
                _ => {}
            }
            governor.handle(input, now);
            for effect in governor.effects() {
                match effect {
                    Effect::Start { id, bytes, .. } => {
                        prop_assert!(jobs.insert(id), "two jobs of {}", id);
                        prop_assert!(bytes >= 1 << 20);
                        prop_assert!(!quiesced.contains(&id));
                        let view = governor.view(id, now).unwrap();
                        prop_assert!(!view.tool && view.state != State::Terminated);
                    }
                    Effect::Stop(id) => prop_assert!(jobs.contains(&id)),
                    Effect::Freeze(id) => prop_assert!(frozen.insert(id)),
                    Effect::Thaw(id) => prop_assert!(frozen.remove(&id)),
                    Effect::SecondLook(percent) => prop_assert!((1..=100).contains(&percent)),
                    Effect::Level(_, level) => prop_assert_eq!(level, 6),
                    _ => {}
                }
            }
            prop_assert!(jobs.len() <= 2);
            prop_assert_eq!(governor.overview().counts.held, frozen.len());
            let _ = governor.admit(now.as_millis() as u64);
            if let Some(timer) = governor.next_timer(now) {
                // What is due is done by one look at the clock.
                governor.handle(Input::Clock, timer.max(now));
                for effect in governor.effects() {
                    match effect {
                        Effect::Start { id, .. } => prop_assert!(jobs.insert(id)),
                        Effect::Freeze(id) => prop_assert!(frozen.insert(id)),
                        Effect::Thaw(id) => prop_assert!(frozen.remove(&id)),
                        _ => {}
                    }
                }
                let next = governor.next_timer(timer.max(now));
                prop_assert!(next.is_none_or(|next| next > timer.max(now)), "{:?}", next);
            }
        }
    }
}
