// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What the runs must show.

use serde::Serialize;

use super::super::backend::Configuration;
use super::super::scenario::mebibytes;
use super::Report;

/// AgentZip's ratio over that of zswap with zstd that the demo demands.
const WANTED_GAIN: f64 = 2.4;
/// Largest ratio of zswap with zstd at which the workload is no easier than real.
const ZSWAP_RATIO_MAX: f64 = 4.5;
/// Least owned memory of a sandbox at the last wait.
const OWNED_MIN: u64 = 24 << 20;
/// Share of owned pages that must be fresh.
const FRESH: std::ops::RangeInclusive<f64> = 0.40..=0.65;
/// Largest difference of what was reclaimed with and without alignment, as a share of the former.
const VOLUME_TOLERANCE: f64 = 0.10;

/// One condition.
#[derive(Debug, Serialize)]
pub(super) struct Check {
    pub(super) name: String,
    pub(super) passed: bool,
    pub(super) detail: String,
}

impl Report {
    /// Tries every condition. `tolerance`: most bytes that the two accounts may be apart; `walks_equal`: the last
    /// walks with and without alignment had the same digests.
    pub(super) fn check(&mut self, tolerance: f64, walks_equal: bool) {
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
                run.digests_equal
                    && run.digests > 0
                    && run.repetitions.iter().all(|one| one.digests_equal),
                format!("{} digests", run.digests),
            );
            let expected = configuration != Configuration::None;
            let mut checked = vec![(run.pages_checked, run.page_mismatches)];
            // The first one is the run itself.
            let others = run.repetitions.iter().skip(1);
            checked.extend(others.map(|one| (one.pages_checked, one.page_mismatches)));
            let all = checked.iter().all(|one| (one.0 > 0) == expected);
            let pages: u64 = checked.iter().map(|one| one.0).sum();
            let wrong: u64 = checked.iter().map(|one| one.1).sum();
            check(
                format!("{name}: pages read back are unchanged"),
                wrong == 0 && all,
                format!("{pages} checked, {wrong} differ"),
            );
            let worst = run.largest_difference().unsigned_abs();
            check(
                format!("{name}: owned memory agrees with MemAvailable"),
                worst as f64 <= tolerance && !run.samples.is_empty(),
                format!(
                    "at most {:.2} MiB apart, {:.2} allowed",
                    mebibytes(worst as f64),
                    mebibytes(tolerance)
                ),
            );
            let mut left = run.left_behind.clone();
            left.extend(
                run.repetitions
                    .iter()
                    .skip(1)
                    .flat_map(|one| one.left_behind.clone()),
            );
            check(
                format!("{name}: nothing left behind"),
                left.is_empty(),
                left.join(", "),
            );
            if configuration.uses_module() {
                let errors = run.repetitions.iter().map(|one| one.load_errors).max();
                let errors = errors.unwrap_or(u64::MAX);
                check(
                    format!("{name}: no load failed"),
                    errors == 0,
                    format!("{errors} load errors"),
                );
            }
        }
        check(
            "digests with and without alignment are equal".into(),
            walks_equal,
            "those of the last walks too".into(),
        );
        let (with, without) = (&self.runs.agentzip, &self.runs.agentzip_no_wait_align);
        check(
            "without alignment as much was reclaimed".into(),
            with.repetitions
                .iter()
                .zip(&without.repetitions)
                .all(|(with, without)| {
                    let difference = with.reclaimed_bytes.abs_diff(without.reclaimed_bytes);
                    difference as f64 <= VOLUME_TOLERANCE * with.reclaimed_bytes as f64
                }),
            format!(
                "{:.0} and {:.0} MiB; within {:.0}% in each repetition",
                mebibytes(with.reclaimed_bytes as f64),
                mebibytes(without.reclaimed_bytes as f64),
                100.0 * VOLUME_TOLERANCE
            ),
        );
        check(
            "turns are shorter with alignment".into(),
            with.turn_seconds_median < without.turn_seconds_median,
            format!(
                "median {:.2} s, {:.2} without",
                with.turn_seconds_median, without.turn_seconds_median
            ),
        );
        let looks = with.repetitions.iter().map(|one| &one.second_look);
        let left: Vec<u64> = looks.flatten().map(|look| look.pages_left).collect();
        check(
            "every page has had its second look".into(),
            left.len() == with.repetitions.len() && left.iter().all(|&pages| pages == 0),
            format!("{} pages left at a last wait", left.iter().sum::<u64>()),
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
}
