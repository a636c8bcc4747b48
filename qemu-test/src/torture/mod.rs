// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Torture: sandboxes do at random what processes can do to their memory, while the host does at random what
//! hosts do, and every page is compared with what it should hold.
//!
//! A run is a series of rounds. Each is a process of its own, has its own seed, from which its settings and
//! the choices of its threads follow, and ends with a look at what is left: entries, references, pages of
//! templates, sandboxes. In which order the operations of different threads happen is up to the machine, and
//! what they find then, so later choices may be others than in another run of the seed. After the last round
//! the module is unloaded, cgroups that are removed must be gone, and every operation must have worked once.

mod agent;
mod count;
mod host;
mod model;
mod random;
mod recipe;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, RwLock};
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use serde::Serialize;

use self::agent::{ended, Agent};
use self::count::{Counts, Ended};
use self::host::Host;
use self::model::Process;
use self::random::Random;
use self::recipe::Recipe;
use crate::run;
use crate::suite::daemon::{self, Daemon};
use crate::suite::fixture::cgroup::{self, Cgroup};
use crate::suite::fixture::fault::{self, Faults};
use crate::suite::fixture::module::{self, Counters};
use crate::suite::fixture::{clean_module, host as machine, recover, trace, Ctx, Template};
use crate::suite::runner::{self, KernelLog};
use crate::suite::{self, sys, unload};
use crate::verdict::Tally;

/// How long the threads of a round work.
const ROUND: Duration = Duration::from_secs(20);
/// How long a round may take besides.
const REST: Duration = Duration::from_secs(120);
/// Rounds after which every operation has been done.
const ENOUGH: u64 = 6;
/// Pages of a template.
const TEMPLATE: usize = 128;
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

/// What all threads of a round share.
pub struct Shared<'a> {
    /// The test's cgroups and the module's device.
    pub ctx: &'a Ctx,
    /// Settings of the round.
    pub recipe: Recipe,
    /// The swap device. Who needs swap meanwhile reads it, who takes it away writes it.
    pub swap: RwLock<PathBuf>,
    /// When no operation begins any more.
    pub end: Instant,
    /// One has failed, and the others end.
    pub failed: AtomicBool,
    templates: Vec<Mutex<Template>>,
    names: Vec<String>,
    sandboxes: Vec<Mutex<Place>>,
}

/// A sandbox as the host sees it.
#[derive(Clone)]
pub struct Place {
    /// Its cgroup.
    pub cgroup: Cgroup,
    /// Its id.
    pub id: u64,
    /// The module has it, as far as we know.
    pub attached: bool,
    number: usize,
    generation: u32,
}

impl Place {
    /// Makes the cgroup of a sandbox.
    fn new(ctx: &Ctx, number: usize, generation: u32) -> Result<Place> {
        let cgroup = ctx.cgroup(&format!("sandbox-{number}-{generation}"))?;
        Ok(Place {
            id: cgroup.id()?,
            cgroup,
            attached: false,
            number,
            generation,
        })
    }

    /// Attaches it to its template.
    pub fn attach(&mut self, shared: &Shared<'_>) -> Result<Ended> {
        let template = &shared.names[self.number % shared.names.len()];
        let attached = shared.ctx.device().attach(self.cgroup.path(), template);
        // EEXIST: the daemon was first. EBUSY: its former attachment is not over yet.
        let ended = ended(
            attached.map_err(Into::into),
            &[libc::EEXIST, libc::EBUSY, libc::ENOMEM],
        )?;
        self.attached = ended == Ended::Done;
        if shared.recipe.daemon {
            daemon::tell(self.cgroup.path(), "template", template)?;
        }
        Ok(ended)
    }

    /// Begins again with a new cgroup; the former one is removed.
    pub fn replace(&mut self, shared: &Shared<'_>) -> Result<()> {
        *self = Place::new(shared.ctx, self.number, self.generation + 1)?;
        self.attach(shared).map(drop)
    }

    /// What its memory controller has to say, for messages.
    pub fn events(&self) -> String {
        let events = self.cgroup.read("memory.events").unwrap_or_default();
        events.trim().replace('\n', ", ")
    }
}

impl Shared<'_> {
    /// How many sandboxes there are.
    pub fn sandboxes(&self) -> usize {
        self.sandboxes.len()
    }

    /// A sandbox as it is now. It may be gone when it is used.
    pub fn sandbox(&self, number: usize) -> Place {
        self.lock_sandbox(number).clone()
    }

    /// A sandbox that stays as it is while the guard lives.
    pub fn lock_sandbox(&self, number: usize) -> MutexGuard<'_, Place> {
        self.sandboxes[number].lock().expect("no thread panics")
    }

    /// The template of a sandbox, to fork from.
    pub fn template(&self, number: usize) -> MutexGuard<'_, Template> {
        let template = &self.templates[number % self.templates.len()];
        template.lock().expect("no thread panics")
    }

    /// Remembers that something failed, so that all threads end.
    pub fn note<T>(&self, result: Result<T>) -> Result<T> {
        if result.is_err() {
            self.failed.store(true, Ordering::Relaxed);
        }
        result
    }
}

/// Runs it.
pub fn main(args: Args) -> Result<Tally> {
    if args.debug {
        suite::checkers_at_work()?;
    }
    suite::prepare().context("prepare the guest")?;
    // As `agentzip arm` does: the kernel would read large folios from zram, which the module refuses.
    for switch in ["Y", "N"] {
        machine::set_zswap_param("enabled", switch)?;
    }
    let mut log = KernelLog::open()?;
    let dying = cgroup::dying()?;
    let began = Instant::now();
    let time = Duration::from_secs(args.minutes * 60);
    println!("@@ torture: seed {}, {} minutes", args.seed, args.minutes);
    let kernel = machine::read("/proc/sys/kernel/osrelease")?;
    let mut report = Report {
        kernel,
        seed: args.seed,
        minutes: 0.0,
        counts: Counts::default(),
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
    if args.round.is_none() && number >= ENOUGH {
        let missing = missing(&report.counts);
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
        report.counts.operations.values().sum::<u64>(),
        report.counts.pages_verified,
        report.counts.faults_injected
    );
    Ok(tally)
}

/// Operations that were never done, and what else was not.
fn missing(counts: &Counts) -> Vec<&'static str> {
    let all = agent::names().chain(host::names());
    let mut missing: Vec<_> = all
        .filter(|name| !counts.operations.contains_key(*name))
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
    let recipe = Recipe::new(seed, fault::available());
    let began = Instant::now();
    // That of the round before.
    let _ = std::fs::remove_file(COUNTS);
    let body = |ctx: &mut Ctx| torture(ctx, seed, &recipe);
    let outcome = runner::bounded(ROUND + REST, &body);
    let reset = host::reset().and_then(|()| recover());
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
    let counts = machine::read(COUNTS)
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
        if recipe.daemon { ", daemon" } else { "" },
        if recipe.damon { ", DAMON" } else { "" },
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
    if recipe.traced {
        trace::set("set_ftrace_filter", &trace::HOOKED.join(" "))?;
        trace::set("current_tracer", "function")?;
    }
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
    let device = host::swap_on(ctx, recipe.swap)?;
    let templates = (0..recipe.templates)
        .map(|_| ctx.template(TEMPLATE))
        .collect::<Result<Vec<_>>>()?;
    let names = templates.iter().map(|t| t.name.clone()).collect();
    let sandboxes = (0..recipe.sandboxes)
        .map(|number| Place::new(ctx, number, 0).map(Mutex::new))
        .collect::<Result<Vec<_>>>()?;
    let daemon = match recipe.daemon {
        true => Some(Daemon::start(ctx.root.path(), "")?),
        false => None,
    };
    let shared = Shared {
        ctx,
        recipe: recipe.clone(),
        swap: RwLock::new(device),
        end: Instant::now() + machine::patience(ROUND),
        failed: AtomicBool::new(false),
        templates: templates.into_iter().map(Mutex::new).collect(),
        names,
        sandboxes,
    };
    for number in 0..shared.sandboxes() {
        shared.lock_sandbox(number).attach(&shared)?;
    }
    let mut agents = (0..shared.sandboxes())
        .map(|number| Agent::start(&shared, number, seed))
        .collect::<Result<Vec<_>>>()?;
    let mut host = Host::start(&shared, seed, daemon)?;
    if recipe.damon {
        host::damon(true)?;
    }
    let worked = at_once(&mut agents, &mut host, recipe.failing, counts);
    let off = match recipe.damon {
        true => host::damon(false),
        false => Ok(()),
    };
    let worked = worked.and(off);
    // Everything goes out and comes back once more, with nobody else at work.
    let checked = worked.and_then(|()| check_quietly(&shared, &mut agents));
    counts.merge(&host.counts);
    let mut processes = Vec::new();
    for agent in agents {
        counts.merge(&agent.counts);
        processes.extend(agent.processes);
    }
    checked?;
    let swap = shared.swap.into_inner().expect("no thread panics");
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
    let counters = Counters::global()?;
    let errors = counters.get("load_errors")?;
    ensure!(errors == 0, "{errors} load errors");
    Ok(())
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
