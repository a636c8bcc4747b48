// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reclaim jobs: one thread each, that writes to `memory.reclaim` once or twice and ends.
//!
//! [`Job::stop`] interrupts it by a signal. The kernel looks for signals once for each batch of 64 folios
//! when it takes pages, but not while it ages a cgroup's pages before that; a job that was stopped
//! then has reclaimed nothing, which [`Outcome::in_aging`] tells.
//!
//! A job is a thread of the daemon and not a process, so it dies with the daemon, also by SIGKILL: the
//! kernel gives the signal to every thread, and `memory.reclaim` ends for it as it does for ours. There
//! is no moment in which a job could be left behind. How many there are at a time is the scheduler's
//! business.
//!
//! A job that spares hot pages ([`Job::sparing`]) takes anonymous memory by [`crate::hot::take`] instead,
//! 64 pages at a time, and looks in between whether it is to stop.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{eventfd, EventfdFlags};
use rustix::fs::{self, Mode, OFlags};
use rustix::io::Errno;
use serde::Serialize;

use crate::directory::Directory;
use crate::error::{Error, Result};
use crate::hot::process::Processes;
use crate::hot::take::{take, Taken};
use crate::hot::{HotSet, Target};
use crate::reclaim::seconds;
use crate::sys::interrupt::{thread_cpu_time, thread_id, Interrupt};
use crate::{yields, PAGE_SIZE};

/// Most that is read of `memory.stat`.
const MAX_STAT: usize = 64 << 10;

/// What is to be reclaimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// How much, in bytes; rounded up to pages. More than there is takes all there is.
    pub bytes: u64,
    /// Page cache first, then anonymous memory for what is left; else anonymous memory only.
    pub file_first: bool,
}

/// Pages that a job leaves where they are, and the way to the others.
#[derive(Clone)]
pub struct Spare {
    /// What is on the machine.
    pub processes: Arc<dyn Processes>,
    /// The sandbox.
    pub target: Target,
    /// Its hot pages.
    pub hot: Arc<HotSet>,
}

/// What came of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Outcome {
    /// Bytes that were asked for.
    pub asked_bytes: u64,
    /// Bytes that were reclaimed, as `memory.stat` counts them (`pgsteal_proactive`; off by up to 64 pages
    /// for each CPU); where that has no such line, by how much `memory.current` fell.
    pub reclaimed_bytes: u64,
    /// Hot pages were to be left where they are: [`Job::sparing`].
    pub sparing: bool,
    /// Bytes of hot pages that were come across and left where they are.
    pub spared_bytes: u64,
    /// Less was left than was asked for. That is normal.
    pub short: bool,
    /// It was stopped before it was done.
    pub stopped: bool,
    /// CPU time of the thread.
    #[serde(rename = "cpu_seconds", serialize_with = "seconds")]
    pub cpu: Duration,
    /// Time that it took.
    #[serde(rename = "seconds", serialize_with = "seconds")]
    pub elapsed: Duration,
    /// From the call of [`Job::stop`] until the thread was out of the kernel; zero when it was not stopped.
    #[serde(rename = "stop_seconds", serialize_with = "seconds")]
    pub stop_latency: Duration,
}

impl Outcome {
    /// It was stopped before anything was reclaimed: the kernel was aging pages, which cannot be
    /// interrupted. Not so of a job that spares hot pages.
    pub fn in_aging(&self) -> bool {
        self.stopped && self.reclaimed_bytes == 0 && !self.sparing
    }
}

/// A job that runs. When it goes, it is stopped.
#[derive(Debug)]
pub struct Job {
    shared: Arc<Shared>,
    /// Until its result was taken.
    thread: Option<JoinHandle<Result<Outcome>>>,
}

#[derive(Debug)]
struct Shared {
    name: String,
    /// When it was to stop.
    stop: Mutex<Option<Instant>>,
    interrupt: Interrupt,
    /// Becomes readable at the end.
    done: OwnedFd,
    /// The thread's number; 0 before it has begun.
    thread: AtomicI32,
}

impl Shared {
    fn stop_time(&self) -> Option<Instant> {
        *self.stop.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Says that the thread is at its end, also when it ends by a panic.
struct Finish<'a>(&'a Shared);

impl Drop for Finish<'_> {
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.0.done, &1_u64.to_ne_bytes());
    }
}

impl Job {
    /// Starts to reclaim.
    ///
    /// # Errors
    ///
    /// When the cgroup has no memory controller or is gone, or the kernel gives no thread.
    pub fn start(cgroup: &Directory, order: Order) -> Result<Job> {
        Job::spawn(cgroup, order, None)
    }

    /// Starts to reclaim all but hot pages.
    ///
    /// # Errors
    ///
    /// As [`Job::start`].
    pub fn sparing(cgroup: &Directory, order: Order, spare: Spare) -> Result<Job> {
        Job::spawn(cgroup, order, Some(spare))
    }

    fn spawn(cgroup: &Directory, order: Order, spare: Option<Spare>) -> Result<Job> {
        let files = Files::open(cgroup)?;
        let name = cgroup.name();
        let failed = |operation| {
            let name = name.clone();
            move |cause: io::Error| Error::io(operation, &name)(cause)
        };
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let done = eventfd(0, flags).map_err(io::Error::from);
        let shared = Arc::new(Shared {
            name: name.clone(),
            stop: Mutex::new(None),
            interrupt: Interrupt::default(),
            done: done.map_err(failed("make eventfd for reclaim of"))?,
            thread: AtomicI32::new(0),
        });
        let own = shared.clone();
        let thread = std::thread::Builder::new()
            .name("reclaim".to_owned())
            .stack_size(128 << 10)
            .spawn(move || {
                if spare.is_none() {
                    yields::now();
                }
                let _finish = Finish(&own);
                own.thread.store(thread_id(), Ordering::Release);
                run(&own, &files, order, spare.as_ref())
            })
            .map_err(failed("start reclaim of"))?;
        Ok(Job {
            shared,
            thread: Some(thread),
        })
    }

    /// Makes it end. Returns at once; to be called once or often.
    pub fn stop(&self) {
        let mut stop = self
            .shared
            .stop
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        stop.get_or_insert_with(Instant::now);
        drop(stop);
        // The thread arms before it looks for the time above, so one of both reaches it.
        self.shared.interrupt.interrupt();
    }

    /// It ended: [`finish`](Job::finish) does not wait.
    pub fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// CPU time that it has used so far; `None` when it has not begun or is at its end, for which see
    /// [`Outcome::cpu`].
    pub fn cpu_time(&self) -> Option<Duration> {
        match self.shared.thread.load(Ordering::Acquire) {
            0 => None,
            thread if !self.is_finished() => thread_cpu_time(thread).ok(),
            _ => None,
        }
    }

    /// Takes the result. Waits for the end.
    ///
    /// # Errors
    ///
    /// When the kernel refused.
    pub fn finish(mut self) -> Result<Outcome> {
        let ended = self.thread.take().map(JoinHandle::join);
        match ended {
            Some(Ok(outcome)) => outcome,
            _ => {
                let problem = "the thread that reclaims failed; this is a bug";
                Err(Error::invalid(self.shared.name.clone(), problem))
            }
        }
    }
}

impl AsFd for Job {
    /// Readable when it has ended.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.done.as_fd()
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.stop();
        }
    }
}

/// Files of the cgroup, opened where errors can still be told at once.
struct Files {
    reclaim: OwnedFd,
    stat: File,
    current: File,
}

impl Files {
    fn open(cgroup: &Directory) -> Result<Files> {
        let open = |name: &str, flags| {
            let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            fs::openat(cgroup, name, flags, Mode::empty()).map_err(|errno| match errno {
                Errno::NOENT => Error::invalid(
                    cgroup.name(),
                    format!("cannot be reclaimed: it has no {name}; switch the memory controller on for it, \
                             in cgroup.subtree_control above it"),
                ),
                other => Error::io("open", &format!("{}/{name}", cgroup.name()))(other.into()),
            })
        };
        Ok(Files {
            reclaim: open("memory.reclaim", OFlags::WRONLY)?,
            stat: open("memory.stat", OFlags::RDONLY)?.into(),
            current: open("memory.current", OFlags::RDONLY)?.into(),
        })
    }

    fn count(&self) -> Count {
        let stat = read(&self.stat);
        let line = |name: &str| {
            let mut lines = stat.lines().filter_map(|line| line.split_once(' '));
            let (_, value) = lines.find(|(key, _)| *key == name)?;
            value.trim().parse::<u64>().ok()
        };
        Count {
            stolen: line("pgsteal_proactive"),
            file: line("inactive_file").unwrap_or(0) + line("active_file").unwrap_or(0),
            current: read(&self.current).trim().parse().unwrap_or(0),
        }
    }
}

/// The beginning of a file. Empty when the cgroup is gone.
fn read(file: &File) -> String {
    let mut text = vec![0; MAX_STAT];
    let mut length = 0;
    while let Some(room) = text.get_mut(length..).filter(|room| !room.is_empty()) {
        match rustix::io::pread(file, room, length as u64) {
            Ok(0) => break,
            Ok(more) => length += more,
            Err(Errno::INTR) => {}
            Err(_) => break,
        }
    }
    text.truncate(length);
    String::from_utf8_lossy(&text).into_owned()
}

/// What the kernel counts, in pages and bytes.
struct Count {
    stolen: Option<u64>,
    file: u64,
    current: u64,
}

impl Count {
    /// Bytes that were reclaimed since.
    fn since(&self, before: &Count) -> u64 {
        match (before.stolen, self.stolen) {
            (Some(before), Some(after)) => after.saturating_sub(before).saturating_mul(PAGE_SIZE),
            _ => before.current.saturating_sub(self.current),
        }
    }
}

/// How one write ended.
enum Written {
    All,
    Short,
    Stopped,
}

fn run(shared: &Shared, files: &Files, order: Order, spare: Option<&Spare>) -> Result<Outcome> {
    let started = Instant::now();
    let armed = shared.interrupt.arm();
    let _armed = armed.map_err(Error::io("make a timer to stop reclaim of", &shared.name))?;
    let before = files.count();
    let bytes = order.bytes.div_ceil(PAGE_SIZE).saturating_mul(PAGE_SIZE);
    let mut short = false;
    let mut stopped = false;
    let mut step = |bytes: u64, which: &str| -> Result<()> {
        if bytes == 0 || stopped {
            return Ok(());
        }
        match write(shared, files, bytes, which)? {
            Written::All => short = false,
            Written::Short => short = true,
            Written::Stopped => stopped = true,
        }
        Ok(())
    };
    let mut left = bytes;
    if order.file_first {
        step(bytes.min(before.file), "0")?;
        left = bytes.saturating_sub(files.count().since(&before));
    }
    let mut taken = Taken::default();
    let reclaimed = match spare {
        None => {
            step(left, "max")?;
            files.count().since(&before)
        }
        Some(spare) => {
            // Before the rest: `memory.current` falls by that, too.
            let first = match order.file_first {
                true => files.count().since(&before),
                false => 0,
            };
            if !stopped {
                let stop = || shared.stop_time().is_some();
                taken = take(&*spare.processes, &spare.target, &spare.hot, left, &stop)?;
                short = taken.bytes < left && !taken.stopped;
                stopped = taken.stopped;
            }
            first.saturating_add(taken.bytes)
        }
    };
    let ended = Instant::now();
    let latency = shared.stop_time().filter(|_| stopped);
    Ok(Outcome {
        asked_bytes: bytes,
        reclaimed_bytes: reclaimed,
        sparing: spare.is_some(),
        spared_bytes: taken.spared,
        short,
        stopped,
        cpu: thread_cpu_time(thread_id()).unwrap_or_default(),
        elapsed: started.elapsed(),
        stop_latency: latency.map_or(Duration::ZERO, |at| ended.saturating_duration_since(at)),
    })
}

/// One write to `memory.reclaim`, of which a signal makes an end.
fn write(shared: &Shared, files: &Files, bytes: u64, swappiness: &str) -> Result<Written> {
    let text = format!("{bytes} swappiness={swappiness}");
    loop {
        if shared.stop_time().is_some() {
            return Ok(Written::Stopped);
        }
        match rustix::io::write(&files.reclaim, text.as_bytes()) {
            Ok(_) => return Ok(Written::All),
            Err(Errno::AGAIN) => return Ok(Written::Short),
            // Ours, or the freezer's, or a debugger's.
            Err(Errno::INTR) => {}
            // The cgroup was removed meanwhile.
            Err(Errno::NODEV) => return Ok(Written::Short),
            Err(Errno::INVAL) => {
                return Err(Error::Refused {
                    operation: "reclaim",
                    object: shared.name.clone(),
                    cause: Errno::INVAL.into(),
                    advice: format!(
                        "this kernel's memory.reclaim does not know swappiness={swappiness}"
                    ),
                })
            }
            Err(other) => {
                let path = format!("{}/memory.reclaim", shared.name);
                return Err(Error::io("write", &path)(other.into()));
            }
        }
    }
}
