// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `cargo xtask bench incompressible`: what pages cost that the module declines, in one guest.

use std::fs;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::guest::Guest;
use crate::kernel::Kernel;
use crate::{build, paths, progress, setup};

/// Sixteen rounds take some minutes in an emulated guest.
const LIMIT: Duration = Duration::from_secs(30 * 60);

/// Runs it; `args` are passed on to `agentzip-guest incompressible`.
pub fn bench(args: &[String]) -> Result<ExitCode> {
    let cache = setup::ensure_all()?;
    let artifacts = build::all(&cache, Kernel::Stock)?;
    let mut guest = Guest::new("incompressible", "incompressible");
    guest.args.extend_from_slice(args);
    guest.limit = LIMIT;
    let outcome = guest.boot(&cache, &artifacts, false)?;
    let source = outcome.file("incompressible.json")?;
    let folder = paths::target().join("report");
    fs::create_dir_all(&folder).with_context(|| format!("mkdir {}", folder.display()))?;
    let target = folder.join("incompressible.json");
    fs::copy(&source, &target).with_context(|| format!("write {}", target.display()))?;
    println!(
        "bench incompressible: {}; report: {}",
        progress::seconds(outcome.elapsed),
        target.display()
    );
    Ok(ExitCode::from(u8::from(outcome.failed != 0)))
}
