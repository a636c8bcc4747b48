// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Predictor: sequential and strided runs of the demand faults of a turn, thread by thread.
//!
//! A run is confirmed by its third fault at the same stride. It is then foreseen ever further ahead, a third
//! as far as it is long. What was foreseen and restored faults no more: the fault that follows beyond it,
//! in the same steps, shows that the run went on.

/// Runs that are followed at a time.
const RUNS: usize = 16;

/// Farthest step of a run, in pages.
const FARTHEST: i64 = 16;

/// Pages that a run is foreseen ahead, at most.
const FARTHEST_AHEAD: u32 = 64;

/// A page is so much less probable than the one before it.
const FARTHER: f32 = 0.998;

/// Faults that confirm a run.
const CONFIRMED: u32 = 3;

/// Steps beyond what was foreseen within which a run may go on.
const SLACK: i64 = 4;

#[derive(Clone, Copy, Debug)]
struct Follow {
    thread: i32,
    /// Key of the last page that was touched.
    last: u64,
    /// Key up to which the run was foreseen; `last` at first.
    reached: u64,
    /// Pages from one to the next; 0: only one fault yet.
    step: i64,
    /// Faults, and what was foreseen between them.
    length: u32,
    /// When it was last followed.
    used: u32,
}

impl Follow {
    /// The page is one step on, or in the same steps just beyond what was foreseen.
    fn goes_on_with(&self, key: u64) -> bool {
        let ahead = key.wrapping_sub(self.last) as i64;
        let foreseen = self.reached.wrapping_sub(self.last) as i64;
        self.step != 0
            && ahead % self.step == 0
            && (1..=foreseen / self.step + self.slack()).contains(&(ahead / self.step))
    }

    /// The page is one that the run has just gone past: threads and prefetch change the order a little.
    fn went_past(&self, key: u64) -> bool {
        let behind = self.last.wrapping_sub(key) as i64;
        self.step != 0
            && behind % self.step == 0
            && (1..=self.slack()).contains(&(behind / self.step))
    }

    fn slack(&self) -> i64 {
        match self.length >= CONFIRMED {
            true => SLACK,
            false => 2,
        }
    }
}

/// Runs of the turn.
#[derive(Clone, Debug, Default)]
pub(super) struct Sequential {
    runs: Vec<Follow>,
    clock: u32,
}

impl Sequential {
    /// A thread touched a page that was out.
    pub(super) fn demand(&mut self, key: u64, thread: i32) {
        self.clock = self.clock.wrapping_add(1);
        let clock = self.clock;
        let mut own = self.runs.iter_mut().filter(|run| run.thread == thread);
        if let Some(run) = own.find(|run| run.goes_on_with(key)) {
            // What was foreseen in between came true; steps left out did not.
            let steps = key.wrapping_sub(run.last) as i64 / run.step;
            let foreseen = run.reached.wrapping_sub(run.last) as i64 / run.step;
            let more = steps.min(foreseen.max(0) + 1);
            run.length = run.length.saturating_add(more as u32);
            run.last = key;
            if (run.reached.wrapping_sub(key) as i64).signum() != run.step.signum() {
                run.reached = key;
            }
            run.used = clock;
            return;
        }
        let mut own = self.runs.iter_mut().filter(|run| run.thread == thread);
        if let Some(run) = own.find(|run| run.went_past(key)) {
            run.length = run.length.saturating_add(1);
            run.used = clock;
            return;
        }
        let mut own = self.runs.iter_mut().filter(|run| run.thread == thread);
        let near = own.find(|run| {
            let step = key.wrapping_sub(run.last) as i64;
            run.length < CONFIRMED && step != 0 && step.abs() <= FARTHEST
        });
        if let Some(run) = near {
            run.step = key.wrapping_sub(run.last) as i64;
            run.length = 2;
            (run.last, run.reached, run.used) = (key, key, clock);
            return;
        }
        let fresh = Follow {
            thread,
            last: key,
            reached: key,
            step: 0,
            length: 1,
            used: clock,
        };
        if self.runs.len() < RUNS {
            self.runs.push(fresh);
        } else if let Some(oldest) = self.runs.iter_mut().min_by_key(|run| run.used) {
            *oldest = fresh;
        }
    }

    /// What the confirmed runs go on with, at most `most` pages, and how probable that is; the latest
    /// run first. What was foreseen once is not again.
    pub(super) fn foresee(&mut self, most: usize) -> Vec<(u64, f32)> {
        let mut foreseen = Vec::new();
        self.runs.sort_by_key(|run| std::cmp::Reverse(run.used));
        for run in &mut self.runs {
            if run.length < CONFIRMED {
                continue;
            }
            let ahead = run.reached.wrapping_sub(run.last) as i64 / run.step;
            let wanted = i64::from((run.length / 3).clamp(2, FARTHEST_AHEAD)) - ahead;
            let length = run.length as f32;
            let mut probability = length / (length + 1.0);
            for _ in 0..wanted {
                let next = run.reached.wrapping_add(run.step as u64);
                let bits = super::place::PAGE_BITS;
                if foreseen.len() >= most || next >> bits != run.last >> bits {
                    break;
                }
                run.reached = next;
                foreseen.push((next, probability));
                probability *= FARTHER;
            }
        }
        foreseen
    }

    /// A turn begins.
    pub(super) fn clear(&mut self) {
        self.runs.clear();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NONE: [u64; 0] = [];

    fn keys(sequential: &mut Sequential, most: usize) -> Vec<u64> {
        sequential.foresee(most).iter().map(|f| f.0).collect()
    }

    #[test]
    fn upward_downward_and_strided() {
        for step in [1i64, -1, 3, -16] {
            let mut sequential = Sequential::default();
            let page = |n: i64| (100_000 + n * step) as u64;
            sequential.demand(page(0), 1);
            sequential.demand(page(1), 1);
            assert_eq!(keys(&mut sequential, 64), NONE, "two faults are no run");
            sequential.demand(page(2), 1);
            assert_eq!(keys(&mut sequential, 64), [page(3), page(4)]);
            assert_eq!(keys(&mut sequential, 64), NONE, "not twice");
            // What was restored faults no more; the next fault shows that the run goes on.
            sequential.demand(page(5), 1);
            assert_eq!(keys(&mut sequential, 64), [page(6), page(7)]);
            // One that comes late belongs to it.
            sequential.demand(page(7), 1);
            sequential.demand(page(6), 1);
            assert_eq!(sequential.runs.len(), 1);
            for n in 8..30 {
                sequential.demand(page(n), 1);
            }
            let more: Vec<u64> = (30..40).map(page).collect();
            assert_eq!(keys(&mut sequential, 64), more, "a third of 30");
        }
    }

    #[test]
    fn threads_are_told_apart() {
        let mut sequential = Sequential::default();
        for n in 0..4 {
            sequential.demand(1000 + n, 1);
            sequential.demand(5000 - n, 2);
        }
        let mut foreseen = keys(&mut sequential, 64);
        foreseen.sort_unstable();
        let expected = [1004, 1005, 4995, 4996];
        assert_eq!(foreseen, expected);
        let mut mixed = Sequential::default();
        for n in 0..4 {
            mixed.demand(1000 + 2 * n, 1 + (n % 2) as i32 * 7);
        }
        assert_eq!(keys(&mut mixed, 64), NONE, "two faults a thread");
    }

    #[test]
    fn stays_in_the_process() {
        let mut sequential = Sequential::default();
        let last = (1 << super::super::place::PAGE_BITS) - 1;
        for key in [last - 3, last - 2, last - 1] {
            sequential.demand(key, 1);
        }
        assert_eq!(keys(&mut sequential, 64), [last]);
    }

    proptest! {
        #[test]
        fn bounded(faults in prop::collection::vec((any::<u64>(), any::<i32>()), 0..300), most in 0usize..100) {
            let mut sequential = Sequential::default();
            for (key, thread) in faults {
                sequential.demand(key >> 3, thread % 4);
                prop_assert!(sequential.foresee(most).len() <= most);
                prop_assert!(sequential.runs.len() <= RUNS);
            }
        }

        #[test]
        fn random_faults_foresee_little(keys in prop::collection::vec(0u64..1 << 30, 500)) {
            let mut sequential = Sequential::default();
            let mut foreseen = 0;
            for key in keys {
                sequential.demand(key, 1);
                foreseen += sequential.foresee(64).len();
            }
            prop_assert!(foreseen < 10);
        }
    }
}
