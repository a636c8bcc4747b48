// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Plans: made when the governor says so, or when faults say what follows, and carried out step by step.

use std::time::Duration;

use tracing::debug;

use super::core::{Core, Tools};
use super::progress::{Progress, Standing, Times};
use super::sandbox::Sandbox;
use super::{states, Depth, Report};
use crate::governor::Id;
use crate::predict::{Basis, Plan, Trigger, MAX_WINDOW, PLAN_FACTOR};

impl Core {
    /// Pages of a sandbox are to come back.
    pub(super) fn restore(&mut self, tools: Tools<'_>, id: Id, trigger: Trigger, depth: Depth) {
        let now = (tools.clock)();
        // In a wait nothing is recorded, but what becomes of restored pages is.
        self.arm(tools, id);
        if !self.sandboxes.get(&id).is_some_and(Sandbox::is_armed) {
            return self.reports.push(Report::Unable(id, trigger));
        }
        if trigger == Trigger::ToolStart && self.sandboxes.get(&id).is_some_and(Sandbox::is_back) {
            // Nothing is out: a plan would only take CPU time, of which the tool needs all it can get.
            return self.reports.push(Report::Restored(id));
        }
        let basis = self.plan(tools, id, trigger, now);
        let known = basis.is_some_and(|basis| basis != Basis::Nothing);
        if depth == Depth::Everything && known && !self.restore_rest(tools, id, now) {
            // The plan goes on, and everything comes back otherwise.
            return self.reports.push(Report::Unable(id, trigger));
        }
        let Some(sandbox) = self.sandboxes.get_mut(&id) else {
            return;
        };
        match (&mut sandbox.progress, basis) {
            (Some(progress), _) if !progress.is_planned_done() => sandbox.governed = true,
            (None, Some(Basis::Nothing)) => self.reports.push(Report::Unable(id, trigger)),
            _ => self.reports.push(Report::Restored(id)),
        }
    }

    /// Makes a plan and begins with it.
    pub(super) fn plan(
        &mut self,
        tools: Tools<'_>,
        id: Id,
        trigger: Trigger,
        now: Duration,
    ) -> Option<Basis> {
        let (least, most) = self.settings.window;
        let sandbox = self.sandboxes.get_mut(&id)?;
        let window = sandbox
            .window(self.settings.hits)
            .clamp(least, most.min(MAX_WINDOW));
        let cap = match trigger {
            Trigger::Demand => window as usize,
            _ => self
                .settings
                .plan_pages
                .min((window * PLAN_FACTOR) as usize),
        };
        // The tool may be a child that was not there when the first token came.
        if trigger == Trigger::ToolStart || sandbox.table.held().next().is_none() {
            sandbox
                .table
                .look(tools.processes, &sandbox.target, &mut self.learner);
        }
        self.look_what_is_out(tools, id);
        let plan = self.learner.plan(id, trigger, cap);
        let basis = plan.basis;
        debug!(
            id,
            ?trigger,
            ?basis,
            pages = plan.pages,
            wanted = plan.wanted,
            "plan"
        );
        if plan.pages > 0 {
            self.count(id, &plan);
            let sandbox = self.sandboxes.get_mut(&id)?;
            match &mut sandbox.progress {
                Some(progress) => progress.add(plan, trigger, now),
                None => {
                    let mut progress = Progress::new(window, now);
                    progress.append(plan.runs, trigger);
                    sandbox.progress = Some(progress);
                }
            }
            self.go_on(tools, id, now);
        }
        Some(basis)
    }

    /// Before the first pages come back in a wait, and in the turn after it.
    fn look_what_is_out(&mut self, tools: Tools<'_>, id: Id) {
        let unlooked = self.learner.unlooked(id);
        let Some(sandbox) = self.sandboxes.get(&id).filter(|_| !unlooked.is_empty()) else {
            return;
        };
        let begun = (tools.clock)();
        let patience = states::patience(self.settings.scale);
        let over = || (tools.clock)().saturating_sub(begun) > patience;
        match states::out(tools.device, id, &sandbox.table, &unlooked, &over) {
            Ok(None) => {}
            Ok(Some(out)) => {
                if let Some(traces) = &mut self.traces {
                    traces.out(id, &sandbox.template, &self.learner, &out);
                }
                self.learner.out(id, &out);
            }
            Err(error) => debug!(id, "{error}"),
        }
    }

    /// After the plan comes what else there is. False: that is not known.
    fn restore_rest(&mut self, tools: Tools<'_>, id: Id, now: Duration) -> bool {
        let Some(runs) = self.learner.rest(id) else {
            return false;
        };
        let Some(sandbox) = self.sandboxes.get_mut(&id) else {
            return true;
        };
        // Until it ends before its time.
        sandbox.whole = true;
        if runs.is_empty() {
            return true;
        }
        let progress = &mut sandbox.progress;
        let progress = progress.get_or_insert_with(|| Progress::new(MAX_WINDOW, now));
        progress.append(runs, Trigger::Rest);
        self.go_on(tools, id, now);
        true
    }

    pub(super) fn count(&mut self, id: Id, plan: &Plan) {
        self.changed(id);
        let own = self
            .sandboxes
            .get_mut(&id)
            .map(|sandbox| &mut sandbox.shown);
        for shown in [Some(&mut self.total), own].into_iter().flatten() {
            shown.plans += 1;
            shown.planned_pages += plan.pages;
            shown.capped_plans += u64::from(plan.capped);
        }
    }

    /// Asks for more of a plan.
    pub(super) fn go_on(&mut self, tools: Tools<'_>, id: Id, now: Duration) {
        let Some(sandbox) = self.sandboxes.get_mut(&id) else {
            return;
        };
        let Some(progress) = &mut sandbox.progress else {
            return;
        };
        let before = (progress.queued, progress.queued_rest);
        let times = Times {
            gap: sandbox.gap,
            ..self.settings.times
        };
        let standing = progress.go_on(tools.device, id, &sandbox.table, &times, now);
        let (queued, rest) = (progress.queued, progress.queued_rest);
        for shown in [&mut sandbox.shown, &mut self.total] {
            shown.queued_pages += queued - before.0;
            shown.rest_pages += rest - before.1;
        }
        // Others may begin: what else there is does not keep their plans waiting.
        if progress.is_planned_done() && std::mem::replace(&mut sandbox.governed, false) {
            self.reports.push(Report::Restored(id));
        }
        match standing {
            Ok(Standing::Going) => {}
            Ok(Standing::Done | Standing::Late) => self.end(id),
            Err(error) => {
                sandbox.whole = false;
                self.failed(id, &error);
                self.end(id);
            }
        }
    }

    /// What runs for a sandbox ends here.
    pub(super) fn end(&mut self, id: Id) {
        let Some(sandbox) = self.sandboxes.get_mut(&id) else {
            return;
        };
        let Some(progress) = sandbox.progress.take() else {
            return;
        };
        (self.changed, sandbox.changed) = (true, true);
        sandbox.whole &= progress.is_whole();
        let rest: Vec<_> = progress.left().collect();
        sandbox.shown.dropped_pages += rest.len() as u64;
        self.total.dropped_pages += rest.len() as u64;
        self.learner.dropped(id, rest);
        if std::mem::replace(&mut sandbox.governed, false) {
            self.reports.push(Report::Restored(id));
        }
    }

    /// The ring of a sandbox has something.
    pub fn ring(&mut self, tools: Tools<'_>, id: Id) {
        let now = (tools.clock)();
        if let Some(sandbox) = self.sandboxes.get(&id) {
            sandbox.silence();
        }
        self.follow(tools, id, now);
    }

    /// Reads, and restores what follows what was faulted in.
    pub(super) fn follow(&mut self, tools: Tools<'_>, id: Id, now: Duration) {
        let demand = self.read(tools, id, now);
        let turn = self.sandboxes.get(&id).is_some_and(|sandbox| sandbox.turn);
        let predictors = &self.settings.predictors;
        if demand > 0 && turn && (predictors.sequential || predictors.transitions) {
            self.plan(tools, id, Trigger::Demand, now);
        }
    }

    /// What is due by the clock.
    pub fn keep_time(&mut self, tools: Tools<'_>) {
        let now = (tools.clock)();
        let due = |at: Option<Duration>| at.is_some_and(|at| at <= now);
        let ids: Vec<Id> = self.sandboxes.keys().copied().collect();
        for id in ids {
            let Some(sandbox) = self.sandboxes.get_mut(&id) else {
                continue;
            };
            let goes_on = due(sandbox.progress.as_ref().map(|progress| progress.next));
            if due(sandbox.next_read) && sandbox.is_back() {
                // There are no faults that anything could follow; should there be many, the ring tells.
                sandbox.next_read = None;
            } else if due(sandbox.next_read) {
                sandbox.read_later(now, self.settings.sample_period);
                self.follow(tools, id, now);
                self.charge(tools, id);
            }
            if goes_on {
                self.go_on(tools, id, now);
            }
        }
    }

    /// When [`Core::keep_time`] is to be called.
    pub fn next(&self) -> Option<Duration> {
        let each = self.sandboxes.values().flat_map(|sandbox| {
            [
                sandbox.next_read,
                sandbox.progress.as_ref().map(|progress| progress.next),
            ]
        });
        each.flatten().min()
    }
}
