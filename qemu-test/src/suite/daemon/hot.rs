// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `encode.hot_skip` with the soft-dirty bits of the real kernel: what a tool writes all the time stays
//! when the wait begins, everything else goes, and with the policy off that goes, too.

use std::time::{Duration, Instant};

use agentzip_ctl::client::Client;
use anyhow::{ensure, Context, Result};
use serde_json::Value;

use super::super::fixture::cgroup::Cgroup;
use super::super::fixture::page::{Kind, Spec};
use super::super::fixture::puppet::{Puppet, Region};
use super::super::fixture::{host, module, Ctx};
use super::{cpu_time, forget_log, tell, Daemon};

const PAGES: usize = 1024;
/// The pages that are written all the time: the first one, and how many.
const HOT: [usize; 2] = [400, 16];
/// A wait that does not end by itself.
const WAIT: &str = "llm-wait;expect=3600000";
/// How long the pages are written: longer than it takes to find them.
const CHURN_MS: u64 = 40_000;

pub fn hot_pages_stay(ctx: &mut Ctx) -> Result<()> {
    forget_log();
    ctx.swap()?;
    let mut template = ctx.template(64)?;
    let cgroup = ctx.cgroup("hot")?;
    let puppet = template.spawn(&cgroup)?;
    let mut region = Region::new(5, PAGES);
    puppet.map(&region)?;
    puppet.write(&mut region, |page| Some(page_of(page)))?;

    let daemon = Daemon::start(
        ctx.root.path(),
        "[schedule]\ncpu_budget = 100\n[encode]\nhot_skip = true\n",
    )?;
    tell(cgroup.path(), "template", &template.name)?;
    attached()?;
    tell(cgroup.path(), "phase", "tool-start;tool=churn")?;
    let [first, count] = HOT;
    let hot = region.part(first, count);
    puppet.begin_churn(
        &hot,
        host::patience(Duration::from_millis(CHURN_MS)).as_millis() as u64,
        1,
    )?;
    let mut client = daemon.client()?;
    let (began, cpu) = (Instant::now(), cpu_time(daemon.pid())?);
    let found = wait_for_hot(&mut client, &cgroup, hot.bytes() as u64)?;
    let (seconds, cpu) = (began.elapsed(), cpu_time(daemon.pid())?.saturating_sub(cpu));
    println!(
        "@@ daemon: {} hot pages of {PAGES} found after {:.1} s, for {:.1} ms of CPU a second",
        found / 4096,
        seconds.as_secs_f64(),
        cpu.as_secs_f64() * 1e3 / seconds.as_secs_f64()
    );
    // Its stack and its heap are written as well. All of it would mean that nothing is known.
    ensure!(found < region.bytes() as u64 / 4, "{found} bytes are hot");

    let (out, hot_out) = wait_begins(&mut client, &cgroup, &puppet, &region)?;
    println!("@@ daemon: hot_skip on: {out} of {PAGES} pages out, {hot_out} of {count} hot ones");
    ensure!(
        hot_out == 0,
        "{hot_out} of {count} hot pages are out: {}",
        super::log()
    );
    ensure!(
        out > (PAGES - count) * 9 / 10,
        "only {out} of {PAGES} pages are out: {}",
        super::log()
    );
    wake(&cgroup, &puppet, &region)?;
    daemon.end()?;

    // The same with the policy off.
    let daemon = Daemon::start(ctx.root.path(), "[schedule]\ncpu_budget = 100\n")?;
    attached()?;
    let mut client = daemon.client()?;
    tell(cgroup.path(), "phase", "tool-start;tool=churn")?;
    puppet.begin_churn(
        &hot,
        host::patience(Duration::from_millis(5000)).as_millis() as u64,
        2,
    )?;
    std::thread::sleep(Duration::from_secs(1));
    let (out, hot_out) = wait_begins(&mut client, &cgroup, &puppet, &region)?;
    println!("@@ daemon: hot_skip off: {out} of {PAGES} pages out, {hot_out} of {count} hot ones");
    ensure!(
        hot_out > count / 2,
        "only {hot_out} of {count} pages are out without the policy"
    );
    wake(&cgroup, &puppet, &region)?;
    daemon.end()
}

fn page_of(page: usize) -> Spec {
    Spec::new(Kind::Heap, 9_000_000 + page as u32)
}

fn attached() -> Result<()> {
    let attached = || Ok(module::list("sandboxes")?.len() == 1);
    let patience = Duration::from_secs(20);
    host::wait_until("the daemon should attach it", patience, attached).with_context(super::log)
}

/// What the daemon says of the sandbox.
fn view(client: &mut Client, cgroup: &Cgroup) -> Result<Value> {
    let list = client.list()?;
    let id = cgroup.id()?;
    let all = list.as_array().context("list is no array")?;
    let one = all.iter().find(|one| one["cgroup_id"] == id);
    Ok(one.context("the daemon does not list it")?.clone())
}

/// Waits until so much is hot. Returns how much is.
fn wait_for_hot(client: &mut Client, cgroup: &Cgroup, bytes: u64) -> Result<u64> {
    let deadline = Instant::now() + host::patience(Duration::from_secs(30));
    loop {
        let found = view(client, cgroup)?["hot_bytes"].as_u64();
        let found = found.context("hot_bytes is missing")?;
        if found >= bytes {
            return Ok(found);
        }
        ensure!(
            Instant::now() < deadline,
            "{found} bytes are hot after 30 s: {}",
            super::log()
        );
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// A wait begins while the pages are written, and the sandbox is frozen so that what was taken stays out.
/// Returns the pages that are out when all was taken, and the hot ones of them.
fn wait_begins(
    client: &mut Client,
    cgroup: &Cgroup,
    puppet: &Puppet,
    region: &Region,
) -> Result<(usize, usize)> {
    tell(cgroup.path(), "phase", WAIT)?;
    cgroup.freeze(true)?;
    let deadline = Instant::now() + host::patience(Duration::from_secs(60));
    loop {
        let now = view(client, cgroup)?;
        if now["state"] == "compressed" && now["compressing"] == false && now["queued"] == false {
            break;
        }
        ensure!(
            Instant::now() < deadline,
            "not compressed after 60 s: {now}: {}",
            super::log()
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    let [first, count] = HOT;
    let out = puppet.pages_out(region)?;
    let hot_out = puppet.pages_out(&region.part(first, count))?;
    Ok((out, hot_out))
}

/// Goes on, and finds everything as it was.
fn wake(cgroup: &Cgroup, puppet: &Puppet, region: &Region) -> Result<()> {
    tell(cgroup.path(), "phase", "tool-start;tool=check")?;
    cgroup.freeze(false)?;
    ensure!(puppet.end_churn()? > 0, "nothing was checked");
    let [first, count] = HOT;
    puppet.check(&region.part(0, first))?;
    let rest = first + count;
    puppet.check(&region.part(rest, PAGES - rest))
}
