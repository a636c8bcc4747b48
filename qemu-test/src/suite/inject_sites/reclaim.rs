// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reclaim and the worker, which allocate on nobody's request.

use anyhow::{ensure, Result};

use super::super::fixture::module::{self, Counters};
use super::super::fixture::page::{Kind, Spec};
use super::super::fixture::puppet::Region;
use super::super::fixture::{cgroup, clean_module, host, page_out, write_mixed, Ctx};
use super::{Search, Which, PATIENCE, TEXT};

/// Pages go out in reclaim: those whose payload or table entry finds no memory to the swap device.
pub fn stores(ctx: &mut Ctx, search: &mut Search) -> Result<()> {
    // The table is a tree that needs no node for the first slots of the first swap area.
    host::zram_swap("8M")?;
    ctx.swap()?;
    let world = ctx.world_without_swap(16)?;
    let mut region = Region::new(5, 64);
    let pages = region.pages() as u64;
    let text = module::section(TEXT)?;
    let memory = memory_of_entries()?;
    let mut round = 0;
    search.each("store", Which::All, |faults, site| {
        if site.section != TEXT {
            return Ok(0);
        }
        round += 1;
        world.puppet.map(&region)?;
        write_mixed(&world.puppet, &mut region, round)?;
        let before = Counters::global()?;
        let failing = faults.at(text + site.offset)?;
        host::wait_until("the pages should go out", PATIENCE, || {
            world.puppet.page_out(&region, false)?;
            Ok(world.puppet.pages_out(&region)? as u64 == pages)
        })?;
        let failed = failing.failed()?;
        drop(failing);
        let (stored, declined) = (before.grown("stores")?, before.grown("declined_nomem")?);
        ensure!(
            stored + declined >= pages && (failed > 0) == (declined > 0),
            "{stored} pages stored, {declined} declined, {failed} allocations failed"
        );
        let now = Counters::global()?;
        let entries = now.get("entries")?;
        ensure!(entries == now.sum("pages_"), "{entries} entries: {now:?}");
        world.puppet.check(&region)?;
        ensure!(before.grown("load_errors")? == 0, "load errors");
        world.puppet.unmap(&region)?;
        module::wait_entries(0)?;
        host::wait_until("the memory should be given back", PATIENCE, || {
            Ok(memory_of_entries()? == memory)
        })?;
        Ok(failed)
    })?;
    cgroup::remove_tree(world.sandbox.cgroup.path())?;
    cgroup::remove_tree(world.template.cgroup.path())?;
    clean_module(ctx.device())
}

/// What the store occupies, without the indexes, which stay for as long as group and template.
fn memory_of_entries() -> Result<u64> {
    let counters = Counters::global()?;
    Ok(counters.get("memory_total")? - counters.get("memory_sketches")?)
}

/// The worker copies template pages that lose their owner, and frees sandboxes that are detached.
pub fn worker(ctx: &mut Ctx, search: &mut Search) -> Result<()> {
    const PAGES: usize = 8;
    let text = module::section(TEXT)?;
    search.each("worker", Which::All, |faults, site| {
        if site.section != TEXT {
            return Ok(0);
        }
        let mut template = ctx.template(PAGES)?;
        let copied = format!("templates/{}/pages_copied", template.name);
        let sandbox = ctx.sandbox("box", &template.name)?;
        let idle = ctx.sandbox("idle", &template.name)?;
        let puppet = template.spawn(&sandbox.cgroup)?;
        // Needs the template's pages to come back.
        let mut region = template.region.clone();
        let near = |i: usize| Some(Spec::new(Kind::Heap, i as u32).edited(2, i as u32));
        puppet.write(&mut region, near)?;
        page_out(&sandbox.cgroup, &puppet, &region)?;

        let is_idle_gone = || Ok(!module::sysfs(&format!("sandboxes/{}", idle.id)).exists());
        let are_copied = || Ok(module::value(&copied)? == PAGES as u64);
        let failing = faults.at(text + site.offset)?;
        template.holder.kill()?;
        template.zygote.kill()?;
        ctx.device().detach(idle.id)?;
        host::wait_until("the worker should run", PATIENCE, || {
            Ok(failing.failed()? > 0 || is_idle_gone()? && are_copied()?)
        })?;
        let failed = failing.failed()?;
        drop(failing);
        // A later round does what this one could not.
        host::wait_until("the sandbox should go", PATIENCE, is_idle_gone)?;
        host::wait_until("the pages should be copied", PATIENCE, are_copied)?;
        puppet.check(&region)?;
        for cgroup in [&sandbox.cgroup, &idle.cgroup, &template.cgroup] {
            cgroup::remove_tree(cgroup.path())?;
        }
        module::wait_entries(0)?;
        clean_module(ctx.device())?;
        Ok(failed)
    })
}
