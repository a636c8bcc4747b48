// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The one program of the test guest: its first process, the test suite, the
//! scenario runner and the demo.

mod calibrate;
mod incompressible;
mod init;
mod refused;
mod run;
mod selftests;
mod suite;
mod torture;
mod verdict;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Runs inside the AgentZip test guest.
#[derive(Parser)]
#[command(name = "agentzip-guest", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// First process of the guest: mounts, settings, swap, then what the kernel command line says.
    Init,
    /// Run the test suite.
    Suite(suite::Args),
    /// Run one scenario and print its result as JSON.
    Run(run::Args),
    /// Run the demo: the same sandboxes under all configurations.
    Demo(run::DemoArgs),
    /// Run the restore benchmark: the same tool calls under all configurations.
    Restore(run::RestoreArgs),
    /// Measure what pages cost that nothing makes smaller.
    Incompressible(incompressible::Args),
    /// Run the torture: sandboxes and their host do at random what may happen to memory.
    Torture(torture::Args),
    /// Run the kernel's own tests, without the module or in attached cgroups.
    Selftests(selftests::Args),
    /// In a guest that takes signed modules only: try to load the module.
    Refused(refused::Args),
    /// Print how many nanoseconds a fixed loop takes on this machine.
    Calibrate {
        /// One of page faults.
        #[arg(long)]
        faults: bool,
    },
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Init => init::main(),
        Command::Suite(args) => verdict::finish(suite::main(args)),
        Command::Run(args) => verdict::finish(run::main(args)),
        Command::Demo(args) => verdict::finish(run::demo(args)),
        Command::Restore(args) => verdict::finish(run::restore(args)),
        Command::Incompressible(args) => verdict::finish(incompressible::main(args)),
        Command::Torture(args) => verdict::finish(torture::main(args)),
        Command::Selftests(args) => verdict::finish(selftests::main(args)),
        Command::Refused(args) => verdict::finish(refused::main(args)),
        Command::Calibrate { faults } => {
            let time = match faults {
                true => calibrate::measure_faults(),
                false => calibrate::measure(),
            };
            println!("{}", time.as_nanos());
            ExitCode::SUCCESS
        }
    }
}
