// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What all predictors propose for a sandbox, before it faults and after.

use super::mixer::{self, Sample};
use super::next_tool;
use super::place::{NO_ROLE, PAGE_BITS};
use super::sandbox::{Phase, Sandbox};
use super::settings::Settings;
use super::template::Template;
use super::transitions::Transitions;
use super::weigh::{Candidate, Proposals};
use super::working_set::WorkingSet;
use crate::ToolName;

/// Most pages that transitions add to the plan of a turn that begins.
const CHAINED: usize = 256;

/// Pages of a tool that may come are weighed from this probability on.
const MAY_COME: f32 = 0.02;

/// Stands for the beginning of a turn, or of a tool, among the keys of transitions.
pub(super) fn beginning(tool: Option<&ToolName>) -> u64 {
    let name = tool.map_or("", ToolName::as_str);
    // FNV-1a; two tools of the same value share their followers.
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    (u64::from(NO_ROLE) << PAGE_BITS) | (hash >> (64 - PAGE_BITS))
}

/// What the predictors know before there are faults.
pub(super) fn ahead(
    sandbox: &Sandbox,
    template: &Template,
    transitions: &Transitions,
    settings: &Settings,
) -> Proposals {
    let mut proposals = Proposals::default();
    if settings.working_set {
        proposals.add(mixer::OWN, sandbox.own.shares());
        for (set, probability) in tools(sandbox, template) {
            let shares = set.shares().map(|(key, share)| (key, share * probability));
            proposals.add(mixer::TOOL, shares.filter(|(_, share)| *share >= MAY_COME));
        }
    }
    if settings.access_bitmap {
        proposals.add(mixer::ACCESSED, sandbox.accessed.shares());
    }
    if settings.transitions {
        let mut recent = sandbox.recent.clone();
        if sandbox.phase != Phase::Turn {
            recent.begin(beginning(None));
        }
        let foreseen = transitions.foresee(template.space, &recent, CHAINED);
        proposals.add(mixer::TRANSITIONS, foreseen.into_iter());
    }
    proposals
}

/// The working sets that count, and how much: that of the tool which runs, or those of the tools that may
/// come. Where a tool is new it is what all turns touch.
fn tools<'a>(sandbox: &Sandbox, template: &'a Template) -> Vec<(&'a WorkingSet, f32)> {
    let likely = match (&sandbox.tool, sandbox.phase) {
        (Some(tool), Phase::Turn) => vec![(tool.clone(), 1.0)],
        _ => next_tool::predict(&sandbox.next, &template.next, sandbox.last_tool.as_ref()),
    };
    let mut sets = Vec::new();
    let mut rest = 1.0;
    for (tool, probability) in likely {
        if let Some(set) = template.set(Some(&tool)) {
            // As far as the tool is known well: after one turn by two thirds.
            let known = set.turns() / (set.turns() + 0.5);
            sets.push((set, probability * known));
            rest -= probability * known;
        }
    }
    if let Some(all) = template.set(None).filter(|_| rest > 0.01) {
        sets.push((all, rest));
    }
    sets
}

/// What follows the faults that there were.
pub(super) fn after_faults(
    sandbox: &mut Sandbox,
    template: &Template,
    transitions: &Transitions,
    cap: usize,
) -> Proposals {
    let runs = sandbox.sequential.foresee(cap);
    let chains = transitions.foresee(template.space, &sandbox.recent, cap);
    let mut proposals = Proposals::default();
    let keys = runs.iter().chain(&chains).map(|foreseen| foreseen.0);
    let mut keys: Vec<u64> = keys.collect();
    keys.sort_unstable();
    keys.dedup();
    proposals.add(mixer::SEQUENTIAL, runs.into_iter());
    proposals.add(mixer::TRANSITIONS, chains.into_iter());
    let known = |key: u64| Some((key, sandbox.own.share(key))).filter(|known| known.1 > 0.0);
    proposals.add(mixer::OWN, keys.iter().filter_map(|&key| known(key)));
    proposals
}

/// What is touched at nearly every resume: by the sandbox itself, or by its siblings as long as it is new.
pub(super) fn head<'a>(
    sandbox: &'a Sandbox,
    template: &'a Template,
) -> Box<dyn Iterator<Item = u64> + 'a> {
    match template.set(None) {
        Some(all) if sandbox.turns < 3 => Box::new(all.head()),
        _ => Box::new(sandbox.own.head()),
    }
}

/// Remembers what candidates were worth, evenly spread as far as there is room.
pub(super) fn sample(sandbox: &mut Sandbox, candidates: &[Candidate], demand: bool) {
    let room = sandbox.most_samples - sandbox.samples.len().min(sandbox.most_samples);
    // A quarter is left for the faults of the turn.
    let room = if demand { room } else { room / 4 * 3 };
    if room == 0 {
        return;
    }
    let every = candidates.len().div_ceil(room).max(1);
    for candidate in candidates.iter().step_by(every) {
        sandbox.samples.push(Sample {
            key: candidate.key,
            evidence: candidate.evidence,
        });
    }
}
