// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `cargo xtask corpus`: page sets of real processes, made on this machine without a guest.
//!
//! `agentzip-corpus` (rust/density) runs the processes in a root of their own, in mount and PID
//! namespaces of their own and with an environment of their own, so that nothing of the host is
//! in their pages. What it writes is kept in the cache, in a folder named after a hash of the
//! recipe: root, workload, number of sandboxes and seed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::{ensure, Context, Result};
use clap::ValueEnum;

use crate::setup::{self, Cache};
use crate::{build, paths, pinned, progress};

/// First letters of a corpus's folder in the cache.
pub const PREFIX: &str = "corpus-";
/// Sandboxes of a scenario, unless told otherwise.
pub const SANDBOXES: u32 = 16;
/// Seed of the workload, unless told otherwise.
pub const SEED: u64 = 1;

/// How the laboratory is built.
const PROFILE: &str = "laboratory";

/// Where things are in the root.
const BINARIES: &str = "/agentzip/bin";
const WORKLOAD: &str = "/agentzip/workload";
const OUT: &str = "/agentzip/out";
const REPORT: &str = "/agentzip/report";

/// Options of `cargo xtask corpus`.
#[derive(clap::Args)]
pub struct Args {
    /// Only this scenario (may be repeated).
    #[arg(long, value_enum, value_name = "NAME")]
    scenario: Vec<Scenario>,
    /// Number of sandboxes; what a real group has is not asked of less than the default.
    #[arg(long, default_value_t = SANDBOXES, value_parser = clap::value_parser!(u32).range(1..=64))]
    sandboxes: u32,
    /// Seed of what the agents decide and write.
    #[arg(long, default_value_t = SEED)]
    seed: u64,
    /// Make the scenarios anew.
    #[arg(long)]
    again: bool,
}

/// What the processes of a page set have in common.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Scenario {
    /// Forks of a Python zygote with one task, the same in their first three turns
    RolloutAlike,
    /// Forks of a Python zygote with one task, different from their first turn on
    RolloutDiverging,
    /// Forks of a Python zygote, each with another subtask
    FanOut,
    /// Node processes started from scratch
    ScratchNode,
    /// Python processes started from scratch
    ScratchPython,
}

impl Scenario {
    /// Its name, as `agentzip-corpus` knows it and in its folder's.
    fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// Runs `cargo xtask corpus`.
pub fn main(args: Args) -> Result<ExitCode> {
    let start = Instant::now();
    let scenarios = match args.scenario.as_slice() {
        [] => Scenario::value_variants(),
        some => some,
    };
    let maker = Maker::new(args.sandboxes, args.seed)?;
    for scenario in scenarios {
        maker.ensure(*scenario, args.again)?;
    }
    let table = maker
        .command(&maker.folder, &["table", OUT])
        .output()
        .context("run agentzip-corpus")?;
    ensure!(
        table.status.success(),
        "agentzip-corpus table failed: {}",
        String::from_utf8_lossy(&table.stderr).trim()
    );
    print!("{}", String::from_utf8_lossy(&table.stdout));
    println!(
        "corpus: {} ({})",
        maker.folder.display(),
        progress::seconds(start.elapsed())
    );
    Ok(ExitCode::SUCCESS)
}

/// Runs `cargo xtask bench density`: replays the corpus of the default parameters, making what is missing
/// of it. `words` go to `agentzip-density`.
pub fn bench(words: &[String]) -> Result<ExitCode> {
    let named = |scenario: &Scenario| {
        let name = scenario.name();
        words
            .windows(2)
            .any(|w| w[0] == "--scenario" && w[1] == name)
            || words.iter().any(|w| *w == format!("--scenario={name}"))
    };
    let all = Scenario::value_variants();
    let some = all.iter().any(named);
    let maker = Maker::new(SANDBOXES, SEED)?;
    for scenario in all.iter().filter(|scenario| !some || named(scenario)) {
        maker.ensure(*scenario, false)?;
    }
    let report = paths::target().join("report");
    fs::create_dir_all(&report).with_context(|| format!("mkdir {}", report.display()))?;
    let status = maker
        .enter(&[(&maker.folder, OUT), (&report, REPORT)])
        .args(["--", &format!("{BINARIES}/agentzip-density")])
        .args(["--corpus", OUT, "--json", &format!("{REPORT}/density.json")])
        .args(words)
        .status()
        .context("run agentzip-density")?;
    ensure!(status.success(), "agentzip-density ended with {status}");
    println!("report: {}", report.join("density.json").display());
    Ok(ExitCode::SUCCESS)
}

/// Where the corpus of these parameters is or will be. The root's folder must be known: its name says
/// how it was made.
pub fn folder(cache: &Cache, sandboxes: u32, seed: u64) -> Result<PathBuf> {
    let root = cache
        .corpusroot
        .file_name()
        .unwrap_or_default()
        .to_string_lossy();
    let mut recipe = format!("{root}\n{sandboxes}\n{seed}\n").into_bytes();
    let mut files = vec![paths::in_repo(
        "rust/density/src/bin/agentzip-corpus/scenario.rs",
    )];
    let workload = paths::in_repo("qemu-test/workload");
    for entry in fs::read_dir(&workload).with_context(|| format!("read {}", workload.display()))? {
        let path = entry?.path();
        // Not what the interpreter caches beside them.
        if path.is_file() {
            files.push(path);
        }
    }
    files.sort();
    for file in files {
        recipe.extend(fs::read(&file).with_context(|| format!("read {}", file.display()))?);
    }
    Ok(paths::cache()?.join(format!("{PREFIX}{}", setup::hash(&recipe)?)))
}

/// Makes the scenarios of one corpus.
struct Maker {
    cache: Cache,
    sandboxes: u32,
    seed: u64,
    folder: PathBuf,
}

impl Maker {
    /// Makes what is missing of root and program.
    fn new(sandboxes: u32, seed: u64) -> Result<Maker> {
        ensure!(
            paths::owner().0 == 0 || paths::find_program("sudo").is_some(),
            "cargo xtask corpus needs root's rights, to see which pages a process shares: \
             run it as root, or install sudo"
        );
        let cache = setup::ensure_corpusroot()?;
        let words = [
            "build",
            "--profile",
            PROFILE,
            "--locked",
            "--package",
            "agentzip-density",
        ];
        build::logged(
            "density",
            "build agentzip-corpus",
            &mut pinned::cargo(&words),
        )?;
        let folder = folder(&cache, sandboxes, seed)?;
        Ok(Maker {
            cache,
            sandboxes,
            seed,
            folder,
        })
    }

    /// `agentzip-corpus` in the root, with a folder to write to.
    fn command(&self, out: &Path, args: &[&str]) -> Command {
        let workload = paths::in_repo("qemu-test/workload");
        let mut command = self.enter(&[(&workload, WORKLOAD), (out, OUT)]);
        command
            .args(["--", &format!("{BINARIES}/agentzip-corpus")])
            .args(args);
        command
    }

    /// The way into the root, with the programs and these folders in it.
    fn enter(&self, folders: &[(&Path, &str)]) -> Command {
        let bind = |from: &Path, to: &str| format!("{}:{to}", from.display());
        let mut command = Command::new(paths::in_repo("scripts/enter.sh"));
        command
            .arg(&self.cache.corpusroot)
            .args(["--bind", &bind(&pinned::binaries(PROFILE), BINARIES)]);
        for (from, to) in folders {
            command.args(["--bind", &bind(from, to)]);
        }
        command
    }

    /// Makes a scenario if it is missing, or in any case.
    fn ensure(&self, scenario: Scenario, again: bool) -> Result<()> {
        let _lock = setup::lock("corpus.lock")?;
        let name = scenario.name();
        let target = self.folder.join(&name);
        if target.exists() && !again {
            return Ok(());
        }
        let temporary = self.folder.with_extension("tmp");
        if temporary.exists() {
            setup::remove(&temporary)?;
        }
        for dir in [&self.folder, &temporary] {
            fs::create_dir_all(dir).with_context(|| format!("mkdir {}", dir.display()))?;
        }
        let log = paths::cache()?
            .join("log")
            .join(format!("{PREFIX}{name}.log"));
        let (sandboxes, seed) = (self.sandboxes.to_string(), self.seed.to_string());
        let args = [
            "make",
            OUT,
            "--scenario",
            &name,
            "--sandboxes",
            &sandboxes,
            "--seed",
            &seed,
        ];
        let (status, _) = progress::run(&name, &mut self.command(&temporary, &args), &log)?;
        if !status.success() {
            for line in progress::tail(&log, 20) {
                eprintln!("    {line}");
            }
        }
        ensure!(
            status.success(),
            "scenario {name} was not made ({status}), log: {}",
            log.display()
        );
        if target.exists() {
            setup::remove(&target)?;
        }
        setup::rename(&temporary.join(&name), &target)?;
        setup::remove(&temporary)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// This program and `agentzip-corpus` know the same scenarios.
    #[test]
    fn scenarios_exist() {
        let path = paths::in_repo("rust/density/src/bin/agentzip-corpus/scenario.rs");
        let text = fs::read_to_string(path).unwrap();
        let theirs: Vec<_> = text
            .lines()
            .filter_map(|line| line.trim().strip_prefix("name: \"")?.strip_suffix("\","))
            .collect();
        let ours = Scenario::value_variants().iter().map(|s| s.name());
        assert_eq!(ours.collect::<Vec<_>>(), theirs);
    }
}
