// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `agentzip drain`: empties the store.

use std::fmt;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::explain::{refused, Refusal};
use super::{restore::warnings_of, write_warnings};
use crate::error::Result;
use crate::format::{count, Bytes, Elapsed};
use crate::procfs::SwapDevice;
use crate::restore;
use crate::Context;

/// Memory that must remain available when everything is back from swap.
const RESERVE: u64 = 32 << 20;
/// How long entries may take to go after their slots were freed.
const SETTLE: Duration = Duration::from_secs(2);

/// A swap device that was taken out of use.
#[derive(Debug, Serialize)]
pub struct Emptied {
    /// The device.
    pub device: String,
    /// Bytes of slots that it held.
    pub used: u64,
    /// It is in use again.
    pub in_use_again: bool,
}

/// What `drain` did.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Entries when new stores had ended.
    pub entries_before: u64,
    /// Entries left.
    pub entries: u64,
    /// Sandboxes whose pages were brought back.
    pub sandboxes: usize,
    /// Pages brought back by restoring.
    pub pages_restored: u64,
    /// Swap devices emptied.
    pub swap: Vec<Emptied>,
    /// Time in seconds.
    #[serde(rename = "seconds", serialize_with = "crate::reclaim::seconds")]
    pub elapsed: Duration,
    /// What is not as it should be.
    pub warnings: Vec<String>,
    /// What must be repaired by hand, with the command that does it.
    pub failures: Vec<String>,
}

impl Report {
    /// The store is empty, and swap is as it was.
    pub fn complete(&self) -> bool {
        self.entries == 0 && self.failures.is_empty()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "new stores ended, {} then",
            count(self.entries_before, "entry")
        )?;
        if self.sandboxes > 0 {
            writeln!(
                f,
                "restored {} of {}",
                count(self.pages_restored, "page"),
                match self.sandboxes {
                    1 => "1 sandbox".to_owned(),
                    n => format!("{n} sandboxes"),
                }
            )?;
        }
        for swap in &self.swap {
            let again = if swap.in_use_again {
                "in use again"
            } else {
                "NOT IN USE"
            };
            writeln!(
                f,
                "swap {}: {} emptied, {again}",
                swap.device,
                Bytes(swap.used)
            )?;
        }
        writeln!(
            f,
            "{} left, {}",
            count(self.entries, "entry"),
            Elapsed(self.elapsed)
        )?;
        write_warnings(f, &self.warnings)?;
        for failure in &self.failures {
            writeln!(f, "FAILED: {failure}")?;
        }
        if self.entries > 0 {
            writeln!(f, "NOT EMPTY: their pages are still in swap; run `agentzip drain` without --no-swapoff, or end the processes")?;
        } else {
            writeln!(
                f,
                "empty: `agentzip disarm` and rmmod are possible now; `agentzip arm` starts anew"
            )?;
        }
        Ok(())
    }
}

/// Ends new stores, brings pages back, and empties the swap devices unless told not to.
///
/// # Errors
///
/// When the module refuses, or memory does not suffice for what is in swap. Entries that remain
/// otherwise are no error here: see [`Report::complete`].
pub fn drain(context: &Context, swapoff: bool) -> Result<Report> {
    let started = Instant::now();
    let refusal = Refusal {
        operation: "drain",
        object: "module".to_owned(),
    };
    let entries = context
        .device
        .drain()
        .map_err(|failure| refusal.explain(failure, |_, _| None))?;
    let mut report = Report {
        entries_before: entries,
        entries,
        sandboxes: 0,
        pages_restored: 0,
        swap: Vec::new(),
        elapsed: Duration::ZERO,
        warnings: Vec::new(),
        failures: Vec::new(),
    };
    if entries > 0 {
        restore_all(context, &mut report)?;
        report.entries = context.sysfs.entries()?;
    }
    if swapoff && report.entries > 0 {
        empty_swap(context, &mut report)?;
    }
    report.elapsed = started.elapsed();
    Ok(report)
}

/// Brings back what processes map. Failures only mean that swapoff has more to do.
fn restore_all(context: &Context, report: &mut Report) -> Result<()> {
    let cgroups = context.cgroups.by_id()?;
    for sandbox in context.sysfs.sandboxes()? {
        let Some(cgroup) = cgroups.get(&sandbox.cgroup_id) else {
            continue;
        };
        report.sandboxes += 1;
        match restore::restore(&context.procfs, context.host.as_ref(), cgroup) {
            Ok(pages) => {
                report.pages_restored +=
                    pages.pages_asked.saturating_sub(pages.pages_still_swapped);
                let name = cgroup.name();
                let warnings = warnings_of(&pages).into_iter();
                report
                    .warnings
                    .extend(warnings.map(|warning| format!("{name}: {warning}")));
            }
            Err(error) => report.warnings.push(format!("{}: {error}", cgroup.name())),
        }
    }
    Ok(())
}

fn empty_swap(context: &Context, report: &mut Report) -> Result<()> {
    let devices = context.procfs.swaps()?;
    check_room(context, &devices)?;
    for device in devices {
        if report.entries == 0 {
            break;
        }
        let name = device.path.display().to_string();
        if device.deleted {
            report.failures.push(format!(
                "{name} was deleted and could not be put in use again, so it is left alone; \
                 empty it by hand: swapoff {name}"
            ));
            continue;
        }
        if let Err(error) = context.host.swap_off(&device.path) {
            report.failures.push(format!(
                "swapoff {name}: {error}; it is still in use; free memory and run: agentzip drain"
            ));
            continue;
        }
        report.entries = settle(context)?;
        let again = context.host.swap_on(&device.path, device.priority);
        if let Err(error) = &again {
            let priority = match device.priority {
                ..0 => String::new(),
                priority => format!(" -p {priority}"),
            };
            report.failures.push(format!(
                "swapon {name}: {error}; THE HOST RUNS WITHOUT THIS SWAP DEVICE; repair: swapon{priority} {name}"
            ));
        }
        report.swap.push(Emptied {
            device: name,
            used: device.used,
            in_use_again: again.is_ok(),
        });
    }
    Ok(())
}

/// Refuses when what is in swap would not fit in memory.
fn check_room(context: &Context, devices: &[SwapDevice]) -> Result<()> {
    let memory = context.procfs.meminfo()?;
    let used: u64 = devices.iter().map(|device| device.used).sum();
    let needed = used.saturating_sub(memory.swap_cached) + RESERVE;
    if memory.available >= needed {
        return Ok(());
    }
    let advice = format!(
        "{} in swap must come back (with {} to spare) and only {} of memory is available; free memory or end \
         sandboxes, then run it again. New stores have ended; `agentzip arm` lets them go on",
        Bytes(needed - RESERVE),
        Bytes(RESERVE),
        Bytes(memory.available)
    );
    Err(refused("drain", "swap", libc::ENOMEM, advice))
}

/// Entries once they stopped going.
fn settle(context: &Context) -> Result<u64> {
    let started = Instant::now();
    loop {
        let entries = context.sysfs.entries()?;
        if entries == 0 || started.elapsed() >= SETTLE {
            return Ok(entries);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}
