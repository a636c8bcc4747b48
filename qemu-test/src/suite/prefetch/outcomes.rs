// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What becomes of the pages that are asked for.

use std::time::Duration;

use agentzip_uapi::{self as uapi, PAGE_ACCESSED, PAGE_PRESENT, PAGE_SWAPPED};
use anyhow::{ensure, Context, Result};

use super::super::fixture::page::{Kind, Spec};
use super::super::fixture::puppet::Region;
use super::super::fixture::{host, module, page_out, write_mixed, Ctx};
use super::super::recorder;
use super::{expect_grown, Scene};

pub fn restores_what_is_asked(ctx: &mut Ctx) -> Result<()> {
    let scene = Scene::start(ctx, 256)?;
    let (puppet, region) = (scene.puppet(), &scene.region);
    let before = scene.counters()?;
    let asked = [
        region.part(16, 64),
        region.part(100, 1),
        region.part(90, 20),
    ];
    scene.restore(ctx, &[&asked[0], &asked[1], &asked[2]])?;
    // Number 100 is asked for twice.
    expect_grown(
        &before,
        &[
            ("prefetch_pages", 84),
            ("prefetch_present", 1),
            ("prefetch_absent", 0),
            ("prefetch_dropped", 0),
            ("loads", 84),
        ],
    )?;
    ensure!(before.grown("prefetch_ns")? > 0, "it took no time");
    let out = puppet.slots(region)?;
    for (page, slot) in out.iter().enumerate() {
        let is_asked = (16..80).contains(&page) || (90..110).contains(&page);
        ensure!(
            slot.is_some() != is_asked,
            "page {page} is asked for: {is_asked}, swapped out: {}",
            slot.is_some()
        );
    }
    let anon = scene.world.sandbox.cgroup.stat_reaches("anon", 84 << 12)?;
    ensure!(anon >= 84 << 12, "the sandbox is charged {anon} bytes");
    // The process's own pages are out, too, and are waited for.
    let id = scene.world.sandbox.id;
    recorder::record(ctx, id, 1024, -1)?;
    for region in &asked {
        puppet.touch(region)?;
        puppet.check(region)?;
    }
    let records = recorder::take_all(ctx, id)?;
    for region in &asked {
        let waited = recorder::of(&records, region).len();
        ensure!(waited == 0, "{waited} pages had to be waited for");
    }
    puppet.touch(region)?;
    let records = recorder::take_all(ctx, id)?;
    let waited = recorder::of(&records, region).len();
    ensure!(waited == 256 - 84, "{waited} faults on the others");
    puppet.check(region)
}

pub fn holes_stay_holes(ctx: &mut Ctx) -> Result<()> {
    let mut scene = Scene::start(ctx, 128)?;
    let untouched = Region::new(6, 64);
    scene.puppet().map(&untouched)?;
    let shared = Region::new(7, 16);
    scene
        .puppet()
        .map_as(&shared, true, libc::MADV_NOHUGEPAGE)?;
    scene
        .puppet()
        .advise_part(&scene.region, 32, 64, libc::MADV_DONTNEED)?;
    scene.region.specs[32..96].fill(Spec::ZERO);
    let nothing = Region::new(8, 32);
    let before = scene.counters()?;
    scene.restore(ctx, &[&untouched, &scene.region, &shared, &nothing])?;
    expect_grown(
        &before,
        &[
            ("prefetch_pages", 64),
            ("prefetch_present", 0),
            ("prefetch_absent", 64 + 64 + 16 + 32),
            ("prefetch_dropped", 0),
        ],
    )?;
    let rss = scene.puppet().smaps(&untouched, "Rss")?;
    ensure!(rss == 0, "{rss} KiB of memory nobody ever touched");
    let rss = scene.puppet().smaps(&scene.region, "Rss")?;
    ensure!(rss == 64 << 2, "{rss} KiB, not that of 64 pages");
    scene.puppet().check(&scene.region)?;
    scene.puppet().check(&untouched)
}

pub fn page_states(ctx: &mut Ctx) -> Result<()> {
    let mut scene = Scene::start(ctx, 96)?;
    let (id, pid) = (scene.world.sandbox.id, scene.puppet().pid);
    let range = scene.region.range();
    let states = |clear| ctx.device().page_states(id, pid, range, clear);
    let expect = |what: &str, found: Vec<u8>, expected: [u8; 3]| {
        for (page, &state) in found.iter().enumerate() {
            let expected = expected[page / 32];
            ensure!(
                state == expected,
                "{what}: page {page} is {state}, not {expected}"
            );
        }
        Ok(())
    };
    expect("swapped out", states(false)?, [PAGE_SWAPPED; 3])?;
    scene
        .puppet()
        .advise_part(&scene.region, 0, 32, libc::MADV_DONTNEED)?;
    scene.region.specs[..32].fill(Spec::ZERO);
    scene.puppet().touch(&scene.region.part(32, 32))?;
    let accessed = PAGE_PRESENT | PAGE_ACCESSED;
    expect("one third each", states(true)?, [0, accessed, PAGE_SWAPPED])?;
    expect("cleared", states(true)?, [0, PAGE_PRESENT, PAGE_SWAPPED])?;
    // Without this a translation that a CPU still has would hide the access.
    let mut large = Region::new(9, 256);
    scene.puppet().map(&large)?;
    write_mixed(scene.puppet(), &mut large, 1)?;
    scene.puppet().unmap(&large)?;
    // The page of zeros is nobody's.
    scene.puppet().touch(&scene.region)?;
    expect("touched", states(false)?, [0, accessed, accessed])?;
    scene.puppet().check(&scene.region)?;

    // A huge page has one accessed bit.
    let mut huge = Region::new(6, 512);
    scene.puppet().map_as(&huge, false, libc::MADV_HUGEPAGE)?;
    scene
        .puppet()
        .write(&mut huge, |_| Some(Spec::new(Kind::Text, 1)))?;
    ensure!(
        scene.puppet().smaps(&huge, "AnonHugePages")? == 2048,
        "no huge page"
    );
    let states = |clear| ctx.device().page_states(id, pid, huge.range(), clear);
    let of_huge = states(true)?;
    ensure!(of_huge.iter().all(|&s| s == accessed), "{of_huge:?}");
    let of_huge = states(false)?;
    ensure!(of_huge.iter().all(|&s| s == PAGE_PRESENT), "{of_huge:?}");
    Ok(())
}

/// Which of the first pages have no accessed bit.
fn untouched(ctx: &Ctx, scene: &Scene, pages: usize) -> Result<Vec<(usize, u8)>> {
    let (id, pid) = (scene.world.sandbox.id, scene.puppet().pid);
    let states = ctx
        .device()
        .page_states(id, pid, scene.region.range(), false)?;
    let states = states.into_iter().take(pages).enumerate();
    Ok(states
        .filter(|(_, state)| state & PAGE_ACCESSED == 0)
        .collect())
}

/// Every page that is touched within the window is a hit, every other a miss, to the page.
pub fn hits_and_misses(ctx: &mut Ctx) -> Result<()> {
    const PAGES: u64 = 512;
    let scene = Scene::start(ctx, PAGES as usize)?;
    for (touched, unmapped) in [(512, 0), (0, 0), (300, 0), (100, 50)] {
        scene.page_out()?;
        let before = scene.counters()?;
        let mut request = scene.request();
        request.hit_window_ms = 4000;
        ctx.device().prefetch(&[scene.region.range()], request)?;
        super::wait_ended(&before, PAGES)?;
        expect_grown(
            &before,
            &[
                ("prefetch_pages", PAGES),
                ("prefetch_hits", 0),
                ("prefetch_misses", 0),
            ],
        )?;
        if touched > 0 {
            scene.puppet().touch(&scene.region.part(0, touched))?;
        }
        if unmapped > 0 {
            let from = PAGES as usize - unmapped;
            let gone = (from, unmapped, libc::MADV_DONTNEED);
            scene
                .puppet()
                .advise_part(&scene.region, gone.0, gone.1, gone.2)?;
        }
        let known = PAGES - unmapped as u64;
        host::wait_until(
            "all pages have had their test",
            Duration::from_secs(20),
            || {
                let tested = before.grown("prefetch_hits")? + before.grown("prefetch_misses")?;
                Ok(tested >= known)
            },
        )?;
        expect_grown(
            &before,
            &[
                ("prefetch_hits", touched as u64),
                ("prefetch_misses", known - touched as u64),
            ],
        )
        .with_context(|| {
            format!(
                "{touched} touched, {unmapped} unmapped: {:?}",
                untouched(ctx, &scene, touched)
            )
        })?;
    }
    Ok(())
}

/// A wait tests all pages before their time is over: nothing of their requests stays.
pub fn tested_before_their_time(ctx: &mut Ctx) -> Result<()> {
    const PAGES: u64 = 256;
    let scene = Scene::start(ctx, PAGES as usize)?;
    let id = scene.world.sandbox.id;
    let objects = || module::value("stats/memory_objects");
    let empty = objects()?;
    for _ in 0..4 {
        scene.page_out()?;
        let before = scene.counters()?;
        let mut request = scene.request();
        request.hit_window_ms = uapi::MAX_PREFETCH_MS;
        ctx.device().prefetch(&[scene.region.range()], request)?;
        super::wait_ended(&before, PAGES)?;
        ensure!(objects()? > empty, "the request takes no memory");
        scene.puppet().touch(&scene.region.part(0, 100))?;
        let (pid, range) = (scene.puppet().pid, scene.region.range());
        ctx.device().page_states(id, pid, range, true)?;
        expect_grown(
            &before,
            &[("prefetch_hits", 100), ("prefetch_misses", PAGES - 100)],
        )?;
        let left = objects()?;
        ensure!(left == empty, "{left} bytes of objects, {empty} before");
    }
    Ok(())
}

/// What nobody expects to be touched says nothing about expectations; what was touched is seen all the same.
pub fn without_a_hit_test(ctx: &mut Ctx) -> Result<()> {
    const PAGES: u64 = 256;
    const TOUCHED: usize = 100;
    let scene = Scene::start(ctx, PAGES as usize)?;
    let id = scene.world.sandbox.id;
    recorder::record(ctx, id, 1024, -1)?;
    let empty = module::value("stats/memory_objects")?;
    let before = scene.counters()?;
    let mut request = scene.request();
    request.hit_window_ms = 1;
    request.flags = uapi::PREFETCH_UNTESTED;
    ctx.device().prefetch(&[scene.region.range()], request)?;
    super::wait_ended(&before, PAGES)?;
    host::wait_until("the request is over", Duration::from_secs(5), || {
        Ok(module::value("stats/memory_objects")? == empty)
    })?;
    scene.puppet().touch(&scene.region.part(0, TOUCHED))?;
    let (pid, range) = (scene.puppet().pid, scene.region.range());
    let states = ctx.device().page_states(id, pid, range, true)?;
    for (page, state) in states.iter().enumerate() {
        let accessed = state & PAGE_ACCESSED != 0;
        ensure!(
            state & PAGE_PRESENT != 0 && accessed == (page < TOUCHED),
            "page {page}: {state}"
        );
    }
    expect_grown(
        &before,
        &[
            ("prefetch_pages", PAGES),
            ("prefetch_untested", PAGES),
            ("prefetch_hits", 0),
            ("prefetch_misses", 0),
        ],
    )?;
    let records = recorder::take_all(ctx, id)?;
    let about = recorder::of(&records, &scene.region).len();
    ensure!(about == 0, "{about} records");
    scene.puppet().check(&scene.region)
}

pub fn every_process_of_a_sandbox(ctx: &mut Ctx) -> Result<()> {
    let mut scene = Scene::start(ctx, 64)?;
    let cgroup = scene.world.sandbox.cgroup.clone();
    let other = scene.world.template.spawn(&cgroup)?;
    let mut theirs = Region::new(5, 64);
    other.map(&theirs)?;
    write_mixed(&other, &mut theirs, 9)?;
    page_out(&cgroup, &other, &theirs)?;
    scene.page_out()?;
    let before = scene.counters()?;
    let mut request = scene.request();
    request.pid = other.pid;
    ctx.device().prefetch(&[theirs.range()], request)?;
    super::wait_ended(&before, 64)?;
    expect_grown(&before, &[("prefetch_pages", 64)])?;
    ensure!(other.pages_out(&theirs)? == 0, "not restored");
    ensure!(
        scene.puppet().pages_out(&scene.region)? == 64,
        "restored in another process"
    );
    scene.restore(ctx, &[&scene.region])?;
    expect_grown(&before, &[("prefetch_pages", 128)])?;
    other.check(&theirs)?;
    scene.puppet().check(&scene.region)
}
