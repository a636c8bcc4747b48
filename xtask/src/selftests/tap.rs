// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What the kernel's tests print (TAP): the results of their subtests.

use std::collections::BTreeMap;
use std::fmt;

/// How a subtest, or a program, ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It passed.
    Pass,
    /// It failed.
    Fail,
    /// It did not apply here, or could not run.
    Skip,
    /// It failed, as it says that it would.
    ExpectedFail,
    /// It passed against what it says.
    UnexpectedPass,
    /// It was not done in time.
    Late,
    /// There is no result.
    Missing,
}

impl State {
    const NAMES: [(State, &'static str); 7] = [
        (State::Pass, "pass"),
        (State::Fail, "fail"),
        (State::Skip, "skip"),
        (State::ExpectedFail, "xfail"),
        (State::UnexpectedPass, "xpass"),
        (State::Late, "late"),
        (State::Missing, "missing"),
    ];

    /// The state of this name.
    pub fn parse(name: &str) -> Option<State> {
        let mut all = State::NAMES.iter();
        all.find(|(_, known)| *known == name)
            .map(|(state, _)| *state)
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = State::NAMES.iter().find(|(state, _)| state == self);
        f.write_str(found.map_or("?", |(_, name)| name))
    }
}

/// Takes the output of a program apart: names of its subtests with their states, in their order.
///
/// Results of nested tests, which are indented, are part of the result that follows them. A name that is
/// there before gets a number, so that none hides another.
pub fn parse(output: &str) -> Vec<(String, State)> {
    let mut times: BTreeMap<String, u32> = BTreeMap::new();
    let mut results = Vec::new();
    for line in output.lines() {
        let Some((name, state)) = result(line) else {
            continue;
        };
        let times = times.entry(name.clone()).or_default();
        *times += 1;
        let name = match *times {
            1 => name,
            times => format!("{name} ({times})"),
        };
        results.push((name, state));
    }
    results
}

/// Parses `ok NUMBER NAME`, `not ok NUMBER NAME`, both perhaps with `# SKIP WHY` and the like.
fn result(line: &str) -> Option<(String, State)> {
    let (good, rest) = match line.strip_prefix("not ok ") {
        Some(rest) => (false, rest),
        None => (true, line.strip_prefix("ok ")?),
    };
    let (number, rest) = rest.split_once(' ').unwrap_or((rest, ""));
    number.parse::<u32>().ok()?;
    let rest = rest.trim_start();
    // Some print `ok 1 # SKIP name`, without a name before the mark.
    let (name, mark) = match rest.strip_prefix("# ") {
        Some(mark) => ("", mark),
        None => rest.split_once(" # ").unwrap_or((rest, "")),
    };
    let (word, after) = mark.split_once(' ').unwrap_or((mark, ""));
    let state = match (word, good) {
        ("SKIP", _) => State::Skip,
        ("XFAIL", _) => State::ExpectedFail,
        ("XPASS", _) => State::UnexpectedPass,
        (_, true) => State::Pass,
        (_, false) => State::Fail,
    };
    let name = name.trim().trim_start_matches("- ");
    let name = if name.is_empty() { after } else { name };
    Some((tidy(name), state))
}

/// A name without what differs from run to run or cannot be in the list: addresses, counts, tabs.
fn tidy(name: &str) -> String {
    // Of pagemap_ioctl: how many pages another thread wrote meanwhile.
    let name = name
        .split_once(" Extra pages ")
        .map_or(name, |(name, _)| name);
    let words = name.split_ascii_whitespace().map(|word| {
        let digits = word.trim_start_matches("0x");
        match digits.len() >= 6 && word.starts_with("0x") {
            true => "0x...",
            false => word,
        }
    });
    words.collect::<Vec<_>>().join(" ")
}

/// State of a whole program, by the exit codes of the kernel's tests.
pub fn exit(code: Option<i64>, late: bool) -> State {
    match (late, code) {
        (true, _) => State::Late,
        (false, Some(0)) => State::Pass,
        (false, Some(4)) => State::Skip,
        _ => State::Fail,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_found() {
        let output = "TAP version 13\n1..6\n# Starting 2 tests\nok 1 first test\n    ok 1 nested\n\
            not ok 2 - second\nok 3 third # SKIP no such file\nok 4 # SKIP fourth\n\
            not ok 5 fifth # XFAIL known\nok 6 first test\nokay\nok then\nok 7\nok 8 at 0x7f0012345678\nok 9 some_test Extra pages 16 (0.0%), extra.\n\
            # Totals: pass:3 fail:1\n";
        let expected = [
            ("first test", State::Pass),
            ("second", State::Fail),
            ("third", State::Skip),
            ("fourth", State::Skip),
            ("fifth", State::ExpectedFail),
            ("first test (2)", State::Pass),
            ("", State::Pass),
            ("at 0x...", State::Pass),
            ("some_test", State::Pass),
        ];
        let expected: Vec<_> = expected
            .map(|(name, state)| (name.to_owned(), state))
            .into();
        assert_eq!(parse(output), expected);
        assert_eq!(parse(""), []);
    }

    #[test]
    fn exit_codes() {
        assert_eq!(exit(Some(0), false), State::Pass);
        assert_eq!(exit(Some(4), false), State::Skip);
        assert_eq!(exit(Some(1), false), State::Fail);
        assert_eq!(exit(None, false), State::Fail);
        assert_eq!(exit(Some(0), true), State::Late);
    }

    #[test]
    fn names_of_states() {
        for (state, name) in State::NAMES {
            assert_eq!(State::parse(name), Some(state));
            assert_eq!(state.to_string(), name);
        }
        assert_eq!(State::parse("any"), None);
    }
}
