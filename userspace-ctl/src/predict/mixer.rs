// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The mixer: one probability out of what several predictors say about a page.
//!
//! The log-odds of the sources are weighted and summed, and the sum is made a probability again. There is
//! a set of weights for each combination of sources that have something to say, as what they are worth
//! together is not what they are worth one by one. After a turn it is known of each page that was
//! weighed whether it was touched: of one restored ahead of need by its hit or miss, of another one by
//! its demand fault or the absence of one. Each result moves the weights against its error (logistic
//! regression, online), so that a source that is wrong is trusted less within a turn, and the
//! probabilities are those that came true.

use super::plan::Trigger;

/// What tells about pages; more than the predictors, as the working set is two.
pub(super) const SOURCES: usize = 5;

/// Working set of the tool, by all siblings.
pub(super) const TOOL: usize = 0;
/// Working set of the sandbox itself.
pub(super) const OWN: usize = 1;
/// Access bitmap.
pub(super) const ACCESSED: usize = 2;
/// Runs of demand faults.
pub(super) const SEQUENTIAL: usize = 3;
/// Transitions.
pub(super) const TRANSITIONS: usize = 4;

/// Combinations of sources.
const COMBINATIONS: usize = 1 << SOURCES;

/// Lengths of a run that have weights of their own: how long runs usually get is no straight line.
const LENGTHS: usize = 4;

/// Sets of weights.
const CONTEXTS: usize = COMBINATIONS * LENGTHS * When::COUNT;

/// When pages are weighed. What a tool's plan has left to choose from is what an earlier plan of the turn did
/// not take, so the same words of the same sources are worth less then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    /// Before the tool is known.
    Ahead = 0,
    /// When it starts.
    Tool = 1,
    /// After faults of it.
    Faults = 2,
}

impl When {
    const COUNT: usize = 3;

    /// Of a plan that is made for this reason.
    pub(super) fn of(trigger: Trigger) -> When {
        match trigger {
            Trigger::ToolStart => When::Tool,
            Trigger::Demand => When::Faults,
            _ => When::Ahead,
        }
    }
}

/// Largest log-odds.
const MOST: f32 = 5.0;

/// Least rate of learning. A turn has thousands of pages, and what is unusual about it is so for all of them:
/// at ten times this rate the weights are those of the last turn, and after a turn that touched much plans
/// are too long.
const LEAST_RATE: f32 = 0.002;

/// Steps of a log-odd in a [`Sample`].
const STEPS: f32 = 24.0;

/// Marks a source that says nothing.
const SILENT: i8 = i8::MIN;

/// What the sources said about a page, as log-odds in steps, and when.
#[derive(Clone, Copy, Debug)]
pub(super) struct Evidence([i8; SOURCES], When);

impl Evidence {
    /// Nobody said anything.
    pub(super) fn none(when: When) -> Evidence {
        Evidence([SILENT; SOURCES], when)
    }

    /// A source says that the page will be touched with this probability.
    pub(super) fn set(&mut self, source: usize, probability: f32) {
        let odds = (probability / (1.0 - probability)).ln();
        // An infinity becomes the largest, a NaN 0.
        self.0[source] = (odds.clamp(-MOST, MOST) * STEPS) as i8;
    }

    /// The source said something.
    pub(super) fn has(&self, source: usize) -> bool {
        self.0[source] != SILENT
    }

    fn context(&self) -> usize {
        let said = |set, source| set | (usize::from(self.has(source)) << source);
        let length = match self.odds(SEQUENTIAL) {
            ..2.0 => 0,
            ..2.75 => 1,
            ..3.45 => 2,
            _ => 3,
        };
        let set = length + self.1 as usize * LENGTHS;
        (0..SOURCES).fold(0, said) + set * COMBINATIONS
    }

    fn odds(&self, source: usize) -> f32 {
        match self.has(source) {
            true => f32::from(self.0[source]) / STEPS,
            false => 0.0,
        }
    }
}

/// A page that was weighed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    /// Which.
    pub(super) key: u64,
    /// By what.
    pub(super) evidence: Evidence,
}

#[derive(Clone, Copy, Debug)]
struct Weights {
    of: [f32; SOURCES],
    bias: f32,
    results: u32,
}

/// Weights of the sources.
#[derive(Clone, Debug)]
pub(super) struct Mixer(Vec<Weights>);

impl Default for Mixer {
    fn default() -> Mixer {
        let weights = |context: usize| Weights {
            // Two that agree are surer than one, though not twice as sure.
            of: [1.0 / ((context % COMBINATIONS).count_ones().max(1) as f32).sqrt(); SOURCES],
            bias: 0.0,
            results: 0,
        };
        Mixer((0..CONTEXTS).map(weights).collect())
    }
}

impl Mixer {
    /// The probability that the page will be touched.
    pub(super) fn mix(&self, evidence: &Evidence) -> f32 {
        let Some(weights) = self.0.get(evidence.context()) else {
            return 0.0;
        };
        let sum = (0..SOURCES).map(|s| weights.of[s] * evidence.odds(s));
        let odds = weights.bias + sum.sum::<f32>();
        1.0 / (1.0 + (-odds).exp())
    }

    /// The page was touched, or not.
    pub(super) fn learn(&mut self, evidence: &Evidence, touched: bool) {
        let error = f32::from(u8::from(touched)) - self.mix(evidence);
        let Some(weights) = self.0.get_mut(evidence.context()) else {
            return;
        };
        // A share of the error, whatever the odds are.
        let square: f32 = (0..SOURCES).map(|s| evidence.odds(s).powi(2)).sum();
        let rate = (0.4 / (1.0 + weights.results as f32 / 100.0)).max(LEAST_RATE) / (1.0 + square);
        weights.results = weights.results.saturating_add(1);
        weights.bias = (weights.bias + rate * error).clamp(-8.0, 8.0);
        for source in 0..SOURCES {
            let moved = weights.of[source] + rate * error * evidence.odds(source);
            weights.of[source] = moved.clamp(-2.0, 4.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn evidence(said: &[(usize, f32)]) -> Evidence {
        let mut evidence = Evidence::none(When::Ahead);
        for &(source, probability) in said {
            evidence.set(source, probability);
        }
        evidence
    }

    #[test]
    fn untaught_it_believes_what_it_is_told() {
        let mixer = Mixer::default();
        for p in [0.1, 0.5, 0.9] {
            assert!((mixer.mix(&evidence(&[(OWN, p)])) - p).abs() < 0.02);
        }
        let both = mixer.mix(&evidence(&[(OWN, 0.8), (TOOL, 0.8)]));
        assert!((0.8..0.95).contains(&both), "{both}");
        assert!(mixer.mix(&evidence(&[])) == 0.5);
    }

    #[test]
    fn a_source_that_is_wrong_loses_its_voice() {
        let mut mixer = Mixer::default();
        // One says 0.9 of everything, of which a fifth comes true; the other one knows.
        for n in 0..2000u32 {
            let touched = n % 5 == 0;
            let knows = if touched { 0.9 } else { 0.1 };
            mixer.learn(&evidence(&[(ACCESSED, 0.9), (OWN, knows)]), touched);
            mixer.learn(&evidence(&[(ACCESSED, 0.9)]), touched);
        }
        assert!((mixer.mix(&evidence(&[(ACCESSED, 0.9)])) - 0.2).abs() < 0.08);
        assert!(mixer.mix(&evidence(&[(ACCESSED, 0.9), (OWN, 0.9)])) > 0.9);
        assert!(mixer.mix(&evidence(&[(ACCESSED, 0.9), (OWN, 0.1)])) < 0.1);
        // And finds it again when it is right.
        for _ in 0..3000 {
            mixer.learn(&evidence(&[(ACCESSED, 0.9)]), true);
        }
        assert!(mixer.mix(&evidence(&[(ACCESSED, 0.9)])) > 0.8);
    }

    proptest! {
        #[test]
        fn always_a_probability(
            results in prop::collection::vec((prop::array::uniform5(prop::option::of(any::<f32>())), any::<bool>()), 0..300),
        ) {
            let mut mixer = Mixer::default();
            for (said, touched) in results {
                let mut evidence = Evidence::none(When::Tool);
                for (source, p) in said.iter().enumerate() {
                    if let Some(p) = p {
                        evidence.set(source, *p);
                    }
                }
                mixer.learn(&evidence, touched);
                prop_assert!((0.0..=1.0).contains(&mixer.mix(&evidence)));
            }
        }
    }
}
