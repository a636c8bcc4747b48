// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `cargo xtask shell`: an interactive guest.

use std::process::ExitCode;

use anyhow::Result;

use crate::guest::Guest;
use crate::{build, setup};

/// Options of `cargo xtask shell`.
#[derive(clap::Args)]
pub struct Args {
    /// Build nothing: take what earlier builds made.
    #[arg(long)]
    as_built: bool,
}

/// Runs `cargo xtask shell`.
pub fn main(args: Args) -> Result<ExitCode> {
    let cache = setup::ensure_all()?;
    let artifacts = if args.as_built {
        build::as_built()
    } else {
        build::all(&cache)?
    };
    Guest::new("shell", "shell").interact(&cache, &artifacts)?;
    Ok(ExitCode::SUCCESS)
}
