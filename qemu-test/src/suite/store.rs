// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What the store occupies and who pays for it: charging, bounds, compaction, entries kept on load.

use std::time::{Duration, Instant};

use anyhow::{ensure, Result};

use super::fixture::cgroup::Cgroup;
use super::fixture::module::{self, Counters};
use super::fixture::page::{Kind, Rng, Spec};
use super::fixture::puppet::Region;
use super::fixture::{host, page_out, write_mixed, Ctx, World};
use super::runner::Test;
use super::sys::PAGE_SIZE;

macro_rules! test {
    ($f:ident) => {
        Test {
            name: concat!("store.", stringify!($f)),
            timeout_s: 90,
            run: $f,
        }
    };
}

/// The tests of this file.
pub const TESTS: &[Test] = &[
    test!(charged_to_the_sandbox),
    test!(forced_at_the_memory_limit),
    test!(bound_of_a_sandbox),
    test!(bound_of_the_store),
    test!(compaction),
    test!(template_by_content),
    test!(stores_saved),
    test!(noise_in_a_row),
];

/// The kernel flushes the statistics of cgroups every 2 s.
const FLUSH: Duration = Duration::from_millis(2_300);

/// What else of a sandbox's kernel memory may change while its pages go out: objects of the swap core.
const NOISE: u64 = 128 << 10;

/// A scene whose process has fresh pages that take about half a page each.
fn world_of_fresh_pages(ctx: &mut Ctx, pages: usize) -> Result<World> {
    let mut world = ctx.world(16)?;
    world.region = Region::new(5, pages);
    world.puppet.map(&world.region)?;
    write_fresh(&mut world, 0)?;
    Ok(world)
}

/// Writes such pages; those of another round resemble none of the others.
fn write_fresh(world: &mut World, round: u32) -> Result<()> {
    let seed = 1_000_000 + round * 100_000;
    let fresh = |i: usize| Some(Spec::new(Kind::Heap, seed + i as u32));
    world.puppet.write(&mut world.region, fresh)
}

/// Kernel memory that a cgroup is charged for, once the statistics have settled.
fn kernel_memory(cgroup: &Cgroup) -> Result<u64> {
    std::thread::sleep(FLUSH);
    cgroup.stat("kernel")
}

fn charged_to_the_sandbox(ctx: &mut Ctx) -> Result<()> {
    let world = world_of_fresh_pages(ctx, 2048)?;
    let cgroup = &world.sandbox.cgroup;
    let before = kernel_memory(cgroup)?;
    world.page_out()?;
    let after = kernel_memory(cgroup)?;
    let arena = world.sandbox.counters()?.get("arena_bytes")?;
    let all = Counters::global()?.get("memory_arenas")?;
    ensure!(
        arena >= (2048 * PAGE_SIZE / 4) as u64,
        "the arena has {arena} bytes only"
    );
    ensure!(arena == all, "{all} bytes of arenas, the sandbox's {arena}");
    let charged = after.saturating_sub(before);
    ensure!(
        charged.abs_diff(arena) <= NOISE,
        "{charged} bytes were charged for an arena of {arena}"
    );
    for event in ["pswpin", "pswpout", "zswpin", "zswpout"] {
        let count = cgroup.stat(event)?;
        ensure!(count == 0, "{event} of the sandbox is {count}");
    }
    world.check()?;
    world.page_out()?;
    world.puppet.kill()?;
    module::wait_entries(0)?;
    let left = module::value(&format!("sandboxes/{}/arena_bytes", world.sandbox.id))?;
    ensure!(left == 0, "{left} bytes of an arena without entries");
    let left = kernel_memory(cgroup)?;
    ensure!(
        left <= before,
        "{left} bytes of kernel memory without processes, {before} at first"
    );
    Ok(())
}

/// Reclaim on behalf of a sandbox that is at its limit: the arena's pages are charged all the same,
/// and nobody is killed.
fn forced_at_the_memory_limit(ctx: &mut Ctx) -> Result<()> {
    let mut world = ctx.world(16)?;
    let cgroup = world.sandbox.cgroup.clone();
    cgroup.write("memory.max", &(6 << 20).to_string())?;
    world.region = Region::new(5, 3072);
    world.puppet.map(&world.region)?;
    let before = Counters::global()?;
    write_fresh(&mut world, 0)?;
    world.check()?;
    let stores = before.grown("stores")?;
    ensure!(stores >= 1024, "{stores} stores, so memory was not tight");
    let declined = before.grown("declined_nomem")?;
    ensure!(
        declined == 0,
        "{declined} pages declined for want of memory"
    );
    let events = cgroup.read("memory.events")?;
    ensure!(
        events.lines().any(|line| line == "oom_kill 0"),
        "memory.events says {events:?}"
    );
    Ok(())
}

/// Pages that do not fit below a bound go to the swap device, and what comes back makes room; when
/// the bound is raised they are stored again.
fn bounded(world: &mut World, file: &str, in_use: impl Fn() -> Result<u64>) -> Result<()> {
    const ROOM: u64 = 256 << 10;
    let pages = world.region.pages() as u64;
    // What else the process owns goes out before, and takes none of the room.
    world.page_out()?;
    write_fresh(world, 2)?;
    let bound = in_use()? + ROOM;
    host::write(module::sysfs(file), &bound.to_string())?;
    let before = world.sandbox.counters()?;
    world.page_out()?;
    let (stored, full) = (before.grown("stores")?, before.grown("declined_full")?);
    ensure!(
        stored > 0 && full >= pages / 2,
        "{stored} stored and {full} declined of {pages} pages with room for {ROOM} bytes"
    );
    let used = in_use()?;
    ensure!(used <= bound, "{used} bytes in use, {bound} allowed");
    let to_disk = world.sandbox.cgroup.stat_reaches("pswpout", full)?;
    ensure!(to_disk >= full, "{to_disk} of {full} pages went to disk");
    let before = world.sandbox.counters()?;
    world.check()?;
    let (dropped, used) = (before.grown("dropped")?, in_use()?);
    ensure!(
        dropped > 0 && used <= bound - bound / 16,
        "{dropped} entries ended when their pages came back, {used} of {bound} bytes in use"
    );
    // What was dropped was written nowhere else: it must be stored again, though it did not change.
    world.page_out()?;
    let stored = before.grown("stores")?;
    ensure!(
        stored >= dropped / 2,
        "{stored} stores of pages after {dropped} entries were dropped"
    );
    world.check()?;

    host::write(module::sysfs(file), "max")?;
    write_fresh(world, 1)?;
    let before = world.sandbox.counters()?;
    world.page_out()?;
    let (stored, full) = (before.grown("stores")?, before.grown("declined_full")?);
    ensure!(
        stored >= pages && full == 0,
        "{stored} stored and {full} declined of {pages} pages without a bound"
    );
    world.check()
}

fn bound_of_a_sandbox(ctx: &mut Ctx) -> Result<()> {
    let mut world = world_of_fresh_pages(ctx, 1024)?;
    let id = world.sandbox.id;
    bounded(&mut world, &format!("sandboxes/{id}/max_bytes"), || {
        module::value(&format!("sandboxes/{id}/arena_bytes"))
    })
}

fn bound_of_the_store(ctx: &mut Ctx) -> Result<()> {
    let mut world = world_of_fresh_pages(ctx, 1024)?;
    let first = host::read(module::sysfs("max_bytes"))?;
    bounded(&mut world, "max_bytes", || {
        let counters = Counters::global()?;
        let parts = ["memory_arenas", "memory_references", "memory_sketches"];
        parts.iter().map(|part| counters.get(part)).sum()
    })?;
    host::write(module::sysfs("max_bytes"), &first)
}

/// Nine of ten pages of a sandbox are freed, wherever they lie: the arena shrinks to less than twice
/// what is left, and that is still right.
fn compaction(ctx: &mut Ctx) -> Result<()> {
    const PAGES: usize = 2048;
    let mut world = world_of_fresh_pages(ctx, PAGES)?;
    world.page_out()?;
    let arena = || module::value(&format!("sandboxes/{}/arena_bytes", world.sandbox.id));
    let full = arena()?;
    let mut rng = Rng::new(10);
    let mut run = 0;
    for page in 0..=PAGES {
        if page < PAGES && rng.next() % 10 != 0 {
            world.region.specs[page] = Spec::ZERO;
            run += 1;
        } else if run > 0 {
            let puppet = &world.puppet;
            puppet.advise_part(&world.region, page - run, run, libc::MADV_DONTNEED)?;
            run = 0;
        }
    }
    let live = world.sandbox.counters()?.sum("bytes_");
    ensure!(
        live > 0 && live < full / 5,
        "{live} bytes live of {full} after most pages were freed"
    );
    let what = format!("an arena of {full} bytes should shrink below twice {live}");
    let began = Instant::now();
    host::wait_until(&what, Duration::from_secs(15), || Ok(arena()? < 2 * live))?;
    println!(
        "# compaction: {full} bytes, {live} live, {} after {:.1} s",
        arena()?,
        began.elapsed().as_secs_f64()
    );
    let after = world.sandbox.counters()?.sum("bytes_");
    ensure!(after == live, "{live} bytes live, {after} after compaction");
    world.check()
}

/// Pages at other indexes than the template's, as of a process that was started anew, find the
/// template's pages by their content.
fn template_by_content(ctx: &mut Ctx) -> Result<()> {
    const PAGES: usize = 256;
    let mut world = ctx.world(PAGES)?;
    let name = world.template.name.clone();
    let number = |file: &str| module::value(&format!("templates/{name}/{file}"));
    module::wait_indexed(&name)?;
    let (sketches, all) = (
        number("sketch_bytes")?,
        module::value("stats/memory_sketches")?,
    );
    ensure!(
        sketches > 0 && sketches == all,
        "the template's index has {sketches} bytes, all have {all}"
    );
    world.region = Region::new(5, PAGES);
    world.puppet.map(&world.region)?;
    // Neither equal to a template page nor at the index of one.
    let near = |i: usize| Some(Spec::new(Kind::Heap, i as u32).edited(20, i as u32));
    world.puppet.write(&mut world.region, near)?;
    let before = world.sandbox.counters()?;
    world.page_out()?;
    let backed = before.grown("template_backed")?;
    let counters = world.sandbox.counters()?;
    let based = counters.sum("pages_delta") + counters.get("pages_prefix")?;
    ensure!(
        based >= PAGES as u64 * 9 / 10,
        "{based} of {PAGES} moved pages have a base"
    );
    // The bases are no reference pages and not found by index.
    let references = counters.get("group_references")?;
    ensure!(
        references < PAGES as u64 / 2 && backed < PAGES as u64 / 2,
        "{references} reference pages, {backed} pages at an index of the template"
    );
    world.check()
}

/// Pages that were read back and not changed go out again without a store. How many stores that
/// saved follows from what the kernel and the module count.
fn stores_saved(ctx: &mut Ctx) -> Result<()> {
    const PAGES: u64 = 1024;
    let mut world = world_of_fresh_pages(ctx, PAGES as usize)?;
    world.page_out()?;
    for written in [0, PAGES / 2] {
        world.check()?;
        // Written in full, so that the page is another one, or not at all.
        let changed = |i: usize| {
            let change = (i as u64) < written;
            change.then(|| Spec::new(Kind::Heap, 5_000_000 + i as u32))
        };
        world.puppet.write(&mut world.region, changed)?;
        let (kernel, module) = (
            Taken::read(&world.sandbox.cgroup)?,
            world.sandbox.counters()?,
        );
        page_out(&world.sandbox.cgroup, &world.puppet, &world.region)?;
        let taken = Taken::read(&world.sandbox.cgroup)?;
        let stores = module.grown("stores")?;
        let reclaimed = taken.reclaimed - kernel.reclaimed;
        let saved = reclaimed.saturating_sub(stores + taken.zero_filled - kernel.zero_filled);
        println!(
            "# {written} pages written: {reclaimed} reclaimed, {stores} stored, {saved} saved"
        );
        // The process has some pages beside the region.
        let expected = PAGES - written;
        ensure!(
            stores >= written && stores <= written + 64,
            "{stores} stores after {written} of {PAGES} pages were written"
        );
        ensure!(
            saved >= expected - 64 && saved <= expected + 128,
            "{saved} stores saved, {expected} pages were unchanged"
        );
    }
    world.check()
}

/// What the kernel counts, once its statistics have settled.
struct Taken {
    reclaimed: u64,
    zero_filled: u64,
}

impl Taken {
    fn read(cgroup: &Cgroup) -> Result<Taken> {
        std::thread::sleep(FLUSH);
        Ok(Taken {
            reclaimed: cgroup.stat("pgsteal_proactive")?,
            zero_filled: cgroup.stat("swpout_zero")?,
        })
    }
}

/// After some pages that nothing makes smaller, others of that kind are declined at a glance, but not pages
/// that only come after them.
fn noise_in_a_row(ctx: &mut Ctx) -> Result<()> {
    const FIRST: usize = 16;
    const ROW: usize = 512;
    let world = ctx.world(16)?;
    let mut region = Region::new(4, FIRST + ROW);
    world.puppet.map(&region)?;
    let spent = || Ok::<f64, anyhow::Error>(world.sandbox.counters()?.get("encode_ns")? as f64);
    let declined = || world.sandbox.counters()?.get("declined_incompressible");
    let noise = |i: usize| Some(Spec::new(Kind::Random, i as u32));
    let mut first = region.part(0, FIRST);
    world.puppet.write(&mut first, noise)?;
    page_out(&world.sandbox.cgroup, &world.puppet, &first)?;
    let (cost, seen) = (spent()? / FIRST as f64, declined()?);
    ensure!(seen >= FIRST as u64, "{seen} of {FIRST} were declined");
    let before = spent()?;
    world.puppet.write(&mut region, noise)?;
    page_out(&world.sandbox.cgroup, &world.puppet, &region)?;
    let tried = (spent()? - before) / cost;
    let seen = declined()? - seen;
    ensure!(
        seen >= ROW as u64 && tried < ROW as f64 / 4.0,
        "{seen} of {ROW} were declined, in the time of {tried:.0} tries"
    );
    world.puppet.check(&region)?;
    let before = Counters::global()?;
    write_mixed(&world.puppet, &mut region, 1)?;
    page_out(&world.sandbox.cgroup, &world.puppet, &region)?;
    let stores = before.grown("stores")?;
    ensure!(
        stores >= region.pages() as u64,
        "{stores} of {} pages were stored after the row",
        region.pages()
    );
    world.puppet.check(&region)
}
