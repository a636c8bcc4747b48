// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `cargo xtask test`: all tests, on the host and in a guest.

use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::guest::Guest;
use crate::kernel::Kernel;
use crate::setup::Cache;
use crate::{build, paths, pinned, progress, setup, wrong};

/// Options of `cargo xtask test`.
#[derive(clap::Args)]
pub struct Args {
    /// Leave out the guest.
    #[arg(long, conflicts_with = "guest_only")]
    host_only: bool,
    /// Only build and run the guest's suite.
    #[arg(long)]
    guest_only: bool,
    /// Only guest tests whose name contains this.
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// The guest suite on the debug kernel, failure injection, and wrong builds that it must catch.
    #[arg(long, conflicts_with = "host_only")]
    debug: bool,
}

/// Passed and failed so far.
#[derive(Default)]
pub struct Total {
    passed: u32,
    failed: u32,
}

impl Total {
    fn add(&mut self, what: &str, passed: u32, failed: u32) {
        println!("{what}: {passed} passed, {failed} failed");
        self.passed += passed;
        self.failed += failed;
    }

    /// Counts a stage that either works or does not.
    pub fn check(&mut self, what: &str, result: Result<()>) -> bool {
        let ok = result.is_ok();
        if let Err(error) = result {
            eprintln!("{what}: {error:#}");
        }
        self.add(what, u32::from(ok), u32::from(!ok));
        ok
    }
}

/// Runs `cargo xtask test`.
pub fn main(args: Args) -> Result<ExitCode> {
    let start = Instant::now();
    let (cache, kernel) = setup::ensure_for(args.debug)?;
    let set_up = start.elapsed();
    let mut total = Total::default();
    if !args.guest_only && !args.debug {
        host(&cache, &mut total)?;
    }
    if !args.host_only {
        guest(&cache, kernel, args.filter.as_deref(), &mut total);
    }
    if args.debug {
        wrong::all(&cache, args.filter.as_deref(), &mut total);
    }
    println!(
        "times: set-up {}, tests {}",
        progress::seconds(set_up),
        progress::seconds(start.elapsed() - set_up)
    );
    println!("{} passed, {} failed", total.passed, total.failed);
    Ok(ExitCode::from(u8::from(total.failed != 0)))
}

/// Formatting, lints and the tests that need no guest.
fn host(cache: &Cache, total: &mut Total) -> Result<()> {
    let fmt = ["fmt", "--all", "--", "--check", "--color", "never"];
    let fmt = build::logged("fmt", "formatting", &mut pinned::cargo(&fmt));
    total.check("formatting", fmt);
    let clippy = [
        "clippy",
        "--workspace",
        "--all-targets",
        "--all-features",
        "--locked",
        "--",
        "-D",
        "warnings",
    ];
    let clippy = build::logged("clippy", "clippy", &mut pinned::cargo(&clippy));
    total.check("clippy", clippy);
    total.check("lints of the module", build::module_lints(cache));

    let log = paths::target().join("log/unit-tests.log");
    let tests = [
        "test",
        "--workspace",
        "--all-features",
        "--locked",
        "--no-fail-fast",
    ];
    let (status, _) = progress::run("unit and property tests", &mut pinned::cargo(&tests), &log)?;
    let (passed, mut failed) = count(&log)?;
    if !status.success() {
        for line in progress::tail(&log, 60) {
            eprintln!("    {line}");
        }
        eprintln!(
            "unit tests: cargo ended with {status}, log: {}",
            log.display()
        );
        // A test program that was not built or that crashed counts nowhere.
        failed = failed.max(1);
    }
    total.add("unit tests", passed, failed);
    Ok(())
}

/// Sums the result lines of all test programs in cargo's output.
fn count(log: &Path) -> Result<(u32, u32)> {
    let text = std::fs::read_to_string(log).with_context(|| format!("read {}", log.display()))?;
    let sum = |word: &str| {
        text.lines()
            .filter_map(|line| line.strip_prefix("test result: "))
            .flat_map(|line| line.split([';', '.']))
            .filter_map(|part| part.trim().strip_suffix(word)?.trim().parse::<u32>().ok())
            .sum()
    };
    Ok((sum("passed"), sum("failed")))
}

/// Builds the module and runs the suite in a guest.
fn guest(cache: &Cache, kernel: Kernel, filter: Option<&str>, total: &mut Total) {
    let artifacts = build::all(cache, kernel);
    let Ok(artifacts) = artifacts else {
        total.check("module build", artifacts.map(|_| ()));
        return;
    };
    total.add("module build", 1, 0);
    let name = kernel.label("suite");
    let mut guest = Guest::new(&name, "suite");
    guest.kernel = kernel;
    guest.args = suite_args(kernel, filter);
    let minutes = match kernel {
        Kernel::Stock => 25,
        Kernel::Debug => 60,
    };
    guest.limit = Duration::from_secs(minutes * 60);
    guest.silence = Duration::from_secs(minutes * 10);
    let declared = declared(&guest.args);
    let what = format!("guest suite, {}", kernel.title());
    match (guest.boot(cache, &artifacts, false), declared) {
        (Ok(outcome), Ok(declared)) => {
            total.add(&what, outcome.passed, outcome.failed);
            println!("{what}: {}", progress::seconds(outcome.elapsed));
            let ran = outcome.passed + outcome.failed;
            let same = if ran == declared {
                Ok(())
            } else {
                Err(anyhow::anyhow!(
                    "the suite declares {declared} tests, the guest ran {ran}"
                ))
            };
            total.check("guest test count", same);
        }
        (outcome, declared) => {
            total.check(&what, outcome.and(declared.map(|_| ())));
        }
    }
}

/// Arguments of `agentzip-guest suite`.
fn suite_args(kernel: Kernel, filter: Option<&str>) -> Vec<String> {
    let mut args = Vec::new();
    if kernel == Kernel::Debug {
        args.push("--debug".to_owned());
    }
    if let Some(filter) = filter {
        args.extend(["--filter".to_owned(), filter.to_owned()]);
    }
    args
}

/// How many tests the suite says it has.
fn declared(suite_args: &[String]) -> Result<u32> {
    let mut args = vec![
        "run",
        "--quiet",
        "--release",
        "--locked",
        "--package",
        "agentzip-guest",
        "--",
        "suite",
        "--count",
    ];
    args.extend(suite_args.iter().map(String::as_str));
    let mut command: Command = pinned::cargo(&args);
    let output = command
        .output()
        .context("run agentzip-guest suite --count")?;
    let text = String::from_utf8_lossy(&output.stdout);
    text.trim().parse().with_context(|| {
        let stderr = String::from_utf8_lossy(&output.stderr);
        format!(
            "`agentzip-guest suite --count` printed \"{}\" {}",
            text.trim(),
            stderr.trim()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_summed() {
        let path = std::env::temp_dir().join(format!("agentzip-count-{}", std::process::id()));
        let text = "test a ... ok\n\
            test result: ok. 12 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s\n\
            test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s\n";
        std::fs::write(&path, text).unwrap();
        assert_eq!(count(&path).unwrap(), (15, 2));
        std::fs::remove_file(&path).unwrap();
    }
}
