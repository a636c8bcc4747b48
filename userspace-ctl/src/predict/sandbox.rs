// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What is known about one sandbox.

use std::collections::BTreeSet;

use super::bitmap::{Accessed, Extents};
use super::feedback::Figures;
use super::mixer::Sample;
use super::next_tool::NextTool;
use super::place::Role;
use super::sequential::Sequential;
use super::settings::{Pools, Settings};
use super::transitions::Recent;
use super::turn::Turn;
use super::working_set::WorkingSet;
use crate::{ObjectName, ToolName};

/// Most roles of a sandbox.
pub(super) const MAX_SANDBOX_ROLES: usize = 64;

/// Most pages in the set of a sandbox, however few there are: plans take time.
const MOST_OWN: usize = 32_768;

/// Where a sandbox is between two waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// It waits; what the last turn taught is learned.
    Waits,
    /// A turn is under way.
    Turn,
    /// The turn ended and is not learned yet: its access bitmap may follow.
    Ended,
}

#[derive(Debug)]
pub(super) struct Sandbox {
    pub(super) template: ObjectName,
    pub(super) roles: BTreeSet<Role>,
    pub(super) phase: Phase,
    pub(super) own: WorkingSet,
    pub(super) next: NextTool,
    pub(super) accessed: Accessed,
    /// The pages that there were when the wait began.
    pub(super) extents: Extents,
    /// Those of them that were out at the last look since: before the first plan of a wait, and before that of
    /// the turn after it.
    pub(super) out: Option<Extents>,
    pub(super) turn: Turn,
    pub(super) sequential: Sequential,
    pub(super) recent: Recent,
    pub(super) samples: Vec<Sample>,
    pub(super) most_samples: usize,
    /// The tool that runs, if one was named.
    pub(super) tool: Option<ToolName>,
    /// The last one that was named.
    pub(super) last_tool: Option<ToolName>,
    /// Tools started in this turn.
    pub(super) tools: u32,
    /// Turns that taught something.
    pub(super) turns: u32,
    pub(super) figures: Figures,
}

impl Sandbox {
    pub(super) fn new(template: ObjectName, settings: &Settings) -> Sandbox {
        Sandbox {
            template,
            roles: BTreeSet::new(),
            phase: Phase::Waits,
            own: WorkingSet::new(settings.own_half_life, 0),
            next: NextTool::default(),
            accessed: Accessed::default(),
            extents: Extents::default(),
            out: None,
            turn: Turn::default(),
            sequential: Sequential::default(),
            recent: Recent::default(),
            samples: Vec::new(),
            most_samples: 0,
            tool: None,
            last_tool: None,
            tools: 0,
            turns: 0,
            figures: Figures::default(),
        }
    }

    /// Room for one of so many sandboxes.
    pub(super) fn limit(&mut self, pools: &Pools, sandboxes: usize) {
        self.own.limit((pools.own / sandboxes).min(MOST_OWN));
        self.turn.limit((pools.turns / sandboxes).min(MOST_OWN * 2));
        self.accessed.limit(pools.accessed / sandboxes);
        self.extents.limit(pools.extents / sandboxes / 2);
        if let Some(out) = &mut self.out {
            out.limit(pools.extents / sandboxes / 2);
        }
        self.most_samples = pools.samples / sandboxes;
        self.samples.truncate(self.most_samples);
        self.samples.shrink_to_fit();
    }

    /// A page may be out: exactly, or as long as nobody looked, if it may exist.
    pub(super) fn may_be_out(&self, key: u64) -> bool {
        match &self.out {
            Some(out) => out.holds(key),
            None => self.extents.may_hold(key),
        }
    }

    /// Bytes that grow with what it is taught.
    pub(super) fn bytes(&self) -> usize {
        self.own.bytes()
            + self.turn.bytes()
            + self.accessed.len() * 16
            + self.extents.len() * 16
            + self.out.as_ref().map_or(0, Extents::len) * 16
            + self.samples.capacity() * size_of::<Sample>()
    }
}
