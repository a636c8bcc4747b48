// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `cargo xtask test`: all tests, on the host and in a guest.

use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::build::{self, Artifacts};
use crate::guest::accel::{self, Accel};
use crate::guest::{Failure, Guest, Outcome};
use crate::kernel::Kernel;
use crate::setup::Cache;
use crate::{fuzz, paths, pinned, progress, setup, torture, wrong};

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
    /// Counts checks of a stage.
    pub fn add(&mut self, what: &str, passed: u32, failed: u32) {
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

    /// Prints the sums, the last line of a run; the exit code says whether anything failed.
    pub fn end(&self) -> ExitCode {
        println!("{} passed, {} failed", self.passed, self.failed);
        ExitCode::from(u8::from(self.failed != 0))
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
        wrong::by_debug_kernel(&cache, args.filter.as_deref(), &mut total);
    }
    println!(
        "times: set-up {}, tests {}",
        progress::seconds(set_up),
        progress::seconds(start.elapsed() - set_up)
    );
    Ok(total.end())
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
    total.check("patches of the wrong builds", wrong::all_fit());

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
    fuzz::short(total);
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

/// Memory of the guest whose sandboxes need more than there is, in MiB.
const SMALL_MIB: u32 = 512;

/// Builds the module and runs the suite in guests.
fn guest(cache: &Cache, kernel: Kernel, filter: Option<&str>, total: &mut Total) {
    let artifacts = build::all(cache, kernel);
    let Ok(artifacts) = artifacts else {
        total.check("module build", artifacts.map(|_| ()));
        return;
    };
    total.add("module build", 1, 0);
    let name = kernel.label("suite");
    run_suite(
        cache,
        &artifacts,
        suite(&name, kernel, filter.into_iter()),
        total,
    );
    if kernel == Kernel::Stock {
        let mut small = suite("suite-small", kernel, filter.into_iter());
        small.args.push("--small".to_owned());
        small.memory_mib = SMALL_MIB;
        // Else only the check at the end: the filter leaves out all that needs such a guest.
        if !matches!(declared(&small.args), Ok(1)) {
            run_suite(cache, &artifacts, small, total);
        }
        if filter.is_none_or(|filter| filter.starts_with("refused")) {
            refused(cache, &artifacts, total);
        }
        if filter.is_none_or(|filter| filter.starts_with("torture")) {
            torture::short(cache, &artifacts, total);
        }
    }
}

/// Kernels that take signed modules only refuse ours, which is not signed.
fn refused(cache: &Cache, artifacts: &Artifacts, total: &mut Total) {
    /// Name of the guest, words for its kernel, errno of the refusal.
    const GUESTS: [(&str, &str, u32); 2] = [
        ("refused-lockdown", "lockdown=integrity", 1), // EPERM
        ("refused-signature", "module.sig_enforce=1", 129), // EKEYREJECTED
    ];
    for (name, cmdline, errno) in GUESTS {
        let mut guest = Guest::new(name, "exec");
        guest.cmdline = cmdline;
        guest.command = Some(format!("agentzip-guest refused --errno {errno}\n"));
        let outcome = guest.boot(cache, artifacts, false);
        total.check(
            name,
            outcome.and_then(|outcome| match outcome.failed {
                0 => Ok(()),
                _ => Err(anyhow::anyhow!(
                    "the module was not refused as it should be"
                )),
            }),
        );
    }
}

/// Runs the suite, or a part of it, in one guest.
fn run_suite(cache: &Cache, artifacts: &Artifacts, guest: Guest<'_>, total: &mut Total) {
    let kernel = guest.kernel;
    let declared = declared(&guest.args);
    let small = match guest.memory_mib == SMALL_MIB {
        true => ", little memory",
        false => "",
    };
    let what = format!("guest suite, {}{small}", kernel.title());
    match (guest.boot(cache, artifacts, false), declared) {
        (Ok(mut outcome), Ok(declared)) => {
            run_again(cache, artifacts, &guest, &mut outcome);
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

/// Runs tests that failed once more, in a fresh guest, where emulation may be the reason: on a busy
/// machine a virtual processor can stand still for longer than a test allows for. What passes now
/// is counted as passed, and named.
fn run_again(cache: &Cache, artifacts: &Artifacts, first: &Guest<'_>, outcome: &mut Outcome) {
    let emulated = matches!(accel::choose(cache), Ok(Accel::Tcg));
    let all_named = outcome.failures.len() == outcome.failed as usize;
    if !emulated || !all_named || !timing_may_explain(&outcome.failures) {
        return;
    }
    let names: Vec<&str> = outcome.failures.iter().map(|f| f.test.as_str()).collect();
    let names = names.join(", ");
    println!("running again what failed, for the guest is emulated: {names}");
    let name = format!("{}-again", first.name);
    let filters = outcome.failures.iter().map(|f| f.test.as_str());
    let mut guest = suite(&name, first.kernel, filters);
    guest.memory_mib = first.memory_mib;
    if first.memory_mib == SMALL_MIB {
        guest.args.push("--small".to_owned());
    }
    match guest.boot(cache, artifacts, false) {
        Ok(second) if second.failed == 0 && second.passed as usize > outcome.failures.len() => {
            println!("flaky: {names} failed, and passed when run again");
            outcome.passed += outcome.failed;
            outcome.failed = 0;
        }
        Ok(_) => println!("failed again: {names}"),
        Err(error) => eprintln!("{error:#}"),
    }
}

/// Whether all of these can be a matter of time: a few tests that did not get as far as they should.
/// Never a page with wrong content, a complaint of the kernel, or something left behind.
fn timing_may_explain(failures: &[Failure]) -> bool {
    const MOST: usize = 3;
    const NEVER: &[&str] = &[
        "wrong",
        "kernel log:",
        "does not recover",
        "left",
        "memory is lost",
        "died",
    ];
    (1..=MOST).contains(&failures.len())
        && failures.iter().all(|failure| {
            failure.test != "nothing_left" && !NEVER.iter().any(|text| failure.why.contains(text))
        })
}

/// A guest for the suite, or for the tests whose name contains one of `filters`.
fn suite<'a>(name: &'a str, kernel: Kernel, filters: impl Iterator<Item = &'a str>) -> Guest<'a> {
    let minutes = match kernel {
        Kernel::Stock => 25,
        Kernel::Debug => 60,
    };
    let mut guest = Guest::new(name, "suite");
    guest.kernel = kernel;
    guest.limit = Duration::from_secs(minutes * 60);
    guest.silence = Duration::from_secs(minutes * 10);
    if kernel == Kernel::Debug {
        guest.args.push("--debug".to_owned());
    }
    for filter in filters {
        guest.args.extend(["--filter", filter].map(String::from));
    }
    guest
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
    fn only_a_matter_of_time_is_run_again() {
        let failure = |test: &str, why: &str| Failure {
            test: test.to_owned(),
            why: why.to_owned(),
        };
        let few = failure("zswap.huge_page", "only 3 pages are in use and in zswap");
        let late = failure("unload.refused", "not done within 60 s");
        assert!(timing_may_explain(&[few.clone(), late.clone()]));
        assert!(!timing_may_explain(&[]));
        assert!(!timing_may_explain(&vec![few.clone(); 4]));
        for (test, why) in [
            ("store.all", "2 of 64 pages wrong, first page 3 (Heap)"),
            ("store.all", "kernel log: WARNING: at mm/swap.c"),
            ("store.all", "3 entries are left"),
            ("nothing_left", "1 cgroup more is dying"),
        ] {
            assert!(!timing_may_explain(&[few.clone(), failure(test, why)]));
        }
    }

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
