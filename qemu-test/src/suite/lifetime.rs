// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What becomes of entries as processes, mappings, swap areas and cgroups come and go.

use std::time::Duration;

use anyhow::{ensure, Context, Result};

use super::fixture::module::{self, Counters};
use super::fixture::page::{Kind, Spec};
use super::fixture::{cgroup, host, mixed, page_out, write_mixed, Ctx};
use super::runner::Test;
use super::sys;

macro_rules! test {
    ($f:ident) => {
        Test {
            name: concat!("lifetime.", stringify!($f)),
            timeout_s: 60,
            run: $f,
        }
    };
}

/// The tests of this file.
pub const TESTS: &[Test] = &[
    test!(munmap),
    test!(dontneed_part),
    test!(exit),
    test!(kill),
    test!(exec),
    test!(fork_then_diverge),
    test!(fork_parent_exits),
    test!(swapoff_with_entries),
    test!(swapoff_with_two_devices),
    test!(cgroup_removed_after_move),
    test!(cgroup_removed_after_kill),
    test!(cgroup_removed_in_between),
    test!(task_moved_away),
    test!(task_moved_in),
    test!(many_sandboxes),
    test!(dying_cgroups),
];

fn munmap(ctx: &mut Ctx) -> Result<()> {
    let mut world = ctx.world(256)?;
    world.store_mixed(1)?;
    let before = module::entries()?;
    world.puppet.unmap(&world.region)?;
    let left = module::entries()?;
    ensure!(
        left + 256 <= before,
        "{before} entries, {left} after munmap of 256 pages"
    );
    Ok(())
}

fn dontneed_part(ctx: &mut Ctx) -> Result<()> {
    let mut world = ctx.world(256)?;
    // Nothing of the template below, so that what is given up reads as zero.
    world.region = super::fixture::puppet::Region::new(5, 256);
    world.puppet.map(&world.region)?;
    world.store_mixed(1)?;
    let before = module::entries()?;
    world
        .puppet
        .advise_part(&world.region, 64, 128, libc::MADV_DONTNEED)?;
    let left = module::entries()?;
    ensure!(
        left + 128 <= before,
        "{before} entries, {left} after 128 pages were given up"
    );
    world.region.specs[64..192].fill(Spec::ZERO);
    world.check()
}

fn exit(ctx: &mut Ctx) -> Result<()> {
    let mut world = ctx.world(256)?;
    world.store_mixed(1)?;
    world.puppet.exit()?;
    module::wait_entries(0)
}

fn kill(ctx: &mut Ctx) -> Result<()> {
    let mut world = ctx.world(256)?;
    world.store_mixed(1)?;
    world.check()?;
    world.page_out()?;
    world.puppet.kill()?;
    module::wait_entries(0)
}

fn exec(ctx: &mut Ctx) -> Result<()> {
    let mut world = ctx.world(256)?;
    world.store_mixed(1)?;
    world.puppet.exec()?;
    module::wait_entries(0)?;
    ensure!(
        sys::alive(world.puppet.pid),
        "the process should live on as another program"
    );
    world.puppet.kill()
}

fn fork_then_diverge(ctx: &mut Ctx) -> Result<()> {
    let mut world = ctx.world(256)?;
    world.store_mixed(1)?;
    let child = world.template.family.fork(&world.puppet)?;
    let mut region = world.region.clone();
    child.check(&region)?;
    world.page_out()?;
    child.write(&mut region, |i| (i % 2 == 0).then(|| mixed(i, 2)))?;
    world
        .puppet
        .write(&mut world.region, |i| (i % 3 == 0).then(|| mixed(i, 3)))?;
    for _ in 0..2 {
        world.sandbox.cgroup.reclaim_all()?;
        child.check(&region)?;
        world.check()?;
    }
    world.sandbox.cgroup.reclaim_all()?;
    child.exit()?;
    world.check()?;
    world.page_out()?;
    world.check()
}

fn fork_parent_exits(ctx: &mut Ctx) -> Result<()> {
    let mut world = ctx.world(256)?;
    world.write_mixed(1)?;
    let child = world.template.family.fork(&world.puppet)?;
    world.page_out()?;
    let region = world.region.clone();
    world.puppet.exit()?;
    let entries = module::entries()?;
    ensure!(entries >= 256, "{entries} entries left for the child");
    child.check(&region)?;
    child.exit()?;
    module::wait_entries(0)
}

fn swapoff_with_entries(ctx: &mut Ctx) -> Result<()> {
    let disk = ctx.swap()?;
    let mut world = ctx.world_without_swap(512)?;
    world.store_mixed(1)?;
    // Some of them in both places: read back, slot and entry kept.
    let half = world.region.clone();
    world.puppet.touch(&super::fixture::puppet::Region {
        addr: half.addr,
        specs: half.specs[..200].to_vec(),
    })?;
    let before = Counters::global()?;
    sys::swapoff(&disk).context("swapoff")?;
    module::wait_entries(0)?;
    ensure!(before.grown("load_errors")? == 0, "load errors");
    let out = world.puppet.pages_out(&world.region)?;
    ensure!(out == 0, "{out} pages still out after swapoff");
    world.check()?;
    ctx.swap()?;
    world.store_mixed(2)?;
    world.check()
}

/// Two swap areas: the slots of one go, those of the other stay.
fn swapoff_with_two_devices(ctx: &mut Ctx) -> Result<()> {
    let disk = ctx.swap_of(400)?;
    let mut world = ctx.world_without_swap(600)?;
    host::zram_swap("16M")?;
    world.store_mixed(1)?;
    let before = module::entries()?;
    sys::swapoff(&disk).context("swapoff")?;
    let left = module::entries()?;
    ensure!(
        left > 0 && left + 300 <= before,
        "{before} entries, {left} after swapoff"
    );
    world.check()?;
    world.page_out()?;
    world.check()
}

fn cgroup_removed_after_move(ctx: &mut Ctx) -> Result<()> {
    let mut world = ctx.world(256)?;
    world.store_mixed(1)?;
    let other = ctx.cgroup("other")?;
    other.enter(world.puppet.pid)?;
    world.sandbox.cgroup.remove().context("rmdir the sandbox")?;
    world.check()?;
    world.write_mixed(2)?;
    for _ in 0..3 {
        ctx.root.reclaim_all()?;
    }
    world.check()?;
    world.puppet.exit()?;
    module::wait_entries(0)?;
    host::wait_until(
        "the sandbox of a removed cgroup goes",
        Duration::from_secs(5),
        || Ok(module::list("sandboxes")?.is_empty()),
    )
}

fn cgroup_removed_after_kill(ctx: &mut Ctx) -> Result<()> {
    let mut world = ctx.world(256)?;
    world.store_mixed(1)?;
    world.sandbox.cgroup.kill()?;
    world.sandbox.cgroup.remove().context("rmdir the sandbox")?;
    module::wait_entries(0)?;
    // The same path again is another cgroup.
    let again = ctx.sandbox("box", &world.template.name)?;
    ensure!(again.id != world.sandbox.id, "the id was used again");
    let puppet = world.template.spawn(&again.cgroup)?;
    let mut region = world.template.region.clone();
    write_mixed(&puppet, &mut region, 2)?;
    page_out(&again.cgroup, &puppet, &region)?;
    let entries = again.counters()?.get("entries")?;
    ensure!(entries >= 256, "{entries} entries in the new sandbox");
    puppet.check(&region)
}

/// The sandbox's directory goes while its pages are out and a process elsewhere still has them.
fn cgroup_removed_in_between(ctx: &mut Ctx) -> Result<()> {
    let mut world = ctx.world(256)?;
    world.write_mixed(1)?;
    let other = ctx.cgroup("other")?;
    let child = world.template.family.fork(&world.puppet)?;
    world.page_out()?;
    other.enter(child.pid)?;
    let region = world.region.clone();
    world.puppet.kill()?;
    world.sandbox.cgroup.remove().context("rmdir the sandbox")?;
    child.check(&region)?;
    // What is read back is charged to the nearest living ancestor; page it out from there.
    for _ in 0..3 {
        ctx.root.reclaim_all()?;
    }
    child.check(&region)?;
    child.kill()?;
    module::wait_entries(0)
}

fn task_moved_away(ctx: &mut Ctx) -> Result<()> {
    let mut world = ctx.world(256)?;
    world.store_mixed(1)?;
    let other = ctx.cgroup("other")?;
    other.enter(world.puppet.pid)?;
    world.check()?;
    world.write_mixed(2)?;
    // The pages are still the sandbox's, so that they are stored again.
    world.page_out()?;
    world.check()?;
    // New pages are the other cgroup's.
    let mut fresh = super::fixture::puppet::Region::new(5, 64);
    world.puppet.map(&fresh)?;
    write_mixed(&world.puppet, &mut fresh, 3)?;
    let before = Counters::global()?;
    page_out(&other, &world.puppet, &fresh)?;
    let stores = before.grown("stores")?;
    ensure!(
        stores == 0,
        "{stores} pages of the other cgroup were stored"
    );
    world.puppet.check(&fresh)
}

fn task_moved_in(ctx: &mut Ctx) -> Result<()> {
    let mut world = ctx.world(16)?;
    let other = ctx.cgroup("other")?;
    let puppet = world.template.spawn(&other)?;
    let mut region = super::fixture::puppet::Region::new(5, 256);
    puppet.map(&region)?;
    write_mixed(&puppet, &mut region, 1)?;
    page_out(&other, &puppet, &region)?;
    world.sandbox.cgroup.enter(puppet.pid)?;
    puppet.check(&region)?;
    puppet.write(&mut region, |i| (i % 2 == 0).then(|| mixed(i, 2)))?;
    world.sandbox.cgroup.reclaim_all()?;
    other.reclaim_all()?;
    puppet.check(&region)
}

fn many_sandboxes(ctx: &mut Ctx) -> Result<()> {
    ctx.swap()?;
    let mut template = ctx.template(64)?;
    let mut scene = Vec::new();
    for i in 0..10u32 {
        let sandbox = ctx.sandbox(&format!("box{i}"), &template.name)?;
        let puppet = template.spawn(&sandbox.cgroup)?;
        let mut region = template.region.clone();
        write_mixed(&puppet, &mut region, i)?;
        page_out(&sandbox.cgroup, &puppet, &region)?;
        scene.push((sandbox, puppet, region));
    }
    let users = module::value(&format!("templates/{}/users", template.name))?;
    ensure!(users == 10, "{users} users of the template");
    let own: u64 = scene
        .iter()
        .map(|(sandbox, ..)| sandbox.counters()?.get("entries"))
        .sum::<Result<u64>>()?;
    let all = module::entries()?;
    ensure!(own == all, "{all} entries, {own} in the sandboxes");
    for (i, (sandbox, puppet, region)) in scene.into_iter().enumerate() {
        puppet.check(&region)?;
        if i % 2 == 0 {
            ctx.device().detach(sandbox.id)?;
        }
        puppet.kill()?;
    }
    module::wait_entries(0)
}

fn dying_cgroups(ctx: &mut Ctx) -> Result<()> {
    let mut world = ctx.world(64)?;
    let before = cgroup::dying()?;
    for round in 0..8 {
        let sandbox = ctx.sandbox("passing", &world.template.name)?;
        let puppet = world.template.spawn(&sandbox.cgroup)?;
        let mut region = world.template.region.clone();
        puppet.write(&mut region, |i| {
            Some(if i % 9 == 0 {
                Spec::new(Kind::Random, i as u32)
            } else {
                mixed(i, round)
            })
        })?;
        page_out(&sandbox.cgroup, &puppet, &region)?;
        puppet.kill()?;
        sandbox.cgroup.remove().context("rmdir the sandbox")?;
        module::wait_entries(0)?;
        // ENOENT: the module saw that the cgroup is gone.
        let _ = ctx.device().detach(sandbox.id);
    }
    let what = format!("dying cgroups back to {before}");
    host::wait_until(&what, Duration::from_secs(15), || {
        host::drop_caches()?;
        // Each CPU keeps charges of a few cgroups in stock, and those cgroups with them. A limit that
        // is passed gives them back.
        ctx.root.write("memory.high", "0")?;
        ctx.root.write("memory.high", "max")?;
        Ok(cgroup::dying()? <= before)
    })
    .with_context(|| format!("there are {:?}", cgroup::dying().ok()))
}
