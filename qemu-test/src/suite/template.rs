// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Templates: a page that we keep, by reference or as a copy, never changes.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

use anyhow::{ensure, Context, Result};

use super::fixture::module::{self, Counters};
use super::fixture::page::{Kind, Spec};
use super::fixture::probe::Probe;
use super::fixture::puppet::{Family, Puppet, Region};
use super::fixture::{host, page_out, Ctx};
use super::runner::Test;
use super::sys::{self, PAGE_SIZE, PAGE_WORDS};

macro_rules! test {
    ($f:ident) => {
        Test {
            name: concat!("template.", stringify!($f)),
            timeout_s: 60,
            run: $f,
        }
    };
}

/// The tests of this file.
pub const TESTS: &[Test] = &[
    test!(kept_by_reference),
    test!(written_by_parent_and_child),
    test!(holder_exits_while_in_use),
    test!(mapcount_falls_then_pressure),
    test!(exclusive_page_paged_out),
    test!(paged_out_before),
    test!(huge_page_exclusive),
    test!(huge_page_forked),
    test!(private_file_not_copied),
    test!(private_file_copied),
    test!(pinned_page),
    test!(written_from_outside),
    test!(holder_remaps),
    test!(shared_memory_skipped),
    test!(several_vmas_one_index),
    test!(index_after_mremap),
    test!(two_templates),
    test!(holder_is_killed_during_add),
];

/// What became of the pages.
fn taken(added: &agentzip_uapi::TemplateAdd) -> String {
    format!(
        "{} pages by reference, {} copied, {} skipped",
        added.pages_referenced, added.pages_copied, added.pages_skipped
    )
}

/// A little anonymous memory, so that a template whose other pages are all refused exists.
fn some_memory(zygote: &Puppet) -> Result<Region> {
    let mut region = Region::new(9, 4);
    zygote.map(&region)?;
    zygote.write(&mut region, |i| Some(Spec::new(Kind::Heap, i as u32)))?;
    Ok(region)
}

fn kept_by_reference(ctx: &mut Ctx) -> Result<()> {
    ctx.swap()?;
    let mut t = ctx.template(256)?;
    let added = t.added;
    ensure!(added.pages_referenced == 256, "{}", taken(&added));
    ensure!(added.pages_copied == 0, "{}", taken(&added));
    let held = Counters::global()?.get("memory_template_pages")?;
    ensure!(
        held == 0,
        "{held} bytes of template pages are counted as ours"
    );
    let probe = Probe::start(ctx, &t.name, &mut t.family, &t.zygote, &t.region)?;
    probe.needs_template(250)?;
    probe.check()
}

fn written_by_parent_and_child(ctx: &mut Ctx) -> Result<()> {
    ctx.swap()?;
    let mut t = ctx.template(128)?;
    let original = t.region.clone();
    let mut probe = Probe::start(ctx, &t.name, &mut t.family, &t.zygote, &original)?;
    probe.needs_template(120)?;
    let changed = |i: usize| Some(Spec::new(Kind::Text, i as u32));
    let mut region = t.region.clone();
    t.zygote.write(&mut region, changed)?;
    probe.check()?;
    let mut region = t.region.clone();
    t.holder.write(&mut region, changed)?;
    probe.check()?;
    probe.rewrite(1)?;
    probe.needs_template(120)?;
    probe.check()
}

fn holder_exits_while_in_use(ctx: &mut Ctx) -> Result<()> {
    ctx.swap()?;
    let mut t = ctx.template(128)?;
    let mut probe = Probe::start(ctx, &t.name, &mut t.family, &t.zygote, &t.region)?;
    t.holder.kill()?;
    t.zygote.exit()?;
    host::wait_until(
        "template pages should be counted as ours",
        std::time::Duration::from_secs(5),
        || Ok(Counters::global()?.get("memory_template_pages")? >= (128 * PAGE_SIZE) as u64),
    )?;
    probe.check()?;
    probe.rewrite(1)?;
    probe.needs_template(120)?;
    probe.check()
}

/// The holder's cgroup may swap, its pages lose their last mapping, then memory gets tight.
fn mapcount_falls_then_pressure(ctx: &mut Ctx) -> Result<()> {
    ctx.swap()?;
    let mut t = ctx.template(256)?;
    ensure!(t.added.pages_referenced == 256, "{}", taken(&t.added));
    let probe = Probe::start(ctx, &t.name, &mut t.family, &t.zygote, &t.region)?;
    t.cgroup.write("memory.swap.max", "max")?;
    t.holder.kill()?;
    t.zygote.kill()?;
    for _ in 0..3 {
        t.cgroup.reclaim(8 << 20)?;
        ctx.root.reclaim(64 << 20)?;
        std::thread::sleep(std::time::Duration::from_millis(300));
    }
    probe.needs_template(250)?;
    probe.check()?;
    host::wait_until(
        "template pages should be copied off the LRU",
        std::time::Duration::from_secs(5),
        || Ok(Counters::global()?.get("memory_template_pages")? >= (256 * PAGE_SIZE) as u64),
    )?;
    // A page that reclaim got hold of before that had a slot; with our reference gone, reclaim
    // gets rid of both.
    host::wait_until(
        "the template's pages in memory and in swap should be gone",
        std::time::Duration::from_secs(5),
        || {
            t.cgroup.reclaim(8 << 20)?;
            let (anon, swap) = (
                t.cgroup.stat("anon")?,
                t.cgroup.number("memory.swap.current")?,
            );
            // What the probe still shares of the zygote's stack and heap may stay.
            Ok(anon + swap < (64 * PAGE_SIZE) as u64)
        },
    )
    .with_context(|| {
        let swap = t.cgroup.number("memory.swap.current");
        format!("anon {:?}, swap {swap:?}", t.cgroup.stat("anon"))
    })?;
    probe.check()
}

/// Without a fork the page is the owner's alone, and it writes it in place.
fn exclusive_page_paged_out(ctx: &mut Ctx) -> Result<()> {
    ctx.swap()?;
    let cgroup = ctx.cgroup("owner")?;
    let (mut family, zygote, original) = ctx.zygote(64, &cgroup)?;
    let added = ctx.register("t", &zygote, &[&original])?;
    ensure!(
        added.pages_copied == 64 && added.pages_referenced == 0,
        "{}",
        taken(&added)
    );
    let probe = Probe::start(ctx, "t", &mut family, &zygote, &original)?;
    let mut region = original.clone();
    page_out(&cgroup, &zygote, &region)?;
    zygote.touch(&region)?;
    zygote.write(&mut region, |i| Some(Spec::new(Kind::Text, i as u32)))?;
    probe.needs_template(60)?;
    probe.check()?;
    page_out(&cgroup, &zygote, &region)?;
    probe.check()
}

/// Pages that are out, or in the swap cache, when the template is made.
fn paged_out_before(ctx: &mut Ctx) -> Result<()> {
    ctx.swap()?;
    let cgroup = ctx.cgroup("owner")?;
    let (mut family, zygote, original) = ctx.zygote(64, &cgroup)?;
    let holder = family.fork(&zygote)?;
    page_out(&cgroup, &zygote, &original)?;
    let half = Region {
        addr: original.addr,
        specs: original.specs[..32].to_vec(),
    };
    holder.touch(&half)?;
    zygote.touch(&half)?;
    let added = ctx.register("t", &holder, &[&original])?;
    ensure!(
        added.pages_referenced == 0,
        "a page in the swap cache by reference: {}",
        taken(&added)
    );
    ensure!(
        added.pages_copied + added.pages_skipped == 64,
        "{}",
        taken(&added)
    );
    ensure!(added.pages_copied >= 32, "{}", taken(&added));
    let probe = Probe::start(ctx, "t", &mut family, &zygote, &original)?;
    let mut region = original.clone();
    for puppet in [&zygote, &holder] {
        puppet.write(&mut region, |i| Some(Spec::new(Kind::Text, i as u32)))?;
    }
    cgroup.reclaim_all()?;
    probe.needs_template(30)?;
    probe.check()
}

fn huge_zygote(
    ctx: &Ctx,
    name: &str,
) -> Result<(super::fixture::cgroup::Cgroup, Family, Puppet, Region)> {
    let cgroup = ctx.holder_cgroup(name)?;
    let (family, zygote) = Family::start()?;
    cgroup.enter(zygote.pid)?;
    let mut region = Region::new(1, 512);
    zygote.map_as(&region, false, libc::MADV_HUGEPAGE)?;
    zygote.write(&mut region, |i| Some(Spec::new(Kind::Heap, i as u32)))?;
    let kib = zygote.smaps(&region, "AnonHugePages")?;
    ensure!(kib == 2048, "{kib} KiB in huge pages");
    Ok((cgroup, family, zygote, region))
}

/// Only the head of a PMD-mapped huge page carries the exclusive flag.
fn huge_page_exclusive(ctx: &mut Ctx) -> Result<()> {
    ctx.swap()?;
    let (_cgroup, mut family, zygote, original) = huge_zygote(ctx, "owner")?;
    let added = ctx.register("t", &zygote, &[&original])?;
    ensure!(
        added.pages_referenced + added.pages_copied == 512,
        "{}",
        taken(&added)
    );
    let probe = Probe::start(ctx, "t", &mut family, &zygote, &original)?;
    let mut region = original.clone();
    zygote.write(&mut region, |i| Some(Spec::new(Kind::Text, i as u32)))?;
    probe.needs_template(500)?;
    probe.check()
}

fn huge_page_forked(ctx: &mut Ctx) -> Result<()> {
    ctx.swap()?;
    let (_cgroup, mut family, zygote, original) = huge_zygote(ctx, "hold")?;
    let holder = family.fork(&zygote)?;
    let added = ctx.register("t", &holder, &[&original])?;
    ensure!(
        added.pages_referenced + added.pages_copied == 512,
        "{}",
        taken(&added)
    );
    let probe = Probe::start(ctx, "t", &mut family, &zygote, &original)?;
    let mut region = original.clone();
    zygote.write(&mut region, |i| {
        (i % 2 == 0).then(|| Spec::new(Kind::Text, i as u32))
    })?;
    probe.check()?;
    let mut region = original.clone();
    holder.write(&mut region, |i| Some(Spec::new(Kind::Text, i as u32)))?;
    holder.kill()?;
    zygote.exit()?;
    probe.needs_template(500)?;
    probe.check()
}

/// A file of the suite with the pages of the usual template in it.
fn file_of_pages(name: &str, pages: usize) -> Result<(String, std::fs::File)> {
    let path = format!("/tmp/{name}");
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(&path)
        .with_context(|| format!("create {path}"))?;
    let mut page = [0; PAGE_WORDS];
    for i in 0..pages {
        Spec::new(Kind::Heap, i as u32).render(&mut page);
        write_page(&file, i, &page)?;
    }
    Ok((path, file))
}

fn write_page(file: &std::fs::File, index: usize, page: &sys::Page) -> Result<()> {
    let bytes: Vec<u8> = page.iter().flat_map(|w| w.to_ne_bytes()).collect();
    Ok(file.write_all_at(&bytes, (index * PAGE_SIZE) as u64)?)
}

/// A private mapping that was only read shows the file's page cache: a write to the file changes
/// it. It may be copied or skipped, never kept by reference.
fn private_file_not_copied(ctx: &mut Ctx) -> Result<()> {
    ctx.swap()?;
    let (path, file) = file_of_pages("agentzip-suite-file", 64)?;
    let cgroup = ctx.holder_cgroup("owner")?;
    let (mut family, zygote) = Family::start()?;
    cgroup.enter(zygote.pid)?;
    // The index of a file page is its offset in the file, so the probe must use that one.
    let mut original = Region::new(1, 64);
    zygote.map_file(&original, &path, 0)?;
    zygote.touch(&original)?;
    let other = some_memory(&zygote)?;
    let holder = family.fork(&zygote)?;
    holder.touch(&original)?;
    let added = ctx.register("t", &holder, &[&original, &other])?;
    ensure!(
        added.pages_referenced <= 4,
        "page cache by reference: {}",
        taken(&added)
    );
    let mut page = [0; PAGE_WORDS];
    for i in 0..64 {
        original.specs[i] = Spec::new(Kind::Heap, i as u32);
        Spec::new(Kind::Text, i as u32).render(&mut page);
        write_page(&file, i, &page)?;
    }
    let sandbox = ctx.sandbox("probe", "t")?;
    let puppet = family.fork(&zygote)?;
    sandbox.cgroup.enter(puppet.pid)?;
    // Written in the private mapping, so that the index is the file's.
    let mut region = original.clone();
    puppet.write(&mut region, |i| {
        Some(Spec::new(Kind::Heap, i as u32).edited(2, i as u32))
    })?;
    page_out(&sandbox.cgroup, &puppet, &region)?;
    for i in 0..64 {
        Spec::new(Kind::Random, i as u32).render(&mut page);
        write_page(&file, i, &page)?;
    }
    puppet.check(&region)?;
    std::fs::remove_file(path)?;
    Ok(())
}

/// Once written, a page of a private file mapping is anonymous like any other.
fn private_file_copied(ctx: &mut Ctx) -> Result<()> {
    ctx.swap()?;
    let (path, _file) = file_of_pages("agentzip-suite-file", 64)?;
    let cgroup = ctx.holder_cgroup("owner")?;
    let (mut family, zygote) = Family::start()?;
    cgroup.enter(zygote.pid)?;
    let mut original = Region::new(1, 64);
    zygote.map_file(&original, &path, 0)?;
    zygote.write(&mut original, |i| {
        Some(Spec::new(Kind::Heap, i as u32 + 500))
    })?;
    let holder = family.fork(&zygote)?;
    let added = ctx.register("t", &holder, &[&original])?;
    ensure!(added.pages_referenced == 64, "{}", taken(&added));
    let sandbox = ctx.sandbox("probe", "t")?;
    let puppet = family.fork(&zygote)?;
    sandbox.cgroup.enter(puppet.pid)?;
    let mut region = original.clone();
    let near = original.specs.clone();
    puppet.write(&mut region, |i| Some(near[i].edited(2, i as u32)))?;
    page_out(&sandbox.cgroup, &puppet, &region)?;
    let deltas = sandbox.counters()?.get("pages_delta")?;
    ensure!(
        deltas >= 60,
        "{deltas} of 64 pages as delta against a private file mapping"
    );
    zygote.write(&mut original, |i| Some(Spec::new(Kind::Text, i as u32)))?;
    puppet.check(&region)?;
    std::fs::remove_file(path)?;
    Ok(())
}

/// Somebody else holds a reference, and may write through it.
fn pinned_page(ctx: &mut Ctx) -> Result<()> {
    ctx.swap()?;
    let cgroup = ctx.holder_cgroup("hold")?;
    let (mut family, zygote, region) = ctx.zygote(64, &cgroup)?;
    let holder = family.fork(&zygote)?;
    zygote.pin(&region, 8)?;
    let added = ctx.register("t", &holder, &[&region])?;
    ensure!(
        added.pages_copied == 8 && added.pages_referenced == 56,
        "{}",
        taken(&added)
    );
    let probe = Probe::start(ctx, "t", &mut family, &zygote, &region)?;
    probe.needs_template(60)?;
    probe.check()
}

/// Writes by process_vm_writev and /proc/PID/mem break sharing like the process's own.
fn written_from_outside(ctx: &mut Ctx) -> Result<()> {
    ctx.swap()?;
    let mut t = ctx.template(128)?;
    let probe = Probe::start(ctx, &t.name, &mut t.family, &t.zygote, &t.region)?;
    let mut page = [0; PAGE_WORDS];
    for pid in [t.holder.pid, t.zygote.pid] {
        let memory = OpenOptions::new()
            .write(true)
            .open(format!("/proc/{pid}/mem"))?;
        for i in 0..128 {
            Spec::new(Kind::Text, i as u32).render(&mut page);
            if i % 2 == 0 {
                sys::write_process(pid, t.region.at(i), &page)?;
            } else {
                let bytes: Vec<u8> = page.iter().flat_map(|w| w.to_ne_bytes()).collect();
                memory.write_all_at(&bytes, t.region.at(i) as u64)?;
            }
        }
    }
    probe.needs_template(120)?;
    probe.check()
}

fn holder_remaps(ctx: &mut Ctx) -> Result<()> {
    ctx.swap()?;
    let mut t = ctx.template(128)?;
    let probe = Probe::start(ctx, &t.name, &mut t.family, &t.zygote, &t.region)?;
    let mut moved = t.region.clone();
    t.holder.remap(&mut moved, Region::new(7, 1).addr)?;
    t.holder
        .write(&mut moved, |i| Some(Spec::new(Kind::Text, i as u32)))?;
    let mut moved = t.region.clone();
    t.zygote.remap(&mut moved, Region::new(7, 1).addr)?;
    t.zygote
        .write(&mut moved, |i| Some(Spec::new(Kind::Text, i as u32)))?;
    probe.needs_template(120)?;
    probe.check()
}

/// Shared memory can always be written in place.
fn shared_memory_skipped(ctx: &mut Ctx) -> Result<()> {
    ctx.swap()?;
    let cgroup = ctx.holder_cgroup("hold")?;
    let (mut family, zygote) = Family::start()?;
    cgroup.enter(zygote.pid)?;
    let mut region = Region::new(1, 32);
    zygote.map_as(&region, true, libc::MADV_NORMAL)?;
    zygote.write(&mut region, |i| Some(Spec::new(Kind::Heap, i as u32)))?;
    let other = some_memory(&zygote)?;
    let holder = family.fork(&zygote)?;
    let added = ctx.register("t", &holder, &[&region, &other])?;
    ensure!(
        added.pages_referenced <= 4,
        "shared memory by reference: {}",
        taken(&added)
    );
    let original = region.clone();
    let probe = Probe::start(ctx, "t", &mut family, &zygote, &original)?;
    zygote.write(&mut region, |i| Some(Spec::new(Kind::Text, i as u32)))?;
    probe.check()
}

/// Several mappings whose pages have one index: by mremap, and private mappings of a file at
/// the same offset. Each page finds the base that is like it.
fn several_vmas_one_index(ctx: &mut Ctx) -> Result<()> {
    ctx.swap()?;
    let (path, _file) = file_of_pages("agentzip-suite-file", 32)?;
    let cgroup = ctx.holder_cgroup("hold")?;
    let (mut family, zygote, mut first) = ctx.zygote(32, &cgroup)?;
    // The first moves away and keeps its index; the second gets the same one.
    zygote.remap(&mut first, Region::new(6, 1).addr)?;
    let mut second = Region::new(1, 32);
    zygote.map(&second)?;
    zygote.write(&mut second, |i| {
        Some(Spec::new(Kind::Heap, i as u32 + 1000))
    })?;
    let mut regions = vec![first, second];
    for n in 0..3 {
        let mut region = Region::new(10 + n, 32);
        zygote.map_file(&region, &path, 0)?;
        zygote.write(&mut region, |i| {
            Some(Spec::new(Kind::Heap, (i + 2000 + n * 100) as u32))
        })?;
        regions.push(region);
    }
    let holder = family.fork(&zygote)?;
    let mut sorted: Vec<&Region> = regions.iter().collect();
    sorted.sort_by_key(|r| r.addr);
    let added = ctx.register("t", &holder, &sorted)?;
    ensure!(
        added.pages_referenced + added.pages_copied == 5 * 32,
        "{}",
        taken(&added)
    );
    let sandbox = ctx.sandbox("probe", "t")?;
    let puppet = family.fork(&zygote)?;
    sandbox.cgroup.enter(puppet.pid)?;
    for region in &mut regions {
        let near = region.specs.clone();
        puppet.write(region, |i| Some(near[i].edited(2, i as u32)))?;
    }
    for region in &regions {
        page_out(&sandbox.cgroup, &puppet, region)?;
    }
    let deltas = sandbox.counters()?.get("pages_delta")?;
    ensure!(
        deltas >= 5 * 32 - 8,
        "{deltas} of {} pages as delta",
        5 * 32
    );
    for region in &regions {
        puppet.check(region)?;
    }
    std::fs::remove_file(path)?;
    Ok(())
}

/// A sandbox that moves its mapping still finds its bases: the index stays.
fn index_after_mremap(ctx: &mut Ctx) -> Result<()> {
    let mut world = ctx.world(128)?;
    let near = |i: usize| Some(Spec::new(Kind::Heap, i as u32).edited(2, i as u32));
    world.puppet.write(&mut world.region, near)?;
    world
        .puppet
        .remap(&mut world.region, Region::new(8, 1).addr)?;
    world.page_out()?;
    let deltas = world.sandbox.counters()?.get("pages_delta")?;
    ensure!(deltas >= 120, "{deltas} of 128 pages as delta after mremap");
    world.check()?;
    // And while they are out.
    world.page_out()?;
    world
        .puppet
        .remap(&mut world.region, Region::new(9, 1).addr)?;
    world.check()
}

fn two_templates(ctx: &mut Ctx) -> Result<()> {
    let mut world = ctx.world(64)?;
    let mut second = ctx.template(64)?;
    let sandbox = ctx.sandbox("box2", &second.name)?;
    let puppet = second.spawn(&sandbox.cgroup)?;
    let mut region = second.region.clone();
    super::fixture::write_mixed(&puppet, &mut region, 4)?;
    page_out(&sandbox.cgroup, &puppet, &region)?;
    world.store_mixed(1)?;
    // One goes with all that is its own; the other is not touched.
    puppet.kill()?;
    ctx.device().detach(sandbox.id)?;
    let name = second.name.clone();
    host::wait_until(
        "the second template goes",
        std::time::Duration::from_secs(5),
        || Ok(ctx.device().template_remove(&name).is_ok()),
    )?;
    let left = module::list("templates")?;
    ensure!(left == [world.template.name.as_str()], "{left:?}");
    world.check()
}

/// Whenever the process ends, registering succeeds or fails as a whole.
fn holder_is_killed_during_add(ctx: &mut Ctx) -> Result<()> {
    let cgroup = ctx.holder_cgroup("hold")?;
    let (mut family, zygote, region) = ctx.zygote(512, &cgroup)?;
    for round in 0..6u64 {
        let holder = family.fork(&zygote)?;
        let pid = holder.pid;
        if let sys::Forked::Child = sys::fork()? {
            std::thread::sleep(std::time::Duration::from_micros(300 * round));
            // The test looks at what became of it, not at whether the kill came in time.
            let _ = sys::kill(pid, libc::SIGKILL);
            sys::exit_now(0);
        }
        let name = format!("k{round}");
        match ctx.device().template_add(&name, pid, &[region.range()]) {
            Ok(_) => ctx
                .device()
                .template_remove(&name)
                .map_err(|(e, users)| anyhow::anyhow!("remove: {e}, {users} users"))?,
            Err(e) => {
                let errno = e.raw_os_error().unwrap_or(0);
                ensure!(
                    [libc::ESRCH, libc::EINTR, libc::EINVAL].contains(&errno),
                    "add: {e}"
                );
            }
        }
        let left = module::list("templates")?;
        ensure!(left.is_empty(), "left: {left:?}");
    }
    zygote.check(&region)
}
