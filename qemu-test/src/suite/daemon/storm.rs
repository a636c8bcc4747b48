// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Sandboxes with twice the machine's memory all wake at once and rewrite everything they have. For a
//! guest with little memory, as it takes the longer the more there is.

use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};

use super::super::fixture::cgroup::Cgroup;
use super::super::fixture::module::{self, SecondLook};
use super::super::fixture::page::{Kind, Spec};
use super::super::fixture::puppet::{Puppet, Region};
use super::super::fixture::{host, Ctx};
use super::super::runner::Test;
use super::{forget_log, tell, Daemon};

/// The test.
pub const TESTS: &[Test] = &[Test {
    name: "storm.all_wake_at_once",
    timeout_s: 900,
    run: all_wake_at_once,
}];

const SANDBOXES: usize = 8;
/// A wait that does not end by itself.
const WAIT: &str = "llm-wait;expect=3600000";
/// All have room for everything they own, resident, and for what the kernel keeps beside it.
const LIMIT_PERCENT: u64 = 130;

struct Member {
    number: usize,
    cgroup: Cgroup,
    id: u64,
    puppet: Puppet,
    region: Region,
}

impl Member {
    /// Rewrites every page.
    fn rewrite(&mut self, round: u32) -> Result<()> {
        let number = self.number as u32;
        self.puppet.write(&mut self.region, |page| {
            // Pages of a task: like those of the others, and different in some words.
            let like = Spec::new(Kind::Text, page as u32 % 512);
            Some(like.edited(12, ((round * 16 + number) << 20) | page as u32))
        })
    }
}

/// Says how far it is once a minute: a guest that says nothing for some is taken for dead.
fn tell_sometimes(told: &mut Instant, what: &str) {
    if told.elapsed() > Duration::from_secs(60) {
        *told = Instant::now();
        println!("@@ storm: {what}");
    }
}

fn all_wake_at_once(ctx: &mut Ctx) -> Result<()> {
    forget_log();
    let total = host::meminfo("MemTotal")?;
    let pages = (2 * total / 4096) as usize / SANDBOXES;
    ctx.swap_of((3 * total / 4096) as u32)?;
    let _second_look = SecondLook::on()?;
    let mut template = ctx.template(64)?;
    let mut members = Vec::new();
    for number in 0..SANDBOXES {
        let cgroup = ctx.cgroup(&format!("agent-{number}"))?;
        let limit = pages as u64 * 4096 * LIMIT_PERCENT / 100;
        cgroup.write("memory.max", &limit.to_string())?;
        let puppet = template.spawn(&cgroup)?;
        let region = Region::new(5, pages);
        puppet.map(&region)?;
        let id = cgroup.id()?;
        members.push(Member {
            number,
            cgroup,
            id,
            puppet,
            region,
        });
    }
    let killed = || host::vmstat("oom_kill");
    let killed_before = killed()?;

    // The wait of each ends with the storm; the budget is not what is tried here.
    let daemon = Daemon::start(ctx.root.path(), "[schedule]\ncpu_budget = 100\n")?;
    let mut client = daemon.client()?;
    for (number, member) in members.iter().enumerate() {
        let profile = ["interactive", "batch"][number % 2];
        tell(member.cgroup.path(), "profile", profile)?;
        tell(member.cgroup.path(), "template", &template.name)?;
    }
    let attached = || Ok(module::list("sandboxes")?.len() == SANDBOXES);
    host::wait_until(
        "the daemon should attach all",
        Duration::from_secs(30),
        attached,
    )
    .with_context(super::log)?;

    // One after the other works and waits.
    let began = Instant::now();
    let mut told = began;
    for member in &mut members {
        tell_sometimes(&mut told, &format!("sandbox {} works", member.number));
        tell(member.cgroup.path(), "phase", "tool-start;tool=fill")?;
        member.rewrite(0)?;
        tell(member.cgroup.path(), "phase", WAIT)?;
    }
    let deadline = Instant::now() + Duration::from_secs(300);
    loop {
        let seen = Daemon::list(&mut client)?;
        let out = seen.iter().filter(|seen| seen.is_out()).count();
        if out == SANDBOXES {
            break;
        }
        tell_sometimes(&mut told, &format!("{out} of {SANDBOXES} are out"));
        ensure!(
            Instant::now() < deadline,
            "not all out: {seen:?}: {}",
            super::log()
        );
        std::thread::sleep(Duration::from_millis(250));
    }
    println!(
        "@@ storm: {SANDBOXES} sandboxes with {} MiB in {} MiB of memory wait after {:.0} s",
        (SANDBOXES * pages) >> 8,
        total >> 20,
        began.elapsed().as_secs_f64()
    );

    // The storm.
    let began = Instant::now();
    for member in &members {
        tell(member.cgroup.path(), "phase", "first-token")?;
    }
    let mut held = 0;
    let mut served = Vec::new();
    std::thread::scope(|scope| -> Result<()> {
        let running: Vec<_> = members
            .iter_mut()
            .map(|member| {
                scope.spawn(move || -> Result<f64> {
                    member.rewrite(1)?;
                    let seconds = began.elapsed().as_secs_f64();
                    tell(member.cgroup.path(), "phase", WAIT)?;
                    Ok(seconds)
                })
            })
            .collect();
        while !running.iter().all(|thread| thread.is_finished()) {
            let now = Daemon::list(&mut client)?.iter().filter(|s| s.held).count();
            held = held.max(now);
            tell_sometimes(&mut told, &format!("{now} held"));
            std::thread::sleep(Duration::from_millis(200));
        }
        for thread in running {
            let seconds = thread.join().ok().context("a thread died")??;
            served.push(seconds);
        }
        Ok(())
    })?;
    served.sort_by(f64::total_cmp);
    println!(
        "@@ storm: first served after {:.1} s, all after {:.1} s; {held} held at one time",
        served.first().copied().unwrap_or(0.0),
        served.last().copied().unwrap_or(0.0)
    );
    let now = killed()?;
    ensure!(
        now == killed_before,
        "{} processes were killed for want of memory",
        now - killed_before
    );
    for member in &members {
        let events = member.cgroup.read("memory.events")?;
        ensure!(
            events.lines().any(|line| line == "oom_kill 0"),
            "sandbox {}: {events}",
            member.id
        );
    }
    for member in members.iter().step_by(3) {
        tell(member.cgroup.path(), "phase", "tool-start;tool=check")?;
        member.puppet.check(&member.region)?;
    }
    daemon.end()?;
    // A page of the swap cache that somebody looked at while its process ended stays until reclaim
    // finds it.
    for member in &members {
        member.cgroup.kill()?;
    }
    let gone = || {
        for member in &members {
            member.cgroup.reclaim(1 << 30)?;
        }
        Ok(module::value("stats/entries")? == 0)
    };
    let what = "entries should end with their processes";
    host::wait_until(what, Duration::from_secs(60), gone)
}
