// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Restores against faults, and against everything else that a process does to its memory.

use std::time::{Duration, Instant};

use agentzip_uapi as uapi;
use anyhow::{ensure, Result};

use super::super::fixture::page::{Rng, Spec};
use super::super::fixture::puppet::Region;
use super::super::fixture::{module, write_mixed, Ctx};
use super::super::recorder;
use super::{wait_ended, Scene};

/// Two requests and four threads want the same pages.
pub fn each_page_is_decoded_once(ctx: &mut Ctx) -> Result<()> {
    const PAGES: usize = 1024;
    let scene = Scene::start(ctx, PAGES)?;
    let (mut ahead, mut by_faults) = (0, 0);
    let warm = Region::new(6, 4);
    scene.puppet().map(&warm)?;
    for _ in 0..4 {
        scene.page_out()?;
        // What the process itself needs for it comes back.
        scene.puppet().touch_by(&warm, 4)?;
        let id = scene.world.sandbox.id;
        recorder::record(ctx, id, 4096, -1)?;
        let before = scene.counters()?;
        let backwards: Vec<_> = (0..PAGES)
            .rev()
            .map(|i| scene.region.part(i, 1).range())
            .collect();
        ctx.device()
            .prefetch(&[scene.region.range()], scene.request())?;
        ctx.device().prefetch(&backwards, scene.request())?;
        scene.puppet().touch_by(&scene.region, 4)?;
        wait_ended(&before, 2 * PAGES as u64)?;
        let loads = before.grown("loads")?;
        let records = recorder::take_all(ctx, id)?;
        recorder::record(ctx, id, 0, -1)?;
        let decoded = |records: &[&uapi::FaultRecord]| {
            let ours = records
                .iter()
                .filter(|r| r.representation != uapi::NOT_DECODED);
            ours.count() as u64
        };
        let all = decoded(&records.iter().collect::<Vec<_>>());
        let here = decoded(&recorder::of(&records, &scene.region));
        // The process's own pages are out, too.
        let others = all - here;
        ensure!(
            loads == PAGES as u64 + others,
            "{loads} loads for {PAGES} pages and {others} others"
        );
        ensure!(before.grown("prefetch_absent")? == 0, "pages were missed");
        ahead += PAGES as u64 - here;
        by_faults += here;
        scene.puppet().check(&scene.region)?;
    }
    let ns = scene.counters()?.get("prefetch_ns")?;
    println!(
        "@@ prefetch: {ahead} pages restored, {by_faults} decoded in faults; {} ns a page",
        ns / ahead.max(1)
    );
    Ok(())
}

/// How long mappings change.
const STORM: Duration = Duration::from_secs(60);

/// Plans of 10,000 ranges while the process unmaps, moves, discards and exits: what it has given up reads
/// as zeros, everything else as it was.
pub fn against_changes_of_mappings(ctx: &mut Ctx) -> Result<()> {
    const PAGES: usize = 1024;
    let mut scene = Scene::start(ctx, PAGES)?;
    let cgroup = scene.world.sandbox.cgroup.clone();
    let elsewhere = Region::new(6, PAGES).addr;
    let mut rng = Rng::new(7);
    let end = Instant::now() + STORM;
    let (mut rounds, mut asked) = (0, 0);
    let before = module::Counters::global()?;
    while Instant::now() < end {
        let mut ranges: Vec<_> = (0..10_000)
            .map(|i| {
                scene
                    .region
                    .part(rng.next() as usize % (PAGES - 2), 1 + i % 2)
                    .range()
            })
            .collect();
        // Where it will move to.
        for range in ranges.iter_mut().skip(5000) {
            if rng.next() % 2 == 0 {
                let by = elsewhere as u64 - scene.region.addr as u64;
                *range = uapi::Range {
                    start: range.start + by,
                    end: range.end + by,
                };
            }
        }
        let puppet = &scene.world.puppet;
        super::super::fixture::page_out(&cgroup, puppet, &scene.region)?;
        asked += ctx.device().prefetch(&ranges, scene.request())?;
        for _ in 0..8 {
            let (from, count) = (
                rng.next() as usize % (PAGES - 64),
                1 + rng.next() as usize % 64,
            );
            puppet.advise_part(&scene.region, from, count, libc::MADV_DONTNEED)?;
            scene.region.specs[from..from + count].fill(Spec::ZERO);
            let (from, count) = (
                rng.next() as usize % (PAGES - 64),
                1 + rng.next() as usize % 64,
            );
            let hole = scene.region.part(from, count);
            puppet.unmap(&hole)?;
            puppet.map(&hole)?;
            scene.region.specs[from..from + count].fill(Spec::ZERO);
        }
        match rounds % 3 {
            0 => puppet.check(&scene.region)?,
            1 => {
                // Of one piece again, which mremap wants.
                puppet.unmap(&scene.region)?;
                puppet.map(&scene.region)?;
                scene.region.specs.fill(Spec::ZERO);
                let mut moved = scene.region.clone();
                puppet.remap(&mut moved, elsewhere)?;
                puppet.check(&moved)?;
                puppet.unmap(&moved)?;
                puppet.map(&scene.region)?;
                puppet.check(&scene.region)?;
            }
            _ => {
                puppet.check(&scene.region)?;
                let new = scene.world.template.spawn(&cgroup)?;
                std::mem::replace(&mut scene.world.puppet, new).kill()?;
                scene.world.puppet.map(&scene.region)?;
            }
        }
        write_mixed(&scene.world.puppet, &mut scene.region, rounds)?;
        rounds += 1;
    }
    wait_ended(&before, asked)?;
    let restored = before.grown("prefetch_pages")?;
    ensure!(restored > 0, "nothing was restored in {rounds} rounds");
    println!("# {rounds} rounds, {restored} of {asked} pages restored");
    scene.puppet().check(&scene.region)
}
