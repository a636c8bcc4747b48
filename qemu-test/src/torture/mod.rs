// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Torture: sandboxes do at random what processes can do to their memory, while the host does at random what
//! hosts do, and every page is compared with what it should hold.
//!
//! A run is a series of rounds. Each is a process of its own, has its own seed, from which its settings and
//! the choices of its threads follow, and ends with a look at what is left: entries, references, pages of
//! templates, sandboxes. In which order the operations of different threads happen is up to the machine, and
//! what they find then, so later choices may be others than in another run of the seed. After the last round
//! the module is unloaded, cgroups that are removed must be gone, and in ten minutes every operation must have
//! worked once.

mod agent;
mod count;
mod host;
mod machine;
mod model;
mod random;
mod recipe;
mod shared;
mod tracers;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use serde::Serialize;

use self::agent::Agent;
use self::count::{Counts, Ended};
use self::host::Host;
use self::model::Process;
use self::random::Random;
use self::recipe::Recipe;
use self::shared::{Shared, ROUND};
use crate::run;
use crate::suite::daemon::Daemon;
use crate::suite::fixture::cgroup;
use crate::suite::fixture::fault::{self, Faults};
use crate::suite::fixture::module;
use crate::suite::fixture::{self, clean_module, recover, Ctx};
use crate::suite::runner::{self, KernelLog};
use crate::suite::{self, sys, unload};
use crate::verdict::Tally;

/// How long a round may take besides.
const REST: Duration = Duration::from_secs(120);
/// After so long, and so many operations, each of them has been done: the rarest is one in 4,000.
const ENOUGH: Duration = Duration::from_secs(600);
const ENOUGH_OPERATIONS: u64 = 20_000;
/// Where a round leaves what it counted.
const COUNTS: &str = "/run/agentzip-torture.json";

/// Options of `agentzip-guest torture`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Begins rounds for so many minutes.
    #[arg(long, default_value_t = 3)]
    minutes: u64,
    /// Seed of the run.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only this round of the run, again and again.
    #[arg(long)]
    round: Option<u64>,
    /// Ends with the first round that fails.
    #[arg(long)]
    first_failure: bool,
    /// Nothing patches the kernel's code: an emulated processor may go on executing what was there.
    #[arg(long)]
    no_patching: bool,
    /// This is the debug kernel, and all its checkers must be at work.
    #[arg(long)]
    debug: bool,
    /// Folder for torture.json.
    #[arg(long, default_value_os_t = run::report_folder())]
    report: PathBuf,
}

/// torture.json of one guest.
#[derive(Serialize)]
struct Report {
    kernel: String,
    seed: u64,
    minutes: f64,
    #[serde(flatten)]
    counts: Counts,
    /// Operations that are left out: this kernel is built without, or nothing may patch its code.
    not_available: Vec<&'static str>,
    /// Lines of the kernel log that tell of a fault.
    reports: usize,
    /// Rounds, and the run, that left something behind.
    leaks: usize,
    rounds: Vec<Round>,
}

/// One round.
#[derive(Serialize)]
struct Round {
    round: u64,
    settings: Recipe,
    seconds: f64,
    error: Option<String>,
}

/// Why a round failed.
struct Wrong {
    what: String,
    /// The host is not as it was before: no round can follow.
    lasting: bool,
}

/// Runs it.
pub fn main(args: Args) -> Result<Tally> {
    if args.debug {
        suite::checkers_at_work()?;
    }
    suite::prepare().context("prepare the guest")?;
    // As `agentzip arm` does: the kernel would read large folios from zram, which the module refuses.
    for switch in ["Y", "N"] {
        fixture::host::set_zswap_param("enabled", switch)?;
    }
    let mut log = KernelLog::open()?;
    let dying = cgroup::dying()?;
    let began = Instant::now();
    let time = Duration::from_secs(args.minutes * 60);
    println!("@@ torture: seed {}, {} minutes", args.seed, args.minutes);
    let kernel = fixture::host::read("/proc/sys/kernel/osrelease")?;
    let mut report = Report {
        kernel,
        seed: args.seed,
        minutes: 0.0,
        counts: Counts::default(),
        not_available: host::unavailable(!args.no_patching),
        reports: 0,
        leaks: 0,
        rounds: Vec::new(),
    };
    let mut tally = Tally::default();
    let mut number = 0;
    while began.elapsed() < time {
        let round = args.round.unwrap_or(number);
        let wrong = one_round(&args, round, &mut report, &mut log)?;
        tally.passed += u32::from(wrong.is_none());
        tally.failed += u32::from(wrong.is_some());
        if let Some(Wrong { what, lasting }) = wrong {
            println!("@@ not ok torture.round-{round}: {what}");
            if lasting || args.first_failure {
                break;
            }
        }
        number += 1;
    }
    let done = report.counts.operations.values().sum::<u64>();
    if args.round.is_none() && began.elapsed() >= ENOUGH && done >= ENOUGH_OPERATIONS {
        let missing = missing(&report);
        if !missing.is_empty() {
            println!(
                "@@ not ok torture.operations: never done: {}",
                missing.join(", ")
            );
        }
        tally.passed += u32::from(missing.is_empty());
        tally.failed += u32::from(!missing.is_empty());
    }
    report.minutes = began.elapsed().as_secs_f64() / 60.0;
    let left = suite::nothing_left(&mut log, dying);
    if let Err(error) = &left {
        println!("@@ not ok torture.nothing_left: {error:#}");
        report.leaks += 1;
    }
    tally.passed += u32::from(left.is_ok());
    tally.failed += u32::from(left.is_err());
    run::write(&args.report, "torture.json", &report)?;
    println!(
        "@@ torture: {} rounds, {} operations, {} pages verified, {} allocations failed",
        report.rounds.len(),
        done,
        report.counts.pages_verified,
        report.counts.faults_injected
    );
    Ok(tally)
}

/// Operations that were never done, and what else was not.
fn missing(report: &Report) -> Vec<&'static str> {
    let counts = &report.counts;
    let all = agent::names().chain(host::names());
    let mut missing: Vec<_> = all
        .filter(|name| !counts.operations.contains_key(*name))
        .filter(|name| !report.not_available.contains(name))
        .collect();
    if counts.pages_verified == 0 {
        missing.push("a page verified");
    }
    if fault::available() && counts.faults_injected == 0 {
        missing.push("an allocation failed");
    }
    missing
}

/// Runs a round in a process of its own; returns what was wrong.
fn one_round(
    args: &Args,
    round: u64,
    report: &mut Report,
    log: &mut KernelLog,
) -> Result<Option<Wrong>> {
    let seed = Random::new(args.seed, round).next();
    let mut recipe = Recipe::new(seed, fault::available());
    recipe.patching = !args.no_patching;
    let began = Instant::now();
    // That of the round before.
    let _ = std::fs::remove_file(COUNTS);
    let body = |ctx: &mut Ctx| torture(ctx, seed, &recipe);
    let outcome = runner::bounded(ROUND + REST, &body);
    let reset = machine::reset().and_then(|()| recover());
    let faults = log.faults()?;
    report.reports += faults.len();
    let mut wrong = Vec::new();
    if let Err(error) = outcome {
        let error = format!("{error:#}");
        report.leaks += usize::from(error.starts_with(runner::AFTERWARDS));
        wrong.push(error);
    }
    let lasting = reset.is_err();
    if let Err(error) = reset {
        wrong.push(format!("the host does not recover: {error:#}"));
    }
    if !faults.is_empty() {
        wrong.push(format!("kernel log: {}", faults.join(" | ")));
    }
    let counts = fixture::host::read(COUNTS)
        .and_then(|text| serde_json::from_str::<Counts>(&text).context("counts of the round"));
    match counts {
        Ok(counts) => report.counts.merge(&counts),
        Err(error) if wrong.is_empty() => wrong.push(format!("{error:#}")),
        // It did not get that far.
        Err(_) => {}
    }
    let error = (!wrong.is_empty()).then(|| wrong.join("; "));
    let seconds = began.elapsed().as_secs_f64();
    println!(
        "@@ torture: round {round}, {} sandboxes on {:?}{}{}{}, {seconds:.0} s, {} pages verified so far",
        recipe.sandboxes,
        recipe.swap,
        if recipe.sensitive { ", one sensitive" } else { "" },
        if recipe.daemon { ", daemon" } else { "" },
        if recipe.failing > 0 { ", failing allocations" } else { "" },
        report.counts.pages_verified
    );
    report.rounds.push(Round {
        round,
        settings: recipe,
        seconds,
        error: error.clone(),
    });
    Ok(error.map(|what| Wrong { what, lasting }))
}

/// The body of a round.
fn torture(ctx: &mut Ctx, seed: u64, recipe: &Recipe) -> Result<()> {
    let mut counts = Counts::default();
    let worked = work(ctx, seed, recipe, &mut counts).and_then(|left| {
        if recipe.reload {
            outlive_module(ctx, &left, &mut counts)?;
        }
        Ok(())
    });
    run::write("/run".as_ref(), "agentzip-torture.json", &counts)?;
    worked
}

/// What is left when the threads have ended.
struct Left {
    processes: Vec<Process>,
    swap: PathBuf,
}

/// Sets a round up and lets its threads work.
fn work(ctx: &mut Ctx, seed: u64, recipe: &Recipe, counts: &mut Counts) -> Result<Left> {
    let root = ctx.root.clone();
    let shared = Shared::new(ctx, recipe)?;
    let daemon = match recipe.daemon {
        true => Some(Daemon::start(root.path(), "")?),
        false => None,
    };
    for number in 0..shared.sandboxes() {
        shared.lock_sandbox(number).attach(&shared)?;
    }
    let mut agents = (0..shared.sandboxes())
        .map(|number| Agent::start(&shared, number, seed))
        .collect::<Result<Vec<_>>>()?;
    let mut host = Host::start(&shared, seed, daemon)?;
    let worked = at_once(&mut agents, &mut host, recipe.failing, counts);
    // Everything goes out and comes back once more, with nobody else at work.
    let checked = worked.and_then(|()| check_quietly(&shared, &mut agents));
    counts.merge(&host.counts);
    let mut processes = Vec::new();
    for agent in agents {
        counts.merge(&agent.counts);
        processes.extend(agent.processes);
    }
    checked?;
    let swap = shared.swap.read().expect("no thread panics").clone();
    Ok(Left { processes, swap })
}

/// Lets all threads work at once.
fn at_once(
    agents: &mut [Agent<'_>],
    host: &mut Host<'_>,
    failing: u32,
    counts: &mut Counts,
) -> Result<()> {
    let faults = match failing {
        0 => None,
        _ => Some(Faults::prepare()?),
    };
    let failing = match &faults {
        Some(faults) => Some(faults.one_of(failing)?),
        None => None,
    };
    let worked = std::thread::scope(|scope| {
        let mut threads: Vec<_> = agents
            .iter_mut()
            .map(|agent| scope.spawn(move || agent.run()))
            .collect();
        threads.push(scope.spawn(move || host.run()));
        let results = threads.into_iter().map(|thread| match thread.join() {
            Ok(result) => result,
            Err(_) => bail!("a thread panicked"),
        });
        results.collect::<Result<()>>()
    });
    if let Some(failing) = failing {
        counts.faults_injected += failing.failed()?;
    }
    worked
}

/// Takes everything out and checks it; then the counters must agree, and nobody may have been killed.
fn check_quietly(shared: &Shared<'_>, agents: &mut [Agent<'_>]) -> Result<()> {
    for number in 0..shared.sandboxes() {
        shared.sandbox(number).cgroup.reclaim_all()?;
    }
    for agent in agents {
        agent.check_all().context("after everything went out")?;
    }
    for number in 0..shared.sandboxes() {
        let events = shared.sandbox(number).events();
        ensure!(events.contains("oom_kill 0"), "sandbox {number}: {events}");
    }
    shared.no_load_errors()
}

/// Takes everything out, empties the store and loads the module anew: the pages are as they were.
fn outlive_module(ctx: &mut Ctx, left: &Left, counts: &mut Counts) -> Result<()> {
    ctx.root.reclaim_all()?;
    ctx.device().drain()?;
    sys::swapoff(&left.swap).context("swapoff")?;
    module::wait_entries(0)?;
    clean_module(ctx.device())?;
    unload::reload(ctx, "")?;
    for process in &left.processes {
        let checked = process.check_all();
        counts.pages_verified += checked.context("after the module was loaded anew")?;
    }
    counts.add("reload", Ended::Done);
    Ok(())
}
