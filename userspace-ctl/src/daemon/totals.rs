// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What the daemon has done since it began, for `status` of the socket.

use std::time::Duration;

use serde::Serialize;

use crate::worker::Outcome;

/// Stops that are kept for the median.
const KEPT: usize = 1024;

/// Counters since the start. Times are in microseconds.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Totals {
    /// Hints that were taken.
    pub hints: u64,
    /// Reclaim jobs that ended.
    pub jobs: u64,
    /// Bytes that they took.
    pub reclaimed_bytes: u64,
    /// Their CPU time.
    pub jobs_cpu_us: u64,
    /// Jobs that were stopped before they were done.
    pub stops: u64,
    /// Those of them that were stopped while the kernel aged pages, which cannot be interrupted.
    pub stops_in_aging: u64,
    /// From order to end of a stop: the median of the last 1,024 that were not in aging.
    pub stop_median_us: u64,
    /// The longest of those since the start.
    pub stop_max_us: u64,
    /// The longest of those in aging.
    pub stop_in_aging_max_us: u64,
    /// Restores that ended.
    pub restores: u64,
    /// Their CPU time.
    pub restores_cpu_us: u64,
    /// Rounds of samples of hot pages that ended.
    pub hot_rounds: u64,
    /// Their CPU time.
    pub hot_cpu_us: u64,
    #[serde(skip)]
    last: Vec<u64>,
    #[serde(skip)]
    next: usize,
}

impl Totals {
    /// A job ended.
    pub fn job(&mut self, outcome: &Outcome) {
        self.jobs += 1;
        self.reclaimed_bytes = self.reclaimed_bytes.saturating_add(outcome.reclaimed_bytes);
        self.jobs_cpu_us = self.jobs_cpu_us.saturating_add(micros(outcome.cpu));
        if !outcome.stopped {
            return;
        }
        self.stops += 1;
        let took = micros(outcome.stop_latency);
        if outcome.in_aging() {
            self.stops_in_aging += 1;
            self.stop_in_aging_max_us = self.stop_in_aging_max_us.max(took);
            return;
        }
        self.stop_max_us = self.stop_max_us.max(took);
        match self.last.get_mut(self.next) {
            Some(slot) => *slot = took,
            None => self.last.push(took),
        }
        self.next = (self.next + 1) % KEPT;
    }

    /// A restore ended.
    pub fn restore(&mut self, cpu: Duration) {
        self.restores += 1;
        self.restores_cpu_us = self.restores_cpu_us.saturating_add(micros(cpu));
    }

    /// The restore workers took that much.
    pub fn spent(&mut self, cpu: Duration) {
        self.restores_cpu_us = self.restores_cpu_us.saturating_add(micros(cpu));
    }

    /// A round of samples of hot pages ended.
    pub fn hot_round(&mut self, cpu: Duration) {
        self.hot_rounds += 1;
        self.hot_cpu_us = self.hot_cpu_us.saturating_add(micros(cpu));
    }

    /// Everything, with the median as of now.
    pub fn report(&self) -> Totals {
        let mut last = self.last.clone();
        last.sort_unstable();
        Totals {
            stop_median_us: last.get(last.len() / 2).copied().unwrap_or(0),
            last: Vec::new(),
            ..self.clone()
        }
    }
}

/// Whole microseconds.
pub fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(stop_us: u64, reclaimed_bytes: u64) -> Outcome {
        Outcome {
            asked_bytes: 1 << 20,
            reclaimed_bytes,
            sparing: false,
            spared_bytes: 0,
            short: false,
            stopped: stop_us > 0,
            cpu: Duration::from_micros(5),
            elapsed: Duration::from_micros(7),
            stop_latency: Duration::from_micros(stop_us),
        }
    }

    #[test]
    fn stops_in_aging_are_kept_apart() {
        let mut totals = Totals::default();
        for _ in 0..3000 {
            totals.job(&outcome(0, 100));
            totals.job(&outcome(40, 100));
        }
        totals.job(&outcome(90, 100));
        totals.job(&outcome(70_000, 0));
        totals.restore(Duration::from_millis(2));
        totals.hot_round(Duration::from_millis(3));
        assert_eq!((totals.hot_rounds, totals.hot_cpu_us), (1, 3000));
        let report = totals.report();
        assert_eq!(
            (report.jobs, report.stops, report.stops_in_aging),
            (6002, 3002, 1)
        );
        assert_eq!((report.stop_median_us, report.stop_max_us), (40, 90));
        assert_eq!(report.stop_in_aging_max_us, 70_000);
        assert_eq!(report.jobs_cpu_us, 6002 * 5);
        assert_eq!((report.restores, report.restores_cpu_us), (1, 2000));
        assert_eq!(totals.last.len(), KEPT);
    }

    #[test]
    fn nothing_yet() {
        assert_eq!(Totals::default().report().stop_median_us, 0);
    }
}
