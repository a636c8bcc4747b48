// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The commands about the daemon.

use std::path::PathBuf;
use std::process::ExitCode;

use agentzip_ctl::commands::config;
use anyhow::Result;
use clap::Subcommand;

use super::Printer;

#[derive(Subcommand, Debug)]
pub(super) enum ConfigCommand {
    /// Say whether a file can be used; errors name file, line and key
    Check {
        /// The file [default: /etc/agentzip.toml]
        #[arg(long)]
        file: Option<PathBuf>,
    },
    /// Print every key with the value that the daemon would take
    Show {
        /// The file [default: /etc/agentzip.toml; every default when that is not there]
        #[arg(long)]
        file: Option<PathBuf>,
    },
}

pub(super) fn run_config(print: Printer, command: ConfigCommand) -> Result<ExitCode> {
    match command {
        ConfigCommand::Check { file } => print.report(&config::check(file.as_deref())?),
        ConfigCommand::Show { file } => print.report(&config::show(file.as_deref())?),
    }
}
