// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The command line: parses it, runs the command, prints its report.

mod hint;
mod lifecycle;
mod plan;

use std::fmt::Display;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use agentzip_ctl::cgroup::Selector;
use agentzip_ctl::commands::ranges::{self, RangeArgument};
use agentzip_ctl::commands::{
    arm, dictionary, drain, limit, phase, restore, sandbox, template, template_add,
};
use agentzip_ctl::reclaim::Options;
use agentzip_ctl::{Context, Limit, ObjectName, Paths, Signature};
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
        Environment (for tests): AGENTZIP_DEV, AGENTZIP_SYSFS, AGENTZIP_CGROUP_ROOT, AGENTZIP_PROC, \
        AGENTZIP_ZSWAP, AGENTZIP_BTF and AGENTZIP_SOCKET replace /dev/agentzip, /sys/kernel/agentzip, the \
        cgroup v2 mount, /proc, /sys/module/zswap/parameters, /sys/kernel/btf/vmlinux and \
        /run/agentzip.sock.\n\n\
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
        Environment (for tests): AGENTZIP_DEV, AGENTZIP_SYSFS, AGENTZIP_CGROUP_ROOT, AGENTZIP_PROC,\n\
        AGENTZIP_ZSWAP, AGENTZIP_BTF and AGENTZIP_SOCKET replace /dev/agentzip, /sys/kernel/agentzip, the\n\
        cgroup v2 mount, /proc, /sys/module/zswap/parameters, /sys/kernel/btf/vmlinux and\n\
        /run/agentzip.sock.\n\n\
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
    /// Before that, compares the kernel that the module was built for with the one that runs, by their
    /// BTF, which tells of all structures and functions, and refuses when they differ. Says so when
    /// either has none to compare. An armed module is not compared again.
    ///
    /// Sets zswap up without switching it on (its own value is written back to
    /// /sys/module/zswap/parameters/enabled), so that the kernel swaps in single pages. Warns when
    /// vm.page-cluster is not 0 and when there is no swap. Ends draining.
    #[command(after_help = "Examples:\n  agentzip arm\n  agentzip arm --json | jq .kernel_btf")]
    Arm {
        /// Arm a module that was built for another kernel, too: at your own risk, for pages may come back
        /// wrong, or the kernel crash
        #[arg(long)]
        force: bool,
    },
    /// Remove the hooks; refused while entries exist
    Disarm,
    /// Add, list and remove templates: the pages that sandboxes were cloned from
    #[command(subcommand)]
    Template(TemplateCommand),
    /// Attach, list and detach sandboxes: cgroups whose pages go to the store
    #[command(subcommand)]
    Sandbox(SandboxCommand),
    /// Train, list and retire dictionaries: what a group's pages have in common, for zstd
    #[command(subcommand, name = "dict")]
    Dictionary(DictionaryCommand),
    /// Tell what the agent in a sandbox does; `waiting` also reclaims its memory
    ///
    /// `waiting`: the agent waits for the LLM. Its anonymous memory is reclaimed through
    /// memory.reclaim, in slices, until nothing is left to gain.
    /// `resuming`: the LLM answers. See also `agentzip restore`, which sets this phase.
    /// `running`: a tool runs.
    #[command(after_help = "Examples:\n  agentzip phase agents/sb1 waiting\n  \
        agentzip phase agents/sb1 waiting --no-reclaim\n  agentzip phase /sys/fs/cgroup/agents/sb1 running")]
    Phase(PhaseArgs),
    /// Tell the daemon what the agent in a sandbox does, as an agent runtime would
    ///
    /// HINT is `llm-wait`, `message-near`, `first-token`, `tool-start`, `tool-end`, `idle` or `done`.
    /// Milliseconds that a wait is expected to take follow as `;expect=8000`, those until a message comes as
    /// `;in=800`, the name of a tool as `;tool=pytest`. Without a daemon
    /// the module alone is told, and nothing is reclaimed or restored.
    #[command(
        after_help = "Examples:\n  agentzip hint agents/sb1 'llm-wait;expect=8000'\n  \
        agentzip hint agents/sb1 first-token\n  agentzip hint agents/sb1 'tool-start;tool=pytest'\n\n\
        The same by xattr, without a client:\n  \
        setfattr -n user.agentzip.phase -v first-token /sys/fs/cgroup/agents/sb1"
    )]
    Hint(hint::HintArgs),
    /// Print what the daemon does, as it happens
    ///
    /// Root sees all events, others those of their own cgroups. With --json, each is an object on a line.
    #[command(
        after_help = "Examples:\n  agentzip events\n  agentzip events --json | jq -c 'select(.event == \"state\")'"
    )]
    Events(hint::EventsArgs),
    /// Ask the daemon whether there is room for one more sandbox: yes, wait or no, and why
    ///
    /// Exit status 0 means yes, 1 wait or no.
    #[command(
        after_help = "Examples:\n  agentzip admit\n  agentzip admit --bytes 300M --template python --json"
    )]
    Admit(hint::AdmitArgs),
    /// Bring the swapped-out pages of a sandbox back, ahead of need
    ///
    /// Sets the phase to resuming, then reads the swapped-out pages of every process in the cgroup
    /// and below. Stops before a memory limit of the cgroup or one above it would be met.
    #[command(after_help = "Example:\n  agentzip restore agents/sb1")]
    Restore {
        /// Cgroup of the sandbox
        cgroup: Selector,
    },
    /// Bound the memory that the store may take for pages
    ///
    /// Arenas, reference pages and content indexes of all sandboxes together. At the bound, what does
    /// not fit into holes goes to the swap device; nothing that is stored goes away. The module
    /// begins with a fifth of the machine's memory. See `agentzip sandbox limit` for one sandbox.
    #[command(after_help = "Examples:\n  agentzip limit 2G\n  agentzip limit max")]
    Limit {
        /// Bytes, also with K, M, G or T behind the number, or max
        size: Limit,
    },
    /// Show state, memory, templates and sandboxes
    ///
    /// State, memory and sums are for everybody, what is about single templates and sandboxes for root.
    ///
    /// Gives an alarm for each sandbox that its template does not serve: after 1000 stores, fewer than 5%
    /// of its pages have one in the template, or less than half the median of its group (of three
    /// sandboxes at least).
    ///
    /// Where a daemon runs that may be asked, its view of each sandbox is shown, too, and why nothing is
    /// taken from it.
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
    /// Run the daemon: takes hints, compresses what waits, brings it back
    ///
    /// Cgroups below the trees of the configuration become sandboxes by the xattr
    /// user.agentzip.template; hints come by the xattr user.agentzip.phase or by the socket. SIGHUP
    /// reads the configuration again, SIGTERM ends. Without the module it works over the host's own
    /// swap, zswap or zram. Logs to standard error; AGENTZIP_LOG=debug tells more.
    #[command(
        after_help = "Examples:\n  agentzip daemon --config /etc/agentzip.toml\n  \
        setfattr -n user.agentzip.template -v python /sys/fs/cgroup/agents/sb1\n  \
        setfattr -n user.agentzip.phase -v 'llm-wait;expect=8000' /sys/fs/cgroup/agents/sb1"
    )]
    Daemon {
        /// The file [default: /etc/agentzip.toml; every default when that is not there]
        #[arg(long)]
        config: Option<PathBuf>,
    },
    /// Bring a sandbox back and hold it still, for a tool that reads its memory; needs the daemon
    ///
    /// Swapped-out pages look absent to mincore and in pagemap, so take snapshots of a sandbox that is
    /// quiesced. Returns when its pages are there. Until it is released nothing is taken from it.
    #[command(
        after_help = "Examples:\n  agentzip quiesce agents/sb1\n  agentzip quiesce agents/sb1 --release"
    )]
    Quiesce(lifecycle::QuiesceArgs),
    /// Show, write and read what the daemon has learned about templates and tools; for root
    ///
    /// A plan says which pages a tool touches when it starts, so that they are there before it asks. The daemon
    /// learns that from the faults of earlier turns; what it learned ends with it, unless it is exported.
    #[command(subcommand)]
    Plan(plan::PlanCommand),
    /// Check and show the configuration of the daemon
    #[command(subcommand)]
    Config(lifecycle::ConfigCommand),
}

#[derive(Subcommand, Debug)]
enum TemplateCommand {
    /// Register the private memory of a process, or a file, as a template
    ///
    /// The process should be a holder: a child that the zygote forked and that stopped, outside the
    /// sandboxes' cgroups, in a cgroup with memory.swap.max=0. Pages that it shares with its parent
    /// are kept by reference and cost nothing while it lives; others are copied.
    ///
    /// Pages of a file are copied, but for those of a memfd that is sealed against writing, shrinking
    /// and growing: they cost nothing while it lives. Sandboxes of such a template need ranges, see
    /// `agentzip sandbox ranges`.
    #[command(
        after_help = "Examples:\n  agentzip template add --pid 1234 --name python\n  \
        agentzip template add --pid 1234 --name python --domain tenant-7\n  \
        agentzip template add --file /var/lib/vm/snapshot.mem --name vm\n  \
        agentzip template add --file /proc/1234/fd/5 --offset 1M --length 512M --name vm"
    )]
    Add(AddArgs),
    /// List the templates
    List,
    /// Remove a template that no sandbox uses
    Rm {
        /// Name of the template
        name: ObjectName,
    },
}

#[derive(Args, Debug)]
struct AddArgs {
    /// Process that holds the pages
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(i32).range(1..),
        required_unless_present = "file")]
    pid: Option<i32>,
    /// File that holds the pages
    #[arg(long, value_name = "FILE", conflicts_with = "pid")]
    file: Option<PathBuf>,
    /// With --file: where to begin
    #[arg(long, value_name = "BYTES", conflicts_with = "pid", value_parser = bytes, default_value = "0")]
    offset: u64,
    /// With --file: how much to take; 0: to the end
    #[arg(long, value_name = "BYTES", conflicts_with = "pid", value_parser = bytes, default_value = "0")]
    length: u64,
    /// Name of the template
    #[arg(long)]
    name: ObjectName,
    /// Trust domain that it belongs to; nothing is shared across domains [default: default]
    #[arg(long)]
    domain: Option<ObjectName>,
    /// Signature that sandboxes are compared with, or `none` [default: computed from the binaries of
    /// the process, or from the file]
    #[arg(long, value_name = "HEX")]
    signature: Option<Signature>,
}

/// A number of bytes on the command line.
fn bytes(text: &str) -> Result<u64, &'static str> {
    ranges::size(text).ok_or("a number of bytes is 4096, 0x1000, 4K, 4M or 4G")
}

/// Where the memory of a sandbox lies in its template.
#[derive(Args, Debug)]
struct RangeArgs {
    /// Addresses of the sandbox that were filled from the template, and where they lie there: offset in
    /// its file, or address in its process; may be given several times
    #[arg(long = "range", value_name = "ADDRESS:LENGTH:OFFSET")]
    given: Vec<RangeArgument>,
    /// File that processes in the sandbox map privately: its mappings are ranges; may be given several
    /// times
    #[arg(long, value_name = "FILE")]
    mapped: Vec<PathBuf>,
}

impl RangeArgs {
    fn request(&self) -> ranges::Request<'_> {
        ranges::Request {
            given: &self.given,
            mapped: &self.mapped,
        }
    }
}

#[derive(Subcommand, Debug)]
enum SandboxCommand {
    /// Make a cgroup a sandbox: its pages, and those of cgroups below it, go to the store
    #[command(
        after_help = "Examples:\n  agentzip sandbox attach agents/sb1 --template python\n  \
        agentzip sandbox attach agents/sb1 --template python --group task-9 --domain tenant-7\n  \
        agentzip sandbox attach agents/vm1 --template vm --mapped /var/lib/vm/snapshot.mem"
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
        /// Its pages share nothing with any other, each takes 2,040 bytes or goes to the swap device, and
        /// what is freed is zeroed. For as long as it is attached
        #[arg(long, conflicts_with = "group")]
        sensitive: bool,
        /// Bound on its arena, as for `sandbox limit` [default: max]
        #[arg(long, value_name = "SIZE")]
        max_bytes: Option<Limit>,
        /// Signature of what it was cloned from, or `none`; one that differs from the template's is
        /// refused [default: with a template from a process, that of a process in the sandbox]
        #[arg(long, value_name = "HEX")]
        signature: Option<Signature>,
        #[command(flatten)]
        ranges: RangeArgs,
    },
    /// Bound the memory that the compressed pages of a sandbox may take
    ///
    /// That is the sandbox's arena, for which its cgroup is charged. At the bound, what does not fit
    /// into holes goes to the swap device. Pages that it shares with siblings do not count.
    #[command(
        after_help = "Examples:\n  agentzip sandbox limit agents/sb1 64M\n  agentzip sandbox limit agents/sb1 max"
    )]
    Limit {
        /// Cgroup of the sandbox
        cgroup: Selector,
        /// Bytes, also with K, M, G or T behind the number, or max
        size: Limit,
    },
    /// Tell where the memory of a sandbox lies in its template; replaces what was told before
    ///
    /// Without ranges, a page is compared with the template's page of the same address, and not at all
    /// when the template is from a file. Several processes may have other ranges at the same
    /// addresses. Without any option the sandbox has no ranges any more.
    #[command(
        after_help = "Examples, for a process that maps the template's file, and for one that read it into\n\
        its memory:\n  \
        agentzip sandbox ranges agents/vm1 --mapped /var/lib/vm/snapshot.mem\n  \
        agentzip sandbox ranges agents/vm1 --range 0x7f2300000000:512M:0"
    )]
    Ranges {
        /// Cgroup of the sandbox
        cgroup: Selector,
        #[command(flatten)]
        ranges: RangeArgs,
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

#[derive(Subcommand, Debug)]
enum DictionaryCommand {
    /// Make a dictionary of what a group has stored, and load it if it pays
    ///
    /// Takes pages of the group whose payloads are long, holds a fifth of them out, makes dictionaries of
    /// 64, 128 and 256 KiB of the others (at most an eighth of these), and compresses the held-out
    /// pages with each. Loads the one that saves most, its own memory counted, or none. It serves pages that
    /// are stored or looked at again from then on; the former dictionary goes with the last page that needs it.
    #[command(
        after_help = "Examples:\n  agentzip dict train --sandbox agents/sb1 --dry-run\n  \
        agentzip dict train --sandbox agents/sb1 --size 64K"
    )]
    Train {
        /// Any sandbox of the group
        #[arg(long, value_name = "CGROUP")]
        sandbox: Selector,
        /// Try only this size
        #[arg(long, value_name = "BYTES", value_parser = bytes)]
        size: Option<u64>,
        /// Tell what pays, load nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// List the groups that have dictionaries
    List,
    /// Show the dictionaries of a group
    Show {
        /// Any sandbox of the group
        #[arg(long, value_name = "CGROUP")]
        sandbox: Selector,
    },
    /// Retire the dictionary of a group; it goes with the last page that needs it
    #[command(after_help = "Example:\n  agentzip dict rm --sandbox agents/sb1")]
    Rm {
        /// Any sandbox of the group
        #[arg(long, value_name = "CGROUP")]
        sandbox: Selector,
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
        Command::Arm { force } => print.report(&arm::arm(&context, force)?),
        Command::Disarm => print.report(&arm::disarm(&context)?),
        Command::Template(command) => run_template(&context, print, command),
        Command::Sandbox(command) => run_sandbox(&context, print, command),
        Command::Dictionary(command) => run_dictionary(&context, print, command),
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
        Command::Hint(args) => hint::run_hint(&context, print, &args),
        Command::Events(args) => hint::run_events(print, &args),
        Command::Admit(args) => hint::run_admit(print, &args),
        Command::Restore { cgroup } => print.report(&restore::restore(&context, &cgroup)?),
        Command::Limit { size } => print.report(&limit::store(&context, size)?),
        Command::Status => lifecycle::run_status(&context, print),
        Command::Daemon { config } => lifecycle::run_daemon(config),
        Command::Quiesce(args) => lifecycle::run_quiesce(print, args),
        Command::Plan(command) => plan::run_plan(print, command),
        Command::Config(command) => lifecycle::run_config(print, command),
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
        TemplateCommand::Add(args) => {
            let request = template_add::Request {
                name: &args.name,
                domain: args.domain.as_ref(),
                signature: args.signature,
            };
            let added = match (&args.file, args.pid) {
                (Some(path), _) => {
                    let part = template_add::Part {
                        path,
                        offset: args.offset,
                        length: args.length,
                    };
                    template_add::from_file(context, &part, &request)?
                }
                (None, pid) => {
                    let pid = pid.context("neither --pid nor --file")?;
                    template_add::from_process(context, pid, &request)?
                }
            };
            print.report(&added)
        }
        TemplateCommand::List => print.report(&template::list(context)?),
        TemplateCommand::Rm { name } => print.report(&template::remove(context, &name)?),
    }
}

fn run_dictionary(
    context: &Context,
    print: Printer,
    command: DictionaryCommand,
) -> Result<ExitCode> {
    match command {
        DictionaryCommand::Train {
            sandbox,
            size,
            dry_run,
        } => {
            let request = dictionary::Request { size, dry_run };
            print.report(&dictionary::train(context, &sandbox, &request)?)
        }
        DictionaryCommand::List => print.report(&dictionary::list(context)?),
        DictionaryCommand::Show { sandbox } => print.report(&dictionary::show(context, &sandbox)?),
        DictionaryCommand::Rm { sandbox } => print.report(&dictionary::remove(context, &sandbox)?),
    }
}

fn run_sandbox(context: &Context, print: Printer, command: SandboxCommand) -> Result<ExitCode> {
    match command {
        SandboxCommand::Attach {
            cgroup,
            template,
            group,
            domain,
            sensitive,
            max_bytes,
            signature,
            ranges,
        } => {
            let request = sandbox::Request {
                cgroup: &cgroup,
                template: &template,
                group: group.as_ref(),
                domain: domain.as_ref(),
                sensitive,
                max_bytes,
                signature,
                ranges: ranges.request(),
            };
            print.report(&sandbox::attach(context, &request)?)
        }
        SandboxCommand::Limit { cgroup, size } => {
            print.report(&limit::sandbox(context, &cgroup, size)?)
        }
        SandboxCommand::Ranges { cgroup, ranges } => {
            print.report(&ranges::replace(context, &cgroup, &ranges.request())?)
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
        btf: replaced("AGENTZIP_BTF").unwrap_or(standard.btf),
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
