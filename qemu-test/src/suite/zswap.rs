// SPDX-License-Identifier: GPL-2.0 OR MIT

//! zswap is on, holds pages of a sandbox from before the attach, and writes them back later.

use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};

use super::fixture::cgroup::Cgroup;
use super::fixture::module::Counters;
use super::fixture::page::{Kind, Spec};
use super::fixture::puppet::{Puppet, Region};
use super::fixture::{host, mixed, page_out, write_mixed, Ctx, Sandbox, Template};
use super::runner::Test;

macro_rules! test {
    ($f:ident) => {
        Test {
            name: concat!("zswap.", stringify!($f)),
            timeout_s: 60,
            run: $f,
        }
    };
}

/// The tests of this file.
pub const TESTS: &[Test] = &[
    test!(only_tagged),
    test!(before_attach_loaded),
    test!(before_attach_then_stored),
    test!(before_attach_then_declined),
    test!(stale_then_stored_then_written_back),
    test!(stale_then_declined_then_written_back),
    test!(declined_goes_to_zswap_or_disk),
    test!(declined_without_writeback),
    test!(after_detach),
    test!(huge_page),
    test!(mixed_load),
];

/// zswap enabled for the time of a test.
struct Zswap;

impl Zswap {
    fn enable() -> Result<Zswap> {
        host::set_zswap_param("enabled", "Y")?;
        ensure!(
            host::zswap_param("enabled")? == "Y",
            "zswap cannot be enabled"
        );
        Ok(Zswap)
    }

    /// Everything in zswap goes to disk: no store is accepted any more, and the refusal starts
    /// zswap's own worker. `trigger` is an unattached cgroup with a process to swap.
    fn write_back_all(&self, trigger: &Cgroup, puppet: &Puppet, region: &Region) -> Result<()> {
        let before = host::vmstat("zswpwb")?;
        let had = host::zswap_stored_pages()?;
        ensure!(had > 0, "zswap is empty already");
        host::set_zswap_param("max_pool_percent", "0")?;
        for _ in 0..4 {
            puppet.check(region)?;
            page_out(trigger, puppet, region)?;
            std::thread::sleep(Duration::from_millis(100));
        }
        let done = host::wait_until("zswap should write back", Duration::from_secs(10), || {
            Ok(host::zswap_stored_pages()? == 0)
        });
        host::set_zswap_param("max_pool_percent", "20")?;
        let written = host::vmstat("zswpwb")? - before;
        println!("# zswap had {had} pages and wrote {written} back");
        done
    }
}

impl Drop for Zswap {
    fn drop(&mut self) {
        // The runner's recovery tries again after a failed test.
        let _ = host::set_zswap_param("enabled", "N");
    }
}

/// A process whose cgroup is not attached yet, and a bystander to trigger zswap with.
struct Scene {
    zswap: Zswap,
    template: Template,
    cgroup: Cgroup,
    puppet: Puppet,
    region: Region,
    other: Cgroup,
    bystander: Puppet,
    other_region: Region,
}

impl Scene {
    fn new(ctx: &mut Ctx, pages: usize) -> Result<Scene> {
        ctx.swap()?;
        let zswap = Zswap::enable()?;
        let mut template = ctx.template(pages)?;
        let cgroup = ctx.cgroup("box")?;
        let puppet = template.spawn(&cgroup)?;
        let mut region = template.region.clone();
        write_mixed(&puppet, &mut region, 1)?;
        let other = ctx.cgroup("other")?;
        let bystander = template.spawn(&other)?;
        let mut other_region = Region::new(5, 32);
        bystander.map(&other_region)?;
        write_mixed(&bystander, &mut other_region, 2)?;
        Ok(Scene {
            zswap,
            template,
            cgroup,
            puppet,
            region,
            other,
            bystander,
            other_region,
        })
    }

    /// All pages of the process go to zswap.
    fn to_zswap(&self) -> Result<()> {
        let before = self.cgroup.stat("zswpout")?;
        page_out(&self.cgroup, &self.puppet, &self.region)?;
        let pages = self.region.pages() as u64;
        let out = self.cgroup.stat_reaches("zswpout", before + pages)? - before;
        ensure!(out >= pages, "only {out} pages went to zswap");
        Ok(())
    }

    /// Pages that are in use *and* still in zswap: another thread waits for each page while it
    /// is being stored, so that reclaim cannot let go of it afterwards. The test module slows
    /// the store down enough for that; where that thread does not get to run meanwhile, more.
    fn make_stale(&self) -> Result<()> {
        /// How many the tests want.
        const WANTED: u64 = 16;
        // Slots first, then pages that are clean in the swap cache with zswap's copy gone.
        self.puppet.check(&self.region)?;
        let before = host::zswap_stored_pages()?;
        let out_before = self.puppet.pages_out(&self.region)? as u64;
        let mut stale = 0;
        for slow_ms in [10, 20, 40, 80, 160] {
            host::load_testmod(&format!("slow_comm=azt-slow slow_ms={slow_ms}"))?;
            self.puppet.name("azt-slow")?;
            let result = self.puppet.page_out(&self.region, true);
            self.puppet.name("azt-quick")?;
            host::unload_testmod()?;
            result?;
            let stored = host::zswap_stored_pages()?.saturating_sub(before);
            let out = (self.puppet.pages_out(&self.region)? as u64).saturating_sub(out_before);
            println!("# {stored} pages are in zswap, {out} of them out, stores took {slow_ms} ms");
            stale = stored.saturating_sub(out);
            if stale >= WANTED {
                return Ok(());
            }
        }
        bail!("only {stale} pages are in use and in zswap");
    }

    fn attach(&self, ctx: &Ctx) -> Result<Sandbox> {
        let id = ctx
            .device()
            .attach(self.cgroup.path(), &self.template.name)?;
        Ok(Sandbox {
            cgroup: self.cgroup.clone(),
            id,
        })
    }

    fn write_back_all(&self) -> Result<()> {
        self.zswap
            .write_back_all(&self.other, &self.bystander, &self.other_region)
    }
}

fn only_tagged(ctx: &mut Ctx) -> Result<()> {
    let mut s = Scene::new(ctx, 128)?;
    let sandbox = s.attach(ctx)?;
    let before = Counters::global()?;
    page_out(&s.other, &s.bystander, &s.other_region)?;
    let stores = before.grown("stores")?;
    let to_zswap = s.other.stat_reaches("zswpout", 32)?;
    ensure!(stores == 0, "{stores} pages of another cgroup were stored");
    ensure!(
        to_zswap >= 32,
        "only {to_zswap} pages of another cgroup went to zswap"
    );
    page_out(&s.cgroup, &s.puppet, &s.region)?;
    let stores = before.grown("stores")?;
    ensure!(stores >= 128, "{stores} pages of the sandbox were stored");
    let (to_zswap, to_disk) = (
        sandbox.cgroup.stat("zswpout")?,
        sandbox.cgroup.stat("pswpout")?,
    );
    ensure!(
        (to_zswap, to_disk) == (0, 0),
        "{to_zswap} to zswap, {to_disk} to disk"
    );
    s.bystander.check(&s.other_region)?;
    s.puppet.check(&s.region)?;
    s.puppet.write(&mut s.region, |i| Some(mixed(i, 3)))?;
    page_out(&s.cgroup, &s.puppet, &s.region)?;
    s.puppet.check(&s.region)
}

fn before_attach_loaded(ctx: &mut Ctx) -> Result<()> {
    let s = Scene::new(ctx, 128)?;
    s.to_zswap()?;
    s.attach(ctx)?;
    s.puppet.check(&s.region)?;
    page_out(&s.cgroup, &s.puppet, &s.region)?;
    s.puppet.check(&s.region)
}

fn before_attach_then_stored(ctx: &mut Ctx) -> Result<()> {
    let mut s = Scene::new(ctx, 128)?;
    s.to_zswap()?;
    let sandbox = s.attach(ctx)?;
    s.puppet.check(&s.region)?;
    write_mixed(&s.puppet, &mut s.region, 3)?;
    page_out(&s.cgroup, &s.puppet, &s.region)?;
    let entries = sandbox.counters()?.get("entries")?;
    ensure!(entries >= 128, "{entries} entries");
    page_out(&s.other, &s.bystander, &s.other_region)?;
    s.write_back_all()?;
    s.puppet.check(&s.region)
}

fn before_attach_then_declined(ctx: &mut Ctx) -> Result<()> {
    let mut s = Scene::new(ctx, 128)?;
    s.to_zswap()?;
    s.attach(ctx)?;
    s.puppet.check(&s.region)?;
    let noise = |i: usize| Some(Spec::new(Kind::Random, i as u32));
    s.puppet.write(&mut s.region, noise)?;
    page_out(&s.cgroup, &s.puppet, &s.region)?;
    page_out(&s.other, &s.bystander, &s.other_region)?;
    s.write_back_all()?;
    s.puppet.check(&s.region)
}

/// zswap still has an old copy of a page that we then store: were it left there, its write-back
/// would bring the old bytes back.
fn stale_then_stored_then_written_back(ctx: &mut Ctx) -> Result<()> {
    let mut s = Scene::new(ctx, 64)?;
    s.to_zswap()?;
    s.make_stale()?;
    let sandbox = s.attach(ctx)?;
    s.puppet.touch(&s.region)?;
    write_mixed(&s.puppet, &mut s.region, 5)?;
    page_out(&s.cgroup, &s.puppet, &s.region)?;
    let entries = sandbox.counters()?.get("entries")?;
    ensure!(entries >= 64, "{entries} entries");
    page_out(&s.other, &s.bystander, &s.other_region)?;
    s.write_back_all()?;
    s.puppet.check(&s.region)
}

/// The same where we decline: the page goes to disk and the old copy must not win.
fn stale_then_declined_then_written_back(ctx: &mut Ctx) -> Result<()> {
    let mut s = Scene::new(ctx, 64)?;
    s.to_zswap()?;
    s.make_stale()?;
    s.attach(ctx)?;
    s.puppet.touch(&s.region)?;
    let noise = |i: usize| Some(Spec::new(Kind::Random, i as u32));
    s.puppet.write(&mut s.region, noise)?;
    page_out(&s.cgroup, &s.puppet, &s.region)?;
    s.puppet.check(&s.region)?;
    page_out(&s.cgroup, &s.puppet, &s.region)?;
    page_out(&s.other, &s.bystander, &s.other_region)?;
    s.write_back_all()?;
    s.puppet.check(&s.region)
}

fn declined_goes_to_zswap_or_disk(ctx: &mut Ctx) -> Result<()> {
    let mut s = Scene::new(ctx, 128)?;
    s.attach(ctx)?;
    for round in 0..3 {
        s.puppet.write(&mut s.region, |i| {
            let noise = Spec::new(Kind::Random, i as u32 + round * 1000);
            Some(if (i as u32 + round) % 2 == 0 {
                noise
            } else {
                mixed(i, round)
            })
        })?;
        page_out(&s.cgroup, &s.puppet, &s.region)?;
        s.puppet.check(&s.region)?;
    }
    let to_disk = s.cgroup.stat("pswpout")?;
    let to_zswap = s
        .cgroup
        .stat_reaches("zswpout", (3 * 60u64).saturating_sub(to_disk))?;
    let elsewhere = to_zswap + to_disk;
    ensure!(
        elsewhere >= 3 * 60,
        "only {elsewhere} declined pages went to the host's path"
    );
    Ok(())
}

/// memory.zswap.writeback=0 forbids the disk: what is declined stays in memory.
fn declined_without_writeback(ctx: &mut Ctx) -> Result<()> {
    let mut s = Scene::new(ctx, 128)?;
    let sandbox = s.attach(ctx)?;
    s.cgroup.write("memory.zswap.writeback", "0")?;
    s.puppet.write(&mut s.region, |i| {
        let kind = if i % 2 == 0 { Kind::Random } else { Kind::Text };
        Some(Spec::new(kind, i as u32))
    })?;
    let before = Counters::global()?;
    s.cgroup.reclaim_all()?;
    let (stores, declined) = (
        before.grown("stores")?,
        before.grown("declined_incompressible")?,
    );
    ensure!(
        stores >= 64,
        "only {stores} of 64 compressible pages were stored"
    );
    ensure!(declined >= 64, "only {declined} of 64 others were declined");
    // Declined pages keep their slot and stay in the swap cache.
    let cached = s.cgroup.stat_reaches("swapcached", 60 * 4096)? / 4096;
    ensure!(
        cached >= 60,
        "{cached} of 64 declined pages stayed in memory"
    );
    let to_disk = sandbox.cgroup.stat("pswpout")?;
    ensure!(
        to_disk == 0,
        "{to_disk} pages went to disk against the rule"
    );
    s.puppet.check(&s.region)
}

/// Our entry, then a detach, then the same slots go to zswap, whose copy is the newer one.
fn after_detach(ctx: &mut Ctx) -> Result<()> {
    let mut s = Scene::new(ctx, 128)?;
    let sandbox = s.attach(ctx)?;
    page_out(&s.cgroup, &s.puppet, &s.region)?;
    s.puppet.check(&s.region)?;
    ctx.device().detach(sandbox.id)?;
    write_mixed(&s.puppet, &mut s.region, 6)?;
    s.to_zswap()?;
    s.puppet.check(&s.region)?;
    write_mixed(&s.puppet, &mut s.region, 7)?;
    s.to_zswap()?;
    s.write_back_all()?;
    s.puppet.check(&s.region)?;
    // And attached again.
    s.attach(ctx).context("attach again")?;
    write_mixed(&s.puppet, &mut s.region, 8)?;
    page_out(&s.cgroup, &s.puppet, &s.region)?;
    s.puppet.check(&s.region)
}

fn huge_page(ctx: &mut Ctx) -> Result<()> {
    let s = Scene::new(ctx, 16)?;
    s.attach(ctx)?;
    let mut region = Region::new(6, 512);
    s.puppet.map_as(&region, false, libc::MADV_HUGEPAGE)?;
    for round in 0..2 {
        s.puppet.write(&mut region, |i| {
            let noise = Spec::new(Kind::Random, i as u32);
            Some(if round == 1 && i == 77 {
                noise
            } else {
                mixed(i, round)
            })
        })?;
        page_out(&s.cgroup, &s.puppet, &region)?;
        s.puppet.check(&region)?;
    }
    Ok(())
}

fn mixed_load(ctx: &mut Ctx) -> Result<()> {
    let mut s = Scene::new(ctx, 128)?;
    s.attach(ctx)?;
    let mut puppets = Vec::new();
    for (i, cgroup) in [&s.cgroup, &s.other, &s.cgroup, &s.other]
        .into_iter()
        .enumerate()
    {
        let puppet = s.template.spawn(cgroup)?;
        puppet.begin_churn(&s.template.region, 4000, 40 + i as u64)?;
        puppets.push(puppet);
    }
    let end = std::time::Instant::now() + Duration::from_millis(3800);
    let mut small = false;
    while std::time::Instant::now() < end {
        s.cgroup.reclaim(2 << 20)?;
        s.other.reclaim(2 << 20)?;
        // zswap fills up and empties again meanwhile.
        small = !small;
        host::set_zswap_param("max_pool_percent", if small { "0" } else { "20" })?;
    }
    host::set_zswap_param("max_pool_percent", "20")?;
    for puppet in puppets {
        puppet.end_churn()?;
    }
    s.puppet.check(&s.region)?;
    s.bystander.check(&s.other_region)
}
