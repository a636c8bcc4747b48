// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What `status` shows of prefetch: one set of figures for all parts.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use crate::governor::Id;
use crate::predict::Figures;

/// Counts of a sandbox, or of all since the daemon began. Shares are `null` where nothing was counted.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Shown {
    /// Page faults that waited for a page.
    pub demand_faults: u64,
    /// Pages that were restored ahead of need and accessed within `prefetch.hit_window`.
    pub hits: u64,
    /// Those that were not.
    pub misses: u64,
    /// hits / (hits + misses).
    pub hit_ratio: Option<f64>,
    /// hits / (hits + demand faults).
    pub coverage: Option<f64>,
    /// misses / (hits + misses).
    pub waste: Option<f64>,
    /// CPU time of the restore workers for each hit, in nanoseconds.
    pub cost_per_hit_ns: Option<f64>,
    /// For how long the first tools of turns waited for pages: the 99th percentile, in microseconds;
    /// `null` for fewer than 20 turns.
    pub first_tool_p99_us: Option<u64>,
    /// Plans that were carried out, or begun.
    pub plans: u64,
    /// Pages in them.
    pub planned_pages: u64,
    /// Those of them that the module took into its queue.
    pub queued_pages: u64,
    /// Pages that nobody expected to be touched, restored after a plan as there was room and time.
    pub rest_pages: u64,
    /// Pages that were dropped, as it took too long or the sandbox began to wait.
    pub dropped_pages: u64,
    /// Plans that had more pages than they may.
    pub capped_plans: u64,
    /// Records that were lost as the ring was full.
    pub lost_records: u64,
    /// Records of processes that had ended before anybody knew them.
    pub unplaced_records: u64,
    /// Pages of the window; of a sandbox only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window_pages: Option<u32>,
    /// Pages that are touched at nearly every resume, which head every plan; of a sandbox only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pages_at_every_resume: Option<usize>,
}

impl Shown {
    /// Takes over what was counted.
    pub fn take(&mut self, figures: &Figures, p99: Option<Duration>) {
        self.demand_faults = figures.demand;
        self.hits = figures.hits;
        self.misses = figures.misses;
        self.hit_ratio = figures.hit_ratio();
        self.coverage = figures.coverage();
        self.waste = figures.waste();
        self.cost_per_hit_ns = figures.cost_per_hit();
        self.first_tool_p99_us = p99.map(|p99| u64::try_from(p99.as_micros()).unwrap_or(u64::MAX));
    }
}

/// All of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Board {
    /// The module records faults and carries out plans.
    pub able: bool,
    /// Of all sandboxes.
    #[serde(flatten)]
    pub total: Shown,
    /// How far compression of interactive sandboxes goes: 1 while the objective is met.
    pub scope: f64,
    /// The hit ratio is far below what it used to be.
    pub alarm_hit_ratio: bool,
    /// `slo.first_tool_p99` is missed.
    pub alarm_first_tool: bool,
    /// Long-term mean of the hit ratio.
    pub usual_hit_ratio: Option<f64>,
    /// Bytes of what was learned.
    pub learned_bytes: usize,
    /// Of each sandbox.
    #[serde(skip)]
    pub sandboxes: BTreeMap<Id, Shown>,
}
