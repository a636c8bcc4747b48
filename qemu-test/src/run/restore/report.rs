// SPDX-License-Identifier: GPL-2.0 OR MIT
//! restore.json, and the table for people.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{ensure, Context, Result};
use serde::Serialize;

use super::cost::Cost;
use super::turns::{Call, Outcome};
use super::{Args, Way, LEARNING_TURNS};
use crate::run::cgroup;
use crate::run::daemon::Restore;
use crate::verdict::Tally;

/// restore.json.
#[derive(Debug, Serialize)]
pub struct Report {
    kernel: String,
    accel: String,
    python: String,
    sandboxes: usize,
    turns: usize,
    learning_turns: usize,
    seed: u64,
    parallel: usize,
    /// How many times slower than on hardware everything was taken to be.
    time_scale: f64,
    /// From the first token to the tool call, in ms on hardware.
    gap_ms: u64,
    how: &'static str,
    configurations: BTreeMap<&'static str, Configuration>,
    targets: Vec<Target>,
    #[serde(skip)]
    order: Vec<&'static str>,
}

/// One configuration.
#[derive(Debug, Serialize)]
struct Configuration {
    /// Sum of the times of all turns over that without compression.
    slowdown: f64,
    /// The same over the run without compression that was made last.
    slowdown_again: f64,
    /// 99th percentile of the first tool call of a turn over that without compression.
    p99_first_tool_ratio: f64,
    /// The same over the run without compression that was made last.
    p99_first_tool_ratio_again: f64,
    /// See [`Cost::coverage`]; 0 where nothing is restored.
    coverage: f64,
    /// See [`Cost::hit_ratio`]: of what was expected to be touched; 0 where nothing is.
    hit_ratio: f64,
    /// CPU time of the tool calls over that without compression.
    cpu_ratio: f64,
    /// Time in which tool calls could run and had no CPU, over the time of those without compression.
    queued_ratio: f64,
    /// Pages that tools wanted for each page that was restored, expected or not; 0 where none is.
    used_ratio: f64,
    /// What a fault that waits for its page adds to a turn, in ns.
    fault_ns: f64,
    /// See [`Cost::decode_ns`].
    decode_ns: f64,
    /// Each turn over the same one without compression.
    turn_ratio: Spread,
    /// Each first call over the same one without compression.
    first_tool_ratio: Spread,
    turn_seconds: Spread,
    first_tool_seconds: Spread,
    /// First calls by tool: median over that without compression.
    first_tool_ratio_median_by_tool: BTreeMap<&'static str, f64>,
    major_faults_per_turn: f64,
    demand_faults_per_turn: f64,
    prefetched_per_turn: f64,
    untested_per_turn: f64,
    prefetch_ns_per_hit: f64,
    owned_bytes: u64,
    /// Owned memory without compression over this.
    ratio: f64,
    cost: Cost,
    digests: usize,
    digests_equal: bool,
    left_behind: Vec<String>,
    seconds: f64,
}

/// How values are distributed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
struct Spread {
    samples: usize,
    median: f64,
    quartile_low: f64,
    quartile_high: f64,
    p99: f64,
}

/// A figure that is asked for.
#[derive(Debug, Serialize)]
struct Target {
    name: &'static str,
    value: f64,
    wanted: String,
    met: bool,
}

impl Spread {
    fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        Self {
            samples: values.len(),
            median: quantile(&values, 0.5),
            quartile_low: quantile(&values, 0.25),
            quartile_high: quantile(&values, 0.75),
            p99: quantile(&values, 0.99),
        }
    }
}

/// The smallest of the sorted values that is not below this share of them.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let index = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(index.max(1) - 1).copied().unwrap_or(0.0)
}

/// Times of whole turns, in the order of the calls.
fn turns(calls: &[Call]) -> Vec<f64> {
    let mut turns: Vec<f64> = Vec::new();
    for call in calls {
        match turns.last_mut() {
            Some(turn) if !call.first => *turn += call.seconds,
            _ => turns.push(call.seconds),
        }
    }
    turns
}

fn firsts(calls: &[Call]) -> Vec<&Call> {
    calls.iter().filter(|call| call.first).collect()
}

fn seconds(calls: &[&Call]) -> Vec<f64> {
    calls.iter().map(|call| call.seconds).collect()
}

/// Each over its counterpart.
fn ratios(these: &[f64], those: &[f64]) -> Vec<f64> {
    let pairs = these.iter().zip(those);
    pairs.map(|(this, that)| this / that.max(1e-9)).collect()
}

/// What a configuration is compared with.
#[derive(Clone, Copy)]
struct Bases<'a> {
    /// The run without compression.
    none: &'a Outcome,
    /// That which was made last.
    again: &'a Outcome,
    /// The run without prefetch.
    without: Option<&'a Outcome>,
}

impl Configuration {
    fn new(outcome: &Outcome, bases: Bases) -> Result<Self> {
        let Bases {
            none,
            again,
            without,
        } = bases;
        let same = |call: &Call| (call.sandbox, call.turn, call.first, call.tool);
        ensure!(
            outcome
                .calls
                .iter()
                .map(same)
                .eq(none.calls.iter().map(same)),
            "{}: other calls were made than without compression",
            outcome.way.name()
        );
        let (mine, base) = (turns(&outcome.calls), turns(&none.calls));
        let (first, base_first) = (firsts(&outcome.calls), firsts(&none.calls));
        let (first_seconds, base_seconds) = (seconds(&first), seconds(&base_first));
        let first_ratios = ratios(&first_seconds, &base_seconds);
        let mut by_tool: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        for (call, ratio) in first.iter().zip(&first_ratios) {
            by_tool.entry(call.tool).or_default().push(*ratio);
        }
        let count = mine.len().max(1) as f64;
        let first_tool_seconds = Spread::of(first_seconds);
        let p99_over = |base: &[f64]| {
            let base = Spread::of(base.iter().copied()).p99;
            first_tool_seconds.p99 / base.max(1e-9)
        };
        let cost = outcome.cost;
        let without = without.map(|without| &without.cost);
        let ran = |outcome: &Outcome| {
            outcome
                .calls
                .iter()
                .map(|call| call.scheduled.ran)
                .sum::<f64>()
        };
        let queued = outcome
            .calls
            .iter()
            .map(|call| call.scheduled.queued)
            .sum::<f64>();
        let (all, all_base) = (mine.iter().sum::<f64>(), base.iter().sum::<f64>());
        let ratio = |part: f64, whole: u64| if whole == 0 { 0.0 } else { part / whole as f64 };
        let wanted = without.map_or(cost.hits + cost.major_faults, |without| {
            without.major_faults
        });
        let spared = wanted.saturating_sub(cost.major_faults) as f64;
        Ok(Self {
            slowdown: all / all_base.max(1e-9),
            slowdown_again: all / turns(&again.calls).iter().sum::<f64>().max(1e-9),
            cpu_ratio: ran(outcome) / ran(none).max(1e-9),
            queued_ratio: queued / all_base.max(1e-9),
            p99_first_tool_ratio: p99_over(&base_seconds),
            p99_first_tool_ratio_again: p99_over(&seconds(&firsts(&again.calls))),
            coverage: match outcome.way.restore() {
                Restore::Nothing => 0.0,
                _ => cost.coverage(without).unwrap_or(0.0),
            },
            hit_ratio: cost.hit_ratio().unwrap_or(0.0),
            used_ratio: ratio(spared, cost.prefetched),
            fault_ns: ratio((all - all_base).max(0.0) * 1e9, cost.major_faults),
            decode_ns: cost.decode_ns().unwrap_or(0.0),
            turn_ratio: Spread::of(ratios(&mine, &base)),
            first_tool_ratio: Spread::of(first_ratios),
            turn_seconds: Spread::of(mine),
            first_tool_seconds,
            first_tool_ratio_median_by_tool: by_tool
                .into_iter()
                .map(|(tool, ratios)| (tool, Spread::of(ratios).median))
                .collect(),
            major_faults_per_turn: cost.major_faults as f64 / count,
            demand_faults_per_turn: cost.demand_faults as f64 / count,
            prefetched_per_turn: cost.prefetched as f64 / count,
            untested_per_turn: cost.untested as f64 / count,
            prefetch_ns_per_hit: cost.ns_per_hit().unwrap_or(0.0),
            owned_bytes: outcome.owned_bytes,
            ratio: none.owned_bytes as f64 / (outcome.owned_bytes as f64).max(1.0),
            cost,
            digests: outcome.digests.iter().map(Vec::len).sum(),
            digests_equal: outcome.digests == none.digests,
            left_behind: outcome.left_behind.clone(),
            seconds: outcome.seconds,
        })
    }
}

impl Report {
    /// Makes the report of configurations that include [`Way::None`] and [`Way::NoneAgain`].
    pub fn new(args: &Args, python: &str, outcomes: &[Outcome]) -> Result<Self> {
        let find = |way: Way| outcomes.iter().find(|outcome| outcome.way == way);
        let bases = Bases {
            none: find(Way::None).context("there is no run without compression")?,
            again: find(Way::NoneAgain).context("there is no last run without compression")?,
            without: find(Way::AgentzipNoPrefetch),
        };
        let mut configurations = BTreeMap::new();
        for outcome in outcomes {
            let configuration = Configuration::new(outcome, bases)?;
            configurations.insert(outcome.way.name(), configuration);
        }
        let kernel = cgroup::read(Path::new("/proc/sys/kernel/osrelease"))?;
        let targets = targets(&configurations);
        Ok(Self {
            kernel: kernel.trim().to_owned(),
            accel: std::env::var("AGENTZIP_ACCEL").unwrap_or_else(|_| "unknown".to_owned()),
            python: python.to_owned(),
            sandboxes: args.sandboxes,
            turns: args.turns,
            learning_turns: LEARNING_TURNS,
            seed: args.seed,
            parallel: args.parallel,
            time_scale: args.time_scale,
            gap_ms: args.gap_ms,
            how: "one guest; in each turn: first-token, the gap times 0.5 to 1.5, one or two tool calls and a note, llm-wait until \
                  all memory is out; times from tool-start to the result, the gap not counted",
            configurations,
            targets,
            order: outcomes.iter().map(|outcome| outcome.way.name()).collect(),
        })
    }

    /// Writes restore.json.
    pub fn write(&self, folder: &Path) -> Result<()> {
        crate::run::write(folder, "restore.json", self)
    }

    /// Prints the table, every line for the user.
    pub fn print(&self) {
        println!("@@");
        println!(
            "@@ {} sandboxes, {} turns of each count, time scale {:.1}, {} ms from first token to tool call",
            self.sandboxes,
            self.turns - self.learning_turns,
            self.time_scale,
            self.gap_ms
        );
        println!(
            "@@ {:<22} {:>8} {:>6} {:>8} {:>8} {:>8} {:>8} {:>6} {:>6} {:>7} {:>7} {:>6} {:>7} {:>7}",
            "",
            "slowdown",
            "again",
            "turn s",
            "first s",
            "p99 s",
            "p99 x",
            "cpu x",
            "queued",
            "faults",
            "restore",
            "cover",
            "hits",
            "memory"
        );
        let ordered = self.order.iter();
        for (name, one) in ordered.filter_map(|name| Some((name, self.configurations.get(name)?))) {
            println!(
                "@@ {:<22} {:>8.2} {:>6.2} {:>8.3} {:>8.3} {:>8.3} {:>8.2} {:>6.2} {:>6.2} {:>7.0} {:>7.0} {:>6.2} {:>7.2} {:>7.2}{}",
                name,
                one.slowdown,
                one.slowdown_again,
                one.turn_seconds.median,
                one.first_tool_seconds.median,
                one.first_tool_seconds.p99,
                one.p99_first_tool_ratio,
                one.cpu_ratio,
                one.queued_ratio,
                one.major_faults_per_turn,
                one.prefetched_per_turn,
                one.coverage,
                one.hit_ratio,
                one.ratio,
                if one.digests_equal { "" } else { "  RESULTS DIFFER" }
            );
        }
        println!("@@ slowdown: over none; again: over none_again");
        println!("@@ turn s, first s: medians of turns and of their first calls; faults and restored pages for a turn; memory: ratio");
        println!("@@ cpu x: CPU time of the calls over that without compression; queued: time without a CPU, over that of those calls");
        for target in &self.targets {
            println!(
                "@@ {}: {:.3}, wanted {}: {}",
                target.name,
                target.value,
                target.wanted,
                if target.met { "met" } else { "MISSED" }
            );
        }
    }

    /// Whether results were right and nothing was left. Times are no conditions.
    pub fn tally(&self) -> Tally {
        let right = |one: &&Configuration| one.digests_equal && one.left_behind.is_empty();
        let passed = self.configurations.values().filter(right).count() as u32;
        Tally {
            passed,
            failed: self.configurations.len() as u32 - passed,
        }
    }
}

/// What is asked for, where it was measured. Of the two runs without compression the faster one counts.
fn targets(configurations: &BTreeMap<&'static str, Configuration>) -> Vec<Target> {
    let mut targets = Vec::new();
    let Some(all) = configurations.get(Way::Agentzip.name()) else {
        return targets;
    };
    let mut at_most = |name, value: f64, most: f64| {
        targets.push(Target {
            name,
            value,
            wanted: format!("at most {most}"),
            met: value <= most,
        });
    };
    at_most("slowdown", all.slowdown.max(all.slowdown_again), 1.10);
    at_most(
        "p99 of first tools over none",
        all.p99_first_tool_ratio.max(all.p99_first_tool_ratio_again),
        1.5,
    );
    if let Some(without) = configurations.get(Way::AgentzipNoPrefetch.name()) {
        let change = (all.ratio / without.ratio.max(1e-9) - 1.0).abs();
        at_most(
            "memory ratio, distance to that without prefetch",
            change,
            0.03,
        );
    }
    let mut at_least = |name, value: f64, least: f64| {
        targets.push(Target {
            name,
            value,
            wanted: format!("at least {least}"),
            met: value >= least,
        });
    };
    at_least("coverage", all.coverage, 0.80);
    at_least("hit ratio", all.hit_ratio, 0.70);
    targets
}

#[cfg(test)]
mod tests {
    use super::super::cost::Scheduled;
    use super::*;

    fn call(first: bool, seconds: f64) -> Call {
        Call {
            sandbox: 0,
            turn: 3,
            first,
            tool: "search",
            seconds,
            scheduled: Scheduled {
                ran: seconds / 2.0,
                queued: seconds / 4.0,
            },
        }
    }

    fn outcome(way: Way, times: &[f64]) -> Outcome {
        Outcome {
            way,
            calls: times
                .iter()
                .flat_map(|time| [call(true, *time), call(false, 1.0)])
                .collect(),
            digests: vec![vec!["a".to_owned()]],
            cost: Cost::default(),
            owned_bytes: 100,
            left_behind: Vec::new(),
            seconds: 1.0,
        }
    }

    fn bases<'a>(none: &'a Outcome, again: &'a Outcome) -> Bases<'a> {
        Bases {
            none,
            again,
            without: None,
        }
    }

    #[test]
    fn ratios_are_of_the_same_calls() {
        let none = outcome(Way::None, &[1.0, 3.0]);
        let bases = bases(&none, &none);
        let slow = Configuration::new(&outcome(Way::Agentzip, &[2.0, 3.0]), bases).unwrap();
        assert_eq!(slow.slowdown, 7.0 / 6.0);
        assert_eq!((slow.cpu_ratio, slow.queued_ratio), (7.0 / 6.0, 7.0 / 24.0));
        assert_eq!(slow.p99_first_tool_ratio, 1.0);
        assert_eq!(slow.first_tool_ratio.p99, 2.0);
        assert_eq!(slow.turn_ratio.samples, 2);
        assert!(slow.digests_equal);
        let other = outcome(Way::Agentzip, &[2.0]);
        assert!(Configuration::new(&other, bases).is_err());
    }

    #[test]
    fn the_faster_run_without_compression_counts() {
        let (none, again) = (
            outcome(Way::None, &[2.0, 2.0]),
            outcome(Way::NoneAgain, &[1.0, 1.0]),
        );
        for (bases, reached) in [
            (bases(&none, &again), [7.0 / 4.0, 2.5]),
            (bases(&again, &none), [7.0 / 4.0, 2.5]),
        ] {
            let one = Configuration::new(&outcome(Way::Agentzip, &[2.5, 2.5]), bases).unwrap();
            let targets = targets(&BTreeMap::from([(Way::Agentzip.name(), one)]));
            assert_eq!([targets[0].value, targets[1].value], reached);
        }
    }

    #[test]
    fn who_restores_nothing_covers_nothing() {
        let without = Outcome {
            cost: Cost {
                major_faults: 100,
                ..Cost::default()
            },
            ..outcome(Way::AgentzipNoPrefetch, &[1.0])
        };
        let coverage = |way| {
            let outcome = outcome(way, &[1.0]);
            let bases = Bases {
                without: Some(&without),
                ..bases(&outcome, &outcome)
            };
            Configuration::new(&outcome, bases).unwrap().coverage
        };
        assert_eq!(coverage(Way::None), 0.0);
        assert_eq!(coverage(Way::Agentzip), 1.0);
    }

    #[test]
    fn quantiles() {
        let values: Vec<f64> = (1..=200).map(f64::from).collect();
        let spread = Spread::of(values);
        assert_eq!((spread.median, spread.p99), (100.0, 198.0));
        assert_eq!((spread.quartile_low, spread.quartile_high), (50.0, 150.0));
        assert_eq!(Spread::of([]), Spread::default());
    }
}
