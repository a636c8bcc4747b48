// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Large folios: huge pages and 64 KiB folios, on disk and on a synchronous swap device.

use anyhow::{bail, ensure, Context, Result};

use super::fixture::module::{expect_errno, Counters};
use super::fixture::page::{Kind, Spec};
use super::fixture::puppet::Region;
use super::fixture::{host, mixed, page_out, write_mixed, Ctx, World};
use super::runner::Test;

macro_rules! test {
    ($f:ident) => {
        Test {
            name: concat!("large.", stringify!($f)),
            timeout_s: 60,
            run: $f,
        }
    };
}

/// The test that must find zswap as it is after the boot.
pub const BEFORE_ZSWAP: &str = "large.arm_waits_for_zswap";

/// The tests of this file.
pub const TESTS: &[Test] = &[
    test!(arm_waits_for_zswap),
    test!(zram_folios_after_zswap),
    test!(huge_page),
    test!(huge_page_partly_zero),
    test!(huge_page_declined),
    test!(huge_page_over_template),
    test!(folio_64k),
];

/// Pages of a huge page.
const HUGE: usize = 512;

/// Maps and writes huge pages in the sandbox and makes sure that they are huge.
fn huge(world: &World, pages: usize, spec: impl Fn(usize) -> Spec) -> Result<Region> {
    let mut region = Region::new(4, pages);
    world.puppet.map_as(&region, false, libc::MADV_HUGEPAGE)?;
    world.puppet.write(&mut region, |i| Some(spec(i)))?;
    let kib = world.puppet.smaps(&region, "AnonHugePages")?;
    ensure!(
        kib as usize == pages * 4,
        "{kib} KiB of {} in huge pages",
        pages * 4
    );
    Ok(region)
}

fn huge_page(ctx: &mut Ctx) -> Result<()> {
    let world = ctx.world(16)?;
    let region = huge(&world, 2 * HUGE, |i| mixed(i, 1))?;
    let before = Counters::global()?;
    page_out(&world.sandbox.cgroup, &world.puppet, &region)?;
    let stores = before.grown("stores")?;
    ensure!(
        stores >= 2 * HUGE as u64,
        "{stores} stores for two huge pages"
    );
    let whole = world.sandbox.cgroup.stat("thp_swpout")?;
    let split = world.sandbox.cgroup.stat("thp_swpout_fallback")?;
    // Whole ones that the store took are counted as such for zswap, not for the disk.
    ensure!(whole == 0 && split == 0, "{whole} to disk, {split} split");
    world.puppet.check(&region)
}

fn huge_page_partly_zero(ctx: &mut Ctx) -> Result<()> {
    let world = ctx.world(16)?;
    let spec = |i| if i % 5 < 3 { Spec::ZERO } else { mixed(i, 2) };
    let mut region = huge(&world, HUGE, spec)?;
    let before = Counters::global()?;
    page_out(&world.sandbox.cgroup, &world.puppet, &region)?;
    let stores = before.grown("stores")?;
    ensure!(stores >= HUGE as u64, "{stores} stores for a huge page");
    world.puppet.check(&region)?;
    world
        .puppet
        .write(&mut region, |i| (i % 2 == 0).then(|| mixed(i, 3)))?;
    page_out(&world.sandbox.cgroup, &world.puppet, &region)?;
    world.puppet.check(&region)
}

/// One page that does not fit: the whole folio takes the host's path, and nothing stays behind.
fn huge_page_declined(ctx: &mut Ctx) -> Result<()> {
    let world = ctx.world(16)?;
    let spec = |i| {
        if i == 300 {
            Spec::new(Kind::Random, 1)
        } else {
            mixed(i, 4)
        }
    };
    let mut region = huge(&world, HUGE, spec)?;
    let before = Counters::global()?;
    page_out(&world.sandbox.cgroup, &world.puppet, &region)?;
    let declined = before.grown("declined_incompressible")?;
    ensure!(declined >= 1, "nothing was declined");
    let entries = super::fixture::module::entries()?;
    ensure!(
        entries <= 128,
        "{entries} entries though the folio was declined"
    );
    world.puppet.check(&region)?;
    world.puppet.write(&mut region, |i| Some(mixed(i, 5)))?;
    page_out(&world.sandbox.cgroup, &world.puppet, &region)?;
    world.puppet.check(&region)
}

/// A huge page at the indexes of the template: each of its pages finds its own base.
fn huge_page_over_template(ctx: &mut Ctx) -> Result<()> {
    let mut world = ctx.world(HUGE)?;
    world.puppet.unmap(&world.region)?;
    let mut region = Region::new(1, HUGE);
    ensure!(region.addr == world.region.addr);
    world.puppet.map_as(&region, false, libc::MADV_HUGEPAGE)?;
    let spec = |i: usize| Some(Spec::new(Kind::Heap, i as u32).edited(3, i as u32));
    world.puppet.write(&mut region, spec)?;
    let kib = world.puppet.smaps(&region, "AnonHugePages")?;
    ensure!(kib as usize == HUGE * 4, "{kib} KiB in huge pages");
    world.region = region;
    world.page_out()?;
    let deltas = world.sandbox.counters()?.get("pages_delta")?;
    ensure!(
        deltas >= HUGE as u64 - 16,
        "{deltas} of {HUGE} pages as delta"
    );
    world.check()
}

fn folio_64k(ctx: &mut Ctx) -> Result<()> {
    host::set_mthp_64k("always")?;
    let world = ctx.world(16)?;
    let mut region = Region::new(4, 256);
    world.puppet.map_as(&region, false, libc::MADV_NORMAL)?;
    let allocated = host::mthp_64k_stat("anon_fault_alloc")?;
    write_mixed(&world.puppet, &mut region, 1)?;
    let allocated = host::mthp_64k_stat("anon_fault_alloc")? - allocated;
    ensure!(
        allocated >= 15,
        "{allocated} folios of 64 KiB were allocated"
    );
    let whole = host::mthp_64k_stat("zswpout")?;
    let before = Counters::global()?;
    page_out(&world.sandbox.cgroup, &world.puppet, &region)?;
    let whole = host::mthp_64k_stat("zswpout")? - whole;
    ensure!(whole >= 15, "{whole} folios of 64 KiB were stored whole");
    let stores = before.grown("stores")?;
    ensure!(stores >= 256, "{stores} stores of 256 pages");
    world.puppet.check(&region)?;
    host::set_mthp_64k("never")
}

/// 64 KiB folios of a sandbox on zram, then read back by somebody who survives bad pages.
/// Returns how many could not be read.
fn zram_round(ctx: &mut Ctx) -> Result<u64> {
    host::set_mthp_64k("always")?;
    host::zram_swap("64M")?;
    let world = ctx.world_without_swap(16)?;
    let mut region = Region::new(4, 256);
    world.puppet.map_as(&region, false, libc::MADV_NORMAL)?;
    write_mixed(&world.puppet, &mut region, 1)?;
    let before = Counters::global()?;
    page_out(&world.sandbox.cgroup, &world.puppet, &region)?;
    let stores = before.grown("stores")?;
    ensure!(stores >= 256, "{stores} stores of 256 pages");
    // Not by the owner, whom a page that cannot be read would kill.
    let reader = world.template.zygote;
    let unreadable = reader.check_other(&region, world.puppet.pid)?;
    host::set_mthp_64k("never")?;
    Ok(unreadable)
}

/// As long as zswap was never set up, the kernel may read a large folio at once, which we could not
/// serve: the module does not arm. It does as soon as zswap is set up, which `agentzip arm` does before.
fn arm_waits_for_zswap(ctx: &mut Ctx) -> Result<()> {
    ensure!(
        !host::zswap_set_up(),
        "zswap was set up before: has another test run since the boot?"
    );
    if ctx.device().info()?.armed == 1 {
        let lost = zram_round(ctx)?;
        bail!("armed before zswap was set up: {lost} of 256 pages cannot be read");
    }
    let refused = ctx.device().arm();
    expect_errno("arm before zswap was set up", refused, &[libc::EOPNOTSUPP])?;
    host::set_up_zswap()?;
    ctx.device().arm().context("arm after zswap was set up")?;
    let lost = zram_round(ctx)?;
    ensure!(lost == 0, "{lost} of 256 pages cannot be read");
    Ok(())
}

/// Nor does the kernel ask for large folios while zswap is on, or off again.
fn zram_folios_after_zswap(ctx: &mut Ctx) -> Result<()> {
    host::set_zswap_param("enabled", "Y")?;
    host::set_zswap_param("enabled", "N")?;
    let unreadable = zram_round(ctx)?;
    ensure!(unreadable == 0, "{unreadable} of 256 pages cannot be read");
    Ok(())
}
