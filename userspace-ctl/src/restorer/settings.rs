// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What the restorer takes from the configuration, with all times in the time of this machine.

use std::path::PathBuf;
use std::time::Duration;

use super::progress::Times;
use crate::config::{Config, PrefetchMode};
use crate::predict;

/// Settings of the restorer.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Plans are wanted: faults are recorded.
    pub plans: bool,
    /// A plan that runs is added to when a tool starts.
    pub on_tool_start: bool,
    /// The learner's.
    pub predictors: predict::Settings,
    /// Times of a restore.
    pub times: Times,
    /// Least and most pages of a window.
    pub window: (u32, u32),
    /// Most pages of a plan.
    pub plan_pages: usize,
    /// Hit ratios below and above which the window changes.
    pub hits: (f64, f64),
    /// Records of a ring.
    pub records: u32,
    /// How often a ring is read while its sandbox runs.
    pub sample_period: Duration,
    /// `slo.first_tool_p99`.
    pub objective: Duration,
    /// Times are so many times as long.
    pub scale: f64,
    /// Where traces go.
    pub trace_dir: Option<PathBuf>,
}

impl From<&Config> for Settings {
    fn from(config: &Config) -> Settings {
        let prefetch = &config.prefetch;
        let directory = &prefetch.trace_dir;
        Settings {
            plans: matches!(prefetch.mode, PrefetchMode::Auto | PrefetchMode::Plan),
            on_tool_start: prefetch.on_tool_start,
            predictors: prefetch.predictors(),
            times: Times {
                timeout: config.time(prefetch.queue_timeout),
                hit_window: config.time(prefetch.hit_window),
                lead: config.time(prefetch.lead),
                gap: Duration::ZERO,
                look: Duration::from_millis(1).mul_f64(config.time_scale.max(1.0)),
            },
            window: (
                prefetch.window_pages_min.get(),
                prefetch.window_pages_max.get(),
            ),
            plan_pages: prefetch.plan_pages.get() as usize,
            hits: (prefetch.hit_floor.part(), prefetch.hit_ceiling.part()),
            records: prefetch.recorder_records.get(),
            sample_period: config.time(config.schedule.sample_period),
            objective: config.time(config.slo.first_tool_p99),
            scale: config.time_scale,
            trace_dir: (!directory.as_os_str().is_empty()).then(|| directory.clone()),
        }
    }
}
