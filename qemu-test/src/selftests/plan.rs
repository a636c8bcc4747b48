// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What is run: the file qemu-test/selftests/programs.

use std::time::Duration;

use anyhow::{ensure, Context, Result};

/// Where a program's pages are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In a cgroup that is attached before it begins.
    Box,
    /// The same, with less memory than it needs.
    Tight,
    /// In cgroups of its own, attached as they appear.
    Own,
    /// In cgroups of its own that are never attached.
    Host,
}

/// One program.
#[derive(Debug, PartialEq, Eq)]
pub struct Program {
    /// In reports.
    pub name: String,
    /// Where its pages are.
    pub place: Place,
    /// Longest time.
    pub limit: Duration,
    /// Its file, in the folder of the payload.
    pub file: String,
    /// Its arguments.
    pub args: Vec<String>,
}

/// All programs of the file.
pub fn parse(text: &str) -> Result<Vec<Program>> {
    let lines = text.lines().filter(|line| {
        let line = line.trim();
        !line.is_empty() && !line.starts_with('#')
    });
    lines
        .map(|line| program(line).with_context(|| format!("list of selftests: {line:?}")))
        .collect()
}

fn program(line: &str) -> Result<Program> {
    let mut words = line.split_ascii_whitespace();
    let mut word = |what: &str| words.next().with_context(|| format!("no {what}"));
    let name = word("name")?.to_owned();
    let place = match word("place")? {
        "box" => Place::Box,
        "tight" => Place::Tight,
        "own" => Place::Own,
        "host" => Place::Host,
        other => anyhow::bail!("{other} is no place"),
    };
    let stores = word("yes or no")?;
    ensure!(["yes", "no"].contains(&stores), "neither yes nor no");
    let seconds = word("seconds")?.parse().context("seconds")?;
    let file = word("program")?;
    let (_, file) = file.split_once('/').context("a program without a folder")?;
    Ok(Program {
        name,
        place,
        limit: Duration::from_secs(seconds),
        file: file.to_owned(),
        args: words.map(str::to_owned).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_read() {
        let programs = parse("# none\n\na box yes 60 mm/b -d 10\n").unwrap();
        let expected = Program {
            name: "a".into(),
            place: Place::Box,
            limit: Duration::from_secs(60),
            file: "b".into(),
            args: vec!["-d".into(), "10".into()],
        };
        assert_eq!(programs, [expected]);
        for bad in [
            "a",
            "a nowhere yes 60 mm/b",
            "a box 60 mm/b",
            "a box no x mm/b",
            "a box no 60 b",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        assert!(!parse(include_str!("../../selftests/programs"))
            .unwrap()
            .is_empty());
    }
}
