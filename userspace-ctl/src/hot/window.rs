// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The last samples of one process, and which of its pages are hot by them.

use std::collections::VecDeque;
use std::time::Duration;

use agentzip_uapi::Range;

use super::ranges;

/// Samples in which a page was written that make it hot.
pub const WRITES: usize = 5;
/// Most samples that are looked back at.
const LONGEST: usize = 16;

/// How far back is looked, and what is hot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measure {
    /// Samples of a window.
    pub samples: usize,
    /// In how many of them a page was written that is hot.
    pub writes: usize,
}

impl Measure {
    /// Of one window of this length with samples at these distances: [`WRITES`] writes, or one in every
    /// sample where the window has fewer. At most 16 samples are looked back at.
    pub fn new(window: Duration, sample: Duration) -> Measure {
        let sample = sample.as_nanos().max(1);
        let samples = usize::try_from(window.as_nanos() / sample).unwrap_or(LONGEST);
        let samples = samples.clamp(1, LONGEST);
        Measure {
            samples,
            writes: samples.min(WRITES),
        }
    }
}

/// The pages that were written, for each of the last samples.
#[derive(Debug, Default)]
pub struct Window {
    samples: VecDeque<Vec<Range>>,
}

impl Window {
    /// Takes the pages that were written since the last sample, and forgets what is too old.
    pub fn add(&mut self, written: Vec<Range>, measure: Measure) {
        self.samples.push_back(written);
        while self.samples.len() > measure.samples.max(1) {
            self.samples.pop_front();
        }
    }

    /// The pages that are hot.
    pub fn hot(&self, measure: Measure) -> Vec<Range> {
        if self.samples.len() < measure.writes {
            return Vec::new();
        }
        ranges::in_many(self.samples.iter().map(Vec::as_slice), measure.writes)
    }

    /// Runs that it holds: what it costs in memory.
    pub fn runs(&self) -> usize {
        self.samples.iter().map(Vec::len).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::super::ranges::tests::runs;
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const S: fn(u64) -> Duration = Duration::from_secs;

    #[test]
    fn measures() {
        let measure = |window, sample| {
            let Measure { samples, writes } = Measure::new(window, sample);
            (samples, writes)
        };
        assert_eq!(measure(S(5), S(1)), (5, 5));
        assert_eq!(measure(S(5), Duration::from_millis(500)), (10, 5));
        assert_eq!(measure(S(5), S(2)), (2, 2));
        assert_eq!(measure(S(5), S(60)), (1, 1));
        assert_eq!(measure(S(3600), Duration::from_millis(1)), (16, 5));
        assert_eq!(measure(S(5), Duration::ZERO), (16, 5));
    }

    #[test]
    fn written_five_times_is_hot_and_soon_not_any_more() {
        let measure = Measure::new(S(5), S(1));
        let page = |start: u64| Range {
            start: start << 12,
            end: (start + 1) << 12,
        };
        let mut window = Window::default();
        for second in 0..10 {
            let mut written = vec![page(7)];
            if second != 3 {
                written.insert(0, page(5));
            }
            window.add(written, measure);
            let hot = window.hot(measure);
            assert_eq!(hot.contains(&page(7)), second >= 4, "{second}");
            // Left out once, it takes five samples more.
            assert_eq!(hot.contains(&page(5)), second >= 8, "{second}");
        }
        window.add(Vec::new(), measure);
        assert_eq!(window.hot(measure), []);
        assert!(window.runs() <= 10);
    }

    proptest! {
        #[test]
        fn hot_is_what_the_last_samples_have(
            samples in proptest::collection::vec(proptest::collection::btree_set(0_u64..32, 0..20), 0..12),
            length in 1_u64..9,
        ) {
            let measure = Measure::new(S(length), S(1));
            let mut window = Window::default();
            for sample in &samples {
                window.add(runs(sample), measure);
            }
            let last = &samples[samples.len().saturating_sub(measure.samples)..];
            let naive: BTreeSet<u64> = (0..32)
                .filter(|at| last.iter().filter(|set| set.contains(at)).count() >= measure.writes)
                .collect();
            prop_assert_eq!(window.hot(measure), runs(&naive));
        }
    }
}
