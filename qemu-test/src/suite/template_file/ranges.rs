// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Pages find their bases through ranges.

use std::fs::File;
use std::io;

use anyhow::{ensure, Result};

use super::super::fixture::module::{self, expect_errno};
use super::super::fixture::puppet::{Family, Region};
use super::super::fixture::{page_out, Ctx};
use super::super::sys::PAGE_SIZE;
use super::calls::{add_file, range, set_ranges};
use super::restored::{disk_file, needs_template, path_of, sealed_memfd, write_near, Restored};

/// Restored snapshots: each process maps the file privately, at an address and an offset of its own.
pub fn private_mappings_at_other_addresses(ctx: &mut Ctx) -> Result<()> {
    ctx.swap()?;
    let (path, _file) = disk_file(96)?;
    add_file(ctx, "t", &File::open(&path)?)?;
    let sandbox = ctx.sandbox("box", "t")?;
    let (mut family, zygote) = Family::start()?;
    sandbox.cgroup.enter(zygote.pid)?;
    let mut all = Vec::new();
    for (n, first) in [0, 16, 32].into_iter().enumerate() {
        let puppet = family.fork(&zygote)?;
        sandbox.cgroup.enter(puppet.pid)?;
        let region = Region::new(10 + n, 64);
        puppet.map_file(&region, &path, (first * PAGE_SIZE) as u64)?;
        all.push((puppet, region, first));
    }
    let ranges: Vec<_> = all.iter().map(|(_, r, first)| range(r, *first)).collect();
    set_ranges(ctx, sandbox.id, &ranges)?;
    ensure!(module::value(&format!("sandboxes/{}/ranges", sandbox.id))? == 3);
    for (puppet, region, first) in &mut all {
        write_near(puppet, region, *first, 0)?;
    }
    for (puppet, region, _) in &all {
        page_out(&sandbox.cgroup, puppet, region)?;
    }
    needs_template(&sandbox, 3 * 64 - 4)?;
    let backed = sandbox.counters()?.get("template_backed")?;
    ensure!(backed >= 3 * 64, "{backed} template-backed pages");
    for (puppet, region, _) in &all {
        puppet.check(region)?;
    }
    // The mapping moves; its pages keep their index.
    for (n, (puppet, region, first)) in all.iter_mut().enumerate() {
        write_near(puppet, region, *first, 1)?;
        puppet.remap(region, Region::new(20 + n, 1).addr)?;
        page_out(&sandbox.cgroup, puppet, region)?;
    }
    needs_template(&sandbox, 3 * 64 - 4)?;
    for (puppet, region, _) in &all {
        puppet.check(region)?;
    }
    Ok(std::fs::remove_file(path)?)
}

/// Memory that was read from the file finds its pages through a range.
pub fn anonymous_memory_filled_from_the_file(ctx: &mut Ctx) -> Result<()> {
    ctx.swap()?;
    let file = sealed_memfd(128)?;
    add_file(ctx, "t", &file)?;
    let restored = Restored::start(ctx, "t", 0, 128)?;
    restored.needs_template(120)?;
    let counters = restored.sandbox.counters()?;
    let (equal, backed) = (counters.get("pages_ref")?, counters.get("template_backed")?);
    ensure!(equal >= 128 / 4, "{equal} refs of {} equal pages", 128 / 4);
    ensure!(backed == 128, "{backed} template-backed pages, not 128");
    restored.check()
}

/// Two processes have other parts of the file at the same addresses: both are tried.
pub fn overlapping_ranges_of_two_processes(ctx: &mut Ctx) -> Result<()> {
    ctx.swap()?;
    let file = sealed_memfd(128)?;
    add_file(ctx, "t", &file)?;
    let sandbox = ctx.sandbox("box", "t")?;
    let mut members = Vec::new();
    for first in [0, 64] {
        let (family, puppet) = Family::start()?;
        sandbox.cgroup.enter(puppet.pid)?;
        let mut region = Region::new(5, 64);
        puppet.map(&region)?;
        write_near(&puppet, &mut region, first, 0)?;
        members.push((family, puppet, region, first));
    }
    let ranges: Vec<_> = members.iter().map(|m| range(&m.2, m.3)).collect();
    set_ranges(ctx, sandbox.id, &ranges)?;
    for (_, puppet, region, _) in &members {
        page_out(&sandbox.cgroup, puppet, region)?;
    }
    needs_template(&sandbox, 128 - 4)?;
    for (_, puppet, region, _) in &members {
        puppet.check(region)?;
    }
    Ok(())
}

/// Entries name template pages, so they outlive the ranges that they were found through.
pub fn ranges_change_under_entries(ctx: &mut Ctx) -> Result<()> {
    ctx.swap()?;
    let file = sealed_memfd(128)?;
    add_file(ctx, "t", &file)?;
    let mut restored = Restored::start(ctx, "t", 0, 64)?;
    restored.needs_template(60)?;
    let id = restored.sandbox.id;
    let count = || module::value(&format!("sandboxes/{id}/ranges"));
    // Another part of the file, then nothing.
    for (round, ranges) in [vec![range(&restored.region, 64)], vec![]]
        .into_iter()
        .enumerate()
    {
        set_ranges(ctx, id, &ranges)?;
        ensure!(count()? == ranges.len() as u64);
        restored.check()?;
        write_near(&restored.puppet, &mut restored.region, 0, 1 + round as u32)?;
        let backed = || restored.sandbox.counters()?.get("template_backed");
        let before = backed()?;
        restored.page_out()?;
        let backed = backed()? - before;
        // Their content may still lead to the pages that they were restored from.
        let expected = if ranges.is_empty() { 0..=0 } else { 60..=64 };
        ensure!(expected.contains(&backed), "{backed} pages by {ranges:?}");
        restored.check()?;
    }
    // A detached sandbox keeps its ranges for when it comes back, and takes no others.
    set_ranges(ctx, id, &[range(&restored.region, 0)])?;
    restored.page_out()?;
    ctx.device().detach(id)?;
    expect_errno(
        "ranges of a detached sandbox",
        set_ranges(ctx, id, &[]),
        &[libc::ENOENT],
    )?;
    let again = ctx.device().attach(restored.sandbox.cgroup.path(), "t")?;
    ensure!(again == id && count()? == 1, "{} ranges", count()?);
    write_near(&restored.puppet, &mut restored.region, 0, 4)?;
    restored.page_out()?;
    restored.needs_template(60)?;

    // While stores go on.
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| -> Result<()> {
        let changes = scope.spawn(|| -> io::Result<u32> {
            let mut rounds = 0;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let ranges = [range(&restored.region, rounds as usize % 64)];
                set_ranges(ctx, id, &ranges[..rounds as usize % 2])?;
                rounds += 1;
            }
            Ok(rounds)
        });
        let work = (0..8).try_for_each(|round| {
            let mut region = restored.region.clone();
            write_near(&restored.puppet, &mut region, 0, 10 + round)?;
            page_out(&restored.sandbox.cgroup, &restored.puppet, &region)?;
            restored.puppet.check(&region)
        });
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        let rounds = changes.join().expect("no panic")?;
        ensure!(rounds > 8, "only {rounds} changes of ranges");
        work
    })
}

/// Ranges serve a template from a process, too: a sandbox that has its pages elsewhere.
pub fn ranges_of_a_template_from_a_process(ctx: &mut Ctx) -> Result<()> {
    ctx.swap()?;
    let template = ctx.template(64)?;
    let sandbox = ctx.sandbox("box", &template.name)?;
    let (_family, puppet) = Family::start()?;
    sandbox.cgroup.enter(puppet.pid)?;
    let mut moved = Region::new(30, 64);
    let mut same = template.region.clone();
    for region in [&mut moved, &mut same] {
        puppet.map(region)?;
        write_near(&puppet, region, 0, 0)?;
    }
    set_ranges(
        ctx,
        sandbox.id,
        &[range(&moved, template.region.addr / PAGE_SIZE)],
    )?;
    for region in [&moved, &same] {
        page_out(&sandbox.cgroup, &puppet, region)?;
    }
    needs_template(&sandbox, 2 * 64 - 4)?;
    puppet.check(&moved)?;
    puppet.check(&same)
}

/// Addresses are no positions in a file: nothing matches by chance.
pub fn without_ranges_nothing_matches(ctx: &mut Ctx) -> Result<()> {
    ctx.swap()?;
    let file = sealed_memfd(64)?;
    add_file(ctx, "t", &file)?;
    let sandbox = ctx.sandbox("box", "t")?;
    let (_family, puppet) = Family::start()?;
    sandbox.cgroup.enter(puppet.pid)?;
    // A private mapping of the file: this kernel gives its pages the index of their address.
    let mut region = Region::new(5, 64);
    puppet.map_file(&region, &path_of(&file), 0)?;
    write_near(&puppet, &mut region, 0, 0)?;
    page_out(&sandbox.cgroup, &puppet, &region)?;
    let counters = sandbox.counters()?;
    let backed = counters.get("template_backed")?;
    ensure!(backed == 0, "{backed} pages found a base without ranges");
    puppet.check(&region)
}
