// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The report for people.

use super::super::scenario::mebibytes;
use super::Report;

impl Report {
    /// Prints the tables, every line for the user.
    pub fn print(&self) {
        let line = |text: String| println!("@@ {text}");
        line(String::new());
        line(format!(
            "{} sandboxes forked from one Python {} zygote, Linux {} ({}), owned memory while all wait for the LLM",
            self.sandboxes, self.python, self.kernel, self.accel
        ));
        line(format!(
            "{:<22} {:>9} {:>6} {:>9} {:>9} {:>9} {:>9} {:>9} {:>7} {:>8} {:>8}",
            "MiB",
            "owned",
            "ratio",
            "anon",
            "pool",
            "metadata",
            "outside",
            "MemAvail",
            "turn s",
            "checked",
            "digests"
        ));
        for (configuration, run) in self.runs.all() {
            line(format!(
                "{:<22} {:>9.2} {:>6.2} {:>9.2} {:>9.2} {:>9.2} {:>9.2} {:>9.2} {:>7.2} {:>8} {:>8}",
                configuration.name(),
                mebibytes(run.owned_bytes as f64),
                run.ratio,
                mebibytes(run.anonymous_bytes as f64),
                mebibytes(run.pool_bytes as f64),
                mebibytes(run.overhead_bytes as f64),
                mebibytes(run.outside_bytes as f64),
                mebibytes(run.available_change_bytes as f64),
                run.turn_seconds_median,
                run.pages_checked,
                if run.digests_equal { "equal" } else { "DIFFER" },
            ));
        }
        line("owned = anon + pool + metadata, mean over the waits from the second on; outside: swapped out, but zero-filled or on the disk".into());
        line("MemAvail: the fall of MemAvailable over the same time; turn s: median of the turns after a wait; checked: pages read back".into());
        line(String::new());
        line(format!(
            "{:<12} {:>9} {:>7} {:>11} {:>13}",
            "AgentZip", "pages", "share", "bytes", "bytes a page"
        ));
        let stored: u64 = self
            .runs
            .agentzip
            .representations
            .iter()
            .map(|r| r.pages)
            .sum();
        for representation in &self.runs.agentzip.representations {
            line(format!(
                "{:<12} {:>9} {:>6.1}% {:>11} {:>13.1}",
                representation.name,
                representation.pages,
                100.0 * representation.pages as f64 / (stored as f64).max(1.0),
                representation.bytes,
                representation.bytes_per_page
            ));
        }
        line(format!(
            "bytes: payloads in the sandboxes' arenas; {:.2} MiB of the pool are reference pages, which siblings share",
            mebibytes(self.runs.agentzip.shared_bytes as f64)
        ));
        if let Some(look) = &self.runs.agentzip.second_look {
            line(format!(
                "second look: {} pages, {} left, in {:.0} CPU seconds (stores and loads: {:.0}); a wait lasts until it is done: {} s",
                look.pages,
                look.pages_left,
                look.cpu_seconds,
                look.store_and_load_cpu_seconds,
                list(&look.wait_seconds),
            ));
        }
        self.print_alignment();
        if let Some(saved) = &self.runs.agentzip.stores_saved {
            line(format!(
                "{} pages reclaimed, {} stored; {} unchanged since they were loaded, so {:.0}% of the stores were saved",
                saved.reclaimed_pages,
                saved.stored_pages,
                saved.saved_pages,
                100.0 * saved.share
            ));
        }
        line(String::new());
        line(format!(
            "a sandbox owns {:.1} MiB at the last wait (at least {:.1}), {:.0}% of its pages fresh; THP {}",
            mebibytes(self.owned_bytes_per_sandbox as f64),
            mebibytes(self.owned_bytes_per_sandbox_min as f64),
            100.0 * self.fresh_share,
            self.thp
        ));
        for check in &self.checks {
            let word = if check.passed { "ok    " } else { "NOT OK" };
            line(format!("{word} {} ({})", check.name, check.detail));
        }
    }

    fn print_alignment(&self) {
        let line = |text: String| println!("@@ {text}");
        line(String::new());
        line(format!(
            "{:<22} {:>8} {:>19} {:>24} {:>13} {:>6} {:>10} {:>8}",
            "turn after a wait",
            "median s",
            "quartiles",
            "medians of repetitions",
            "reclaimed MiB",
            "jobs",
            "in a turn",
            "CPU s"
        ));
        for (configuration, run) in self.runs.all() {
            let spread = &run.turn_seconds;
            let medians: Vec<String> = run
                .repetitions
                .iter()
                .map(|one| format!("{:.2}", one.turn_seconds_median))
                .collect();
            let jobs = || run.repetitions.iter().filter_map(|one| one.jobs.as_ref());
            line(format!(
                "{:<22} {:>8.2} {:>8.2} to {:>7.2} {:>24} {:>13.0} {:>6} {:>10} {:>8.1}",
                configuration.name(),
                run.turn_seconds_median,
                spread.lower_quartile,
                spread.upper_quartile,
                medians.join(" "),
                mebibytes(run.reclaimed_bytes as f64),
                jobs().map(|jobs| jobs.count).sum::<u64>(),
                jobs().map(|jobs| jobs.in_a_turn).sum::<u64>(),
                jobs().fold(0.0, |sum, jobs| sum + jobs.cpu_seconds),
            ));
        }
        line(format!(
            "a wait of agentzip: {} s; time_scale {:.1}; pages read back on first-token: {}",
            list(&self.runs.agentzip.wait_seconds),
            self.time_scale,
            if self.restore_on_first_token {
                "yes"
            } else {
                "no"
            }
        ));
    }
}

/// Whole seconds, side by side.
fn list(seconds: &[f64]) -> String {
    let seconds: Vec<String> = seconds.iter().map(|s| format!("{s:.0}")).collect();
    seconds.join(", ")
}
