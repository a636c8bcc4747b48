// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The scenario runner, and the demo made of three of its runs.

mod backend;
pub mod cgroup;
mod memory;
mod pages;
mod report;
mod saved;
mod scenario;
mod waiting;
pub mod zygote;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use self::backend::Configuration;
use self::report::Report;
use self::scenario::Scenario;
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
    /// Folder for demo.json.
    #[arg(long, default_value_os_t = report_folder())]
    report: PathBuf,
}

/// Runs one scenario under one configuration.
pub fn main(args: Args) -> Result<Tally> {
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

/// Runs the same scenario under all three configurations, on sandboxes of one zygote.
pub fn demo(args: DemoArgs) -> Result<Tally> {
    let scenario = &args.scenario;
    let mut zygote = scenario.zygote()?;
    let none = scenario.run(&mut zygote, Configuration::None)?;
    let zswap = scenario.run(&mut zygote, Configuration::ZswapZstd)?;
    let agentzip = scenario.run(&mut zygote, Configuration::Agentzip)?;
    let python = zygote.python().to_owned();
    zygote.finish()?;
    let report = Report::new(scenario, &python, [none, zswap, agentzip])?;
    report.write(&args.report)?;
    report.print();
    Ok(report.tally())
}

/// $AGENTZIP_REPORT, which the guest's init sets, or the current folder.
fn report_folder() -> PathBuf {
    std::env::var_os("AGENTZIP_REPORT")
        .unwrap_or_else(|| ".".into())
        .into()
}

fn write(folder: &Path, name: &str, value: &impl serde::Serialize) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("mkdir {}", folder.display()))?;
    let path = folder.join(name);
    let text = serde_json::to_string_pretty(value)? + "\n";
    std::fs::write(&path, text).with_context(|| format!("write {}", path.display()))
}
