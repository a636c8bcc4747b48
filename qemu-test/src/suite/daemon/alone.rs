// SPDX-License-Identifier: GPL-2.0 OR MIT

//! One sandbox: held still for who reads its memory; and a daemon without the module.

use std::time::Duration;

use anyhow::{ensure, Context, Result};

use super::super::fixture::cgroup::Cgroup;
use super::super::fixture::module::{self, SecondLook};
use super::super::fixture::page::{Kind, Spec};
use super::super::fixture::puppet::{Family, Puppet, Region};
use super::super::fixture::{controller, host, Ctx};
use super::{forget_log, tell, Daemon, SOCKET};

const PAGES: usize = 256;
/// A wait that does not end by itself.
const WAIT: &str = "llm-wait;expect=3600000";

fn page_of(page: usize) -> Option<Spec> {
    Some(Spec::new(Kind::Heap, 9_000_000 + page as u32))
}

/// Waits until nearly all of a region is out. A daemon may leave what a small last job would bring.
fn wait_out(puppet: &Puppet, region: &Region) -> Result<()> {
    let out = || Ok(puppet.pages_out(region)? > PAGES * 9 / 10);
    host::wait_until(
        "the daemon should take the pages out",
        Duration::from_secs(60),
        out,
    )
    .with_context(super::log)
}

/// Tools that read memory see what is out as absent; after a quiesce all is there, and stays.
pub fn quiesced_is_whole(ctx: &mut Ctx) -> Result<()> {
    forget_log();
    ctx.swap()?;
    let _second_look = SecondLook::on()?;
    let mut template = ctx.template(64)?;
    let cgroup = ctx.cgroup("agent")?;
    let puppet = template.spawn(&cgroup)?;
    let mut region = Region::new(5, PAGES);
    puppet.map(&region)?;
    puppet.write(&mut region, page_of)?;
    let daemon = Daemon::start(ctx.root.path(), "[schedule]\ncpu_budget = 100\n")?;
    tell(cgroup.path(), "template", &template.name)?;
    tell(cgroup.path(), "phase", WAIT)?;
    wait_out(&puppet, &region)?;

    let path = cgroup.path().display().to_string();
    let order = |more: &[&str]| {
        let mut arguments = vec!["quiesce", path.as_str(), "--socket", SOCKET];
        arguments.extend(more);
        controller::run(&arguments)
    };
    order(&[]).with_context(super::log)?;
    let out = puppet.pages_out(&region)?;
    ensure!(
        out == 0,
        "{out} of {PAGES} pages are absent after a quiesce"
    );
    tell(cgroup.path(), "phase", "tool-start;tool=snapshot")?;
    tell(cgroup.path(), "phase", WAIT)?;
    std::thread::sleep(host::patience(Duration::from_secs(3)));
    let out = puppet.pages_out(&region)?;
    ensure!(
        out == 0,
        "{out} of {PAGES} pages were taken while it is quiesced"
    );
    order(&["--release"])?;
    wait_out(&puppet, &region)?;
    puppet.check(&region)?;
    daemon.end()
}

/// The daemon alone, over the host's zswap: the same hints do the same.
pub fn without_the_module(ctx: &mut Ctx) -> Result<()> {
    forget_log();
    ctx.device().disarm()?;
    ctx.close_device();
    module::unload().context("unload the module")?;
    let result = over_zswap(ctx);
    // The runner's recovery tries again after a failed test.
    let off = host::set_zswap_param("enabled", "N");
    module::load("").context("load the module")?;
    ctx.open_device()?;
    ctx.device().ensure_armed()?;
    result.and(off)
}

fn over_zswap(ctx: &Ctx) -> Result<()> {
    ctx.swap()?;
    host::set_zswap_param("enabled", "Y")?;
    let cgroup = ctx.cgroup("agent")?;
    let (_family, puppet) = Family::start()?;
    cgroup.enter(puppet.pid)?;
    let mut region = Region::new(5, PAGES);
    puppet.map(&region)?;
    puppet.write(&mut region, page_of)?;
    let daemon = Daemon::start(ctx.root.path(), "[schedule]\ncpu_budget = 100\n")?;
    let mut client = daemon.client()?;
    tell(cgroup.path(), "template", "none")?;
    tell(cgroup.path(), "phase", WAIT)?;
    wait_out(&puppet, &region)?;
    ensure!(zswapped(&cgroup)? > 0, "nothing of it is in zswap");
    tell(cgroup.path(), "phase", "first-token")?;
    let back = || Ok(puppet.pages_out(&region)? == 0);
    host::wait_until(
        "the daemon should read the pages back",
        Duration::from_secs(30),
        back,
    )
    .with_context(super::log)?;
    let id = cgroup.id()?;
    let seen = Daemon::list(&mut client)?;
    let seen = seen.iter().find(|seen| seen.id == id);
    ensure!(
        seen.is_some_and(|seen| seen.state == "resuming" && !seen.attached),
        "{seen:?}"
    );
    puppet.check(&region)?;
    puppet.exit()?;
    daemon.end()
}

fn zswapped(cgroup: &Cgroup) -> Result<u64> {
    cgroup.stat_reaches("zswapped", 1)
}
