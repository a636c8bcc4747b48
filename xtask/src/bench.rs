// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `cargo xtask bench`: benchmarks, native ones and some in a guest.

use std::fs;
use std::process::ExitCode;

use anyhow::{bail, Context, Result};
use clap::ValueEnum;

use crate::{corpus, incompressible, paths, pinned, restore, setup};

/// Options of `cargo xtask bench`.
#[derive(clap::Args)]
pub struct Args {
    /// What to measure.
    #[arg(value_enum)]
    what: What,
    /// Passed on to the benchmark.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum What {
    /// Encode and decode of each representation, beside zstd-3 and lz4
    Codec,
    /// Bytes of page sets of real processes in the store, beside zswap, zram and deduplication
    Density,
    /// Turn times with and without what brings pages back, beside zswap and no compression; in a guest
    Restore,
    /// Pages that nothing makes smaller: out and back, declined, beside the host's path and zswap; in a guest
    Incompressible,
}

/// Runs `cargo xtask bench`.
pub fn main(args: Args) -> Result<ExitCode> {
    match args.what {
        What::Density => corpus::bench(&args.args),
        What::Restore => restore::bench(&args.args),
        What::Incompressible => incompressible::bench(&args.args),
        What::Codec => codec(&args.args),
    }
}

fn codec(args: &[String]) -> Result<ExitCode> {
    setup::ensure_toolchain()?;
    let mut words = vec![
        "bench",
        "--locked",
        "--package",
        "agentzip-codec",
        "--all-features",
        "--bench",
        "codec",
        "--",
    ];
    // The pages are made once, on this machine, and kept in the cache.
    let corpus = paths::cache()?.display().to_string();
    let report = paths::target().join("report");
    fs::create_dir_all(&report).with_context(|| format!("mkdir {}", report.display()))?;
    let json = report.join("codec.json").display().to_string();
    words.extend(["--cache", &corpus, "--json", &json]);
    words.extend(args.iter().map(String::as_str));
    let status = pinned::cargo(&words).status().context("run cargo bench")?;
    if !status.success() {
        bail!("the benchmark ended with {status}");
    }
    Ok(ExitCode::SUCCESS)
}
