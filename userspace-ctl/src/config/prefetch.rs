// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What comes back ahead of need, and what that is measured by.

use std::path::PathBuf;

use serde::de::{Deserializer, Error as _};
use serde::{Deserialize, Serialize, Serializer};

use super::{Percent, Span, Within};
use crate::predict::{Settings, MAX_WINDOW, MIN_WINDOW};

/// What comes back when the LLM answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Prefetch {
    /// How it is decided what comes back.
    pub mode: PrefetchMode,
    /// Restore on `first-token`.
    pub on_first_token: bool,
    /// Restore on `message-near`.
    pub on_message: bool,
    /// Restore on `tool-start` what the plan lacked before the tool was known.
    pub on_tool_start: bool,
    /// Restore when the expected end of a long wait nears.
    pub before_expected_end: bool,
    /// Restore sandboxes that wait while the machine has time and memory to spare.
    pub background: bool,
    /// How long before an expected end or message.
    pub lead: Span,
    /// Predict sequential and strided runs.
    pub sequential: bool,
    /// Predict what followed a page before.
    pub transitions: bool,
    /// Predict what the tool, and the sandbox, touched in earlier turns.
    pub working_set: bool,
    /// Predict what had been accessed when the wait began.
    pub access_bitmap: bool,
    /// Least pages of a sandbox's window: 16 to 64.
    pub window_pages_min: Within<MIN_WINDOW, MAX_WINDOW>,
    /// Most pages of it: 16 to 64.
    pub window_pages_max: Within<MIN_WINDOW, MAX_WINDOW>,
    /// Most pages of a plan: 16 to 65,536. It is never longer than 64 windows.
    pub plan_pages: Within<16, 65_536>,
    /// The window halves when fewer of the pages than this are accessed in time, in percent.
    pub hit_floor: Percent,
    /// It grows when more are.
    pub hit_ceiling: Percent,
    /// What "in time" is: after its restore.
    pub hit_window: Span,
    /// Sandboxes that are restored at one time: 1 to 16.
    pub max_concurrency: Within<1, 16>,
    /// What was not restored for this long is dropped.
    pub queue_timeout: Span,
    /// Records in the ring of a sandbox's faults: a power of two, 64 to 16,384.
    pub recorder_records: Records,
    /// A directory to which what is seen is written as traces, for development; nowhere when empty.
    pub trace_dir: PathBuf,
}

/// How it is decided what comes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PrefetchMode {
    /// By plans, and on `first-token` then everything else, unless memory is short. If the module cannot
    /// carry out plans, everything.
    #[default]
    Auto,
    /// By plans; nothing if the module cannot carry them out.
    Plan,
    /// Everything, on `first-token`.
    All,
    /// Nothing does.
    Off,
}

/// The objective that all parts work for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Slo {
    /// For how long the first tool of a turn may wait for its pages, in 99 of 100 turns.
    pub first_tool_p99: Span,
}

/// A number of records: a power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Records(u32);

impl Records {
    /// The number.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl Serialize for Records {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u32(self.0)
    }
}

impl<'de> Deserialize<'de> for Records {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let (least, most) = (agentzip_uapi::MIN_RECORDS, agentzip_uapi::MAX_RECORDS);
        let number = i64::deserialize(from)?;
        match u32::try_from(number) {
            Ok(number) if number.is_power_of_two() && (least..=most).contains(&number) => {
                Ok(Records(number))
            }
            _ => Err(D::Error::custom(format!(
                "{number} is no power of two from {least} to {most}"
            ))),
        }
    }
}

impl Default for Prefetch {
    fn default() -> Self {
        Prefetch {
            mode: PrefetchMode::Auto,
            on_first_token: true,
            on_message: true,
            on_tool_start: true,
            before_expected_end: true,
            background: false,
            lead: Span::s(1),
            sequential: true,
            transitions: true,
            working_set: true,
            access_bitmap: true,
            window_pages_min: Within::new(MIN_WINDOW),
            window_pages_max: Within::new(MAX_WINDOW),
            plan_pages: Within::new(4096),
            hit_floor: Percent::new(50),
            hit_ceiling: Percent::new(80),
            hit_window: Span::ms(500),
            max_concurrency: Within::new(8),
            queue_timeout: Span::ms(500),
            recorder_records: Records(2048),
            trace_dir: PathBuf::new(),
        }
    }
}

impl Default for Slo {
    fn default() -> Self {
        Slo {
            first_tool_p99: Span::ms(50),
        }
    }
}

impl Prefetch {
    /// What the learner takes.
    pub fn predictors(&self) -> Settings {
        Settings {
            sequential: self.sequential,
            transitions: self.transitions,
            working_set: self.working_set,
            access_bitmap: self.access_bitmap,
            ..Settings::default()
        }
    }
}
