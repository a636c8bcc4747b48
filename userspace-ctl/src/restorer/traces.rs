// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What sandboxes touch, written as traces (`prefetch.trace_dir`): a debugging aid, off by default.
//!
//! One file for each template, `TEMPLATE.trace`, written anew at the end of each turn. Faults are first
//! touches only where nothing is restored ahead: switch all triggers off for a trace to replay.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use agentzip_uapi::Range;
use tracing::warn;

use crate::governor::Id;
use crate::predict::trace::{Event, Fault, Mapped, Trace, TraceTurn, MAX_FAULTS, MAX_TRACE_ROLES};
use crate::predict::{Learner, Place, Role, Seen, What};
use crate::{ObjectName, ToolName};

/// A turn under way.
struct Turn {
    began: Duration,
    events: Vec<Event>,
    /// Numbers of threads.
    threads: BTreeMap<i32, u32>,
}

/// A trace that grows.
struct Growing {
    trace: Trace,
    roles: BTreeMap<Role, usize>,
    faults: usize,
}

/// All traces of a directory.
pub struct Traces {
    directory: PathBuf,
    templates: BTreeMap<ObjectName, Growing>,
    turns: BTreeMap<Id, Turn>,
    /// Numbers of sandboxes.
    numbers: BTreeMap<Id, u32>,
}

impl Traces {
    /// None yet.
    pub fn new(directory: PathBuf) -> Traces {
        Traces {
            directory,
            templates: BTreeMap::new(),
            turns: BTreeMap::new(),
            numbers: BTreeMap::new(),
        }
    }

    /// Where they are written.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// A turn begins, unless one has.
    pub fn begins(&mut self, id: Id, now: Duration) {
        self.turns.entry(id).or_insert_with(|| Turn {
            began: now,
            events: Vec::new(),
            threads: BTreeMap::new(),
        });
    }

    /// A tool starts in it.
    pub fn tool(&mut self, id: Id, tool: Option<&ToolName>, now: Duration) {
        if let Some(turn) = self.turns.get_mut(&id) {
            let ms = turn.ms(now);
            turn.events.push(Event::Tool(ms, tool.cloned()));
        }
    }

    /// What was seen of a sandbox of a template.
    pub fn seen(&mut self, id: Id, template: &ObjectName, learner: &Learner, seen: &[Seen]) {
        let Some(turn) = self.turns.get_mut(&id) else {
            return;
        };
        let growing = self
            .templates
            .entry(template.clone())
            .or_insert_with(|| Growing {
                trace: Trace {
                    source: "recorded by agentzip daemon".to_owned(),
                    template: template.clone(),
                    roles: Vec::new(),
                    maps: Vec::new(),
                    turns: Vec::new(),
                },
                roles: BTreeMap::new(),
                faults: 0,
            });
        for one in seen.iter().filter(|one| one.what == What::Demand) {
            let Some(role) = growing.role(one.place.role, learner) else {
                continue;
            };
            if growing.faults >= MAX_FAULTS {
                return;
            }
            growing.faults += 1;
            let next = turn.threads.len() as u32;
            let thread = *turn.threads.entry(one.thread).or_insert(next);
            let ms = turn.ms(one.at);
            turn.events.push(Event::Fault(Fault {
                ms,
                role,
                thread,
                page: one.place.page,
                write: one.write,
            }));
        }
    }

    /// A turn ends. `places`: the pages that there are, in any order, if that is known.
    pub fn ends(&mut self, id: Id, template: &ObjectName, places: impl Iterator<Item = Place>) {
        let next = self.numbers.len() as u32;
        let sandbox = *self.numbers.entry(id).or_insert(next);
        let (Some(turn), Some(growing)) =
            (self.turns.remove(&id), self.templates.get_mut(template))
        else {
            return;
        };
        growing.map(places);
        growing.trace.turns.push(TraceTurn {
            sandbox,
            events: turn.events,
        });
        let path = self.directory.join(format!("{template}.trace"));
        let new = path.with_extension("new");
        let written = std::fs::write(&new, growing.trace.to_text());
        if let Err(error) = written.and_then(|()| std::fs::rename(&new, &path)) {
            warn!("cannot write {}: {error}", path.display());
        }
    }
}

impl Turn {
    fn ms(&self, at: Duration) -> u32 {
        u32::try_from(at.saturating_sub(self.began).as_millis()).unwrap_or(u32::MAX)
    }
}

impl Growing {
    /// Number of a role in the trace; `None` when there are too many.
    fn role(&mut self, role: Role, learner: &Learner) -> Option<usize> {
        if let Some(number) = self.roles.get(&role) {
            return Some(*number);
        }
        let (command, ordinal) = learner.role_name(role)?;
        // A trace is made of words.
        let word = |c: char| if c.is_whitespace() { '_' } else { c };
        let name: String = command.chars().map(word).collect();
        if self.trace.roles.len() >= MAX_TRACE_ROLES || name.is_empty() {
            return None;
        }
        self.trace.roles.push((name, ordinal));
        self.roles.insert(role, self.trace.roles.len() - 1);
        Some(self.trace.roles.len() - 1)
    }

    /// Pages that there are, of roles that were not told of yet.
    fn map(&mut self, places: impl Iterator<Item = Place>) {
        let mut pages: BTreeMap<usize, Vec<u64>> = BTreeMap::new();
        for place in places {
            if let Some(role) = self.roles.get(&place.role) {
                pages.entry(*role).or_default().push(place.page);
            }
        }
        for (role, mut numbers) in pages {
            if self.trace.maps.iter().any(|map| map.role == role) {
                continue;
            }
            numbers.sort_unstable();
            numbers.dedup();
            let mut runs: Vec<Range> = Vec::new();
            for page in numbers {
                match runs.last_mut().filter(|run| run.end == page) {
                    Some(run) => run.end += 1,
                    None => runs.push(Range {
                        start: page,
                        end: page + 1,
                    }),
                }
            }
            self.trace.maps.extend(runs.into_iter().map(|run| Mapped {
                role,
                page: run.start,
                pages: run.end - run.start,
            }));
        }
    }
}
