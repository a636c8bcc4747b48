// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Calls from user space.

use std::fs;
use std::os::fd::AsRawFd;

use agentzip_uapi as uapi;
use anyhow::{ensure, Context, Result};

use super::super::dictionary::{add, dictionary, retire, sample};
use super::super::fixture::module;
use super::super::fixture::page::{Kind, Spec};
use super::super::fixture::puppet::{Family, Region};
use super::super::fixture::{cgroup, clean_module, host, Ctx};
use super::super::recorder::{record, take};
use super::super::template_file::calls::{add_part, range, set_ranges, NONE};
use super::super::template_file::held::memfd_written_by;
use super::super::template_file::restored::{disk_file, Restored};
use super::{Search, Which, PATIENCE};

fn no_template() -> Result<()> {
    ensure!(module::list("templates")?.is_empty(), "a template is left");
    let bytes = module::value("stats/memory_template_pages")?;
    ensure!(bytes == 0, "{bytes} bytes of template pages are left");
    Ok(())
}

/// Templates and sandboxes come, and do not come.
pub fn templates_and_sandboxes(ctx: &Ctx, search: &mut Search) -> Result<()> {
    let device = ctx.device();
    let hold = ctx.holder_cgroup("hold")?;
    let (mut family, zygote, shared) = ctx.zygote(64, &hold)?;
    let holder = family.fork(&zygote)?;
    // Pages of its own are copied, those that it shares are kept by reference.
    let mut own = Region::new(9, 8);
    holder.map(&own)?;
    holder.write(&mut own, |i| Some(Spec::new(Kind::Heap, i as u32)))?;
    host::drain_page_batches()?;
    let ranges = [shared.range(), own.range()];
    let add = || device.template_add("t", holder.pid, &ranges);
    let remove = || device.template_remove("t").map_err(|(e, _)| e);
    search.each_call(
        "template add",
        Which::All,
        &[],
        add,
        |added| {
            let pages = added.pages_referenced + added.pages_copied;
            ensure!(pages == (shared.pages() + own.pages()) as u64, "{added:?}");
            Ok(remove()?)
        },
        no_template,
    )?;
    add()?;
    let cgroup = ctx.cgroup("box")?;
    let id = cgroup.id()?;
    // A detached sandbox that is not yet gone goes with the next attach, or comes back to life.
    search.each_call(
        "attach",
        Which::All,
        &[],
        || device.attach(cgroup.path(), "t"),
        |_| Ok(device.detach(id).map(drop)?),
        || {
            for name in module::list("sandboxes")? {
                let attached = module::value(&format!("sandboxes/{name}/attached"));
                // It may go at this moment.
                ensure!(attached.unwrap_or(0) == 0, "sandbox {name} is attached");
            }
            Ok(())
        },
    )?;
    for cgroup in [&hold, &cgroup] {
        cgroup::remove_tree(cgroup.path())?;
    }
    clean_module(device)
}

/// Dictionaries come, and do not come; samples for them are taken, or not.
pub fn dictionaries(ctx: &mut Ctx, search: &mut Search) -> Result<()> {
    let mut world = ctx.world_without_swap(16)?;
    let id = world.sandbox.id;
    let content = dictionary();
    search.each_call(
        "dictionary add",
        Which::All,
        &[],
        || add(ctx, id, &content),
        |_| Ok(retire(ctx, id).map(drop)?),
        || {
            host::wait_until("no dictionary should be left", PATIENCE, || {
                Ok(module::value("stats/memory_dictionaries")? == 0)
            })
        },
    )?;
    world.store_mixed(1)?;
    search.each_call(
        "dictionary samples",
        Which::All,
        &[],
        || sample(ctx, id, 16, 0),
        |_| Ok(()),
        || Ok(()),
    )?;
    world.check()?;
    for cgroup in [&world.sandbox.cgroup, &world.template.cgroup] {
        cgroup::remove_tree(cgroup.path())?;
    }
    module::wait_entries(0)?;
    clean_module(ctx.device())
}

/// Page faults are recorded, and are not; the records are read, or not.
pub fn recording(ctx: &mut Ctx, search: &mut Search) -> Result<()> {
    let world = ctx.world_without_swap(16)?;
    let id = world.sandbox.id;
    let objects = module::value("stats/memory_objects")?;
    search.each_call(
        "record",
        Which::All,
        &[],
        || record(ctx, id, 256, -1),
        |()| Ok(record(ctx, id, 0, -1)?),
        || {
            let now = module::value("stats/memory_objects")?;
            ensure!(now == objects, "{now} bytes of objects, not {objects}");
            Ok(())
        },
    )?;
    record(ctx, id, 256, -1)?;
    search.each_call(
        "faults read",
        Which::All,
        &[],
        || take(ctx, id, 16),
        |_| Ok(()),
        || Ok(()),
    )?;
    for cgroup in [&world.sandbox.cgroup, &world.template.cgroup] {
        cgroup::remove_tree(cgroup.path())?;
    }
    module::wait_entries(0)?;
    clean_module(ctx.device())
}

/// Pages are asked for, and are not; their states are told, or not.
pub fn prefetching(ctx: &mut Ctx, search: &mut Search) -> Result<()> {
    let world = ctx.world_without_swap(16)?;
    let (id, pid) = (world.sandbox.id, world.puppet.pid);
    let range = world.region.range();
    let request = uapi::Prefetch {
        cgroup_id: id,
        pid,
        ..Default::default()
    };
    let objects = module::value("stats/memory_objects")?;
    // Nothing is out, so that a request is soon over.
    let over = || {
        host::wait_until("the request should be over", PATIENCE, || {
            Ok(module::value("stats/memory_objects")? == objects)
        })
    };
    search.each_call(
        "prefetch",
        Which::All,
        &[],
        || ctx.device().prefetch(&[range], request),
        |_| Ok(()),
        over,
    )?;
    search.each_call(
        "page states",
        Which::All,
        &[],
        || ctx.device().page_states(id, pid, range, false),
        |_| Ok(()),
        || Ok(()),
    )?;
    for cgroup in [&world.sandbox.cgroup, &world.template.cgroup] {
        cgroup::remove_tree(cgroup.path())?;
    }
    module::wait_entries(0)?;
    clean_module(ctx.device())
}

/// Templates come from files, and do not come. Then ranges of a sandbox.
pub fn files(ctx: &Ctx, search: &mut Search) -> Result<()> {
    const PAGES: usize = 16;
    let device = ctx.device();
    let owner = ctx.cgroup("owner")?;
    let (_family, puppet) = Family::start()?;
    owner.enter(puppet.pid)?;
    let sealed = memfd_written_by(&puppet, PAGES)?;
    let (path, on_disk) = disk_file(PAGES)?;
    on_disk.sync_all()?;
    // Pages that are in swap, or on the disk only, need memory to be taken.
    let page_out = || {
        owner.reclaim_all()?;
        host::drop_caches()
    };
    for (what, fd) in [
        ("template add of a sealed memfd", sealed.as_raw_fd()),
        ("template add of a file", on_disk.as_raw_fd()),
    ] {
        page_out()?;
        search.each_call(
            what,
            Which::All,
            &[],
            || add_part(device, "t", fd, 0, 0, NONE),
            |taken| {
                let pages = taken.referenced + taken.copied;
                ensure!(pages == PAGES as u64, "{taken:?}");
                Ok(device.template_remove("t").map_err(|(e, _)| e)?)
            },
            || {
                no_template()?;
                page_out()
            },
        )?;
    }

    add_part(device, "t", sealed.as_raw_fd(), 0, 0, NONE)?;
    let restored = Restored::start(ctx, "t", 0, PAGES)?;
    let id = restored.sandbox.id;
    let ranges = [range(&restored.region, 0)];
    search.each_call(
        "ranges",
        Which::All,
        &[],
        || set_ranges(ctx, id, &ranges),
        Ok,
        || {
            let count = module::value(&format!("sandboxes/{id}/ranges"))?;
            ensure!(count == 1, "{count} ranges instead of 1");
            Ok(())
        },
    )?;
    restored.check()?;
    fs::remove_file(&path).with_context(|| format!("remove {path}"))?;
    for cgroup in [&restored.sandbox.cgroup, &owner] {
        cgroup::remove_tree(cgroup.path())?;
    }
    module::wait_entries(0)?;
    clean_module(device)
}
