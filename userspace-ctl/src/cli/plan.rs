// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `agentzip plan`.

use std::path::PathBuf;
use std::process::ExitCode;

use agentzip_ctl::commands::plan;
use agentzip_ctl::{ObjectName, ToolName};
use anyhow::Result;
use clap::Subcommand;

use super::hint::SocketArg;
use super::Printer;

#[derive(Subcommand, Debug)]
pub(super) enum PlanCommand {
    /// List the templates and tools of which something was learned
    Show {
        /// Of this template only
        template: Option<ObjectName>,
        #[command(flatten)]
        socket: SocketArg,
    },
    /// Write what was learned about a template and a tool to a file, which must not be there yet
    #[command(
        after_help = "Examples:\n  agentzip plan export python pytest.json --tool pytest\n  \
        agentzip plan export python every-turn.json"
    )]
    Export {
        /// Template of the sandboxes
        template: ObjectName,
        /// The file
        file: PathBuf,
        /// The tool [default: what every turn touches]
        #[arg(long)]
        tool: Option<ToolName>,
        #[command(flatten)]
        socket: SocketArg,
    },
    /// Take what a file says, as if it had been learned in four turns; a bad file changes nothing
    Import {
        /// The file
        file: PathBuf,
        #[command(flatten)]
        socket: SocketArg,
    },
}

pub(super) fn run_plan(print: Printer, command: PlanCommand) -> Result<ExitCode> {
    match command {
        PlanCommand::Show { template, socket } => {
            print.report(&plan::show(&socket.path(), template.as_ref())?)
        }
        PlanCommand::Export {
            template,
            file,
            tool,
            socket,
        } => print.report(&plan::export(
            &socket.path(),
            &template,
            tool.as_ref(),
            &file,
        )?),
        PlanCommand::Import { file, socket } => print.report(&plan::import(&socket.path(), &file)?),
    }
}
