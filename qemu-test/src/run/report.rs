// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The demo's report: demo.json, the table, and the conditions it must meet.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

use super::backend::{Configuration, Representation};
use super::memory::Sample;
use super::saved::StoresSaved;
use super::scenario::{mebibytes, Outcome, Scenario};
use super::waiting::SecondLook;
use crate::verdict::Tally;

/// AgentZip's ratio over that of zswap with zstd that the demo demands.
const WANTED_GAIN: f64 = 2.4;
/// Largest ratio of zswap with zstd at which the workload is no easier than real.
const ZSWAP_RATIO_MAX: f64 = 4.5;
/// Least owned memory of a sandbox at the last wait.
const OWNED_MIN: u64 = 24 << 20;
/// Share of owned pages that must be fresh.
const FRESH: std::ops::RangeInclusive<f64> = 0.40..=0.65;
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
}

#[derive(Debug, Serialize)]
struct Run {
    owned_bytes: u64,
    ratio: f64,
    turn_seconds_median: f64,
    turn_seconds: Spread,
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
    /// Mean of the fall of MemAvailable over the same waits, page tables taken out.
    available_change_bytes: i64,
    pages_checked: u64,
    page_mismatches: u64,
    digests: usize,
    reclaim_seconds: Vec<f64>,
    seconds: f64,
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

/// One condition.
#[derive(Debug, Serialize)]
struct Check {
    name: String,
    passed: bool,
    detail: String,
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

impl Run {
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
            turn_seconds: Spread {
                count: seconds.len(),
                min: quantile(seconds, 0.0),
                lower_quartile: quantile(seconds, 0.25),
                upper_quartile: quantile(seconds, 0.75),
                max: quantile(seconds, 1.0),
            },
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
            seconds: outcome.seconds,
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

impl Report {
    /// Puts the three runs together and checks the conditions.
    pub fn new(scenario: &Scenario, python: &str, outcomes: [Outcome; 3]) -> Result<Self> {
        let [none, zswap_zstd, agentzip] = outcomes;
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
            agentzip: Run::new(agentzip, &reference),
        };
        let largest = runs
            .all()
            .iter()
            .flat_map(|(_, run)| &run.samples)
            .map(Sample::difference)
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
            reclaim: "memory.reclaim, 8 MiB swappiness=max at a time until nothing is gained, \
                      by the same function in every configuration; vm.page-cluster 0",
            accounting: Accounting {
                tolerance_bytes: tolerance as u64,
                largest_difference_bytes: largest,
                note: "fall of MemAvailable (and of free pages in per-CPU lists) since before the \
                       sandboxes were forked, page tables taken out, against owned memory",
            },
            runs,
            checks: Vec::new(),
            passed: false,
        };
        report.check(tolerance);
        Ok(report)
    }

    fn check(&mut self, tolerance: f64) {
        let mut checks = Vec::new();
        let mut check = |name: String, passed: bool, detail: String| {
            checks.push(Check {
                name,
                passed,
                detail,
            });
        };
        for (configuration, run) in self.runs.all() {
            let name = configuration.name();
            check(
                format!("{name}: digests equal those without compression"),
                run.digests_equal && run.digests > 0,
                format!("{} digests", run.digests),
            );
            let expected = configuration != Configuration::None;
            check(
                format!("{name}: pages read back are unchanged"),
                run.page_mismatches == 0 && (run.pages_checked > 0) == expected,
                format!(
                    "{} checked, {} differ",
                    run.pages_checked, run.page_mismatches
                ),
            );
            let worst = run
                .samples
                .iter()
                .map(|s| s.difference().abs())
                .max()
                .unwrap_or(i64::MAX);
            check(
                format!("{name}: owned memory agrees with MemAvailable"),
                worst as f64 <= tolerance,
                format!(
                    "at most {:.2} MiB apart, {:.2} allowed",
                    mebibytes(worst as f64),
                    mebibytes(tolerance)
                ),
            );
            check(
                format!("{name}: nothing left behind"),
                run.left_behind.is_empty(),
                run.left_behind.join(", "),
            );
        }
        let counters = &self.runs.agentzip.counters;
        let errors = counters.get("load_errors").copied().unwrap_or(u64::MAX);
        check(
            "agentzip: no load failed".into(),
            errors == 0,
            format!("{errors} load errors"),
        );
        check(
            "workload: owned memory of every sandbox".into(),
            self.owned_bytes_per_sandbox_min >= OWNED_MIN,
            format!(
                "{:.1} MiB at least",
                mebibytes(self.owned_bytes_per_sandbox_min as f64)
            ),
        );
        check(
            "workload: share of fresh pages".into(),
            FRESH.contains(&self.fresh_share),
            format!("{:.1}%", 100.0 * self.fresh_share),
        );
        let (zswap, agentzip) = (self.runs.zswap_zstd.ratio, self.runs.agentzip.ratio);
        check(
            "workload: zswap's ratio".into(),
            zswap > 1.0 && zswap <= ZSWAP_RATIO_MAX,
            format!("{zswap:.2}"),
        );
        check(
            format!("AgentZip's ratio at least {WANTED_GAIN} times zswap's"),
            agentzip >= WANTED_GAIN * zswap,
            format!(
                "{agentzip:.2} is {:.2} times {zswap:.2}",
                agentzip / zswap.max(f64::MIN_POSITIVE)
            ),
        );
        self.passed = checks.iter().all(|check| check.passed);
        self.checks = checks;
    }

    /// Writes demo.json into `folder`.
    pub fn write(&self, folder: &Path) -> Result<()> {
        fs::create_dir_all(folder).with_context(|| format!("mkdir {}", folder.display()))?;
        let path = folder.join("demo.json");
        let text = serde_json::to_string_pretty(self)? + "\n";
        fs::write(&path, text).with_context(|| format!("write {}", path.display()))
    }

    /// Prints the tables, every line for the user.
    pub fn print(&self) {
        let line = |text: String| println!("@@ {text}");
        line(String::new());
        line(format!(
            "{} sandboxes forked from one Python {} zygote, Linux {} ({}), owned memory while all wait for the LLM",
            self.sandboxes, self.python, self.kernel, self.accel
        ));
        line(format!(
            "{:<11} {:>9} {:>6} {:>9} {:>9} {:>9} {:>9} {:>9} {:>7} {:>8} {:>8}",
            "MiB",
            "owned",
            "ratio",
            "anon",
            "pool",
            "metadata",
            "outside",
            "MemAvail",
            "turn s",
            "checked",
            "digests"
        ));
        for (configuration, run) in self.runs.all() {
            line(format!(
                "{:<11} {:>9.2} {:>6.2} {:>9.2} {:>9.2} {:>9.2} {:>9.2} {:>9.2} {:>7.2} {:>8} {:>8}",
                configuration.name(),
                mebibytes(run.owned_bytes as f64),
                run.ratio,
                mebibytes(run.anonymous_bytes as f64),
                mebibytes(run.pool_bytes as f64),
                mebibytes(run.overhead_bytes as f64),
                mebibytes(run.outside_bytes as f64),
                mebibytes(run.available_change_bytes as f64),
                run.turn_seconds_median,
                run.pages_checked,
                if run.digests_equal { "equal" } else { "DIFFER" },
            ));
        }
        line("owned = anon + pool + metadata, mean over the waits from the second on; outside: swapped out, but zero-filled or on the disk".into());
        line("MemAvail: the fall of MemAvailable over the same time; turn s: median of the turns after a wait; checked: pages read back".into());
        line(String::new());
        line(format!(
            "{:<12} {:>9} {:>7} {:>11} {:>13}",
            "AgentZip", "pages", "share", "bytes", "bytes a page"
        ));
        let stored: u64 = self
            .runs
            .agentzip
            .representations
            .iter()
            .map(|r| r.pages)
            .sum();
        for representation in &self.runs.agentzip.representations {
            line(format!(
                "{:<12} {:>9} {:>6.1}% {:>11} {:>13.1}",
                representation.name,
                representation.pages,
                100.0 * representation.pages as f64 / (stored as f64).max(1.0),
                representation.bytes,
                representation.bytes_per_page
            ));
        }
        line(format!(
            "bytes: payloads in the sandboxes' arenas; {:.2} MiB of the pool are reference pages, which siblings share",
            mebibytes(self.runs.agentzip.shared_bytes as f64)
        ));
        if let Some(look) = &self.runs.agentzip.second_look {
            line(format!(
                "second look: {} pages, {} left, in {:.0} CPU seconds (stores and loads: {:.0}); a wait lasts until it is done: {} s",
                look.pages,
                look.pages_left,
                look.cpu_seconds,
                look.store_and_load_cpu_seconds,
                list(&look.wait_seconds),
            ));
        }
        if let Some(saved) = &self.runs.agentzip.stores_saved {
            line(format!(
                "{} pages reclaimed, {} stored; {} unchanged since they were loaded, so {:.0}% of the stores were saved",
                saved.reclaimed_pages,
                saved.stored_pages,
                saved.saved_pages,
                100.0 * saved.share
            ));
        }
        line(String::new());
        line(format!(
            "a sandbox owns {:.1} MiB at the last wait (at least {:.1}), {:.0}% of its pages fresh; THP {}",
            mebibytes(self.owned_bytes_per_sandbox as f64),
            mebibytes(self.owned_bytes_per_sandbox_min as f64),
            100.0 * self.fresh_share,
            self.thp
        ));
        for check in &self.checks {
            let word = if check.passed { "ok    " } else { "NOT OK" };
            line(format!("{word} {} ({})", check.name, check.detail));
        }
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
    fn all(&self) -> [(Configuration, &Run); 3] {
        [
            (Configuration::None, &self.none),
            (Configuration::ZswapZstd, &self.zswap_zstd),
            (Configuration::Agentzip, &self.agentzip),
        ]
    }
}

fn read(path: &str) -> Result<String> {
    Ok(super::cgroup::read(Path::new(path))?.trim().to_owned())
}

/// Whole seconds, side by side.
fn list(seconds: &[f64]) -> String {
    let seconds: Vec<String> = seconds.iter().map(|s| format!("{s:.0}")).collect();
    seconds.join(", ")
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

    /// Three runs as the demo wants them.
    fn outcomes() -> [Outcome; 3] {
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
                pages_checked: swapped,
                page_mismatches: 0,
                shares: vec![Shares {
                    owned: 8192,
                    fresh: 4096,
                }],
                representations: Vec::new(),
                second_look: None,
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
        ]
    }

    fn failed(outcomes: [Outcome; 3]) -> Vec<String> {
        let scenario = Scenario::default();
        let report = Report::new(&scenario, "3", outcomes).unwrap();
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

    type Breaking = fn(&mut [Outcome; 3]);

    #[test]
    fn each_condition_fails_alone() {
        let broken: [(&str, Breaking); 8] = [
            ("digests", |o| o[1].digests[0][1] = "c".into()),
            ("unchanged", |o| o[2].page_mismatches = 1),
            ("unchanged", |o| o[1].pages_checked = 0),
            ("MemAvailable", |o| {
                o[2].samples[1].available_change_bytes += 2 << 20
            }),
            ("left behind", |o| o[2].left_behind.push("1 entry".into())),
            ("no load failed", |o| o[2].counters.clear()),
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
    fn medians_and_quantiles() {
        assert_eq!(median(&[]), 0.0);
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(quantile(&[3.0, 1.0, 2.0], 1.0), 3.0);
        assert_eq!(quantile(&[], 0.5), 0.0);
    }
}
