// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What the next tool needs comes back before it asks: a thread of its own, so that the event loop never
//! waits for it.
//!
//! It reads the faults that the module records of each sandbox, teaches them to the
//! [`Learner`](crate::predict::Learner), and when the governor says so has pages restored by a plan. What
//! it knows dies with it; a new one learns anew, and throws away what it finds in the rings, as it cannot
//! know to which turns that belongs.
//!
//! A mistake in any of this restores a page too many or too few. It changes no memory.

pub mod core;
#[cfg(test)]
mod fake;
mod planning;
pub mod plans;
pub mod progress;
pub mod sandbox;
pub mod settings;
pub mod shown;
pub mod states;
pub mod table;
#[cfg(test)]
mod tests;
pub mod traces;
mod turns;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{eventfd, poll, EventfdFlags, PollFd, PollFlags, Timespec};

use self::core::{Core, Tools};
use self::plans::Plans;
use self::settings::Settings;
use self::shown::Board;
use crate::device::KernelDevice;
use crate::governor::Id;
use crate::hint::Hint;
use crate::hot::process::Processes;
use crate::hot::Target;
use crate::predict::{Change, Trigger};
use crate::protocol::Response;
use crate::socket::Token;
use crate::sys::interrupt::{thread_cpu_time, thread_id};
use crate::sysfs::Sysfs;
use crate::{yields, ObjectName, Paths};

/// CPU time of this thread from which on it is told of: not of every wake.
const LEAST_CHARGE: Duration = Duration::from_millis(1);

/// What is to be done.
#[derive(Clone, Debug)]
pub enum Order {
    /// The module has a sandbox: record its faults.
    Attach(Target, ObjectName),
    /// It is none any more.
    Detach(Id),
    /// Its runtime says what it does. Of `llm-wait` comes a [`Report::Looked`].
    Hint(Id, Hint),
    /// Pages of it are to come back, for this reason; ends with [`Report::Restored`], or
    /// [`Report::Unable`].
    Restore(Id, Trigger, Depth),
    /// End that at once.
    End(Id),
    /// Pages of it are being taken out.
    Taken(Id),
    /// The settings are others now.
    Settings(Box<Settings>),
    /// What was learned is asked for, or given. Ends with [`Report::Answer`].
    Plans(Token, Plans),
}

/// How much is to come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// What is expected to be touched.
    Plan,
    /// That first, then what else there is, as far as there is time.
    Everything,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq)]
pub enum Report {
    /// The plan was carried out, or dropped.
    Restored(Id),
    /// There is no plan: the module cannot, or nothing is known of the sandbox.
    Unable(Id, Trigger),
    /// What was accessed is known: its pages may be taken out.
    Looked(Id),
    /// The restore workers, or this thread, took so much CPU time.
    Spent(Duration),
    /// How far compression may go.
    Scope(f64),
    /// Something became worse than it used to be, or well again.
    Alarm(Change),
    /// The answer to a client.
    Answer(Token, Response),
}

/// The thread, and the way to it and back.
pub struct Restorer {
    orders: Sender<Order>,
    /// Tells it that there are orders.
    call: Arc<OwnedFd>,
    reports: Receiver<Report>,
    bell: Arc<OwnedFd>,
    board: Arc<Mutex<Board>>,
    thread: Option<JoinHandle<()>>,
}

impl Restorer {
    /// Starts the thread. It ends when this goes.
    ///
    /// # Errors
    ///
    /// When the kernel gives no thread or file descriptor.
    pub fn start(
        paths: &Paths,
        processes: Arc<dyn Processes>,
        settings: Settings,
    ) -> io::Result<Restorer> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let (call, bell) = (Arc::new(eventfd(0, flags)?), Arc::new(eventfd(0, flags)?));
        let (orders, inbox) = channel();
        let (back, reports) = channel();
        let board = Arc::new(Mutex::new(Board::default()));
        let mut thread = Thread {
            core: Core::new(settings),
            paths: paths.clone(),
            sysfs: Sysfs::new(paths.sysfs.clone()),
            processes,
            inbox,
            call: call.clone(),
            back,
            bell: bell.clone(),
            board: board.clone(),
            charged: Duration::ZERO,
        };
        let thread = std::thread::Builder::new()
            .name("restorer".to_owned())
            .spawn(move || {
                yields::now();
                while thread.turn() {}
            })?;
        Ok(Restorer {
            orders,
            call,
            reports,
            bell,
            board,
            thread: Some(thread),
        })
    }

    /// Gives an order; never waits.
    pub fn order(&self, order: Order) {
        // It ends only when we do.
        let _ = self.orders.send(order);
        let _ = rustix::io::write(&*self.call, &1_u64.to_ne_bytes());
    }

    /// What came of orders, without waiting.
    pub fn reports(&self) -> Vec<Report> {
        let _ = rustix::io::read(&*self.bell, &mut [0; 8]);
        self.reports.try_iter().collect()
    }

    /// Has all rings given back and waits for the end, which is a matter of milliseconds.
    pub fn finish(mut self, settings: Settings) {
        let plans = false;
        self.order(Order::Settings(Box::new(Settings { plans, ..settings })));
        let thread = self.thread.take();
        drop(self);
        if let Some(thread) = thread {
            // It panicked: the next daemon takes the rings.
            let _ = thread.join();
        }
    }

    /// What there is to show, as of the end of the thread's last turn.
    pub fn board(&self) -> Board {
        let board = self.board.lock().unwrap_or_else(PoisonError::into_inner);
        board.clone()
    }
}

impl AsFd for Restorer {
    /// Readable when [`Restorer::reports`] has something to tell.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

impl Drop for Restorer {
    fn drop(&mut self) {
        // It sees that nobody gives orders any more.
        self.orders = channel().0;
        let _ = rustix::io::write(&*self.call, &1_u64.to_ne_bytes());
    }
}

struct Thread {
    core: Core,
    paths: Paths,
    sysfs: Sysfs,
    processes: Arc<dyn Processes>,
    inbox: Receiver<Order>,
    call: Arc<OwnedFd>,
    back: Sender<Report>,
    bell: Arc<OwnedFd>,
    board: Arc<Mutex<Board>>,
    /// CPU time of this thread that was told of.
    charged: Duration,
}

impl Thread {
    /// Waits for something to do, and does it. False: nobody gives orders any more.
    fn turn(&mut self) -> bool {
        let ready = self.wait();
        // A new one each time: with the device held open the module could not be unloaded.
        let device = KernelDevice::new(self.paths.device.clone());
        let tools = Tools {
            device: &device,
            processes: &*self.processes,
            sysfs: &self.sysfs,
            clock: &monotonic,
        };
        let core = &mut self.core;
        loop {
            match self.inbox.try_recv() {
                Ok(order) => core.order(tools, order),
                Err(std::sync::mpsc::TryRecvError::Empty) => break,
                Err(std::sync::mpsc::TryRecvError::Disconnected) => return false,
            }
            send(core.reports(), &self.back, &self.bell);
        }
        for id in ready {
            core.ring(tools, id);
        }
        core.keep_time(tools);
        send(core.reports(), &self.back, &self.bell);
        core.show(&mut self.board.lock().unwrap_or_else(PoisonError::into_inner));
        self.charge();
        true
    }

    /// What was learned and planned costs CPU time like what is restored.
    fn charge(&mut self) {
        let now = thread_cpu_time(thread_id()).unwrap_or(self.charged);
        let spent = now.saturating_sub(self.charged);
        if spent >= LEAST_CHARGE {
            self.charged = now;
            send(vec![Report::Spent(spent)], &self.back, &self.bell);
        }
    }

    /// Waits for orders, rings and the clock; returns whose ring is half full.
    fn wait(&self) -> Vec<Id> {
        let timeout = self.core.next().map(|at| {
            let left = at.saturating_sub(monotonic());
            Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: left.subsec_nanos().into(),
            }
        });
        let rings: Vec<(Id, &OwnedFd)> = self.core.bells().collect();
        let mut fds = vec![PollFd::new(&*self.call, PollFlags::IN)];
        fds.extend(rings.iter().map(|(_, fd)| PollFd::new(*fd, PollFlags::IN)));
        if poll(&mut fds, timeout.as_ref()).is_err() {
            // A signal, or no memory: the clock tells what to do.
            return Vec::new();
        }
        let _ = rustix::io::read(&*self.call, &mut [0; 8]);
        let ready = fds.iter().skip(1).map(|fd| !fd.revents().is_empty());
        rings
            .iter()
            .zip(ready)
            .filter_map(|((id, _), ready)| ready.then_some(*id))
            .collect()
    }
}

fn send(reports: Vec<Report>, back: &Sender<Report>, bell: &OwnedFd) {
    if reports.is_empty() {
        return;
    }
    for report in reports {
        // The daemon ends when nobody listens any more.
        let _ = back.send(report);
    }
    let _ = rustix::io::write(bell, &1_u64.to_ne_bytes());
}

/// The clock of the module's records.
pub fn monotonic() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or(0),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    )
}
