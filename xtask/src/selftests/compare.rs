// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Results without and with the module beside each other, and beside what is expected.
//!
//! The list of what is expected is qemu-test/selftests/expected: one subtest a line, fields separated by
//! tabs: program, subtest, state without the module, state with it, and why where the two differ. `any` stands
//! for every state but `missing`: the result depends on the machine's speed. That needs a reason too.

use std::collections::BTreeMap;

use anyhow::{ensure, Context, Result};

use super::tap::State;

/// Program and subtest.
pub type Name = (String, String);
/// Results of one guest.
pub type Results = BTreeMap<Name, State>;

/// A state that a line expects; none for `any`.
type Wanted = Option<State>;

/// One line of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    without: Wanted,
    with: Wanted,
    why: String,
}

/// The list.
pub type Expected = BTreeMap<Name, Line>;

/// Reads the list.
///
/// # Errors
///
/// A line that is none, one that is there twice, and a difference without a reason.
pub fn parse(text: &str) -> Result<Expected> {
    let mut expected = Expected::new();
    for line in text.lines() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (name, entry) = parse_line(line).with_context(|| format!("expected: {line:?}"))?;
        let former = expected.insert(name, entry);
        ensure!(former.is_none(), "expected: {line:?} is there twice");
    }
    Ok(expected)
}

fn parse_line(line: &str) -> Result<(Name, Line)> {
    let fields: Vec<&str> = line.split('\t').collect();
    ensure!((4..=5).contains(&fields.len()), "not 4 or 5 fields");
    let state = |text: &str| -> Result<Wanted> {
        match text {
            "any" => Ok(None),
            _ => State::parse(text).map(Some).context("no such state"),
        }
    };
    let line = Line {
        without: state(fields[2])?,
        with: state(fields[3])?,
        why: fields.get(4).copied().unwrap_or_default().to_owned(),
    };
    ensure!(!line.needs_reason() || !line.why.is_empty(), "no reason");
    Ok(((fields[0].to_owned(), fields[1].to_owned()), line))
}

impl Line {
    fn needs_reason(&self) -> bool {
        self.without != self.with || self.without.is_none()
    }
}

/// Whether a result is as wanted.
fn agrees(wanted: Wanted, found: State) -> bool {
    match wanted {
        Some(wanted) => wanted == found,
        None => found != State::Missing,
    }
}

/// What is wrong with the results; empty when all is as expected.
pub fn compare(without: &Results, with: &Results, expected: &Expected) -> Vec<String> {
    let mut wrong = Vec::new();
    let of = |results: &Results, name: &Name| results.get(name).copied().unwrap_or(State::Missing);
    let names: std::collections::BTreeSet<&Name> = without
        .keys()
        .chain(with.keys())
        .chain(expected.keys())
        .collect();
    for name in names {
        let (a, b) = (of(without, name), of(with, name));
        let title = format!("{}: {}", name.0, name.1);
        match expected.get(name) {
            Some(line) if agrees(line.without, a) && agrees(line.with, b) => {}
            _ if a == State::Pass && b != State::Pass => {
                wrong.push(format!("{title}: passes without the module, {b} with it"));
            }
            Some(line) => {
                let text = |wanted: Wanted| wanted.map_or("any".into(), |s| s.to_string());
                wrong.push(format!(
                    "{title}: {a} without and {b} with the module, expected {} and {}",
                    text(line.without),
                    text(line.with)
                ));
            }
            None => wrong.push(format!("{title}: {a} and {b}, not in the list")),
        }
    }
    wrong
}

/// The list as the results would have it; reasons, and lines that hold as they are, stay.
///
/// Differences are written without a reason, so that the list cannot be read until somebody gives one.
pub fn accept(without: &Results, with: &Results, expected: &Expected) -> String {
    let mut text = String::new();
    let of = |results: &Results, name: &Name| results.get(name).copied().unwrap_or(State::Missing);
    let names: std::collections::BTreeSet<&Name> = without.keys().chain(with.keys()).collect();
    for name in names {
        let (a, b) = (of(without, name), of(with, name));
        let new = Line {
            without: Some(a),
            with: Some(b),
            why: String::new(),
        };
        let line = match expected.get(name) {
            Some(line) if agrees(line.without, a) && agrees(line.with, b) => line,
            _ => &new,
        };
        let state = |wanted: Wanted| wanted.map_or("any".into(), |s| s.to_string());
        text.push_str(&format!(
            "{}\t{}\t{}\t{}",
            name.0,
            name.1,
            state(line.without),
            state(line.with)
        ));
        if !line.why.is_empty() {
            text.push_str(&format!("\t{}", line.why));
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results(all: &[(&str, State)]) -> Results {
        let named = all
            .iter()
            .map(|(name, state)| (("p".to_owned(), (*name).to_owned()), *state));
        named.collect()
    }

    const LIST: &str =
        "# comment\np\ta\tpass\tpass\np\tb\tpass\tfail\tcounted elsewhere\np\tc\tany\tany\tslow\n";

    fn good() -> (Results, Results) {
        let without = [("a", State::Pass), ("b", State::Pass), ("c", State::Pass)];
        let with = [("a", State::Pass), ("b", State::Fail), ("c", State::Fail)];
        (results(&without), results(&with))
    }

    #[test]
    fn as_expected() {
        let (without, with) = good();
        let expected = parse(LIST).unwrap();
        assert_eq!(compare(&without, &with, &expected), Vec::<String>::new());
        let text = accept(&without, &with, &expected);
        assert_eq!(parse(&text).unwrap(), expected);
    }

    #[test]
    fn a_test_that_fails_with_the_module_is_seen() {
        let (without, mut with) = good();
        let expected = parse(LIST).unwrap();
        for state in [State::Fail, State::Skip, State::Late] {
            with.insert(("p".into(), "a".into()), state);
            let wrong = compare(&without, &with, &expected);
            assert_eq!(
                wrong,
                [format!("p: a: passes without the module, {state} with it")]
            );
        }
        // And one that is new.
        let (mut without, mut with) = good();
        without.insert(("p".into(), "d".into()), State::Pass);
        with.insert(("p".into(), "d".into()), State::Fail);
        assert_eq!(compare(&without, &with, &expected).len(), 1);
        let text = accept(&without, &with, &expected);
        assert!(parse(&text).is_err(), "a difference needs a reason");
    }

    #[test]
    fn what_vanishes_is_seen() {
        let expected = parse(LIST).unwrap();
        for name in ["a", "b", "c"] {
            let (mut without, mut with) = good();
            let name = ("p".to_owned(), name.to_owned());
            without.remove(&name);
            with.remove(&name);
            assert_eq!(compare(&without, &with, &expected).len(), 1, "{name:?}");
            let (without, mut with) = good();
            with.remove(&name);
            assert_eq!(compare(&without, &with, &expected).len(), 1, "{name:?}");
        }
    }

    #[test]
    fn what_is_new_or_better_is_seen() {
        let expected = parse(LIST).unwrap();
        let (mut without, mut with) = good();
        for results in [&mut without, &mut with] {
            results.insert(("p".into(), "d".into()), State::Pass);
        }
        assert_eq!(
            compare(&without, &with, &expected),
            ["p: d: pass and pass, not in the list"]
        );
        let (without, mut with) = good();
        with.insert(("p".into(), "b".into()), State::Pass);
        assert_eq!(compare(&without, &with, &expected).len(), 1);
    }

    #[test]
    fn lists_that_are_none() {
        for bad in [
            "p\ta\tpass",
            "p\ta\tpass\tnone",
            "p\ta\tpass\tfail",
            "p\ta\tany\tany",
            "p\ta\tpass\tpass\np\ta\tpass\tpass",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
