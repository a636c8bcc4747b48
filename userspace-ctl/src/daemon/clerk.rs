// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What takes long, away from the event loop: one thread attaches and detaches, in the order of the
//! requests; each restore has a thread of its own, of which the governor bounds the number.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{channel, sync_channel, Receiver, Sender, SyncSender};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{eventfd, EventfdFlags};

use crate::attributes::Attributes;
use crate::cgroup::Selector;
use crate::commands::{ranges, sandbox};
use crate::error::{Error, Result};
use crate::governor::Id;
use crate::host::Machine;
use crate::restore;
use crate::sys::interrupt::{thread_cpu_time, thread_id};
use crate::{Context, Paths};

/// Orders that may wait.
const QUEUE: usize = 4096;

/// What is to be done.
#[derive(Clone, Debug)]
pub enum Order {
    /// Make a cgroup a sandbox.
    Attach {
        /// Its id.
        id: Id,
        /// Its directory.
        path: PathBuf,
        /// What it shall be.
        attributes: Attributes,
        /// It is one already, as something else.
        again: bool,
    },
    /// End new stores of one.
    Detach(Id),
}

/// What came of it.
#[derive(Debug)]
pub enum Report {
    /// Of [`Order::Attach`]: what stands in the way of a saving, or why it failed.
    Attached(Id, Result<Vec<String>>),
    /// Of [`Order::Detach`].
    Detached(Id, Result<()>),
    /// Of a restore, with the CPU time that it took.
    Restored(Id, Duration, Result<restore::Report>),
}

/// The threads, and the way back from them.
pub struct Clerk {
    paths: Paths,
    /// Until it is to end.
    orders: Option<SyncSender<Order>>,
    thread: Option<JoinHandle<()>>,
    ending: Arc<AtomicBool>,
    back: Back,
    reports: Receiver<Report>,
}

/// The way back: a channel, and a file descriptor that is readable when something is in it.
#[derive(Clone)]
struct Back {
    reports: Sender<Report>,
    bell: Arc<OwnedFd>,
}

impl Back {
    fn send(&self, report: Report) {
        // The daemon ends when nobody listens any more.
        if self.reports.send(report).is_ok() {
            let _ = rustix::io::write(&*self.bell, &1_u64.to_ne_bytes());
        }
    }
}

impl Clerk {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// When the kernel gives no thread or file descriptor.
    pub fn new(paths: &Paths) -> io::Result<Clerk> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (reports, receiver) = channel();
        let back = Back {
            reports,
            bell: Arc::new(bell),
        };
        let (orders, inbox) = sync_channel(QUEUE);
        let (own, place) = (back.clone(), paths.clone());
        let ending = Arc::new(AtomicBool::new(false));
        let ends = ending.clone();
        let thread = std::thread::Builder::new()
            .name("clerk".to_owned())
            .spawn(move || {
                for order in inbox {
                    let begins = matches!(order, Order::Attach { .. });
                    if !(begins && ends.load(Ordering::Relaxed)) {
                        // A new one each time: with the device held open the module could not be unloaded.
                        own.send(carry_out(&Context::new(&place), order));
                    }
                }
            })?;
        Ok(Clerk {
            paths: paths.clone(),
            orders: Some(orders),
            thread: Some(thread),
            ending,
            back,
            reports: receiver,
        })
    }

    /// Gives an order. False when there are too many.
    pub fn order(&self, order: Order) -> bool {
        let orders = self.orders.as_ref();
        orders.is_some_and(|orders| orders.try_send(order).is_ok())
    }

    /// Waits until the detachments that were ordered are done: nobody knows of them but we. Attachments
    /// that have not begun are left to the next daemon, which finds the xattrs.
    pub fn finish(&mut self) {
        self.ending.store(true, Ordering::Relaxed);
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            // It panicked: what it has not done stays undone.
            let _ = thread.join();
        }
    }

    /// Starts to bring the pages of a sandbox back, for as long as `wanted` says.
    ///
    /// # Errors
    ///
    /// When the kernel gives no thread.
    pub fn restore(&self, id: Id, path: PathBuf, wanted: Arc<AtomicBool>) -> io::Result<()> {
        let (back, paths) = (self.back.clone(), self.paths.clone());
        std::thread::Builder::new()
            .name("restore".to_owned())
            .spawn(move || {
                let context = Context::new(&paths);
                let wanted = || wanted.load(Ordering::Relaxed);
                let report = same_cgroup(&context, &path, id).and_then(|cgroup| {
                    restore::restore_while(&context.procfs, &Machine, &cgroup, &wanted)
                });
                let cpu = thread_cpu_time(thread_id()).unwrap_or_default();
                back.send(Report::Restored(id, cpu, report));
            })?;
        Ok(())
    }

    /// What came of orders, without waiting.
    pub fn reports(&self) -> Vec<Report> {
        let mut count = [0; 8];
        let _ = rustix::io::read(&*self.back.bell, &mut count);
        self.reports.try_iter().collect()
    }
}

impl AsFd for Clerk {
    /// Readable when [`Clerk::reports`] has something to tell.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.back.bell.as_fd()
    }
}

/// The cgroup at a path, if it is still the same one.
fn same_cgroup(context: &Context, path: &std::path::Path, id: Id) -> Result<crate::cgroup::Cgroup> {
    let cgroup = context.cgroups.open(path)?;
    match cgroup.id() == id {
        true => Ok(cgroup),
        false => Err(Error::invalid(
            path.display().to_string(),
            "no such cgroup any more: another one has its place",
        )),
    }
}

fn carry_out(context: &Context, order: Order) -> Report {
    match order {
        Order::Attach {
            id,
            path,
            attributes,
            again,
        } => {
            if again {
                let _ = sandbox::detach(context, &Selector::Id(id));
            }
            Report::Attached(id, attach(context, id, &path, &attributes))
        }
        Order::Detach(id) => {
            let detached = sandbox::detach(context, &Selector::Id(id));
            Report::Detached(id, detached.map(|_| ()))
        }
    }
}

fn attach(
    context: &Context,
    id: Id,
    path: &std::path::Path,
    attributes: &Attributes,
) -> Result<Vec<String>> {
    same_cgroup(context, path, id)?;
    let Some(template) = &attributes.template else {
        let problem = "no template is named; set user.agentzip.template";
        return Err(Error::invalid(path.display().to_string(), problem));
    };
    let request = sandbox::Request {
        cgroup: path,
        template,
        group: attributes.group.as_ref(),
        domain: attributes.domain.as_ref(),
        sensitive: attributes.sensitive,
        max_bytes: None,
        signature: None,
        ranges: ranges::Request::default(),
    };
    let attached = sandbox::attach(context, &request)?;
    if attached.cgroup_id != id {
        // Someone made another cgroup in its place in between, which nobody asked about.
        let _ = sandbox::detach(context, &Selector::Id(attached.cgroup_id));
        return same_cgroup(context, path, id).map(|_| Vec::new());
    }
    Ok(attached.warnings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detachments_are_done_before_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths {
            device: dir.path().join("device"),
            ..Paths::default()
        };
        let mut clerk = Clerk::new(&paths).unwrap();
        for id in 0..100 {
            assert!(clerk.order(Order::Detach(id)));
        }
        clerk.finish();
        let reports = clerk.reports();
        assert_eq!(reports.len(), 100);
        // There is no device.
        assert!(reports
            .iter()
            .all(|report| matches!(report, Report::Detached(_, Err(_)))));
        assert!(!clerk.order(Order::Detach(1)));
    }
}
