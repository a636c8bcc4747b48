// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `cargo xtask fuzz`: the targets of rust/fuzz, natively, each for as long as one likes; a short run of
//! each is a part of the tests.
//!
//! They are built by the toolchain root, whose rustc and clang count what is executed without being
//! nightly ones. Rust is built with its checks, zstd as the module has it, with its assertions.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{bail, ensure, Context, Result};

use crate::test::Total;
use crate::{build, paths, pinned, progress, setup};

/// What is compiled for. Naming it keeps the flags away from build scripts and macros.
const TRIPLE: &str = "x86_64-unknown-linux-gnu";

/// Makes rustc count the edges that are executed, and show libFuzzer what is compared.
const RUSTFLAGS: &str = "-Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares \
    -Cllvm-args=-simplifycfg-branch-fold-threshold=0";

/// The same for C, and what rust/ffi/zstd.c says to zstd.
const C: [&str; 2] = [
    "env.CC_x86_64_unknown_linux_gnu='clang'",
    "env.CFLAGS_x86_64_unknown_linux_gnu='-fsanitize=fuzzer-no-link -DDEBUGLEVEL=1 \
     -DZSTD_DISABLE_ASM -DZSTD_NO_INTRINSICS -DDYNAMIC_BMI2=0 \
     -DZSTD_DECODER_INTERNAL_BUFFER=16384'",
];

/// What every input must keep to: seconds, MiB of the whole process, and bytes that it has itself.
const LIMITS: [&str; 3] = ["-timeout=10", "-rss_limit_mb=512", "-max_len=4096"];

/// The run in the tests: the same each time, but for how far it gets in its time.
const SHORT: Effort = Effort {
    seconds: 5,
    runs: Some(100_000),
    seed: 1,
};

/// Options of `cargo xtask fuzz`.
#[derive(clap::Args)]
pub struct Args {
    /// Only this target (may be repeated).
    #[arg(long, value_name = "NAME")]
    target: Vec<String>,
    /// How long each target runs, in seconds.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
    /// Seed of what is tried, not 0; taken from the clock when it is not given.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    seed: Option<u32>,
    /// Run a target once, with this input, and show all that it says.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["seconds", "seed"])]
    input: Option<PathBuf>,
}

/// How much is tried.
struct Effort {
    seconds: u32,
    /// Most inputs.
    runs: Option<u32>,
    seed: u32,
}

/// Runs `cargo xtask fuzz`.
pub fn main(args: Args) -> Result<ExitCode> {
    setup::ensure_toolchain()?;
    let mut names = targets()?;
    for name in &args.target {
        ensure!(
            names.contains(name),
            "no target {name:?}; there are: {}",
            names.join(", ")
        );
    }
    if !args.target.is_empty() {
        names = args.target;
    }
    build_all()?;
    if let Some(input) = args.input {
        let [name] = names.as_slice() else {
            bail!("whose input is it? Give one --target");
        };
        return once(name, &input);
    }
    let effort = Effort {
        seconds: args.seconds,
        runs: None,
        seed: args.seed.unwrap_or_else(clock),
    };
    println!("seed {}", effort.seed);
    let mut total = Total::default();
    for name in &names {
        // Finds of earlier runs are gone on from.
        let finds = folder(&format!("corpus/{name}"))?;
        total.check(&format!("fuzz {name}"), run(name, &effort, &finds));
    }
    Ok(total.end())
}

/// A short run of every target.
pub fn short(total: &mut Total) {
    let names = match build_all().and_then(|()| targets()) {
        Ok(names) => names,
        Err(error) => {
            total.check("fuzz targets", Err(error));
            return;
        }
    };
    for name in names {
        let finds = empty_folder(&format!("short/{name}"));
        let result = finds.and_then(|finds| run(&name, &SHORT, &finds));
        total.check(&format!("fuzz {name}"), result);
    }
}

/// Names of all targets, sorted.
fn targets() -> Result<Vec<String>> {
    let dir = paths::in_repo("rust/fuzz/fuzz_targets");
    let entries = fs::read_dir(&dir).with_context(|| format!("read {}", dir.display()))?;
    let mut names = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if let Some(stem) = path.file_stem() {
            names.push(stem.to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// A seed that is another one each time.
fn clock() -> u32 {
    let time = SystemTime::now().duration_since(UNIX_EPOCH);
    time.map_or(1, |time| (time.as_millis() as u32).max(1))
}

/// `target/fuzz/NAME`, which is made if it is not there.
fn folder(name: &str) -> Result<PathBuf> {
    let dir = paths::target().join("fuzz").join(name);
    fs::create_dir_all(&dir).with_context(|| format!("mkdir {}", dir.display()))?;
    Ok(dir)
}

/// The same, without what was in it.
fn empty_folder(name: &str) -> Result<PathBuf> {
    let dir = folder(name)?;
    fs::remove_dir_all(&dir).with_context(|| format!("remove {}", dir.display()))?;
    folder(name)
}

/// `cargo build` or `cargo run` of the targets, with a target folder of their own.
fn cargo(command: &str, more: &[&str]) -> Result<Command> {
    let dir = folder("build")?.display().to_string();
    let mut words = vec![command, "--locked", "--package", "agentzip-fuzz"];
    words.extend(["--features", "libfuzzer", "--profile", "fuzz"]);
    words.extend(["--target", TRIPLE, "--target-dir", &dir]);
    for setting in C {
        words.extend(["--config", setting]);
    }
    words.extend(more);
    let mut command = pinned::cargo(&words);
    command.env("RUSTFLAGS", RUSTFLAGS);
    Ok(command)
}

/// Builds the programs of all targets.
fn build_all() -> Result<()> {
    let mut command = cargo("build", &["--bins"])?;
    build::logged("fuzz-build", "build fuzz targets", &mut command)
}

/// The program of a target, with these arguments.
fn program(name: &str, args: &[String]) -> Result<Command> {
    let mut words = vec!["--quiet", "--bin", name, "--"];
    words.extend(LIMITS);
    words.extend(args.iter().map(String::as_str));
    cargo("run", &words)
}

/// Runs a target on inputs that it makes of those in `finds` and of those that are checked in. What it
/// finds on the way goes to `finds`.
fn run(name: &str, effort: &Effort, finds: &Path) -> Result<()> {
    let crashes = folder(&format!("artifacts/{name}"))?;
    let corpus = paths::in_repo("rust/fuzz/corpus").join(name);
    let mut args = vec![
        format!("-seed={}", effort.seed),
        format!("-max_total_time={}", effort.seconds),
        format!("-artifact_prefix={}/", crashes.display()),
        finds.display().to_string(),
        corpus.display().to_string(),
    ];
    args.extend(effort.runs.map(|runs| format!("-runs={runs}")));
    let title = format!("fuzz {name}");
    let log = paths::target().join(format!("log/fuzz-{name}.log"));
    let (status, _) = progress::run(&title, &mut program(name, &args)?, &log)?;
    let text = fs::read(&log).with_context(|| format!("read {}", log.display()))?;
    let said = Said::of(&String::from_utf8_lossy(&text));
    if !status.success() {
        for line in progress::tail(&log, 40) {
            eprintln!("    {line}");
        }
        let what = said.summary.unwrap_or_else(|| status.to_string());
        if let Some(input) = said.input {
            bail!(
                "{what}, seed {}; once more: cargo xtask fuzz --target {name} --input {input}",
                effort.seed
            );
        }
        bail!("{what}, seed {}, log: {}", effort.seed, log.display());
    }
    ensure!(
        said.counts,
        "the program counts nothing that it executes, so it found nothing either; log: {}",
        log.display()
    );
    if let Some(done) = said.done {
        println!("{title}: {done}");
    }
    Ok(())
}

/// Runs a target with one input.
fn once(name: &str, input: &Path) -> Result<ExitCode> {
    // The toolchain root has the repository only.
    let copy = folder("input")?.join(name);
    fs::copy(input, &copy).with_context(|| format!("copy {}", input.display()))?;
    let mut command = program(name, &[copy.display().to_string()])?;
    let status = command.status().context("run the fuzz target")?;
    println!("fuzz {name}: {status}");
    Ok(ExitCode::from(u8::from(!status.success())))
}

/// What libFuzzer said.
#[derive(Debug, Default, PartialEq)]
struct Said {
    /// The program counts what it executes.
    counts: bool,
    /// How many inputs were tried.
    done: Option<String>,
    /// What went wrong.
    summary: Option<String>,
    /// The input that it went wrong with.
    input: Option<String>,
}

impl Said {
    fn of(log: &str) -> Self {
        let after = |words: &str| {
            let rest = |line: &str| Some(line.split_once(words)?.1.trim().to_owned());
            log.lines().find_map(rest)
        };
        Self {
            counts: log.contains(" inline 8-bit counters)"),
            done: after("Done "),
            summary: after("SUMMARY: libFuzzer: "),
            input: after("Test unit written to "),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_are_understood() {
        let good = "INFO: Seed: 1\n\
            INFO: Loaded 1 modules   (51 inline 8-bit counters): 51 [0x5, 0x6), \n\
            #8\tDONE   cov: 3 ft: 3 corp: 1/1b\n\
            Done 8 runs in 1 second(s)\n";
        let said = Said::of(good);
        assert!(said.counts && said.summary.is_none() && said.input.is_none());
        assert_eq!(said.done.as_deref(), Some("8 runs in 1 second(s)"));
        let bad = "==7== ERROR: libFuzzer: timeout after 10 seconds\n\
            SUMMARY: libFuzzer: timeout\n\
            artifact_prefix='/r/'; Test unit written to /r/timeout-da39\n";
        let said = Said::of(bad);
        assert_eq!(said.summary.as_deref(), Some("timeout"));
        assert_eq!(said.input.as_deref(), Some("/r/timeout-da39"));
        assert_eq!(Said::of(""), Said::default());
    }

    #[test]
    fn there_are_targets() {
        assert!(targets().unwrap().contains(&"decode".to_owned()));
    }
}
