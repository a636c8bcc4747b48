// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What the restorer does, without its thread: orders and signals of rings go in, reports come out, and
//! the time is told. What it touches are a device and processes, for which tests stand in.

use std::collections::BTreeMap;
use std::time::Duration;

use tracing::{debug, warn};

use super::plans;
use super::sandbox::Sandbox;
use super::settings::Settings;
use super::shown::{Board, Shown};
use super::traces::Traces;
use super::{Order, Report};
use crate::device::{Device, Failure};
use crate::governor::Id;
use crate::hot::process::Processes;
use crate::predict::{Alarm, Figures, Latencies, Learner, Scope};
use crate::sysfs::Sysfs;
use crate::ObjectName;

/// What all of it is done with.
#[derive(Clone, Copy)]
pub struct Tools<'a> {
    /// The module.
    pub device: &'a dyn Device,
    /// Processes of sandboxes.
    pub processes: &'a dyn Processes,
    /// Files of the module.
    pub sysfs: &'a Sysfs,
    /// The clock of the module's records.
    pub clock: &'a dyn Fn() -> Duration,
}

/// Templates that are remembered before those are looked for that are gone. The module has 256 at most.
const MOST_INSTANCES: usize = 512;

/// All that the restorer knows.
pub struct Core {
    pub(super) settings: Settings,
    pub(super) learner: Learner,
    pub(super) sandboxes: BTreeMap<Id, Sandbox>,
    /// Which template of its name it is that something was learned about.
    instances: BTreeMap<ObjectName, u64>,
    /// The module records faults and carries out plans.
    pub(super) able: bool,
    /// Counts of all sandboxes, but for what is in the figures.
    pub(super) total: Shown,
    /// Something is to be shown anew.
    pub(super) changed: bool,
    pub(super) figures: Figures,
    pub(super) reports: Vec<Report>,
    pub(super) alarm: Alarm,
    pub(super) traces: Option<Traces>,
    pub(super) scope: Scope,
    pub(super) latencies: Latencies,
    /// First tools since the objective was last looked at.
    pub(super) unseen: u32,
}

impl Core {
    /// Knows nothing yet.
    pub fn new(settings: Settings) -> Core {
        Core {
            learner: Learner::new(settings.predictors.clone()),
            sandboxes: BTreeMap::new(),
            instances: BTreeMap::new(),
            able: settings.plans,
            total: Shown::default(),
            changed: true,
            figures: Figures::default(),
            reports: Vec::new(),
            alarm: Alarm::new(Some(settings.objective)),
            traces: settings.trace_dir.clone().map(Traces::new),
            scope: Scope::new(settings.objective),
            latencies: Latencies::default(),
            unseen: 0,
            settings,
        }
    }

    /// Does what it is told.
    pub fn order(&mut self, tools: Tools<'_>, order: Order) {
        match order {
            Order::Attach(target, template) => self.attach(tools, target, &template),
            Order::Detach(id) => {
                self.end(id);
                self.sandboxes.remove(&id);
                self.learner.detach(id);
            }
            Order::Hint(id, hint) => self.hint(tools, id, &hint),
            Order::Restore(id, trigger, depth) => self.restore(tools, id, trigger, depth),
            Order::End(id) => self.end(id),
            Order::Taken(id) => {
                if let Some(sandbox) = self.sandboxes.get_mut(&id) {
                    sandbox.whole = false;
                }
            }
            Order::Settings(settings) => self.set(tools, *settings),
            Order::Plans(token, plans) => {
                let response = plans::answer(&mut self.learner, &plans);
                self.reports.push(Report::Answer(token, response));
            }
        }
    }

    /// What signals of rings come by.
    pub fn bells(&self) -> impl Iterator<Item = (Id, &std::os::fd::OwnedFd)> {
        self.sandboxes
            .iter()
            .map(|(id, sandbox)| (*id, sandbox.bell()))
    }

    /// What came of it since the last call.
    pub fn reports(&mut self) -> Vec<Report> {
        std::mem::take(&mut self.reports)
    }

    /// Brings what `status` shows up to date: what changed since the last call.
    pub fn show(&mut self, board: &mut Board) {
        board.able = self.able;
        if std::mem::take(&mut self.changed) {
            self.total.take(&self.figures, self.latencies.p99());
            board.total = self.total.clone();
            board.scope = self.scope.value();
            board.alarm_hit_ratio = self.alarm.is_low();
            board.alarm_first_tool = self.alarm.is_late();
            board.usual_hit_ratio = self.alarm.usual();
            board.learned_bytes = self.learner.memory();
        }
        let sandboxes = &self.sandboxes;
        board.sandboxes.retain(|id, _| sandboxes.contains_key(id));
        for (id, sandbox) in &mut self.sandboxes {
            if std::mem::take(&mut sandbox.changed) {
                board.sandboxes.insert(*id, sandbox.shown());
            }
        }
    }

    /// Something of a sandbox is to be shown anew.
    pub(super) fn changed(&mut self, id: Id) {
        self.changed = true;
        if let Some(sandbox) = self.sandboxes.get_mut(&id) {
            sandbox.changed = true;
        }
    }

    fn set(&mut self, tools: Tools<'_>, settings: Settings) {
        let before = std::mem::replace(&mut self.settings, settings);
        if before.trace_dir != self.settings.trace_dir {
            self.traces = self.settings.trace_dir.clone().map(Traces::new);
        }
        if before.predictors != self.settings.predictors {
            self.learn_anew();
        }
        if before.objective != self.settings.objective {
            self.alarm = Alarm::new(Some(self.settings.objective));
            self.scope = Scope::new(self.settings.objective);
            self.reports.push(Report::Scope(1.0));
        }
        if before.records != self.settings.records || before.plans != self.settings.plans {
            let ids: Vec<Id> = self.sandboxes.keys().copied().collect();
            for id in ids {
                // One that waits has none.
                if self
                    .sandboxes
                    .get(&id)
                    .is_some_and(|s| s.turn || s.is_armed())
                {
                    self.arm(tools, id);
                }
            }
        }
    }

    /// Other predictors begin without knowledge.
    fn learn_anew(&mut self) {
        let ids: Vec<Id> = self.sandboxes.keys().copied().collect();
        ids.iter().for_each(|id| self.end(*id));
        self.learner = Learner::new(self.settings.predictors.clone());
        for (id, sandbox) in &mut self.sandboxes {
            sandbox.table = Default::default();
            self.learner.attach(*id, &sandbox.template);
        }
    }

    fn attach(&mut self, tools: Tools<'_>, target: crate::hot::Target, template: &ObjectName) {
        let id = target.id;
        self.meet(tools, template);
        let known = self.sandboxes.get(&id);
        if known.is_none_or(|sandbox| sandbox.template != *template) {
            match Sandbox::new(target, template.clone()) {
                Ok(sandbox) => self.sandboxes.insert(id, sandbox),
                Err(error) => return warn!("no faults are recorded of {id}: {error}"),
            };
            self.learner.attach(id, template);
        }
        // An attachment begins without a ring. There is one when a turn begins.
        if let Some(sandbox) = self.sandboxes.get_mut(&id) {
            (sandbox.armed, sandbox.fresh) = (0, true);
        }
    }

    /// What was learned about a template of that name is not true of one that was made after it, which may be
    /// another tenant's.
    fn meet(&mut self, tools: Tools<'_>, template: &ObjectName) {
        let Some(instance) = tools.sysfs.template_instance(template) else {
            return;
        };
        let before = self.instances.insert(template.clone(), instance);
        if before.is_some_and(|before| before != instance) {
            // What is left of the former one's sandboxes teaches nothing about those of this one.
            let of_former = self
                .sandboxes
                .iter()
                .filter(|(_, sandbox)| sandbox.template == *template);
            let former: Vec<Id> = of_former.map(|(id, _)| *id).collect();
            for id in former {
                self.end(id);
                self.sandboxes.remove(&id);
                self.learner.detach(id);
            }
            self.learner.forget(template);
        }
        // Those that are gone; what was learned about them would be found under their names.
        if self.instances.len() > MOST_INSTANCES {
            let learner = &mut self.learner;
            self.instances.retain(|name, instance| {
                let stays = tools.sysfs.template_instance(name) == Some(*instance);
                if !stays {
                    learner.forget(name);
                }
                stays
            });
        }
    }

    /// Records from now on, if that is wanted; a turn begins, or pages are to come back in a wait.
    pub(super) fn arm(&mut self, tools: Tools<'_>, id: Id) {
        let Some(sandbox) = self.sandboxes.get_mut(&id) else {
            return;
        };
        if !self.settings.plans {
            return sandbox.disarm(tools.device);
        }
        if sandbox.armed == self.settings.records {
            return;
        }
        match sandbox.arm(tools.device, self.settings.records) {
            Ok(()) => self.able = true,
            Err(error) => self.failed(id, &error),
        }
    }

    /// The module did not take something.
    pub(super) fn failed(&mut self, id: Id, error: &Failure) {
        let older = error.errno() == Some(libc::ENOTTY);
        if let Some(sandbox) = self.sandboxes.get_mut(&id) {
            sandbox.armed = 0;
        }
        if older && std::mem::replace(&mut self.able, false) {
            warn!("the module records no faults: all that is out comes back on first-token; a newer one does better");
        }
        debug!(id, "{error}");
    }
}
