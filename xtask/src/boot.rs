// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `cargo xtask boot -- COMMAND`: one command in a fresh guest.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;

use crate::guest::Guest;
use crate::{build, progress, setup};

/// Options of `cargo xtask boot`.
#[derive(clap::Args)]
pub struct Args {
    /// Name of the guest: its log is target/guest/NAME.log.
    #[arg(long, default_value = "boot")]
    name: String,
    /// Seconds after which the guest is killed.
    #[arg(long, default_value_t = 900)]
    limit: u64,
    /// Seconds of silence after which the guest is killed.
    #[arg(long, default_value_t = 180)]
    silence: u64,
    /// Build nothing: take what earlier builds made.
    #[arg(long)]
    as_built: bool,
    /// Run the debug kernel.
    #[arg(long)]
    debug: bool,
    /// Shell command; it finds the payload in /opt/agentzip, which is in its PATH.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

/// Runs `cargo xtask boot`.
pub fn main(args: Args) -> Result<ExitCode> {
    let (cache, kernel) = setup::ensure_for(args.debug)?;
    let artifacts = if args.as_built {
        build::as_built(kernel)
    } else {
        build::all(&cache, kernel)?
    };
    let mut guest = Guest::new(&args.name, "exec");
    guest.kernel = kernel;
    guest.command = Some(args.command.join(" ") + "\n");
    guest.limit = Duration::from_secs(args.limit);
    guest.silence = Duration::from_secs(args.silence);
    let outcome = guest.boot(&cache, &artifacts, true)?;
    println!(
        "guest: {} after {}, report in {}",
        if outcome.failed == 0 {
            "passed"
        } else {
            "FAILED"
        },
        progress::seconds(outcome.elapsed),
        outcome.report.display()
    );
    Ok(ExitCode::from(u8::from(outcome.failed != 0)))
}
