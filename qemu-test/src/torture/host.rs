// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What happens to all sandboxes, one operation after the other, while they work: none of it may change
//! what they hold.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::agent::ended;
use super::count::{Counts, Ended};
use super::random::Random;
use super::recipe::Swap;
use super::Shared;
use crate::suite::daemon::Daemon;
use crate::suite::fixture::module;
use crate::suite::fixture::page::{Kind, Spec};
use crate::suite::fixture::puppet::{Puppet, Region};
use crate::suite::fixture::{host, Ctx};
use crate::suite::{dictionary, sys};

/// Bytes of the zram disk.
const ZRAM: &str = "256M";
/// Pages of the swap disk.
const DISK: u32 = 64 << 10;
/// Files of the kernel.
const THP: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
const KSM: &str = "/sys/kernel/mm/ksm";
const PROCESSOR: &str = "/sys/devices/system/cpu/cpu1/online";
const DAMON: &str = "/sys/module/damon_reclaim/parameters";
const DAMON_STAT: &str = "/sys/module/damon_stat/parameters/enabled";

/// Whoever does it.
pub struct Host<'a> {
    shared: &'a Shared<'a>,
    random: Random,
    daemon: Option<Daemon>,
    extra: Extra,
    /// What was done.
    pub counts: Counts,
}

/// A process whose pages become templates that nobody uses.
struct Extra {
    holder: Puppet,
    region: Region,
}

/// What the host can do.
type Operation = fn(&mut Host<'_>) -> Result<Ended>;

/// With how often each is chosen, as a share of the sum.
const OPERATIONS: &[((&str, Operation), usize)] = &[
    (("host-reclaim", reclaim), 20),
    (("host-pressure", pressure), 4),
    (("second-look", second_look), 8),
    (("stores-off-and-on", stores), 3),
    (("prefetch-off-and-on", prefetch), 2),
    (("store-limit", limit), 4),
    (("detach-and-attach", attach), 8),
    (("template-add", template), 4),
    (("dictionary-add", dictionary_add), 6),
    (("dictionary-retire", dictionary_retire), 3),
    (("zswap-switch", zswap), 4),
    (("drop-caches", drop_caches), 4),
    (("compact", compact), 3),
    (("ksm", ksm), 4),
    (("thp", thp), 4),
    (("processor-off-and-on", processor), 1),
    (("swapoff", swapoff), 2),
    (("daemon-kill", daemon_kill), 2),
];

/// The names of all of them.
pub fn names() -> impl Iterator<Item = &'static str> {
    OPERATIONS.iter().map(|((name, _), _)| *name)
}

impl<'a> Host<'a> {
    /// Prepares what its operations need; `daemon`: the one that decides about phases.
    pub fn start(shared: &'a Shared<'a>, seed: u64, daemon: Option<Daemon>) -> Result<Host<'a>> {
        let ctx = shared.ctx;
        let (_, holder, region) = ctx.zygote(64, &ctx.holder_cgroup("extra")?)?;
        Ok(Host {
            shared,
            random: Random::new(seed, 1),
            daemon,
            extra: Extra { holder, region },
            counts: Counts::default(),
        })
    }

    /// Does what it chooses until the time is over, or another has failed.
    pub fn run(&mut self) -> Result<()> {
        let worked = self.work();
        // Also when something failed: else who waits for a process that the daemon holds would do so for good.
        let ended = self.end_daemon();
        worked.and(ended)
    }

    fn work(&mut self) -> Result<()> {
        while Instant::now() < self.shared.end && !self.shared.failed.load(Ordering::Relaxed) {
            let (name, operation) = *self.random.weighted(OPERATIONS);
            let ended = operation(self).with_context(|| format!("host, {name}"));
            self.counts.add(name, self.shared.note(ended)?);
            // The sandboxes are what most of the time is for.
            std::thread::sleep(Duration::from_millis(self.random.below(40) as u64));
        }
        Ok(())
    }

    /// Kills the daemon, if there is to be one, and lets go what it held.
    fn end_daemon(&mut self) -> Result<()> {
        if !self.shared.recipe.daemon {
            return Ok(());
        }
        if let Some(daemon) = self.daemon.take() {
            daemon.kill().context("kill the daemon")?;
        }
        for number in 0..self.shared.sandboxes() {
            let sandbox = self.shared.lock_sandbox(number);
            sandbox.cgroup.write("cgroup.freeze", "0")?;
        }
        Ok(())
    }

    /// The number of a sandbox.
    fn sandbox(&mut self) -> usize {
        self.random.below(self.shared.sandboxes())
    }

    /// Writes a setting of the module off and on again.
    fn off_and_on(&mut self, name: &str) -> Result<Ended> {
        host::write(module::sysfs(name), "0")?;
        std::thread::sleep(Duration::from_millis(self.random.below(100) as u64));
        host::write(module::sysfs(name), "1")?;
        Ok(Ended::Done)
    }
}

/// Enables the round's swap device.
pub fn swap_on(ctx: &Ctx, swap: Swap) -> Result<std::path::PathBuf> {
    match swap {
        Swap::Disk => ctx.swap_of(DISK),
        Swap::Zram => {
            host::zram_swap(ZRAM)?;
            Ok("/dev/zram0".into())
        }
    }
}

/// Has DAMON take out what is not accessed for a moment, or ends that. The debug kernel has no DAMON.
pub fn damon(on: bool) -> Result<()> {
    const SETTINGS: &[(&str, &str)] = &[
        ("min_age", "200000"),
        ("quota_ms", "50"),
        ("quota_reset_interval_ms", "200"),
        ("wmarks_high", "1000"),
        ("wmarks_mid", "999"),
        ("wmarks_low", "0"),
    ];
    if !Path::new(DAMON).exists() {
        return Ok(());
    }
    if on {
        // One user keeps all others out (EBUSY), and on Debian's kernel this one begins at boot.
        if Path::new(DAMON_STAT).exists() {
            host::write(DAMON_STAT, "N")?;
        }
        for (name, value) in SETTINGS {
            host::write(Path::new(DAMON).join(name), value)?;
        }
    }
    host::write(Path::new(DAMON).join("enabled"), if on { "Y" } else { "N" })
}

/// Puts back what operations change.
pub fn reset() -> Result<()> {
    if Path::new(PROCESSOR).exists() {
        host::write(PROCESSOR, "1")?;
    }
    host::write(Path::new(KSM).join("run"), "0")?;
    host::write(THP, "madvise")?;
    damon(false)
}

/// What a cgroup that has just been removed says.
const REMOVED: &[i32] = &[libc::ENOENT, libc::ENODEV];

fn reclaim(host: &mut Host<'_>) -> Result<Ended> {
    let bytes = 1 << (18 + host.random.below(6));
    let number = host.sandbox();
    let sandbox = host.shared.sandbox(number);
    ended(sandbox.cgroup.reclaim(bytes), REMOVED)
}

/// Reclaim that begins above the sandboxes, file cache and all.
fn pressure(host: &mut Host<'_>) -> Result<Ended> {
    let file = host.shared.ctx.root.path().join("memory.reclaim");
    // EAGAIN: there was less.
    ended(fs::write(file, "8M").map_err(Into::into), &[libc::EAGAIN])
}

fn second_look(host: &mut Host<'_>) -> Result<Ended> {
    module::set_second_look(host.random.chance(70))?;
    Ok(Ended::Done)
}

fn stores(host: &mut Host<'_>) -> Result<Ended> {
    host.off_and_on("enabled")
}

fn prefetch(host: &mut Host<'_>) -> Result<Ended> {
    host.off_and_on("prefetch")
}

fn limit(host: &mut Host<'_>) -> Result<Ended> {
    let bound = match host.random.chance(60) {
        true => host::meminfo("MemTotal")? / 5,
        false => 1 << (18 + host.random.below(8)),
    };
    host::write(module::sysfs("max_bytes"), &bound.to_string())?;
    Ok(Ended::Done)
}

/// Detaches a sandbox, and attaches it again at once or later.
fn attach(host: &mut Host<'_>) -> Result<Ended> {
    let number = host.sandbox();
    let mut sandbox = host.shared.lock_sandbox(number);
    if !sandbox.attached {
        return sandbox.attach(host.shared);
    }
    let detached = host.shared.ctx.device().detach(sandbox.id);
    // ENOENT: the daemon, or the removal of its cgroup, was first.
    let ended = ended(detached.map_err(Into::into), &[libc::ENOENT])?;
    sandbox.attached = false;
    if host.random.chance(60) {
        sandbox.attach(host.shared)?;
    }
    Ok(ended)
}

/// Registers a template that no sandbox uses, and removes it.
fn template(host: &mut Host<'_>) -> Result<Ended> {
    const NAME: &str = "extra";
    let extra = &host.extra;
    let device = host.shared.ctx.device();
    let added = device.template_add(NAME, extra.holder.pid, &[extra.region.range()]);
    let ended = ended(added.map_err(Into::into), &[libc::ENOMEM])?;
    if ended == Ended::Done {
        device
            .template_remove(NAME)
            .map_err(|(error, users)| anyhow::anyhow!("{error}, {users} users"))?;
    }
    Ok(ended)
}

fn dictionary_add(host: &mut Host<'_>) -> Result<Ended> {
    let pages = 1 + host.random.below(8);
    let first = host.random.below(64);
    let specs = (first..first + pages).map(|page| Spec::new(Kind::Text, page as u32));
    let content = dictionary::dictionary_of(specs);
    let number = host.sandbox();
    let id = host.shared.sandbox(number).id;
    let added = dictionary::add(host.shared.ctx, id, &content);
    let no = [libc::ENOENT, libc::ENOSPC, libc::ENOMEM];
    ended(added.map_err(Into::into), &no)
}

fn dictionary_retire(host: &mut Host<'_>) -> Result<Ended> {
    let number = host.sandbox();
    let id = host.shared.sandbox(number).id;
    let retired = dictionary::retire(host.shared.ctx, id);
    ended(retired.map_err(Into::into), &[libc::ENOENT])
}

fn zswap(host: &mut Host<'_>) -> Result<Ended> {
    let on = host.random.chance(50);
    host::set_zswap_param("enabled", if on { "Y" } else { "N" })?;
    Ok(Ended::Done)
}

fn drop_caches(_host: &mut Host<'_>) -> Result<Ended> {
    host::drop_caches()?;
    Ok(Ended::Done)
}

fn compact(_host: &mut Host<'_>) -> Result<Ended> {
    host::write("/proc/sys/vm/compact_memory", "1")?;
    Ok(Ended::Done)
}

/// Merges pages of equal content, or no more, or takes apart what was merged.
fn ksm(host: &mut Host<'_>) -> Result<Ended> {
    let run = *host.random.of(&["0", "1", "1", "2"]);
    host::write(Path::new(KSM).join("pages_to_scan"), "500")?;
    // ENOMEM: no room to take apart what was merged.
    let written = fs::write(Path::new(KSM).join("run"), run);
    ended(written.map_err(Into::into), &[libc::ENOMEM])
}

fn thp(host: &mut Host<'_>) -> Result<Ended> {
    let when = *host.random.of(&["always", "madvise", "never"]);
    host::write(THP, when)?;
    let when = *host.random.of(&["always", "inherit", "never"]);
    host::set_mthp_64k(when)?;
    Ok(Ended::Done)
}

fn processor(host: &mut Host<'_>) -> Result<Ended> {
    if !Path::new(PROCESSOR).exists() {
        return Ok(Ended::Refused);
    }
    let off = fs::write(PROCESSOR, "0");
    if ended(off.map_err(Into::into), &[libc::EBUSY])? == Ended::Refused {
        return Ok(Ended::Refused);
    }
    std::thread::sleep(Duration::from_millis(host.random.below(200) as u64));
    host::write(PROCESSOR, "1")?;
    Ok(Ended::Done)
}

/// Brings every page back, and lets them go again.
fn swapoff(host: &mut Host<'_>) -> Result<Ended> {
    let mut device = host.shared.swap.write().expect("no thread panics");
    let off: io::Result<()> = sys::swapoff(&device);
    // ENOMEM: there is no room for everything.
    let ended = ended(off.map_err(Into::into), &[libc::ENOMEM])?;
    if ended == Ended::Done {
        *device = swap_on(host.shared.ctx, host.shared.recipe.swap)?;
    }
    Ok(ended)
}

fn daemon_kill(host: &mut Host<'_>) -> Result<Ended> {
    let Some(daemon) = host.daemon.take() else {
        return Ok(Ended::Refused);
    };
    daemon.kill()?;
    host.daemon = Some(Daemon::restart()?);
    Ok(Ended::Done)
}
