// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Plans as files: what is known about a template and a tool, to read, to keep and to hand on.
//!
//! JSON, a run of pages a line:
//!
//! ```json
//! {
//!  "format": "agentzip-plan",
//!  "version": 1,
//!  "template": "python",
//!  "tool": "pytest",
//!  "turns": 12.5,
//!  "roles": [
//!   {"command": "python3", "ordinal": 0}
//!  ],
//!  "runs": [
//!   {"role": 0, "address": "0x7f31c4a52000", "pages": 3, "touched": 0.93}
//!  ]
//! }
//! ```
//!
//! `tool` is `null` for what every turn touches. `turns` says how many turns the figures rest on, older
//! ones counting less, and `touched` in which share of them the pages were touched.

use std::fmt::Write;

use serde::Deserialize;

use super::place::{MAX_COMMAND, MAX_ROLES, PAGE_BITS};
use crate::{ObjectName, ToolName};

/// Largest file, in bytes.
pub const MAX_FILE: usize = 4 << 20;

/// Most pages in a file.
pub const MAX_FILE_PAGES: u64 = 32_768;

/// Value of `format`.
const FORMAT: &str = "agentzip-plan";

/// Value of `version`.
const VERSION: u32 = 1;

/// Neighbouring pages that are touched as often.
#[derive(Clone, Debug, PartialEq)]
pub struct FileRun {
    /// Command of the process.
    pub command: String,
    /// Which process of that command.
    pub ordinal: u16,
    /// Number of the first page: its address, divided by the size of a page.
    pub page: u64,
    /// How many pages, at least 1.
    pub pages: u64,
    /// Share of the turns that touch them, 0 to 1.
    pub touched: f64,
}

/// What is known about a template and a tool.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanFile {
    /// Template of the sandboxes.
    pub template: ObjectName,
    /// The tool; `None`: what every turn touches.
    pub tool: Option<ToolName>,
    /// How many turns it rests on, 0 to 1,000,000.
    pub turns: f64,
    /// The pages, no page twice.
    pub runs: Vec<FileRun>,
}

/// Why a text is no plan.
#[derive(Debug, thiserror::Error)]
pub enum BadPlan {
    /// The file is too large.
    #[error("a plan has at most {MAX_FILE} bytes, not {0}")]
    Large(usize),
    /// It is no JSON, or has other fields.
    #[error("no plan: {0}")]
    Json(#[from] serde_json::Error),
    /// It is something else, or of another version.
    #[error("no plan of format {FORMAT:?}, version {VERSION}: format {0:?}, version {1}")]
    Format(String, u32),
    /// The name of the tool is none.
    #[error("{0}")]
    Tool(#[from] crate::hint::BadHint),
    /// The number of turns is out of range.
    #[error("turns: {0} is no number from 0 to 1000000")]
    Turns(f64),
    /// A role is not one that a process can have.
    #[error("roles[{0}]: a command has 1 to {MAX_COMMAND} bytes, and there are at most {MAX_ROLES} roles")]
    Role(usize),
    /// A run names a role that is not there.
    #[error("runs[{0}]: role {1} is not in \"roles\"")]
    NoRole(usize, usize),
    /// The address of a run is none.
    #[error("runs[{0}]: {1:?} is no address: 0x and hexadecimal digits, a multiple of 0x1000")]
    Address(usize, String),
    /// A run has no pages, or goes beyond the last address.
    #[error("runs[{0}]: {1} pages from that address on are none, or too many")]
    Pages(usize, u64),
    /// A probability is none.
    #[error("runs[{0}]: touched: {1} is no number from 0 to 1")]
    Touched(usize, f64),
    /// Two runs have a page in common.
    #[error("two runs of {0}/{1} have page {2:#x}000")]
    Overlap(String, u16, u64),
    /// There are too many pages.
    #[error("a plan has at most {MAX_FILE_PAGES} pages, not {0}")]
    Many(u64),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    format: String,
    version: u32,
    template: ObjectName,
    tool: Option<String>,
    turns: f64,
    roles: Vec<TextRole>,
    runs: Vec<TextRun>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TextRole {
    command: String,
    ordinal: u16,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TextRun {
    role: usize,
    address: String,
    pages: u64,
    touched: f64,
}

impl PlanFile {
    /// Reads a file, which anyone may have written.
    ///
    /// # Errors
    ///
    /// When it is not exactly what [`Self::to_text`] could have written, but for white space and the
    /// order of fields and runs.
    pub fn parse(text: &str) -> Result<PlanFile, BadPlan> {
        if text.len() > MAX_FILE {
            return Err(BadPlan::Large(text.len()));
        }
        let text: Text = serde_json::from_str(text)?;
        if text.format != FORMAT || text.version != VERSION {
            return Err(BadPlan::Format(text.format, text.version));
        }
        if !(0.0..=1e6).contains(&text.turns) {
            return Err(BadPlan::Turns(text.turns));
        }
        for (number, role) in text.roles.iter().enumerate() {
            let legal = (1..=MAX_COMMAND).contains(&role.command.len());
            if !legal || number >= MAX_ROLES {
                return Err(BadPlan::Role(number));
            }
        }
        let mut runs = Vec::with_capacity(text.runs.len());
        for (number, run) in text.runs.into_iter().enumerate() {
            runs.push(file_run(number, run, &text.roles)?);
        }
        check_pages(&runs)?;
        Ok(PlanFile {
            template: text.template,
            tool: text.tool.map(|name| name.parse()).transpose()?,
            turns: text.turns,
            runs,
        })
    }

    /// Writes the file.
    pub fn to_text(&self) -> String {
        let mut roles: Vec<(&str, u16)> = self
            .runs
            .iter()
            .map(|run| (run.command.as_str(), run.ordinal))
            .collect();
        roles.sort_unstable();
        roles.dedup();
        let quote = |text: &str| serde_json::Value::from(text).to_string();
        let tool = self.tool.as_ref().map(ToolName::as_str);
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{{\n \"format\": \"{FORMAT}\",\n \"version\": {VERSION},\n \"template\": {},\n \
             \"tool\": {},\n \"turns\": {},\n \"roles\": [",
            quote(self.template.as_str()),
            tool.map_or("null".to_owned(), quote),
            self.turns,
        );
        for (number, (command, ordinal)) in roles.iter().enumerate() {
            let comma = comma(number, roles.len());
            let command = quote(command);
            let _ = writeln!(
                text,
                "  {{\"command\": {command}, \"ordinal\": {ordinal}}}{comma}"
            );
        }
        text.push_str(" ],\n \"runs\": [\n");
        for (number, run) in self.runs.iter().enumerate() {
            let role = roles.binary_search(&(run.command.as_str(), run.ordinal));
            let _ = writeln!(
                text,
                "  {{\"role\": {}, \"address\": \"{:#x}\", \"pages\": {}, \"touched\": {}}}{}",
                role.unwrap_or(0),
                u128::from(run.page) << 12,
                run.pages,
                run.touched,
                comma(number, self.runs.len()),
            );
        }
        text.push_str(" ]\n}\n");
        text
    }

    /// Pages in it.
    pub fn pages(&self) -> u64 {
        self.runs.iter().map(|run| run.pages).sum()
    }
}

fn comma(number: usize, count: usize) -> &'static str {
    if number + 1 < count {
        ","
    } else {
        ""
    }
}

fn file_run(number: usize, run: TextRun, roles: &[TextRole]) -> Result<FileRun, BadPlan> {
    let role = roles
        .get(run.role)
        .ok_or(BadPlan::NoRole(number, run.role))?;
    let digits = run.address.strip_prefix("0x").unwrap_or("");
    // `from_str_radix` takes a sign, too.
    let legal = digits.bytes().all(|b| b.is_ascii_hexdigit());
    let page = match u64::from_str_radix(digits, 16) {
        Ok(address) if legal && address % crate::PAGE_SIZE == 0 => address / crate::PAGE_SIZE,
        _ => return Err(BadPlan::Address(number, run.address)),
    };
    let end = page.checked_add(run.pages);
    if run.pages == 0 || end.is_none_or(|end| end > 1 << PAGE_BITS) {
        return Err(BadPlan::Pages(number, run.pages));
    }
    if !(0.0..=1.0).contains(&run.touched) {
        return Err(BadPlan::Touched(number, run.touched));
    }
    Ok(FileRun {
        command: role.command.clone(),
        ordinal: role.ordinal,
        page,
        pages: run.pages,
        touched: run.touched,
    })
}

fn check_pages(runs: &[FileRun]) -> Result<(), BadPlan> {
    // No sum overflows: a run has at most 2^48 pages, and a file fewer than 2^16 runs a MiB.
    let pages = runs.iter().map(|run| run.pages).sum();
    if pages > MAX_FILE_PAGES {
        return Err(BadPlan::Many(pages));
    }
    let mut sorted: Vec<&FileRun> = runs.iter().collect();
    sorted.sort_by(|a, b| (&a.command, a.ordinal, a.page).cmp(&(&b.command, b.ordinal, b.page)));
    for pair in sorted.windows(2) {
        if let [a, b] = pair {
            let same = (&a.command, a.ordinal) == (&b.command, b.ordinal);
            if same && a.page + a.pages > b.page {
                return Err(BadPlan::Overlap(a.command.clone(), a.ordinal, b.page));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GOOD: &str = r#"{"format": "agentzip-plan", "version": 1, "template": "py", "tool": "grep",
        "turns": 2.5, "roles": [{"command": "python3", "ordinal": 0}],
        "runs": [{"role": 0, "address": "0x7f0000001000", "pages": 2, "touched": 0.5},
                 {"role": 0, "address": "0x7f0000003000", "pages": 1, "touched": 1}]}"#;

    #[test]
    fn reads_what_it_writes() {
        let plan = PlanFile::parse(GOOD).unwrap();
        assert_eq!(plan.pages(), 3);
        assert_eq!(plan.runs[0].page, 0x7_f000_0001);
        assert_eq!(PlanFile::parse(&plan.to_text()).unwrap(), plan);
        let plan = PlanFile {
            tool: None,
            runs: Vec::new(),
            ..plan
        };
        assert_eq!(PlanFile::parse(&plan.to_text()).unwrap(), plan);
    }

    #[test]
    fn refusals_say_why() {
        for (from, to, reason) in [
            ("agentzip-plan", "other", "format \"other\""),
            ("\"version\": 1", "\"version\": 2", "version 2"),
            ("\"py\"", "\"../x\"", "no plan"),
            ("\"grep\"", "\"a b\"", "is no name"),
            ("2.5", "-1", "turns: -1"),
            ("2.5", "1e7", "turns: 10000000"),
            ("2.5", "1e999", "no plan"),
            ("\"turns\": 2.5,", "", "missing field `turns`"),
            ("\"turns\"", "\"x\": 1, \"turns\"", "unknown field `x`"),
            ("python3", "", "roles[0]"),
            ("python3", "a-name-of-16-byte", "roles[0]"),
            ("\"ordinal\": 0", "\"ordinal\": 65536", "no plan"),
            ("\"role\": 0", "\"role\": 1", "runs[0]: role 1"),
            (
                "0x7f0000001000",
                "0x7f0000001001",
                "runs[0]: \"0x7f0000001001\"",
            ),
            ("0x7f0000001000", "7f0000001000", "is no address"),
            ("0x7f0000001000", "0x+1000", "is no address"),
            ("0x7f0000001000", "0x", "is no address"),
            ("0x7f0000001000", "0xfffffffffffff000", "runs[0]: 2 pages"),
            ("\"pages\": 2", "\"pages\": 0", "runs[0]: 0 pages"),
            ("\"pages\": 2", "\"pages\": 3", "page 0x7f0000003000"),
            ("\"pages\": 2", "\"pages\": 18446744073709551615", "runs[0]"),
            ("\"pages\": 1", "\"pages\": 40000", "not 40002"),
            (
                "\"touched\": 1",
                "\"touched\": 1.1",
                "runs[1]: touched: 1.1",
            ),
        ] {
            assert!(GOOD.contains(from), "{from}");
            let error = PlanFile::parse(&GOOD.replacen(from, to, 1)).unwrap_err();
            assert!(error.to_string().contains(reason), "{to}: {error}");
        }
        let large = GOOD.to_owned() + &" ".repeat(MAX_FILE);
        assert!(matches!(PlanFile::parse(&large), Err(BadPlan::Large(_))));
        let deep = "[".repeat(100_000);
        assert!(matches!(PlanFile::parse(&deep), Err(BadPlan::Json(_))));
    }

    proptest! {
        /// Damage makes an error or another plan, never a panic.
        #[test]
        fn damage(at in 0..GOOD.len(), by in any::<u8>(), cut in any::<bool>()) {
            let mut bytes = GOOD.as_bytes().to_vec();
            bytes[at] = by;
            if cut {
                bytes.truncate(at);
            }
            if let Ok(text) = std::str::from_utf8(&bytes) {
                if let Ok(plan) = PlanFile::parse(text) {
                    prop_assert_eq!(PlanFile::parse(&plan.to_text()).unwrap(), plan);
                }
            }
        }
    }
}
