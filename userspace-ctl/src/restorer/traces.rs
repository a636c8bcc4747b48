// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What sandboxes touch, written as traces (`prefetch.trace_dir`): a debugging aid, off by default.
//!
//! One file for each template, `TEMPLATE.trace`, written anew at the end of each turn. Faults are first
//! touches only where nothing is restored ahead: for a trace to replay switch all predictors off, with
//! `prefetch.mode` at `plan`, so that it is looked what is out on `first-token`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tracing::warn;

use crate::governor::Id;
use crate::predict::trace::{Event, Fault, Mapped, Trace, TraceTurn, MAX_FAULTS, MAX_TRACE_ROLES};
use crate::predict::{Learner, PageState, Place, Role, Run, Seen, What};
use crate::{ObjectName, ToolName};

/// Steps of times, in milliseconds.
const STEP_MS: u128 = 10;

/// A turn under way.
struct Turn {
    began: Duration,
    out: Vec<Mapped>,
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
            out: Vec::new(),
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

    /// Pages of it are out when it begins.
    pub fn out(&mut self, id: Id, template: &ObjectName, learner: &Learner, runs: &[Run]) {
        let Some(turn) = self.turns.get_mut(&id) else {
            return;
        };
        let growing = growing(&mut self.templates, template);
        let numbered = |run: &Run| {
            Some(Mapped {
                role: growing.role(run.role(), learner)?,
                page: run.start.page,
                pages: run.pages,
            })
        };
        turn.out = runs.iter().filter_map(numbered).collect();
    }

    /// What was seen of a sandbox of a template.
    pub fn seen(&mut self, id: Id, template: &ObjectName, learner: &Learner, seen: &[Seen]) {
        let Some(turn) = self.turns.get_mut(&id) else {
            return;
        };
        let growing = growing(&mut self.templates, template);
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

    /// A turn ends. `pages`: those that there are and their states, in any order, if that is known.
    pub fn ends(&mut self, id: Id, template: &ObjectName, pages: &[(Place, PageState)]) {
        let next = self.numbers.len() as u32;
        let sandbox = *self.numbers.entry(id).or_insert(next);
        let (Some(turn), Some(growing)) =
            (self.turns.remove(&id), self.templates.get_mut(template))
        else {
            return;
        };
        let all: Vec<Place> = pages.iter().map(|(place, _)| *place).collect();
        let new = growing.runs(&all).into_iter();
        let known: BTreeSet<usize> = growing.trace.maps.iter().map(|map| map.role).collect();
        let new = new.filter(|run| !known.contains(&run.role));
        growing.trace.maps.extend(new);
        let accessed = pages
            .iter()
            .filter(|(_, state)| *state == PageState::Accessed);
        let accessed: Vec<Place> = accessed.map(|(place, _)| *place).collect();
        let accessed = growing.runs(&accessed);
        growing.trace.turns.push(TraceTurn {
            sandbox,
            out: turn.out,
            events: turn.events,
            accessed,
        });
        let path = self.directory.join(format!("{template}.trace"));
        let new = path.with_extension("new");
        let written = std::fs::write(&new, growing.trace.to_text());
        if let Err(error) = written.and_then(|()| std::fs::rename(&new, &path)) {
            warn!("cannot write {}: {error}", path.display());
        }
    }
}

/// The trace of a template.
fn growing<'a>(
    templates: &'a mut BTreeMap<ObjectName, Growing>,
    template: &ObjectName,
) -> &'a mut Growing {
    templates
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
        })
}

impl Turn {
    /// In steps, so that faults soon after each other are one line.
    fn ms(&self, at: Duration) -> u32 {
        let ms = at.saturating_sub(self.began).as_millis();
        u32::try_from(ms / STEP_MS * STEP_MS).unwrap_or(u32::MAX)
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

    /// Pages of known roles as runs, by roles.
    fn runs(&self, places: &[Place]) -> Vec<Mapped> {
        let numbered = |place: &Place| Some((*self.roles.get(&place.role)?, place.page));
        let mut pages: Vec<(usize, u64)> = places.iter().filter_map(numbered).collect();
        pages.sort_unstable();
        pages.dedup();
        let mut runs: Vec<Mapped> = Vec::new();
        for (role, page) in pages {
            match runs.last_mut() {
                Some(run) if run.role == role && run.page + run.pages == page => run.pages += 1,
                _ => runs.push(Mapped {
                    role,
                    page,
                    pages: 1,
                }),
            }
        }
        runs
    }
}
