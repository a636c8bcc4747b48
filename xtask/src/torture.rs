// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `cargo xtask torture`: sandboxes and their host do at random what may happen to memory, in a guest.

use std::fs;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use serde_json::{json, Map, Value};

use crate::build::{self, Artifacts};
use crate::guest::{Guest, Outcome};
use crate::kernel::Kernel;
use crate::setup::Cache;
use crate::test::Total;
use crate::{paths, progress, setup, wrong};

/// What a run does.
#[derive(Clone, Copy)]
struct Choice {
    minutes: u64,
    seed: u64,
    /// Only this round of the seed.
    round: Option<u64>,
    /// With what patches the kernel's code.
    patching: bool,
}

/// The run that is a part of all tests.
const SHORT: Choice = Choice {
    minutes: 3,
    seed: 1,
    round: None,
    patching: false,
};

/// Options of `cargo xtask torture`.
#[derive(clap::Args)]
pub struct Args {
    /// Begin rounds for so many minutes on each kernel.
    #[arg(long, default_value_t = 30)]
    minutes: u64,
    /// Seed of the run; when it is not given one is chosen and printed.
    #[arg(long)]
    seed: Option<u64>,
    /// Only this round of the seed, again and again.
    #[arg(long, requires = "seed")]
    round: Option<u64>,
    /// On the debug kernel.
    #[arg(long)]
    debug: bool,
    /// On the stock kernel, then on the debug kernel with the next seed.
    #[arg(long, conflicts_with = "debug")]
    both: bool,
    /// Without what patches the kernel's code: tracers, probes, BPF, unloading under load. An emulated processor
    /// may execute what was there before, which ends the guest.
    #[arg(long)]
    no_patching: bool,
    /// Not the module as it is but wrong builds of it, each of which the torture must catch.
    #[arg(long, conflicts_with_all = ["debug", "both", "seed", "minutes"])]
    wrong: bool,
}

/// Runs it and writes target/report/torture.json.
pub fn main(args: Args) -> Result<ExitCode> {
    if args.wrong {
        let (cache, _) = setup::ensure_for(false)?;
        let mut total = Total::default();
        wrong::by_torture(&cache, &mut total);
        return Ok(total.end());
    }
    let kernels = match (args.both, args.debug) {
        (true, _) => vec![Kernel::Stock, Kernel::Debug],
        (_, true) => vec![Kernel::Debug],
        _ => vec![Kernel::Stock],
    };
    let first = args.seed.unwrap_or_else(any_seed);
    let mut reports = Vec::new();
    let mut failed = 0;
    for (seed, kernel) in (first..).zip(kernels) {
        let (cache, kernel) = setup::ensure_for(kernel == Kernel::Debug)?;
        let artifacts = build::all(&cache, kernel)?;
        println!("torture: {}, seed {seed}", kernel.title());
        let choice = Choice {
            minutes: args.minutes,
            seed,
            round: args.round,
            patching: !args.no_patching,
        };
        let (outcome, report) = run(&cache, &artifacts, kernel, choice)?;
        println!(
            "torture: {}, seed {seed}: {} passed, {} failed, {}",
            kernel.title(),
            outcome.passed,
            outcome.failed,
            progress::seconds(outcome.elapsed)
        );
        failed += outcome.failed;
        reports.push(report);
        // After each guest: the next one may end without any.
        let target = write(&sum(&reports))?;
        println!("torture: report: {target}");
    }
    Ok(ExitCode::from(u8::from(failed != 0)))
}

/// The short run that is a part of all tests.
pub fn short(cache: &Cache, artifacts: &Artifacts, total: &mut Total) {
    let what = format!("torture, {} minutes, seed {}", SHORT.minutes, SHORT.seed);
    let ran = run(cache, artifacts, Kernel::Stock, SHORT);
    match ran.and_then(|(outcome, report)| write(&sum(&[report])).map(|_| outcome)) {
        Ok(outcome) => total.add(&what, outcome.passed, outcome.failed),
        Err(error) => {
            total.check(&what, Err(error));
        }
    }
}

/// A seed that nobody has chosen.
fn any_seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(1, |now| now.as_micros() as u64 % 1_000_000_000)
}

/// Runs it in one guest; returns what the guest reports.
fn run(
    cache: &Cache,
    artifacts: &Artifacts,
    kernel: Kernel,
    choice: Choice,
) -> Result<(Outcome, Value)> {
    // A round, and what is done before and after all of them.
    let rest = match kernel {
        Kernel::Stock => 10,
        Kernel::Debug => 40,
    };
    let name = kernel.label("torture");
    let mut guest = Guest::new(&name, "torture");
    guest.kernel = kernel;
    guest.limit = Duration::from_secs((choice.minutes + rest) * 60);
    guest.silence = Duration::from_secs(rest * 60);
    let mut option = |name: &str, value: u64| {
        guest.args.push(name.to_owned());
        guest.args.push(value.to_string());
    };
    option("--minutes", choice.minutes);
    option("--seed", choice.seed);
    if let Some(round) = choice.round {
        option("--round", round);
    }
    if kernel == Kernel::Debug {
        guest.args.push("--debug".to_owned());
    }
    if !choice.patching {
        guest.args.push("--no-patching".to_owned());
    }
    let outcome = guest.boot(cache, artifacts, false)?;
    let path = outcome.file("torture.json")?;
    let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let report =
        serde_json::from_str(&text).with_context(|| format!("parse {}", path.display()))?;
    Ok((outcome, report))
}

/// One report of several guests: sums, and what each of them reported in `runs`, by its kernel and seed.
fn sum(reports: &[Value]) -> Value {
    let number = |name: &str| -> u64 { reports.iter().filter_map(|one| one[name].as_u64()).sum() };
    let counts = |name: &str| {
        let mut sums: Map<String, Value> = Map::new();
        for (kind, count) in reports
            .iter()
            .filter_map(|one| one[name].as_object())
            .flatten()
        {
            let before = sums.get(kind).and_then(Value::as_u64).unwrap_or(0);
            sums.insert(kind.clone(), (before + count.as_u64().unwrap_or(0)).into());
        }
        sums
    };
    json!({
        "seeds": reports.iter().map(|one| one["seed"].clone()).collect::<Vec<_>>(),
        "minutes": reports.iter().filter_map(|one| one["minutes"].as_f64()).sum::<f64>(),
        "operations": counts("operations"),
        "refused": counts("refused"),
        "pages_verified": number("pages_verified"),
        "faults_injected": number("faults_injected"),
        "reports": number("reports"),
        "leaks": number("leaks"),
        "runs": reports,
    })
}

/// Writes target/report/torture.json; returns where that is.
fn write(report: &Value) -> Result<String> {
    let folder = paths::target().join("report");
    fs::create_dir_all(&folder).with_context(|| format!("mkdir {}", folder.display()))?;
    let path = folder.join("torture.json");
    let text = serde_json::to_string_pretty(report)? + "\n";
    fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
    Ok(path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_summed() {
        let one = json!({
            "kernel": "7.3", "seed": 4, "minutes": 1.5, "operations": {"fork": 2}, "refused": {},
            "pages_verified": 10, "faults_injected": 0, "reports": 0, "leaks": 1,
        });
        let mut two = one.clone();
        two["seed"] = 5.into();
        two["operations"] = json!({"fork": 1, "exec": 7});
        let sum = sum(&[one.clone(), two.clone()]);
        assert_eq!(sum["seeds"], json!([4, 5]));
        assert_eq!((&sum["runs"][0], &sum["runs"][1]), (&one, &two));
        assert_eq!(sum["minutes"], 3.0);
        assert_eq!(sum["operations"], json!({"fork": 3, "exec": 7}));
        assert_eq!(
            (&sum["pages_verified"], &sum["leaks"]),
            (&json!(20), &json!(2))
        );
    }
}
