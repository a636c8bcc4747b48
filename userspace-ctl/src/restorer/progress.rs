// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A plan that is being carried out: asked for in batches of windows, so that it can be ended at any time
//! and that the best windows of all sandboxes go first.

use std::collections::VecDeque;
use std::time::Duration;

use agentzip_uapi::{Range, PAGE_SWAPPED};
use tracing::debug;

use super::states::is_unknown;
use super::table::Table;
use crate::device::{Device, Failure, Haste};
use crate::governor::Id;
use crate::predict::{Place, Plan, Role, Run, Trigger};
use crate::PAGE_SIZE;

/// Windows that are asked for at once: as many as there are workers.
const BATCH: usize = 8;
/// Pages of a window of what nobody expects to be touched. One of them is a batch: the plans of others find
/// room in the module's queue.
const REST_WINDOW: u64 = 512;
/// Batches that are asked for before the first of them is there.
const AHEAD: usize = 2;

/// What of a plan has not been asked for yet, and how long it may take.
#[derive(Debug)]
pub struct Progress {
    began: Duration,
    /// With why they are wanted.
    runs: VecDeque<(Run, Trigger)>,
    window: u64,
    /// Windows that were asked for.
    asked: u32,
    /// The last page of each batch that may not be there yet, and when it was asked for.
    pending: VecDeque<(i32, u64, Duration)>,
    /// The module did not take something, or dropped it.
    missed: bool,
    /// Pages of plans that the module has queued.
    pub queued: u64,
    /// The same of what nobody expects to be touched.
    pub queued_rest: u64,
    /// When it is looked at next.
    pub next: Duration,
}

/// Times of a restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// What was not begun for so long is dropped.
    pub timeout: Duration,
    /// An access within this makes a hit, from when the tool is expected to start.
    pub hit_window: Duration,
    /// From a message or an expected end, for which pages come back, to the first token.
    pub lead: Duration,
    /// From there to the tool, as far as is known.
    pub gap: Duration,
    /// How often it is looked whether a batch is there.
    pub look: Duration,
}

impl Times {
    /// How long before the tool pages come back that are restored for this reason.
    fn ahead(&self, trigger: Trigger) -> Duration {
        match trigger {
            Trigger::ToolStart | Trigger::Demand | Trigger::Rest => Duration::ZERO,
            Trigger::FirstToken => self.gap,
            Trigger::Message | Trigger::MidWait | Trigger::Background => {
                self.lead.saturating_add(self.gap)
            }
        }
    }
}

/// How it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// There is more to ask for.
    Going,
    /// All of it was asked for.
    Done,
    /// The rest is dropped, as it took too long.
    Late,
}

impl Progress {
    /// Nothing yet, in windows of so many pages.
    pub fn new(window: u32, now: Duration) -> Progress {
        Progress {
            began: now,
            runs: VecDeque::new(),
            window: u64::from(window.max(1)),
            asked: 0,
            pending: VecDeque::new(),
            missed: false,
            queued: 0,
            queued_rest: 0,
            next: now,
        }
    }

    /// Adds pages at the end.
    pub fn append(&mut self, runs: Vec<Run>, trigger: Trigger) {
        self.runs.extend(runs.into_iter().map(|run| (run, trigger)));
    }

    /// Adds what another plan has, at the front: more is known by now. What follows faults comes again and
    /// again, and does not prolong the rest.
    pub fn add(&mut self, plan: Plan, trigger: Trigger, now: Duration) {
        if trigger != Trigger::Demand || self.is_planned_done() {
            self.began = now;
        }
        // What is less urgent does not hold it up.
        self.pending.clear();
        for run in plan.runs.into_iter().rev() {
            self.runs.push_front((run, trigger));
        }
        self.next = now;
    }

    /// All was asked for, and taken as far as is known.
    pub fn is_whole(&self) -> bool {
        self.runs.is_empty() && !self.missed
    }

    /// All of the plans was asked for.
    pub fn is_planned_done(&self) -> bool {
        self.left().next().is_none()
    }

    /// Pages of plans that have not been asked for.
    pub fn left(&self) -> impl Iterator<Item = Place> + '_ {
        let planned = self.runs.iter().filter(|(_, why)| *why != Trigger::Rest);
        planned.flat_map(|(run, _)| {
            let role = run.start.role;
            (run.start.page..run.start.page + run.pages).map(move |page| Place { role, page })
        })
    }

    /// Asks for what is next, unless what was asked for before is not there yet.
    ///
    /// # Errors
    ///
    /// When the module knows no such command, or the sandbox not.
    pub fn go_on(
        &mut self,
        device: &dyn Device,
        id: Id,
        table: &Table,
        times: &Times,
        now: Duration,
    ) -> Result<Standing, Failure> {
        let age = now.saturating_sub(self.began);
        let left = match self.is_planned_done() {
            // The rest has time until the turn ends, and each of its requests as much as a plan.
            true => times.timeout,
            false => times.timeout.saturating_sub(age),
        };
        if left.is_zero() {
            return Ok(Standing::Late);
        }
        while let Some((pid, page, asked)) = self.pending.front().copied() {
            // What is too old was dropped.
            let is_old = now.saturating_sub(asked) > times.timeout;
            if !is_old && is_out(device, id, pid, page)? {
                break;
            }
            self.missed |= is_old;
            self.pending.pop_front();
        }
        while self.pending.len() < AHEAD && !self.runs.is_empty() {
            let mut last = None;
            let mut full = false;
            for number in 0..BATCH {
                let Some((_, trigger)) = self.runs.front().copied() else {
                    break;
                };
                if trigger == Trigger::Rest && number > 0 {
                    break;
                }
                let haste = Haste {
                    timeout: left,
                    hit_window: times.hit_window.saturating_add(times.ahead(trigger)),
                    priority: priority(trigger, self.asked),
                    tested: trigger != Trigger::Rest,
                };
                for (pid, role, ranges) in self.window(table, trigger) {
                    match self.ask(device, id, table, pid, &ranges, haste) {
                        Ok(asked) => last = asked.or(last),
                        Err(error) if error.errno() == Some(libc::EAGAIN) => {
                            self.put_back(role, &ranges, trigger);
                            full = true;
                        }
                        Err(error) => return Err(error),
                    }
                }
                if full {
                    break;
                }
                self.asked += 1;
            }
            self.pending
                .extend(last.map(|(pid, page)| (pid, page, now)));
            if full {
                // The module has as many requests as it takes: in a moment it has fewer.
                break;
            }
        }
        self.next = now.saturating_add(times.look);
        Ok(match self.runs.is_empty() {
            true => Standing::Done,
            false => Standing::Going,
        })
    }

    /// The next window of what is wanted for one reason, by process. What has no process any more is passed over.
    fn window(&mut self, table: &Table, trigger: Trigger) -> Vec<(i32, Role, Vec<Range>)> {
        let mut window: Vec<(i32, Role, Vec<Range>)> = Vec::new();
        let mut room = match trigger {
            // Nothing depends on its order.
            Trigger::Rest => REST_WINDOW,
            _ => self.window,
        };
        while let Some((run, _)) = self
            .runs
            .front_mut()
            .filter(|(_, why)| room > 0 && *why == trigger)
        {
            let Some(pid) = table.process(run.start.role) else {
                self.runs.pop_front();
                continue;
            };
            let pages = run.pages.min(room);
            let range = Range {
                start: run.start.page * PAGE_SIZE,
                end: (run.start.page + pages) * PAGE_SIZE,
            };
            match window.iter_mut().find(|(other, ..)| *other == pid) {
                Some((.., ranges)) => ranges.push(range),
                None => window.push((pid, run.start.role, vec![range])),
            }
            room -= pages;
            run.pages -= pages;
            run.start.page += pages;
            if run.pages == 0 {
                self.runs.pop_front();
            }
        }
        window
    }

    /// What the module did not take is next again.
    fn put_back(&mut self, role: Role, ranges: &[Range], trigger: Trigger) {
        for range in ranges.iter().rev() {
            let page = range.start / PAGE_SIZE;
            let run = Run {
                start: Place { role, page },
                pages: range.end / PAGE_SIZE - page,
            };
            self.runs.push_front((run, trigger));
        }
    }

    /// Asks for ranges of a process. Returns its last page, if any was queued.
    fn ask(
        &mut self,
        device: &dyn Device,
        id: Id,
        table: &Table,
        pid: i32,
        ranges: &[Range],
        haste: Haste,
    ) -> Result<Option<(i32, u64)>, Failure> {
        // The module sees to it that whoever has the number is in the sandbox.
        if !table.is_alive(pid) {
            return Ok(None);
        }
        match device.prefetch(id, pid, ranges, haste) {
            Ok(0) => Ok(None),
            Ok(pages) => {
                match haste.tested {
                    true => self.queued += pages,
                    false => self.queued_rest += pages,
                }
                Ok(ranges.last().map(|last| (pid, last.end - PAGE_SIZE)))
            }
            Err(error) if error.errno() == Some(libc::EAGAIN) => Err(error),
            Err(error) if is_unknown(&error) && table.is_alive(pid) => Err(error),
            // It ended, or its memory changed: what is left of the plan may still be right.
            Err(error) => {
                debug!(pid, "not restored: {error}");
                self.missed |= table.is_alive(pid);
                Ok(None)
            }
        }
    }
}

/// Whether a page is still swapped out.
fn is_out(device: &dyn Device, id: Id, pid: i32, page: u64) -> Result<bool, Failure> {
    let range = Range {
        start: page,
        end: page + PAGE_SIZE,
    };
    match device.page_states(id, pid, range, false) {
        Ok(states) => Ok(states
            .first()
            .is_some_and(|state| state & PAGE_SWAPPED != 0)),
        Err(error) if error.errno() == Some(libc::ENOTTY) => Err(error),
        Err(_) => Ok(false),
    }
}

/// The more is known of what is needed, and the sooner, the earlier it comes; then window by window.
fn priority(trigger: Trigger, window: u32) -> u32 {
    const EACH: u32 = 1 << 16;
    let class = match trigger {
        Trigger::Demand => 6,
        Trigger::ToolStart => 5,
        Trigger::FirstToken => 4,
        Trigger::Rest => 3,
        Trigger::Message => 2,
        Trigger::MidWait => 1,
        Trigger::Background => 0,
    };
    class * EACH + (EACH - 1).saturating_sub(window)
}
