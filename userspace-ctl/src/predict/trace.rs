// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Traces of what sandboxes touched, turn by turn: to replay them through the predictors.
//!
//! Text, a line for each thing. A trace is recorded without prefetch, with all pages out at the beginning
//! of each turn: its faults are the first touches, in their order.
//!
//! | line | meaning |
//! |---|---|
//! | `agentzip-trace 1` | the first line |
//! | `source WORDS` | where it comes from: `recorded ...` or `generated ...` |
//! | `template NAME` | template of all sandboxes |
//! | `role N COMMAND ORDINAL` | a process; roles are numbered from 0 |
//! | `map ROLE PAGES...` | pages that exist, in sandboxes of any turn below |
//! | `turn SANDBOX` | a turn of that sandbox begins: the first token |
//! | `out ROLE PAGES...` | pages that are swapped out then |
//! | `tool MS NAME` | a tool starts so many milliseconds later; `-`: its name is unknown |
//! | `f MS ROLE THREAD PAGES...` | pages faulted in |
//! | `w MS ROLE THREAD PAGES...` | the same, by a write |
//! | `end ROLE PAGES...` | pages that had been accessed when the turn ended, new ones included |
//! | `# ...` | a comment |
//!
//! `PAGES` are steps from the last page of the role in the trace (0 at first), each followed, if
//! there are several pages in a row, by `x` and their number: `+7f31c4a52x3 +2 -5` are the pages
//! 7f31c4a52, ...53, ...54, ...56 and ...51. Steps are hexadecimal, other numbers decimal.

use std::fmt::Write;

use super::place::{MAX_COMMAND, PAGE_BITS};
use crate::{ObjectName, ToolName};

/// Most faults in a trace.
pub const MAX_FAULTS: usize = 1 << 22;

/// Most roles in a trace.
pub const MAX_TRACE_ROLES: usize = 64;

/// The first line.
const HEADER: &str = "agentzip-trace 1";

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Milliseconds since the first token.
    pub ms: u32,
    /// The process, a number in [`Trace::roles`].
    pub role: usize,
    /// The thread, numbered from 0 in its sandbox.
    pub thread: u32,
    /// The page: its address, divided by the size of a page.
    pub page: u64,
    /// It was a write.
    pub write: bool,
}

/// What happened.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A tool started, so many milliseconds after the first token.
    Tool(u32, Option<ToolName>),
    /// A page was faulted in.
    Fault(Fault),
}

/// A turn.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceTurn {
    /// The sandbox.
    pub sandbox: u32,
    /// Pages that were swapped out when it began; empty where nobody looked.
    pub out: Vec<Mapped>,
    /// What happened in it, in its order.
    pub events: Vec<Event>,
    /// Pages that had been accessed when it ended: those that were faulted in, and those that were new.
    /// Empty where nobody looked.
    pub accessed: Vec<Mapped>,
}

/// Neighbouring pages of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapped {
    /// The process.
    pub role: usize,
    /// The first page.
    pub page: u64,
    /// How many, at least 1.
    pub pages: u64,
}

/// A trace.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    /// Where it comes from: a line.
    pub source: String,
    /// Template of all sandboxes.
    pub template: ObjectName,
    /// Command and ordinal of the processes.
    pub roles: Vec<(String, u16)>,
    /// Pages that exist.
    pub maps: Vec<Mapped>,
    /// The turns, in the order of time.
    pub turns: Vec<TraceTurn>,
}

/// Why a text is no trace.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {reason}")]
pub struct BadTrace {
    /// Number of the line, from 1 on.
    pub line: usize,
    /// What is wrong with it.
    pub reason: String,
}

impl Trace {
    /// Reads a trace, which anyone may have written.
    ///
    /// # Errors
    ///
    /// When a line is none of a trace, or there are too many faults or roles.
    pub fn parse(text: &str) -> Result<Trace, BadTrace> {
        let mut reader = Reader::default();
        for (number, line) in text.lines().enumerate() {
            reader.line(number, line).map_err(|reason| BadTrace {
                line: number + 1,
                reason,
            })?;
        }
        match reader.template {
            Some(template) => Ok(Trace {
                source: reader.source,
                template,
                roles: reader.roles,
                maps: reader.maps,
                turns: reader.turns,
            }),
            None => Err(BadTrace {
                line: text.lines().count(),
                reason: "the line \"template NAME\" is missing".to_owned(),
            }),
        }
    }

    /// Writes the trace.
    pub fn to_text(&self) -> String {
        let mut writer = Writer {
            text: format!(
                "{HEADER}\nsource {}\ntemplate {}\n",
                self.source, self.template
            ),
            last: vec![0; self.roles.len()],
        };
        for (number, (command, ordinal)) in self.roles.iter().enumerate() {
            writer.put(format_args!("role {number} {command} {ordinal}\n"));
        }
        writer.runs("map", &self.maps, false);
        for turn in &self.turns {
            writer.put(format_args!("turn {}\n", turn.sandbox));
            writer.runs("out", &turn.out, true);
            writer.events(&turn.events);
            writer.runs("end", &turn.accessed, true);
        }
        writer.text
    }

    /// Faults in it.
    pub fn faults(&self) -> usize {
        let events = self.turns.iter().flat_map(|turn| &turn.events);
        events
            .filter(|event| matches!(event, Event::Fault(_)))
            .count()
    }
}

struct Writer {
    text: String,
    last: Vec<u64>,
}

impl Writer {
    fn put(&mut self, what: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = self.text.write_fmt(what);
    }

    fn pages(&mut self, role: usize, page: u64, pages: u64) {
        let last = self.last.get(role).copied().unwrap_or(0);
        match page.checked_sub(last) {
            Some(up) => self.put(format_args!(" +{up:x}")),
            None => self.put(format_args!(" -{:x}", last - page)),
        }
        if pages > 1 {
            self.put(format_args!("x{pages}"));
        }
        if let Some(last) = self.last.get_mut(role) {
            *last = page + pages - 1;
        }
    }

    /// A line for each run, or one for all neighbouring runs of a role.
    fn runs(&mut self, word: &str, runs: &[Mapped], joined: bool) {
        for alike in runs.chunk_by(|a, b| joined && a.role == b.role) {
            let Some(first) = alike.first() else { continue };
            self.put(format_args!("{word} {}", first.role));
            for run in alike {
                self.pages(run.role, run.page, run.pages);
            }
            self.put(format_args!("\n"));
        }
    }

    fn events(&mut self, events: &[Event]) {
        let mut rest = events;
        while let Some(event) = rest.first() {
            let first = match event {
                Event::Tool(ms, tool) => {
                    let tool = tool.as_ref().map_or("-", ToolName::as_str);
                    self.put(format_args!("tool {ms} {tool}\n"));
                    rest = &rest[1..];
                    continue;
                }
                Event::Fault(fault) => *fault,
            };
            let word = if first.write { 'w' } else { 'f' };
            let Fault {
                ms, role, thread, ..
            } = first;
            self.put(format_args!("{word} {ms} {role} {thread}"));
            let alike = |event: &Event| match event {
                Event::Fault(fault) => {
                    let page = fault.page;
                    (Fault { page, ..first } == *fault).then_some(page)
                }
                Event::Tool(..) => None,
            };
            let pages: Vec<u64> = rest.iter().map_while(alike).collect();
            for run in pages.chunk_by(|a, b| a + 1 == *b) {
                if let Some(&page) = run.first() {
                    self.pages(role, page, run.len() as u64);
                }
            }
            self.put(format_args!("\n"));
            rest = &rest[pages.len()..];
        }
    }
}

#[derive(Default)]
struct Reader {
    source: String,
    template: Option<ObjectName>,
    roles: Vec<(String, u16)>,
    maps: Vec<Mapped>,
    turns: Vec<TraceTurn>,
    last: Vec<u64>,
    faults: usize,
}

impl Reader {
    fn line(&mut self, number: usize, line: &str) -> Result<(), String> {
        if number == 0 {
            return match line {
                HEADER => Ok(()),
                _ => Err(format!("{HEADER:?} is expected")),
            };
        }
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let mut fields = rest.split(' ');
        let mut field = |what: &str| fields.next().ok_or_else(|| format!("no {what}"));
        match word {
            "" | "#" => {}
            "source" => rest.clone_into(&mut self.source),
            "template" => self.template = Some(rest.parse().map_err(|e| format!("{e}"))?),
            "role" => {
                let role: usize = decimal(field("number")?)?;
                let command = field("command")?;
                let ordinal = decimal(field("ordinal")?)?;
                if role != self.roles.len() || role >= MAX_TRACE_ROLES {
                    return Err(format!("role {role} is not the next one, or one too many"));
                }
                if !(1..=MAX_COMMAND).contains(&command.len()) {
                    return Err(format!("{command:?} is no command"));
                }
                self.roles.push((command.to_owned(), ordinal));
                self.last.push(0);
            }
            "map" => {
                let role = decimal(field("role")?)?;
                for text in fields {
                    let (page, pages) = self.pages(role, text)?;
                    self.maps.push(Mapped { role, page, pages });
                }
            }
            "turn" => self.turns.push(TraceTurn {
                sandbox: decimal(rest)?,
                out: Vec::new(),
                events: Vec::new(),
                accessed: Vec::new(),
            }),
            "out" | "end" => {
                let role = decimal(field("role")?)?;
                for text in fields {
                    let (page, pages) = self.pages(role, text)?;
                    let turn = self.turn()?;
                    let runs = match word {
                        "out" => &mut turn.out,
                        _ => &mut turn.accessed,
                    };
                    runs.push(Mapped { role, page, pages });
                }
            }
            "tool" => {
                let ms = decimal(field("time")?)?;
                let tool = match field("name")? {
                    "-" => None,
                    name => Some(name.parse().map_err(|e| format!("{e}"))?),
                };
                self.events()?.push(Event::Tool(ms, tool));
            }
            "f" | "w" => {
                let ms = decimal(field("time")?)?;
                let role = decimal(field("role")?)?;
                let thread = decimal(field("thread")?)?;
                let write = word == "w";
                for text in fields {
                    let (first, pages) = self.pages(role, text)?;
                    self.faults = self.faults.saturating_add(pages as usize);
                    if self.faults > MAX_FAULTS {
                        return Err(format!("more than {MAX_FAULTS} faults"));
                    }
                    let events = self.events()?;
                    events.extend((first..first + pages).map(|page| {
                        Event::Fault(Fault {
                            ms,
                            role,
                            thread,
                            page,
                            write,
                        })
                    }));
                }
            }
            _ => return Err(format!("unknown word {word:?}")),
        }
        Ok(())
    }

    fn turn(&mut self) -> Result<&mut TraceTurn, String> {
        let turn = self.turns.last_mut();
        turn.ok_or_else(|| "no turn has begun".to_owned())
    }

    fn events(&mut self) -> Result<&mut Vec<Event>, String> {
        Ok(&mut self.turn()?.events)
    }

    /// First page and number of pages.
    fn pages(&mut self, role: usize, text: &str) -> Result<(u64, u64), String> {
        let bad = || format!("{text:?} are no pages");
        let (step, pages) = match text.split_once('x') {
            Some((step, pages)) => (step, decimal(pages)?),
            None => (text, 1u64),
        };
        let last = self
            .last
            .get_mut(role)
            .ok_or_else(|| format!("role {role} is unknown"))?;
        let number = |digits: &str| match digits.bytes().all(|b| b.is_ascii_hexdigit()) {
            true => u64::from_str_radix(digits, 16).map_err(|_| bad()),
            false => Err(bad()),
        };
        let page = match (step.strip_prefix('+'), step.strip_prefix('-')) {
            (Some(up), _) => last.checked_add(number(up)?),
            (_, Some(down)) => last.checked_sub(number(down)?),
            _ => None,
        };
        let page = page.ok_or_else(bad)?;
        let end = page.checked_add(pages).ok_or_else(bad)?;
        if pages == 0 || end > 1 << PAGE_BITS {
            return Err(bad());
        }
        *last = end - 1;
        Ok((page, pages))
    }
}

/// A number without a sign.
fn decimal<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    let digits = text.bytes().all(|b| b.is_ascii_digit());
    let number = text.parse().ok().filter(|_| digits);
    number.ok_or_else(|| format!("{text:?} is no number, or too large"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GOOD: &str =
        "agentzip-trace 1\nsource generated for a test\ntemplate py\nrole 0 python3 0\n\
        role 1 grep 0\nmap 0 +1000x16\nmap 0 +10\nturn 3\nout 0 +2 +3x4\nf 0 0 0 -1ex2 +5\nw 2 0 1 +1\ntool 5 pytest\n\
        f 7 1 0 +7f31c4a52x3 -5\nend 0 -1x2 +7\nend 1 +1\nturn 4\ntool 1 -\n";

    #[test]
    fn reads_what_it_writes() {
        let trace = Trace::parse(GOOD).unwrap();
        assert_eq!(trace.to_text(), GOOD);
        assert_eq!(trace.faults(), 8);
        assert_eq!(trace.maps[1].page, 0x101f);
        let last = trace.turns[0].events.last().unwrap();
        let fault = Fault {
            ms: 7,
            role: 1,
            thread: 0,
            page: 0x7_f31c_4a4f,
            write: false,
        };
        assert_eq!(*last, Event::Fault(fault));
    }

    #[test]
    fn refusals_name_the_line() {
        for (from, to, reason) in [
            ("agentzip-trace 1", "agentzip-trace 2", "line 1: "),
            ("template py\n", "", "\"template NAME\" is missing"),
            ("role 1", "role 2", "line 5: role 2 is not the next"),
            ("grep 0", "a-name-of-16-byte 0", "line 5: "),
            ("map 0", "map 2", "line 6: role 2 is unknown"),
            ("turn 3", "turn", "line 8: "),
            ("turn 3", "# 3", "line 9: no turn has begun"),
            ("f 0 0 0", "f 0 0", "line 10: \"-1ex2\" is no number"),
            ("-1ex2", "-1ex0", "are no pages"),
            ("-1ex2", "-ffffff", "are no pages"),
            ("-1ex2", "1e", "are no pages"),
            ("-1ex2", "+-1", "are no pages"),
            ("-1ex2", "+1x18446744073709551615", "are no pages"),
            ("-1ex2", "+1x99999999", "more than 4194304 faults"),
            ("pytest", "a;b", "line 12: "),
            ("w 2", "v 2", "unknown word \"v\""),
        ] {
            assert!(GOOD.contains(from), "{from}");
            let error = Trace::parse(&GOOD.replacen(from, to, 1)).unwrap_err();
            assert!(error.to_string().contains(reason), "{to}: {error}");
        }
        assert!(Trace::parse("").is_err());
    }

    proptest! {
        /// Damage makes an error or another trace, never a panic.
        #[test]
        fn damage(at in 0..GOOD.len(), by in 0u8..128) {
            let mut bytes = GOOD.as_bytes().to_vec();
            bytes[at] = by;
            if let Ok(trace) = Trace::parse(std::str::from_utf8(&bytes).unwrap()) {
                prop_assert_eq!(Trace::parse(&trace.to_text()).unwrap(), trace);
            }
        }
    }
}
