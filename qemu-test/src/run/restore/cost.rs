// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What turns cost beside their time: faults, restores, CPU time.

use std::collections::BTreeMap;
use std::ops::Sub;
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::run::backend::Backend;
use crate::run::cgroup;
use crate::run::zygote::Sandbox;

/// Readings since the configuration was set up, or the difference of two of them.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Cost {
    /// Faults of the sandboxes that waited for a page (`majflt`).
    pub major_faults: u64,
    /// Demand faults that the module saw; 0 where nothing is recorded.
    pub demand_faults: u64,
    /// Pages that were restored ahead of need.
    pub prefetched: u64,
    /// Those of them that nobody expected to be touched: they have no hit test.
    pub untested: u64,
    /// Pages that were decoded, in faults and by the workers.
    pub loads: u64,
    /// Pages of plans that were there already.
    pub present: u64,
    /// Pages of plans that were dropped.
    pub dropped: u64,
    /// Restored pages that were accessed in time.
    pub hits: u64,
    /// Restored pages that were not.
    pub misses: u64,
    /// CPU seconds of the restore workers.
    pub prefetch_seconds: f64,
    /// Seconds in which pages were decoded, in faults and by the workers.
    pub decode_seconds: f64,
    /// Seconds in which pages were encoded in reclaim.
    pub encode_seconds: f64,
    /// Seconds of the second look.
    pub second_look_seconds: f64,
    /// CPU seconds of the daemon, its reclaim jobs included.
    pub daemon_seconds: f64,
    /// CPU seconds of the sandboxes.
    pub sandbox_seconds: f64,
    /// Seconds in which sandboxes could run and had no CPU.
    pub queued_seconds: f64,
}

impl Cost {
    /// Reads it.
    pub fn read(backend: &Backend, sandboxes: &[Sandbox]) -> Result<Self> {
        let counters = backend.statistics()?;
        let mut cost = Self::of(&counters);
        for sandbox in sandboxes {
            cost.major_faults += Process::read(sandbox.pid)?.major_faults;
            let scheduled = Scheduled::read(sandbox.pid)?;
            cost.sandbox_seconds += scheduled.ran;
            cost.queued_seconds += scheduled.queued;
        }
        if let Some(daemon) = backend.daemon() {
            cost.daemon_seconds = Process::read(daemon.pid())?.cpu_seconds;
        }
        Ok(cost)
    }

    fn of(counters: &BTreeMap<String, u64>) -> Self {
        let count = |name: &str| counters.get(name).copied().unwrap_or(0);
        let seconds = |name: &str| count(name) as f64 / 1e9;
        Self {
            demand_faults: count("faults"),
            prefetched: count("prefetch_pages"),
            untested: count("prefetch_untested"),
            loads: count("loads"),
            present: count("prefetch_present"),
            dropped: count("prefetch_dropped"),
            hits: count("prefetch_hits"),
            misses: count("prefetch_misses"),
            prefetch_seconds: seconds("prefetch_ns"),
            decode_seconds: seconds("decode_ns"),
            encode_seconds: seconds("encode_ns"),
            second_look_seconds: seconds("second_look_ns"),
            ..Self::default()
        }
    }

    /// Share of restored pages that were accessed in time; `None` when none was restored.
    pub fn hit_ratio(&self) -> Option<f64> {
        ratio(self.hits, self.hits + self.misses)
    }

    /// Share of the pages which tools wanted and that were there before; `None` when they wanted none.
    ///
    /// What they wanted is what they faulted in without prefetch. Where that was not run it is hits and
    /// faults, and pages that nobody expected do not count.
    pub fn coverage(&self, without: Option<&Cost>) -> Option<f64> {
        match without {
            Some(without) => {
                let spared = without.major_faults.saturating_sub(self.major_faults);
                ratio(spared, without.major_faults)
            }
            None => ratio(self.hits, self.hits + self.major_faults),
        }
    }

    /// Nanoseconds that decoding a page took; `None` when none was.
    pub fn decode_ns(&self) -> Option<f64> {
        (self.loads != 0).then(|| self.decode_seconds * 1e9 / self.loads as f64)
    }

    /// CPU time of the restore workers for a hit, in ns.
    pub fn ns_per_hit(&self) -> Option<f64> {
        (self.hits != 0).then(|| self.prefetch_seconds * 1e9 / self.hits as f64)
    }
}

fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole != 0).then(|| part as f64 / whole as f64)
}

impl Sub for Cost {
    type Output = Cost;

    fn sub(self, before: Cost) -> Cost {
        Cost {
            major_faults: self.major_faults.saturating_sub(before.major_faults),
            demand_faults: self.demand_faults.saturating_sub(before.demand_faults),
            prefetched: self.prefetched.saturating_sub(before.prefetched),
            untested: self.untested.saturating_sub(before.untested),
            loads: self.loads.saturating_sub(before.loads),
            present: self.present.saturating_sub(before.present),
            dropped: self.dropped.saturating_sub(before.dropped),
            hits: self.hits.saturating_sub(before.hits),
            misses: self.misses.saturating_sub(before.misses),
            prefetch_seconds: self.prefetch_seconds - before.prefetch_seconds,
            decode_seconds: self.decode_seconds - before.decode_seconds,
            encode_seconds: self.encode_seconds - before.encode_seconds,
            second_look_seconds: self.second_look_seconds - before.second_look_seconds,
            daemon_seconds: self.daemon_seconds - before.daemon_seconds,
            sandbox_seconds: self.sandbox_seconds - before.sandbox_seconds,
            queued_seconds: self.queued_seconds - before.queued_seconds,
        }
    }
}

/// What /proc says about a process.
struct Process {
    major_faults: u64,
    cpu_seconds: f64,
}

impl Process {
    fn read(pid: u32) -> Result<Self> {
        let path = PathBuf::from(format!("/proc/{pid}/stat"));
        let text = cgroup::read(&path)?;
        Self::parse(&text).with_context(|| format!("parse {}", path.display()))
    }

    fn parse(text: &str) -> Option<Self> {
        // "pid (name) state ppid ...", and the name may contain anything: state is number 3 of proc(5).
        let (_, rest) = text.rsplit_once(") ")?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        Some(Self {
            major_faults: field(12)?,
            cpu_seconds: (field(14)? + field(15)?) as f64 / ticks,
        })
    }
}

/// What the scheduler says about a process of one thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Scheduled {
    /// Seconds on a CPU.
    pub ran: f64,
    /// Seconds in which it could run and had none.
    pub queued: f64,
}

impl Scheduled {
    /// Reads it.
    pub fn read(pid: u32) -> Result<Self> {
        let path = PathBuf::from(format!("/proc/{pid}/schedstat"));
        let text = cgroup::read(&path)?;
        Self::parse(&text).with_context(|| format!("parse {}", path.display()))
    }

    fn parse(text: &str) -> Option<Self> {
        let mut fields = text.split_ascii_whitespace();
        let mut seconds = || Some(fields.next()?.parse::<u64>().ok()? as f64 / 1e9);
        Some(Self {
            ran: seconds()?,
            queued: seconds()?,
        })
    }
}

impl Sub for Scheduled {
    type Output = Scheduled;

    fn sub(self, before: Scheduled) -> Scheduled {
        Scheduled {
            ran: self.ran - before.ran,
            queued: self.queued - before.queued,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_on_a_processor_and_before_it() {
        let scheduled = Scheduled::parse("1500000000 250000000 12\n").unwrap();
        assert_eq!((scheduled.ran, scheduled.queued), (1.5, 0.25));
        assert_eq!(scheduled - scheduled, Scheduled::default());
        assert!(Scheduled::parse("1500000000\n").is_none());
    }

    #[test]
    fn faults_and_time_of_a_process() {
        let text = "7 (a) b) S 1 7 7 0 -1 4194560 100 0 9 0 150 50 0 0 20 0 1 0 5 1 1\n";
        let process = Process::parse(text).unwrap();
        assert_eq!(process.major_faults, 9);
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        assert_eq!(process.cpu_seconds, 200.0 / ticks);
        assert!(Process::parse("7 (a) S 1").is_none());
    }

    #[test]
    fn ratios() {
        let cost = Cost {
            major_faults: 25,
            demand_faults: 25,
            hits: 75,
            misses: 25,
            ..Cost::default()
        };
        assert_eq!(cost.coverage(None), Some(0.75));
        let without = Cost {
            major_faults: 100,
            ..Cost::default()
        };
        assert_eq!(cost.coverage(Some(&without)), Some(0.75));
        assert_eq!(without.coverage(Some(&without)), Some(0.0));
        assert_eq!(cost.hit_ratio(), Some(0.75));
        assert_eq!(Cost::default().coverage(None), None);
        assert_eq!(Cost::default().decode_ns(), None);
        assert_eq!((cost - cost).hits, 0);
    }
}
