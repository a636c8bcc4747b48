// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Replays a corpus through the store, and measures.

use std::fs;
use std::path::PathBuf;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use agentzip_density::ablation;
use agentzip_density::baseline::{self, Owned};
use agentzip_density::corpus::Corpus;
use agentzip_density::platform::Bounds;
use agentzip_density::replay::{self, Stopwatch};
use agentzip_density::report::{Report, ScenarioReport};
use agentzip_store::engine::Policy;
use anyhow::{ensure, Context, Result};
use clap::Parser;

/// Replay a corpus of page sets through the store as a group lives, and measure bytes and times.
///
/// Every page that is swapped out is brought back and compared. Exit status: 0, or not when a file
/// is missing or a page did not come back.
#[derive(Parser)]
struct Args {
    /// Folder of the corpus.
    #[arg(long, value_name = "DIR")]
    corpus: PathBuf,
    /// Only this scenario; may be given several times.
    #[arg(long, value_name = "NAME")]
    scenario: Vec<String>,
    /// Only the first so many sandboxes of each.
    #[arg(long, value_name = "N")]
    sandboxes: Option<usize>,
    /// Also measure what each mechanism is worth.
    #[arg(long)]
    ablation: bool,
    /// Write the results here as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let corpus = Corpus::open(&args.corpus)?;
    let names: Vec<String> = match args.scenario.is_empty() {
        true => corpus
            .scenarios()
            .iter()
            .map(|manifest| manifest.name.clone())
            .collect(),
        false => args.scenario.clone(),
    };
    ensure!(
        !names.is_empty(),
        "{} has no scenario; cargo xtask corpus makes them",
        args.corpus.display()
    );
    let mut report = Report {
        command: std::env::args().collect::<Vec<_>>().join(" "),
        date: SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs(),
        policy: Policy::DEFAULT,
        scenarios: Vec::new(),
    };
    for name in &names {
        let start = Instant::now();
        let scenario = scenario(&args, &corpus, name)?;
        let one = Report {
            scenarios: vec![scenario],
            command: String::new(),
            ..report
        };
        print!("{}", one.text());
        eprintln!("{name}: {:.0} s", start.elapsed().as_secs_f64());
        report.scenarios.extend(one.scenarios);
    }
    if let Some(file) = &args.json {
        fs::write(file, report.json()).with_context(|| format!("write {}", file.display()))?;
        println!("written: {}", file.display());
    }
    Ok(())
}

fn scenario(args: &Args, corpus: &Corpus, name: &str) -> Result<ScenarioReport> {
    let scenario = corpus.load(name)?;
    let there = scenario.sandboxes.len();
    let sandboxes = args.sandboxes.unwrap_or(there).min(there);
    ensure!(
        sandboxes > 0 && !scenario.waits.is_empty(),
        "{name} has no sandboxes or no waits"
    );
    let mut stopwatch = Stopwatch::new();
    let life = replay::live(
        &scenario,
        sandboxes,
        Policy::DEFAULT,
        Bounds::DEFAULT,
        &mut stopwatch,
    );
    let numbers = replay::last_wait(&scenario, sandboxes).map(|page| page.page);
    let owned = Owned::new(&scenario.pages, numbers);
    let (baselines, dictionary) = baseline::measure(&owned);
    let ablation = match args.ablation {
        true => ablation::run(&scenario, sandboxes, Policy::DEFAULT),
        false => Vec::new(),
    };
    Ok(ScenarioReport {
        sandboxes,
        template_pages: scenario.template.len(),
        life,
        timings: stopwatch.timings(),
        baselines,
        dictionary,
        ablation,
        manifest: scenario.manifest.clone(),
    })
}
