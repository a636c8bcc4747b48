// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `agentzip-corpus`: makes the corpus of the density laboratory, in the root that
//! `scripts/setup/corpusroot.sh` makes. `cargo xtask corpus` runs it.
#![forbid(unsafe_code)]

mod pages;
mod process;
mod scenario;
mod survey;

use std::path::PathBuf;
use std::process::ExitCode;

use agentzip_density::corpus::Corpus;
use anyhow::{Context, Result};
use clap::{Parser, Subcommand};

/// Page sets of real processes.
#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a scenario and write its pages into the corpus DIR. Fails when they are easier than real ones.
    Make {
        /// Folder of the corpus.
        dir: PathBuf,
        /// Name of the scenario.
        #[arg(long)]
        scenario: String,
        /// Number of sandboxes.
        #[arg(long)]
        sandboxes: u32,
        /// Seed of what the agents decide and write.
        #[arg(long)]
        seed: u64,
    },
    /// Print what is in the corpus DIR.
    Table {
        /// Folder of the corpus.
        dir: PathBuf,
    },
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("agentzip-corpus: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<()> {
    match command {
        Command::Make {
            dir,
            scenario,
            sandboxes,
            seed,
        } => {
            let known = scenario::ALL.iter().find(|s| s.name == scenario);
            let known = known.with_context(|| format!("there is no scenario \"{scenario}\""))?;
            scenario::make(known, sandboxes, seed, &dir.join(known.name))?;
            let loaded = Corpus::open(&dir)?.load(known.name)?;
            let survey = survey::Survey::of(&loaded);
            survey.save(&dir.join(known.name))?;
            print!("{}", survey::table(std::slice::from_ref(&survey)));
            survey.check(known)
        }
        Command::Table { dir } => {
            let corpus = Corpus::open(&dir)?;
            let all = corpus.scenarios().iter();
            let all: Vec<_> = all
                .map(|manifest| survey::Survey::load(&dir.join(&manifest.name)))
                .collect::<Result<_>>()?;
            print!("{}", survey::table(&all));
            Ok(())
        }
    }
}
