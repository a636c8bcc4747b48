// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `cargo xtask`: set-up, build, tests, demo and the test guest.

mod bench;
mod boot;
mod build;
mod clean;
mod corpus;
mod demo;
mod doctor;
mod fuzz;
mod guest;
mod incompressible;
mod kernel;
mod paths;
mod pinned;
mod progress;
mod restore;
mod selftests;
mod setup;
mod shell;
mod test;
mod torture;
mod wrong;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Set-up, build, tests, demo and the test guest of AgentZip.
///
/// Environment: AGENTZIP_CACHE (default ~/.cache/agentzip) is where set-up puts its results;
/// AGENTZIP_KERNEL pins the guest's kernel (for example 7.3.4+deb13-cloud-amd64);
/// AGENTZIP_ACCEL=kvm|tcg overrides the choice of QEMU's accelerator.
#[derive(Parser)]
#[command(name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Make toolchain root, kernel, build tree, guest image and initramfs (what is there is kept).
    Setup(setup::Args),
    /// Check every prerequisite and name the remedy for each that fails.
    Doctor,
    /// Build module, test modules, controller and guest program.
    Build(build::Args),
    /// Run all tests: formatting, lints, unit tests, short fuzzing, module build, guest suite.
    Test(test::Args),
    /// Let sandboxes and their host do at random what may happen to memory, and check every page.
    Torture(torture::Args),
    /// Run the kernel's own tests without the module and in attached cgroups, and compare.
    Selftests(selftests::Args),
    /// Run the fuzz targets natively.
    Fuzz(fuzz::Args),
    /// Run the demo in a guest and write target/report/demo.json.
    Demo(demo::Args),
    /// Run a benchmark, natively or in a guest.
    Bench(bench::Args),
    /// Make page sets of real processes, natively, for the density laboratory.
    Corpus(corpus::Args),
    /// Open an interactive shell in a guest.
    Shell(shell::Args),
    /// Boot a guest and run one command in it.
    Boot(boot::Args),
    /// Remove what earlier recipes left in the cache, or all of it.
    CleanCache(clean::Args),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Setup(args) => setup::main(args),
        Command::Doctor => doctor::main(),
        Command::Build(args) => build::main(args),
        Command::Test(args) => test::main(args),
        Command::Torture(args) => torture::main(args),
        Command::Selftests(args) => selftests::main(args),
        Command::Fuzz(args) => fuzz::main(args),
        Command::Demo(args) => demo::main(args),
        Command::Bench(args) => bench::main(args),
        Command::Corpus(args) => corpus::main(args),
        Command::Shell(args) => shell::main(args),
        Command::Boot(args) => boot::main(args),
        Command::CleanCache(args) => clean::main(args),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
