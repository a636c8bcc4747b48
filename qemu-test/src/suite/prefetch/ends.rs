// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Requests that come to an end before their pages do.

use std::time::Duration;

use agentzip_uapi::{self as uapi, Phase};
use anyhow::{ensure, Context, Result};

use super::super::fixture::module::{self, Counters};
use super::super::fixture::puppet::{Puppet, Region};
use super::super::fixture::{clean_module, host, page_out, write_mixed, Ctx, Sandbox, World};
use super::{expect_grown, wait_ended, Scene};

/// Pages that take the workers some time.
const MANY: usize = 4096;

/// Begins a request that takes some time, does something to it, and demands that the rest of it was
/// dropped.
fn drops_the_rest(ctx: &mut Ctx, end: impl FnOnce(&Ctx, &Scene) -> Result<()>) -> Result<Scene> {
    let scene = Scene::start(ctx, MANY)?;
    let before = scene.counters()?;
    let ranges = [scene.region.range()];
    ctx.device().prefetch(&ranges, scene.request())?;
    host::wait_until("it should begin", Duration::from_secs(10), || {
        Ok(before.grown("prefetch_pages")? > 0)
    })?;
    end(ctx, &scene)?;
    wait_ended(&before, MANY as u64)?;
    let (pages, dropped) = (
        before.grown("prefetch_pages")?,
        before.grown("prefetch_dropped")?,
    );
    ensure!(dropped > 0, "all {pages} pages were restored first");
    println!("# {pages} of {MANY} pages restored first");
    Ok(scene)
}

pub fn too_old(ctx: &mut Ctx) -> Result<()> {
    let scene = Scene::start(ctx, MANY)?;
    let before = scene.counters()?;
    let request = uapi::Prefetch {
        timeout_ms: 1,
        ..scene.request()
    };
    ctx.device().prefetch(&[scene.region.range()], request)?;
    wait_ended(&before, MANY as u64)?;
    ensure!(
        before.grown("prefetch_dropped")? > 0,
        "all was restored within 1 ms"
    );
    // What is older goes first, and what is dropped does not stop the next.
    scene.restore(ctx, &[&scene.region])?;
    ensure!(
        scene.puppet().pages_out(&scene.region)? == 0,
        "not restored"
    );
    scene.puppet().check(&scene.region)
}

/// No OOM killer runs for a page that is restored ahead of need, and no limit is passed.
pub fn full_cgroup(ctx: &mut Ctx) -> Result<()> {
    const PAGES: u64 = 1024;
    let scene = Scene::start(ctx, PAGES as usize)?;
    let cgroup = &scene.world.sandbox.cgroup;
    for (which, file) in [
        (cgroup, "memory.max"),
        (cgroup, "memory.high"),
        (&ctx.root, "memory.high"),
    ] {
        scene.page_out()?;
        // Room for some of them, and for what CPUs take in advance.
        let used = (if std::ptr::eq(which, cgroup) {
            cgroup
        } else {
            &ctx.root
        })
        .number("memory.current")?;
        let limit = used + (400 << 12);
        which.write(file, &limit.to_string())?;
        let before = scene.counters()?;
        let killed = host::vmstat("oom_kill")?;
        ctx.device()
            .prefetch(&[scene.region.range()], scene.request())?;
        wait_ended(&before, PAGES)?;
        let current = which.number("memory.current")?;
        let dropped = before.grown("prefetch_dropped")?;
        ensure!(dropped > PAGES / 2, "{file}: only {dropped} pages dropped");
        ensure!(
            before.grown("prefetch_pages")? > 0,
            "{file}: nothing was restored"
        );
        ensure!(
            current <= limit,
            "{file}: {current} bytes, the limit is {limit}"
        );
        ensure!(
            host::vmstat("oom_kill")? == killed,
            "{file}: the OOM killer ran"
        );
        let events = which.read("memory.events")?;
        let name = &file["memory.".len()..];
        ensure!(
            events.lines().any(|l| l == format!("{name} 0")),
            "{file}: {events}"
        );
        which.write(file, "max")?;
        scene.puppet().check(&scene.region)?;
    }
    Ok(())
}

/// A process whose slots are charged to a cgroup that it has left for the sandbox.
fn newcomer(ctx: &mut Ctx, pages: usize) -> Result<(World, Sandbox, Puppet, Region)> {
    let mut world = ctx.world(16)?;
    let former = ctx.sandbox("former", &world.template.name)?;
    let puppet = world.template.spawn(&former.cgroup)?;
    let mut region = Region::new(5, pages);
    puppet.map(&region)?;
    write_mixed(&puppet, &mut region, 3)?;
    page_out(&former.cgroup, &puppet, &region)?;
    world.sandbox.cgroup.enter(puppet.pid)?;
    Ok((world, former, puppet, region))
}

fn request_of(world: &World, puppet: &Puppet) -> uapi::Prefetch {
    uapi::Prefetch {
        cgroup_id: world.sandbox.id,
        pid: puppet.pid,
        timeout_ms: 60_000,
        ..Default::default()
    }
}

/// What the kernel charges ahead of use to the cgroup of its last charge, at most: 64 pages on each of two processors.
const CHARGED_AHEAD: u64 = 2 * 64 * 4096;

/// When the cgroup that slots are charged to is gone, the process's own pays, and not the root, which
/// nothing limits.
pub fn payer_removed(ctx: &mut Ctx) -> Result<()> {
    const PAGES: u64 = 256;
    let (world, former, puppet, region) = newcomer(ctx, PAGES as usize)?;
    former.cgroup.remove().context("rmdir")?;
    let own = world.sandbox.cgroup.number("memory.current")?;
    let before = world.sandbox.counters()?;
    let request = request_of(&world, &puppet);
    ctx.device().prefetch(&[region.range()], request)?;
    wait_ended(&before, PAGES)?;
    expect_grown(&before, &[("prefetch_pages", PAGES)])?;
    let now = world.sandbox.cgroup.number("memory.current")?;
    ensure!(
        now + CHARGED_AHEAD >= own + (PAGES << 12),
        "{own} bytes were charged, {now} are now"
    );
    puppet.check(&region)
}

/// A cgroup that is full, and pays for slots of a process that has left it, ends the request, too.
pub fn payer_full(ctx: &mut Ctx) -> Result<()> {
    const PAGES: u64 = 1024;
    let (world, former, puppet, region) = newcomer(ctx, PAGES as usize)?;
    let limit = former.cgroup.number("memory.current")?;
    former.cgroup.write("memory.max", &limit.to_string())?;
    let killed = host::vmstat("oom_kill")?;
    let before = world.sandbox.counters()?;
    let request = request_of(&world, &puppet);
    ctx.device().prefetch(&[region.range()], request)?;
    wait_ended(&before, PAGES)?;
    let dropped = before.grown("prefetch_dropped")?;
    ensure!(dropped > PAGES / 2, "only {dropped} pages dropped");
    ensure!(host::vmstat("oom_kill")? == killed, "the OOM killer ran");
    former.cgroup.write("memory.max", "max")?;
    puppet.check(&region)
}

pub fn agent_waits_again(ctx: &mut Ctx) -> Result<()> {
    let phase = |ctx: &Ctx, scene: &Scene, phase: Phase| {
        let id = scene.world.sandbox.id;
        ctx.device().phase(id, phase as u32).context("phase")
    };
    let scene = drops_the_rest(ctx, |ctx, scene| {
        phase(ctx, scene, Phase::Resuming)?;
        phase(ctx, scene, Phase::Waiting)
    })?;
    // What is asked for during the wait is wanted, and a wait that goes on ends nothing.
    let before = scene.counters()?;
    scene.page_out()?;
    ctx.device()
        .prefetch(&[scene.region.range()], scene.request())?;
    phase(ctx, &scene, Phase::Waiting)?;
    phase(ctx, &scene, Phase::Resuming)?;
    wait_ended(&before, MANY as u64)?;
    expect_grown(
        &before,
        &[("prefetch_dropped", 0), ("prefetch_pages", MANY as u64)],
    )
}

pub fn detached(ctx: &mut Ctx) -> Result<()> {
    let scene = drops_the_rest(ctx, |ctx, scene| {
        ctx.device().detach(scene.world.sandbox.id)?;
        Ok(())
    })?;
    scene.puppet().check(&scene.region)
}

/// What is asked for keeps neither the memory of a process nor its cgroup.
pub fn process_exits(ctx: &mut Ctx) -> Result<()> {
    let scene = Scene::start(ctx, MANY)?;
    let before = Counters::global()?;
    let request = uapi::Prefetch {
        hit_window_ms: 600_000,
        ..scene.request()
    };
    ctx.device().prefetch(&[scene.region.range()], request)?;
    host::wait_until("it should begin", Duration::from_secs(10), || {
        Ok(before.grown("prefetch_pages")? > 0)
    })?;
    scene.world.puppet.kill()?;
    module::wait_entries(0)?;
    wait_ended(&before, MANY as u64)?;
    scene.world.sandbox.cgroup.remove().context("rmdir")?;
    Ok(())
}

/// The module goes with requests in the queue, and pages that await their test.
pub fn module_unloaded(ctx: &mut Ctx) -> Result<()> {
    for round in 0..3 {
        let scene = Scene::start(ctx, 256)?;
        let request = uapi::Prefetch {
            hit_window_ms: 600_000,
            ..scene.request()
        };
        ctx.device().prefetch(&[scene.region.range()], request)?;
        if round > 0 {
            let before = scene.counters()?;
            ctx.device().prefetch(&[scene.region.range()], request)?;
            wait_ended(&before, 256).ok();
        }
        // Nothing is out, so that disarming is not refused.
        scene.puppet().touch(&scene.region)?;
        for device in host::swaps()? {
            super::super::sys::swapoff(&device).context("swapoff")?;
        }
        module::wait_entries(0)?;
        ctx.device().disarm().context("disarm")?;
        let empty = scene.request();
        for _ in 0..200 {
            let range = uapi::Range {
                start: 1 << 32,
                end: (1 << 32) + (4096 << 12),
            };
            ctx.device().prefetch(&[range], empty).context("queue")?;
        }
        ctx.close_device();
        module::unload().context("unload")?;
        module::load("").context("load")?;
        ctx.open_device()?;
        ctx.device().arm().context("arm")?;
        scene.puppet().check(&scene.region)?;
        scene.world.sandbox.cgroup.kill()?;
        scene.world.sandbox.cgroup.remove().context("rmdir")?;
        scene.world.template.cgroup.kill()?;
        scene.world.template.cgroup.remove().context("rmdir")?;
        clean_module(ctx.device())?;
    }
    Ok(())
}
