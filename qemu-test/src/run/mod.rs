// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The scenario runner, and the demo made of its runs.

mod backend;
pub mod cgroup;
mod daemon;
mod memory;
mod pages;
mod parallel;
mod report;
mod restore;
mod saved;
mod scenario;
mod timer;
mod waiting;
pub mod zygote;

use std::path::{Path, PathBuf};

use anyhow::{ensure, Context, Result};

use self::backend::Configuration;
use self::report::Report;
use self::scenario::Scenario;

pub use self::restore::{main as restore, Args as RestoreArgs};
use crate::verdict::Tally;

/// Options of `agentzip-guest run`.
#[derive(clap::Args)]
pub struct Args {
    /// Where waiting sandboxes' pages go.
    #[arg(long)]
    config: Configuration,
    #[command(flatten)]
    scenario: Scenario,
    /// Folder for the result, run-CONFIG.json.
    #[arg(long, default_value_os_t = report_folder())]
    report: PathBuf,
}

/// Options of `agentzip-guest demo`.
#[derive(clap::Args)]
pub struct DemoArgs {
    #[command(flatten)]
    scenario: Scenario,
    /// Runs with, and as many without, regard to waits.
    #[arg(long, default_value_t = 3)]
    repetitions: usize,
    /// What `agentzip-guest calibrate` says on the machine that runs this guest: `--time-scale` is then
    /// measured.
    #[arg(long)]
    native_loop_ns: Option<u64>,
    /// Turns of all of them but the first ones.
    #[arg(long, default_value_t = 2)]
    repetition_turns: usize,
    /// Folder for demo.json.
    #[arg(long, default_value_os_t = report_folder())]
    report: PathBuf,
}

/// Runs one scenario under one configuration.
pub fn main(args: Args) -> Result<Tally> {
    ensure!(
        args.config != Configuration::AgentzipNoWaitAlign,
        "{} takes as much as another run did: use `demo`",
        args.config.name()
    );
    let mut zygote = args.scenario.zygote()?;
    let outcome = args.scenario.run(&mut zygote, args.config)?;
    zygote.finish()?;
    write(
        &args.report,
        &format!("run-{}.json", args.config.name()),
        &outcome,
    )?;
    let clean = outcome.page_mismatches == 0 && outcome.left_behind.is_empty();
    Ok(Tally {
        passed: clean.into(),
        failed: (!clean).into(),
    })
}

/// Runs the same scenario under all configurations, on sandboxes of one zygote.
///
/// What alignment with waits changes is seen in several runs with and without it, in turn. All but the
/// first ones are shorter: they have fewer waits.
pub fn demo(args: DemoArgs) -> Result<Tally> {
    let mut scenario = args.scenario;
    if let Some(native) = args.native_loop_ns {
        scenario.time_scale = measured_time_scale(native, None);
    }
    let scenario = &scenario;
    let mut zygote = scenario.zygote()?;
    let none = scenario.run(&mut zygote, Configuration::None)?;
    let zswap = scenario.run(&mut zygote, Configuration::ZswapZstd)?;
    let mut pairs = Vec::new();
    for repetition in 0..args.repetitions.max(1) {
        let scenario = if repetition == 0 {
            scenario.clone()
        } else {
            Scenario {
                turns: scenario.turns.min(args.repetition_turns),
                check_sandboxes: scenario.check_sandboxes.min(1),
                ..scenario.clone()
            }
        };
        let aligned = scenario.run(&mut zygote, Configuration::Agentzip)?;
        let unaligned = scenario.run_unaligned(&mut zygote, &aligned)?;
        pairs.push([aligned, unaligned]);
    }
    let python = zygote.python().to_owned();
    zygote.finish()?;
    let report = Report::new(scenario, &python, [none, zswap], pairs)?;
    report.write(&args.report)?;
    report.print();
    Ok(report.tally())
}

/// How many times slower it is here than where the fixed loop takes `native` ns; with `faults`, which is
/// what the one of page faults takes there: than where both take these times together.
fn measured_time_scale(native: u64, faults: Option<u64>) -> f64 {
    let mut here = crate::calibrate::measure();
    println!(
        "@@ a fixed loop takes {:.0} ms here, {:.1} ms on the machine that runs this guest",
        here.as_secs_f64() * 1e3,
        native as f64 / 1e6
    );
    if let Some(faults) = faults {
        let here_faults = crate::calibrate::measure_faults();
        println!(
            "@@ one of page faults takes {:.0} ms here, {:.1} ms there",
            here_faults.as_secs_f64() * 1e3,
            faults as f64 / 1e6
        );
        here += here_faults;
    }
    let native = native.saturating_add(faults.unwrap_or(0));
    let scale = time_scale(here.as_nanos() as f64, native as f64);
    println!("@@ time_scale {scale:.1}");
    scale
}

/// The same, to a tenth, as the daemon takes it.
fn time_scale(here: f64, native: f64) -> f64 {
    let scale = (here / native.max(1.0)).clamp(1.0, 1000.0);
    (scale * 10.0).round() / 10.0
}

/// $AGENTZIP_REPORT, which the guest's init sets, or the current folder.
pub fn report_folder() -> PathBuf {
    std::env::var_os("AGENTZIP_REPORT")
        .unwrap_or_else(|| ".".into())
        .into()
}

/// Writes a value as JSON to a file of a folder, which is made if need be.
pub fn write(folder: &Path, name: &str, value: &impl serde::Serialize) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("mkdir {}", folder.display()))?;
    let path = folder.join(name);
    let text = serde_json::to_string_pretty(value)? + "\n";
    std::fs::write(&path, text).with_context(|| format!("write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scale_is_one_that_the_daemon_takes() {
        assert_eq!(time_scale(300.0, 9.0), 33.3);
        assert_eq!(time_scale(9.0, 10.0), 1.0);
        assert_eq!(time_scale(9e9, 0.0), 1000.0);
    }
}
