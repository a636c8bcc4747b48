// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Weighing: out of everything that the predictors propose, the plan.

use super::mixer::{self, Evidence, Mixer, When, SOURCES};
use super::place::Place;
use super::plan::{push, Basis, Plan, Predictor};
use super::settings::Settings;

/// A page that was proposed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub(super) key: u64,
    pub(super) evidence: Evidence,
    pub(super) probability: f32,
    /// It is touched at nearly every resume.
    pub(super) head: bool,
}

/// What the sources propose: keys and probabilities.
#[derive(Debug, Default)]
pub(super) struct Proposals(Vec<(u64, u8, f32)>);

impl Proposals {
    /// What one source proposes, in ascending order if it can. Where it names a page more than once,
    /// the probabilities add up.
    pub(super) fn add(&mut self, source: usize, proposed: impl Iterator<Item = (u64, f32)>) {
        self.0
            .extend(proposed.map(|(key, probability)| (key, source as u8, probability)));
    }

    /// One candidate for each page, by ascending keys. Pages that `wanted` says no to are left out.
    pub(super) fn weigh(
        mut self,
        mixer: &Mixer,
        when: When,
        wanted: impl Fn(u64) -> bool,
    ) -> Vec<Candidate> {
        // Runs in ascending order: the stable sort merges them.
        self.0.sort_by_key(|proposal| (proposal.0, proposal.1));
        let mut candidates = Vec::with_capacity(self.0.len() / 2);
        for same in self.0.chunk_by(|a, b| a.0 == b.0) {
            let Some(&(key, ..)) = same.first() else {
                continue;
            };
            if !wanted(key) {
                continue;
            }
            let mut evidence = Evidence::none(when);
            for by_one in same.chunk_by(|a, b| a.1 == b.1) {
                if let Some(&(_, source, _)) = by_one.first() {
                    let sum: f32 = by_one.iter().map(|proposal| proposal.2).sum();
                    evidence.set(usize::from(source), sum.min(0.995));
                }
            }
            candidates.push(Candidate {
                key,
                evidence,
                probability: mixer.mix(&evidence),
                head: false,
            });
        }
        candidates
    }
}

/// Marks the candidates that are in a sorted list of pages; both ascending.
pub(super) fn mark_head(candidates: &mut [Candidate], head: impl Iterator<Item = u64>) {
    let mut head = head.peekable();
    for candidate in candidates {
        while head.next_if(|&key| key < candidate.key).is_some() {}
        candidate.head = head.peek() == Some(&candidate.key);
    }
}

/// How far a plan goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reach {
    /// Most pages.
    pub(super) cap: usize,
    /// Nothing was learned: all candidates are wanted.
    pub(super) untaught: bool,
    /// Pages that are wanted when no candidate is probable enough.
    pub(super) probe: usize,
}

/// Makes the plan. The candidates come back, those in the plan first: as many as it has pages.
pub(super) fn choose(candidates: &mut [Candidate], reach: Reach, settings: &Settings) -> Plan {
    if candidates.is_empty() {
        return Plan::empty(Basis::Nothing);
    }
    // Total order, the head first, then by probability.
    candidates.sort_unstable_by(|a, b| {
        let order = b.head.cmp(&a.head);
        let order = order.then(b.probability.total_cmp(&a.probability));
        order.then(a.key.cmp(&b.key))
    });
    let mut wanted = 0;
    let mut sum = 0.0;
    for candidate in candidates.iter() {
        let more = sum + candidate.probability;
        let ratio = more / (wanted + 1) as f32;
        let sure = candidate.probability >= settings.least && ratio >= settings.expected_hit_ratio;
        if !(sure || candidate.head || reach.untaught) {
            break;
        }
        sum = more;
        wanted += 1;
    }
    let mut basis = match reach.untaught {
        true => Basis::LastAccessed,
        false => Basis::Learned,
    };
    if wanted == 0 {
        basis = Basis::Probe;
        wanted = reach.probe.min(candidates.len());
        if wanted == 0 {
            return Plan::empty(Basis::Nothing);
        }
    }
    let pages = wanted.min(reach.cap);
    let chosen = &mut candidates[..pages];
    let mut plan = Plan::empty(basis);
    plan.wanted = wanted as u64;
    plan.pages = pages as u64;
    plan.capped = pages < wanted;
    let expected: f32 = chosen.iter().map(|c| c.probability).sum();
    plan.expected_hit_ratio = f64::from(expected) / pages.max(1) as f64;
    for candidate in chosen.iter() {
        plan.head += u64::from(candidate.head);
        for predictor in proposers(&candidate.evidence) {
            plan.by[predictor as usize] += 1;
        }
    }
    // Within a step of probability neighbours stay together: they are in the same run, and in the same
    // pages of the store.
    chosen.sort_unstable_by_key(|c| (step(c), c.key));
    for candidate in chosen.iter() {
        push(&mut plan.runs, Place::from_key(candidate.key));
    }
    plan
}

/// Steps of probability in the order of a plan.
fn step(candidate: &Candidate) -> u8 {
    match (candidate.head, candidate.probability) {
        (true, _) => 0,
        (_, 0.9..) => 1,
        (_, 0.8..) => 2,
        (_, 0.7..) => 3,
        (_, 0.5..) => 4,
        _ => 5,
    }
}

/// The predictors that propose a page.
fn proposers(evidence: &Evidence) -> impl Iterator<Item = Predictor> + '_ {
    Predictor::ALL.into_iter().filter(|predictor| {
        (0..SOURCES).any(|source| evidence.has(source) && predictor_of(source) == *predictor)
    })
}

fn predictor_of(source: usize) -> Predictor {
    match source {
        mixer::ACCESSED => Predictor::AccessBitmap,
        mixer::SEQUENTIAL => Predictor::Sequential,
        mixer::TRANSITIONS => Predictor::Transitions,
        _ => Predictor::WorkingSet,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn plan(probabilities: &[(u64, f32)], cap: usize) -> Plan {
        let mut proposals = Proposals::default();
        proposals.add(mixer::OWN, probabilities.iter().copied());
        let mut candidates = proposals.weigh(&Mixer::default(), When::Ahead, |_| true);
        let reach = Reach {
            cap,
            untaught: false,
            probe: 2,
        };
        choose(&mut candidates, reach, &Settings::default())
    }

    fn keys(plan: &Plan) -> Vec<u64> {
        plan.places().map(|place| place.key().unwrap()).collect()
    }

    #[test]
    fn the_ratio_holds_and_the_cap_keeps_the_best() {
        let proposed = [(1, 0.6), (2, 0.95), (3, 0.95), (9, 0.8), (20, 0.3)];
        let all = plan(&proposed, 100);
        // 0.95 + 0.95 + 0.8 + 0.6 are 0.82 a page; 0.3 is not worth it by itself.
        assert_eq!(keys(&all), [2, 3, 9, 1]);
        assert_eq!(all.runs.len(), 3);
        assert!(!all.capped && all.wanted == 4 && all.basis == Basis::Learned);
        assert!((all.expected_hit_ratio - 0.825).abs() < 0.01);
        assert_eq!(all.by, [0, 0, 4, 0]);
        let capped = plan(&proposed, 2);
        assert_eq!(keys(&capped), [2, 3]);
        assert!(capped.capped && capped.wanted == 4);
        let none = plan(&proposed, 0);
        assert!(none.capped && none.pages == 0 && none.wanted == 4);
    }

    #[test]
    fn unsure_it_probes_the_likeliest() {
        let probe = plan(&[(1, 0.1), (2, 0.2), (3, 0.3)], 100);
        assert_eq!(probe.basis, Basis::Probe);
        assert_eq!(keys(&probe), [2, 3]);
        assert_eq!(plan(&[], 100).basis, Basis::Nothing);
    }

    #[test]
    fn the_head_is_first() {
        let mut proposals = Proposals::default();
        proposals.add(mixer::OWN, [(4, 0.6), (5, 0.99), (6, 0.8)].into_iter());
        proposals.add(mixer::TOOL, [(4, 0.3), (4, 0.3), (6, 0.6)].into_iter());
        let mut candidates = proposals.weigh(&Mixer::default(), When::Ahead, |key| key != 6);
        assert_eq!(candidates.len(), 2);
        mark_head(&mut candidates, [1, 4].into_iter());
        let reach = Reach {
            cap: 1,
            untaught: false,
            probe: 0,
        };
        let plan = choose(&mut candidates, reach, &Settings::default());
        assert_eq!((keys(&plan), plan.head), (vec![4], 1));
    }

    proptest! {
        #[test]
        fn no_page_twice_and_the_ratio_as_promised(
            own in prop::collection::btree_map(0u64..500, 0.01f32..0.99, 0..200),
            tool in prop::collection::btree_map(0u64..500, 0.01f32..0.99, 0..200),
            cap in 0usize..300,
        ) {
            let mut proposals = Proposals::default();
            proposals.add(mixer::OWN, own.clone().into_iter());
            proposals.add(mixer::TOOL, tool.clone().into_iter());
            let mut candidates = proposals.weigh(&Mixer::default(), When::Ahead, |_| true);
            let reach = Reach { cap, untaught: false, probe: 8 };
            let plan = choose(&mut candidates, reach, &Settings::default());
            let mut keys = keys(&plan);
            prop_assert_eq!(keys.len() as u64, plan.pages);
            prop_assert!(keys.len() <= cap);
            prop_assert_eq!(plan.capped, plan.pages < plan.wanted);
            prop_assert!(keys.iter().all(|k| own.contains_key(k) || tool.contains_key(k)));
            keys.sort_unstable();
            keys.dedup();
            prop_assert_eq!(keys.len() as u64, plan.pages);
            if plan.basis == Basis::Learned && plan.pages > 0 {
                prop_assert!(plan.expected_hit_ratio >= 0.7999);
            }
        }
    }
}
