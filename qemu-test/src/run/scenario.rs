// SPDX-License-Identifier: GPL-2.0 OR MIT
//! One run: sandboxes of one zygote work and wait in turns, under one configuration.

use std::collections::HashSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::Serialize;

use super::backend::{Backend, Configuration, Places, Representation};
use super::cgroup::{Cgroup, Evicted, LEAST_GAIN};
use super::daemon::{Restore, Settings, Taken};
use super::memory::{self, Machine, Sample};
use super::pages::{self, Contents, Shares};
use super::parallel;
use super::saved::StoresSaved;
use super::timer::{Jobs, Plan, Timer};
use super::waiting::SecondLook;
use super::zygote::{Sandbox, Zygote};

/// Turns after which the first wait is over: samples from here on count.
pub const FIRST_COUNTED_WAIT: usize = 2;

/// What is run.
#[derive(Clone, Debug, clap::Args)]
pub struct Scenario {
    /// Sandboxes.
    #[arg(long, default_value_t = 8)]
    pub sandboxes: usize,
    /// Turns of each sandbox; there is a wait between two turns.
    #[arg(long, default_value_t = 4)]
    pub turns: usize,
    /// Seed of the sandboxes' subtasks.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Sandboxes that work, or are reclaimed, at once.
    #[arg(long, default_value_t = 2)]
    pub parallel: usize,
    /// Sandboxes whose swapped pages are all read back and compared after the last turn.
    #[arg(long, default_value_t = 2)]
    pub check_sandboxes: usize,
    /// Folder of zygote.py.
    #[arg(long, default_value = "/opt/agentzip/workload")]
    pub workload: PathBuf,
    /// Interpreter of the workload.
    #[arg(long, default_value = "python3")]
    pub python: String,
    /// The module's file.
    #[arg(long, default_value = "/opt/agentzip/agentzip.ko")]
    pub module: PathBuf,
    /// The controller's file.
    #[arg(long, default_value = "/opt/agentzip/agentzip")]
    pub controller: PathBuf,
    /// Swap device; $AGENTZIP_SWAP when not given.
    #[arg(long)]
    pub swap: Option<PathBuf>,
    /// How many times slower than on hardware everything is, for the daemon.
    #[arg(long, default_value_t = 1.0)]
    pub time_scale: f64,
    /// Whether the daemon reads a sandbox's pages back on first-token.
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    pub restore: bool,
    /// Folder of the daemon's log.
    #[arg(long, default_value = "/run/agentzip/report")]
    pub daemon_log: PathBuf,
}

/// What one run showed.
#[derive(Debug, Serialize)]
pub struct Outcome {
    /// Under which configuration.
    pub configuration: Configuration,
    /// Digest of every turn and of the final walk, by sandbox.
    pub digests: Vec<Vec<String>>,
    /// A sample for each wait.
    pub samples: Vec<Sample>,
    /// Seconds of each turn after a wait, from the hint that it begins, or the order, to its digest.
    pub turn_seconds: Vec<f64>,
    /// Seconds that reclaiming all sandboxes took, for each wait. Where a timer does that: the whole wait.
    pub reclaim_seconds: Vec<f64>,
    /// Seconds of each wait, until memory was read.
    pub wait_seconds: Vec<f64>,
    /// Seconds from the first turn to the end of the last, without those in which memory was read.
    pub active_seconds: f64,
    /// Bytes that reclaim took until the end of the last turn, as the kernel counts them (`pgsteal`).
    pub reclaimed_bytes: u64,
    /// The jobs that did that; AgentZip only.
    pub jobs: Option<Jobs>,
    /// Swapped pages read back and compared after the last turn.
    pub pages_checked: u64,
    /// Of those, pages that differed.
    pub page_mismatches: u64,
    /// Owned and fresh pages of each sandbox at the last wait; only without compression.
    #[serde(skip)]
    pub shares: Vec<Shares>,
    /// How pages are stored at the last wait; AgentZip only.
    pub representations: Vec<Representation>,
    /// What the waits were used for; AgentZip only.
    pub second_look: Option<SecondLook>,
    /// Stores that were not needed until then; AgentZip only.
    pub stores_saved: Option<StoresSaved>,
    /// The module's counters after the last turn; AgentZip only.
    pub counters: std::collections::BTreeMap<String, u64>,
    /// What was left behind at the end.
    pub left_behind: Vec<String>,
    /// Seconds of the whole run.
    pub seconds: f64,
}

#[cfg(test)]
impl Default for Scenario {
    fn default() -> Self {
        /// The options alone, as a command.
        #[derive(clap::Parser)]
        struct Defaults {
            #[command(flatten)]
            scenario: Scenario,
        }
        <Defaults as clap::Parser>::parse_from(["defaults"]).scenario
    }
}

impl Scenario {
    /// Starts the zygote that all runs fork from.
    pub fn zygote(&self) -> Result<Zygote> {
        Zygote::start(&self.workload, &self.python, "sandbox")
    }

    /// Runs the scenario once.
    pub fn run(&self, zygote: &mut Zygote, configuration: Configuration) -> Result<Outcome> {
        let name = configuration.name();
        self.run_steps(zygote, configuration, None)
            .with_context(|| format!("configuration {name}"))
    }

    /// Runs it without regard to waits: as much is taken as in the run `aligned`, and waits last as
    /// long as there.
    pub fn run_unaligned(&self, zygote: &mut Zygote, aligned: &Outcome) -> Result<Outcome> {
        let configuration = Configuration::AgentzipNoWaitAlign;
        self.run_steps(zygote, configuration, Some(aligned))
            .with_context(|| format!("configuration {}", configuration.name()))
    }

    fn run_steps(
        &self,
        zygote: &mut Zygote,
        configuration: Configuration,
        aligned: Option<&Outcome>,
    ) -> Result<Outcome> {
        let name = configuration.name();
        let started = Instant::now();
        println!("@@ {name}: set-up");
        let places = Places {
            module: self.module.clone(),
            controller: self.controller.clone(),
            swap: self
                .swap
                .clone()
                .or_else(|| std::env::var_os("AGENTZIP_SWAP").map(Into::into)),
            log: self.daemon_log.clone(),
            settings: Settings {
                time_scale: self.time_scale,
                restore: if self.restore {
                    Restore::Everything
                } else {
                    Restore::Nothing
                },
                // A wait of the demo lasts as long as its work takes. With the default of 25 it would last
                // four times as long, with the same memory and the same turns at its end: in emulation the
                // work alone takes `time_scale` times as long as on hardware, and LLM waits that are in
                // proportion would make the demo take an hour.
                cpu_budget: 100,
                trace: false,
            },
        };
        let mut backend = Backend::prepare(configuration, &places)?;
        let cgroups = (0..self.sandboxes)
            .map(|index| Cgroup::create(&format!("sandbox-{index}")))
            .collect::<Result<Vec<_>>>()?;
        let base = Machine::settled()?;
        let template_base = template_bytes(zygote)?;
        backend.attach(zygote, &cgroups)?;

        let mut sandboxes = zygote.spawn(&cgroups, self.seed)?;
        let mut outcome = Outcome {
            configuration,
            digests: vec![Vec::new(); self.sandboxes],
            samples: Vec::new(),
            turn_seconds: Vec::new(),
            reclaim_seconds: Vec::new(),
            wait_seconds: Vec::new(),
            active_seconds: 0.0,
            reclaimed_bytes: 0,
            jobs: None,
            pages_checked: 0,
            page_mismatches: 0,
            shares: Vec::new(),
            representations: Vec::new(),
            second_look: configuration.uses_module().then(SecondLook::default),
            stores_saved: None,
            counters: Default::default(),
            left_behind: Vec::new(),
            seconds: 0.0,
        };

        let mut held = Duration::ZERO;
        let active = Instant::now();
        let timer = aligned.map(|aligned| Timer::start(aligned.plan(), &cgroups));
        for turn in 1..=self.turns {
            let works = |index, works| {
                if let Some(timer) = &timer {
                    timer.works(index, works);
                }
            };
            let results = self.each(&mut sandboxes, |index, sandbox| {
                let begin = Instant::now();
                // The LLM's answer begins, and the tool call is complete at once: the shortest time that
                // there can be to bring pages back. `tool-start` would take the place of the hint
                // before it, unread, and say that it is too late for that.
                let hint = if turn > 1 {
                    "first-token"
                } else {
                    "tool-start;tool=turn"
                };
                backend.works(&cgroups[index], hint)?;
                works(index, true);
                let digest = sandbox.turn()?.digest;
                works(index, false);
                Ok((digest, begin.elapsed().as_secs_f64()))
            })?;
            for (digests, (digest, seconds)) in outcome.digests.iter_mut().zip(results) {
                digests.push(digest);
                if turn > 1 {
                    outcome.turn_seconds.push(seconds);
                }
            }
            if turn == self.turns {
                break;
            }
            let begin = Instant::now();
            if let Some(aligned) = aligned {
                let seconds = aligned.wait_seconds.get(turn - 1).copied().unwrap_or(0.0);
                std::thread::sleep(Duration::from_secs_f64(seconds));
            } else if backend.daemon().is_some() {
                backend.wait(&cgroups)?;
            } else {
                self.each(&mut sandboxes, |index, _| {
                    backend.wait(std::slice::from_ref(&cgroups[index]))
                })?;
            }
            outcome.reclaim_seconds.push(begin.elapsed().as_secs_f64());
            match (&mut outcome.second_look, aligned) {
                (Some(second_look), Some(_)) => second_look.wait_ends(begin.elapsed(), &backend)?,
                (Some(second_look), None) => second_look.wait(&backend, name)?,
                (None, _) => {}
            }
            outcome.wait_seconds.push(begin.elapsed().as_secs_f64());
            let begin = Instant::now();
            let sample = || {
                let now = Machine::settled()?;
                let store = backend.occupied(&base, &now)?;
                let template = template_bytes(zygote)? - template_base;
                let daemon = backend
                    .daemon()
                    .map_or(Ok(0), |daemon| daemon.own_memory())?;
                memory::sample(&base, &now, &cgroups, store, template, daemon)
            };
            let sample = timer
                .as_ref()
                .map_or_else(sample, |timer| timer.hold(sample))?;
            held += begin.elapsed();
            println!(
                "@@ {name}: wait {turn} of {}: {:.1} MiB owned, MemAvailable says {:.1} ({:.0} s)",
                self.turns - 1,
                mebibytes(sample.owned_bytes as f64),
                mebibytes(sample.available_change_bytes as f64),
                started.elapsed().as_secs_f64()
            );
            outcome.samples.push(sample);
            if turn + 1 == self.turns {
                outcome.representations = backend.representations()?;
                if configuration.uses_module() {
                    let evicted = evicted(&cgroups)?;
                    outcome.stores_saved = Some(StoresSaved::new(&backend.statistics()?, &evicted));
                }
                if configuration == Configuration::None {
                    outcome.shares = shares(zygote, &sandboxes)?;
                }
            }
        }

        outcome.active_seconds = (active.elapsed() - held).as_secs_f64();
        outcome.jobs = timer.map(Timer::finish).transpose()?;
        if let Some(daemon) = backend.daemon() {
            outcome.jobs = Some(jobs(&daemon.jobs()));
        }
        let stolen: u64 = evicted(&cgroups)?
            .iter()
            .map(|evicted| evicted.stolen)
            .sum();
        outcome.reclaimed_bytes = stolen * pages::PAGE;

        println!("@@ {name}: last walk and page check");
        let walks = self.each(&mut sandboxes, |index, sandbox| {
            backend.works(&cgroups[index], "tool-start;tool=walk")?;
            Ok(sandbox.walk()?.digest)
        })?;
        for (digests, digest) in outcome.digests.iter_mut().zip(walks) {
            digests.push(digest);
        }
        let checked = self.check_sandboxes.min(self.sandboxes);
        let results = self.each(&mut sandboxes[..checked], |index, sandbox| {
            let contents = Contents::read(sandbox.pid)?;
            backend.wait(std::slice::from_ref(&cgroups[index]))?;
            contents.compare_swapped()
        })?;
        outcome.pages_checked = results.iter().map(|(checked, _)| checked).sum();
        outcome.page_mismatches = results.iter().map(|(_, wrong)| wrong).sum();
        outcome.counters = backend.statistics()?;

        for (sandbox, cgroup) in sandboxes.into_iter().zip(&cgroups) {
            backend.works(cgroup, "done")?;
            sandbox.exit()?;
        }
        outcome.left_behind = backend.finish(&cgroups)?;
        for cgroup in cgroups {
            cgroup.remove()?;
        }
        outcome.seconds = started.elapsed().as_secs_f64();
        println!("@@ {name}: done after {:.0} s", outcome.seconds);
        Ok(outcome)
    }

    /// Does something with every sandbox, `parallel` at a time; results in order.
    fn each<T: Send>(
        &self,
        sandboxes: &mut [Sandbox],
        work: impl Fn(usize, &mut Sandbox) -> Result<T> + Sync,
    ) -> Result<Vec<T>> {
        parallel::each(self.parallel, sandboxes, work)
    }
}

impl Outcome {
    /// The samples that count: from the second wait on, or all when there are fewer.
    pub fn counted(&self) -> &[Sample] {
        self.samples
            .get(FIRST_COUNTED_WAIT - 1..)
            .filter(|s| !s.is_empty())
            .unwrap_or(&self.samples)
    }

    /// The same amount of work for a timer.
    fn plan(&self) -> Plan {
        Plan {
            jobs: self.jobs.as_ref().map_or(0, |jobs| jobs.count),
            bytes: self.reclaimed_bytes,
            over: Duration::from_secs_f64(self.active_seconds),
        }
    }

    /// Mean of a quantity over the samples that count; 0 without any.
    pub fn mean(&self, quantity: impl Fn(&Sample) -> u64) -> u64 {
        let counted = self.counted();
        counted.iter().map(quantity).sum::<u64>() / (counted.len() as u64).max(1)
    }
}

/// What has left each cgroup.
fn evicted(cgroups: &[Cgroup]) -> Result<Vec<Evicted>> {
    cgroups.iter().map(Cgroup::evicted).collect()
}

/// The daemon's jobs; those count that took anything. It has none in a turn: it stops them when one begins.
fn jobs(taken: &[Taken]) -> Jobs {
    let mut jobs = Jobs::default();
    for job in taken {
        jobs.count += u64::from(job.bytes >= LEAST_GAIN);
        jobs.bytes += job.bytes;
        jobs.cpu_seconds += job.cpu.as_secs_f64();
    }
    jobs
}

/// Owned and fresh pages of every sandbox.
fn shares(zygote: &Zygote, sandboxes: &[Sandbox]) -> Result<Vec<Shares>> {
    let template: HashSet<u64> = pages::anonymous(zygote.holder())?;
    sandboxes
        .iter()
        .map(|sandbox| pages::shares(sandbox.pid, &template))
        .collect()
}

/// Anonymous memory charged to zygote and holder.
fn template_bytes(zygote: &Zygote) -> Result<i64> {
    zygote.cgroup().map_or(Ok(0), |cgroup| {
        Ok(memory::signed(cgroup.charged()?.anonymous))
    })
}

/// Bytes as MiB.
pub fn mebibytes(bytes: f64) -> f64 {
    bytes / f64::from(1 << 20)
}
