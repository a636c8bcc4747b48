// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The command line: parses it, runs the command, prints its report.

use std::fmt::Display;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use agentzip_ctl::cgroup::Selector;
use agentzip_ctl::commands::{arm, drain, phase, restore, sandbox, status, template};
use agentzip_ctl::reclaim::Options;
use agentzip_ctl::{Context, ObjectName, Paths};
use agentzip_uapi::Phase;
use anyhow::{Context as _, Result};
use clap::{Args, Parser, Subcommand, ValueEnum};
use serde::Serialize;

/// Makes the memory of waiting AI-agent sandboxes small: controls the AgentZip kernel module.
#[derive(Parser, Debug)]
#[command(
    name = "agentzip",
    version,
    arg_required_else_help = true,
    after_help = "CGROUP is a path: absolute, relative to the cgroup v2 mount, or as /proc/PID/cgroup shows it. \
        `id:N` means the cgroup of id N, also after its directory was removed.\n\n\
        Environment (for tests): AGENTZIP_DEV, AGENTZIP_SYSFS, AGENTZIP_CGROUP_ROOT, AGENTZIP_PROC and \
        AGENTZIP_ZSWAP replace /dev/agentzip, /sys/kernel/agentzip, the cgroup v2 mount, /proc and \
        /sys/module/zswap/parameters.\n\n\
        Exit status: 0 done, 1 failed or incomplete, 2 wrong usage.",
    after_long_help = "CGROUP is a path: absolute, relative to the cgroup v2 mount, or as /proc/PID/cgroup shows it.\n\
        `id:N` means the cgroup of id N, also after its directory was removed.\n\n\
        Examples, from a stopped child (1234) of a zygote to a sandbox and back:\n  \
        insmod agentzip.ko\n  \
        agentzip arm\n  \
        agentzip template add --pid 1234 --name python\n  \
        agentzip sandbox attach agents/sb1 --template python\n  \
        agentzip phase agents/sb1 waiting      # the agent waits for the LLM: reclaims\n  \
        agentzip restore agents/sb1            # the LLM answers: brings the pages back\n  \
        agentzip phase agents/sb1 running\n  \
        agentzip status\n  \
        agentzip sandbox detach agents/sb1\n  \
        agentzip drain && agentzip disarm && rmmod agentzip\n\n\
        Environment (for tests): AGENTZIP_DEV, AGENTZIP_SYSFS, AGENTZIP_CGROUP_ROOT, AGENTZIP_PROC and\n\
        AGENTZIP_ZSWAP replace /dev/agentzip, /sys/kernel/agentzip, the cgroup v2 mount, /proc and\n\
        /sys/module/zswap/parameters.\n\n\
        Exit status: 0 done, 1 failed or incomplete, 2 wrong usage."
)]
struct Cli {
    /// Print the result as JSON
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Install the hooks: from now on pages of sandboxes go to the store
    ///
    /// Before that, sets zswap up without switching it on (its own value is written back to
    /// /sys/module/zswap/parameters/enabled), so that the kernel swaps in single pages. Warns when
    /// vm.page-cluster is not 0 and when there is no swap. Ends draining.
    Arm,
    /// Remove the hooks; refused while entries exist
    Disarm,
    /// Add, list and remove templates: the pages that sandboxes were cloned from
    #[command(subcommand)]
    Template(TemplateCommand),
    /// Attach, list and detach sandboxes: cgroups whose pages go to the store
    #[command(subcommand)]
    Sandbox(SandboxCommand),
    /// Tell what the agent in a sandbox does; `waiting` also reclaims its memory
    ///
    /// `waiting`: the agent waits for the LLM. Its anonymous memory is reclaimed through
    /// memory.reclaim, in slices, until nothing is left to gain.
    /// `resuming`: the LLM answers. See also `agentzip restore`, which sets this phase.
    /// `running`: a tool runs.
    #[command(after_help = "Examples:\n  agentzip phase agents/sb1 waiting\n  \
        agentzip phase agents/sb1 waiting --no-reclaim\n  agentzip phase /sys/fs/cgroup/agents/sb1 running")]
    Phase(PhaseArgs),
    /// Bring the swapped-out pages of a sandbox back, ahead of need
    ///
    /// Sets the phase to resuming, then reads the swapped-out pages of every process in the cgroup
    /// and below. Stops before a memory limit of the cgroup or one above it would be met.
    #[command(after_help = "Example:\n  agentzip restore agents/sb1")]
    Restore {
        /// Cgroup of the sandbox
        cgroup: Selector,
    },
    /// Show state, memory, templates and sandboxes; needs no privilege
    #[command(
        after_help = "Examples:\n  agentzip status\n  agentzip status --json | jq .memory.total"
    )]
    Status,
    /// Empty the store: end new stores, bring every page back
    ///
    /// Ends new stores, restores the pages of all sandboxes, then takes the swap devices out of use
    /// and puts them in use again, one after the other with the same priority, until no entry is
    /// left. Refuses when memory does not suffice for what is in swap. Fails when entries remain.
    #[command(
        after_help = "Examples:\n  agentzip drain\n  agentzip drain --no-swapoff\n  \
        agentzip drain && agentzip disarm && rmmod agentzip"
    )]
    Drain {
        /// Only restore; leave the swap devices alone (pages keep their slots, so entries remain)
        #[arg(long)]
        no_swapoff: bool,
    },
}

#[derive(Subcommand, Debug)]
enum TemplateCommand {
    /// Register the private memory of a process as a template
    ///
    /// The process should be a holder: a child that the zygote forked and that stopped, outside the
    /// sandboxes' cgroups, in a cgroup with memory.swap.max=0. Pages that it shares with its parent
    /// are kept by reference and cost nothing while it lives; others are copied.
    #[command(
        after_help = "Examples:\n  agentzip template add --pid 1234 --name python\n  \
        agentzip template add --pid 1234 --name python --domain tenant-7"
    )]
    Add {
        /// Process that holds the pages
        #[arg(long, value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
        pid: i32,
        /// Name of the template
        #[arg(long)]
        name: ObjectName,
        /// Trust domain that it belongs to; nothing is shared across domains [default: default]
        #[arg(long)]
        domain: Option<ObjectName>,
    },
    /// List the templates
    List,
    /// Remove a template that no sandbox uses
    Rm {
        /// Name of the template
        name: ObjectName,
    },
}

#[derive(Subcommand, Debug)]
enum SandboxCommand {
    /// Make a cgroup a sandbox: its pages, and those of cgroups below it, go to the store
    #[command(
        after_help = "Examples:\n  agentzip sandbox attach agents/sb1 --template python\n  \
        agentzip sandbox attach agents/sb1 --template python --group task-9 --domain tenant-7"
    )]
    Attach {
        /// Directory of the cgroup
        cgroup: PathBuf,
        /// Template that the sandbox was cloned from
        #[arg(long)]
        template: ObjectName,
        /// Group of sandboxes that may share pages [default: the template's name]
        #[arg(long)]
        group: Option<ObjectName>,
        /// Trust domain; must be the template's [default: default]
        #[arg(long)]
        domain: Option<ObjectName>,
    },
    /// List the sandboxes
    List,
    /// End new stores of a sandbox; its entries stay loadable
    #[command(
        after_help = "Examples:\n  agentzip sandbox detach agents/sb1\n  agentzip sandbox detach id:412"
    )]
    Detach {
        /// Cgroup of the sandbox
        cgroup: Selector,
    },
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum PhaseName {
    Running,
    Waiting,
    Resuming,
}

#[derive(Args, Debug)]
struct PhaseArgs {
    /// Cgroup of the sandbox
    cgroup: Selector,
    /// What the agent does
    phase: PhaseName,
    /// With `waiting`: do not reclaim
    #[arg(long)]
    no_reclaim: bool,
    /// With `waiting`: MiB to reclaim at once
    #[arg(long, value_name = "MIB", default_value_t = Options::default().slice >> 20,
        value_parser = clap::value_parser!(u64).range(1..=65_536))]
    slice: u64,
}

/// Runs the command that the process was called with.
pub fn run() -> Result<ExitCode> {
    let cli = Cli::parse();
    let context = Context::new(&paths());
    let print = Printer { json: cli.json };
    match cli.command {
        Command::Arm => print.report(&arm::arm(&context)?),
        Command::Disarm => print.report(&arm::disarm(&context)?),
        Command::Template(command) => run_template(&context, print, command),
        Command::Sandbox(command) => run_sandbox(&context, print, command),
        Command::Phase(args) => {
            let phase = match args.phase {
                PhaseName::Running => Phase::Running,
                PhaseName::Waiting => Phase::Waiting,
                PhaseName::Resuming => Phase::Resuming,
            };
            let options = Options {
                slice: args.slice << 20,
                ..Options::default()
            };
            let options = (!args.no_reclaim).then_some(&options);
            print.report(&phase::phase(&context, &args.cgroup, phase, options)?)
        }
        Command::Restore { cgroup } => print.report(&restore::restore(&context, &cgroup)?),
        Command::Status => print.report(&status::status(&context)?),
        Command::Drain { no_swapoff } => {
            let report = drain::drain(&context, !no_swapoff)?;
            print.report(&report)?;
            Ok(match report.complete() {
                true => ExitCode::SUCCESS,
                false => ExitCode::FAILURE,
            })
        }
    }
}

fn run_template(context: &Context, print: Printer, command: TemplateCommand) -> Result<ExitCode> {
    match command {
        TemplateCommand::Add { pid, name, domain } => {
            print.report(&template::add(context, pid, &name, domain.as_ref())?)
        }
        TemplateCommand::List => print.report(&template::list(context)?),
        TemplateCommand::Rm { name } => print.report(&template::remove(context, &name)?),
    }
}

fn run_sandbox(context: &Context, print: Printer, command: SandboxCommand) -> Result<ExitCode> {
    match command {
        SandboxCommand::Attach {
            cgroup,
            template,
            group,
            domain,
        } => {
            let request = sandbox::Request {
                cgroup: &cgroup,
                template: &template,
                group: group.as_ref(),
                domain: domain.as_ref(),
            };
            print.report(&sandbox::attach(context, &request)?)
        }
        SandboxCommand::List => print.report(&sandbox::list(context)?),
        SandboxCommand::Detach { cgroup } => print.report(&sandbox::detach(context, &cgroup)?),
    }
}

#[derive(Clone, Copy)]
struct Printer {
    json: bool,
}

impl Printer {
    fn report(self, report: &(impl Serialize + Display)) -> Result<ExitCode> {
        let text = if self.json {
            serde_json::to_string_pretty(report).context("cannot write the result as JSON")? + "\n"
        } else {
            report.to_string()
        };
        let mut stdout = std::io::stdout().lock();
        match stdout
            .write_all(text.as_bytes())
            .and_then(|()| stdout.flush())
        {
            // The reader of a pipe had enough.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {}
            other => other.context("cannot write to standard output")?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Where things are, with what the environment replaces.
fn paths() -> Paths {
    let replaced = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let standard = Paths::default();
    Paths {
        device: replaced("AGENTZIP_DEV").unwrap_or(standard.device),
        sysfs: replaced("AGENTZIP_SYSFS").unwrap_or(standard.sysfs),
        cgroup_root: replaced("AGENTZIP_CGROUP_ROOT"),
        proc: replaced("AGENTZIP_PROC").unwrap_or(standard.proc),
        zswap: replaced("AGENTZIP_ZSWAP").unwrap_or(standard.zswap),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn phase_names_are_the_modules() {
        for phase in Phase::ALL {
            assert!(
                PhaseName::from_str(phase.name(), false).is_ok(),
                "{phase:?}"
            );
        }
    }
}
