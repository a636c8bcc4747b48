// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `cargo xtask selftests`: the kernel's own tests, in a guest without the module and in one where their
//! cgroups are attached.

mod build;
mod compare;
mod tap;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use serde_json::{json, Value};

use self::compare::Results;
use self::tap::State;
use crate::build::Artifacts;
use crate::guest::Guest;
use crate::kernel::Kernel;
use crate::setup::Cache;
use crate::{paths, progress, setup};

/// The list of programs; qemu-test/src/selftests/plan.rs reads it too.
const PROGRAMS: &str = "qemu-test/selftests/programs";
/// What is expected of their subtests.
const EXPECTED: &str = "qemu-test/selftests/expected";
/// Most lines about what is wrong.
const SHOWN: usize = 40;

/// Options of `cargo xtask selftests`.
#[derive(clap::Args)]
pub struct Args {
    /// Only programs whose name contains this; may be given several times.
    #[arg(long)]
    only: Vec<String>,
    /// Write what is found to the list of what is expected. Reasons must then be added by hand.
    #[arg(long, conflicts_with = "only")]
    accept: bool,
    /// With the module and the guest program as they were built last.
    #[arg(long)]
    as_built: bool,
}

/// A line of the list of programs, as far as it is needed here.
#[derive(Debug, PartialEq, Eq)]
struct Program {
    name: String,
    /// With the module it must store pages.
    stores: bool,
    seconds: u64,
    /// Folder and name in tools/testing/selftests.
    source: String,
}

/// What one guest reports.
struct Side {
    /// Programs that the kernel complained about, and whether something was left.
    failed: u32,
    report: Value,
    results: Results,
}

/// Runs it and writes target/report/selftests.json.
pub fn main(args: Args) -> Result<ExitCode> {
    let mut programs = programs(&read(PROGRAMS)?)?;
    let selected = |name: &str| args.only.is_empty() || args.only.iter().any(|o| name.contains(o));
    programs.retain(|one| selected(&one.name));
    ensure!(!programs.is_empty(), "no program has such a name");
    let listed = read(EXPECTED)?;
    let mut expected = match args.accept {
        // One that lacks reasons is about to be written anew.
        true => compare::parse(&listed).unwrap_or_default(),
        false => compare::parse(&listed)?,
    };
    expected.retain(|(program, _), _| selected(program));

    let (cache, kernel) = setup::ensure_for(false)?;
    let mut artifacts = match args.as_built {
        true => crate::build::as_built(kernel),
        false => crate::build::all(&cache, kernel)?,
    };
    let sources: BTreeSet<&str> = programs.iter().map(|one| one.source.as_str()).collect();
    artifacts.files.extend(build::programs(&cache, &sources)?);
    artifacts.files.push(paths::in_repo(PROGRAMS));

    let without = run(&cache, &artifacts, kernel, &programs, &args.only, false)?;
    let with = run(&cache, &artifacts, kernel, &programs, &args.only, true)?;
    let mut wrong = nothing_stored(&programs, &with.report);
    for (what, side) in [("without", &without), ("with", &with)] {
        if side.failed > 0 {
            wrong.push(format!(
                "the guest {what} the module found {} faults",
                side.failed
            ));
        }
    }
    // What no list can accept.
    let broken = !wrong.is_empty();
    wrong.extend(compare::compare(&without.results, &with.results, &expected));
    table(&programs, &without, &with);
    // All of them are in the report.
    for line in wrong.iter().take(SHOWN) {
        println!("selftests: not ok {line}");
    }
    let report = json!({
        "without": without.report,
        "with": with.report,
        "subtests": beside(&without.results, &with.results),
        "wrong": wrong,
    });
    write(&report)?;
    if args.accept {
        let comments = listed
            .split_inclusive('\n')
            .filter(|line| line.starts_with('#'));
        let text = comments.collect::<String>()
            + &compare::accept(&without.results, &with.results, &expected);
        let path = paths::in_repo(EXPECTED);
        fs::write(&path, &text).with_context(|| format!("write {}", path.display()))?;
        compare::parse(&text).context("differences need reasons: add them to the list")?;
        return Ok(ExitCode::from(u8::from(broken)));
    }
    println!(
        "selftests: {} subtests, {} differ from what is expected",
        with.results.len(),
        wrong.len()
    );
    Ok(ExitCode::from(u8::from(!wrong.is_empty())))
}

fn read(path: &str) -> Result<String> {
    let path = paths::in_repo(path);
    fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
}

/// Reads the list of programs.
fn programs(text: &str) -> Result<Vec<Program>> {
    let lines = text
        .lines()
        .filter(|l| !l.is_empty() && !l.starts_with('#'));
    lines
        .map(|line| {
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            ensure!(words.len() >= 5, "list of selftests: {line:?} is too short");
            Ok(Program {
                name: words[0].to_owned(),
                stores: words[2] == "yes",
                seconds: words[3]
                    .parse()
                    .with_context(|| format!("seconds of {line:?}"))?,
                source: words[4].to_owned(),
            })
        })
        .collect()
}

/// Runs all programs in one guest.
fn run(
    cache: &Cache,
    artifacts: &Artifacts,
    kernel: Kernel,
    programs: &[Program],
    only: &[String],
    attach: bool,
) -> Result<Side> {
    let what = if attach { "with" } else { "without" };
    println!("selftests: {what} the module");
    let name = format!("selftests-{what}");
    let mut guest = Guest::new(&name, "selftests");
    let longest = programs.iter().map(|one| one.seconds).max().unwrap_or(0);
    let all: u64 = programs.iter().map(|one| one.seconds).sum();
    guest.limit = Duration::from_secs(all + 300);
    guest.silence = Duration::from_secs(longest + 120);
    guest.kernel = kernel;
    guest.args.extend(attach.then(|| "--attach".to_owned()));
    for one in only {
        guest.args.extend(["--only".to_owned(), one.clone()]);
    }
    let outcome = guest.boot(cache, artifacts, false)?;
    println!(
        "selftests: {what} the module: {}",
        progress::seconds(outcome.elapsed)
    );
    let path = outcome.file("selftests.json")?;
    let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let report: Value =
        serde_json::from_str(&text).with_context(|| format!("parse {}", path.display()))?;
    let mut results = Results::new();
    for run in report["runs"].as_array().context("no runs")? {
        let name = run["name"].as_str().context("a run without a name")?;
        let output = fs::read(outcome.file(&format!("{name}.out"))?)?;
        for (subtest, state) in tap::parse(&String::from_utf8_lossy(&output)) {
            results.insert((name.to_owned(), subtest), state);
        }
        let late = run["late"].as_bool().unwrap_or(false);
        let end = (name.to_owned(), "(exit)".to_owned());
        results.insert(end, tap::exit(run["code"].as_i64(), late));
    }
    Ok(Side {
        failed: outcome.failed,
        report,
        results,
    })
}

/// Pages that a run of a guest stored.
fn stored(report: &Value, program: &str) -> u64 {
    let runs = report["runs"].as_array().into_iter().flatten();
    let mut named = runs.filter(|run| run["name"] == program);
    named
        .next()
        .and_then(|run| run["stored"].as_u64())
        .unwrap_or(0)
}

/// Programs that should have had pages stored and had not: their run tests nothing.
fn nothing_stored(programs: &[Program], with: &Value) -> Vec<String> {
    let stores = programs.iter().filter(|one| one.stores);
    stores
        .filter(|one| stored(with, &one.name) == 0)
        .map(|one| format!("{}: the module stored no page", one.name))
        .collect()
}

/// How many subtests of a program ended how.
fn counts(results: &Results, program: &str) -> String {
    let mut sums: BTreeMap<String, u32> = BTreeMap::new();
    for ((name, subtest), state) in results {
        if name == program && subtest != "(exit)" {
            *sums.entry(state.to_string()).or_default() += 1;
        }
    }
    let exit = (program.to_owned(), "(exit)".to_owned());
    let exit = results.get(&exit).copied().unwrap_or(State::Missing);
    let mut words: Vec<String> = sums
        .iter()
        .map(|(state, n)| format!("{n} {state}"))
        .collect();
    words.push(format!("exit {exit}"));
    words.join(", ")
}

/// Prints both sides.
fn table(programs: &[Program], without: &Side, with: &Side) {
    for one in programs {
        println!(
            "{:<22} {:<34} {:<34} {} stored",
            one.name,
            counts(&without.results, &one.name),
            counts(&with.results, &one.name),
            stored(&with.report, &one.name)
        );
    }
}

/// Every subtest with both states.
fn beside(without: &Results, with: &Results) -> Vec<Value> {
    let names: BTreeSet<_> = without.keys().chain(with.keys()).collect();
    let state = |results: &Results, name| -> String {
        results
            .get(name)
            .copied()
            .unwrap_or(State::Missing)
            .to_string()
    };
    names
        .into_iter()
        .map(|name| {
            json!({
                "program": name.0,
                "subtest": name.1,
                "without": state(without, name),
                "with": state(with, name),
            })
        })
        .collect()
}

/// Writes target/report/selftests.json.
fn write(report: &Value) -> Result<()> {
    let folder = paths::target().join("report");
    fs::create_dir_all(&folder).with_context(|| format!("mkdir {}", folder.display()))?;
    let path = folder.join("selftests.json");
    let text = serde_json::to_string_pretty(report)? + "\n";
    fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
    println!("selftests: report: {}", path.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lists_fit_together() {
        let programs = programs(&read(PROGRAMS).unwrap()).unwrap();
        let listed = compare::parse(&read(EXPECTED).unwrap()).unwrap();
        let expected: BTreeSet<&str> = listed.keys().map(|(program, _)| program.as_str()).collect();
        let names: BTreeSet<&str> = programs.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names.len(), programs.len(), "a name is there twice");
        assert_eq!(names, expected);
        assert!(programs.iter().any(|one| one.stores));
    }

    #[test]
    fn who_stores_nothing_is_named() {
        let program = |name: &str, stores| Program {
            name: name.to_owned(),
            stores,
            seconds: 1,
            source: "mm/x".to_owned(),
        };
        let all = [program("a", true), program("b", true), program("c", false)];
        let report = json!({"runs": [{"name": "a", "stored": 3}, {"name": "b", "stored": 0}]});
        assert_eq!(
            nothing_stored(&all, &report),
            ["b: the module stored no page"]
        );
    }
}
