// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Speed and size of the page codec on real pages, beside zstd-3 and lz4.
//!
//! ```text
//! cargo bench -p agentzip-codec -- [--cache DIR] [--corpus FILE] [--remake] [--pages N]
//!                                  [--rounds N] [--batch N] [--json FILE]
//! ```
//!
//! * `--cache DIR`: where the corpus is kept (default: cargo's `target/tmp`). It is made there on the
//!   first run: a Python process (`python3`, standard library only; numpy and pandas take part where
//!   they can be imported) warms up and forks sandboxes that do agent-like work; pages that only one
//!   sandbox owns are dumped together with the page that the template has at the same address. Its
//!   environment is empty, so that nothing of this machine gets in. About 25 MiB.
//! * `--corpus FILE`: use this corpus (format in corpus/mod.rs) and make none.
//! * `--remake`: make the corpus again.
//! * `--pages N`: use at most N pages of the corpus (default: all).
//! * `--rounds N`: measure each page N times (default 5); the median counts.
//! * `--batch N`: pages in a batch (default 256). The codecs take turns on batches; a batch of 256 is
//!   larger than a second-level cache, so that pages and bases come from the third. With a few
//!   thousand they come from memory, and reading the base is what a delta then costs.
//! * `--json FILE`: write the numbers there too.
//!
//! Relative paths start from the folder of the package.
//! Exit status: 0, or 1 when something failed (also a page that did not come back the same).

mod args;
mod codecs;
mod corpus;
mod measure;
mod report;

use std::process::ExitCode;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("codec bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), String> {
    let args = args::parse(std::env::args().skip(1))?;
    let mut corpus = match &args.corpus {
        Some(file) => corpus::Corpus::read(file)?,
        None => corpus::cached(&args.cache, args.remake)?,
    };
    corpus.truncate(args.pages);
    let results = measure::run(&corpus, args.rounds, args.batch)?;
    print!("{}", report::text(&corpus, &results));
    if let Some(file) = &args.json {
        let json = report::json(&corpus, &results);
        std::fs::write(file, json).map_err(|e| format!("write {}: {e}", file.display()))?;
        println!("written: {}", file.display());
    }
    Ok(())
}
