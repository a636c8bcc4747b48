// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Who is compressed when: at most `compress_workers` at a time, in turn, within the CPU budget, and
//! only what is worth it within the wait that is left.

use std::time::Duration;

use super::sandbox::{Job, Want};
use super::{Done, Effect, Governor, Id, Note, Reason};
use crate::lifecycle::{State, Time};
use crate::schedule::fair::Turn;

/// A job of fewer bytes is not worth its overhead.
pub const LEAST: u64 = 1 << 20;
/// A job that takes fewer bytes came to nothing. Not below the error of the kernel's numbers.
const DRY: u64 = 512 << 10;
/// So many of them in a row are the end: pages that are being written to a device need a moment.
const DRY_JOBS: u32 = 2;
/// How long a sandbox is left alone of which nothing could be taken: at first, and at most.
const PAUSE: [Duration; 2] = [Duration::from_secs(10), Duration::from_secs(600)];
/// What taking a byte costs until something was measured, in nanoseconds: 10 us a page.
const FIRST_PACE: f64 = 2.5;

/// What taking a byte costs, as measured: averages over the last jobs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    cpu: f64,
    elapsed: f64,
    /// What it was at first.
    first: f64,
    /// Something was learnt since the last round.
    fresh: bool,
}

impl Pace {
    pub fn new(scale: f64) -> Pace {
        Pace {
            cpu: FIRST_PACE * scale,
            elapsed: FIRST_PACE * scale,
            first: FIRST_PACE * scale,
            fresh: false,
        }
    }

    /// Learns from a job. Small ones say little.
    fn learn(&mut self, done: &Done) {
        if done.reclaimed < LEAST {
            return;
        }
        let bytes = done.reclaimed as f64;
        for (known, time) in [
            (&mut self.cpu, done.cpu),
            (&mut self.elapsed, done.elapsed.max(done.cpu)),
        ] {
            // One job in which the machine stood still says nothing about the next.
            let cost = (time.as_nanos() as f64 / bytes)
                .clamp(0.01, 1e6)
                .min(*known * 4.0);
            *known += (cost - *known) / 4.0;
        }
        self.fresh = true;
    }

    /// A round is over. While nothing is learnt, bad experience fades: else it could be so bad that nothing
    /// is ever tried again.
    pub fn fade(&mut self) {
        if !std::mem::replace(&mut self.fresh, false) {
            for known in [&mut self.cpu, &mut self.elapsed] {
                *known -= (*known - self.first).max(0.0) / 8.0;
            }
        }
    }

    /// CPU time that so many bytes will take.
    pub fn cpu(&self, bytes: u64) -> Duration {
        Duration::from_nanos((self.cpu * bytes as f64) as u64)
    }

    /// Time that so many bytes will take.
    fn elapsed(&self, bytes: u64) -> Duration {
        // Rounded up, so that [`Pace::bytes`] of it is as much.
        Duration::from_nanos((self.elapsed * bytes as f64) as u64 + 1)
    }

    /// The bytes that can be taken in this time.
    fn bytes(&self, time: Duration) -> u64 {
        (time.as_nanos() as f64 / self.elapsed) as u64
    }
}

impl Governor {
    /// A wait begins: what is there to be taken is taken in turn.
    pub(super) fn wait_begins(&mut self, id: Id) {
        // It wants nothing back any more.
        if self.admission.forget(id) {
            self.effects.push(Effect::Thaw(id));
        }
        self.restores.forget_own(id);
        let quiesced = self.sandboxes.get(&id).is_some_and(|s| s.quiesced);
        if self.restores.is_running(id) && !quiesced {
            self.effects.push(Effect::EndRestore(id));
        }
        if let Some(sandbox) = self.sandboxes.get_mut(&id) {
            sandbox.low = u64::MAX;
            sandbox.dry = None;
            sandbox.restored = None;
            // A new wait is a new chance.
            sandbox.pause = sandbox.pause.map(|(_, length)| (Time::ZERO, length));
        }
        self.want(id, false);
        self.expect_end(id);
    }

    /// Puts a sandbox into the ring, if anything may be done to it.
    pub(super) fn want(&mut self, id: Id, pressure: bool) {
        let Some(sandbox) = self.sandboxes.get_mut(&id) else {
            return;
        };
        if sandbox.quiesced || sandbox.machine.state() == State::Terminated {
            return;
        }
        let pressure = pressure || sandbox.want.is_some_and(|want| want.pressure);
        sandbox.want = Some(Want { pressure });
        // One that has a job comes back when that has ended.
        if sandbox.job.is_none() {
            self.ring.add(id);
        }
    }

    /// Takes nothing more from a sandbox, now.
    pub(super) fn stop(&mut self, id: Id) {
        self.ring.remove(id);
        if let Some(sandbox) = self.sandboxes.get_mut(&id) {
            sandbox.want = None;
            if let Some(job) = sandbox.job.as_mut().filter(|job| !job.stopping) {
                job.stopping = true;
                self.effects.push(Effect::Stop(id));
            }
        }
    }

    /// Jobs may begin at all: a worker and CPU time are free, and nothing goes before them.
    fn may_start(&self) -> bool {
        let schedule = &self.config.schedule;
        let used = self.memory.used();
        // Between the watermarks what comes back goes before what goes out.
        let resume_first = (schedule.hysteresis_low.part()..schedule.batch_resume_below.part())
            .contains(&used)
            && self.restores.are_pending();
        self.jobs < schedule.compress_workers.get() as usize
            && self.budget.is_open()
            && !resume_first
    }

    /// Nothing can be taken from anybody.
    fn swap_is_full(&self) -> bool {
        self.memory.total > 0 && self.memory.swap_free < LEAST
    }

    /// Starts what may be started.
    pub(super) fn start_jobs(&mut self, now: Time) {
        while !self.ring.is_empty() && self.may_start() {
            let (sandboxes, pace) = (&self.sandboxes, &self.pace);
            let spare = self.spare();
            // One that is being brought back, or that has an old job, waits for the end of that.
            let busy = |id| self.orphans.contains_key(&id) || self.restores.is_running(id);
            let full = self.swap_is_full();
            let weight = |id| {
                let score = sandboxes.get(&id).map_or(0.0, |sandbox| sandbox.score);
                0.5 + score.clamp(0.0, 1.0)
            };
            let turn = |id| match sandboxes.get(&id) {
                Some(sandbox) if sandbox.want.is_some() && !sandbox.quiesced => {
                    let rests = sandbox.pauses(now) || !sandbox.turns.has_any(now);
                    let spared = sandbox
                        .machine
                        .remaining(now)
                        .is_some_and(|wait| wait < spare.of(sandbox));
                    if full || rests || spared || busy(id) {
                        return Turn::Skip;
                    }
                    // It has to pay before the wait is over: half of what is left for taking.
                    let most = match sandbox.machine.remaining(now) {
                        Some(wait) => pace.bytes(wait / 2),
                        None => u64::MAX,
                    };
                    match most {
                        ..LEAST => Turn::Skip,
                        most => Turn::Take(most),
                    }
                }
                _ => Turn::Leave,
            };
            let Some((id, bytes)) = self.ring.next(weight, turn) else {
                break;
            };
            self.start(id, bytes.max(LEAST));
        }
    }

    fn start(&mut self, id: Id, bytes: u64) {
        let estimate = self.pace.cpu(bytes);
        let Some(sandbox) = self.sandboxes.get_mut(&id) else {
            return;
        };
        let file_first = sandbox.want.is_some_and(|want| want.pressure);
        sandbox.job = Some(Job {
            estimate,
            stopping: false,
        });
        self.budget.reserve(estimate);
        self.jobs += 1;
        self.effects.push(Effect::Start {
            id,
            bytes,
            file_first,
        });
    }

    pub(super) fn job_done(&mut self, id: Id, done: Done, now: Time) {
        self.pace.learn(&done);
        if let Some(job) = self.orphans.remove(&id) {
            // Of a sandbox that is gone; one that came since in the same cgroup had to wait for this.
            self.jobs -= 1;
            self.budget.settle(job.estimate, done.cpu);
            return;
        }
        let Some(sandbox) = self.sandboxes.get_mut(&id) else {
            return;
        };
        let Some(job) = sandbox.job.take() else {
            return;
        };
        self.jobs -= 1;
        self.budget.settle(job.estimate, done.cpu);
        sandbox.taken = sandbox.taken.saturating_add(done.reclaimed);
        let Some(want) = sandbox.want else {
            return;
        };
        let dry = done.reclaimed < DRY && !done.stopped;
        sandbox.dry_jobs = if dry { sandbox.dry_jobs + 1 } else { 0 };
        if done.reason.is_none() && sandbox.dry_jobs < DRY_JOBS {
            if !dry {
                sandbox.reason = None;
                sandbox.pause = None;
            }
            self.ring.add(id);
            return;
        }
        sandbox.dry_jobs = 0;
        sandbox.want = None;
        sandbox.dry = want.pressure.then_some(u64::MAX);
        self.ring.remove(id);
        let Some(reason) = done.reason else {
            // Simply nothing is left.
            sandbox.reason = None;
            sandbox.pause = None;
            return;
        };
        let length = sandbox.pause.map_or(PAUSE[0], |(_, length)| length);
        sandbox.pause = Some((now.saturating_add(length), (length * 2).min(PAUSE[1])));
        if sandbox.reason.replace(reason) != Some(reason) {
            self.effects.push(Effect::Note(Note::Helpless(id, reason)));
        }
    }

    /// Work is done, or waits for CPU time or a worker.
    pub(super) fn has_backlog(&self) -> bool {
        self.jobs > 0
            || self.restores.are_pending()
            || (!self.ring.is_empty() && !self.budget.is_open())
    }

    /// Why nothing is taken from this sandbox though something should be.
    pub(super) fn why_not(&self, id: Id) -> Option<Reason> {
        let sandbox = self.sandboxes.get(&id)?;
        match sandbox.want.is_some() && self.swap_is_full() {
            true => Some(Reason::NoSwap),
            false => sandbox.reason,
        }
    }

    /// When a job may begin that waits for nothing but time.
    pub(super) fn jobs_timer(&self, now: Time) -> Option<Time> {
        let workers = self.config.schedule.compress_workers.get() as usize;
        if self.ring.is_empty() || self.jobs >= workers {
            return None;
        }
        if !self.budget.is_open() {
            return Some(self.budget.opens_at());
        }
        let ready = self.ring.ids().filter_map(|id| self.ready_at(id, now));
        // Who is ready now waits for something else.
        ready.filter(|at| *at > now).min()
    }

    /// From when on a job of this sandbox may begin, as far as the clock decides.
    fn ready_at(&self, id: Id, now: Time) -> Option<Time> {
        let sandbox = self.sandboxes.get(&id)?;
        let mut at = sandbox.turns.next(now);
        if sandbox.pauses(now) {
            at = at.max(sandbox.pause?.0);
        }
        let least = self.pace.elapsed(LEAST).saturating_mul(2);
        let least = least.max(self.spare().of(sandbox));
        if sandbox
            .machine
            .remaining(now)
            .is_some_and(|left| left < least)
        {
            at = at.max(sandbox.machine.remains_at(least)?);
        }
        Some(at)
    }
}
