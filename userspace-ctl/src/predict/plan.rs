// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What a plan is.

use super::place::{Place, Role};

/// Why a plan is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// The first token of the answer is there.
    FirstToken,
    /// A message is about to arrive.
    Message,
    /// A tool starts; it was named by [`tool_starts`](super::Learner::tool_starts).
    ToolStart,
    /// A long wait is about to end.
    MidWait,
    /// The machine has time to spare.
    Background,
    /// Pages were faulted in on demand, told by [`seen`](super::Learner::seen): what follows them?
    /// The cap should be the window, as such a plan is made often.
    Demand,
    /// The plan of a turn is carried out: what else is there? See [`rest`](super::Learner::rest).
    Rest,
}

/// A predictor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Predictor {
    /// Sequential and strided runs of the turn's demand faults.
    Sequential = 0,
    /// What followed a page when it was faulted in before.
    Transitions = 1,
    /// What the tool, and the sandbox, touched in earlier turns.
    WorkingSet = 2,
    /// What had been accessed when the wait began.
    AccessBitmap = 3,
}

impl Predictor {
    /// All, in the order of their numbers.
    pub const ALL: [Predictor; 4] = [
        Predictor::Sequential,
        Predictor::Transitions,
        Predictor::WorkingSet,
        Predictor::AccessBitmap,
    ];

    /// The name in settings and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Predictor::Sequential => "sequential",
            Predictor::Transitions => "transitions",
            Predictor::WorkingSet => "working_set",
            Predictor::AccessBitmap => "access_bitmap",
        }
    }
}

/// How a plan came to be what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Basis {
    /// The predictors were sure enough of its pages.
    Learned,
    /// They were sure of nothing: a few of the likeliest pages, so that they learn.
    Probe,
    /// Nothing was learned yet: what was accessed last.
    LastAccessed,
    /// There is nothing to go by: the plan is empty.
    Nothing,
    /// Every predictor is switched off: the plan is empty.
    Off,
}

/// Neighbouring pages of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The first page.
    pub start: Place,
    /// How many, at least 1.
    pub pages: u64,
}

impl Run {
    /// Whose pages.
    pub fn role(&self) -> Role {
        self.start.role
    }
}

/// What to restore, and in which order.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Runs in the order of expected benefit; no page twice.
    pub runs: Vec<Run>,
    /// Pages in them.
    pub pages: u64,
    /// Pages that the plan would have without the cap.
    pub wanted: u64,
    /// The cap left pages out: `wanted` is greater than `pages`.
    pub capped: bool,
    /// Pages at the beginning that are touched at nearly every resume.
    pub head: u64,
    /// For each [`Predictor`], by its number: pages that it is among the proposers of.
    pub by: [u64; 4],
    /// Share of the pages that will be touched, as the mixer expects; 0 for an empty plan.
    pub expected_hit_ratio: f64,
    /// What it rests on.
    pub basis: Basis,
}

impl Plan {
    /// A plan without pages.
    pub(super) fn empty(basis: Basis) -> Plan {
        Plan {
            runs: Vec::new(),
            pages: 0,
            wanted: 0,
            capped: false,
            head: 0,
            by: [0; 4],
            expected_hit_ratio: 0.0,
            basis,
        }
    }

    /// Every page, in the order of the plan.
    pub fn places(&self) -> impl Iterator<Item = Place> + '_ {
        self.runs.iter().flat_map(|run| {
            (0..run.pages).map(|page| Place {
                role: run.start.role,
                page: run.start.page + page,
            })
        })
    }
}

/// Appends a page to runs, whose last it may prolong.
pub(super) fn push(runs: &mut Vec<Run>, place: Place) {
    match runs.last_mut() {
        Some(run) if run.start.role == place.role && run.start.page + run.pages == place.page => {
            run.pages += 1;
        }
        _ => runs.push(Run {
            start: place,
            pages: 1,
        }),
    }
}
