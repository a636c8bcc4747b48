// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `cargo xtask demo`: the same sandboxes under all configurations, in one guest.

use std::fs;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};

use crate::guest::Guest;
use crate::kernel::Kernel;
use crate::setup::Cache;
use crate::{build, paths, pinned, progress, setup};

/// Options of `cargo xtask demo`.
#[derive(clap::Args)]
pub struct Args {
    /// Passed on to `agentzip-guest demo`.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<String>,
}

/// Runs `cargo xtask demo`.
pub fn main(args: Args) -> Result<ExitCode> {
    let start = Instant::now();
    let cache = setup::ensure_all()?;
    let set_up = start.elapsed();
    let artifacts = build::all(&cache, Kernel::Stock)?;
    let built = start.elapsed() - set_up;

    println!("demo: one guest, Debian's own kernel {}", cache.release()?);
    let mut guest = Guest::new("demo", "demo");
    guest.args = vec!["--native-loop-ns".to_owned(), native_loop(&cache, false)?];
    guest.args.extend(args.args);
    // Some 8 minutes on an idle machine; others may use this one, too.
    guest.limit = Duration::from_secs(40 * 60);
    let outcome = guest.boot(&cache, &artifacts, false)?;

    let source = outcome.file("demo.json")?;
    let text = fs::read_to_string(&source).with_context(|| format!("read {}", source.display()))?;
    serde_json::from_str::<serde_json::Value>(&text)
        .context("demo.json of the guest is no JSON")?;
    let target = paths::target().join("report").join("demo.json");
    fs::create_dir_all(paths::target().join("report"))?;
    fs::write(&target, text).with_context(|| format!("write {}", target.display()))?;
    if let Ok(table) = fs::read_to_string(outcome.report.join("demo.txt")) {
        println!("\n{table}");
    }
    println!(
        "times: set-up {}, build {}, demo {}; report: {}",
        progress::seconds(set_up),
        progress::seconds(built),
        progress::seconds(outcome.elapsed),
        target.display()
    );
    println!(
        "demo: {} checks passed, {} failed",
        outcome.passed, outcome.failed
    );
    Ok(ExitCode::from(u8::from(outcome.failed != 0)))
}

/// Nanoseconds that the guest program's fixed loop takes on this machine; `faults`: the one of page faults.
pub fn native_loop(cache: &Cache, faults: bool) -> Result<String> {
    let program = pinned::binaries("release").join("agentzip-guest");
    let arguments: &[&str] = match faults {
        true => &["calibrate", "--faults"],
        false => &["calibrate"],
    };
    let mut command = pinned::program(cache, &program, arguments)?;
    let output = command.output().context("run agentzip-guest calibrate")?;
    let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if !output.status.success() || said.parse::<u64>().is_err() {
        bail!(
            "agentzip-guest calibrate ended with {}: {said} {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(said)
}
