// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A sandbox as the restorer holds it, and its ring.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use agentzip_uapi::{FaultKind, FaultRecord, FAULT_WRITE};
use rustix::event::{eventfd, EventfdFlags};

use super::core::{Core, Tools};
use super::progress::Progress;
use super::shown::Shown;
use super::table::Table;
use super::Report;
use crate::device::{Device, Failure};
use crate::governor::Id;
use crate::hot::Target;
use crate::predict::{Figures, Latencies, Place, Seen, What, Window};
use crate::sysfs::Sysfs;
use crate::{ObjectName, PAGE_SIZE};

/// Records that are taken at once.
const BATCH: usize = 1024;
/// Batches after which others have their turn.
const BATCHES: usize = 16;
/// When a ring is read first after its sandbox went on; the pause then doubles up to the sample period.
const SOON: Duration = Duration::from_millis(5);

/// A sandbox.
pub struct Sandbox {
    /// Where it is.
    pub target: Target,
    /// What it was cloned from.
    pub template: ObjectName,
    bell: OwnedFd,
    /// Records of its ring; 0: its faults are not recorded.
    pub armed: u32,
    /// It was attached, and has had no ring of ours since.
    pub fresh: bool,
    /// Its processes.
    pub table: Table,
    /// A turn runs.
    pub turn: bool,
    /// The plan that is being carried out.
    pub progress: Option<Progress>,
    /// All that was out in the wait before was asked for, and nothing had to be faulted in since.
    pub whole: bool,
    /// Something of it is to be shown anew.
    pub changed: bool,
    /// The governor waits for the end of its plans.
    pub governed: bool,
    /// When the ring is read next, while the sandbox runs.
    pub next_read: Option<Duration>,
    pause: Duration,
    /// What was counted, but for what is in the figures.
    pub shown: Shown,
    figures: Figures,
    latencies: Latencies,
    /// For how long the first tool of the turn waited so far, in nanoseconds; `None`: it has ended.
    first_tool: Option<u64>,
    window: Option<Window>,
    /// When the turn began, until its first tool starts.
    resumed: Option<Duration>,
    /// How long that takes usually.
    pub gap: Duration,
    /// Faults and hits of this turn, and of the usual one.
    events: u64,
    usual: f64,
    last: f64,
    active: f64,
    /// What the ring had lost when it was last read; `None`: not read yet.
    lost: Option<u64>,
    /// The workers' time of it when that was last read, in nanoseconds.
    spent: u64,
}

impl Sandbox {
    /// Of which nothing is known.
    ///
    /// # Errors
    ///
    /// When the kernel gives no file descriptor.
    pub fn new(target: Target, template: ObjectName) -> std::io::Result<Sandbox> {
        Ok(Sandbox {
            target,
            template,
            bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            armed: 0,
            fresh: true,
            table: Table::default(),
            turn: true,
            progress: None,
            whole: false,
            changed: true,
            governed: false,
            next_read: None,
            pause: SOON,
            shown: Shown::default(),
            figures: Figures::default(),
            latencies: Latencies::default(),
            first_tool: None,
            window: None,
            resumed: None,
            gap: Duration::ZERO,
            events: 0,
            usual: 0.0,
            last: 0.0,
            active: 1.0,
            lost: None,
            spent: 0,
        })
    }

    /// Readable when the ring is half full.
    pub fn bell(&self) -> &OwnedFd {
        &self.bell
    }

    /// Begins to record, or changes the size of the ring. The first time it throws away what a daemon before us
    /// has left.
    ///
    /// # Errors
    ///
    /// When the module does not record, or not this sandbox.
    pub fn arm(&mut self, device: &dyn Device, records: u32) -> Result<(), Failure> {
        let id = self.target.id;
        self.armed = 0;
        device.sandbox_record(id, records, Some(self.bell.as_fd()))?;
        if std::mem::replace(&mut self.fresh, false) {
            let mut room = vec![FaultRecord::default(); BATCH];
            for _ in 0..BATCHES {
                let taken = device.faults_read(id, &mut room)?;
                self.lost = Some(taken.lost);
                if taken.records < room.len() {
                    break;
                }
            }
        }
        self.armed = records;
        Ok(())
    }

    /// Ends the recording, and gives the ring back.
    pub fn disarm(&mut self, device: &dyn Device) {
        if std::mem::take(&mut self.armed) > 0 {
            if let Err(error) = device.sandbox_record(self.target.id, 0, None) {
                // It is not attached any more: then there is no ring.
                tracing::debug!(id = self.target.id, "{error}");
            }
        }
    }

    /// Its faults are recorded.
    pub fn is_armed(&self) -> bool {
        self.armed > 0
    }

    /// Nothing is left to restore.
    pub fn is_back(&self) -> bool {
        self.whole && self.progress.is_none()
    }

    /// The signal was seen.
    pub fn silence(&self) {
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
    }

    /// A turn begins.
    pub fn begin_turn(&mut self, now: Duration) {
        self.turn = true;
        self.whole = false;
        self.first_tool = Some(0);
        self.resumed = Some(now);
    }

    /// A tool starts; the first of a turn says how far ahead of it the turn began.
    pub fn tool_starts(&mut self, now: Duration) {
        if let Some(resumed) = self.resumed.take() {
            let gap = now.saturating_sub(resumed);
            self.gap = match self.gap.is_zero() {
                true => gap,
                false => (self.gap * 3 + gap) / 4,
            };
        }
    }

    /// A turn ends. `active`: the part of its pages that was accessed.
    pub fn end_turn(&mut self, active: f64) {
        self.last = self.events as f64;
        self.usual = match self.usual {
            0.0 => self.last,
            usual => usual + (self.last - usual) / 4.0,
        };
        self.events = 0;
        self.active = active;
        self.first_tool = None;
    }

    /// Takes the time that the first tool of the turn waited.
    pub fn first_tool_ended(&mut self) -> Option<Duration> {
        let stall = Duration::from_nanos(self.first_tool.take()?);
        self.latencies.push(stall);
        Some(stall)
    }

    /// Its ring is read soon, and then at growing pauses.
    pub fn read_soon(&mut self, now: Duration, scale: f64) {
        if self.is_armed() {
            self.pause = SOON.mul_f64(scale.max(1.0));
            self.next_read = Some(now.saturating_add(self.pause));
        }
    }

    /// It was read, and is read again after a pause twice as long, up to `most`.
    pub fn read_later(&mut self, now: Duration, most: Duration) {
        self.pause = (self.pause * 2).min(most);
        self.next_read = Some(now.saturating_add(self.pause));
    }

    /// Pages of its window.
    pub fn window(&mut self, (floor, ceiling): (f64, f64)) -> u32 {
        let events = match self.usual > 0.0 {
            true => self.last / self.usual,
            false => 1.0,
        };
        let active = self.active;
        let window = self
            .window
            .get_or_insert_with(|| Window::new(events, active, floor, ceiling));
        window.pages()
    }

    /// What the workers took since the last call, in nanoseconds.
    pub fn spent(&mut self, sysfs: &Sysfs) -> u64 {
        let now = sysfs.prefetch_ns(self.target.id).unwrap_or(self.spent);
        let spent = now.saturating_sub(self.spent);
        self.spent = now;
        self.figures.cost_ns += spent;
        spent
    }

    /// What `status` shows.
    pub fn shown(&mut self) -> Shown {
        self.shown.take(&self.figures, self.latencies.p99());
        self.shown.window_pages = self.window.as_ref().map(Window::pages);
        self.shown.clone()
    }

    /// Counts what was seen.
    fn count(&mut self, seen: &[Seen]) -> (u32, u32) {
        self.figures.count(seen);
        let number = |what| seen.iter().filter(|one| one.what == what).count() as u32;
        let (demand, hits, misses) = (number(What::Demand), number(What::Hit), number(What::Miss));
        self.events += u64::from(demand + hits);
        if let Some(stall) = &mut self.first_tool {
            let demand = seen.iter().filter(|one| one.what == What::Demand);
            *stall += demand.map(|one| u64::from(one.stall_ns)).sum::<u64>();
        }
        if let Some(window) = &mut self.window {
            window.ended(hits, misses);
        }
        (hits, misses)
    }
}

impl Core {
    /// Takes what the ring of a sandbox has and tells the learner. Returns how many demand faults it was.
    pub(super) fn read(&mut self, tools: Tools<'_>, id: Id, now: Duration) -> u32 {
        let mut demand = 0;
        for _ in 0..BATCHES {
            let Some(sandbox) = self
                .sandboxes
                .get_mut(&id)
                .filter(|sandbox| sandbox.is_armed())
            else {
                break;
            };
            let mut room = vec![FaultRecord::default(); BATCH];
            let taken = match tools.device.faults_read(id, &mut room) {
                Ok(taken) => taken,
                Err(error) => {
                    tracing::debug!(id, "{error}");
                    sandbox.armed = 0;
                    break;
                }
            };
            let lost = taken
                .lost
                .saturating_sub(sandbox.lost.unwrap_or(taken.lost));
            sandbox.lost = Some(taken.lost);
            room.truncate(taken.records);
            let demanded = |record: &FaultRecord| record.kind == FaultKind::Demand as u8;
            if sandbox.whole && (lost > 0 || room.iter().any(demanded)) {
                sandbox.whole = false;
                if sandbox.turn {
                    sandbox.read_soon(now, self.settings.scale);
                }
            }
            if room
                .iter()
                .any(|record| sandbox.table.role(record.tgid).is_none())
            {
                // Tools are children that begin and end.
                sandbox
                    .table
                    .look(tools.processes, &sandbox.target, &mut self.learner);
            }
            let table = &sandbox.table;
            let seen: Vec<Seen> = room
                .iter()
                .filter_map(|record| place(record, table))
                .collect();
            let unplaced = (room.len() - seen.len()) as u64;
            for shown in [&mut sandbox.shown, &mut self.total] {
                shown.lost_records += lost;
                shown.unplaced_records += unplaced;
            }
            let (hits, misses) = sandbox.count(&seen);
            self.figures.count(&seen);
            if let Some(traces) = &mut self.traces {
                traces.seen(id, &sandbox.template, &self.learner, &seen);
            }
            self.learner.seen(id, &seen);
            demand += seen.iter().filter(|one| one.what == What::Demand).count() as u32;
            let change = self.alarm.ended(hits.into(), misses.into());
            self.reports.extend(change.map(Report::Alarm));
            if taken.records > 0 || lost > 0 {
                self.changed(id);
            }
            if taken.records < BATCH {
                break;
            }
        }
        demand
    }
}

/// A record in the learner's words; `None`: nobody knows the process.
fn place(record: &FaultRecord, table: &Table) -> Option<Seen> {
    let what = match FaultKind::from_raw(record.kind)? {
        FaultKind::Demand => What::Demand,
        FaultKind::Hit => What::Hit,
        FaultKind::Miss => What::Miss,
    };
    Some(Seen {
        at: Duration::from_nanos(record.time_ns),
        place: Place {
            role: table.role(record.tgid)?,
            page: record.address / PAGE_SIZE,
        },
        thread: record.tid,
        write: record.flags & FAULT_WRITE != 0,
        what,
        stall_ns: record.decode_ns,
    })
}
