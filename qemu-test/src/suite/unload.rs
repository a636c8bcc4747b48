// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Disarming and unloading: refused while anything needs the module, clean afterwards.

use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};

use super::fixture::cgroup::Cgroup;
use super::fixture::module::{self, expect_errno, Device};
use super::fixture::page::{Kind, Spec};
use super::fixture::puppet::Region;
use super::fixture::{host, page_out, trace, write_mixed, Ctx, World};
use super::hooks;
use super::runner::Test;
use super::sys;

macro_rules! test {
    ($f:ident, $timeout_s:literal) => {
        Test {
            name: concat!("unload.", stringify!($f)),
            timeout_s: $timeout_s,
            run: $f,
        }
    };
}

/// The tests of this file.
pub const TESTS: &[Test] = &[
    test!(refused_while_armed, 30),
    test!(refused_while_device_is_open, 30),
    test!(refused_with_entries, 30),
    test!(task_sleeps_in_store, 60),
    test!(task_sleeps_in_store_of_huge_page, 60),
    test!(self_test_at_load, 60),
    test!(bad_parameter, 30),
    test!(processors_share_buffers, 60),
    test!(loaded_twice, 30),
    test!(drain_and_unload, 60),
    test!(twenty_times_under_load, 180),
];

/// What the kernel says of a module in use.
const IN_USE: &[i32] = &[libc::EBUSY, libc::EAGAIN];

fn refused_while_armed(ctx: &mut Ctx) -> Result<()> {
    ctx.close_device();
    expect_errno("unload while armed", module::unload(), IN_USE)?;
    ensure!(
        module::loaded() && module::value("armed")? == 1,
        "it changed something"
    );
    Ok(())
}

fn refused_while_device_is_open(ctx: &mut Ctx) -> Result<()> {
    ctx.device().disarm()?;
    expect_errno("unload with the device open", module::unload(), IN_USE)?;
    ctx.close_device();
    module::unload().context("unload")?;
    ensure!(!module::sysfs("").exists(), "the sysfs tree is still there");
    ensure!(
        !std::path::Path::new(agentzip_uapi::DEVICE_PATH).exists(),
        "the device is still there"
    );
    module::load("").context("load")?;
    ctx.open_device()?;
    ctx.device().arm()?;
    Ok(())
}

fn refused_with_entries(ctx: &mut Ctx) -> Result<()> {
    let mut world = ctx.world(128)?;
    world.store_mixed(1)?;
    expect_errno("disarm with entries", ctx.device().disarm(), &[libc::EBUSY])?;
    expect_errno("unload with entries", module::unload(), IN_USE)?;
    ensure!(ctx.device().info()?.armed == 1, "a refused disarm disarmed");
    // Still at work: stores too, unless it drains.
    world.check()?;
    ensure!(
        ctx.device().info()?.draining == 0,
        "a refused disarm left it draining"
    );
    world.store_mixed(2)?;
    world.check()
}

/// Catches a task inside a store: the test module makes it sleep there.
fn sleeping_in_store(world: &mut World, region: &Region, ms: u32) -> Result<()> {
    host::load_testmod(&format!("slow_comm=azt-slow slow_ms={ms}"))?;
    world.puppet.name("azt-slow")?;
    // Pages in the batch of another CPU than the one that the process is on now do not go out.
    host::drain_page_batches()?;
    world.puppet.begin_page_out(region)?;
    host::wait_until(
        "a task should sleep in a store",
        Duration::from_secs(10),
        || Ok(host::testmod_number("sleepers")? > 0),
    )
}

fn task_sleeps_in_store(ctx: &mut Ctx) -> Result<()> {
    let mut world = ctx.world(16)?;
    let mut region = Region::new(5, 3);
    world.puppet.map(&region)?;
    let text = |i: usize| Some(Spec::new(Kind::Text, i as u32));
    world.puppet.write(&mut region, text)?;
    sleeping_in_store(&mut world, &region, 1500)?;
    expect_errno("unload with a task in a store", module::unload(), IN_USE)?;
    // No entry may exist yet, so that disarming is not refused for that: it must wait.
    let began = Instant::now();
    let result = ctx.device().disarm();
    let waited = began.elapsed();
    let asleep = host::testmod_number("sleepers")?;
    let outcome = match result {
        Ok(()) => {
            ensure!(
                asleep == 0,
                "disarmed after {waited:?} under a sleeping task"
            );
            ensure!(module::entries()? == 0, "disarmed with entries");
            let claimed = trace::claimed()?;
            ensure!(claimed.is_empty(), "still hooked: {claimed:?}");
            "disarmed"
        }
        Err(e) => {
            expect_errno::<()>("disarm with a task in a store", Err(e), &[libc::EBUSY])?;
            ensure!(
                ctx.device().info()?.armed == 1,
                "EBUSY, and disarmed all the same"
            );
            "refused"
        }
    };
    println!(
        "# disarm with a task in a store: {outcome} after {} ms",
        waited.as_millis()
    );
    world.puppet.end_page_out()?;
    world.puppet.name("azt-quick")?;
    host::unload_testmod()?;
    world.puppet.check(&region)?;
    ctx.device().ensure_armed()?;
    world.store_mixed(1)?;
    world.check()
}

/// The store of a large folio sleeps in its middle, with some of its pages encoded already.
fn task_sleeps_in_store_of_huge_page(ctx: &mut Ctx) -> Result<()> {
    let mut world = ctx.world(16)?;
    let mut region = Region::new(5, 512);
    world.puppet.map_as(&region, false, libc::MADV_HUGEPAGE)?;
    let spec = |i: usize| {
        Some(if i == 200 {
            Spec::new(Kind::Text, 1)
        } else {
            Spec::new(Kind::Fill, i as u32)
        })
    };
    world.puppet.write(&mut region, spec)?;
    sleeping_in_store(&mut world, &region, 1500)?;
    expect_errno("unload with a task in a store", module::unload(), IN_USE)?;
    // A switch and a detach at this moment must not tear the folio apart.
    host::write(module::sysfs("enabled"), "0")?;
    ctx.device().detach(world.sandbox.id)?;
    world.puppet.end_page_out()?;
    world.puppet.name("azt-quick")?;
    host::unload_testmod()?;
    host::write(module::sysfs("enabled"), "1")?;
    world.puppet.check(&region)?;
    world.sandbox.cgroup.reclaim_all()?;
    world.puppet.check(&region)
}

/// Unloads and loads with parameters, then arms.
pub fn reload(ctx: &mut Ctx, params: &str) -> Result<()> {
    reload_beside(ctx, params, None)
}

/// The same while processes of a cgroup swap.
///
/// Arming patches functions that they run. Emulated processors may go on executing the
/// breakpoint that the kernel used for that after it is gone ("Oops: int3", seen with QEMU 7.2),
/// which real ones cannot; so on emulated ones the load stands still for that moment.
fn reload_beside(ctx: &mut Ctx, params: &str, load: Option<&Cgroup>) -> Result<()> {
    let load = load.filter(|_| std::env::var("AGENTZIP_ACCEL").as_deref() != Ok("kvm"));
    let freeze = |frozen| load.map_or(Ok(()), |cgroup| cgroup.freeze(frozen));
    freeze(true)?;
    if ctx.device().info()?.armed == 1 {
        ctx.device().disarm().context("disarm")?;
    }
    freeze(false)?;
    ctx.close_device();
    module::unload().context("unload")?;
    module::load(params).with_context(|| format!("load with {params:?}"))?;
    ctx.open_device()?;
    let info = ctx.device().info()?;
    ensure!(info.armed == 0, "armed by loading");
    ensure!(trace::claimed()?.is_empty(), "hooked by loading");
    freeze(true)?;
    ctx.device().arm().context("arm")?;
    freeze(false)
}

fn self_test_at_load(ctx: &mut Ctx) -> Result<()> {
    reload(ctx, "selftest=1")?;
    let mut world = ctx.world(64)?;
    world.store_mixed(1)?;
    world.check()
}

fn bad_parameter(ctx: &mut Ctx) -> Result<()> {
    ctx.device().disarm()?;
    ctx.close_device();
    module::unload().context("unload")?;
    let result = module::load("selftest=maybe");
    expect_errno("selftest=maybe", result, &[libc::EINVAL, libc::ENOENT])?;
    ensure!(!module::loaded(), "loaded with a bad parameter");
    module::load("")?;
    ctx.open_device()?;
    ctx.device().arm()?;
    Ok(())
}

/// A bound on the buffers that leaves room for one page at a time.
fn processors_share_buffers(ctx: &mut Ctx) -> Result<()> {
    let scratch = || module::value("stats/memory_scratch");
    let each_its_own = scratch()?;
    reload(ctx, "bounce_kib=1")?;
    let shared = scratch()?;
    ensure!(
        0 < shared && shared < each_its_own,
        "{shared} bytes of buffers, {each_its_own} without a bound"
    );
    hooks::under_load(ctx)?;
    super::fixture::clean_module(ctx.device())?;
    reload(ctx, "")?;
    ensure!(scratch()? == each_its_own, "the bound outlives the module");
    Ok(())
}

fn loaded_twice(_ctx: &mut Ctx) -> Result<()> {
    expect_errno("load again", module::load(""), &[libc::EEXIST])
}

fn drain_and_unload(ctx: &mut Ctx) -> Result<()> {
    let disk = ctx.swap()?;
    let mut world = ctx.world_without_swap(256)?;
    world.store_mixed(1)?;
    let left = ctx.device().drain()?;
    ensure!(left >= 256, "{left} entries left by the drain");
    sys::swapoff(&disk).context("swapoff")?;
    module::wait_entries(0)?;
    super::fixture::clean_module(ctx.device())?;
    reload(ctx, "")?;
    // The pages outlive the module that had stored them.
    world.check()?;
    ctx.swap()?;
    let template = ctx.template(64)?;
    ctx.device()
        .attach(world.sandbox.cgroup.path(), &template.name)?;
    world.write_mixed(2)?;
    world.page_out()?;
    world.check()
}

/// The whole life of the module, over and over, while another cgroup swaps without a pause.
fn twenty_times_under_load(ctx: &mut Ctx) -> Result<()> {
    let disk = ctx.swap()?;
    let busy = ctx.cgroup("busy")?;
    let (_family, churner, _) = ctx.zygote(32, &busy)?;
    let churned = Region::new(8, 384);
    churner.map(&churned)?;
    churner.begin_churn_reclaiming(&churned, 600_000, &busy)?;
    let hold = ctx.holder_cgroup("hold")?;
    let (mut family, zygote, original) = ctx.zygote(64, &hold)?;
    let holder = family.fork(&zygote)?;
    let cgroup = ctx.cgroup("box")?;
    let puppet = family.fork(&zygote)?;
    cgroup.enter(puppet.pid)?;
    let mut own = original.clone();
    let swap_off_and_on = |ctx: &Ctx| -> Result<()> {
        sys::swapoff(&disk).context("swapoff")?;
        ctx.swap().map(drop)
    };
    for round in 0..20 {
        let device: &Device = ctx.device();
        ctx.register("t", &holder, &[&original])?;
        let id = device.attach(cgroup.path(), "t").context("attach")?;
        write_mixed(&puppet, &mut own, round)?;
        page_out(&cgroup, &puppet, &own)?;
        let entries = module::entries()?;
        ensure!(entries >= 64, "{entries} entries in round {round}");
        puppet.check(&own)?;
        page_out(&cgroup, &puppet, &own)?;
        device.drain().context("drain")?;
        if round % 4 == 3 {
            swap_off_and_on(ctx)?;
        } else {
            // Rewritten while draining, the pages go to disk and their entries away.
            puppet.check(&own)?;
            write_mixed(&puppet, &mut own, round + 100)?;
            page_out(&cgroup, &puppet, &own)?;
            // What is left are the process's other pages.
            if module::entries()? > 0 {
                swap_off_and_on(ctx)?;
            }
        }
        module::wait_entries(0)?;
        ctx.device().detach(id).context("detach")?;
        super::fixture::clean_module(ctx.device())?;
        reload_beside(ctx, "", Some(&busy)).with_context(|| format!("round {round}"))?;
        puppet.check(&own)?;
    }
    let swapped = busy.stat_reaches("pswpout", 385)?;
    ensure!(swapped > 384, "the load swapped only {swapped} pages");
    churner.kill().context("the load")
}
