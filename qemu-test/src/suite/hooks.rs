// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The page path: who is diverted, and that slots never give back anything stale.

use std::time::Duration;

use anyhow::{ensure, Result};

use super::fixture::module::{self, Counters};
use super::fixture::page::{Kind, Spec};
use super::fixture::puppet::Region;
use super::fixture::{host, mixed, page_out, write_mixed, Ctx};
use super::runner::Test;

macro_rules! test {
    ($f:ident) => {
        Test {
            name: concat!("hooks.", stringify!($f)),
            timeout_s: 60,
            run: $f,
        }
    };
}

/// The tests of this file.
pub const TESTS: &[Test] = &[
    test!(store_load_balance),
    test!(only_tagged),
    test!(child_cgroup),
    test!(keep_on_load),
    test!(half_written),
    test!(same_slot_rewritten),
    test!(same_slot_became_zero),
    test!(declined_goes_to_disk),
    test!(declined_after_stored),
    test!(no_memory_declines),
    test!(corrupt_payload),
    test!(slot_reuse),
    test!(untagged_store_of_our_slot),
    test!(enabled_switch),
    test!(detach_keeps_entries),
    test!(drain_stops_stores),
    test!(shared_memory),
    test!(direct_reclaim),
    test!(under_load),
];

fn store_load_balance(ctx: &mut Ctx) -> Result<()> {
    let mut world = ctx.world(512)?;
    let start = Counters::global()?;
    world.store_mixed(1)?;
    let stores = start.grown("stores")?;
    let entries = module::entries()?;
    ensure!(stores == entries, "{stores} stores, {entries} entries");
    ensure!(stores <= 512 + 128, "{stores} stores for 512 pages");
    let own = world.sandbox.counters()?;
    ensure!(
        own.get("entries")? == entries,
        "the sandbox has other entries"
    );
    ensure!(
        own.get("template_backed")? >= 512,
        "pages of the template's range not recognised"
    );
    for form in ["fill", "ref", "delta", "zstd"] {
        let pages = own.get(&format!("pages_{form}"))?;
        ensure!(pages >= 32, "{pages} pages as {form}");
    }
    world.check()?;
    let loads = start.grown("loads")?;
    ensure!(loads >= 512, "{loads} loads for 512 pages");
    ensure!(start.grown("load_errors")? == 0, "load errors");
    world.puppet.exit()?;
    module::wait_entries(0)?;
    let erased = start.grown("erased")?;
    let stores = start.grown("stores")?;
    ensure!(erased == stores, "{stores} stores, {erased} erased");
    Ok(())
}

fn only_tagged(ctx: &mut Ctx) -> Result<()> {
    let mut world = ctx.world(256)?;
    let other = ctx.cgroup("other")?;
    let stranger = world.template.spawn(&other)?;
    let mut region = world.region.clone();
    write_mixed(&stranger, &mut region, 7)?;
    let before = Counters::global()?;
    page_out(&other, &stranger, &region)?;
    let stores = before.grown("stores")?;
    ensure!(stores == 0, "{stores} pages of another cgroup were stored");
    let to_disk = other.stat_reaches("pswpout", 256)?;
    ensure!(
        to_disk >= 256,
        "only {to_disk} pages of the other cgroup went to disk"
    );
    world.store_mixed(8)?;
    let to_disk = world.sandbox.cgroup.stat("pswpout")?;
    ensure!(to_disk == 0, "{to_disk} pages of the sandbox went to disk");
    stranger.check(&region)?;
    world.check()?;
    let from_disk = world.sandbox.cgroup.stat("pswpin")?;
    ensure!(
        from_disk == 0,
        "{from_disk} pages of the sandbox came from disk"
    );
    Ok(())
}

fn child_cgroup(ctx: &mut Ctx) -> Result<()> {
    ctx.swap()?;
    let mut template = ctx.template(128)?;
    let sandbox = ctx.sandbox("box", &template.name)?;
    sandbox.cgroup.delegate()?;
    let child = sandbox.cgroup.child("child")?;
    child.delegate()?;
    let grandchild = child.child("grandchild")?;
    let puppet = template.spawn(&grandchild)?;
    let mut region = template.region.clone();
    write_mixed(&puppet, &mut region, 1)?;
    page_out(&grandchild, &puppet, &region)?;
    let entries = sandbox.counters()?.get("entries")?;
    ensure!(entries >= 128, "{entries} entries from below the sandbox");
    puppet.check(&region)
}

fn keep_on_load(ctx: &mut Ctx) -> Result<()> {
    let mut world = ctx.world(512)?;
    world.store_mixed(1)?;
    world.check()?;
    let before = Counters::global()?;
    world.page_out()?;
    let stores = before.grown("stores")?;
    ensure!(stores <= 64, "{stores} stores of 512 clean pages");
    world.check()
}

fn half_written(ctx: &mut Ctx) -> Result<()> {
    let mut world = ctx.world(512)?;
    world.store_mixed(1)?;
    world.check()?;
    let before = Counters::global()?;
    world
        .puppet
        .write(&mut world.region, |i| (i % 2 == 0).then(|| mixed(i, 2)))?;
    world.page_out()?;
    let stores = before.grown("stores")?;
    ensure!(
        (256..=256 + 64).contains(&stores),
        "{stores} stores of 256 written pages"
    );
    world.check()
}

fn same_slot_rewritten(ctx: &mut Ctx) -> Result<()> {
    let mut world = ctx.world(256)?;
    world.store_mixed(1)?;
    let slots = world.puppet.slots(&world.region)?;
    for round in 2..6 {
        // Read first: the page is then mapped writable and keeps its slot when it is written.
        world.check()?;
        world.write_mixed(round)?;
        world.page_out()?;
        let now = world.puppet.slots(&world.region)?;
        let same = now.iter().zip(&slots).filter(|(a, b)| a == b).count();
        ensure!(same >= 250, "only {same} of 256 pages kept their slot");
    }
    world.check()
}

fn same_slot_became_zero(ctx: &mut Ctx) -> Result<()> {
    let mut world = ctx.world(256)?;
    world.store_mixed(1)?;
    let slots = world.puppet.slots(&world.region)?;
    world.check()?;
    let zero_before = world.sandbox.cgroup.stat("swpout_zero")?;
    let zero = |i: usize| (i % 4 < 2).then_some(Spec::ZERO);
    world.puppet.write(&mut world.region, zero)?;
    world.page_out()?;
    let cgroup = &world.sandbox.cgroup;
    let zeros = cgroup.stat_reaches("swpout_zero", zero_before + 100)? - zero_before;
    ensure!(zeros >= 100, "only {zeros} pages were marked as zero");
    let same = |now: &[Option<u64>]| now.iter().zip(&slots).filter(|(a, b)| a == b).count();
    let kept = same(&world.puppet.slots(&world.region)?);
    ensure!(kept >= 250, "only {kept} of 256 pages kept their slot");
    world.check()?;
    // And back to something, half of them incompressible, in the same slots.
    world.puppet.write(&mut world.region, |i| match i % 4 {
        0 => Some(Spec::new(Kind::Text, i as u32 + 9000)),
        1 => Some(Spec::new(Kind::Random, i as u32)),
        _ => None,
    })?;
    world.page_out()?;
    let kept = same(&world.puppet.slots(&world.region)?);
    ensure!(kept >= 250, "only {kept} of 256 pages kept their slot");
    world.check()
}

fn declined_goes_to_disk(ctx: &mut Ctx) -> Result<()> {
    let mut world = ctx.world(256)?;
    let noise = |i: usize| Some(Spec::new(Kind::Random, i as u32));
    world.puppet.write(&mut world.region, noise)?;
    let before = Counters::global()?;
    world.page_out()?;
    let declined = before.grown("declined_incompressible")?;
    ensure!(declined >= 256, "{declined} of 256 pages declined");
    let to_disk = world.sandbox.cgroup.stat_reaches("pswpout", 256)?;
    ensure!(
        to_disk >= 256,
        "{to_disk} of 256 declined pages went to disk"
    );
    world.check()
}

fn declined_after_stored(ctx: &mut Ctx) -> Result<()> {
    let mut world = ctx.world(256)?;
    for round in 0..3 {
        world.store_mixed(round)?;
        let slots = world.puppet.slots(&world.region)?;
        world.check()?;
        let entries = module::entries()?;
        let noise = |i: usize| Some(Spec::new(Kind::Random, i as u32 + round * 1000));
        world.puppet.write(&mut world.region, noise)?;
        world.page_out()?;
        let now = world.puppet.slots(&world.region)?;
        let same = now.iter().zip(&slots).filter(|(a, b)| a == b).count();
        ensure!(same >= 250, "only {same} of 256 pages kept their slot");
        let left = module::entries()?;
        ensure!(
            left + 256 <= entries + 64,
            "{left} entries, {entries} before 256 pages were declined"
        );
        world.check()?;
    }
    Ok(())
}

/// The test module lets the store's allocations fail for the task that reclaims.
fn no_memory_declines(ctx: &mut Ctx) -> Result<()> {
    let mut world = ctx.world(256)?;
    let text = |i: usize| Some(Spec::new(Kind::Text, i as u32));
    world.puppet.write(&mut world.region, text)?;
    host::load_testmod("fail_comm=azt-nomem")?;
    let before = Counters::global()?;
    let reclaimer = world.template.family.fork(&world.template.zygote)?;
    reclaimer.name("azt-nomem")?;
    let file = world.sandbox.cgroup.path().join("memory.reclaim");
    reclaimer.begin_write_file(&file.to_string_lossy(), "64M swappiness=max")?;
    reclaimer.end_write_file()?;
    world.page_out()?;
    let refused = host::testmod_number("redirected")?;
    host::unload_testmod()?;
    ensure!(refused > 0, "no allocation failed");
    let declined = before.grown("declined_nomem")?;
    ensure!(
        declined > 0,
        "{refused} allocations failed but nothing was declined for it"
    );
    world.check()
}

/// The test module changes bytes of what one task reads from the arenas: such a page cannot be
/// read, and no page is ever wrong.
fn corrupt_payload(ctx: &mut Ctx) -> Result<()> {
    let mut world = ctx.world(128)?;
    world.store_mixed(1)?;
    let reader = world.template.family.fork(&world.template.zygote)?;
    reader.name("azt-corrupt")?;
    let before = Counters::global()?;
    host::load_testmod("corrupt_comm=azt-corrupt")?;
    let mut refused = 0;
    // Of three units of 8 bytes one is bad, so each payload is hit elsewhere: its checksum, its
    // format, its base, its body, or its links where it is in fragments.
    for (chunk, at) in [0, 3, 4, 5, 7, 9, 14, 23].into_iter().enumerate() {
        host::set_testmod_number("corrupt_at", at)?;
        let part = world.region.part(chunk * 16, 16);
        refused += reader.check_other(&part, world.puppet.pid)?;
    }
    let corrupted = host::testmod_number("redirected")?;
    host::unload_testmod()?;
    ensure!(corrupted > 0, "nothing was read by way of the test module");
    ensure!(
        refused > 0,
        "{corrupted} reads gave bad bytes and every page could be read"
    );
    let errors = before.grown("load_errors")?;
    ensure!(
        errors == refused,
        "{refused} pages could not be read, load_errors {errors}"
    );
    // The reader's failures are final for those pages; their process and its entries can go.
    world.puppet.kill()?;
    module::wait_entries(0)
}

fn slot_reuse(ctx: &mut Ctx) -> Result<()> {
    // So few slots that each process gets those of the one before.
    ctx.swap_of(700)?;
    let mut world = ctx.world_without_swap(256)?;
    let other = ctx.cgroup("other")?;
    world.puppet.kill()?;
    for round in 0..6 {
        let tagged = round % 2 == 0;
        let cgroup = if tagged {
            &world.sandbox.cgroup
        } else {
            &other
        };
        let puppet = world.template.spawn(cgroup)?;
        let mut region = world.region.clone();
        // Every third page is noise, which a sandbox declines to the same disk.
        puppet.write(&mut region, |i| {
            let noise = Spec::new(Kind::Random, i as u32 + round * 1000);
            Some(if i % 3 == 0 { noise } else { mixed(i, round) })
        })?;
        page_out(cgroup, &puppet, &region)?;
        let entries = module::entries()?;
        ensure!(
            (entries > 0) == tagged,
            "{entries} entries in round {round}"
        );
        puppet.check(&region)?;
        page_out(cgroup, &puppet, &region)?;
        puppet.check(&region)?;
        puppet.kill()?;
        module::wait_entries(0)?;
    }
    Ok(())
}

/// A slot whose entry we have is stored again when nobody is attached any more.
fn untagged_store_of_our_slot(ctx: &mut Ctx) -> Result<()> {
    let mut world = ctx.world(256)?;
    world.store_mixed(1)?;
    let slots = world.puppet.slots(&world.region)?;
    world.check()?;
    let left = ctx.device().detach(world.sandbox.id)?;
    ensure!(left >= 256, "detach says {left} entries");
    world.write_mixed(2)?;
    world.page_out()?;
    let now = world.puppet.slots(&world.region)?;
    let same = now.iter().zip(&slots).filter(|(a, b)| a == b).count();
    ensure!(same >= 250, "only {same} of 256 pages kept their slot");
    let entries = module::entries()?;
    ensure!(entries <= 64, "{entries} stale entries");
    world.check()
}

fn enabled_switch(ctx: &mut Ctx) -> Result<()> {
    let mut world = ctx.world(256)?;
    world.store_mixed(1)?;
    host::write(module::sysfs("enabled"), "0")?;
    ensure!(ctx.device().info()?.enabled == 0, "INFO does not say so");
    let before = Counters::global()?;
    world.check()?;
    ensure!(before.grown("loads")? >= 256, "loads should go on");
    world.write_mixed(2)?;
    world.page_out()?;
    let stores = before.grown("stores")?;
    ensure!(stores == 0, "{stores} stores while switched off");
    let to_disk = world.sandbox.cgroup.stat_reaches("pswpout", 256)?;
    ensure!(to_disk >= 256, "{to_disk} of 256 pages went to disk");
    world.check()?;
    let bad = std::fs::write(module::sysfs("enabled"), "2");
    module::expect_errno("enabled=2", bad, &[libc::EINVAL])?;
    host::write(module::sysfs("enabled"), "1")?;
    world.store_mixed(3)?;
    world.check()
}

fn detach_keeps_entries(ctx: &mut Ctx) -> Result<()> {
    let mut world = ctx.world(256)?;
    world.store_mixed(1)?;
    let id = world.sandbox.id;
    let left = ctx.device().detach(id)?;
    ensure!(left >= 256, "detach says {left} entries");
    let attached = module::value(&format!("sandboxes/{id}/attached"))?;
    ensure!(attached == 0, "attached is {attached}");
    let before = Counters::global()?;
    world.check()?;
    ensure!(
        before.grown("loads")? >= 256,
        "entries are not loaded after a detach"
    );
    world.write_mixed(2)?;
    world.page_out()?;
    let stores = before.grown("stores")?;
    ensure!(stores == 0, "{stores} stores after a detach");
    world.check()?;
    world.puppet.exit()?;
    module::wait_entries(0)?;
    host::wait_until(
        "the directory of the sandbox goes",
        Duration::from_secs(4),
        || Ok(module::list("sandboxes")?.is_empty()),
    )?;
    // The place can be attached again.
    ctx.device()
        .attach(world.sandbox.cgroup.path(), &world.template.name)?;
    Ok(())
}

fn drain_stops_stores(ctx: &mut Ctx) -> Result<()> {
    let mut world = ctx.world(256)?;
    world.store_mixed(1)?;
    let left = ctx.device().drain()?;
    ensure!(left >= 256, "drain says {left} entries");
    ensure!(module::value("draining")? == 1, "draining is not shown");
    module::expect_errno("disarm", ctx.device().disarm(), &[libc::EBUSY])?;
    let before = Counters::global()?;
    world.check()?;
    world.write_mixed(2)?;
    world.page_out()?;
    let stores = before.grown("stores")?;
    ensure!(stores == 0, "{stores} stores while draining");
    world.check()?;
    world.puppet.exit()?;
    module::wait_entries(0)?;
    ctx.device().disarm()?;
    ctx.device().arm()?;
    ensure!(
        module::value("draining")? == 0,
        "still draining after arming"
    );
    Ok(())
}

fn shared_memory(ctx: &mut Ctx) -> Result<()> {
    let mut world = ctx.world(16)?;
    let mut region = Region::new(4, 256);
    world.puppet.map_as(&region, true, libc::MADV_NORMAL)?;
    write_mixed(&world.puppet, &mut region, 1)?;
    let other = world.template.family.fork(&world.puppet)?;
    let before = Counters::global()?;
    // A shmem page leaves no trace in the page table, so the counter must tell.
    for _ in 0..4 {
        world.sandbox.cgroup.reclaim_all()?;
    }
    let stores = before.grown("stores")?;
    ensure!(stores >= 200, "{stores} stores of 256 shared pages");
    other.check(&region)?;
    other.write(&mut region, |i| (i % 3 == 0).then(|| mixed(i, 2)))?;
    for _ in 0..4 {
        world.sandbox.cgroup.reclaim_all()?;
    }
    world.puppet.check(&region)
}

/// Stores in direct reclaim: the writer itself is over the limit.
fn direct_reclaim(ctx: &mut Ctx) -> Result<()> {
    let mut world = ctx.world(1024)?;
    world.sandbox.cgroup.write("memory.max", "2097152")?;
    let before = Counters::global()?;
    for round in 0..3 {
        world.write_mixed(round)?;
        world.check()?;
    }
    let stores = before.grown("stores")?;
    ensure!(
        stores >= 512,
        "{stores} stores under a limit of half the pages"
    );
    let oom = world.sandbox.cgroup.read("memory.events")?;
    ensure!(oom.contains("oom_kill 0"), "out of memory: {oom}");
    Ok(())
}

/// Six processes in two sandboxes and another cgroup swap and check their pages.
pub fn under_load(ctx: &mut Ctx) -> Result<()> {
    let mut world = ctx.world(256)?;
    let second = ctx.sandbox("box2", &world.template.name)?;
    let other = ctx.cgroup("other")?;
    let groups = [&world.sandbox.cgroup, &second.cgroup, &other];
    let mut puppets = Vec::new();
    for i in 0..6 {
        let puppet = world.template.spawn(groups[i % 3])?;
        puppet.begin_churn(&world.region, 6000, i as u64)?;
        puppets.push(puppet);
    }
    let end = std::time::Instant::now() + Duration::from_millis(5500);
    while std::time::Instant::now() < end {
        for group in groups {
            group.reclaim(4 << 20)?;
        }
    }
    for puppet in puppets {
        puppet.end_churn()?;
    }
    Ok(())
}
