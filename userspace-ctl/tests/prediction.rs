// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The predictors on traces: coverage and waste of each alone, of all, and of what they are compared with.
//!
//! `tests/traces` has small traces in the format of `agentzip_ctl::predict::trace`. Those that say
//! "generated" are made by `generate.rs`: set `AGENTZIP_WRITE_TRACES` to write them anew. The one that says
//! "recorded" is of the Python agents of `cargo xtask bench restore`, whose tools and their order are chosen at
//! random.

#[path = "prediction/generate.rs"]
mod generate;
#[path = "prediction/replay.rs"]
mod replay;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use agentzip_ctl::predict::trace::Trace;
use agentzip_ctl::predict::{
    Basis, Figures, Learner, PageState, Place, Predictor, Seen, Settings, Trigger, What,
};
use generate::{Model, Random};
use replay::{replay, Learned, Lru, Policy, Readahead};

/// Turns of each sandbox that are not counted: it learns.
const LEARNING: usize = 3;

/// All predictors together may be so much worse than the best one alone: they hold the hit ratio.
const EPSILON: f64 = 0.03;

fn steady() -> Model {
    Model {
        seed: 1,
        sandboxes: 4,
        turns: 9,
        scale: 1.0,
        tools: vec![(0, vec!["grep", "edit", "pytest"])],
        scan: (40, 0.3),
        noise: 0.02,
    }
}

fn changing() -> Model {
    Model {
        seed: 2,
        sandboxes: 3,
        turns: 14,
        scale: 0.6,
        tools: vec![
            (0, vec!["read", "edit"]),
            (7, vec!["build", "pytest", "edit"]),
        ],
        scan: (30, 0.3),
        noise: 0.02,
    }
}

fn scanning() -> Model {
    Model {
        seed: 3,
        sandboxes: 2,
        turns: 9,
        scale: 0.4,
        tools: vec![(0, vec!["pandas", "json"])],
        scan: (400, 0.9),
        noise: 0.02,
    }
}

/// The generated ones among the traces that are checked in.
fn generated() -> Vec<(&'static str, Trace)> {
    [
        ("steady-generated", steady()),
        ("changing-generated", changing()),
        ("scanning-generated", scanning()),
    ]
    .map(|(name, model)| {
        let source = format!("generated, a model of Python agents, seed {}", model.seed);
        (name, generate::trace(&model, &source))
    })
    .into()
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/traces")
}

struct Row {
    name: &'static str,
    figures: Figures,
}

impl Row {
    fn coverage(&self) -> f64 {
        self.figures.coverage().unwrap_or(0.0)
    }

    fn hit_ratio(&self) -> f64 {
        self.figures.hit_ratio().unwrap_or(0.0)
    }
}

/// Replays a trace in each configuration; prints a table.
fn table(name: &str, trace: &Trace) -> Vec<Row> {
    let mut rows = Vec::new();
    let run = |policy: &mut dyn Policy| replay(trace, policy, LEARNING);
    for predictor in Predictor::ALL {
        let figures = run(&mut Learned::new(trace, Settings::only(predictor)));
        let name = predictor.name();
        rows.push(Row { name, figures });
    }
    let figures = run(&mut Learned::new(trace, Settings::default()));
    let name_of = "all";
    rows.push(Row {
        name: name_of,
        figures,
    });
    // As many pages a turn as all predictors together restored.
    let turns = trace.turns.len() - LEARNING * sandboxes(trace);
    let pages = (figures.hits + figures.misses) as usize / turns.max(1);
    let figures = run(&mut Lru::new(pages));
    let name_of = "lru order";
    rows.push(Row {
        name: name_of,
        figures,
    });
    let figures = run(&mut Readahead);
    let name_of = "readahead";
    rows.push(Row {
        name: name_of,
        figures,
    });
    let faults = trace.faults();
    println!(
        "{name}: {}; {faults} faults, {turns} turns counted",
        trace.source
    );
    println!("  {:14} coverage  hits   waste  faults a turn", "");
    for row in &rows {
        println!(
            "  {:14} {:8.3} {:5.3} {:7.3} {:14.1}",
            row.name,
            row.coverage(),
            row.hit_ratio(),
            row.figures.waste().unwrap_or(0.0),
            row.figures.demand as f64 / turns as f64,
        );
    }
    rows
}

fn sandboxes(trace: &Trace) -> usize {
    let mut known: Vec<u32> = trace.turns.iter().map(|turn| turn.sandbox).collect();
    known.sort_unstable();
    known.dedup();
    known.len()
}

#[test]
fn generated_traces_are_what_the_generator_makes() {
    for (name, trace) in generated() {
        let path = folder().join(name).with_extension("trace");
        let text = trace.to_text();
        if std::env::var_os("AGENTZIP_WRITE_TRACES").is_some() {
            std::fs::write(&path, &text).unwrap();
        }
        let found = std::fs::read_to_string(&path).unwrap();
        assert!(found == text, "{}: is another one", path.display());
        assert_eq!(Trace::parse(&text).unwrap(), trace);
    }
}

#[test]
fn traces() {
    let mut bytes = 0;
    let mut paths: Vec<PathBuf> = std::fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    assert!(paths.len() >= 4);
    for path in paths {
        let text = std::fs::read_to_string(&path).unwrap();
        bytes += text.len();
        let trace = Trace::parse(&text).unwrap();
        let name = path.file_stem().unwrap().to_str().unwrap();
        let rows = table(name, &trace);
        let by_name = |name: &str| rows.iter().find(|row| row.name == name).unwrap();
        let all = by_name("all");
        for predictor in Predictor::ALL {
            let alone = by_name(predictor.name());
            assert!(all.coverage() >= alone.coverage() - EPSILON, "{name}");
        }
        let lru = by_name("lru order");
        assert!(all.coverage() > lru.coverage(), "{name}");
        assert!(all.hit_ratio() > lru.hit_ratio(), "{name}");
        // Readahead is at its best where most is one long pass. It covers more of real tools, too, and
        // restores three pages for each that is touched.
        let readahead = by_name("readahead");
        if !name.starts_with("scanning") {
            assert!(all.hit_ratio() > readahead.hit_ratio() + 0.2, "{name}");
        }
        if name.starts_with("tools") {
            assert!(all.coverage() >= 0.4, "{name}");
            assert!(all.hit_ratio() >= 0.55, "{name}");
        } else if !name.starts_with("scanning") {
            assert!(all.coverage() > readahead.coverage(), "{name}");
        }
        if name.starts_with("steady") {
            assert!(all.coverage() >= 0.80, "{name}");
            assert!(all.hit_ratio() >= 0.70, "{name}");
        }
    }
    assert!(bytes <= 400 << 10, "{bytes} bytes of traces");
}

#[test]
fn every_predictor_is_good_for_something() {
    let trace = generate::trace(&scanning(), "generated");
    for (predictor, least) in [
        (Predictor::Sequential, 0.2),
        (Predictor::Transitions, 0.02),
        (Predictor::WorkingSet, 0.15),
        (Predictor::AccessBitmap, 0.1),
    ] {
        let mut learned = Learned::new(&trace, Settings::only(predictor));
        let coverage = replay(&trace, &mut learned, LEARNING).coverage().unwrap();
        assert!(coverage >= least, "{}: {coverage}", predictor.name());
    }
}

#[test]
fn the_same_calls_give_the_same_plans() {
    let trace = generate::trace(&changing(), "generated");
    let mut plans = Vec::new();
    for _ in 0..2 {
        let mut learned = Learned::new(&trace, Settings::default());
        let figures = replay(&trace, &mut learned, 0);
        let last = learned.learner.plan(0, Trigger::Message, 4096);
        plans.push((figures, learned.pages, last));
    }
    assert!(plans[0].2.pages > 50);
    assert_eq!(plans[0], plans[1]);
}

#[test]
fn a_sandbox_profits_from_its_siblings_first_turns() {
    let mut trace = generate::trace(&steady(), "generated");
    // The last sandbox comes when the others have had all their turns.
    trace.turns.sort_by_key(|turn| turn.sandbox == 3);
    let coverage = |settings| {
        let mut learned = Learned::new(&trace, settings);
        let mut before = trace.clone();
        before.turns.retain(|turn| turn.sandbox != 3);
        replay(&before, &mut learned, 0);
        let mut first = trace.clone();
        first.turns.retain(|turn| turn.sandbox == 3);
        first.turns.truncate(1);
        replay(&first, &mut learned, 0).coverage().unwrap()
    };
    let with = coverage(Settings::default());
    let without = coverage(Settings::only(Predictor::AccessBitmap));
    assert!(with > 0.3, "{with}");
    assert_eq!(without, 0.0);
}

#[test]
fn plans_over_the_cap_keep_their_best_part() {
    let trace = generate::trace(&steady(), "generated");
    // Plans that follow faults have a cap of their own.
    let settings = Settings {
        sequential: false,
        transitions: false,
        ..Settings::default()
    };
    let run = |cap| {
        let mut learned = Learned::new(&trace, settings.clone());
        learned.cap = cap;
        let figures = replay(&trace, &mut learned, LEARNING);
        (figures, learned.capped)
    };
    let (all, capped) = run(replay::CAP);
    assert_eq!(capped, 0);
    let (some, capped) = run(100);
    assert!(capped > 0);
    assert!(some.hit_ratio() > all.hit_ratio(), "{some:?} {all:?}");
}

/// Two hundred sandboxes that touch what they like, and name their tools and processes as they like.
#[test]
fn memory_is_bounded_whatever_comes() {
    let settings = Settings {
        memory: 8 << 20,
        ..Settings::default()
    };
    let mut learner = Learner::new(settings);
    let mut random = Random::new(4);
    let now = Duration::ZERO;
    let mut most = 0;
    for turn in 0..600u64 {
        let id = turn % 200;
        if turn < 200 || random.chance(0.1) {
            learner.attach(id, &format!("t{}", id % 7).parse().unwrap());
        }
        let command = format!("c{}", random.below(100_000));
        let role = learner.role(id, &command, 0).unwrap();
        let tool = format!("tool{}", random.below(500)).parse().unwrap();
        learner.resume(id, now);
        learner.plan(id, Trigger::FirstToken, 4096);
        learner.tool_starts(id, Some(&tool), now);
        let seen: Vec<Seen> = (0..3000)
            .map(|_| Seen {
                at: now,
                place: Place {
                    role,
                    page: random.below(1 << 45),
                },
                thread: random.below(50) as i32,
                write: false,
                what: What::Demand,
                stall_ns: 0,
            })
            .collect();
        learner.seen(id, &seen);
        learner.plan(id, Trigger::Demand, 64);
        learner.turn_ends(id, now);
        let states = seen.iter().map(|one| (one.place, PageState::Accessed));
        learner.wait_begins(id, now, states);
        most = most.max(learner.memory());
    }
    assert!(most > 2 << 20, "{most} bytes: it learned something");
    assert!(most <= 8 << 20, "{most} bytes");
}

/// Time of a plan of 4096 pages out of 10,000 that are known of the sandbox and of several tools.
#[test]
fn a_plan_is_made_in_no_time() {
    let mut learner = Learner::new(Settings::default());
    let now = Duration::ZERO;
    learner.attach(1, &"t".parse().unwrap());
    let role = learner.role(1, "python3", 0).unwrap();
    let mut random = Random::new(9);
    let core: Vec<u64> = (0..6000).map(|_| random.below(1 << 20)).collect();
    for turn in 0..12u64 {
        learner.resume(1, now);
        let tool = format!("tool{}", turn % 4).parse().unwrap();
        learner.tool_starts(1, Some(&tool), now);
        let own = (0..4000).map(|n| (1 << 21) + n * 3 + ((turn % 4) << 20));
        let pages = core.iter().copied().chain(own);
        let seen: Vec<Seen> = pages
            .map(|page| Seen {
                at: now,
                place: Place { role, page },
                thread: 1,
                write: false,
                what: What::Demand,
                stall_ns: 0,
            })
            .collect();
        learner.seen(1, &seen);
        learner.turn_ends(1, now);
        learner.wait_begins(
            1,
            now,
            seen.iter().map(|one| (one.place, PageState::Accessed)),
        );
    }
    learner.resume(1, now);
    // The best of a few: the machine has other things to do.
    let mut best = Duration::MAX;
    for _ in 0..8 {
        let begun = Instant::now();
        let plan = learner.plan(1, Trigger::FirstToken, 4096);
        best = best.min(begun.elapsed());
        assert_eq!(
            (plan.pages, plan.capped, plan.basis),
            (4096, true, Basis::Learned)
        );
        assert!(plan.head > 3000);
        learner.dropped(1, plan.places());
    }
    println!("a plan of 4096 pages took {best:?}");
    // Builds that are not optimised are slower.
    let limit = if cfg!(debug_assertions) { 500 } else { 50 };
    assert!(best < Duration::from_millis(limit), "{best:?}");
}
