// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Reclaim by a timer, whatever the agents do: what alignment with their waits is compared with.
//!
//! It takes as much as the daemon took in the run before, in as many jobs, evenly spaced over the time
//! of that run. A job takes from the next sandbox in turn that has anything to give. What one could not
//! take, for want of it, is added to the next ones.
//!
//! While memory is read for a sample the timer stands still, as the samples are to be of one moment.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{anyhow, Result};
use serde::Serialize;

use super::cgroup::Cgroup;
use super::pages::PAGE;

/// A sandbox with less anonymous memory than this has nothing to give.
const LEAST: u64 = 1 << 20;
/// A job takes at most so many times the mean.
const MOST: u64 = 4;

/// What the timer is to do.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Jobs.
    pub jobs: u64,
    /// Bytes that they take together.
    pub bytes: u64,
    /// The time over which they are spaced.
    pub over: Duration,
}

/// What it did.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Jobs {
    /// Jobs that took something.
    pub count: u64,
    /// Bytes that they took.
    pub bytes: u64,
    /// CPU seconds of those who took them.
    pub cpu_seconds: f64,
    /// Jobs that took from a sandbox while it worked.
    pub in_a_turn: u64,
    /// Bytes that those took.
    pub bytes_in_a_turn: u64,
}

impl Plan {
    /// Bytes to be taken when `job` jobs are done, counted from 1.
    fn due(&self, job: u64) -> u64 {
        let bytes = u128::from(self.bytes) * u128::from(job) / u128::from(self.jobs.max(1));
        bytes as u64
    }

    /// When that job is to start.
    fn at(&self, job: u64) -> Duration {
        self.over.mul_f64(job as f64 / self.jobs.max(1) as f64)
    }

    /// What the job asks for, when so much was taken before it.
    fn ask(&self, job: u64, taken: u64) -> u64 {
        let most = MOST * (self.bytes / self.jobs.max(1));
        self.due(job).saturating_sub(taken).min(most) / PAGE * PAGE
    }
}

/// A timer that runs. Dropping it stops it.
pub struct Timer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<Result<Jobs>>>,
}

struct Shared {
    clock: Mutex<Clock>,
    changed: Condvar,
    /// Sandboxes that work now.
    working: Vec<AtomicBool>,
}

/// The time in which it did not stand still.
struct Clock {
    before: Duration,
    /// When it began to go; `None`: it stands still.
    since: Option<Instant>,
    /// A job runs.
    busy: bool,
    ended: bool,
}

impl Clock {
    fn now(&self) -> Duration {
        self.before + self.since.map_or(Duration::ZERO, |since| since.elapsed())
    }
}

impl Timer {
    /// Starts it.
    pub fn start(plan: Plan, sandboxes: &[Cgroup]) -> Self {
        let clock = Clock {
            before: Duration::ZERO,
            since: Some(Instant::now()),
            busy: false,
            ended: false,
        };
        let shared = Arc::new(Shared {
            clock: Mutex::new(clock),
            changed: Condvar::new(),
            working: sandboxes.iter().map(|_| AtomicBool::new(false)).collect(),
        });
        let (own, sandboxes) = (Arc::clone(&shared), sandboxes.to_vec());
        let thread = std::thread::spawn(move || own.run(&plan, &sandboxes));
        Self {
            shared,
            thread: Some(thread),
        }
    }

    /// A sandbox begins, or ends, a turn. The timer only counts that.
    pub fn works(&self, index: usize, works: bool) {
        if let Some(flag) = self.shared.working.get(index) {
            flag.store(works, Ordering::Relaxed);
        }
    }

    /// Does something while the timer stands still and no job runs.
    pub fn hold<T>(&self, work: impl FnOnce() -> T) -> T {
        let mut clock = self.shared.lock();
        while clock.busy {
            clock = self.shared.wait(clock, Duration::from_secs(1));
        }
        clock.before = clock.now();
        clock.since = None;
        drop(clock);
        let done = work();
        self.shared.lock().since = Some(Instant::now());
        self.shared.changed.notify_all();
        done
    }

    /// Stops it.
    pub fn finish(mut self) -> Result<Jobs> {
        self.shared.end();
        let ended = self.thread.take().map(JoinHandle::join);
        match ended {
            Some(Ok(jobs)) => jobs,
            _ => Err(anyhow!("the timer's thread died")),
        }
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.shared.end();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Clock> {
        self.clock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, clock: MutexGuard<'a, Clock>, most: Duration) -> MutexGuard<'a, Clock> {
        let waited = self.changed.wait_timeout(clock, most);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn end(&self) {
        self.lock().ended = true;
        self.changed.notify_all();
    }

    /// Waits until a time of the timer's clock; then a job runs. False at the end.
    fn reach(&self, time: Duration) -> bool {
        let mut clock = self.lock();
        while !clock.ended {
            let left = time.saturating_sub(clock.now());
            if clock.since.is_some() && left.is_zero() {
                clock.busy = true;
                return true;
            }
            clock = self.wait(clock, left.max(Duration::from_millis(1)));
        }
        false
    }

    fn run(&self, plan: &Plan, sandboxes: &[Cgroup]) -> Result<Jobs> {
        let mut done = Jobs::default();
        let mut next = 0;
        for job in 1..=plan.jobs {
            if !self.reach(plan.at(job)) {
                break;
            }
            let result = self.job(plan.ask(job, done.bytes), sandboxes, &mut next, &mut done);
            self.lock().busy = false;
            self.changed.notify_all();
            result?;
        }
        let cpu = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        done.cpu_seconds = cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9;
        Ok(done)
    }

    fn job(
        &self,
        bytes: u64,
        sandboxes: &[Cgroup],
        next: &mut usize,
        done: &mut Jobs,
    ) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        for _ in 0..sandboxes.len() {
            let index = *next % sandboxes.len();
            *next += 1;
            let sandbox = &sandboxes[index];
            if sandbox.charged()?.anonymous < LEAST {
                continue;
            }
            let works = || {
                self.working
                    .get(index)
                    .is_some_and(|w| w.load(Ordering::Relaxed))
            };
            let before = (sandbox.evicted()?.stolen, works());
            sandbox.take(bytes)?;
            let taken = (sandbox.evicted()?.stolen - before.0) * PAGE;
            done.bytes += taken;
            done.count += u64::from(taken > 0);
            if before.1 && works() {
                done.in_a_turn += u64::from(taken > 0);
                done.bytes_in_a_turn += taken;
            }
            break;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: Plan = Plan {
        jobs: 10,
        bytes: 100 << 20,
        over: Duration::from_secs(50),
    };

    #[test]
    fn jobs_are_evenly_spaced() {
        assert_eq!(PLAN.at(1), Duration::from_secs(5));
        assert_eq!(PLAN.at(10), PLAN.over);
        assert_eq!((PLAN.due(3), PLAN.due(10)), (30 << 20, PLAN.bytes));
    }

    #[test]
    fn what_was_not_there_is_taken_later() {
        assert_eq!(PLAN.ask(1, 0), 10 << 20);
        assert_eq!(PLAN.ask(2, 4 << 20), 16 << 20);
        assert_eq!(PLAN.ask(10, 0), 40 << 20);
        assert_eq!(PLAN.ask(5, 60 << 20), 0);
        let none = Plan { jobs: 0, ..PLAN };
        assert_eq!((none.ask(1, 0), none.at(0)), (100 << 20, Duration::ZERO));
    }

    #[test]
    fn it_stands_still_while_it_is_held_and_ends_when_it_is_told() {
        let plan = Plan {
            jobs: 2,
            bytes: 0,
            over: Duration::from_secs(3600),
        };
        let timer = Timer::start(plan, &[]);
        assert_eq!(timer.hold(|| 7), 7);
        timer.works(3, true);
        assert_eq!(timer.finish().unwrap().count, 0);
    }
}
