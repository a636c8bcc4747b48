// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `cargo xtask bench restore`: tool calls with and without what brings pages back, in one guest.

use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::demo::native_loop;
use crate::guest::Guest;
use crate::kernel::Kernel;
use crate::{build, paths, progress, setup};

/// Some 200 first calls in each of twelve configurations take two to three hours in an emulated guest.
const LIMIT: Duration = Duration::from_secs(4 * 3600);
/// Longest silence: five turns of all sandboxes.
const SILENCE: Duration = Duration::from_secs(15 * 60);

/// Runs it; `args` are passed on to `agentzip-guest restore`.
pub fn bench(args: &[String]) -> Result<ExitCode> {
    let cache = setup::ensure_all()?;
    let artifacts = build::all(&cache, Kernel::Stock)?;
    let mut guest = Guest::new("restore", "restore");
    for (option, faults) in [("--native-loop-ns", false), ("--native-faults-ns", true)] {
        guest.args.push(option.to_owned());
        guest.args.push(native_loop(&cache, faults)?);
    }
    guest.args.extend_from_slice(args);
    guest.limit = LIMIT;
    guest.silence = SILENCE;
    let outcome = guest.boot(&cache, &artifacts, false)?;
    let source = outcome.file("restore.json")?;
    let folder = paths::target().join("report");
    fs::create_dir_all(&folder).with_context(|| format!("mkdir {}", folder.display()))?;
    let target = folder.join("restore.json");
    fs::copy(&source, &target).with_context(|| format!("write {}", target.display()))?;
    // Of the configuration that records.
    for entry in fs::read_dir(&outcome.report)
        .into_iter()
        .flatten()
        .flatten()
    {
        let name = entry.file_name();
        if Path::new(&name).extension().is_some_and(|e| e == "trace") {
            let target = folder.join(name);
            fs::copy(entry.path(), &target)
                .with_context(|| format!("write {}", target.display()))?;
        }
    }
    println!(
        "bench restore: {} configurations right, {} wrong, {}; report: {}",
        outcome.passed,
        outcome.failed,
        progress::seconds(outcome.elapsed),
        target.display()
    );
    Ok(ExitCode::from(u8::from(outcome.failed != 0)))
}
