// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Replays traces: what would have been a hit, a miss or a demand fault.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use agentzip_ctl::predict::trace::{Event, Mapped, Trace};
use agentzip_ctl::predict::{
    Figures, Learner, PageState, Place, Plan, Role, Run, Seen, Settings, Trigger, What,
};
use agentzip_ctl::ToolName;

/// Demand faults until a plan that followed some is carried out.
const LATENCY: usize = 8;

/// Demand faults that are told at once.
const BATCH: usize = 4;

/// Pages that a plan may have.
pub const CAP: usize = 4096;

/// Pages that a plan after faults may have.
const WINDOW: usize = 32;

/// What decides about restores.
pub trait Policy {
    /// Demand faults that it is told at once, and those until what it wants then is there.
    fn timing(&self) -> (usize, usize) {
        (BATCH, LATENCY)
    }

    /// A turn begins, with these pages out, if that is known; what is restored before its first fault.
    fn begins(&mut self, sandbox: u32, out: &[Run]) -> Vec<Place>;
    /// A tool starts; what is restored before its first fault.
    fn tool(&mut self, sandbox: u32, tool: Option<&ToolName>) -> Vec<Place>;
    /// Pages were faulted in; what is to be restored.
    fn demand(&mut self, sandbox: u32, seen: &[Seen]) -> Vec<Place>;
    /// The turn ends: hits and misses, the pages that it touched, new ones included, what there is.
    fn ends(
        &mut self,
        sandbox: u32,
        seen: &[Seen],
        touched: &BTreeSet<Place>,
        maps: &[(Place, u64)],
    );
}

/// Figures of the turns of each sandbox from `skip` on, and the number of pages asked for by turn.
pub fn replay(trace: &Trace, policy: &mut dyn Policy, skip: usize) -> Figures {
    let (batch, latency) = policy.timing();
    let mut figures = Figures::default();
    let mut turns: BTreeMap<u32, usize> = BTreeMap::new();
    let roles = roles(trace);
    let maps: Vec<(Place, u64)> = trace
        .maps
        .iter()
        .map(|map| (place(&roles, map.role, map.page), map.pages))
        .collect();
    let mapped = |place: &Place| {
        let inside = |(start, pages): &(Place, u64)| {
            start.role == place.role && (start.page..start.page + pages).contains(&place.page)
        };
        maps.is_empty() || maps.iter().any(inside)
    };
    // Pages that each sandbox was seen to have.
    let mut grown: BTreeMap<u32, BTreeSet<Place>> = BTreeMap::new();
    for turn in &trace.turns {
        let sandbox = turn.sandbox;
        let number = turns.entry(sandbox).or_default();
        let run = |run: &Mapped| Run {
            start: place(&roles, run.role, run.page),
            pages: run.pages,
        };
        let out: Vec<Run> = turn.out.iter().map(run).collect();
        let was_out: BTreeSet<Place> = pages(&roles, &turn.out).collect();
        let mut restored: BTreeSet<Place> = policy.begins(sandbox, &out).into_iter().collect();
        let mut touched = BTreeSet::new();
        let mut under_way: VecDeque<(usize, Place)> = VecDeque::new();
        let mut faults = 0;
        let mut all = Vec::new();
        let seen = |place: Place, ms: u32, thread: u32, what: What| Seen {
            at: Duration::from_millis(ms.into()),
            place,
            thread: 100 + thread as i32,
            write: false,
            what,
            stall_ns: 1000,
        };
        for event in &turn.events {
            let fault = match event {
                Event::Tool(_, tool) => {
                    restored.extend(policy.tool(sandbox, tool.as_ref()));
                    continue;
                }
                Event::Fault(fault) => fault,
            };
            while let Some((_, place)) = under_way.pop_front_if_due(faults) {
                if !touched.contains(&place) {
                    restored.insert(place);
                }
            }
            let place = place(&roles, fault.role, fault.page);
            if touched.insert(place) && !restored.contains(&place) {
                faults += 1;
                let demand = seen(place, fault.ms, fault.thread, What::Demand);
                all.push(demand);
                if all.len() % batch == 0 {
                    let more = policy.demand(sandbox, &all[all.len() - batch..]);
                    under_way.extend(more.into_iter().map(|place| (faults + latency, place)));
                }
            }
        }
        policy.demand(sandbox, &all[all.len() / batch * batch..]);
        restored.extend(
            under_way
                .into_iter()
                .map(|(_, place)| place)
                .filter(|place| !touched.contains(place)),
        );
        let accessed: BTreeSet<Place> = pages(&roles, &turn.accessed).collect();
        let grown = grown.entry(sandbox).or_default();
        // What is accessed without a fault was not there before.
        let new = |place: &Place| accessed.contains(place) && !touched.contains(place);
        let ended: Vec<Seen> = restored
            .into_iter()
            .filter(|place| match was_out.is_empty() {
                true => (mapped(place) || grown.contains(place)) && !new(place),
                false => was_out.contains(place),
            })
            .map(|place| match touched.contains(&place) {
                true => seen(place, 1000, 0, What::Hit),
                false => seen(place, 1000, 0, What::Miss),
            })
            .collect();
        if *number >= skip {
            figures.count(&all);
            figures.count(&ended);
        }
        *number += 1;
        touched.extend(accessed);
        grown.extend(&touched);
        policy.ends(sandbox, &ended, &touched, &maps);
    }
    figures
}

/// Every page of runs.
fn pages<'a>(roles: &'a [Role], runs: &'a [Mapped]) -> impl Iterator<Item = Place> + 'a {
    runs.iter().flat_map(|run| {
        let pages = run.page..run.page + run.pages;
        pages.map(|page| place(roles, run.role, page))
    })
}

trait Due {
    fn pop_front_if_due(&mut self, now: usize) -> Option<(usize, Place)>;
}

impl Due for VecDeque<(usize, Place)> {
    fn pop_front_if_due(&mut self, now: usize) -> Option<(usize, Place)> {
        match self.front() {
            Some((due, _)) if *due <= now => self.pop_front(),
            _ => None,
        }
    }
}

/// The roles of a trace.
pub fn roles(trace: &Trace) -> Vec<Role> {
    let mut learner = Learner::new(Settings::default());
    learner.attach(1, &trace.template);
    let known = trace.roles.iter();
    known
        .map(|(command, ordinal)| learner.role(1, command, *ordinal).unwrap())
        .collect()
}

fn place(roles: &[Role], role: usize, page: u64) -> Place {
    Place {
        role: roles[role],
        page,
    }
}

/// The learner as a policy.
pub struct Learned<'a> {
    pub learner: Learner,
    trace: &'a Trace,
    known: BTreeSet<u32>,
    /// Pages of all plans, and the plans that the cap shortened.
    pub pages: u64,
    pub capped: u64,
    pub cap: usize,
    now: Duration,
}

impl<'a> Learned<'a> {
    pub fn new(trace: &'a Trace, settings: Settings) -> Learned<'a> {
        Learned {
            learner: Learner::new(settings),
            trace,
            known: BTreeSet::new(),
            pages: 0,
            capped: 0,
            cap: CAP,
            now: Duration::ZERO,
        }
    }

    fn take(&mut self, plan: &Plan) -> Vec<Place> {
        self.pages += plan.pages;
        self.capped += u64::from(plan.capped);
        plan.places().collect()
    }
}

impl Policy for Learned<'_> {
    fn begins(&mut self, sandbox: u32, out: &[Run]) -> Vec<Place> {
        let id = u64::from(sandbox);
        if self.known.insert(sandbox) {
            self.learner.attach(id, &self.trace.template);
            for (number, (command, ordinal)) in self.trace.roles.iter().enumerate() {
                let role = self.learner.role(id, command, *ordinal).unwrap();
                assert_eq!(
                    role,
                    roles(self.trace)[number],
                    "roles are those of siblings"
                );
            }
        }
        self.now += Duration::from_secs(10);
        self.learner.resume(id, self.now);
        if !out.is_empty() {
            self.learner.out(id, out);
        }
        let plan = self.learner.plan(id, Trigger::FirstToken, self.cap);
        self.take(&plan)
    }

    fn tool(&mut self, sandbox: u32, tool: Option<&ToolName>) -> Vec<Place> {
        self.learner.tool_starts(sandbox.into(), tool, self.now);
        let plan = self
            .learner
            .plan(sandbox.into(), Trigger::ToolStart, self.cap);
        self.take(&plan)
    }

    fn demand(&mut self, sandbox: u32, seen: &[Seen]) -> Vec<Place> {
        self.learner.seen(sandbox.into(), seen);
        let plan = self.learner.plan(sandbox.into(), Trigger::Demand, WINDOW);
        self.take(&plan)
    }

    fn ends(
        &mut self,
        sandbox: u32,
        seen: &[Seen],
        touched: &BTreeSet<Place>,
        maps: &[(Place, u64)],
    ) {
        let id = u64::from(sandbox);
        self.learner.seen(id, seen);
        self.learner.turn_ends(id, self.now);
        let pages = maps.iter().flat_map(|(start, pages)| {
            (start.page..start.page + pages).map(|page| Place {
                role: start.role,
                page,
            })
        });
        let rest = pages.filter(|place| !touched.contains(place));
        let states = touched
            .iter()
            .map(|place| (*place, PageState::Accessed))
            .chain(rest.map(|place| (place, PageState::Out)));
        self.learner.wait_begins(id, self.now, states);
    }
}

/// Baseline: the pages touched last, so many of them.
pub struct Lru {
    pub pages: usize,
    stacks: BTreeMap<u32, Vec<Place>>,
    turn: Vec<Place>,
}

impl Lru {
    pub fn new(pages: usize) -> Lru {
        Lru {
            pages,
            stacks: BTreeMap::new(),
            turn: Vec::new(),
        }
    }
}

impl Policy for Lru {
    fn begins(&mut self, sandbox: u32, _: &[Run]) -> Vec<Place> {
        self.turn.clear();
        let stack = self.stacks.entry(sandbox).or_default();
        stack.iter().take(self.pages).copied().collect()
    }

    fn tool(&mut self, _: u32, _: Option<&ToolName>) -> Vec<Place> {
        Vec::new()
    }

    fn demand(&mut self, _: u32, seen: &[Seen]) -> Vec<Place> {
        self.turn.extend(seen.iter().map(|one| one.place));
        Vec::new()
    }

    fn ends(&mut self, sandbox: u32, _: &[Seen], touched: &BTreeSet<Place>, _: &[(Place, u64)]) {
        // Of hits nobody knows the order: they are older than the faults.
        let stack = self.stacks.entry(sandbox).or_default();
        let faulted: BTreeSet<Place> = self.turn.iter().copied().collect();
        let hits = touched.iter().filter(|place| !faulted.contains(place));
        let mut new: Vec<Place> = self.turn.iter().rev().chain(hits).copied().collect();
        new.extend(stack.iter().filter(|place| !touched.contains(place)));
        *stack = new;
    }
}

/// Baseline: after each demand fault the rest of the eight pages around it, at once, as readahead does
/// with `vm.page-cluster` 3 where the order of the slots is that of addresses.
pub struct Readahead;

impl Policy for Readahead {
    fn timing(&self) -> (usize, usize) {
        (1, 0)
    }

    fn begins(&mut self, _: u32, _: &[Run]) -> Vec<Place> {
        Vec::new()
    }

    fn tool(&mut self, _: u32, _: Option<&ToolName>) -> Vec<Place> {
        Vec::new()
    }

    fn demand(&mut self, _: u32, seen: &[Seen]) -> Vec<Place> {
        let around = |place: Place| {
            let start = place.page & !7;
            (start..start + 8).map(move |page| Place { page, ..place })
        };
        seen.iter().flat_map(|one| around(one.place)).collect()
    }

    fn ends(&mut self, _: u32, _: &[Seen], _: &BTreeSet<Place>, _: &[(Place, u64)]) {}
}
