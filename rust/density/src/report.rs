// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The results as text and as JSON.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write};
use std::path::Path;

use agentzip_store::engine::Policy;
use serde::Serialize;
use serde_json::{json, Map, Value};

use crate::ablation::Ablated;
use crate::account::{ratio, Account};
use crate::baseline::{Baseline, Dictionary, ZSWAP_ZSTD};
use crate::corpus::Manifest;
use crate::replay::{Life, Timings, ALL, SAMPLED};
use crate::timing::Times;

/// Most bytes of metadata a page.
const MAX_METADATA: f64 = 32.0;

/// The median load takes at most this part of zstd-3's.
const MAX_DECODE: f64 = 0.5;

/// What a scenario showed.
pub struct ScenarioReport {
    /// Where the pages come from.
    pub manifest: Manifest,
    /// Sandboxes that took part.
    pub sandboxes: usize,
    /// Pages of the template.
    pub template_pages: usize,
    /// The life of the group.
    pub life: Life,
    /// Its times.
    pub timings: Timings,
    /// The same pages elsewhere.
    pub baselines: Vec<Baseline>,
    /// The dictionary of one of them.
    pub dictionary: Dictionary,
    /// What each mechanism is worth, if asked for.
    pub ablation: Vec<Ablated>,
}

impl ScenarioReport {
    fn zswap(&self) -> f64 {
        let found = self
            .baselines
            .iter()
            .find(|baseline| baseline.name == ZSWAP_ZSTD);
        found.map_or(0.0, |baseline| baseline.ratio)
    }

    /// How many times zswap's ratio is wanted; `None` where the scenario has no such target.
    fn target(&self) -> Option<f64> {
        match self.manifest.name.as_str() {
            "rollout-alike" => Some(3.1),
            "rollout-diverging" => Some(2.2),
            "fan-out" => Some(2.3),
            _ => None,
        }
    }

    /// The second look, where everything dear is done.
    fn encode(&self) -> Times {
        all(&self.timings.second_look)
    }

    /// The store in reclaim.
    fn reclaim(&self) -> Times {
        all(&self.timings.encode)
    }

    fn decode(&self) -> Times {
        all(&self.timings.decode)
    }

    fn json(&self) -> Value {
        let last = self.life.last();
        json!({
            "ratio": last.ratio(),
            "ratio_zswap_zstd3": self.zswap(),
            "metadata_bytes_per_page": last.metadata_per_page(),
            "encode_ns_median": self.encode().median,
            "encode_ns_mean": self.encode().mean,
            "encode_running_ns_mean": self.reclaim().mean,
            "lz4_encode_ns_mean": self.timings.lz4_encode.mean,
            "decode_ns_median": self.decode().median,
            "zstd3_encode_ns_median": self.timings.zstd3_encode.median,
            "zstd3_decode_ns_median": self.timings.zstd3_decode.median,
            "ratio_mean_over_rounds": self.life.mean_ratio(),
            "ratio_by_round": self.life.rounds.iter().map(Account::ratio).collect::<Vec<_>>(),
            "sandboxes": self.sandboxes,
            "template_pages": self.template_pages,
            "owned_bytes": last.owned(),
            "store_bytes": last.total(),
            "template_backed_bytes_per_page": last.template_backed.bytes_per_page(),
            "fresh_bytes_per_page": last.fresh.bytes_per_page(),
            "store": last,
            "store_by_round": self.life.rounds,
            "store_when_half_have_left": self.life.half_left,
            "events": self.life.events,
            "times_ns": self.timings,
            "baselines": self.baselines,
            "dictionaries_tried": self.dictionary.tried,
            "ablation": self.ablation,
            "corpus": self.manifest,
        })
    }

    fn text(&self, out: &mut String) -> fmt::Result {
        let last = self.life.last();
        writeln!(
            out,
            "== {}: {} sandboxes, waits {:?}, corpus seed {}, made {}",
            self.manifest.name,
            self.sandboxes,
            self.manifest.waits,
            self.manifest.seed,
            date(self.manifest.made)
        )?;
        writeln!(out, "{} pages owned ({:.1} MiB a sandbox), {} distinct zero pages left out; template {} pages",
            last.entries + last.refused,
            mib(last.owned()) / self.sandboxes as f64,
            self.life.events.zero, self.template_pages)?;
        self.targets(out)?;
        let by_round: Vec<String> = self
            .life
            .rounds
            .iter()
            .map(|round| format!("{:.2}", round.ratio()))
            .collect();
        writeln!(
            out,
            "ratio by round {} (mean {:.2}); when half have left {:.2}",
            by_round.join(" "),
            self.life.mean_ratio(),
            self.life.half_left.ratio()
        )?;
        self.events(out)?;
        self.bytes(out)?;
        self.times(out)?;
        self.others(out)?;
        if !self.ablation.is_empty() {
            self.ablation(out)?;
        }
        writeln!(out)
    }

    fn targets(&self, out: &mut String) -> fmt::Result {
        let last = self.life.last();
        let times = ratio(last.ratio(), self.zswap());
        write!(
            out,
            "ratio {:.2}, {:.2} times the {:.2} of {ZSWAP_ZSTD}",
            last.ratio(),
            times,
            self.zswap()
        )?;
        match self.target() {
            Some(target) => writeln!(out, " (target {target}: {})", verdict(times >= target))?,
            None => writeln!(out)?,
        }
        let metadata = last.metadata_per_page();
        writeln!(
            out,
            "metadata {metadata:.1} B a page (target {MAX_METADATA}: {})",
            verdict(metadata <= MAX_METADATA)
        )?;
        let decode = ratio(
            self.decode().median as f64,
            self.timings.zstd3_decode.median as f64,
        );
        writeln!(out, "median load {decode:.2} of zstd-3's (target {MAX_DECODE}: {}); mean store in reclaim {:.2} of lz4's; second look {:.1} (median) and {:.1} (mean) times zstd-3's",
            verdict(decode <= MAX_DECODE),
            ratio(self.reclaim().mean as f64, self.timings.lz4_encode.mean as f64),
            ratio(self.encode().median as f64, self.timings.zstd3_encode.median as f64),
            ratio(self.encode().mean as f64, self.timings.zstd3_encode.mean as f64))
    }

    fn events(&self, out: &mut String) -> fmt::Result {
        let events = &self.life.events;
        writeln!(out, "{} stores, {} of them looked at again, {} entries and reference pages renewed with a new dictionary, {} kept unchanged, {} refused; {} loads compared; {} promotions, {} compactions",
            events.stores, events.improved, events.renewed, events.kept, events.incompressible + events.no_memory, events.loads,
            events.promotions, events.compactions)
    }

    fn bytes(&self, out: &mut String) -> fmt::Result {
        let last = self.life.last();
        let pages = last.entries as f64;
        let per_page = |bytes: u64| ratio(bytes as f64, pages);
        writeln!(
            out,
            "\nbytes a page at the last wait: {:.1}",
            per_page(last.total())
        )?;
        for (name, bytes) in [
            ("content", last.content),
            ("headers, base numbers", last.headers),
            ("padding", last.padding),
            ("holes", last.holes),
            ("arena pages, links", last.arena_overhead),
            ("slot table", last.slot_table),
            ("table of references", last.reference_table),
            ("group index", last.group_index),
            ("template content index", last.content_index),
            ("template index", last.template_index),
            ("dictionary, with tables", last.dictionaries),
            ("objects", last.objects),
        ] {
            writeln!(
                out,
                "  {name:<26} {:>9.2} {:>9.2} MiB",
                per_page(bytes),
                mib(bytes)
            )?;
        }
        for (name, share) in [
            ("template-backed", last.template_backed),
            ("fresh", last.fresh),
        ] {
            writeln!(
                out,
                "  {name:<26} {:>9.1} on {:.1}% of the pages",
                share.bytes_per_page(),
                100.0 * ratio(share.pages as f64, pages)
            )?;
        }
        writeln!(
            out,
            "\n{:<24} {:>8} {:>7} {:>9} {:>9}",
            "entries", "", "%", "B a page", "MiB"
        )?;
        for (name, class) in &last.representations {
            class_line(out, name, class.entries, class.bytes, pages)?;
        }
        for (name, class) in &last.references {
            class_line(
                out,
                &format!("reference page, {name}"),
                class.entries,
                class.bytes,
                pages,
            )?;
        }
        Ok(())
    }

    fn times(&self, out: &mut String) -> fmt::Result {
        writeln!(
            out,
            "\nns a page, median/mean/p99 {:>24}   {:>24}   {:>24}",
            "store in reclaim", "second look", "load"
        )?;
        let timings = &self.timings;
        let kinds = [&timings.encode, &timings.second_look, &timings.decode];
        let names: BTreeSet<_> = kinds.iter().flat_map(|times| times.keys()).collect();
        for name in names {
            let [store, look, load] =
                kinds.map(|times| times.get(name).map(triple).unwrap_or_default());
            writeln!(out, "  {name:<24} {store:>24}   {look:>24}   {load:>24}")?;
        }
        writeln!(
            out,
            "  {:<24} {:>24}   {:>24}   {:>24}",
            format!("zstd-3, 1 of {SAMPLED}"),
            triple(&self.timings.zstd3_encode),
            "",
            triple(&self.timings.zstd3_decode)
        )?;
        writeln!(
            out,
            "  {:<24} {:>24}",
            format!("lz4, 1 of {SAMPLED}"),
            triple(&self.timings.lz4_encode)
        )
    }

    fn others(&self, out: &mut String) -> fmt::Result {
        writeln!(
            out,
            "\n{:<32} {:>7} {:>10} {:>14}",
            "other stores", "ratio", "MiB", "metadata B"
        )?;
        for baseline in &self.baselines {
            writeln!(
                out,
                "  {:<30} {:>7.2} {:>10.1} {:>14.1}",
                baseline.name,
                baseline.ratio,
                mib(baseline.bytes),
                baseline.metadata_bytes_per_page
            )?;
        }
        let (size, level) = self.dictionary.chosen();
        writeln!(
            out,
            "  (dictionary of {} KiB, level {level}, the best of {})",
            size >> 10,
            self.dictionary.tried.len()
        )
    }

    fn ablation(&self, out: &mut String) -> fmt::Result {
        writeln!(
            out,
            "\n{:<40} {:>7} {:>8} {:>12} {:>8}",
            "ablation", "ratio", "metadata", "backed B", "fresh B"
        )?;
        for ablated in &self.ablation {
            writeln!(
                out,
                "  {:<38} {:>7.2} {:>8.1} {:>12.1} {:>8.1}",
                ablated.name,
                ablated.ratio,
                ablated.metadata_bytes_per_page,
                ablated.template_backed_bytes,
                ablated.fresh_bytes
            )?;
        }
        Ok(())
    }
}

/// All of a run.
pub struct Report {
    /// The command that was run.
    pub command: String,
    /// When, in seconds since 1970 (UTC).
    pub date: u64,
    /// The policy of the store.
    pub policy: Policy,
    /// By scenario.
    pub scenarios: Vec<ScenarioReport>,
}

/// The machine that a run was on.
#[derive(Debug, Serialize)]
struct Machine {
    cpu: String,
    kernel: String,
    cpus: usize,
}

impl Machine {
    fn this() -> Self {
        let read = |path: &str| std::fs::read_to_string(Path::new(path)).unwrap_or_default();
        let model = read("/proc/cpuinfo");
        let model = model
            .lines()
            .find_map(|line| line.strip_prefix("model name"));
        Self {
            cpu: model
                .unwrap_or_default()
                .trim_start_matches([' ', '\t', ':'])
                .to_owned(),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            cpus: std::thread::available_parallelism().map_or(0, Into::into),
        }
    }
}

impl Report {
    /// For programs.
    pub fn json(&self) -> String {
        let scenarios: Map<String, Value> = self
            .scenarios
            .iter()
            .map(|scenario| (scenario.manifest.name.clone(), scenario.json()))
            .collect();
        let report = json!({
            "command": self.command,
            "date": date(self.date),
            "machine": Machine::this(),
            "policy": format!("{:?}", self.policy),
            "targets": {
                "metadata_bytes_per_page": MAX_METADATA,
                "decode_ns_median_of_zstd3": MAX_DECODE,
                "ratio_of_zswap_zstd3": self.scenarios.iter()
                    .filter_map(|scenario| Some((scenario.manifest.name.clone(), scenario.target()?)))
                    .collect::<BTreeMap<_, _>>(),
            },
            "scenarios": scenarios,
        });
        format!("{report:#}\n")
    }

    /// For people.
    pub fn text(&self) -> String {
        let mut out = String::new();
        for scenario in &self.scenarios {
            scenario.text(&mut out).expect("writing to a string");
        }
        out
    }
}

fn all(times: &BTreeMap<&'static str, Times>) -> Times {
    times.get(ALL).copied().unwrap_or_default()
}

fn verdict(reached: bool) -> &'static str {
    if reached {
        "reached"
    } else {
        "MISSED"
    }
}

fn triple(times: &Times) -> String {
    format!("{}/{}/{}", times.median, times.mean, times.p99)
}

fn class_line(out: &mut String, name: &str, entries: u64, bytes: u64, pages: f64) -> fmt::Result {
    writeln!(
        out,
        "  {name:<22} {entries:>8} {:>7.2} {:>9.1} {:>9.2}",
        100.0 * ratio(entries as f64, pages),
        ratio(bytes as f64, entries as f64),
        mib(bytes)
    )
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// A day (UTC) from the seconds since 1970.
fn date(seconds: u64) -> String {
    // Days since the first of March of the year 0, in eras of 400 years.
    let days = seconds / 86_400 + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + u64::from(month <= 2);
    format!("{year}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        assert_eq!(date(0), "1970-01-01");
        assert_eq!(date(951_782_400), "2000-02-29");
        assert_eq!(date(1_796_083_199), "2026-11-30");
    }
}
