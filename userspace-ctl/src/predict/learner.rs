// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The learner: what the daemon speaks to.

use std::collections::BTreeMap;
use std::time::Duration;

use super::bitmap::Extents;
use super::feedback::Figures;
use super::mixer::When;
use super::place::{Place, Role, Roles, Seen, What, NO_ROLE};
use super::plan::{push, Basis, Plan, Predictor, Run, Trigger};
use super::propose::{after_faults, ahead, beginning, head, sample};
use super::sandbox::{Phase, Sandbox, MAX_SANDBOX_ROLES};
use super::settings::{Pools, Settings};
use super::template::Templates;
use super::transitions::Transitions;
use super::turn::{ASKED, BY_TOOL, MISSED, TOUCHED};
use super::weigh::{choose, mark_head, Reach};
use crate::governor::Id;
use crate::{ObjectName, ToolName};

/// State of a page when a wait begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageState {
    /// In memory, and accessed since its accessed bit was last cleared.
    Accessed,
    /// In memory.
    Resident,
    /// Swapped out.
    Out,
}

/// All knowledge about all sandboxes.
#[derive(Debug)]
pub struct Learner {
    settings: Settings,
    pools: Pools,
    roles: Roles,
    pub(super) templates: Templates,
    transitions: Transitions,
    sandboxes: BTreeMap<Id, Sandbox>,
    figures: Figures,
}

impl Learner {
    /// Knows nothing yet.
    pub fn new(settings: Settings) -> Learner {
        let pools = Pools::of(settings.memory);
        let mut learner = Learner {
            settings,
            pools,
            roles: Roles::default(),
            templates: Templates::default(),
            transitions: Transitions::default(),
            sandboxes: BTreeMap::new(),
            figures: Figures::default(),
        };
        learner.templates.limit(pools.tools);
        learner.transitions.limit(pools.transitions);
        learner
    }

    /// The settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The role of a process: its command, and which of the sandbox's processes of that command it is,
    /// counted from 0 in the order of their start. It stays the same number while the sandbox is
    /// attached; ask anew for other sandboxes. `None`: the sandbox is not attached, has 64 roles already,
    /// or all sandboxes together have too many.
    pub fn role(&mut self, id: Id, command: &str, ordinal: u16) -> Option<Role> {
        let full = self.sandboxes.get(&id)?.roles.len() >= MAX_SANDBOX_ROLES;
        let mut role = self.roles.get(command, ordinal);
        if role.is_none() {
            self.forget_roles();
            role = self.roles.get(command, ordinal);
        }
        let role = role?;
        let roles = &mut self.sandboxes.get_mut(&id)?.roles;
        if full && !roles.contains(&role) {
            return None;
        }
        roles.insert(role);
        Some(role)
    }

    /// Command and ordinal of a role.
    pub fn role_name(&self, role: Role) -> Option<(&str, u16)> {
        self.roles.name(role)
    }

    /// A sandbox is there, cloned from a template. What its siblings taught is for it, too. Once more
    /// for the same one: what it taught about itself is forgotten.
    pub fn attach(&mut self, id: Id, template: &ObjectName) {
        self.detach(id);
        self.templates.get(template).sandboxes += 1;
        let sandbox = Sandbox::new(template.clone(), &self.settings);
        self.sandboxes.insert(id, sandbox);
        let count = self.sandboxes.len();
        if count.is_power_of_two() {
            // All have the same room: what there is for the next power of two.
            let pools = self.pools;
            for sandbox in self.sandboxes.values_mut() {
                sandbox.limit(&pools, count * 2);
            }
        } else if let Some(sandbox) = self.sandboxes.get_mut(&id) {
            sandbox.limit(&self.pools, count.next_power_of_two());
        }
    }

    /// A sandbox is gone. What it taught about its template stays.
    pub fn detach(&mut self, id: Id) {
        if let Some(sandbox) = self.sandboxes.remove(&id) {
            self.templates.get(&sandbox.template).sandboxes -= 1;
        }
    }

    /// A template was made anew: what is known about its sandboxes' addresses is no longer true.
    pub fn forget(&mut self, template: &ObjectName) {
        if let Some(space) = self.templates.forget(template) {
            self.transitions.retain(|of, _| of != space);
        }
    }

    /// A wait begins, after [`Self::turn_ends`]: all anonymous pages of the sandbox's processes as they
    /// are before they are taken out. None at all, if that is not known: what the turn touched stands in.
    ///
    /// The accessed bits must have been cleared when the last wait began, at the latest: they count as
    /// touched by the turn.
    pub fn wait_begins(
        &mut self,
        id: Id,
        at: Duration,
        pages: impl IntoIterator<Item = (Place, PageState)>,
    ) {
        let _ = at;
        let most = self.pools.turns;
        let Some(sandbox) = self.sandboxes.get_mut(&id) else {
            return;
        };
        let mut accessed = Vec::new();
        let mut all = Vec::new();
        for (place, state) in pages.into_iter().take(most) {
            let Some(key) = place.key() else { continue };
            all.push(key);
            if state == PageState::Accessed {
                accessed.push(key);
            }
        }
        for keys in [&mut accessed, &mut all] {
            keys.sort();
            keys.dedup();
        }
        let out = sandbox.out.take();
        if sandbox.phase == Phase::Ended {
            // What was not out, as it is new, or another one's, would be there anyway.
            // When it was touched, nobody knows: of several tools it may have been any.
            let by = if sandbox.tools > 1 { 0 } else { BY_TOOL };
            let turn = &mut sandbox.turn;
            for &key in &accessed {
                let was_out = out.as_ref().is_none_or(|out| out.holds(key));
                if was_out || turn.flags(key) & ASKED != 0 {
                    turn.add(key, TOUCHED | by);
                }
            }
        }
        match all.is_empty() {
            true => sandbox.extents.clear(),
            false => sandbox.extents.set(&all),
        }
        self.learn(id, (!all.is_empty()).then_some(accessed));
    }

    /// The pages that there were when the wait began, where it is not known yet which of them are out. None
    /// when there are too many to know them.
    pub fn unlooked(&self, id: Id) -> Vec<Run> {
        let sandbox = self.sandboxes.get(&id);
        let sandbox = sandbox.filter(|sandbox| sandbox.out.is_none() && sandbox.extents.is_exact());
        let ranges = sandbox.iter().flat_map(|sandbox| sandbox.extents.ranges());
        let run = |&(first, end): &(u64, u64)| Run {
            start: Place::from_key(first),
            pages: end - first,
        };
        ranges.map(run).collect()
    }

    /// The pages that are out before the first plan of a wait, and again before the first one of the turn after
    /// it: in the order of [`Self::unlooked`]. Only these are planned, and only they can be touched by the
    /// turn: others are shared with the template, or could not be taken.
    pub fn out(&mut self, id: Id, runs: &[Run]) {
        let room = self.pools.extents / self.sandboxes.len().next_power_of_two() / 2;
        if let Some(sandbox) = self.sandboxes.get_mut(&id) {
            let mut out = Extents::default();
            out.limit(room);
            out.set_runs(
                runs.iter()
                    .filter_map(|run| Some((run.start.key()?, run.pages))),
            );
            // What was restored in the wait and taken again, or not restored, may be asked for again.
            for key in sandbox.turn.with(ASKED) {
                if out.holds(key) {
                    sandbox.turn.remove(key, ASKED);
                }
            }
            sandbox.out = Some(out);
        }
    }

    /// A turn begins: the first token is there. A message that is near is no turn yet: plan with
    /// [`Trigger::Message`].
    pub fn resume(&mut self, id: Id, at: Duration) {
        let _ = at;
        self.learn(id, None);
        let Some(sandbox) = self.sandboxes.get_mut(&id) else {
            return;
        };
        if sandbox.phase == Phase::Waits {
            sandbox.phase = Phase::Turn;
            // What a plan in the wait found may have changed since.
            sandbox.out = None;
            sandbox.tool = None;
            sandbox.tools = 0;
            sandbox.sequential.clear();
            self.chain(id);
        }
    }

    /// A tool starts; `None`: nobody says which. Begins a turn where none was begun.
    pub fn tool_starts(&mut self, id: Id, tool: Option<&ToolName>, at: Duration) {
        self.resume(id, at);
        self.tool_ends(id);
        let Some(sandbox) = self.sandboxes.get_mut(&id) else {
            return;
        };
        sandbox.tools += 1;
        sandbox.tool = tool.cloned();
        if let Some(tool) = tool {
            let before = sandbox.last_tool.replace(tool.clone());
            sandbox.next.learn(before.as_ref(), tool);
            let template = self.templates.get(&sandbox.template);
            template.next.learn(before.as_ref(), tool);
        }
        self.chain(id);
    }

    /// Records of the sandbox's ring, in their order. What comes outside of a turn counts for the next.
    ///
    /// A hit says that the page was touched, which is what a working set is made of: without the plan
    /// it would have been a demand fault. It does not say when, so runs and transitions learn from
    /// demand faults only. A miss is a page that the turn did not touch.
    pub fn seen(&mut self, id: Id, seen: &[Seen]) {
        let Some(sandbox) = self.sandboxes.get_mut(&id) else {
            return;
        };
        let template = self.templates.find(&sandbox.template);
        let space = template.map_or(0, |template| template.space);
        sandbox.figures.count(seen);
        self.figures.count(seen);
        for one in seen {
            let Some(key) = one.place.key() else { continue };
            let asked = sandbox.turn.flags(key) & ASKED != 0;
            match one.what {
                What::Demand => {
                    sandbox.turn.add(key, TOUCHED | BY_TOOL);
                    if self.settings.sequential {
                        sandbox.sequential.demand(key, one.thread);
                    }
                    if self.settings.transitions {
                        let recent = &mut sandbox.recent;
                        self.transitions.demand(space, recent, key, one.thread);
                    }
                }
                // Results of what an earlier turn asked for are no news of this one.
                What::Hit if asked => sandbox.turn.add(key, TOUCHED | BY_TOOL),
                What::Miss if asked => sandbox.turn.add(key, MISSED),
                What::Hit | What::Miss => {}
            }
        }
    }

    /// A turn ends: the agent waits again. All records of the turn must have been told.
    pub fn turn_ends(&mut self, id: Id, at: Duration) {
        let _ = at;
        if let Some(sandbox) = self.sandboxes.get_mut(&id) {
            if sandbox.phase == Phase::Turn {
                sandbox.phase = Phase::Ended;
            }
        }
    }

    /// What to restore now, at most `cap` pages. Pages that an earlier plan of the turn had, and that
    /// were seen in it, are left out. The pages count as asked for: what is not carried out must
    /// be given back by [`Self::dropped`].
    pub fn plan(&mut self, id: Id, trigger: Trigger, cap: usize) -> Plan {
        self.learn(id, None);
        let Some(sandbox) = self.sandboxes.get_mut(&id) else {
            return Plan::empty(Basis::Nothing);
        };
        if !Predictor::ALL.iter().any(|&p| self.settings.is_on(p)) {
            return Plan::empty(Basis::Off);
        }
        let Some(template) = self.templates.find(&sandbox.template) else {
            return Plan::empty(Basis::Nothing);
        };
        let demand = trigger == Trigger::Demand;
        let proposals = match demand {
            true => after_faults(sandbox, template, &self.transitions, cap),
            false => ahead(sandbox, template, &self.transitions, &self.settings),
        };
        let turn = &sandbox.turn;
        let mut candidates = proposals.weigh(&template.mixer, When::of(trigger), |key| {
            turn.flags(key) & (ASKED | TOUCHED) == 0 && sandbox.may_be_out(key)
        });
        mark_head(&mut candidates, head(sandbox, template));
        sample(sandbox, &candidates, demand);
        let known = template.set(None).is_some_and(|set| set.turns() > 0.0);
        let reach = Reach {
            cap,
            untaught: sandbox.turns == 0 && !known,
            probe: if demand { 0 } else { self.settings.probe },
        };
        let plan = choose(&mut candidates, reach, &self.settings);
        for candidate in &candidates[..plan.pages as usize] {
            sandbox.turn.add(candidate.key, ASKED);
        }
        plan
    }

    /// What else is out, by address, when the plans of the turn are carried out: nobody expects it to be
    /// touched, and these pages do not count as asked for. `None`: it is not known what is out.
    pub fn rest(&self, id: Id) -> Option<Vec<Run>> {
        let sandbox = self.sandboxes.get(&id)?;
        let mut runs = Vec::new();
        for key in sandbox.out.as_ref()?.keys()? {
            if sandbox.turn.flags(key) & (ASKED | TOUCHED) == 0 {
                push(&mut runs, Place::from_key(key));
            }
        }
        Some(runs)
    }

    /// A plan, or a part of one, was not carried out: its pages may be planned again in this turn.
    pub fn dropped(&mut self, id: Id, places: impl IntoIterator<Item = Place>) {
        if let Some(sandbox) = self.sandboxes.get_mut(&id) {
            for key in places.into_iter().filter_map(Place::key) {
                sandbox.turn.remove(key, ASKED);
            }
        }
    }

    /// Pages of a sandbox that are touched at nearly every resume: the head of its plans.
    pub fn head(&self, id: Id) -> usize {
        let Some(sandbox) = self.sandboxes.get(&id) else {
            return 0;
        };
        let template = self.templates.find(&sandbox.template);
        template.map_or(0, |template| head(sandbox, template).count())
    }

    /// Figures of a sandbox since it was attached, without [`Figures::cost_ns`].
    pub fn figures(&self, id: Id) -> Option<Figures> {
        self.sandboxes.get(&id).map(|sandbox| sandbox.figures)
    }

    /// Figures of all sandboxes since the start, those that are gone included.
    pub fn total(&self) -> Figures {
        self.figures
    }

    /// Turns of a sandbox that were learned from.
    pub fn turns(&self, id: Id) -> u32 {
        self.sandboxes.get(&id).map_or(0, |sandbox| sandbox.turns)
    }

    /// Bytes that all knowledge takes, at most [`Settings::memory`].
    pub fn memory(&self) -> usize {
        let sandboxes: usize = self.sandboxes.values().map(Sandbox::bytes).sum();
        sandboxes + self.templates.bytes() + self.transitions.bytes()
    }

    /// The role that a name stands for in a plan that is read from a file.
    pub(super) fn role_of_file(&mut self, command: &str, ordinal: u16) -> Option<Role> {
        self.roles.get(command, ordinal)
    }

    /// Learns from a turn that ended, with what had been accessed if that is known.
    fn learn(&mut self, id: Id, accessed: Option<Vec<u64>>) {
        let ended = self.sandboxes.get(&id);
        if ended.is_none_or(|sandbox| sandbox.phase != Phase::Ended) {
            if let (Some(accessed), Some(sandbox)) = (accessed, self.sandboxes.get_mut(&id)) {
                sandbox.accessed.learn(&accessed);
            }
            return;
        }
        self.tool_ends(id);
        let Some(sandbox) = self.sandboxes.get_mut(&id) else {
            return;
        };
        let touched = sandbox.turn.with(TOUCHED);
        let mixer = &mut self.templates.get(&sandbox.template).mixer;
        // Neighbours end alike: in their order the last ones would outweigh all others.
        sandbox
            .samples
            .sort_unstable_by_key(|sample| scatter(sample.key));
        for sample in sandbox.samples.drain(..) {
            if let Some(touched) = came_true(sandbox.turn.flags(sample.key), accessed.is_some()) {
                mixer.learn(&sample.evidence, touched);
            }
        }
        // A turn in which nothing was out, and of which nothing else is known, teaches nothing.
        if !touched.is_empty() {
            sandbox.turns = sandbox.turns.saturating_add(1);
            if self.settings.working_set {
                sandbox.own.learn(&touched, &[]);
                let settings = &self.settings;
                self.templates
                    .teach(&sandbox.template, None, settings, |set| {
                        set.learn(&touched, &[]);
                    });
            }
        }
        if self.settings.access_bitmap {
            sandbox
                .accessed
                .learn(accessed.as_ref().unwrap_or(&touched));
        }
        sandbox.turn.clear();
        sandbox.phase = Phase::Waits;
    }

    /// The tool that runs ends: what it touched belongs to its working set.
    fn tool_ends(&mut self, id: Id) {
        let Some(sandbox) = self.sandboxes.get_mut(&id) else {
            return;
        };
        // What came before the first tool of a turn belongs to it.
        if sandbox.tools == 0 {
            return;
        }
        let touched = sandbox.turn.with(BY_TOOL);
        sandbox.turn.clear_flag(BY_TOOL);
        if touched.is_empty() || !self.settings.working_set {
            return;
        }
        if let Some(tool) = sandbox.tool.as_ref() {
            // What an earlier tool of the turn brought in was there: the later one cannot show that it
            // needs it.
            let unknown = match sandbox.tools {
                1 => Vec::new(),
                _ => sandbox.turn.with(TOUCHED),
            };
            let settings = &self.settings;
            let name = &sandbox.template;
            self.templates.teach(name, Some(tool), settings, |set| {
                set.learn(&touched, &unknown);
            });
        }
    }

    /// Transitions begin anew: from the first token, or from the tool.
    fn chain(&mut self, id: Id) {
        if !self.settings.transitions {
            return;
        }
        if let Some(sandbox) = self.sandboxes.get_mut(&id) {
            let template = self.templates.find(&sandbox.template);
            let space = template.map_or(0, |template| template.space);
            let from = beginning(sandbox.tool.as_ref());
            self.transitions.begin(space, &mut sandbox.recent, from);
        }
    }

    /// Gives the numbers of roles free that no sandbox has, and forgets what is known about them.
    fn forget_roles(&mut self) {
        let mut used = vec![false; usize::from(NO_ROLE) + 1];
        for role in self.sandboxes.values().flat_map(|s| &s.roles) {
            used[usize::from(role.0)] = true;
        }
        self.roles.retain(|role| used[usize::from(role.0)]);
        let keep = |key: u64| {
            let role = Place::from_key(key).role.0;
            role == NO_ROLE || used.get(usize::from(role)) == Some(&true)
        };
        self.templates.retain(keep);
        self.transitions.retain(|_, key| keep(key));
        for sandbox in self.sandboxes.values_mut() {
            sandbox.own.retain(keep);
            sandbox.accessed.retain(keep);
        }
    }
}

/// Puts keys into an order that has nothing to do with theirs.
fn scatter(key: u64) -> u64 {
    key.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32)
}

/// A page that was weighed was touched, or not; `None`: it was asked for, has no result, and nobody looked
/// (`looked`) which pages were touched.
///
/// That it was touched goes before a miss: a page that is touched after its hit window is missed, and so
/// is one whose access was lost between its restore and the clearing of its accessed bit.
fn came_true(flags: u8, looked: bool) -> Option<bool> {
    let has = |flag: u8| flags & flag != 0;
    match has(TOUCHED) {
        true => Some(true),
        false => (has(MISSED) || looked || !has(ASKED)).then_some(false),
    }
}

#[cfg(test)]
#[path = "learner_tests.rs"]
mod tests;
