// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The scenarios, and how one is dumped.

use std::collections::VecDeque;
use std::fs;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use agentzip_density::corpus::{IndexedPage, Manifest, SandboxPages, ScenarioWriter};
use anyhow::{Context, Result};

use crate::pages::{visit, Frames, Which};
use crate::process::{start, Sandbox};

/// The waits for the model at which the sandboxes are dumped; the last one ends the run.
const WAITS: [u32; 4] = [2, 5, 8, 11];
/// Name and version of the packages that run, a line each.
const VERSIONS: &str = "/agentzip/versions";

/// How the sandboxes of a scenario come into being.
pub enum Start {
    /// As forks of a zygote.
    Fork,
    /// Each by running a command.
    Scratch(&'static [&'static str]),
}

/// A scenario.
pub struct Scenario {
    /// Its name.
    pub name: &'static str,
    /// How its sandboxes start.
    pub start: Start,
}

/// All scenarios.
pub const ALL: [Scenario; 5] = [
    Scenario {
        name: "rollout-alike",
        start: Start::Fork,
    },
    Scenario {
        name: "rollout-diverging",
        start: Start::Fork,
    },
    Scenario {
        name: "fan-out",
        start: Start::Fork,
    },
    Scenario {
        name: "scratch-node",
        start: Start::Scratch(&["/usr/bin/node", "/agentzip/workload/corpus_node.js"]),
    },
    Scenario {
        name: "scratch-python",
        start: Start::Scratch(&["/usr/bin/python3", "/agentzip/workload/corpus_sandbox.py"]),
    },
];

/// Runs a scenario and writes its pages into the folder `dir`.
pub fn make(scenario: &Scenario, sandboxes: u32, seed: u64, dir: &Path) -> Result<Manifest> {
    let frames = Frames::open()?;
    // Children inherit it. Huge pages would hide which small pages a process really uses.
    rustix::thread::disable_transparent_huge_pages(true).context("switch THP off")?;
    let mut writer = ScenarioWriter::create(dir)?;
    let mut template = Vec::new();
    let running = start(scenario, sandboxes, seed, |pid| {
        template = dump(pid, &frames, Which::All, &mut writer)?;
        Ok(())
    })?;
    eprintln!("{}: template {} MiB", scenario.name, template.len() / 256);

    let mut running: Vec<(Sandbox, SandboxPages)> = running
        .into_iter()
        .map(|sandbox| (sandbox, SandboxPages::default()))
        .collect();
    let writer = Mutex::new(writer);
    for wait in 1..=WAITS[WAITS.len() - 1] {
        eprintln!("{}: to wait {wait}", scenario.name);
        each(&mut running, |(sandbox, pages)| {
            sandbox.turn()?;
            if WAITS.contains(&wait) {
                let mut writer = writer.lock().unwrap_or_else(PoisonError::into_inner);
                let dumped =
                    sandbox.stopped(|pid| dump(pid, &frames, Which::Owned, &mut writer))?;
                pages.waits.push(dumped);
            }
            Ok(())
        })?;
    }
    let manifest = Manifest {
        name: scenario.name.to_owned(),
        waits: WAITS.to_vec(),
        seed,
        kernel: rustix::system::uname()
            .release()
            .to_string_lossy()
            .into_owned(),
        programs: programs()?,
        made: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |time| time.as_secs()),
        sandboxes,
        template_pages: 0,
        owned_pages: 0,
        unique_pages: 0,
    };
    let writer = writer.into_inner().unwrap_or_else(PoisonError::into_inner);
    let lists = running.into_iter().map(|(_, pages)| pages).collect();
    Ok(writer.finish(manifest, template, lists)?)
}

/// Calls `what` with each item, on as many threads as there are processors.
fn each<T: Send>(items: &mut [T], what: impl Fn(&mut T) -> Result<()> + Sync) -> Result<()> {
    let queue = Mutex::new(items.iter_mut().collect::<VecDeque<_>>());
    let work = || -> Result<()> {
        loop {
            let item = queue
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .pop_front();
            match item {
                Some(item) => what(item)?,
                None => return Ok(()),
            }
        }
    };
    let threads = thread::available_parallelism().map_or(1, |n| n.get());
    thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        all.into_iter()
            .try_for_each(|thread| thread.join().expect("no panic in a runner"))
    })
}

/// Writes pages of a stopped process.
fn dump(
    pid: u32,
    frames: &Frames,
    which: Which,
    writer: &mut ScenarioWriter,
) -> Result<Vec<IndexedPage>> {
    let mut list = Vec::new();
    visit(pid, frames, which, |index, content| {
        let page = writer.add(content)?;
        list.push(IndexedPage { index, page });
        Ok(())
    })?;
    Ok(list)
}

/// Name and version of what the processes run.
fn programs() -> Result<Vec<(String, String)>> {
    let text = fs::read_to_string(VERSIONS).with_context(|| format!("read {VERSIONS}"))?;
    let pairs = text.lines().filter_map(|line| line.split_once(' '));
    Ok(pairs
        .map(|(name, version)| (name.to_owned(), version.to_owned()))
        .collect())
}
