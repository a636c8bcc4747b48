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
    /// Run the debug kernel.
    #[arg(long)]
    debug: bool,
}

/// Runs `cargo xtask shell`.
pub fn main(args: Args) -> Result<ExitCode> {
    let (cache, kernel) = setup::ensure_for(args.debug)?;
    let artifacts = if args.as_built {
        build::as_built(kernel)
    } else {
        build::all(&cache, kernel)?
    };
    let mut guest = Guest::new("shell", "shell");
    guest.kernel = kernel;
    guest.interact(&cache, &artifacts)?;
    Ok(ExitCode::SUCCESS)
}
