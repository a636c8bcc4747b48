// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Turns: what hints say about them, what they teach, and how they are measured.

use std::time::Duration;

use tracing::debug;

use super::core::{Core, Tools};
use super::sandbox::Sandbox;
use super::{states, Report};
use crate::governor::Id;
use crate::hint::Hint;
use crate::predict::{Latencies, Trigger};

/// First tools between two looks at the objective.
const LOOK: u32 = Latencies::ENOUGH as u32;

impl Core {
    pub(super) fn hint(&mut self, tools: Tools<'_>, id: Id, hint: &Hint) {
        let now = (tools.clock)();
        match hint {
            Hint::FirstToken => self.resumes(tools, id, now),
            Hint::ToolStart { tool } => {
                self.resumes(tools, id, now);
                self.learner.tool_starts(id, tool.as_ref(), now);
                if let Some(traces) = &mut self.traces {
                    traces.tool(id, tool.as_ref(), now);
                }
                if let Some(sandbox) = self.sandboxes.get_mut(&id) {
                    sandbox.tool_starts(now);
                    sandbox.read_soon(now, self.settings.scale);
                }
                // One that runs hears of it here; where none does the governor sees to it.
                let runs = self
                    .sandboxes
                    .get(&id)
                    .and_then(|s| s.progress.as_ref())
                    .is_some_and(|progress| !progress.is_planned_done());
                if runs && self.settings.on_tool_start {
                    self.plan(tools, id, Trigger::ToolStart, now);
                }
            }
            Hint::ToolEnd => {
                self.read(tools, id, now);
                self.first_tool_ended(id);
            }
            Hint::LlmWait { .. } => self.waits(tools, id, now),
            Hint::Done => {
                self.end(id);
                if let Some(sandbox) = self.sandboxes.get_mut(&id) {
                    sandbox.disarm(tools.device);
                }
            }
            Hint::MessageNear { .. } | Hint::Idle => {}
        }
    }

    /// A turn begins, unless one has.
    pub(super) fn resumes(&mut self, tools: Tools<'_>, id: Id, now: Duration) {
        self.arm(tools, id);
        self.read(tools, id, now);
        let Some(sandbox) = self.sandboxes.get_mut(&id) else {
            return;
        };
        if !sandbox.turn {
            sandbox.begin_turn(now);
        }
        self.learner.resume(id, now);
        if let Some(traces) = &mut self.traces {
            traces.begins(id, now);
        }
        sandbox.read_soon(now, self.settings.scale);
    }

    /// A turn ends: what it touched is learned, and what was accessed is read before it is taken out.
    pub(super) fn waits(&mut self, tools: Tools<'_>, id: Id, now: Duration) {
        self.end(id);
        self.read(tools, id, now);
        self.first_tool_ended(id);
        let Some(sandbox) = self.sandboxes.get_mut(&id) else {
            return self.reports.push(Report::Looked(id));
        };
        let turn = std::mem::replace(&mut sandbox.turn, false);
        sandbox.next_read = None;
        if !turn || !self.able || !self.settings.plans {
            // It waited before: what it had is out.
            sandbox.disarm(tools.device);
            return self.reports.push(Report::Looked(id));
        }
        let mut found = states::States::default();
        sandbox
            .table
            .look(tools.processes, &sandbox.target, &mut self.learner);
        // A trace tells of it, too.
        if self.settings.predictors.access_bitmap || self.traces.is_some() {
            let patience = states::patience(self.settings.scale);
            let over = || (tools.clock)().saturating_sub(now) > patience;
            match states::read(tools.device, id, &sandbox.table, &over) {
                Ok(states) => found = states,
                Err(error) => self.failed(id, &error),
            }
        } else {
            states::settle(tools.device, id, &sandbox.table);
        }
        if found.cut {
            // What was not seen would count as not there.
            found.pages.clear();
        }
        self.reports.push(Report::Looked(id));
        // What became of pages whose hit window the turn did not outlast.
        self.read(tools, id, now);
        let took = (tools.clock)().saturating_sub(now);
        debug!(
            id,
            pages = found.pages.len(),
            cut = found.cut,
            took_us = took.as_micros() as u64,
            "looked"
        );
        if let Some(sandbox) = self.sandboxes.get_mut(&id) {
            sandbox.table.let_go();
            // Nothing is touched in a wait, and a ring is memory.
            sandbox.disarm(tools.device);
            sandbox.end_turn(found.active());
            if let Some(traces) = &mut self.traces {
                traces.ends(id, &sandbox.template, &found.pages);
            }
        }
        self.learner.turn_ends(id, now);
        self.learner.wait_begins(id, now, found.pages);
        let head = self.learner.head(id);
        if let Some(sandbox) = self.sandboxes.get_mut(&id) {
            sandbox.shown.pages_at_every_resume = Some(head);
        }
        self.charge(tools, id);
        self.changed(id);
    }

    /// The first tool of a turn has ended, or the turn: for how long did it wait for pages?
    pub(super) fn first_tool_ended(&mut self, id: Id) {
        let stall = self
            .sandboxes
            .get_mut(&id)
            .and_then(Sandbox::first_tool_ended);
        let Some(stall) = stall else {
            return;
        };
        self.changed(id);
        self.latencies.push(stall);
        self.unseen += 1;
        let Some(p99) = self.latencies.p99().filter(|_| self.unseen >= LOOK) else {
            return;
        };
        self.unseen = 0;
        let before = self.scope.value();
        let scope = self.scope.observe(p99);
        if scope != before {
            self.reports.push(Report::Scope(scope));
        }
        self.reports
            .extend(self.alarm.first_tool(p99).map(Report::Alarm));
    }

    /// What the workers took for a sandbox since the last look.
    pub(super) fn charge(&mut self, tools: Tools<'_>, id: Id) {
        let Some(sandbox) = self.sandboxes.get_mut(&id) else {
            return;
        };
        let spent = sandbox.spent(tools.sysfs);
        if spent > 0 {
            self.figures.cost_ns += spent;
            self.reports
                .push(Report::Spent(Duration::from_nanos(spent)));
        }
    }
}
