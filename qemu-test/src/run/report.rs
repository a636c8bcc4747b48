// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The demo's report: what is in demo.json. `checks` has the conditions that it must meet, `table` what
//! people read.

mod checks;
mod table;

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

use self::checks::Check;
use super::backend::{Configuration, Representation};
use super::memory::Sample;
use super::saved::StoresSaved;
use super::scenario::{Outcome, Scenario};
use super::timer::Jobs;
use super::waiting::SecondLook;
use crate::verdict::Tally;

/// Largest difference of the two accounts, as a share of the uncompressed run's owned memory.
const TOLERANCE: f64 = 0.05;

/// demo.json.
#[derive(Debug, Serialize)]
pub struct Report {
    kernel: String,
    accel: String,
    sandboxes: usize,
    turns: usize,
    seed: u64,
    python: String,
    /// Mean over the sandboxes, without compression, at the last wait.
    owned_bytes_per_sandbox: u64,
    /// The sandbox that owns least.
    owned_bytes_per_sandbox_min: u64,
    fresh_share: f64,
    thp: &'static str,
    reclaim: &'static str,
    /// How many times slower than on hardware everything was taken to be.
    time_scale: f64,
    /// Whether the daemon read pages back on first-token.
    restore_on_first_token: bool,
    wait: &'static str,
    turn: &'static str,
    no_wait_align: &'static str,
    accounting: Accounting,
    runs: Runs,
    checks: Vec<Check>,
    passed: bool,
}

/// Both accounts of memory, compared.
#[derive(Debug, Serialize)]
struct Accounting {
    tolerance_bytes: u64,
    largest_difference_bytes: i64,
    note: &'static str,
}

#[derive(Debug, Serialize)]
struct Runs {
    none: Run,
    zswap_zstd: Run,
    agentzip: Run,
    agentzip_no_wait_align: Run,
}

#[derive(Debug, Serialize)]
struct Run {
    owned_bytes: u64,
    ratio: f64,
    /// Over the turns after a wait, of all repetitions.
    turn_seconds_median: f64,
    turn_seconds: Spread,
    /// Bytes that reclaim took until the end of the last turn (`pgsteal`), in all repetitions together.
    reclaimed_bytes: u64,
    digests_equal: bool,
    overhead_bytes: u64,
    pool_bytes: u64,
    /// Of those, pages that sandboxes share.
    shared_bytes: u64,
    anonymous_bytes: u64,
    /// Mean of what was swapped out but is not in the pool: zero-filled, or on the disk.
    outside_bytes: u64,
    /// The ratio if that were owned memory too.
    ratio_with_outside: f64,
    /// Mean of the fall of MemAvailable over the same waits, page tables and the daemon taken out.
    available_change_bytes: i64,
    pages_checked: u64,
    page_mismatches: u64,
    digests: usize,
    reclaim_seconds: Vec<f64>,
    wait_seconds: Vec<f64>,
    seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    jobs: Option<Jobs>,
    /// What each repetition showed; everything else in here is of the first one, but for turns and reclaimed
    /// bytes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    repetitions: Vec<Repetition>,
    samples: Vec<Sample>,
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "by_name")]
    representations: Vec<Representation>,
    #[serde(skip_serializing_if = "Option::is_none")]
    second_look: Option<SecondLook>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stores_saved: Option<StoresSaved>,
    #[serde(skip_serializing_if = "std::collections::BTreeMap::is_empty")]
    counters: std::collections::BTreeMap<String, u64>,
    left_behind: Vec<String>,
}

/// One of several runs of a configuration.
#[derive(Debug, Serialize)]
struct Repetition {
    turns: usize,
    turn_seconds_median: f64,
    turn_seconds: Spread,
    reclaimed_bytes: u64,
    /// At the last wait.
    owned_bytes: u64,
    digests_equal: bool,
    pages_checked: u64,
    page_mismatches: u64,
    load_errors: u64,
    largest_difference_bytes: i64,
    reclaim_seconds: Vec<f64>,
    wait_seconds: Vec<f64>,
    active_seconds: f64,
    seconds: f64,
    jobs: Option<Jobs>,
    second_look: Option<SecondLook>,
    left_behind: Vec<String>,
}

/// An object keyed by the names of the representations.
fn by_name<S: serde::Serializer>(list: &[Representation], s: S) -> Result<S::Ok, S::Error> {
    s.collect_map(list.iter().map(|one| (&one.name, one)))
}

/// Distribution of a set of times, in seconds.
#[derive(Debug, Default, Serialize)]
struct Spread {
    count: usize,
    min: f64,
    lower_quartile: f64,
    upper_quartile: f64,
    max: f64,
}

/// Value at `share` (0 to 1) of sorted `values`, nearest rank; 0 without values.
fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().saturating_sub(1) as f64;
    sorted
        .get((last * share).round() as usize)
        .copied()
        .unwrap_or(0.0)
}

/// Median of `values`; 0 without values.
fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let half = sorted.len() / 2;
    match (sorted.len() % 2, sorted.get(half)) {
        (_, None) => 0.0,
        (1, Some(middle)) => *middle,
        (_, Some(upper)) => (sorted[half - 1] + upper) / 2.0,
    }
}

impl Spread {
    fn new(seconds: &[f64]) -> Self {
        Self {
            count: seconds.len(),
            min: quantile(seconds, 0.0),
            lower_quartile: quantile(seconds, 0.25),
            upper_quartile: quantile(seconds, 0.75),
            max: quantile(seconds, 1.0),
        }
    }
}

impl Repetition {
    fn new(outcome: &Outcome, none: &Reference) -> Self {
        Self {
            turns: outcome.wait_seconds.len() + 1,
            turn_seconds_median: median(&outcome.turn_seconds),
            turn_seconds: Spread::new(&outcome.turn_seconds),
            reclaimed_bytes: outcome.reclaimed_bytes,
            owned_bytes: outcome
                .samples
                .last()
                .map_or(0, |sample| sample.owned_bytes),
            digests_equal: none.has(&outcome.digests),
            pages_checked: outcome.pages_checked,
            page_mismatches: outcome.page_mismatches,
            load_errors: load_errors(outcome),
            largest_difference_bytes: largest_difference(&outcome.samples),
            reclaim_seconds: outcome.reclaim_seconds.clone(),
            wait_seconds: outcome.wait_seconds.clone(),
            active_seconds: outcome.active_seconds,
            seconds: outcome.seconds,
            jobs: outcome.jobs.clone(),
            second_look: outcome.second_look.clone(),
            left_behind: outcome.left_behind.clone(),
        }
    }
}

fn load_errors(outcome: &Outcome) -> u64 {
    let errors = outcome.counters.get("load_errors");
    errors.copied().unwrap_or(u64::MAX)
}

/// The largest difference of both accounts of memory.
fn largest_difference(samples: &[Sample]) -> i64 {
    let differences = samples.iter().map(Sample::difference);
    differences
        .max_by_key(|difference| difference.abs())
        .unwrap_or(0)
}

impl Run {
    /// Several runs of one configuration: the first one, with the turns of all.
    fn repeated(outcomes: Vec<Outcome>, none: &Reference) -> Result<Self> {
        let repetitions = outcomes
            .iter()
            .map(|outcome| Repetition::new(outcome, none));
        let repetitions: Vec<_> = repetitions.collect();
        let turns: Vec<f64> = outcomes
            .iter()
            .flat_map(|outcome| outcome.turn_seconds.clone())
            .collect();
        let first = outcomes.into_iter().next();
        let mut run = Self::new(first.context("no repetition")?, none);
        run.turn_seconds_median = median(&turns);
        run.turn_seconds = Spread::new(&turns);
        run.reclaimed_bytes = repetitions.iter().map(|one| one.reclaimed_bytes).sum();
        run.repetitions = repetitions;
        Ok(run)
    }

    fn new(outcome: Outcome, none: &Reference) -> Self {
        let owned_bytes = outcome.mean(|sample| sample.owned_bytes);
        let outside_bytes = outcome.mean(|sample| sample.outside_bytes);
        let counted = outcome.counted();
        let change: i64 = counted
            .iter()
            .map(|sample| sample.available_change_bytes)
            .sum();
        let seconds = &outcome.turn_seconds;
        Self {
            owned_bytes,
            ratio: none.owned_bytes as f64 / (owned_bytes as f64).max(1.0),
            turn_seconds_median: median(seconds),
            turn_seconds: Spread::new(seconds),
            reclaimed_bytes: outcome.reclaimed_bytes,
            digests_equal: outcome.digests == none.digests,
            overhead_bytes: outcome.mean(Sample::overhead),
            pool_bytes: outcome.mean(|sample| sample.pool_bytes),
            shared_bytes: outcome.mean(|sample| sample.shared_bytes),
            anonymous_bytes: outcome.mean(|sample| sample.anonymous_bytes),
            outside_bytes,
            ratio_with_outside: none.owned_bytes as f64
                / ((owned_bytes + outside_bytes) as f64).max(1.0),
            available_change_bytes: change / (counted.len() as i64).max(1),
            pages_checked: outcome.pages_checked,
            page_mismatches: outcome.page_mismatches,
            digests: outcome.digests.iter().map(Vec::len).sum(),
            reclaim_seconds: outcome.reclaim_seconds,
            wait_seconds: outcome.wait_seconds,
            seconds: outcome.seconds,
            jobs: outcome.jobs,
            repetitions: Vec::new(),
            samples: outcome.samples,
            representations: outcome.representations,
            second_look: outcome.second_look,
            stores_saved: outcome.stores_saved,
            counters: outcome.counters,
            left_behind: outcome.left_behind,
        }
    }
}

/// What the other runs are compared with.
struct Reference {
    owned_bytes: u64,
    digests: Vec<Vec<String>>,
}

impl Reference {
    /// Whether these are the same digests. In a run of fewer turns the last one is of a walk that the
    /// reference has not done; the others are.
    fn has(&self, digests: &[Vec<String>]) -> bool {
        digests.len() == self.digests.len()
            && digests.iter().zip(&self.digests).all(|(some, all)| {
                some == all
                    || some.len() < all.len()
                        && some.len() > 1
                        && some[..some.len() - 1] == all[..some.len() - 1]
            })
    }
}

impl Run {
    /// The largest difference of both accounts of memory, in any repetition.
    fn largest_difference(&self) -> i64 {
        let others = self.repetitions.iter().skip(1);
        let others = others.map(|one| one.largest_difference_bytes);
        others
            .chain([largest_difference(&self.samples)])
            .max_by_key(|difference| difference.abs())
            .unwrap_or(0)
    }
}

impl Report {
    /// Puts the runs together and checks the conditions. `pairs`: with alignment to waits, and without.
    pub fn new(
        scenario: &Scenario,
        python: &str,
        outcomes: [Outcome; 2],
        pairs: Vec<[Outcome; 2]>,
    ) -> Result<Self> {
        let [none, zswap_zstd] = outcomes;
        let walks_equal = pairs
            .iter()
            .all(|[with, without]| with.digests == without.digests);
        let (aligned, unaligned) = pairs.into_iter().map(|[a, b]| (a, b)).unzip();
        let owned: u64 = none.shares.iter().map(|share| share.owned).sum();
        let fresh: u64 = none.shares.iter().map(|share| share.fresh).sum();
        let least = none
            .shares
            .iter()
            .map(|share| share.owned)
            .min()
            .unwrap_or(0);
        let last = none.samples.last().map_or(0, |sample| sample.owned_bytes);
        let reference = Reference {
            owned_bytes: none.mean(|sample| sample.owned_bytes),
            digests: none.digests.clone(),
        };
        let tolerance = TOLERANCE * reference.owned_bytes as f64;
        let runs = Runs {
            none: Run::new(none, &reference),
            zswap_zstd: Run::new(zswap_zstd, &reference),
            agentzip: Run::repeated(aligned, &reference)?,
            agentzip_no_wait_align: Run::repeated(unaligned, &reference)?,
        };
        let largest = runs
            .all()
            .iter()
            .map(|(_, run)| run.largest_difference())
            .max_by_key(|difference| difference.abs())
            .unwrap_or(0);
        let mut report = Self {
            kernel: read("/proc/sys/kernel/osrelease")?,
            accel: accel()?,
            sandboxes: scenario.sandboxes,
            turns: scenario.turns,
            seed: scenario.seed,
            python: python.to_owned(),
            owned_bytes_per_sandbox: last / (scenario.sandboxes as u64).max(1),
            owned_bytes_per_sandbox_min: least * super::pages::PAGE,
            fresh_share: fresh as f64 / (owned as f64).max(1.0),
            thp: "off in the zygote and all it forks (PR_SET_THP_DISABLE), in every configuration",
            reclaim: "memory.reclaim with swappiness=max until nothing is gained; in agentzip by the \
                      daemon, elsewhere 8 MiB at a time by the harness; vm.page-cluster 0",
            time_scale: scenario.time_scale,
            restore_on_first_token: scenario.restore,
            wait: "for all sandboxes together, from the hint llm-wait until all that they own is out and \
                   the second look is done: as long as that takes, so cpu_budget is 100 (see wait_seconds); \
                   hints by xattr only",
            turn: "from the hint first-token, upon which the tool begins at once, to its digest; without a \
                   daemon from the order to the tool",
            no_wait_align: "the module without daemon and hints: a timer takes as many bytes as were taken in the \
                            agentzip run before it, in as many jobs, evenly spaced over its time; waits \
                            are as long as there. Repetitions of both alternate; all but the first have \
                            fewer turns, the same in both. Turns are those of all repetitions",
            accounting: Accounting {
                tolerance_bytes: tolerance as u64,
                largest_difference_bytes: largest,
                note: "fall of MemAvailable (and of free pages in per-CPU lists) since before the \
                       sandboxes were forked, page tables and the daemon's anonymous memory taken out, against \
                       owned memory",
            },
            runs,
            checks: Vec::new(),
            passed: false,
        };
        report.check(tolerance, walks_equal);
        Ok(report)
    }

    /// Writes demo.json into `folder`.
    pub fn write(&self, folder: &Path) -> Result<()> {
        fs::create_dir_all(folder).with_context(|| format!("mkdir {}", folder.display()))?;
        let path = folder.join("demo.json");
        let text = serde_json::to_string_pretty(self)? + "\n";
        fs::write(&path, text).with_context(|| format!("write {}", path.display()))
    }

    /// How many conditions hold.
    pub fn tally(&self) -> Tally {
        let failed = self.checks.iter().filter(|check| !check.passed).count() as u32;
        Tally {
            passed: self.checks.len() as u32 - failed,
            failed,
        }
    }
}

impl Runs {
    fn all(&self) -> [(Configuration, &Run); 4] {
        [
            (Configuration::None, &self.none),
            (Configuration::ZswapZstd, &self.zswap_zstd),
            (Configuration::Agentzip, &self.agentzip),
            (
                Configuration::AgentzipNoWaitAlign,
                &self.agentzip_no_wait_align,
            ),
        ]
    }
}

fn read(path: &str) -> Result<String> {
    Ok(super::cgroup::read(Path::new(path))?.trim().to_owned())
}

/// What runs the guest, from the kernel command line.
fn accel() -> Result<String> {
    let cmdline = read("/proc/cmdline")?;
    let found = cmdline
        .split_ascii_whitespace()
        .find_map(|w| w.strip_prefix("agentzip.accel="));
    Ok(found.unwrap_or("unknown").to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::pages::Shares;
    use super::*;

    /// Runs as the demo wants them: without compression, zswap, and each kind of AgentZip's twice.
    fn outcomes() -> [Outcome; 6] {
        let outcome = |configuration, owned: u64| {
            let sample = Sample {
                owned_bytes: owned,
                available_change_bytes: owned as i64,
                ..Sample::default()
            };
            let swapped = u64::from(configuration != Configuration::None);
            Outcome {
                configuration,
                digests: vec![vec!["a".into(), "b".into()]],
                samples: vec![Sample::default(), sample.clone(), sample],
                turn_seconds: vec![1.0],
                reclaim_seconds: vec![1.0; 3],
                wait_seconds: vec![2.0; 3],
                active_seconds: 8.0,
                reclaimed_bytes: 100,
                jobs: None,
                pages_checked: swapped,
                page_mismatches: 0,
                shares: vec![Shares {
                    owned: 8192,
                    fresh: 4096,
                }],
                representations: Vec::new(),
                second_look: configuration.uses_module().then(SecondLook::default),
                stores_saved: None,
                counters: [("load_errors".to_owned(), 0)].into(),
                left_behind: Vec::new(),
                seconds: 9.0,
            }
        };
        [
            outcome(Configuration::None, 32 << 20),
            outcome(Configuration::ZswapZstd, 8 << 20),
            outcome(Configuration::Agentzip, 3 << 20),
            unaligned(outcome(Configuration::AgentzipNoWaitAlign, 4 << 20)),
            outcome(Configuration::Agentzip, 3 << 20),
            unaligned(outcome(Configuration::AgentzipNoWaitAlign, 4 << 20)),
        ]
    }

    fn unaligned(outcome: Outcome) -> Outcome {
        Outcome {
            turn_seconds: vec![1.5],
            reclaimed_bytes: 95,
            ..outcome
        }
    }

    fn failed(outcomes: [Outcome; 6]) -> Vec<String> {
        let scenario = Scenario::default();
        let [none, zswap, a, b, c, d] = outcomes;
        let pairs = vec![[a, b], [c, d]];
        let report = Report::new(&scenario, "3", [none, zswap], pairs).unwrap();
        assert_eq!(report.passed, report.tally().failed == 0);
        report
            .checks
            .into_iter()
            .filter(|c| !c.passed)
            .map(|c| c.name)
            .collect()
    }

    #[test]
    fn good_runs_pass() {
        assert_eq!(failed(outcomes()), Vec::<String>::new());
    }

    type Breaking = fn(&mut [Outcome; 6]);

    #[test]
    fn each_condition_fails_alone() {
        let broken: [(&str, Breaking); 15] = [
            ("digests", |o| o[1].digests[0][1] = "c".into()),
            ("unchanged", |o| o[2].page_mismatches = 1),
            ("unchanged", |o| o[1].pages_checked = 0),
            ("MemAvailable", |o| {
                o[2].samples[1].available_change_bytes += 2 << 20
            }),
            ("left behind", |o| o[2].left_behind.push("1 entry".into())),
            ("no load failed", |o| o[2].counters.clear()),
            ("unchanged", |o| o[4].page_mismatches = 1),
            ("left behind", |o| o[5].left_behind.push("1 entry".into())),
            ("no load failed", |o| o[5].counters.clear()),
            ("as much was reclaimed", |o| o[5].reclaimed_bytes = 111),
            ("shorter with alignment", |o| {
                o[3].turn_seconds = vec![0.8];
                o[5].turn_seconds = vec![1.1];
            }),
            ("second look", |o| {
                o[4].second_look.as_mut().unwrap().pages_left = 3
            }),
            ("second look", |o| o[2].second_look = None),
            ("fresh pages", |o| o[0].shares[0].fresh = 8000),
            ("at least 2.4", |o| {
                for sample in &mut o[2].samples {
                    sample.owned_bytes = 5 << 20;
                    sample.available_change_bytes = 5 << 20;
                }
            }),
        ];
        for (name, breaking) in broken {
            let mut outcomes = outcomes();
            breaking(&mut outcomes);
            let failed = failed(outcomes);
            assert!(
                failed.len() == 1 && failed[0].contains(name),
                "{name}: {failed:?}"
            );
        }
    }

    #[test]
    fn digests_of_fewer_turns() {
        let digests = |all: &[&str]| vec![all.iter().map(ToString::to_string).collect::<Vec<_>>()];
        let reference = Reference {
            owned_bytes: 1,
            digests: digests(&["1", "2", "3", "walk"]),
        };
        assert!(reference.has(&digests(&["1", "2", "3", "walk"])));
        assert!(reference.has(&digests(&["1", "2", "another walk"])));
        for bad in [
            &["1", "2", "3", "another walk"][..],
            &["1", "3", "walk"],
            &["walk"],
            &["1", "2", "3", "walk", "more"],
        ] {
            assert!(!reference.has(&digests(bad)), "{bad:?}");
        }
        assert!(!reference.has(&[]));
    }

    #[test]
    fn medians_and_quantiles() {
        assert_eq!(median(&[]), 0.0);
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(quantile(&[3.0, 1.0, 2.0], 1.0), 3.0);
        assert_eq!(quantile(&[], 0.5), 0.0);
    }
}
