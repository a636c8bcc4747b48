// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reads the file: every refusal names file, line and key.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::de::{Deserialize, Deserializer, Error as _};

use super::Config;
use crate::error::{read_text, Error};

/// Longest file that is read, in bytes.
const LONGEST: u64 = 1 << 20;

/// What is wrong with a configuration file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Problem {
    /// The file.
    pub file: PathBuf,
    /// The line, from 1; `None` when the whole file is meant.
    pub line: Option<usize>,
    /// The key, with its table: `schedule.period`; empty when there is none.
    pub key: String,
    /// What is wrong with it.
    pub problem: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.file.display())?;
        if let Some(line) = self.line {
            write!(f, "{line}:")?;
        }
        if !self.key.is_empty() {
            write!(f, " {}:", self.key)?;
        }
        write!(f, " {}", self.problem)
    }
}

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    ///
    /// When it cannot be read, is no TOML, has a key that is not known, or a value out of its range.
    pub fn read(path: &Path) -> Result<Config, Problem> {
        let whole = |problem: String| Problem {
            file: path.to_owned(),
            line: None,
            key: String::new(),
            problem,
        };
        let text = match path.metadata() {
            Ok(metadata) if metadata.len() > LONGEST => {
                return Err(whole(format!("longer than {LONGEST} bytes")));
            }
            _ => read_text(path).map_err(|error| match error {
                Error::Io { cause, .. } => whole(format!("cannot read: {cause}")),
                other => whole(other.to_string()),
            })?,
        };
        Config::parse(path, &text)
    }

    /// Reads the file of the command line, or [`super::PATH`] when none was named and it is there,
    /// else takes every default.
    ///
    /// # Errors
    ///
    /// As [`Config::read`].
    pub fn load(file: Option<&Path>) -> Result<Config, Problem> {
        match file {
            Some(file) => Config::read(file),
            None if Path::new(super::PATH).exists() => Config::read(Path::new(super::PATH)),
            None => Ok(Config::default()),
        }
    }

    /// Reads the text of a file.
    ///
    /// # Errors
    ///
    /// As [`Config::read`].
    pub fn parse(path: &Path, text: &str) -> Result<Config, Problem> {
        let place = Place { path, text };
        let config: Config = toml::from_str(text)
            .map_err(|error| place.problem(error.span().map(|span| span.start), error.message()))?;
        config.check(&place)?;
        Ok(config)
    }

    /// What no single value shows.
    fn check(&self, place: &Place<'_>) -> Result<(), Problem> {
        let schedule = &self.schedule;
        if schedule.hysteresis_low >= schedule.hysteresis_high {
            return Err(place.named(
                "schedule",
                "hysteresis_low",
                &format!(
                    "{} is not below hysteresis_high, which is {}",
                    schedule.hysteresis_low.get(),
                    schedule.hysteresis_high.get()
                ),
            ));
        }
        let absolute = |table: &str, key: &str, path: &Path| match path.is_absolute() {
            true => Ok(()),
            false => Err(place.named(
                table,
                key,
                &format!("{:?} is no absolute path", path.display().to_string()),
            )),
        };
        absolute("socket", "path", &self.socket.path)?;
        self.check_prefetch(place)?;
        if !self.prefetch.trace_dir.as_os_str().is_empty() {
            absolute("prefetch", "trace_dir", &self.prefetch.trace_dir)?;
        }
        let watch = &self.watch;
        watch
            .trees
            .iter()
            .try_for_each(|tree| absolute("watch", "trees", tree))?;
        watch.check(Path::new("/")).map_err(|error| {
            let key = match error.to_string() {
                text if text.contains("max_depth") => "max_depth",
                text if text.contains("max_directories") => "max_directories",
                _ => "trees",
            };
            place.named("watch", key, &error.to_string())
        })?;
        self.holders
            .iter()
            .try_for_each(|cgroup| absolute("", "holders", cgroup))
    }

    fn check_prefetch(&self, place: &Place<'_>) -> Result<(), Problem> {
        let prefetch = &self.prefetch;
        let (floor, ceiling) = (prefetch.hit_floor.get(), prefetch.hit_ceiling.get());
        if floor >= ceiling {
            let problem = format!("{floor} is not below hit_ceiling, which is {ceiling}");
            return Err(place.named("prefetch", "hit_floor", &problem));
        }
        let (least, most) = (prefetch.window_pages_min, prefetch.window_pages_max);
        if least > most {
            let problem = format!(
                "{} is above window_pages_max, which is {}",
                least.get(),
                most.get()
            );
            return Err(place.named("prefetch", "window_pages_min", &problem));
        }
        Ok(())
    }
}

/// A file, to find lines and keys in.
struct Place<'a> {
    path: &'a Path,
    text: &'a str,
}

impl Place<'_> {
    /// A problem at a byte of the file.
    fn problem(&self, at: Option<usize>, problem: &str) -> Problem {
        let before = at.and_then(|at| self.text.get(..at));
        let line = before.map(|before| before.matches('\n').count());
        let key = line.and_then(|line| self.keys().take(line + 1).last());
        Problem {
            file: self.path.to_owned(),
            line: line.map(|line| line + 1),
            key: key.unwrap_or_default(),
            problem: problem.trim().replace('\n', "; "),
        }
    }

    /// A problem of a key that the file may or may not have.
    fn named(&self, table: &str, key: &str, problem: &str) -> Problem {
        let wanted = join(table, key);
        let line = self.keys().position(|key| key == wanted);
        Problem {
            file: self.path.to_owned(),
            line: line.map(|line| line + 1),
            key: wanted,
            problem: problem.to_owned(),
        }
    }

    /// The key that stands in each line, or the table when it stands alone there.
    fn keys(&self) -> impl Iterator<Item = String> + '_ {
        let mut table = "";
        self.text.lines().map(move |text| {
            let text = text.trim();
            let mut key = "";
            if let Some(header) = text.strip_prefix('[') {
                table = header
                    .trim_start_matches('[')
                    .split(']')
                    .next()
                    .unwrap_or("")
                    .trim();
            } else if let Some((name, _)) = text.split_once('=') {
                key = name.trim();
            }
            join(table, key)
        })
    }
}

fn join(table: &str, key: &str) -> String {
    match (table.is_empty(), key.is_empty()) {
        (true, _) => key.to_owned(),
        (_, true) => table.to_owned(),
        _ => format!("{table}.{key}"),
    }
}

pub(super) fn time_scale<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    let scale = f64::deserialize(from)?;
    match (0.01..=1000.0).contains(&scale) {
        true => Ok(scale),
        false => Err(D::Error::custom(format!(
            "{scale} is not from 0.01 to 1000"
        ))),
    }
}

pub(super) fn level<'de, D: Deserializer<'de>>(from: D) -> Result<u32, D::Error> {
    match i64::deserialize(from)? {
        3 => Ok(3),
        6 => Ok(6),
        other => Err(D::Error::custom(format!(
            "{other} is neither 3 nor 6, the levels that the module knows"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, String> {
        Config::parse(Path::new("a.toml"), text).map_err(|problem| problem.to_string())
    }

    #[test]
    fn an_empty_file_is_every_default() {
        assert_eq!(parse(""), Ok(Config::default()));
    }

    #[test]
    fn the_example_is_every_default() {
        let text = include_str!("../../agentzip.toml");
        assert_eq!(parse(text), Ok(Config::default()));
        // And it leaves none out: what it does not say would be missing from its keys.
        let all = toml::to_string(&Config::default()).unwrap();
        let keys = |text: &str| -> std::collections::BTreeSet<String> {
            let path = Path::new("");
            Place { path, text }
                .keys()
                .filter(|key| !key.is_empty() && !key.starts_with('#'))
                .collect()
        };
        let example: Vec<String> = keys(text).into_iter().collect();
        for key in keys(&all) {
            assert!(example.contains(&key), "{key} is not in agentzip.toml");
        }
    }

    #[test]
    fn what_is_shown_can_be_read() {
        let mut config = Config::default();
        config.tenants.push(super::super::Tenant {
            uid: 1000,
            tree: "/sys/fs/cgroup/t".into(),
            domain: "t".parse().unwrap(),
        });
        config.watch.trees.push("/sys/fs/cgroup/agents".into());
        let text = toml::to_string(&config).unwrap();
        assert_eq!(parse(&text), Ok(config));
    }

    /// The line of a problem is found in one pass, however many there are.
    #[test]
    fn a_long_file_is_refused_soon() {
        let text = "\n".repeat(1 << 20) + "schedule = { hysteresis_low = 80 }\n";
        let problem = parse(&text).unwrap_err();
        assert!(
            problem.contains("is not below hysteresis_high"),
            "{problem}"
        );
    }

    #[test]
    fn refusals_name_file_line_and_key() {
        for (text, parts) in [
            ("[schedule]\nperiod = \"5s\"\ncpu_budget = 250\n", ["a.toml:3: schedule.cpu_budget: 250 is not from 1 to 100"]),
            ("[schedule]\ncpu_budget = -1\n", ["a.toml:2: schedule.cpu_budget: -1 is not from 1 to 100"]),
            ("\n[schedule]\nperiod = 5\n", ["a.toml:3: schedule.period: invalid type: integer `5`, expected a string"]),
            ("[schedule]\nperiod = \"5\"\n", ["a.toml:2: schedule.period: \"5\" is no time"]),
            ("[schedule]\nperoid = \"5s\"\n", ["a.toml:2: schedule.peroid: unknown field `peroid`"]),
            ("[shedule]\n", ["a.toml:1: shedule: unknown field `shedule`"]),
            ("time_scale = 0\n", ["a.toml:1: time_scale: "]),
            ("[profile.batch]\nlevel = 9\n", ["a.toml:2: profile.batch.level: 9 is neither 3 nor 6"]),
            ("[encode]\nhot_skip = 1\n", ["a.toml:2: encode.hot_skip: invalid type: integer `1`, expected a boolean"]),
            ("[schedule]\nhysteresis_low = 80\n", ["a.toml:2: schedule.hysteresis_low: 80 is not below hysteresis_high, which is 75"]),
            ("[watch]\ntrees = [\"agents\"]\n", ["a.toml:2: watch.trees: \"agents\" is no absolute path"]),
            ("[socket]\nmode = \"999\"\n", ["a.toml:2: socket.mode: \"999\" is no mode"]),
            ("[[tenant]]\nuid = 1\ntree = \"/x\"\ndomain = \"a/b\"\n", ["a.toml:4: tenant.domain: a name has"]),
            ("[[tenant]]\nuid = 1\ntree = \"/x\"\n", ["missing field `domain`"]),
            ("[store]\nmax_bytes = \"101%\"\n", ["a.toml:2: store.max_bytes: \"101%\" is neither"]),
            ("a = = 1\n", ["a.toml:1: a: "]),
            ("[prefetch]\nmode = \"some\"\n", ["a.toml:2: prefetch.mode: unknown variant `some`, expected one of `auto`, `plan`"]),
            ("[prefetch]\nrecorder_records = 1000\n", ["a.toml:2: prefetch.recorder_records: 1000 is no power of two from 64 to 16384"]),
            ("[prefetch]\nwindow_pages_max = 65\n", ["a.toml:2: prefetch.window_pages_max: 65 is not from 16 to 64"]),
            ("[prefetch]\nwindow_pages_min = 48\nwindow_pages_max = 32\n", ["a.toml:2: prefetch.window_pages_min: 48 is above window_pages_max, which is 32"]),
            ("[prefetch]\nhit_floor = 80\n", ["a.toml:2: prefetch.hit_floor: 80 is not below hit_ceiling, which is 80"]),
            ("[prefetch]\ntrace_dir = \"traces\"\n", ["a.toml:2: prefetch.trace_dir: \"traces\" is no absolute path"]),
            ("[slo]\nfirst_tool_p99 = 50\n", ["a.toml:2: slo.first_tool_p99: invalid type: integer `50`"]),
        ] {
            let problem = parse(text).unwrap_err();
            for part in parts {
                assert!(problem.contains(part), "{part:?} is not in {problem:?}");
            }
        }
    }

    #[test]
    fn a_file_that_is_not_there() {
        let problem = Config::load(Some(Path::new("/nonexistent/a.toml"))).unwrap_err();
        assert!(
            problem
                .to_string()
                .starts_with("/nonexistent/a.toml: cannot read: "),
            "{problem}"
        );
    }
}
