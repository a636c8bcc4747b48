// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The restore benchmark: the same tool calls of the same sandboxes, with other ways to bring their
//! pages back.
//!
//! All configurations run in one guest, one after the other, on forks of one zygote. Times are ratios to
//! those of the run without compression, where the same sandbox makes the same call. That run is the first
//! one, and is made once more at the end: an emulated guest does not keep its speed for two hours.

mod cost;
mod report;
mod schedule;
mod turns;

use std::path::PathBuf;

use anyhow::{ensure, Result};

use self::report::Report;
use super::backend::Configuration;
use super::daemon::{Predictors, Restore};
use super::zygote::Zygote;
use crate::verdict::Tally;

/// Turns of each sandbox in which the predictors learn; they do not count.
const LEARNING_TURNS: usize = 3;

/// Options of `agentzip-guest restore`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Sandboxes.
    #[arg(long, default_value_t = 8)]
    sandboxes: usize,
    /// Turns of each sandbox, the first three of which do not count.
    #[arg(long, default_value_t = 28)]
    turns: usize,
    /// Seed of the sandboxes' subtasks and of their tool calls.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Sandboxes that work, or are reclaimed, at once.
    #[arg(long, default_value_t = 2)]
    parallel: usize,
    /// Time from the first token of an answer to the tool call that it asks for, in ms on hardware: it is
    /// multiplied by the time scale, and by 0.5 to 1.5 at random. A call of 40 tokens, at 80 of them a second,
    /// takes half a second to write.
    #[arg(long, default_value_t = 500)]
    gap_ms: u64,
    /// Only these configurations, and those without compression (may be repeated).
    #[arg(long, value_name = "NAME", value_enum)]
    only: Vec<Way>,
    /// What `agentzip-guest calibrate` says on the machine that runs this guest.
    #[arg(long, requires = "native_faults_ns")]
    native_loop_ns: Option<u64>,
    /// The same of `agentzip-guest calibrate --faults`: a restore is decoding and a page fault.
    #[arg(long)]
    native_faults_ns: Option<u64>,
    /// How many times slower than on hardware everything is, when that is not measured.
    #[arg(long, default_value_t = 1.0)]
    time_scale: f64,
    /// Folder of zygote.py.
    #[arg(long, default_value = "/opt/agentzip/workload")]
    workload: PathBuf,
    /// Interpreter of the workload.
    #[arg(long, default_value = "python3")]
    python: String,
    /// The module's file.
    #[arg(long, default_value = "/opt/agentzip/agentzip.ko")]
    module: PathBuf,
    /// The controller's file.
    #[arg(long, default_value = "/opt/agentzip/agentzip")]
    controller: PathBuf,
    /// Swap device; $AGENTZIP_SWAP when not given.
    #[arg(long)]
    swap: Option<PathBuf>,
    /// Folder for restore.json and the daemon's log.
    #[arg(long, default_value_os_t = super::report_folder())]
    report: PathBuf,
}

/// A way to compress pages and to bring them back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
enum Way {
    /// No compression.
    None,
    /// zswap with zstd; every page comes back when it is touched.
    ZswapZstd,
    /// AgentZip; every page comes back when it is touched.
    AgentzipNoPrefetch,
    /// The same while its faults are recorded, and written as a trace.
    AgentzipRecorder,
    /// AgentZip with one predictor.
    AgentzipSequential,
    /// The same.
    AgentzipTransitions,
    /// The same.
    AgentzipWorkingSet,
    /// The same.
    AgentzipAccessBitmap,
    /// AgentZip that brings everything back on first-token.
    AgentzipAll,
    /// AgentZip with all predictors, and nothing else.
    AgentzipPlan,
    /// AgentZip as it is: with all predictors, then everything else.
    Agentzip,
    /// No compression once more, to see what changed meanwhile.
    NoneAgain,
}

impl Way {
    /// In the order in which they run.
    const ALL: [Way; 12] = [
        Way::None,
        Way::ZswapZstd,
        Way::AgentzipNoPrefetch,
        Way::AgentzipRecorder,
        Way::AgentzipAll,
        Way::AgentzipSequential,
        Way::AgentzipTransitions,
        Way::AgentzipWorkingSet,
        Way::AgentzipAccessBitmap,
        Way::AgentzipPlan,
        Way::Agentzip,
        Way::NoneAgain,
    ];

    /// Whether it runs whatever is asked for.
    fn is_base(self) -> bool {
        matches!(self, Way::None | Way::NoneAgain)
    }

    /// Its name in the report.
    fn name(self) -> &'static str {
        match self {
            Way::None => "none",
            Way::ZswapZstd => "zswap_zstd",
            Way::AgentzipNoPrefetch => "agentzip_no_prefetch",
            Way::AgentzipRecorder => "agentzip_recorder",
            Way::AgentzipSequential => "agentzip_sequential",
            Way::AgentzipTransitions => "agentzip_transitions",
            Way::AgentzipWorkingSet => "agentzip_working_set",
            Way::AgentzipAccessBitmap => "agentzip_access_bitmap",
            Way::AgentzipAll => "agentzip_all",
            Way::AgentzipPlan => "agentzip_plan",
            Way::Agentzip => "agentzip",
            Way::NoneAgain => "none_again",
        }
    }

    fn configuration(self) -> Configuration {
        match self {
            Way::None | Way::NoneAgain => Configuration::None,
            Way::ZswapZstd => Configuration::ZswapZstd,
            _ => Configuration::Agentzip,
        }
    }

    /// What the daemon brings back.
    fn restore(self) -> Restore {
        let one = |set: fn(&mut Predictors)| {
            let mut predictors = Predictors::NONE;
            set(&mut predictors);
            Restore::Planned(predictors)
        };
        match self {
            Way::None | Way::NoneAgain | Way::ZswapZstd | Way::AgentzipNoPrefetch => {
                Restore::Nothing
            }
            Way::AgentzipRecorder => Restore::Planned(Predictors::NONE),
            Way::AgentzipAll => Restore::Everything,
            Way::AgentzipSequential => one(|p| p.sequential = true),
            Way::AgentzipTransitions => one(|p| p.transitions = true),
            Way::AgentzipWorkingSet => one(|p| p.working_set = true),
            Way::AgentzipAccessBitmap => one(|p| p.access_bitmap = true),
            Way::AgentzipPlan => Restore::Planned(Predictors::ALL),
            Way::Agentzip => Restore::Default,
        }
    }
}

/// Runs the benchmark.
pub fn main(mut args: Args) -> Result<Tally> {
    ensure!(
        args.turns > LEARNING_TURNS,
        "--turns {}: the first {LEARNING_TURNS} do not count",
        args.turns
    );
    if let Some(native) = args.native_loop_ns {
        args.time_scale = super::measured_time_scale(native, args.native_faults_ns);
    }
    let mut zygote = Zygote::start(&args.workload, &args.python, "tool_sandbox")?;
    let mut outcomes = Vec::new();
    for way in Way::ALL {
        if way.is_base() || args.only.is_empty() || args.only.contains(&way) {
            outcomes.push(turns::run(&args, &mut zygote, way)?);
        }
    }
    let python = zygote.python().to_owned();
    zygote.finish()?;
    let report = Report::new(&args, &python, &outcomes)?;
    report.write(&args.report)?;
    report.print();
    Ok(report.tally())
}
