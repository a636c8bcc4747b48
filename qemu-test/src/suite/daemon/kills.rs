// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The daemon is killed at any moment, again and again, while sandboxes work, wait and change their
//! minds: no page is lost, no reclaim goes on without it, and the next one does what it should.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};

use super::super::fixture::cgroup::Cgroup;
use super::super::fixture::module::{self, SecondLook};
use super::super::fixture::page::{Kind, Rng, Spec};
use super::super::fixture::puppet::{Puppet, Region};
use super::super::fixture::{host, Ctx};
use super::{forget_log, tell, Daemon};

const KILLS: usize = 50;
const AGENTS: usize = 4;
const PAGES: usize = 192;
/// The longest that a daemon lives before it is killed, in milliseconds: longer than it takes to start.
const LIFE_MS: u64 = 900;
/// A wait that does not end by itself.
const WAIT: &str = "llm-wait;expect=3600000";

struct Agent {
    cgroup: Cgroup,
    puppet: Puppet,
    region: Region,
}

pub fn killed_fifty_times(ctx: &mut Ctx) -> Result<()> {
    forget_log();
    ctx.swap()?;
    let _second_look = SecondLook::on()?;
    let mut template = ctx.template(64)?;
    let mut agents = Vec::new();
    for number in 0..AGENTS {
        let cgroup = ctx.cgroup(&format!("agent-{number}"))?;
        let puppet = template.spawn(&cgroup)?;
        let mut region = Region::new(5, PAGES);
        puppet.map(&region)?;
        puppet.write(&mut region, |page| Some(page_of(number, page)))?;
        agents.push(Agent {
            cgroup,
            puppet,
            region,
        });
    }

    let mut daemon = Daemon::start(ctx.root.path(), "[schedule]\ncpu_budget = 100\n")?;
    for agent in &agents {
        tell(agent.cgroup.path(), "template", &template.name)?;
    }
    let attached = || Ok(module::list("sandboxes")?.len() == AGENTS);
    host::wait_until(
        "the daemon should attach all",
        Duration::from_secs(20),
        attached,
    )
    .with_context(super::log)?;

    let mut rng = Rng::new(7);
    let began = Instant::now();
    let churn_ms = host::patience(Duration::from_secs(45)).as_millis() as u64;
    for (number, agent) in agents.iter().enumerate() {
        agent
            .puppet
            .begin_churn(&agent.region, churn_ms, number as u64 + 1)?;
    }
    let hints = [WAIT, "first-token", "tool-start;tool=churn", "idle", WAIT];
    for _ in 0..KILLS {
        let until = Instant::now() + Duration::from_millis(rng.next() % LIFE_MS);
        while Instant::now() < until {
            let agent = &agents[rng.next() as usize % AGENTS];
            let hint = hints[rng.next() as usize % hints.len()];
            tell(agent.cgroup.path(), "phase", hint)?;
            std::thread::sleep(Duration::from_millis(rng.next() % 100));
        }
        daemon.kill()?;
        daemon = Daemon::restart()?;
    }
    daemon.kill()?;
    println!(
        "@@ daemon: {} daemons killed in {:.0} s",
        KILLS + 1,
        began.elapsed().as_secs_f64()
    );
    let proactive = || -> Result<u64> {
        let scanned = agents.iter().map(|a| a.cgroup.stat("pgscan_proactive"));
        scanned.sum()
    };
    ensure!(
        agents[0].cgroup.stat_reaches("pgscan_proactive", 1)? > 0,
        "no daemon lived long enough to reclaim anything"
    );
    no_orphans()?;
    // What the daemon's last batch scanned may still be on its way into the statistics.
    std::thread::sleep(Duration::from_secs(3));
    let before = proactive()?;
    std::thread::sleep(Duration::from_secs(3));
    let after = proactive()?;
    ensure!(
        after == before,
        "{} pages scanned while no daemon lived",
        after - before
    );

    for agent in &agents {
        let checked = agent.puppet.end_churn()?;
        ensure!(checked > 0, "nothing was checked");
    }
    // Told while nobody listens.
    for (number, agent) in agents.iter_mut().enumerate() {
        agent
            .puppet
            .write(&mut agent.region, |page| Some(page_of(number + 100, page)))?;
        tell(agent.cgroup.path(), "phase", last_hint(number))?;
    }
    let daemon = Daemon::restart()?;
    let mut client = daemon.client()?;
    let started = Instant::now();
    let ids: Vec<u64> = agents
        .iter()
        .map(|agent| agent.cgroup.id())
        .collect::<Result<_>>()?;
    let mut seen = Vec::new();
    let deadline = Instant::now() + host::patience(Duration::from_secs(60));
    loop {
        ensure!(
            Instant::now() < deadline,
            "not as the hints say: {seen:?}: {}",
            super::log()
        );
        seen = Daemon::list(&mut client)?;
        let done = ids.iter().enumerate().all(|(number, id)| {
            seen.iter()
                .any(|seen| seen.id == *id && seen.attached && (seen.is_out() || !waits(number)))
        });
        if seen.len() == AGENTS && done {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    println!(
        "@@ daemon: all as told {:.1} s later",
        started.elapsed().as_secs_f64()
    );
    for (number, agent) in agents.iter().enumerate() {
        let phase = host::read(module::sysfs(&format!("sandboxes/{}/phase", ids[number])))?;
        let out = agent.puppet.pages_out(&agent.region)?;
        let (wanted, right) = match waits(number) {
            true => ("waiting", out > PAGES * 9 / 10),
            false => ("running", out == 0),
        };
        ensure!(
            phase == wanted && right,
            "agent {number}: phase {phase} instead of {wanted}, {out} of {PAGES} pages out"
        );
        agent.puppet.check(&agent.region)?;
    }
    daemon.end()
}

fn page_of(owner: usize, page: usize) -> Spec {
    Spec::new(Kind::Heap, 7_000_000 + page as u32).edited(6, (owner * 1000 + page) as u32)
}

fn waits(number: usize) -> bool {
    number % 2 == 0
}

fn last_hint(number: usize) -> &'static str {
    match waits(number) {
        true => WAIT,
        false => "tool-start;tool=check",
    }
}

/// No process but ours is left of what the daemons did.
fn no_orphans() -> Result<()> {
    for entry in std::fs::read_dir("/proc")?.flatten() {
        let path: PathBuf = entry.path().join("cmdline");
        let command = std::fs::read(path).unwrap_or_default();
        let text = String::from_utf8_lossy(&command);
        ensure!(
            !text.contains("agentzip\0daemon"),
            "process {} is left of a daemon",
            entry.file_name().to_string_lossy()
        );
    }
    Ok(())
}
