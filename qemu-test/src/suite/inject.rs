// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The allocations in each call to the module fail in turn: the call is refused or does with less,
//! nothing of it is left, and the same call works afterwards.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};

use super::fixture::fault::Faults;
use super::fixture::module::{self, Device};
use super::fixture::{host, trace, Ctx};
use super::runner::Test;

/// The tests of this file.
pub const TESTS: &[Test] = &[Test {
    name: "inject.every_allocation_of_a_call",
    timeout_s: 900,
    run: every_allocation_of_a_call,
}];

/// Whether a call failed for want of memory.
pub fn is_enomem(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ENOMEM)
}

/// Lets each allocation in a call fail in turn. Each time, the call succeeds, and `undo` undoes it,
/// or fails with ENOMEM, and `undone` finds nothing of it left. Returns how many allocations failed.
fn each_nth<T>(
    what: &str,
    mut call: impl FnMut() -> io::Result<T>,
    mut undo: impl FnMut(T) -> Result<()>,
    undone: impl Fn() -> Result<()>,
) -> Result<u32> {
    let faults = Faults::prepare()?;
    // Loading makes hundreds of allocations in loops (one for each CPU, each shard, each page of a
    // context): the first ones each, then every eleventh.
    for n in (1..64).chain((64..4000).step_by(11)) {
        let (result, failed) = faults.nth(n, &mut call)?;
        match result {
            Ok(value) => undo(value).with_context(|| format!("undo {what} after failure {n}"))?,
            Err(e) if failed && is_enomem(&e) => {}
            Err(e) => return Err(e).with_context(|| format!("{what} with failure {n}")),
        }
        undone().with_context(|| format!("after {what} with failure {n}"))?;
        if !failed {
            println!(
                "@@ inject: {what}: up to {} allocations, failed in turn",
                n - 1
            );
            return Ok(n - 1);
        }
    }
    bail!("{what}: no end")
}

/// Demands that nothing of the module is there.
pub fn nothing_loaded() -> Result<()> {
    ensure!(!module::loaded(), "the module is loaded");
    ensure!(!module::sysfs("").exists(), "its sysfs tree is there");
    ensure!(
        !Path::new(agentzip_uapi::DEVICE_PATH).exists(),
        "its device is there"
    );
    Ok(())
}

/// Demands that the module is loaded and hooks nothing.
pub fn unarmed() -> Result<()> {
    let claimed = trace::claimed()?;
    ensure!(claimed.is_empty(), "hooked: {claimed:?}");
    ensure!(module::value("armed")? == 0, "armed");
    Ok(())
}

fn empty(directory: &str) -> Result<()> {
    let left = module::list(directory)?;
    ensure!(left.is_empty(), "{directory} has {}", left.join(" "));
    Ok(())
}

/// Loading, also with the self-test.
fn load_with_failures(ctx: &mut Ctx) -> Result<()> {
    if ctx.device().info()?.armed == 1 {
        ctx.device().disarm()?;
    }
    ctx.close_device();
    module::unload().context("unload")?;
    each_nth(
        "load",
        || module::load("selftest=1"),
        |()| module::unload().context("unload"),
        nothing_loaded,
    )?;
    module::load("").context("load")?;
    ctx.open_device()
}

fn every_allocation_of_a_call(ctx: &mut Ctx) -> Result<()> {
    load_with_failures(ctx)?;
    let device = ctx.device();
    each_nth("arm", || device.arm(), |()| Ok(device.disarm()?), unarmed)?;
    device.arm()?;

    let hold = ctx.holder_cgroup("hold")?;
    let (mut family, zygote, region) = ctx.zygote(64, &hold)?;
    let holder = family.fork(&zygote)?;
    let ranges = [region.range()];
    let failed = each_nth(
        "template add",
        || device.template_add("t", holder.pid, &ranges),
        |added| {
            ensure!(
                added.pages_referenced + added.pages_copied == 64,
                "{added:?}"
            );
            device.template_remove("t").map_err(|(e, _)| e.into())
        },
        || empty("templates"),
    )?;
    ensure!(failed > 0, "a template takes no memory");

    device.template_add("t", holder.pid, &ranges)?;
    let cgroup = ctx.cgroup("box")?;
    let failed = each_nth(
        "attach",
        || device.attach(cgroup.path(), "t"),
        |id| {
            device.detach(id)?;
            host::wait_until("the sandbox goes", Duration::from_secs(10), || {
                Ok(module::list("sandboxes")?.is_empty())
            })
        },
        || empty("sandboxes"),
    )?;
    ensure!(failed > 0, "a sandbox takes no memory");

    let id = device.attach(cgroup.path(), "t")?;
    each_nth("statistics", || device.stats(id), |_| Ok(()), || Ok(()))?;
    let files = ["stats/stores", "templates/t/users"];
    each_nth(
        "sysfs",
        || {
            files
                .iter()
                .try_for_each(|f| fs::read(module::sysfs(f)).map(drop))
        },
        |()| Ok(()),
        || Ok(()),
    )?;
    each_nth("drain", || device.drain(), |_| Ok(()), || Ok(()))?;
    each_nth("open", || Device::open().map(drop), Ok, || Ok(())).map(drop)
}
