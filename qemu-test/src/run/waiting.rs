// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What the module does while agents wait: the second look.
//!
//! A wait of the scenario lasts as long as that takes, as the times of an emulated guest stand in no
//! relation to those of an LLM. How long that is, and how much CPU time it takes, is reported. No
//! dictionary is made: there are fewer pages than it would pay for.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{ensure, Result};
use serde::Serialize;

use super::backend::Backend;

/// The second look is done when nothing waits for it and it has not taken any time for so long.
/// Housekeeping starts it every second where there is something to do.
const QUIET: Duration = Duration::from_secs(4);
/// The same while something waits for it: longer than it pauses when it is given a small share only.
const STUCK: Duration = Duration::from_secs(30);
/// Pause between two looks at it.
const POLL: Duration = Duration::from_millis(250);
/// Pause between two lines that say how far it is.
const TELL: Duration = Duration::from_secs(20);
/// Longest wait.
const LIMIT: Duration = Duration::from_secs(8 * 60);

/// What the waits were used for, up to the last one.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct SecondLook {
    /// Entries that were encoded again.
    pub pages: u64,
    /// Entries that could not be: provisional at the end.
    pub pages_left: u64,
    /// CPU seconds that this took.
    pub cpu_seconds: f64,
    /// CPU seconds in stores and loads, for comparison.
    pub store_and_load_cpu_seconds: f64,
    /// Seconds from the end of reclaim to the end of the second look, for each wait. Where nothing is
    /// aligned with waits: to the end of the wait.
    pub wait_seconds: Vec<f64>,
}

impl SecondLook {
    /// Waits until the module has nothing to do any more; adds a wait.
    pub fn wait(&mut self, backend: &Backend, name: &str) -> Result<()> {
        let begin = Instant::now();
        let mut told = begin;
        let mut last = (count(&backend.statistics()?, "second_look_ns"), begin);
        let mut quiet = QUIET;
        while last.1.elapsed() < quiet {
            ensure!(
                begin.elapsed() < LIMIT,
                "the second look was not done after {} s",
                LIMIT.as_secs()
            );
            std::thread::sleep(POLL);
            let statistics = backend.statistics()?;
            let now = count(&statistics, "second_look_ns");
            if now != last.0 {
                last = (now, Instant::now());
            }
            let left = count(&statistics, "provisional");
            quiet = if left == 0 { QUIET } else { STUCK };
            if told.elapsed() > TELL {
                told = Instant::now();
                println!("@@ {name}: second look, {left} pages left");
            }
        }
        self.wait_ends(last.1 - begin, backend)
    }

    /// Adds a wait that has lasted so long.
    pub fn wait_ends(&mut self, lasted: Duration, backend: &Backend) -> Result<()> {
        self.wait_seconds.push(lasted.as_secs_f64());
        self.read(&backend.statistics()?);
        Ok(())
    }

    fn read(&mut self, statistics: &BTreeMap<String, u64>) {
        let seconds = |name| count(statistics, name) as f64 / 1e9;
        self.pages = count(statistics, "second_look_pages");
        self.pages_left = count(statistics, "provisional");
        self.cpu_seconds = seconds("second_look_ns");
        self.store_and_load_cpu_seconds = seconds("encode_ns") + seconds("decode_ns");
    }
}

fn count(statistics: &BTreeMap<String, u64>, name: &str) -> u64 {
    statistics.get(name).copied().unwrap_or(0)
}
