// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Rounds of samples: which pages the processes of sandboxes wrote since the round before.
//!
//! What is bounded: processes of a sandbox, the memory of a process, the runs that one sample and all of
//! them hold, and the CPU time of a round. What is beyond a bound is not hot, so that it is taken out
//! as without all this. A process is sampled from its second round on: the first one only clears its
//! bits, and after a pause it begins anew.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use agentzip_uapi::Range;

use super::process::{has_ended, is_gone, refused, Most, Processes, Subject, END};
use super::window::{Measure, Window};
use super::{ranges, HotSet, Identity, Target};
use crate::error::Error;
use crate::governor::Id;
use crate::lifecycle::Time;
use crate::sys::pages::Kind;
use crate::PAGE_SIZE;

/// Processes of one sandbox that are looked at.
pub const MAX_PROCESSES: usize = 64;
/// How far a sandbox is looked through for them: one more, to know that there are more.
const MOST: Most = Most {
    cgroups: 256,
    processes: MAX_PROCESSES + 1,
};
/// Largest process that is looked at: clearing its bits holds up its faults, for the more the larger it
/// is, and cannot be done in parts.
pub const MAX_RESIDENT: u64 = 2 << 30;
/// Runs of one sample.
pub const MAX_RUNS: usize = 2048;
/// Runs of all samples of all processes: 4 MiB.
pub const MAX_KEPT: usize = 256 << 10;
/// A mapping that is written as a whole counts as written up to this size only. See [`unmarked`].
const SMALL: u64 = 16 * PAGE_SIZE;

/// What is to be looked at.
#[derive(Clone, Debug)]
pub struct Round {
    /// These sandboxes, in this order for as long as there is CPU time.
    pub targets: Vec<Target>,
    /// What is hot.
    pub measure: Measure,
    /// Time between two rounds.
    pub every: Duration,
    /// CPU time that the round may take.
    pub allowance: Duration,
}

/// What came of it.
#[derive(Debug, Default)]
pub struct Seen {
    /// The hot pages of each sandbox of the round; empty for those to which it did not come.
    pub hot: Vec<(Id, HotSet)>,
    /// Processes that were sampled.
    pub processes: usize,
    /// Processes that were left out for a bound, as far as they were counted.
    pub left_out: usize,
    /// The first thing that went wrong, other than that something had ended.
    pub problem: Option<Error>,
}

/// The samples of all processes.
#[derive(Debug, Default)]
pub struct Sampler {
    followed: BTreeMap<Id, BTreeMap<Identity, Window>>,
    /// When the last round was.
    last: Option<Time>,
}

impl Sampler {
    /// Looks at the processes of the sandboxes of a round, and forgets all others. `spent` is the CPU
    /// time of this thread.
    pub fn round(
        &mut self,
        processes: &dyn Processes,
        round: &Round,
        now: Time,
        spent: &dyn Fn() -> Duration,
    ) -> Seen {
        let mut before = std::mem::take(&mut self.followed);
        // The bits say what was written since the last round. After a pause that is no sample.
        let last = self.last.replace(now);
        if last.is_none_or(|last| now.saturating_sub(last) > round.every * 2) {
            before.clear();
        }
        let began = spent();
        let is_over = || spent().saturating_sub(began) > round.allowance;
        // One sandbox does not use up the time of all.
        let part = round.allowance / round.targets.len().clamp(1, 4) as u32;
        let mut seen = Seen::default();
        let mut kept = 0;
        for target in &round.targets {
            let mut known = before.remove(&target.id).unwrap_or_default();
            let mut hot = HotSet::default();
            let mut now_known = BTreeMap::new();
            let pids = match is_over() {
                true => Vec::new(),
                false => processes.list(target, MOST).unwrap_or_else(|error| {
                    if !has_ended(&error) {
                        seen.problem.get_or_insert(error);
                    }
                    Vec::new()
                }),
            };
            seen.left_out += pids.len().saturating_sub(MAX_PROCESSES);
            let here = spent();
            let is_over = || is_over() || spent().saturating_sub(here) > part;
            for pid in pids.into_iter().take(MAX_PROCESSES) {
                if is_over() || kept >= MAX_KEPT {
                    seen.left_out += 1;
                    continue;
                }
                match sample(processes, target, pid, &mut known, round.measure) {
                    Ok(Some((identity, window))) => {
                        kept += window.runs();
                        hot.insert(identity, window.hot(round.measure));
                        now_known.insert(identity, window);
                        seen.processes += 1;
                    }
                    Ok(None) => seen.left_out += 1,
                    Err(error) if is_gone(&error) => {}
                    Err(error) => {
                        seen.problem.get_or_insert(refused("sample", pid, error));
                    }
                }
            }
            seen.hot.push((target.id, hot));
            self.followed.insert(target.id, now_known);
        }
        seen
    }
}

/// Takes one sample of a process. `None` when it is too large, or has left the sandbox.
fn sample(
    processes: &dyn Processes,
    target: &Target,
    pid: i32,
    known: &mut BTreeMap<Identity, Window>,
    measure: Measure,
) -> io::Result<Option<(Identity, Window)>> {
    let Some(process) = processes.open(target, pid)? else {
        return Ok(None);
    };
    if process.resident()? > MAX_RESIDENT {
        return Ok(None);
    }
    let identity = process.identity();
    let mut window = known.remove(&identity);
    if let Some(window) = &mut window {
        window.add(written(process.as_ref())?, measure);
    }
    process.clear()?;
    Ok(Some((identity, window.unwrap_or_default())))
}

/// The pages that a process wrote since its bits were cleared.
fn written(process: &dyn Subject) -> io::Result<Vec<Range>> {
    let mut runs = Vec::new();
    let mut at = 0;
    // Each step but the last one gives many runs.
    while at < END && runs.len() < MAX_RUNS {
        let range = Range {
            start: at,
            end: END,
        };
        let next = process.scan(range, Kind::Written, u64::MAX, &mut runs)?;
        if next <= at {
            break;
        }
        at = next;
    }
    match runs.is_empty() {
        true => Ok(runs),
        false => unmarked(process, &runs, at),
    }
}

/// Leaves out mappings that are marked as a whole: the kernel does so with a new one and with one that
/// grew, and then says of each of its pages that it was written. A heap that grows in each second would
/// be hot from end to end. They are known by that nothing in them was not written; those that were
/// indeed written as a whole go with them. `end`: nothing is known of what lies beyond.
fn unmarked(process: &dyn Subject, runs: &[Range], end: u64) -> io::Result<Vec<Range>> {
    let mut left = Vec::with_capacity(runs.len());
    for mapping in process.mappings()? {
        if mapping.end > end {
            break;
        }
        let inside = ranges::intersect(within(runs, mapping), &[mapping]);
        let bytes = ranges::bytes(&inside);
        if bytes == 0 || (bytes > SMALL && !has_more(process, mapping, bytes)?) {
            continue;
        }
        left.extend(inside);
    }
    Ok(left)
}

/// Those of the runs that reach into a range.
fn within(runs: &[Range], range: Range) -> &[Range] {
    let first = runs.partition_point(|run| run.end <= range.start);
    let last = runs.partition_point(|run| run.start < range.end);
    runs.get(first..last).unwrap_or(&[])
}

/// Whether a mapping has more pages than these.
fn has_more(process: &dyn Subject, mapping: Range, bytes: u64) -> io::Result<bool> {
    let mut found = 0_u64;
    let mut range = mapping;
    while range.start < range.end && found <= bytes {
        let mut runs = Vec::new();
        let most = (bytes - found) / PAGE_SIZE + 1;
        let next = process.scan(range, Kind::Anonymous, most, &mut runs)?;
        found = found.saturating_add(ranges::bytes(&runs));
        if next <= range.start {
            break;
        }
        range.start = next;
    }
    Ok(found > bytes)
}

#[cfg(test)]
mod tests {
    use super::super::fake::{page, Fake};
    use super::*;

    const FREE: fn() -> Duration = || Duration::ZERO;

    fn round(ids: &[Id]) -> Round {
        Round {
            targets: ids.iter().map(|id| Fake::target(*id)).collect(),
            measure: Measure::new(Duration::from_secs(5), Duration::from_secs(1)),
            every: Duration::from_secs(1),
            allowance: Duration::from_secs(1),
        }
    }

    fn hot(seen: &Seen) -> u64 {
        seen.hot.iter().map(|(_, hot)| hot.bytes()).sum::<u64>() / PAGE_SIZE
    }

    #[test]
    fn five_samples_after_the_first_round() {
        let fake = Fake::default();
        fake.start(1, 10, 0..1000);
        let mut sampler = Sampler::default();
        for second in 0..8 {
            fake.write(10, [3, 4, 100 + second]);
            let seen = sampler.round(&fake, &round(&[1]), Duration::from_secs(second), &FREE);
            assert_eq!(hot(&seen), if second >= 5 { 2 } else { 0 }, "{second}");
            if second >= 5 {
                assert_eq!(seen.hot[0].1.of(&fake.identity(10)), [page(3, 5)]);
            }
            assert!(seen.problem.is_none() && seen.left_out == 0);
        }
        // An exec: nothing of before counts.
        fake.exec(10);
        fake.write(10, [3, 4]);
        let seen = sampler.round(&fake, &round(&[1]), Duration::from_secs(8), &FREE);
        assert_eq!(hot(&seen), 0);
    }

    #[test]
    fn a_pause_or_a_round_without_it_begins_anew() {
        let fake = Fake::default();
        fake.start(1, 10, 0..1000);
        let mut sampler = Sampler::default();
        let mut at = |second: u64, ids: &[Id]| {
            fake.write(10, [3]);
            hot(&sampler.round(&fake, &round(ids), Duration::from_secs(second), &FREE))
        };
        assert_eq!((0..7).map(|second| at(second, &[1])).max(), Some(1));
        assert_eq!(at(10, &[1]), 0);
        assert_eq!((11..16).map(|second| at(second, &[1])).max(), Some(1));
        assert_eq!(at(16, &[]), 0);
        assert_eq!((17..22).map(|second| at(second, &[1])).max(), Some(0));
    }

    #[test]
    fn a_mapping_that_grew_is_not_written() {
        let fake = Fake::default();
        fake.start(1, 10, 0..1000);
        fake.map(10, 2000..2100);
        let mut sampler = Sampler::default();
        for second in 0..8 {
            fake.mark(10, 0..1000);
            // And a small one that is written whole.
            fake.map(10, 3000..3004);
            fake.write(10, [2000, 3000, 3001, 3002, 3003]);
            let seen = sampler.round(&fake, &round(&[1]), Duration::from_secs(second), &FREE);
            if second >= 5 {
                let hot = seen.hot[0].1.of(&fake.identity(10)).to_vec();
                assert_eq!(hot, [page(2000, 2001), page(3000, 3004)]);
            }
        }
    }

    #[test]
    fn bounds() {
        let fake = Fake::default();
        for pid in 0..MAX_PROCESSES as i32 + 3 {
            fake.start(1, 100 + pid, 0..10);
        }
        // Too many runs: what is beyond them is not looked at.
        fake.start(2, 10, 0..20_000);
        fake.map(10, 30_000..40_000);
        fake.resize(100, MAX_RESIDENT + 1);
        let mut sampler = Sampler::default();
        for second in 0..7 {
            fake.write(10, (0..10_000).map(|page| page * 2).chain([30_000]));
            let seen = sampler.round(&fake, &round(&[1, 2]), Duration::from_secs(second), &FREE);
            // The large one, and that there are more than are looked at.
            assert_eq!((seen.processes, seen.left_out), (MAX_PROCESSES, 2));
            assert_eq!(hot(&seen), 0);
        }
        let kept = |sampler: &Sampler| -> usize {
            let each = sampler.followed.values().flat_map(BTreeMap::values);
            each.map(Window::runs).sum()
        };
        assert!(kept(&sampler) <= 5 * (MAX_RUNS + 512));
        assert_eq!(fake.cleared(100), 0);
    }

    #[test]
    fn cpu_time_ends_a_round() {
        let fake = Fake::default();
        for (sandbox, pid) in [(1, 10), (1, 11), (2, 20), (2, 21), (3, 30)] {
            fake.start(sandbox, pid, 0..10);
        }
        let cleared = || [10, 11, 20, 21, 30].map(|pid| fake.cleared(pid));
        // Each process takes 600 ms of the second that there is.
        let spent = || Duration::from_millis(600) * cleared().iter().sum::<usize>() as u32;
        let round = round(&[1, 2, 3]);
        let seen = Sampler::default().round(&fake, &round, Duration::ZERO, &spent);
        assert_eq!(cleared(), [1, 0, 1, 0, 0]);
        assert_eq!((seen.processes, seen.left_out, seen.hot.len()), (2, 2, 3));
    }

    #[test]
    fn what_ends_or_moves_away_is_left_alone() {
        let fake = Fake::default();
        fake.start(1, 10, 0..10);
        fake.start(1, 11, 0..10);
        fake.start(1, 12, 0..10);
        fake.vanish(10);
        fake.leave(11);
        fake.refuse(12, libc::EPERM);
        let seen = Sampler::default().round(&fake, &round(&[1]), Duration::ZERO, &FREE);
        assert_eq!(seen.processes, 0);
        assert_eq!(fake.cleared(11), 0);
        let problem = seen.problem.unwrap().to_string();
        assert!(
            problem.contains("sample process 12: ") && problem.contains("as root"),
            "{problem}"
        );
    }
}
