// SPDX-License-Identifier: GPL-2.0 OR MIT

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

const NOW: Duration = Duration::ZERO;

fn learner(settings: Settings) -> (Learner, Role) {
    let mut learner = Learner::new(settings);
    learner.attach(1, &"py".parse().unwrap());
    let role = learner.role(1, "python3", 0).unwrap();
    (learner, role)
}

fn seen(role: Role, page: u64, what: What) -> Seen {
    Seen {
        at: NOW,
        place: Place { role, page },
        thread: 1,
        write: false,
        what,
        stall_ns: 0,
    }
}

/// A turn in which a tool touches pages, none of them restored ahead of need.
fn turn(learner: &mut Learner, id: Id, role: Role, tool: &str, pages: &[u64]) {
    learner.resume(id, NOW);
    learner.tool_starts(id, Some(&tool.parse().unwrap()), NOW);
    let faults: Vec<Seen> = pages.iter().map(|&p| seen(role, p, What::Demand)).collect();
    learner.seen(id, &faults);
    learner.turn_ends(id, NOW);
    learner.wait_begins(id, NOW, []);
}

fn pages(plan: &Plan) -> BTreeSet<u64> {
    plan.places().map(|place| place.page).collect()
}

#[test]
fn from_nothing_to_a_head() {
    let (mut learner, role) = learner(Settings::default());
    assert_eq!(
        learner.plan(7, Trigger::FirstToken, 64).basis,
        Basis::Nothing
    );
    assert_eq!(
        learner.plan(1, Trigger::FirstToken, 64).basis,
        Basis::Nothing
    );
    // Nothing was learned yet, but what was accessed before the first wait is known.
    let state = |page| (Place { role, page }, PageState::Accessed);
    learner.wait_begins(1, NOW, (100..110).map(state));
    let plan = learner.plan(1, Trigger::FirstToken, 64);
    assert_eq!((plan.basis, plan.pages), (Basis::LastAccessed, 10));
    for _ in 0..4 {
        turn(&mut learner, 1, role, "grep", &[1, 2, 3, 50]);
    }
    assert_eq!(learner.head(1), 4);
    assert_eq!(learner.turns(1), 4);
    learner.resume(1, NOW);
    let plan = learner.plan(1, Trigger::FirstToken, 3);
    assert!(plan.capped && plan.pages == 3 && plan.head == 3);
    assert!(plan.expected_hit_ratio > 0.75);
    // A second plan of the turn has the rest.
    let more = learner.plan(1, Trigger::FirstToken, 64);
    assert_eq!(more.pages, 1);
    assert_eq!(learner.plan(1, Trigger::FirstToken, 64).pages, 0);
    // What was not carried out is there again.
    learner.dropped(1, plan.places());
    assert_eq!(
        pages(&learner.plan(1, Trigger::ToolStart, 64)),
        pages(&plan)
    );
}

#[test]
fn switched_off() {
    let (mut learner, role) = learner(Settings {
        sequential: false,
        transitions: false,
        working_set: false,
        access_bitmap: false,
        ..Settings::default()
    });
    turn(&mut learner, 1, role, "grep", &[1, 2, 3]);
    let plan = learner.plan(1, Trigger::FirstToken, 64);
    assert_eq!((plan.basis, plan.pages), (Basis::Off, 0));
}

#[test]
fn tools_are_told_apart_and_a_new_tool_gets_what_all_touch() {
    let (mut learner, role) = learner(Settings::default());
    learner.attach(2, &"py".parse().unwrap());
    for _ in 0..6 {
        turn(&mut learner, 1, role, "grep", &[1, 2, 3, 100, 102, 104]);
        turn(&mut learner, 1, role, "pytest", &[1, 2, 3, 200, 202, 204]);
    }
    // The sibling was never seen; the template's knowledge is its own.
    let mut plan_for = |tool: &str| {
        learner.attach(2, &"py".parse().unwrap());
        learner.tool_starts(2, Some(&tool.parse().unwrap()), NOW);
        pages(&learner.plan(2, Trigger::ToolStart, 64))
    };
    assert_eq!(plan_for("grep"), BTreeSet::from([1, 2, 3, 100, 102, 104]));
    assert_eq!(plan_for("pytest"), BTreeSet::from([1, 2, 3, 200, 202, 204]));
    let new = plan_for("new");
    assert!(new.is_superset(&BTreeSet::from([1, 2, 3])), "{new:?}");
    // Another template knows nothing of it.
    learner.attach(3, &"other".parse().unwrap());
    assert_eq!(learner.plan(3, Trigger::FirstToken, 64).pages, 0);
    // And a template that was made anew neither.
    learner.forget(&"py".parse().unwrap());
    learner.attach(2, &"py".parse().unwrap());
    assert_eq!(learner.plan(2, Trigger::FirstToken, 64).pages, 0);
}

#[test]
fn hits_teach_what_is_touched_but_no_order() {
    let (mut learner, role) = learner(Settings::default());
    for _ in 0..3 {
        turn(&mut learner, 1, role, "grep", &[10, 20, 30, 40]);
    }
    let before = learner.transitions.clone();
    for _ in 0..8 {
        learner.resume(1, NOW);
        let plan = learner.plan(1, Trigger::FirstToken, 64);
        assert!(
            pages(&plan).is_superset(&BTreeSet::from([10, 20, 30])),
            "{plan:?}"
        );
        // 40 is no longer touched, the others are.
        let ends = plan.places().map(|place| match place.page {
            40 => seen(role, 40, What::Miss),
            page => seen(role, page, What::Hit),
        });
        learner.seen(1, &ends.collect::<Vec<_>>());
        learner.turn_ends(1, NOW);
        learner.wait_begins(1, NOW, []);
    }
    learner.resume(1, NOW);
    let plan = learner.plan(1, Trigger::FirstToken, 64);
    assert_eq!(pages(&plan), BTreeSet::from([10, 20, 30]));
    assert_eq!(plan.head, 3);
    let followers =
        |transitions: &Transitions| format!("{:?}", transitions.foresee(1, &Default::default(), 9));
    assert_eq!(followers(&learner.transitions), followers(&before));
    assert_eq!(learner.figures(1).unwrap().demand, 12);
}

#[test]
fn results_of_an_earlier_turn_teach_nothing() {
    let (mut learner, role) = learner(Settings::default());
    learner.resume(1, NOW);
    learner.seen(1, &[seen(role, 5, What::Hit), seen(role, 6, What::Miss)]);
    learner.turn_ends(1, NOW);
    learner.wait_begins(1, NOW, []);
    assert_eq!(learner.turns(1), 0);
}

#[test]
fn pages_that_do_not_exist_are_not_planned() {
    let (mut learner, role) = learner(Settings::default());
    for _ in 0..3 {
        turn(&mut learner, 1, role, "grep", &[10, 11, 5000]);
    }
    let state = |page| (Place { role, page }, PageState::Out);
    learner.wait_begins(1, NOW, (0..100).map(state));
    let plan = learner.plan(1, Trigger::FirstToken, 64);
    assert_eq!(pages(&plan), BTreeSet::from([10, 11]));
}

#[test]
fn only_what_is_out_comes_back() {
    let (mut learner, role) = learner(Settings::default());
    let run = |page, pages| Run {
        start: Place { role, page },
        pages,
    };
    let waits = |learner: &mut Learner| {
        let state = |page| (Place { role, page }, PageState::Accessed);
        learner.wait_begins(1, NOW, (0..100).map(state));
    };
    for _ in 0..3 {
        turn(&mut learner, 1, role, "grep", &[10, 11, 12, 50]);
    }
    waits(&mut learner);
    assert_eq!(learner.unlooked(1), [run(0, 100)]);
    assert_eq!(learner.rest(1), None, "nobody looked");
    // 70 is shared with somebody: it is there all the time.
    learner.out(1, &[run(0, 70), run(71, 29)]);
    assert_eq!(learner.unlooked(1), []);
    let plan = learner.plan(1, Trigger::MidWait, 64);
    assert!(pages(&plan).is_superset(&BTreeSet::from([10, 11, 12, 50])));
    assert!(!pages(&plan).contains(&70));
    // The end did not come, and they were taken again.
    learner.resume(1, NOW);
    assert!(!learner.unlooked(1).is_empty());
    learner.out(1, &[run(0, 70), run(71, 29)]);
    assert_eq!(
        pages(&learner.plan(1, Trigger::FirstToken, 64)),
        pages(&plan)
    );
    let rest = learner.rest(1).unwrap();
    assert_eq!(
        rest.iter().map(|run| run.pages).sum::<u64>(),
        99 - plan.pages
    );
    // What was there anyway was not touched by the turn.
    learner.turn_ends(1, NOW);
    waits(&mut learner);
    let own = &learner.sandboxes[&1].own;
    assert!(own.share(70) == 0.0 && own.share(71) > 0.0);
    learner.resume(1, NOW);
    // Of a process of which nothing is out nothing comes back.
    learner.turn_ends(1, NOW);
    waits(&mut learner);
    learner.resume(1, NOW);
    learner.out(1, &[]);
    assert_eq!(learner.plan(1, Trigger::FirstToken, 200).pages, 0);
    assert_eq!(learner.rest(1), Some(Vec::new()));
}

#[test]
fn knowledge_goes_out_and_in() {
    let (mut learner, role) = learner(Settings::default());
    for _ in 0..5 {
        turn(&mut learner, 1, role, "grep", &[10, 11, 12, 90]);
    }
    let py: ObjectName = "py".parse().unwrap();
    let grep: ToolName = "grep".parse().unwrap();
    assert_eq!(learner.known().count(), 2);
    let file = learner.export(&py, Some(&grep)).unwrap();
    assert_eq!((file.runs.len(), file.pages()), (2, 4));
    assert!(learner.export(&py, Some(&"x".parse().unwrap())).is_none());
    let mut other = Learner::new(Settings::default());
    assert_eq!(other.import(&file), 4);
    other.attach(9, &py);
    let role = other.role(9, "python3", 0).unwrap();
    other.tool_starts(9, Some(&grep), NOW);
    let plan = other.plan(9, Trigger::ToolStart, 64);
    assert_eq!(pages(&plan), BTreeSet::from([10, 11, 12, 90]));
    other.turn_ends(9, NOW);
    // It was not true here, and is soon overruled.
    for _ in 0..12 {
        turn(&mut other, 9, role, "grep", &[500, 600, 700]);
    }
    other.resume(9, NOW);
    other.tool_starts(9, Some(&grep), NOW);
    let plan = other.plan(9, Trigger::ToolStart, 64);
    assert_eq!(pages(&plan), BTreeSet::from([500, 600, 700]));
}

#[test]
fn numbers_of_roles_are_given_anew() {
    let mut learner = Learner::new(Settings::default());
    let py: ObjectName = "py".parse().unwrap();
    for number in 0..20_000u64 {
        let id = number % 100;
        learner.attach(id, &py);
        let role = learner.role(id, &format!("c{number}"), 0);
        assert!(role.is_some(), "{number}");
    }
    assert!(learner.roles.len() <= super::super::place::MAX_ROLES);
    learner.attach(1, &py);
    for number in 0..64u16 {
        assert!(learner.role(1, "python3", number).is_some());
    }
    assert_eq!(
        learner.role(1, "python3", 64),
        None,
        "one too many for a sandbox"
    );
    assert!(learner.role(1, "python3", 5).is_some());
    assert_eq!(learner.role(1000, "python3", 0), None, "not attached");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    /// Calls in any order: plans keep to the cap, name no page twice, and the same calls give the same.
    #[test]
    fn any_order(script in prop::collection::vec((0u8..9, 0u64..3, 0u64..300, 0usize..200), 0..150)) {
        let run = || {
            let mut learner = Learner::new(Settings { memory: 1 << 20, ..Settings::default() });
            let mut plans = Vec::new();
            for &(what, id, number, cap) in &script {
                let role = learner.role(id, "python3", (number % 3) as u16);
                let role = role.unwrap_or(Role(0));
                match what {
                    0 => learner.attach(id, &"py".parse().unwrap()),
                    1 => learner.resume(id, NOW),
                    2 => learner.tool_starts(id, Some(&format!("t{}", number % 3).parse().unwrap()), NOW),
                    3 | 4 => {
                        let faults: Vec<Seen> = (number..number + 30).map(|p| seen(role, p * (1 + number % 3), What::Demand)).collect();
                        learner.seen(id, &faults);
                    }
                    5 => learner.turn_ends(id, NOW),
                    6 => learner.wait_begins(id, NOW, (number..number + 40).map(|page| (Place { role, page }, PageState::Accessed))),
                    7 => if number < 20 { learner.detach(id) },
                    _ => {
                        let trigger = [Trigger::FirstToken, Trigger::Demand, Trigger::MidWait][number as usize % 3];
                        let plan = learner.plan(id, trigger, cap);
                        let places: BTreeSet<Place> = plan.places().collect();
                        assert!(places.len() <= cap);
                        assert_eq!(places.len() as u64, plan.pages);
                        assert_eq!(plan.capped, plan.wanted > plan.pages);
                        let ends: Vec<Seen> = places.iter().map(|place| Seen { place: *place, ..seen(role, 0, if place.page % 3 > 0 { What::Hit } else { What::Miss }) }).collect();
                        learner.seen(id, &ends);
                        plans.push(plan);
                    }
                }
                assert!(learner.memory() <= 1 << 20);
            }
            plans
        };
        prop_assert_eq!(run(), run());
    }
}
