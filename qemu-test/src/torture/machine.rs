// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What the host does to its own memory and processors.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{ensure, Context, Result};

use super::agent::ended;
use super::count::Ended;
use super::host::Host;
use super::recipe::Swap;
use crate::suite::fixture::memory::{self, Tried};
use crate::suite::fixture::{host, Ctx};
use crate::suite::sys;

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

/// Swaps to the device of a round.
pub fn swap_on(ctx: &Ctx, swap: Swap) -> Result<PathBuf> {
    match swap {
        Swap::Disk => ctx.swap_of(DISK),
        Swap::Zram => {
            host::zram_swap(ZRAM)?;
            Ok("/dev/zram0".into())
        }
    }
}

/// Has DAMON take out what is not accessed for a moment, or ends that.
fn set_damon(on: bool) -> Result<()> {
    const SETTINGS: &[(&str, &str)] = &[
        ("min_age", "200000"),
        ("quota_ms", "50"),
        ("quota_reset_interval_ms", "200"),
        ("wmarks_high", "1000"),
        ("wmarks_mid", "999"),
        ("wmarks_low", "0"),
    ];
    let parameters = Path::new(DAMON);
    ensure!(parameters.exists(), "this kernel has no DAMON_RECLAIM");
    if on {
        // One user keeps all others out (EBUSY), and on Debian's kernel this one begins at boot.
        if Path::new(DAMON_STAT).exists() {
            host::write(DAMON_STAT, "N")?;
        }
        for (name, value) in SETTINGS {
            host::write(parameters.join(name), value)?;
        }
    }
    host::write(parameters.join("enabled"), if on { "Y" } else { "N" })
}

/// Puts back what operations change.
pub fn reset() -> Result<()> {
    host::write(PROCESSOR, "1")?;
    host::write(Path::new(KSM).join("run"), "0")?;
    host::write(THP, "madvise")?;
    set_damon(false)?;
    memory::all_online()
}

/// DAMON takes out what is not accessed for a moment, or no more.
pub fn damon(host: &mut Host<'_>) -> Result<Ended> {
    set_damon(host.random.chance(60))?;
    Ok(Ended::Done)
}

/// Host-wide zswap for everything that the module does not take, or none.
pub fn zswap(host: &mut Host<'_>) -> Result<Ended> {
    let on = host.random.chance(50);
    host::set_zswap_param("enabled", if on { "Y" } else { "N" })?;
    Ok(Ended::Done)
}

/// Drops page cache and other caches.
pub fn drop_caches(_host: &mut Host<'_>) -> Result<Ended> {
    host::drop_caches()?;
    Ok(Ended::Done)
}

/// Moves pages together.
pub fn compact(_host: &mut Host<'_>) -> Result<Ended> {
    host::write("/proc/sys/vm/compact_memory", "1")?;
    Ok(Ended::Done)
}

/// Merges pages of equal content, or no more, or takes apart what was merged.
pub fn ksm(host: &mut Host<'_>) -> Result<Ended> {
    let run = *host.random.of(&["0", "1", "1", "2"]);
    host::write(Path::new(KSM).join("pages_to_scan"), "500")?;
    // ENOMEM: no room to take apart what was merged.
    let written = fs::write(Path::new(KSM).join("run"), run);
    ended(written.map_err(Into::into), &[libc::ENOMEM])
}

/// When huge pages and large folios are used.
pub fn thp(host: &mut Host<'_>) -> Result<Ended> {
    let when = *host.random.of(&["always", "madvise", "never"]);
    host::write(THP, when)?;
    let when = *host.random.of(&["always", "inherit", "never"]);
    host::set_mthp_64k(when)?;
    Ok(Ended::Done)
}

/// A processor goes and comes back.
pub fn processor(host: &mut Host<'_>) -> Result<Ended> {
    let off = fs::write(PROCESSOR, "0");
    if ended(off.map_err(Into::into), &[libc::EBUSY])? == Ended::Refused {
        return Ok(Ended::Refused);
    }
    std::thread::sleep(Duration::from_millis(host.random.below(200) as u64));
    host::write(PROCESSOR, "1")?;
    Ok(Ended::Done)
}

/// A block of memory goes with all that is in it, and comes back empty.
pub fn memory(host: &mut Host<'_>) -> Result<Ended> {
    /// How long the kernel may try.
    const LONGEST: Duration = Duration::from_secs(2);
    let blocks = memory::online()?;
    let block = host.random.of(&blocks);
    if block.take_offline(host::patience(LONGEST))? != Tried::Went {
        return Ok(Ended::Refused);
    }
    std::thread::sleep(Duration::from_millis(host.random.below(200) as u64));
    block.bring_back()?;
    Ok(Ended::Done)
}

/// Brings every page back, and lets them go again.
pub fn swapoff(host: &mut Host<'_>) -> Result<Ended> {
    let mut device = host.shared.swap.write().expect("no thread panics");
    let off: io::Result<()> = sys::swapoff(&device);
    // ENOMEM: there is no room for everything.
    let ended = ended(off.map_err(Into::into), &[libc::ENOMEM])?;
    if ended == Ended::Done {
        let swapped = swap_on(&host.shared.ctx(), host.shared.recipe.swap);
        *device = swapped.context("swap on again")?;
    }
    Ok(ended)
}
