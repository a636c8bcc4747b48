// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What the module takes of a file, by reference or as a copy, never changes.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use agentzip_uapi as uapi;
use anyhow::{ensure, Context, Result};
use rustix::fs::{
    fallocate, fcntl_add_seals, ftruncate, memfd_create, FallocateFlags, MemfdFlags, SealFlags,
};

use super::super::fixture::module::{self, expect_errno};
use super::super::fixture::page::{Kind, Spec};
use super::super::fixture::puppet::{Family, Puppet, Region};
use super::super::fixture::{host, page_out, Ctx};
use super::super::sys::{self, PAGE_SIZE, PAGE_WORDS};
use super::calls::{add_file, add_part, range, set_ranges, Taken, NONE};
use super::restored::{
    disk_file, fill, memfd, original, path_of, sealed_memfd, template_bytes, write_near,
    write_page, Restored, SEALED,
};

/// A sealed memfd is not held twice, however long.
pub fn sealed_memfd_costs_nothing(ctx: &mut Ctx) -> Result<()> {
    ctx.swap()?;
    let file = sealed_memfd(256)?;
    let taken = add_file(ctx, "t", &file)?;
    ensure!(
        taken
            == Taken {
                referenced: 256,
                copied: 0,
                skipped: 0
            },
        "{taken:?}"
    );
    let restored = Restored::start(ctx, "t", 0, 256)?;
    restored.needs_template(250)?;
    // The worker has looked at the pages: they are still the file's.
    std::thread::sleep(host::patience(Duration::from_millis(2500)));
    let held = template_bytes()?;
    ensure!(held == 0, "{held} bytes of template pages are ours");
    ensure!(module::value("templates/t/pages_referenced")? == 256);
    let source = host::read(module::sysfs("templates/t/source"))?;
    ensure!(source == "file", "source is {source:?}");
    restored.check()
}

/// The pages of a file that is gone become ours.
pub fn owner_of_sealed_memfd_exits(ctx: &mut Ctx) -> Result<()> {
    ctx.swap()?;
    let file = sealed_memfd(128)?;
    let taken = add_file(ctx, "t", &file)?;
    ensure!(taken.referenced == 128, "{taken:?}");
    let mut restored = Restored::start(ctx, "t", 0, 128)?;
    drop(file);
    let bytes = (128 * PAGE_SIZE) as u64;
    host::wait_until(
        "pages of a file that is gone should be counted as ours",
        Duration::from_secs(5),
        || Ok(template_bytes()? == bytes),
    )?;
    ensure!(module::value("templates/t/pages_copied")? == 128);
    restored.check()?;
    write_near(&restored.puppet, &mut restored.region, 0, 1)?;
    restored.page_out()?;
    restored.needs_template(120)?;
    restored.check()
}

/// Memory gets tight where the file is charged: its pages stay, and are right.
pub fn sealed_memfd_under_pressure(ctx: &mut Ctx) -> Result<()> {
    ctx.swap()?;
    let owner = ctx.cgroup("owner")?;
    let (_family, puppet) = Family::start()?;
    owner.enter(puppet.pid)?;
    // Only 64 of 128 pages are in the template; the others may go.
    let file = memfd_written_by(&puppet, 128)?;
    let half = (64 * PAGE_SIZE) as u64;
    host::drain_page_batches()?;
    let taken = add_part(ctx.device(), "t", file.as_raw_fd(), 0, half, NONE)?;
    ensure!(taken.referenced == 64, "{taken:?}");
    let restored = Restored::start(ctx, "t", 0, 64)?;
    for _ in 0..3 {
        owner.reclaim(16 << 20)?;
        ctx.root.reclaim(64 << 20)?;
    }
    let out = owner.number("memory.swap.current")?;
    ensure!(
        out >= half / 2,
        "{out} bytes of the other pages went to swap, so reclaim was not at work"
    );
    let held = template_bytes()?;
    ensure!(held == 0, "{held} bytes of template pages are ours");
    restored.needs_template(60)?;
    restored.check()?;
    // The file itself, from memory and from swap.
    let mut region = Region::new(3, 128);
    for i in 0..128 {
        region.specs[i] = original(i);
    }
    puppet.map_file(&region, &path_of(&file), 0)?;
    puppet.check(&region)
}

/// A sealed memfd whose pages are charged to the process's cgroup.
pub fn memfd_written_by(puppet: &Puppet, pages: usize) -> Result<File> {
    let flags = MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC;
    let file = File::from(memfd_create("agentzip-suite", flags)?);
    ftruncate(&file, (pages * PAGE_SIZE) as u64)?;
    let region = Region::new(4, pages);
    // Private mappings of holes read zeros from the file, which so gets its pages.
    puppet.map_file(&region, &path_of(&file), 0)?;
    puppet.touch(&region)?;
    puppet.unmap(&region)?;
    fill(&file, pages)?;
    host::drain_page_batches()?;
    fcntl_add_seals(&file, SEALED).context("seal")?;
    Ok(file)
}

/// With any of the three seals missing, somebody can still change a page.
pub fn half_sealed_is_copied(ctx: &mut Ctx) -> Result<()> {
    ctx.swap()?;
    let mut all = Vec::new();
    let mut files = Vec::new();
    for (n, missing) in [SealFlags::WRITE, SealFlags::SHRINK, SealFlags::GROW]
        .into_iter()
        .enumerate()
    {
        let file = memfd(32)?;
        let seals = SEALED.difference(missing);
        fcntl_add_seals(&file, seals)?;
        let template = format!("t{n}");
        let taken = add_file(ctx, &template, &file)?;
        ensure!(
            taken.copied == 32 && taken.referenced == 0,
            "without {missing:?}: {taken:?}"
        );
        all.push(Restored::start(ctx, &template, 0, 32)?);
        files.push(file);
    }
    // Future writes only: those who mapped it before may go on.
    let file = memfd(32)?;
    let seals = SealFlags::FUTURE_WRITE | SealFlags::SHRINK | SealFlags::GROW;
    fcntl_add_seals(&file, seals)?;
    let taken = add_file(ctx, "t3", &file)?;
    ensure!(taken.copied == 32, "{taken:?}");

    // What can be done now does no harm.
    for i in 0..32 {
        write_page(&files[0], i, Spec::new(Kind::Text, i as u32))?;
    }
    ftruncate(&files[1], 5000)?;
    for restored in &all {
        restored.needs_template(30)?;
        restored.check()?;
    }
    Ok(())
}

/// Everything by which a process could change a sealed file is refused; what is not leaves the
/// template as it is.
pub fn seals_hold(ctx: &mut Ctx) -> Result<()> {
    ctx.swap()?;
    let file = sealed_memfd(64)?;
    let taken = add_file(ctx, "t", &file)?;
    ensure!(taken.referenced == 64, "{taken:?}");
    let restored = Restored::start(ctx, "t", 0, 64)?;

    let again = OpenOptions::new()
        .read(true)
        .write(true)
        .open(path_of(&file))
        .context("open it again")?;
    let refused = |what: &str, result: io::Result<()>| expect_errno(what, result, &[libc::EPERM]);
    refused("write", again.write_all_at(&[1; PAGE_SIZE], 0))?;
    refused("truncate", again.set_len(4096))?;
    refused("truncate a part of a page", again.set_len(64 * 4096 - 100))?;
    refused("grow", again.set_len(65 * 4096))?;
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    refused(
        "punch a hole",
        fallocate(&again, hole, 0, 8192).map_err(Into::into),
    )?;
    refused(
        "zero a range",
        fallocate(&again, FallocateFlags::ZERO_RANGE, 0, 8192)
            .map_err(|e| match e {
                // A file system without it.
                rustix::io::Errno::OPNOTSUPP => rustix::io::Errno::PERM,
                other => other,
            })
            .map_err(Into::into),
    )?;

    // A private mapping is written, from within and from without: it gets pages of its own.
    let (_family, writer) = Family::start()?;
    let mut region = Region::new(6, 64);
    writer.map_file(&region, &path_of(&file), 0)?;
    writer.touch(&region)?;
    let mut page = [0; PAGE_WORDS];
    for i in 0..32 {
        region.specs[i] = Spec::new(Kind::Text, i as u32);
        region.specs[i].render(&mut page);
        sys::write_process(writer.pid, region.at(i), &page)?;
    }
    writer.write(&mut region, |i| Some(Spec::new(Kind::Text, i as u32 + 100)))?;
    writer.check(&region)?;
    writer.advise(&region, libc::MADV_DONTNEED)?;
    for i in 0..64 {
        region.specs[i] = original(i);
    }
    writer.check(&region)?;
    restored.needs_template(60)?;
    restored.check()
}

/// A reference to a page of a huge folio would keep all of it.
pub fn huge_pages_are_copied(ctx: &mut Ctx) -> Result<()> {
    const ENABLED: &str = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
    ctx.swap()?;
    // `force` is for memfds, too; it applies to pages that are allocated now.
    let before = host::read(ENABLED)?;
    let before = before
        .split(['[', ']'])
        .nth(1)
        .context("shmem_enabled")?
        .to_owned();
    host::write(ENABLED, "force")?;
    let file = memfd(512);
    host::write(ENABLED, &before)?;
    let file = file?;
    fcntl_add_seals(&file, SEALED)?;
    let huge = host::read("/proc/meminfo")?
        .lines()
        .filter_map(|line| line.strip_prefix("ShmemHugePages:"))
        .filter_map(|rest| rest.trim().strip_suffix(" kB")?.parse::<u64>().ok())
        .next()
        .context("no ShmemHugePages")?;
    ensure!(huge >= 2048, "{huge} KiB of shared memory in huge pages");
    let taken = add_file(ctx, "t", &file)?;
    ensure!(taken.copied == 512 && taken.referenced == 0, "{taken:?}");
    let restored = Restored::start(ctx, "t", 0, 512)?;
    drop(file);
    restored.needs_template(500)?;
    restored.check()
}

/// Whoever writes the file later changes no template.
pub fn written_file_is_copied(ctx: &mut Ctx) -> Result<()> {
    ctx.swap()?;
    let (path, file) = disk_file(64)?;
    let taken = add_file(ctx, "t", &File::open(&path)?)?;
    ensure!(taken.copied == 64 && taken.referenced == 0, "{taken:?}");
    ensure!(template_bytes()? == (64 * PAGE_SIZE) as u64);
    let mut restored = Restored::start(ctx, "t", 0, 64)?;
    for i in 0..64 {
        write_page(&file, i, Spec::new(Kind::Text, i as u32))?;
    }
    file.sync_all()?;
    host::drop_caches()?;
    restored.needs_template(60)?;
    restored.check()?;
    write_near(&restored.puppet, &mut restored.region, 0, 1)?;
    restored.page_out()?;
    restored.needs_template(60)?;
    std::fs::remove_file(path)?;
    drop(file);
    restored.check()
}

/// Truncation and holes in the file change no template.
pub fn truncated_file(ctx: &mut Ctx) -> Result<()> {
    ctx.swap()?;
    let (path, file) = disk_file(64)?;
    let plain = memfd(64)?;
    add_file(ctx, "t", &file)?;
    add_file(ctx, "m", &plain)?;
    let all = [
        Restored::start(ctx, "t", 0, 64)?,
        Restored::start(ctx, "m", 0, 64)?,
    ];
    for file in [&file, &plain] {
        file.set_len(100)?;
        file.set_len(64 * PAGE_SIZE as u64)?;
    }
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&plain, hole, 0, 64 * PAGE_SIZE as u64)?;
    for restored in &all {
        restored.needs_template(60)?;
        restored.check()?;
    }
    // Of what is there now, nothing can be taken.
    expect_errno(
        "a file of holes",
        add_part(
            ctx.device(),
            "h",
            plain.as_raw_fd(),
            0,
            0,
            [0; uapi::SIGNATURE_LEN],
        ),
        &[libc::ENODATA],
    )?;
    Ok(std::fs::remove_file(path)?)
}

/// Offset and length; holes and zeros between; ordinals that do not follow the file.
pub fn part_of_a_file(ctx: &mut Ctx) -> Result<()> {
    ctx.swap()?;
    for (template, file) in [("s", memfd(0)?), ("d", disk_file(0)?.1)] {
        // Data in pages 10..40 and 100..120, zeros in 20..24, everything else holes.
        for i in (10..40).chain(100..120) {
            let spec = match i {
                20..24 => Spec::ZERO,
                _ => original(i),
            };
            write_page(&file, i, spec)?;
        }
        file.set_len(1000 * PAGE_SIZE as u64)?;
        if template == "s" {
            fcntl_add_seals(&file, SEALED)?;
        }
        let add = |template: &str, from: usize, pages: usize| {
            let bytes = |pages: usize| (pages * PAGE_SIZE) as u64;
            let none = [0; uapi::SIGNATURE_LEN];
            let fd = file.as_raw_fd();
            add_part(ctx.device(), template, fd, bytes(from), bytes(pages), none)
        };
        let taken = add(template, 0, 0)?;
        ensure!(
            taken.referenced + taken.copied == 46 && taken.skipped == 954,
            "all of {template}: {taken:?}"
        );
        let part = format!("{template}-part");
        let taken = add(&part, 15, 90)?;
        ensure!(
            taken.referenced + taken.copied == 26 && taken.skipped == 64,
            "a part of {template}: {taken:?}"
        );
        let restored = Restored::start(ctx, &part, 15, 90)?;
        restored.needs_template(26)?;
        let counters = restored.sandbox.counters()?;
        let backed = counters.get("template_backed")?;
        ensure!(backed == 26, "{backed} template-backed pages, not 26");
        restored.check()?;
        let more = format!("{template}-more");
        let taken = add(&more, 110, 1 << 30)?;
        ensure!(
            taken.referenced + taken.copied == 10 && taken.skipped == 880,
            "more than {template} has: {taken:?}"
        );
        for (what, from, pages) in [("holes", 200, 0), ("beyond the end", 1000, 5)] {
            expect_errno(what, add("none", from, pages), &[libc::ENODATA])?;
        }
    }
    Ok(std::fs::remove_file("/tmp/agentzip-suite-template")?)
}

/// Beyond the end of the file there are zeros, as in a mapping of it.
pub fn last_page_is_filled_with_zeros(ctx: &mut Ctx) -> Result<()> {
    ctx.swap()?;
    let (path, file) = disk_file(8)?;
    let plain = memfd(8)?;
    for (template, file) in [("t", &file), ("m", &plain)] {
        // What was there before the truncation must not come back.
        file.set_len(8 * PAGE_SIZE as u64 - 4000)?;
        let taken = add_file(ctx, template, file)?;
        ensure!(taken.referenced + taken.copied == 8, "{taken:?}");
        let (_family, puppet) = Family::start()?;
        let sandbox = ctx.sandbox(&format!("box-{template}"), template)?;
        sandbox.cgroup.enter(puppet.pid)?;
        // A mapping of the file shows what the page is.
        let region = Region::new(2, 8);
        set_ranges(ctx, sandbox.id, &[range(&region, 0)])?;
        puppet.map_file(&region, &path_of(file), 0)?;
        let mut page = [0; PAGE_WORDS];
        for i in 0..8 {
            sys::read_process(puppet.pid, region.at(i), &mut page)?;
            sys::write_process(puppet.pid, region.at(i), &page)?;
        }
        page_out(&sandbox.cgroup, &puppet, &region)?;
        let equal = sandbox.counters()?.get("pages_ref")?;
        ensure!(equal == 8, "{equal} of 8 pages of {template} are equal");
        let mut expected = [0; PAGE_WORDS];
        original(7).render(&mut expected);
        expected[96 / 8..].fill(0);
        sys::read_process(puppet.pid, region.at(7), &mut page)?;
        ensure!(page == expected, "the last page of {template}");
    }
    Ok(std::fs::remove_file(path)?)
}
