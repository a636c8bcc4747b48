// SPDX-License-Identifier: GPL-2.0 OR MIT

use std::time::Duration;

use agentzip_uapi::{FaultKind, PAGE_SWAPPED};

use super::core::{Core, Tools};
use super::fake::Module;
use super::settings::Settings;
use super::shown::Board;
use super::{Depth, Order, Report};
use crate::config::{Config, PrefetchMode};
use crate::hot::fake::Fake;
use crate::predict::{Cause, Change, Trigger};
use crate::sysfs::Sysfs;

const MS: fn(u64) -> Duration = Duration::from_millis;

/// A restorer with its module, and processes of sandboxes 1 and 2: number 10 and 20, 2,000 pages each.
struct Desk {
    core: Core,
    board: Board,
    module: Module,
    processes: Fake,
    sysfs: Sysfs,
    trees: tempfile::TempDir,
}

impl Desk {
    fn new(text: &str) -> Desk {
        let mut config = Config::parse(std::path::Path::new("a"), text).unwrap();
        config.prefetch.mode = PrefetchMode::Plan;
        let trees = tempfile::tempdir().unwrap();
        let mut desk = Desk {
            core: Core::new(Settings::from(&config)),
            board: Board::default(),
            module: Module::default(),
            processes: Fake::default(),
            sysfs: Sysfs::new(trees.path().to_owned()),
            trees,
        };
        desk.module.prompt.set(true);
        desk.module.now.set(Duration::from_secs(1000));
        for (id, pid) in [(1, 10), (2, 20)] {
            desk.processes.start(id, pid, 0..2000);
            for page in 0..2000 {
                desk.module.pages.borrow_mut().insert((pid, page), 1);
            }
            desk.attach(id);
        }
        desk
    }

    fn board(&mut self) -> Board {
        self.core.show(&mut self.board);
        self.board.clone()
    }

    fn attach(&mut self, id: u64) {
        self.order(Order::Attach(Fake::target(id), "python".parse().unwrap()));
    }

    fn order(&mut self, order: Order) -> Vec<Report> {
        self.with(|core, tools| core.order(tools, order))
    }

    fn with(&mut self, what: impl FnOnce(&mut Core, Tools<'_>)) -> Vec<Report> {
        let module = &self.module;
        let tools = Tools {
            device: module,
            processes: &self.processes,
            sysfs: &self.sysfs,
            clock: &|| module.now.get(),
        };
        what(&mut self.core, tools);
        self.core.reports()
    }

    fn hint(&mut self, id: u64, text: &str) -> Vec<Report> {
        self.order(Order::Hint(id, text.parse().unwrap()))
    }

    fn pass(&mut self, time: Duration) -> Vec<Report> {
        let end = self.module.now.get() + time;
        let mut reports = Vec::new();
        while let Some(at) = self.core.next().filter(|at| *at <= end) {
            self.module.now.set(at.max(self.module.now.get()));
            reports.extend(self.with(|core, tools| core.keep_time(tools)));
        }
        self.module.now.set(end);
        reports
    }

    /// A turn of a sandbox whose tool touches these pages. Returns which of them were there before.
    fn turn(&mut self, id: u64, pid: i32, tool: &str, pages: &[u64]) -> usize {
        self.module.take_out(pid);
        self.pass(MS(2000));
        self.hint(id, "first-token");
        self.order(Order::Restore(id, Trigger::FirstToken, Depth::Plan));
        self.pass(MS(100));
        self.hint(id, &format!("tool-start;tool={tool}"));
        self.order(Order::Restore(id, Trigger::ToolStart, Depth::Plan));
        self.pass(MS(20));
        let there = pages
            .iter()
            .filter(|page| self.module.state(pid, **page) & PAGE_SWAPPED == 0);
        let there = there.count();
        for page in pages {
            let before = self.module.state(pid, *page);
            self.module.touch(id, pid, *page);
            if before & PAGE_SWAPPED == 0 {
                self.module.record(id, pid, *page, FaultKind::Hit, 0);
            }
            self.pass(Duration::from_micros(100));
        }
        self.pass(MS(50));
        self.hint(id, "tool-end");
        let reports = self.hint(id, "llm-wait");
        assert!(reports.contains(&Report::Looked(id)), "{reports:?}");
        there
    }
}

fn pages(from: u64, count: u64) -> Vec<u64> {
    (from..from + count).collect()
}

#[test]
fn what_a_tool_touched_is_there_before_the_next_one_asks() {
    let mut desk = Desk::new("");
    let wanted = pages(100, 300);
    desk.hint(1, "llm-wait");
    for _ in 0..3 {
        desk.turn(1, 10, "pytest", &wanted);
    }
    assert!(desk.module.rings.borrow().is_empty(), "given back");
    let there = desk.turn(1, 10, "pytest", &wanted);
    assert!(there >= 240, "{there} of 300");
    let board = desk.board();
    assert!(board.able && board.total.plans >= 3);
    assert!(board.total.hits > 0 && board.total.demand_faults > 0);
    assert_eq!(board.sandboxes[&1].hits, board.total.hits);
    assert!(board.sandboxes[&1].pages_at_every_resume > Some(200));
    assert_eq!(board.total.lost_records + board.total.unplaced_records, 0);
    // A plan asks for what was touched, not for everything.
    let asked = desk.module.asked_pages();
    assert!(asked.iter().all(|(pid, _)| *pid == 10));
}

/// With everything, what nobody expects comes after the plan, once, and without hit tests.
#[test]
fn what_else_there_is_comes_after_the_plan() {
    let mut desk = Desk::new("");
    let wanted = pages(100, 300);
    desk.hint(1, "llm-wait");
    for _ in 0..3 {
        desk.turn(1, 10, "pytest", &wanted);
    }
    desk.module.take_out(10);
    desk.pass(MS(2000));
    desk.module.asked.take();
    desk.hint(1, "first-token");
    let mut reports = desk.order(Order::Restore(1, Trigger::FirstToken, Depth::Everything));
    reports.extend(desk.pass(MS(100)));
    assert!(reports.contains(&Report::Restored(1)), "{reports:?}");
    let asked = desk.module.asked.take();
    assert!(asked.is_sorted_by_key(|asked| std::cmp::Reverse(asked.haste.priority)));
    let of = |tested: bool| {
        let alike = asked.iter().filter(|asked| asked.haste.tested == tested);
        let mut pages: Vec<u64> = alike.flat_map(|asked| asked.pages.clone()).collect();
        pages.sort_unstable();
        pages
    };
    let (planned, rest) = (of(true), of(false));
    assert!((250..400).contains(&planned.len()), "{}", planned.len());
    let mut all = [planned.clone(), rest].concat();
    all.sort_unstable();
    assert_eq!(all, pages(0, 2000), "each once");
    let board = desk.board();
    assert_eq!(board.total.rest_pages, 2000 - planned.len() as u64);
    assert_eq!(board.total.dropped_pages, 0);
    // A tool needs no plan then, until something is missing: what can be said of that was asked for already.
    let plans = board.total.plans;
    let tool = |desk: &mut Desk| {
        desk.hint(1, "tool-start;tool=pytest");
        let reports = desk.order(Order::Restore(1, Trigger::ToolStart, Depth::Plan));
        desk.hint(1, "tool-end");
        reports
    };
    assert_eq!(tool(&mut desk), [Report::Restored(1)]);
    desk.module.take_out(10);
    desk.module.touch(1, 10, 1999);
    desk.hint(1, "tool-end");
    assert_eq!(tool(&mut desk), [Report::Unable(1, Trigger::ToolStart)]);
    assert_eq!(desk.board().total.plans, plans);
    // Nor so when it was taken from meanwhile.
    let again = |desk: &mut Desk| {
        desk.hint(1, "llm-wait");
        desk.module.take_out(10);
        desk.pass(MS(2000));
        desk.hint(1, "first-token");
        desk.order(Order::Restore(1, Trigger::FirstToken, Depth::Everything));
        desk.pass(MS(100));
    };
    again(&mut desk);
    let plans = desk.board().total.plans;
    assert_eq!(tool(&mut desk), [Report::Restored(1)]);
    assert_eq!(desk.board().total.plans, plans);
    desk.order(Order::Taken(1));
    tool(&mut desk);
    assert_eq!(desk.board().total.plans, plans + 1);
    // A wait ends it.
    desk.module.take_out(10);
    desk.module.asked.take();
    desk.module.prompt.set(false);
    desk.hint(1, "llm-wait");
    desk.pass(MS(2000));
    desk.hint(1, "first-token");
    let reports = desk.order(Order::Restore(1, Trigger::FirstToken, Depth::Everything));
    assert_eq!(reports, [Report::Restored(1)], "others' plans do not wait");
    let rest: usize = desk.module.asked_pages().len();
    assert!(rest < 2000, "there is more to come: {rest}");
    desk.hint(1, "llm-wait");
    desk.module.prompt.set(true);
    desk.pass(MS(400));
    assert_eq!(desk.module.asked.take(), []);
}

/// Where a record was lost, or the module had no room for a request, a page may be out that nobody knows of: a
/// tool has its plan made.
#[test]
fn what_may_be_missing_is_planned_for() {
    for case in ["nothing", "a record", "a request"] {
        let mut desk = Desk::new("");
        desk.hint(1, "llm-wait");
        for _ in 0..3 {
            desk.turn(1, 10, "pytest", &pages(100, 300));
        }
        desk.module.take_out(10);
        desk.pass(MS(2000));
        desk.hint(1, "first-token");
        if case == "a request" {
            desk.module.room.set(Some(2));
        }
        desk.order(Order::Restore(1, Trigger::FirstToken, Depth::Everything));
        desk.pass(MS(10_000));
        desk.module.room.set(None);
        if case == "a record" {
            desk.module.lost.set(1);
            desk.hint(1, "tool-end");
        }
        let plans = desk.board().total.plans;
        desk.hint(1, "tool-start;tool=pytest");
        let reports = desk.order(Order::Restore(1, Trigger::ToolStart, Depth::Plan));
        // It is tried, though there may be nothing left to ask for.
        let tried = desk.board().total.plans > plans
            || reports.contains(&Report::Unable(1, Trigger::ToolStart));
        assert_eq!(tried, case != "nothing", "{case}: {reports:?}");
    }
}

#[test]
fn requests_carry_the_times_of_the_machine_and_the_best_go_first() {
    let mut desk = Desk::new("time_scale = 10.0\n[prefetch]\nhit_window = \"300ms\"\n");
    for page in 0..600 {
        desk.module.touch(1, 10, page);
    }
    desk.hint(1, "llm-wait");
    desk.module.take_out(10);
    desk.module.prompt.set(false);
    desk.hint(1, "first-token");
    assert_eq!(
        desk.order(Order::Restore(1, Trigger::FirstToken, Depth::Plan)),
        []
    );
    let asked = desk.module.asked.take();
    assert!(asked.len() >= 2, "{asked:?}");
    assert_eq!(asked[0].haste.hit_window, MS(3000));
    assert_eq!(asked[0].haste.timeout, MS(5000));
    let order: Vec<u32> = asked.iter().map(|asked| asked.haste.priority).collect();
    assert!(order.is_sorted_by(|a, b| a > b), "{order:?}");
    assert!(asked.iter().all(|asked| asked.pages.len() <= 64));
    // Two batches are asked for; nothing more until one of them is there.
    assert_eq!(desk.pass(MS(100)), []);
    assert_eq!(desk.module.asked.take(), []);
    let reports = desk.pass(MS(5000));
    assert!(reports.contains(&Report::Restored(1)), "{reports:?}");
    let board = desk.board();
    assert_eq!(
        board.total.planned_pages,
        board.total.queued_pages + board.total.dropped_pages
    );
    assert!(board.total.dropped_pages > 0);
}

/// A turn that is shorter than the hit window: what became of its pages is known when it ends.
#[test]
fn hits_of_short_turns_are_counted() {
    for bitmap in [true, false] {
        let mut desk = Desk::new(&format!("[prefetch]\naccess_bitmap = {bitmap}\n"));
        *desk.module.awaiting.borrow_mut() = Some(Vec::new());
        desk.hint(1, "llm-wait");
        for _ in 0..5 {
            desk.module.take_out(10);
            desk.hint(1, "first-token");
            desk.order(Order::Restore(1, Trigger::FirstToken, Depth::Plan));
            desk.hint(1, "tool-start;tool=ls");
            for page in 100..400 {
                desk.module.touch(1, 10, page);
            }
            desk.hint(1, "llm-wait");
        }
        let total = desk.board().total;
        assert!(total.hits >= 600, "{total:?}");
        assert!(total.hit_ratio > Some(0.7), "{total:?}");
        assert_eq!(
            desk.module.awaiting.borrow().as_ref().map(Vec::len),
            Some(0)
        );
    }
}

/// Between the first token and the tool some tokens more are made: a page that is touched then is a hit.
#[test]
fn the_hit_window_begins_when_the_tool_does() {
    let mut desk = Desk::new("");
    let windows = |desk: &mut Desk| -> Vec<Duration> {
        let asked = desk.module.asked.take();
        asked.iter().map(|asked| asked.haste.hit_window).collect()
    };
    desk.hint(1, "llm-wait");
    for turn in 0..4 {
        desk.module.take_out(10);
        desk.hint(1, "first-token");
        desk.order(Order::Restore(1, Trigger::FirstToken, Depth::Plan));
        let known = if turn == 0 { MS(0) } else { MS(3000) };
        for window in windows(&mut desk) {
            assert_eq!(window, MS(500) + known);
        }
        desk.pass(MS(3000));
        desk.hint(1, "tool-start");
        for page in 0..300 {
            desk.module.touch(1, 10, page);
        }
        desk.module.take_out(10);
        desk.order(Order::Restore(1, Trigger::ToolStart, Depth::Plan));
        assert!(windows(&mut desk).iter().all(|window| *window == MS(500)));
        desk.hint(1, "llm-wait");
    }
    desk.module.take_out(10);
    desk.order(Order::Restore(1, Trigger::Message, Depth::Plan));
    let last = windows(&mut desk);
    assert!(
        !last.is_empty() && last.iter().all(|window| *window == MS(4500)),
        "{last:?}"
    );
}

#[test]
fn what_the_module_has_no_room_for_is_asked_for_again() {
    let mut desk = Desk::new("");
    for page in 0..600 {
        desk.module.touch(1, 10, page);
    }
    desk.hint(1, "llm-wait");
    desk.module.take_out(10);
    desk.module.room.set(Some(3));
    desk.hint(1, "first-token");
    desk.order(Order::Restore(1, Trigger::FirstToken, Depth::Plan));
    assert_eq!(desk.module.asked.borrow().len(), 3);
    desk.pass(MS(10));
    desk.module.room.set(None);
    let reports = desk.pass(MS(100));
    assert!(reports.contains(&Report::Restored(1)), "{reports:?}");
    assert_eq!(desk.module.asked_pages().len(), 600, "each once");
}

#[test]
fn a_plan_ends_with_the_turn_or_the_sandbox() {
    for end in ["llm-wait", "done", "detach"] {
        let mut desk = Desk::new("");
        for page in 0..2000 {
            desk.module.touch(1, 10, page);
        }
        desk.hint(1, "llm-wait");
        desk.module.take_out(10);
        desk.module.prompt.set(false);
        desk.hint(1, "first-token");
        assert_eq!(
            desk.order(Order::Restore(1, Trigger::FirstToken, Depth::Plan)),
            []
        );
        let reports = match end {
            "detach" => desk.order(Order::Detach(1)),
            hint => desk.hint(1, hint),
        };
        assert!(reports.contains(&Report::Restored(1)), "{end}: {reports:?}");
        assert_eq!(desk.board().sandboxes.contains_key(&1), end != "detach");
        desk.module.asked.take();
        desk.module.prompt.set(true);
        desk.pass(MS(1000));
        assert_eq!(desk.module.asked.take(), [], "{end}");
    }
}

#[test]
fn an_older_module_and_a_sandbox_that_is_not_known() {
    let mut desk = Desk::new("");
    let reports = desk.order(Order::Restore(9, Trigger::FirstToken, Depth::Plan));
    assert_eq!(reports, [Report::Unable(9, Trigger::FirstToken)]);
    // Nothing was learned, and nothing looked at: there is no plan.
    desk.hint(1, "first-token");
    let reports = desk.order(Order::Restore(1, Trigger::FirstToken, Depth::Plan));
    assert_eq!(reports, [Report::Unable(1, Trigger::FirstToken)]);
    // A job that waits for the look is not forgotten.
    assert_eq!(desk.hint(9, "llm-wait"), [Report::Looked(9)]);
    desk.module.errno.set(libc::ENOTTY);
    desk.attach(2);
    desk.hint(2, "first-token");
    assert!(!desk.board().able);
    assert_eq!(desk.hint(2, "llm-wait"), [Report::Looked(2)]);
    let reports = desk.order(Order::Restore(2, Trigger::FirstToken, Depth::Plan));
    assert_eq!(reports, [Report::Unable(2, Trigger::FirstToken)]);
    // A newer one was loaded.
    desk.module.errno.set(0);
    desk.attach(2);
    desk.hint(2, "first-token");
    assert!(desk.board().able);
}

#[test]
fn what_a_daemon_before_us_left_in_the_ring_teaches_nothing() {
    let mut desk = Desk::new("");
    for page in 0..500 {
        desk.module.record(1, 10, page, FaultKind::Demand, 1);
    }
    desk.module.lost.set(77);
    desk.order(Order::Detach(1));
    desk.attach(1);
    desk.hint(1, "first-token");
    let board = desk.board();
    assert_eq!(board.total.demand_faults, 0);
    assert_eq!(board.total.lost_records, 0, "they were not ours");
    desk.module.lost.set(80);
    desk.hint(1, "tool-end");
    assert_eq!(desk.board().total.lost_records, 3);
    assert_eq!(desk.module.armed.borrow().last(), Some(&(1, 2048)));
    // Without plans, no rings.
    let config = Config::parse(std::path::Path::new("a"), "[prefetch]\nmode = \"off\"\n").unwrap();
    desk.order(Order::Settings(Box::new(Settings::from(&config))));
    assert_eq!(desk.module.armed.borrow().last(), Some(&(1, 0)));
    assert!(desk.module.rings.borrow().is_empty());
}

#[test]
fn processes_that_end_or_change_are_passed_over() {
    let mut desk = Desk::new("");
    desk.processes.start(1, 11, 5000..5400);
    for page in 5000..5400 {
        desk.module.pages.borrow_mut().insert((11, page), 3);
    }
    for page in 0..400 {
        desk.module.touch(1, 10, page);
    }
    desk.hint(1, "llm-wait");
    for pid in [10, 11] {
        desk.module.take_out(pid);
    }
    desk.module.prompt.set(false);
    // It ends after the plan was made: nothing is asked for any more under its number.
    desk.hint(1, "first-token");
    desk.processes.vanish(11);
    desk.order(Order::Restore(1, Trigger::FirstToken, Depth::Plan));
    desk.module.prompt.set(true);
    desk.pass(MS(400));
    let asked = desk.module.asked_pages();
    assert!(
        !asked.is_empty() && asked.iter().all(|(pid, _)| *pid == 10),
        "{asked:?}"
    );
    // Records of processes nobody knows are counted, not learned.
    desk.module.record(1, 4711, 3, FaultKind::Demand, 1);
    desk.hint(1, "tool-end");
    assert_eq!(desk.board().total.unplaced_records, 1);
}

#[test]
fn a_look_at_the_pages_has_an_end() {
    let mut desk = Desk::new("");
    for start in (0..400_000).step_by(100_000) {
        desk.processes.map(10, 1_000_000 + start..1_040_000 + start);
    }
    desk.module.slow.set(MS(8));
    let before = desk.module.now.get();
    desk.module.looks.set(0);
    assert_eq!(desk.hint(1, "llm-wait"), [Report::Looked(1)]);
    assert_eq!(desk.module.looks.get(), 3);
    assert_eq!(desk.module.now.get() - before, MS(24));
    // One that waits already is not looked at again.
    assert_eq!(desk.hint(1, "llm-wait"), [Report::Looked(1)]);
    assert_eq!(desk.module.looks.get(), 3);
}

#[test]
fn a_ruined_hit_ratio_raises_the_alarm() {
    let mut desk = Desk::new("");
    desk.hint(1, "first-token");
    let feed = |desk: &mut Desk, hits: u64, misses: u64| {
        for page in 0..hits {
            desk.module.record(1, 10, page, FaultKind::Hit, 0);
        }
        for page in 0..misses {
            desk.module.record(1, 10, 1000 + page, FaultKind::Miss, 0);
        }
        desk.with(|core, tools| core.ring(tools, 1))
    };
    for _ in 0..20 {
        assert_eq!(feed(&mut desk, 190, 70), []);
    }
    // A change elsewhere: the accessed bits are cleared by someone else, say.
    let mut reports = Vec::new();
    for _ in 0..5 {
        reports.extend(feed(&mut desk, 100, 160));
    }
    assert!(
        matches!(reports[..], [Report::Alarm(Change::Raised(Cause::HitRatio { usual, now }))]
            if usual > 0.7 && now < 0.4),
        "{reports:?}"
    );
    assert!(desk.board().alarm_hit_ratio);
    let window = desk.board().sandboxes[&1].window_pages;
    assert!(window.is_none_or(|pages| pages == 16));
}

#[test]
fn an_objective_that_is_missed_narrows_the_scope() {
    let mut desk = Desk::new("[slo]\nfirst_tool_p99 = \"1ms\"\n");
    let mut reports = Vec::new();
    desk.hint(1, "llm-wait");
    for _ in 0..60 {
        desk.hint(1, "first-token");
        for page in 0..300 {
            desk.module.record(1, 10, page, FaultKind::Demand, 10_000);
        }
        reports.extend(desk.hint(1, "tool-end"));
        // What comes after the first tool does not count.
        reports.extend(desk.hint(1, "llm-wait"));
    }
    assert!(reports.contains(&Report::Scope(0.7)), "{reports:?}");
    let raised = |report: &Report| matches!(report, Report::Alarm(Change::Raised(Cause::Latency { now, .. })) if *now == MS(3));
    assert_eq!(reports.iter().filter(|report| raised(report)).count(), 1);
    let board = desk.board();
    assert!(board.alarm_first_tool && board.scope < 1.0);
    assert_eq!(board.total.first_tool_p99_us, Some(3000));
}

#[test]
fn what_the_workers_took_is_charged_once() {
    let mut desk = Desk::new("");
    std::fs::create_dir_all(desk.trees.path().join("sandboxes/1")).unwrap();
    std::fs::write(desk.trees.path().join("sandboxes/1/prefetch_ns"), "5000\n").unwrap();
    desk.hint(1, "first-token");
    let reports = desk.hint(1, "llm-wait");
    assert!(
        reports.contains(&Report::Spent(Duration::from_nanos(5000))),
        "{reports:?}"
    );
    desk.hint(1, "first-token");
    let reports = desk.hint(1, "llm-wait");
    assert!(
        !reports
            .iter()
            .any(|report| matches!(report, Report::Spent(_))),
        "{reports:?}"
    );
}

#[test]
fn a_template_made_anew_is_another_one() {
    let mut desk = Desk::new("");
    let templates = desk.trees.path().join("templates");
    let [first, second] = ["python", "new"].map(|name| templates.join(name));
    for directory in [&first, &second] {
        std::fs::create_dir_all(directory).unwrap();
    }
    desk.attach(1);
    desk.hint(1, "llm-wait");
    for _ in 0..3 {
        desk.turn(1, 10, "pytest", &pages(100, 300));
    }
    let learned = desk.core.learner.known().count();
    assert!(learned > 0);
    // For a sibling, what was learned counts.
    desk.attach(2);
    assert_eq!(desk.core.learner.known().count(), learned);
    std::fs::remove_dir(&first).unwrap();
    std::fs::rename(&second, &first).unwrap();
    desk.attach(2);
    assert_eq!(desk.core.learner.known().count(), 0);
    // One of the former template that is still there teaches nothing.
    for hint in [
        "first-token",
        "tool-start;tool=pytest",
        "tool-end",
        "llm-wait",
    ] {
        desk.hint(1, hint);
        desk.module.touch(1, 10, 100);
    }
    assert_eq!(desk.core.learner.known().count(), 0);
    desk.hint(2, "llm-wait");
    for _ in 0..3 {
        desk.turn(2, 20, "pytest", &pages(100, 300));
    }
    assert!(desk.core.learner.known().count() > 0);
}

#[test]
fn traces_of_what_was_seen() {
    let dir = tempfile::tempdir().unwrap();
    let directory = dir.path().display();
    let mut desk = Desk::new(&format!(
        "[prefetch]\ntrace_dir = \"{directory}\"\nsequential = false\ntransitions = false\n\
         working_set = false\naccess_bitmap = false\n"
    ));
    desk.hint(1, "llm-wait");
    desk.hint(2, "llm-wait");
    for _ in 0..2 {
        assert_eq!(desk.turn(1, 10, "pytest", &pages(100, 50)), 0);
        assert_eq!(desk.turn(2, 20, "ls", &pages(700, 5)), 0);
    }
    let text = std::fs::read_to_string(dir.path().join("python.trace")).unwrap();
    let trace = crate::predict::trace::Trace::parse(&text).unwrap();
    assert_eq!(trace.turns.len(), 4);
    assert_eq!(trace.faults(), 110);
    assert_eq!(trace.roles, [("tool".to_owned(), 0)]);
    let sandboxes: Vec<u32> = trace.turns.iter().map(|turn| turn.sandbox).collect();
    assert_eq!(sandboxes, [0, 1, 0, 1]);
}

/// Two hundred sandboxes that wait want nothing.
#[test]
fn idle_sandboxes_cost_nothing() {
    let mut desk = Desk::new("");
    for id in 100..300 {
        desk.processes.start(id, id as i32, 0..10);
        desk.attach(id);
        desk.hint(id, "llm-wait");
    }
    desk.hint(1, "llm-wait");
    desk.hint(2, "llm-wait");
    assert_eq!(desk.core.next(), None);
    assert_eq!(desk.core.bells().count(), 202);
}
