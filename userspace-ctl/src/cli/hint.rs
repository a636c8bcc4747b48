// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The commands that speak to the daemon.

use std::path::PathBuf;
use std::process::ExitCode;

use agentzip_ctl::cgroup::Selector;
use agentzip_ctl::commands::hint;
use agentzip_ctl::socket::DEFAULT_PATH;
use agentzip_ctl::{Context, Hint, ObjectName};
use anyhow::Result;
use clap::Args;

use super::Printer;

#[derive(Args, Debug, Default)]
pub(super) struct SocketArg {
    /// Socket of the daemon [default: $AGENTZIP_SOCKET, else /run/agentzip.sock]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

impl SocketArg {
    /// The one that is meant.
    pub(super) fn path(&self) -> PathBuf {
        let environment = || std::env::var_os("AGENTZIP_SOCKET").map(PathBuf::from);
        let given = self.socket.clone().or_else(environment);
        given.unwrap_or_else(|| DEFAULT_PATH.into())
    }
}

#[derive(Args, Debug)]
pub(super) struct HintArgs {
    /// Cgroup of the sandbox
    cgroup: Selector,
    /// What the agent does
    hint: Hint,
    #[command(flatten)]
    socket: SocketArg,
}

#[derive(Args, Debug)]
pub(super) struct AdmitArgs {
    /// Memory that it is going to need, in bytes, also with K, M or G [default: what its siblings need]
    #[arg(long, value_parser = super::bytes)]
    bytes: Option<u64>,
    /// Template that it is going to be cloned from
    #[arg(long)]
    template: Option<ObjectName>,
    #[command(flatten)]
    socket: SocketArg,
}

#[derive(Args, Debug)]
pub(super) struct EventsArgs {
    /// End after so many
    #[arg(long, value_name = "NUMBER")]
    count: Option<u64>,
    #[command(flatten)]
    socket: SocketArg,
}

pub(super) fn run_hint(context: &Context, print: Printer, args: &HintArgs) -> Result<ExitCode> {
    print.report(&hint::hint(
        context,
        &args.socket.path(),
        &args.cgroup,
        &args.hint,
    )?)
}

pub(super) fn run_admit(print: Printer, args: &AdmitArgs) -> Result<ExitCode> {
    let answer = hint::admit(&args.socket.path(), args.bytes, args.template.as_ref())?;
    print.report(&answer)?;
    Ok(match answer.yes() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

pub(super) fn run_events(print: Printer, args: &EventsArgs) -> Result<ExitCode> {
    let mut stdout = std::io::stdout().lock();
    hint::events(&args.socket.path(), print.json, args.count, &mut stdout)?;
    Ok(ExitCode::SUCCESS)
}
