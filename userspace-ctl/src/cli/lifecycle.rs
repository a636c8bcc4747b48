// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The commands about the daemon.

use std::path::PathBuf;
use std::process::ExitCode;

use agentzip_ctl::commands::{config, daemon_status, quiesce, status};
use agentzip_ctl::daemon;
use agentzip_ctl::Context;
use anyhow::Result;
use clap::{Args, Subcommand};

use super::hint::SocketArg;
use super::{paths, Printer};

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

#[derive(Args, Debug)]
pub(super) struct QuiesceArgs {
    /// Cgroup of the sandbox
    cgroup: PathBuf,
    /// End it: the sandbox is treated as before
    #[arg(long)]
    release: bool,
    #[command(flatten)]
    socket: SocketArg,
}

/// The module's state and the daemon's view; either may be missing, not both.
pub(super) fn run_status(context: &Context, print: Printer) -> Result<ExitCode> {
    let socket = SocketArg::default().path();
    match (status::status(context), daemon_status::ask(&socket)) {
        (Ok(mut report), daemon) => {
            report.daemon = daemon;
            print.report(&report)
        }
        (Err(_), Some(daemon)) => print.report(&daemon),
        (Err(error), None) => Err(error.into()),
    }
}

pub(super) fn run_quiesce(print: Printer, args: QuiesceArgs) -> Result<ExitCode> {
    print.report(&quiesce::quiesce(
        &args.socket.path(),
        &args.cgroup,
        args.release,
    )?)
}

pub(super) fn run_daemon(config: Option<PathBuf>) -> Result<ExitCode> {
    start_log();
    daemon::run(daemon::Options {
        config,
        paths: paths(),
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Logs to standard error; without times where the journal adds its own.
fn start_log() {
    let level = match std::env::var("AGENTZIP_LOG").as_deref() {
        Ok("debug") => tracing::Level::DEBUG,
        Ok("trace") => tracing::Level::TRACE,
        _ => tracing::Level::INFO,
    };
    let log = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_target(false);
    match std::env::var_os("JOURNAL_STREAM") {
        Some(_) => log.without_time().init(),
        None => log.init(),
    }
}
