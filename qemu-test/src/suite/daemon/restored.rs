// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What a tool touches is there before it asks, from what the daemon learned in the turns before.

use std::time::Duration;

use anyhow::{ensure, Context, Result};

use super::super::fixture::cgroup::Cgroup;
use super::super::fixture::module::{self, SecondLook};
use super::super::fixture::page::{Kind, Spec};
use super::super::fixture::puppet::{Puppet, Region};
use super::super::fixture::{host, Ctx, Template};
use super::{forget_log, log, tell, Daemon};

const PAGES: usize = 1024;
/// What the tool touches: a part of it, and a few pages elsewhere.
const TOUCHED: [(usize, usize); 3] = [(100, 160), (500, 24), (900, 16)];
const ALL: usize = 200;
/// A wait that does not end by itself.
const WAIT: &str = "llm-wait;expect=3600000";
/// From the first token to the tool call.
const GAP: Duration = Duration::from_millis(500);
/// Turns in which the daemon learns.
const TURNS: usize = 3;
/// Nothing comes back but by plans, and none of them rests on one look alone; times for a slow machine.
const CONFIG: &str =
    "[schedule]\ncpu_budget = 100\n[prefetch]\nmode = \"plan\"\naccess_bitmap = false\n\
    hit_window = \"5s\"\nqueue_timeout = \"5s\"\n";

/// The same, with all else by default.
const DEFAULT: &str =
    "[schedule]\ncpu_budget = 100\n[prefetch]\nhit_window = \"5s\"\nqueue_timeout = \"5s\"\n";

struct Agent {
    cgroup: Cgroup,
    puppet: Puppet,
    region: Region,
    id: u64,
}

impl Agent {
    fn tell(&self, hint: &str) -> Result<()> {
        tell(self.cgroup.path(), "phase", hint)
    }

    /// Waits until nearly all of it is out.
    fn wait_out(&self) -> Result<()> {
        let out = || Ok(self.puppet.pages_out(&self.region)? > PAGES * 9 / 10);
        host::wait_until(
            "the daemon should take the pages out",
            Duration::from_secs(60),
            out,
        )
        .with_context(log)
    }

    /// Pages that a tool touches and that are out.
    fn touched_out(&self) -> Result<usize> {
        let parts = TOUCHED.map(|(from, pages)| self.region.part(from, pages));
        parts
            .iter()
            .try_fold(0, |sum, part| Ok(sum + self.puppet.pages_out(part)?))
    }

    fn faults(&self) -> Result<u64> {
        module::value(&format!("sandboxes/{}/faults", self.id))
    }

    /// A tool runs. Returns how many faults it had.
    fn tool(&self) -> Result<u64> {
        let before = self.faults()?;
        self.tell("tool-start;tool=work")?;
        for (from, pages) in TOUCHED {
            self.puppet.check(&self.region.part(from, pages))?;
        }
        let faults = self.faults()? - before;
        self.tell("tool-end")?;
        Ok(faults)
    }
}

/// Two sandboxes of a template and their daemon.
struct Scene {
    agents: Vec<Agent>,
    daemon: Daemon,
    _template: Template,
    _second_look: SecondLook,
}

impl Scene {
    fn start(ctx: &mut Ctx, config: &str) -> Result<Scene> {
        forget_log();
        ctx.swap()?;
        let second_look = SecondLook::on()?;
        let mut template = ctx.template(64)?;
        let mut agents = Vec::new();
        for number in 0..2 {
            let cgroup = ctx.cgroup(&format!("agent-{number}"))?;
            let puppet = template.spawn(&cgroup)?;
            let mut region = Region::new(5, PAGES);
            puppet.map(&region)?;
            puppet.write(&mut region, |page| {
                Some(Spec::new(
                    Kind::Heap,
                    7_000_000 + (number * PAGES + page) as u32,
                ))
            })?;
            let id = cgroup.id()?;
            agents.push(Agent {
                cgroup,
                puppet,
                region,
                id,
            });
        }
        let daemon = Daemon::start(ctx.root.path(), config)?;
        daemon.client()?;
        for agent in &agents {
            tell(agent.cgroup.path(), "template", &template.name)?;
        }
        let attached = || Ok(module::list("sandboxes")?.len() == agents.len());
        host::wait_until(
            "the daemon should attach both",
            Duration::from_secs(20),
            attached,
        )
        .with_context(log)?;
        Ok(Scene {
            agents,
            daemon,
            _template: template,
            _second_look: second_look,
        })
    }

    /// Turns in which the daemon learns, and the wait after them. Returns the faults of the first one.
    fn learn(&self) -> Result<u64> {
        let mut first = 0;
        for turn in 0..TURNS {
            self.wait_out()?;
            for agent in &self.agents {
                agent.tell("first-token")?;
                // The LLM writes its tool call meanwhile. A page that the tool touches just when it is restored
                // may count as a miss.
                std::thread::sleep(GAP);
                let faults = agent.tool()?;
                if turn == 0 {
                    first += faults;
                }
            }
        }
        self.wait_out()?;
        Ok(first)
    }

    fn wait_out(&self) -> Result<()> {
        for agent in &self.agents {
            agent.tell(WAIT)?;
            agent.wait_out()?;
        }
        Ok(())
    }

    fn figure(&self, name: &str) -> Result<u64> {
        let status = self.daemon.client()?.status(None)?;
        let value = status["prefetch"][name].as_u64();
        value.with_context(|| format!("no {name} in {}", status["prefetch"]))
    }
}

/// By default what nobody expects follows what is expected.
pub fn everything_follows(ctx: &mut Ctx) -> Result<()> {
    let scene = Scene::start(ctx, DEFAULT)?;
    scene.learn()?;
    let untested = || module::value("stats/prefetch_untested");
    let restored = || module::value("stats/prefetch_pages");
    let (before, all_before) = (untested()?, restored()?);
    for agent in &scene.agents {
        agent.tell("first-token")?;
        let there = || Ok(agent.puppet.pages_out(&agent.region)? == 0);
        host::wait_until(
            "everything should come back",
            Duration::from_secs(30),
            there,
        )
        .with_context(log)?;
        let faults = agent.tool()?;
        ensure!(
            faults < ALL as u64 / 10,
            "{faults} faults of the tool though all was there"
        );
    }
    let followed = untested()? - before;
    ensure!(
        followed > (2 * (PAGES - ALL) / 2) as u64,
        "{followed} pages came back that nobody expected"
    );
    let planned = restored()? - all_before - followed;
    ensure!(
        planned > ALL as u64,
        "only {planned} pages came back by plans"
    );
    ensure!(scene.figure("rest_pages")? > 0, "status shows no rest");
    for agent in &scene.agents {
        agent.puppet.check(&agent.region)?;
    }
    scene.daemon.end()
}

pub fn restored_ahead(ctx: &mut Ctx) -> Result<()> {
    let scene = Scene::start(ctx, CONFIG)?;
    let first = scene.learn()?;
    ensure!(
        first >= 2 * ALL as u64 * 9 / 10,
        "{first} faults of {} were seen in the first turn",
        2 * ALL
    );
    let mut last = 0;
    for agent in &scene.agents {
        let out = agent.touched_out()?;
        ensure!(
            out > ALL * 9 / 10,
            "{out} of {ALL} pages are out before the turn"
        );
        agent.tell("first-token")?;
        let there = || Ok(agent.touched_out()? <= ALL / 10);
        host::wait_until(
            "what the tool touches should be there",
            Duration::from_secs(20),
            there,
        )
        .with_context(log)?;
        let out = agent.puppet.pages_out(&agent.region)?;
        ensure!(
            out > PAGES / 2,
            "everything came back: {out} of {PAGES} pages are out"
        );
        last += agent.tool()?;
    }
    ensure!(
        last * 4 <= first,
        "{last} faults with a plan, {first} without"
    );
    for agent in &scene.agents {
        agent.puppet.check(&agent.region)?;
    }
    let hits = || Ok(scene.figure("hits")? >= ALL as u64);
    host::wait_until("hits should be counted", Duration::from_secs(30), hits).with_context(log)?;
    println!("faults of two tools: {first} in the first turn, {last} with plans");
    scene.daemon.end()
}
