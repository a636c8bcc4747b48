// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `cargo xtask clean-cache`: removes what is no longer used from the cache folder.

use std::fs;
use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::setup::{self, Cache, Step};
use crate::{corpus, paths};

/// Options of `cargo xtask clean-cache`.
#[derive(clap::Args)]
pub struct Args {
    /// Remove the results of the present recipes too.
    #[arg(long)]
    all: bool,
}

/// Runs `cargo xtask clean-cache`.
pub fn main(args: Args) -> Result<ExitCode> {
    let dir = paths::cache()?;
    let current = Cache::locate()?;
    for entry in fs::read_dir(&dir).with_context(|| format!("read {}", dir.display()))? {
        let path = entry?.path();
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let made_by_a_step = Step::ALL
            .iter()
            .any(|step| name.starts_with(&format!("{}-", step.name())));
        let used = Step::ALL.iter().any(|step| current.get(*step) == path);
        let is_corpus = name.starts_with(corpus::PREFIX);
        let used = used || corpus::folder(&current, corpus::SANDBOXES, corpus::SEED)? == path;
        if (made_by_a_step || is_corpus) && (args.all || !used) {
            println!("removing {}", path.display());
            setup::remove(&path)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
