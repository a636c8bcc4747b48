// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What the sandboxes cost while they wait: owned memory, and its check against MemAvailable.
//!
//! Owned = anonymous memory charged to the sandboxes' cgroups + all pages of the compressed pool
//! + metadata (slab, tables, indexes, scratch, template pages that only the module keeps alive).
//!
//! AgentZip's pool is its arenas and reference pages. The sandboxes' cgroups are charged for the
//! arenas as well, but as kernel memory, of which nothing is taken from the cgroups here: every byte
//! is counted once, where its user says how much it has.
//!
//! The check takes the same readings at the baseline, just before anything of the configuration
//! was set up and before a sandbox was forked, and again at each wait:
//!
//! - change = fall of MemAvailable, minus the rise of page tables. Page caches are dropped before
//!   each reading, so that what MemAvailable estimates about them is the same on both sides.
//! - Free pages parked in the per-CPU lists are added to MemAvailable, which leaves them out.
//! - The daemon's own anonymous memory is taken out as well.
//! - Not taken out, though not owned memory: kernel stacks, processes' other slab objects, and the
//!   few pages the zygote itself copied after a fork. They are printed beside the result.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;

use super::cgroup::{self, Cgroup};
use super::pages::PAGE;

/// Slab caches that hold metadata of zswap's pages.
const SLABS: [&str; 4] = ["zswap_entry", "zs_handle", "zspage", "radix_tree_node"];
/// The kernel flushes cgroup statistics every 2 s, and per-CPU page counts every second.
const FLUSH: Duration = Duration::from_millis(2_300);
/// Bytes of the swap core's own table for each slot.
const SWAP_TABLE_ENTRY: u64 = 8;
/// Slots in one swap cluster, whose table is allocated as a whole.
const CLUSTER: u64 = 512;

/// Readings of the whole machine, in bytes.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    /// MemAvailable, and free pages in per-CPU lists.
    pub available: u64,
    /// Page tables, secondary ones too.
    pub page_tables: u64,
    /// Pool pages of zswap.
    pub zswap: u64,
    /// Swap slots in use.
    pub swap_used: u64,
    /// Kernel stacks.
    pub kernel_stack: u64,
    /// Slab pages that cannot be reclaimed.
    pub slab_unreclaimable: u64,
    /// Per-CPU areas.
    pub percpu: u64,
    slabs: BTreeMap<&'static str, Slabs>,
}

/// Whole slabs of one cache, partial and empty ones included.
#[derive(Clone, Debug)]
struct Slabs {
    directory: PathBuf,
    bytes: u64,
}

/// One reading while all sandboxes wait.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Sample {
    /// Everything counted: anonymous + pool + metadata.
    pub owned_bytes: u64,
    /// Anonymous pages of the sandboxes' cgroups, in the swap cache or not.
    pub anonymous_bytes: u64,
    /// The `anon` lines of memory.stat: those that are mapped.
    pub mapped_bytes: u64,
    /// Pages in the swap cache (part of `anonymous_bytes`).
    pub swap_cached_bytes: u64,
    /// Pages of the compressed pool.
    pub pool_bytes: u64,
    /// Of those, pages that sandboxes of a group share.
    pub shared_bytes: u64,
    /// Kernel memory that the sandboxes' cgroups are charged for. AgentZip's arenas are part of it;
    /// it is no part of `owned_bytes`.
    pub charged_kernel_bytes: u64,
    /// Everything else that is counted, by name.
    pub metadata_bytes: BTreeMap<String, u64>,
    /// Fall of MemAvailable since the baseline, page tables and the daemon taken out.
    pub available_change_bytes: i64,
    /// Anonymous memory of the daemon.
    pub daemon_bytes: i64,
    /// Rise of page tables since the baseline.
    pub page_tables_bytes: i64,
    /// Swap slots in use.
    pub swap_used_bytes: u64,
    /// Of those, what the pool does not hold: pages filled with zeros, and pages on the disk.
    pub outside_bytes: u64,
    /// Part of the change that is known not to be owned memory, by name.
    pub not_owned_bytes: BTreeMap<&'static str, i64>,
}

impl Sample {
    /// Owned memory beside anonymous pages and the pool.
    pub fn overhead(&self) -> u64 {
        self.metadata_bytes.values().sum()
    }

    /// How far the change of MemAvailable is from owned memory.
    pub fn difference(&self) -> i64 {
        self.available_change_bytes - signed(self.owned_bytes)
    }
}

/// What the compressing side of a configuration occupies.
#[derive(Debug, Default)]
pub struct Store {
    /// Pages of the pool.
    pub pool: u64,
    /// Of those, pages that sandboxes share.
    pub shared: u64,
    /// Everything else, by name.
    pub metadata: BTreeMap<String, u64>,
    /// How much of `metadata` lies in slabs.
    pub in_slab: u64,
    /// The pages that the pool holds, uncompressed.
    pub held: u64,
}

impl Machine {
    /// Lets statistics settle, drops clean page cache, and reads.
    pub fn settled() -> Result<Self> {
        // Dropping caches also drains the LRU batches of every CPU.
        drop_caches()?;
        std::thread::sleep(FLUSH);
        drop_caches()?;
        Self::read()
    }

    fn read() -> Result<Self> {
        let text = cgroup::read(Path::new("/proc/meminfo"))?;
        let field = |name: &str| {
            meminfo(&text, name).with_context(|| format!("no {name} in /proc/meminfo"))
        };
        let mut slabs = BTreeMap::new();
        for name in SLABS {
            // Merged caches are links to one directory.
            if let Ok(directory) = Path::new("/sys/kernel/slab").join(name).canonicalize() {
                let bytes = slab_bytes(&directory)?;
                slabs.insert(name, Slabs { directory, bytes });
            }
        }
        Ok(Self {
            available: field("MemAvailable")? + parked(&cgroup::read(Path::new("/proc/zoneinfo"))?),
            page_tables: field("PageTables")? + meminfo(&text, "SecPageTables").unwrap_or(0),
            zswap: field("Zswap")?,
            swap_used: field("SwapTotal")?.saturating_sub(field("SwapFree")?),
            kernel_stack: field("KernelStack")?,
            slab_unreclaimable: field("SUnreclaim")?,
            percpu: field("Percpu")?,
            slabs,
        })
    }

    /// Bytes that zswap holds now, uncompressed.
    pub fn zswapped() -> Result<u64> {
        let text = cgroup::read(Path::new("/proc/meminfo"))?;
        meminfo(&text, "Zswapped").context("no Zswapped in /proc/meminfo")
    }

    /// Growth of slab caches since `base`, in bytes, 0 where one shrank.
    ///
    /// Caches that the kernel merged are reported once, under the first of their names in `names`.
    pub fn slab_growth(&self, base: &Self, names: &[&'static str]) -> Vec<(&'static str, u64)> {
        let mut seen = Vec::new();
        let mut growth = Vec::new();
        for &name in names {
            let (Some(now), Some(before)) = (self.slabs.get(name), base.slabs.get(name)) else {
                continue;
            };
            if !seen.contains(&&now.directory) {
                seen.push(&now.directory);
                growth.push((name, now.bytes.saturating_sub(before.bytes)));
            }
        }
        growth
    }

    /// Growth of the swap core's slot tables since `base`, from the slots in use.
    pub fn swap_tables(&self, base: &Self) -> u64 {
        let slots = self.swap_used.saturating_sub(base.swap_used) / PAGE;
        slots.div_ceil(CLUSTER) * CLUSTER * SWAP_TABLE_ENTRY
    }
}

/// Takes a sample of `sandboxes`, given what the compressing side occupies.
///
/// `template` is the change of the zygote's and holder's anonymous memory since the baseline, `daemon` all that
/// the daemon has.
pub fn sample(
    base: &Machine,
    now: &Machine,
    sandboxes: &[Cgroup],
    store: Store,
    template: i64,
    daemon: i64,
) -> Result<Sample> {
    let in_slab = signed(store.in_slab);
    let mut sample = Sample {
        pool_bytes: store.pool,
        shared_bytes: store.shared,
        metadata_bytes: store.metadata,
        swap_used_bytes: now.swap_used,
        outside_bytes: now.swap_used.saturating_sub(store.held),
        ..Sample::default()
    };
    for sandbox in sandboxes {
        let charged = sandbox.charged()?;
        sample.anonymous_bytes += charged.anonymous;
        sample.mapped_bytes += charged.mapped;
        sample.swap_cached_bytes += charged.swap_cached;
        sample.charged_kernel_bytes += charged.kernel;
    }
    // Right after a fork the lists lag behind the mapped count, never the other way for long.
    sample.anonymous_bytes = sample.anonymous_bytes.max(sample.mapped_bytes);
    sample.owned_bytes = sample.anonymous_bytes + sample.pool_bytes + sample.overhead();
    let rise = |get: fn(&Machine) -> u64| signed(get(now)) - signed(get(base));
    sample.page_tables_bytes = rise(|m| m.page_tables);
    sample.daemon_bytes = daemon;
    sample.available_change_bytes = -rise(|m| m.available) - sample.page_tables_bytes - daemon;
    sample.not_owned_bytes = BTreeMap::from([
        ("kernel_stacks", rise(|m| m.kernel_stack)),
        ("other_slab", rise(|m| m.slab_unreclaimable) - in_slab),
        ("percpu", rise(|m| m.percpu)),
        ("zygote_anonymous", template),
    ]);
    Ok(sample)
}

fn drop_caches() -> Result<()> {
    rustix::fs::sync();
    cgroup::write(Path::new("/proc/sys/vm/drop_caches"), "3")
}

/// A line of /proc/meminfo, in bytes.
fn meminfo(text: &str, name: &str) -> Option<u64> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(line.trim().trim_end_matches(" kB").parse::<u64>().ok()? * 1024)
}

/// Free pages in per-CPU lists, in bytes, from /proc/zoneinfo.
fn parked(zoneinfo: &str) -> u64 {
    let counts = zoneinfo
        .lines()
        .filter_map(|line| line.trim().strip_prefix("count:"));
    counts
        .filter_map(|count| count.trim().parse::<u64>().ok())
        .sum::<u64>()
        * PAGE
}

/// Pages of a slab cache, partial and cached slabs included, in bytes.
fn slab_bytes(directory: &Path) -> Result<u64> {
    let first = |file: &str| -> Result<u64> {
        let path: PathBuf = directory.join(file);
        let text = cgroup::read(&path)?;
        let word = text.split_ascii_whitespace().next().unwrap_or_default();
        word.parse()
            .with_context(|| format!("parse {}", path.display()))
    };
    Ok(first("slabs")? * (PAGE << first("order")?))
}

/// A byte count as a signed number.
pub fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_meminfo() {
        let text = "MemTotal:  2048 kB\nMemAvailable:     10 kB\n";
        assert_eq!(meminfo(text, "MemAvailable"), Some(10 * 1024));
        assert_eq!(meminfo(text, "Mem"), None);
    }

    #[test]
    fn parked_pages_of_zoneinfo() {
        let text = "  pagesets\n    cpu: 0\n              count:    3\n              high: 9\n              count: 4\n";
        assert_eq!(parked(text), 7 * PAGE);
    }

    #[test]
    fn a_cluster_has_a_whole_table() {
        let base = Machine::default();
        let now = Machine {
            swap_used: 513 * PAGE,
            ..Machine::default()
        };
        assert_eq!(now.swap_tables(&base), 2 * CLUSTER * SWAP_TABLE_ENTRY);
    }
}
