// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `agentzip phase`.

use std::fmt;

use agentzip_uapi::Phase;
use serde::Serialize;

use super::explain::Refusal;
use super::sandbox::{not_attached, swap_warnings};
use super::{sandbox_name, select, write_warnings};
use crate::cgroup::{Evicted, Selector};
use crate::error::{Error, Result};
use crate::format::{count, percent, Bytes, Elapsed, Table};
use crate::reclaim::{self, Options, Stop};
use crate::sysfs::PageCounters;
use crate::{Context, PAGE_SIZE};

/// What reclaim brought.
#[derive(Debug, Serialize)]
pub struct Reclaimed {
    /// Memory before and after.
    #[serde(flatten)]
    pub memory: reclaim::Report,
    /// Pages that the module stored meanwhile, from this sandbox; `None` when it does not say.
    pub pages_stored: Option<u64>,
    /// Pages that it declined meanwhile: they went to zswap's place, the swap device.
    pub pages_declined: Option<u64>,
    /// Pages that went without a store, as they had not changed since they were loaded. The kernel's
    /// count behind it can be off by 64 for each CPU.
    pub pages_kept: Option<u64>,
}

/// What `phase` did.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The sandbox, for people.
    #[serde(skip)]
    name: String,
    /// Its id.
    pub cgroup_id: u64,
    /// The phase that it is in now.
    pub phase: &'static str,
    /// What reclaim brought, if it was asked for.
    pub reclaimed: Option<Reclaimed>,
    /// Why it brought less than it could.
    pub warnings: Vec<String>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "sandbox {}: phase {}", self.name, self.phase)?;
        if let Some(Reclaimed {
            memory,
            pages_stored,
            pages_declined,
            pages_kept,
        }) = &self.reclaimed
        {
            let (before, after) = (&memory.before, &memory.after);
            let mut table = Table::new(&["", ">BEFORE", ">AFTER"]).indented(2);
            for (what, before, after) in [
                ("anonymous, mapped", before.anon, after.anon),
                ("swap cache", before.swap_cached, after.swap_cached),
                ("shared memory", before.shmem, after.shmem),
                ("all memory", before.current, after.current),
                ("in swap", before.swap, after.swap),
            ] {
                table.row([
                    what.to_owned(),
                    Bytes(before).to_string(),
                    Bytes(after).to_string(),
                ]);
            }
            write!(f, "{table}")?;
            let end = match memory.stop {
                Stop::Empty => "nothing left to take".to_owned(),
                Stop::Dry => format!("{} would not go", Bytes(after.reclaimable)),
                Stop::Bound => "stopped at the bound on slices".to_owned(),
            };
            writeln!(
                f,
                "  {} in {}, {} of them short; {end}",
                Elapsed(memory.elapsed),
                count(u64::from(memory.slices), "slice"),
                memory.short_slices,
            )?;
            if let (Some(stored), Some(declined)) = (pages_stored, pages_declined) {
                writeln!(
                    f,
                    "  {} stored ({}), {declined} declined{}",
                    count(*stored, "page"),
                    Bytes(stored * PAGE_SIZE),
                    match pages_kept {
                        Some(kept) if *kept > 0 => format!(
                            ", about {kept} unchanged since they were loaded: {} of the stores saved",
                            percent(*kept, kept + stored)
                        ),
                        _ => String::new(),
                    }
                )?;
            }
        }
        write_warnings(f, &self.warnings)
    }
}

/// Tells the module what the agent in a sandbox does. `options` makes `waiting` reclaim as well.
///
/// # Errors
///
/// When it is no sandbox, or its memory cannot be reclaimed.
pub fn phase(
    context: &Context,
    selector: &Selector,
    phase: Phase,
    options: Option<&Options>,
) -> Result<Report> {
    let (cgroup_id, cgroup) = select(context, selector)?;
    let name = sandbox_name(cgroup_id, cgroup.as_ref());
    context
        .device
        .sandbox_phase(cgroup_id, phase)
        .map_err(|failure| {
            let refusal = Refusal {
                operation: "phase",
                object: name.clone(),
            };
            refusal.explain(failure, |errno, _| not_attached(context, errno, cgroup_id))
        })?;
    let mut report = Report {
        name,
        cgroup_id,
        phase: phase.name(),
        reclaimed: None,
        warnings: Vec::new(),
    };
    let (Phase::Waiting, Some(options)) = (phase, options) else {
        return Ok(report);
    };
    let Some(cgroup) = cgroup else {
        let problem = "the phase is set, but its cgroup is gone: there is nothing to reclaim";
        return Err(Error::invalid(report.name, problem));
    };
    let counters = || -> Option<PageCounters> {
        let sandbox = context.sysfs.sandbox(cgroup_id).ok().flatten()?;
        Some(sandbox.pages)
    };
    let before = counters();
    // Kernels without these lines tell less.
    let evicted_before = cgroup.evicted().ok();
    let memory = reclaim::reclaim(&cgroup, options)?;
    let (pages_stored, pages_declined) = match (before, counters()) {
        (Some(before), Some(after)) => (
            Some(after.stores.saturating_sub(before.stores)),
            Some(after.declined().saturating_sub(before.declined())),
        ),
        _ => (None, None),
    };
    let pages_kept = match (evicted_before, cgroup.evicted().ok()) {
        (Some(before), Some(after)) => {
            let written = pages_stored.zip(pages_declined);
            written.map(|(stored, declined)| kept(&before, &after, stored + declined))
        }
        _ => None,
    };
    if memory.stop != Stop::Empty && memory.after.reclaimable > memory.before.reclaimable / 10 {
        report.warnings = swap_warnings(context, &cgroup);
    }
    report.reclaimed = Some(Reclaimed {
        memory,
        pages_stored,
        pages_declined,
        pages_kept,
    });
    Ok(report)
}

/// Pages that were reclaimed without being written anywhere, for what they held was there already.
fn kept(before: &Evicted, after: &Evicted, written: u64) -> u64 {
    let reclaimed = after.reclaimed.saturating_sub(before.reclaimed);
    let zero_filled = after.zero_filled.saturating_sub(before.zero_filled);
    reclaimed.saturating_sub(zero_filled + written)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_nowhere_was_kept() {
        let at = |reclaimed, zero_filled| Evicted {
            reclaimed,
            zero_filled,
        };
        assert_eq!(kept(&at(100, 3), &at(1100, 13), 400), 590);
        // Declined pages on their way to the device are still in memory.
        assert_eq!(kept(&at(100, 3), &at(150, 3), 60), 0);
    }
}
