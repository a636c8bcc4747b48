// SPDX-License-Identifier: GPL-2.0 OR MIT
//! One configuration: every sandbox makes its tool calls, and waits in between with all its memory out.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::Serialize;

use super::cost::{Cost, Scheduled};
use super::{schedule, Args, Way, LEARNING_TURNS};
use crate::run::backend::{Backend, Places};
use crate::run::cgroup::Cgroup;
use crate::run::daemon::Settings;
use crate::run::memory::{self, Machine};
use crate::run::parallel;
use crate::run::waiting::SecondLook;
use crate::run::zygote::{Sandbox, Zygote};

/// The CPU budget of the daemon, in percent: its default.
const CPU_BUDGET: u32 = 25;
/// Files that each sandbox has read before its first turn.
const FILES: usize = 4;

/// A tool call that counts.
#[derive(Clone, Debug, Serialize)]
pub struct Call {
    /// The sandbox.
    pub sandbox: usize,
    /// Its turn.
    pub turn: usize,
    /// Whether it is the first of the turn.
    pub first: bool,
    /// The tool.
    pub tool: &'static str,
    /// From the hint that the tool starts to its result.
    pub seconds: f64,
    /// What of that the sandbox had a CPU, or waited for one.
    pub scheduled: Scheduled,
}

/// What one configuration showed.
#[derive(Debug)]
pub struct Outcome {
    /// Which.
    pub way: Way,
    /// The calls of all turns that count, by sandbox, in order.
    pub calls: Vec<Call>,
    /// Results of all calls, by sandbox.
    pub digests: Vec<Vec<String>>,
    /// What the turns that count cost.
    pub cost: Cost,
    /// What all sandboxes own after the last turn, everything counted.
    pub owned_bytes: u64,
    /// What was left behind at the end.
    pub left_behind: Vec<String>,
    /// Seconds of the whole run.
    pub seconds: f64,
}

/// Runs a configuration.
pub fn run(args: &Args, zygote: &mut Zygote, way: Way) -> Result<Outcome> {
    let name = way.name();
    run_steps(args, zygote, way).with_context(|| format!("configuration {name}"))
}

fn run_steps(args: &Args, zygote: &mut Zygote, way: Way) -> Result<Outcome> {
    let name = way.name();
    let started = Instant::now();
    println!("@@ {name}: set-up");
    let mut backend = Backend::prepare(way.configuration(), &places(args, way))?;
    let cgroups = (0..args.sandboxes)
        .map(|index| Cgroup::create(&format!("sandbox-{index}")))
        .collect::<Result<Vec<_>>>()?;
    let base = Machine::settled()?;
    backend.attach(zygote, &cgroups)?;
    let mut sandboxes = zygote.spawn(&cgroups, args.seed)?;

    let mut digests = parallel::each(args.parallel, &mut sandboxes, |index, sandbox| {
        backend.works(&cgroups[index], "tool-start;tool=prepare")?;
        let digest = sandbox.prepare(FILES)?.digest;
        wait(&backend, &cgroups[index])?;
        Ok(vec![digest])
    })?;
    println!(
        "@@ {name}: sandboxes are ready ({:.0} s)",
        started.elapsed().as_secs_f64()
    );

    let mut counted = Vec::new();
    let mut before = Cost::default();
    for turn in 0..args.turns {
        if turn == LEARNING_TURNS {
            before = Cost::read(&backend, &sandboxes)?;
        }
        let results = parallel::each(args.parallel, &mut sandboxes, |index, sandbox| {
            take_turn(args, &backend, &cgroups[index], sandbox, index, turn)
        })?;
        for (all, (digests, calls)) in digests.iter_mut().zip(results) {
            all.extend(digests);
            if turn >= LEARNING_TURNS {
                counted.extend(calls);
            }
        }
        if turn % 5 == 4 || turn + 1 == args.turns {
            let now = Cost::read(&backend, &sandboxes)?;
            println!(
                "@@ {name}: turn {} of {}, {} major faults, {} demand faults, {} hits, {} misses ({:.0} s)",
                turn + 1,
                args.turns,
                now.major_faults,
                now.demand_faults,
                now.hits,
                now.misses,
                started.elapsed().as_secs_f64()
            );
        }
    }
    let cost = Cost::read(&backend, &sandboxes)? - before;

    if way.configuration().uses_module() {
        SecondLook::default().wait(&backend, name)?;
    }
    let now = Machine::settled()?;
    let store = backend.occupied(&base, &now)?;
    let owned_bytes = memory::sample(&base, &now, &cgroups, store, 0, 0)?.owned_bytes;

    for (sandbox, cgroup) in sandboxes.into_iter().zip(&cgroups) {
        backend.works(cgroup, "done")?;
        sandbox.exit()?;
    }
    let left_behind = backend.finish(&cgroups)?;
    for cgroup in cgroups {
        cgroup.remove()?;
    }
    let seconds = started.elapsed().as_secs_f64();
    println!("@@ {name}: done after {seconds:.0} s");
    Ok(Outcome {
        way,
        calls: counted,
        digests,
        cost,
        owned_bytes,
        left_behind,
        seconds,
    })
}

fn places(args: &Args, way: Way) -> Places {
    let swap = args.swap.clone();
    let swap = swap.or_else(|| std::env::var_os("AGENTZIP_SWAP").map(Into::into));
    Places {
        module: args.module.clone(),
        controller: args.controller.clone(),
        swap,
        log: args.report.clone(),
        settings: Settings {
            time_scale: args.time_scale,
            restore: way.restore(),
            cpu_budget: CPU_BUDGET,
            trace: way == Way::AgentzipRecorder,
        },
    }
}

/// The LLM answers, a tool call follows, and the agent waits again. Returns the digests and the calls.
fn take_turn(
    args: &Args,
    backend: &Backend,
    cgroup: &Cgroup,
    sandbox: &mut Sandbox,
    index: usize,
    turn: usize,
) -> Result<(Vec<String>, Vec<Call>)> {
    let mut digests = Vec::new();
    let mut calls = Vec::new();
    backend.works(cgroup, "first-token")?;
    let gap = Duration::from_millis(args.gap_ms).mul_f64(args.time_scale);
    std::thread::sleep(gap.mul_f64(schedule::gap(args.seed, index, turn)));
    for tool in schedule::calls(args.seed, index, turn) {
        let before = Scheduled::read(sandbox.pid)?;
        let begin = Instant::now();
        backend.works(cgroup, &format!("tool-start;tool={tool}"))?;
        digests.push(sandbox.call(tool)?.digest);
        let seconds = begin.elapsed().as_secs_f64();
        calls.push(Call {
            sandbox: index,
            turn,
            first: calls.is_empty(),
            tool,
            seconds,
            scheduled: Scheduled::read(sandbox.pid)? - before,
        });
        backend.works(cgroup, "tool-end")?;
    }
    wait(backend, cgroup)?;
    Ok((digests, calls))
}

/// The agent waits until all its memory is out. Without compression nothing goes out.
fn wait(backend: &Backend, cgroup: &Cgroup) -> Result<()> {
    if backend.compresses() {
        backend.wait(std::slice::from_ref(cgroup))?;
    }
    Ok(())
}
