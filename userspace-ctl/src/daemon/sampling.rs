// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The thread that samples hot pages, away from the event loop: clearing the bits of a process takes the
//! lock of its memory, and may wait for that. It is there only while `encode.hot_skip` is on.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{channel, sync_channel, Receiver, SyncSender};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{eventfd, EventfdFlags};
use tracing::{debug, info};

use super::totals::micros;
use super::Daemon;
use crate::cgroup::Hierarchy;
use crate::governor::{Id, Input};
use crate::hot::process::{probe, Live, Processes};
use crate::hot::sampler::{Round, Sampler, Seen};
use crate::hot::{HotSet, Target};
use crate::lifecycle::Time;
use crate::sys::interrupt::{thread_cpu_time, thread_id};
use crate::worker::Spare;
use crate::Paths;

/// The thread, and the way back from it.
pub struct Sampling {
    processes: Arc<dyn Processes>,
    rounds: SyncSender<Round>,
    seen: Receiver<(Seen, Duration)>,
    bell: Arc<OwnedFd>,
    /// A round is under way.
    busy: bool,
}

impl Sampling {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// When the kernel gives no thread or file descriptor.
    pub fn start(processes: Arc<dyn Processes>) -> io::Result<Sampling> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let bell = Arc::new(eventfd(0, flags)?);
        let (rounds, inbox) = sync_channel::<Round>(1);
        let (back, seen) = channel();
        let (own_bell, own) = (bell.clone(), processes.clone());
        std::thread::Builder::new()
            .name("sample".to_owned())
            .spawn(move || {
                let began = Instant::now();
                let spent = || thread_cpu_time(thread_id()).unwrap_or_default();
                let mut sampler = Sampler::default();
                for round in inbox {
                    let before = spent();
                    let seen = sampler.round(&*own, &round, began.elapsed(), &spent);
                    // Nobody listens any more when it was switched off.
                    if back.send((seen, spent().saturating_sub(before))).is_err() {
                        break;
                    }
                    let _ = rustix::io::write(&*own_bell, &1_u64.to_ne_bytes());
                }
            })?;
        Ok(Sampling {
            processes,
            rounds,
            seen,
            bell,
            busy: false,
        })
    }

    /// Starts a round, unless the last one is not over yet.
    pub fn round(&mut self, round: Round) {
        if !self.busy {
            self.busy = self.rounds.try_send(round).is_ok();
        }
    }

    /// A round is under way.
    pub fn is_busy(&self) -> bool {
        self.busy
    }

    /// What the last round came to, and the CPU time that it took, without waiting.
    pub fn seen(&mut self) -> Option<(Seen, Duration)> {
        let mut count = [0; 8];
        let _ = rustix::io::read(&*self.bell, &mut count);
        let seen = self.seen.try_recv().ok();
        self.busy &= seen.is_none();
        seen
    }
}

impl AsFd for Sampling {
    /// Readable when [`Sampling::seen`] has something to tell.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

impl Daemon {
    /// Begins or ends to sample, as the configuration says.
    pub(super) fn set_sampling(&mut self) {
        match (self.governor.config().encode.hot_skip, &self.sampling) {
            (true, None) => match start(&self.options.paths, &self.hierarchy) {
                Ok(sampling) => {
                    info!("samples hot pages");
                    self.sampling = Some(sampling);
                }
                Err(problem) => self.warn("hot_skip", &problem),
            },
            (false, Some(_)) => {
                self.sampling = None;
                for entry in self.entries.values_mut() {
                    entry.hot = Arc::default();
                }
            }
            _ => {}
        }
    }

    /// When the next round of samples is due.
    pub(super) fn next_hot_round(&self) -> Option<Time> {
        // While one is under way its end wakes us.
        let idle = self.sampling.as_ref().is_some_and(|it| !it.is_busy());
        idle.then(|| self.governor.next_hot_round()).flatten()
    }

    /// Starts a round of samples that is due.
    pub(super) fn sample_hot(&mut self) {
        let now = self.now();
        let Some(due) = self.governor.hot_round(now) else {
            return;
        };
        let targets = due.ids.iter().filter_map(|id| self.target(*id)).collect();
        if let Some(sampling) = &mut self.sampling {
            sampling.round(Round {
                targets,
                measure: due.measure,
                every: due.every,
                allowance: due.allowance,
            });
        }
    }

    /// Takes what a round came to.
    pub(super) fn take_samples(&mut self) {
        let Some((seen, cpu)) = self.sampling.as_mut().and_then(Sampling::seen) else {
            return;
        };
        debug!(
            sandboxes = seen.hot.len(),
            processes = seen.processes,
            left_out = seen.left_out,
            cpu_us = micros(cpu),
            "sampled"
        );
        self.totals.hot_round(cpu);
        if let Some(problem) = seen.problem {
            self.warn("hot_skip", &problem.to_string());
        }
        for (id, hot) in seen.hot {
            if let Some(entry) = self.entries.get_mut(&id) {
                entry.hot = Arc::new(hot);
            }
        }
        self.feed(Input::HotSampled(cpu));
    }

    /// What a job of this sandbox leaves where it is; `None` when nothing is hot, or all is to go.
    pub(super) fn spare(&self, id: Id) -> Option<Spare> {
        let sampling = self.sampling.as_ref()?;
        let hot: Arc<HotSet> = self.entries.get(&id)?.hot.clone();
        if hot.is_empty() || !self.governor.spares_hot(id) {
            return None;
        }
        Some(Spare {
            processes: sampling.processes.clone(),
            target: self.target(id)?,
            hot,
        })
    }

    /// The next job of this sandbox spares nothing, until it is sampled again. False when none did.
    pub(super) fn forget_hot(&mut self, id: Id) -> bool {
        let entry = self.entries.get_mut(&id);
        entry.is_some_and(|entry| !std::mem::take(&mut entry.hot).is_empty())
    }

    pub(super) fn target(&self, id: Id) -> Option<Target> {
        let directory = &self.entries.get(&id)?.directory;
        Some(Target {
            id,
            path: self.path(directory.inside()),
            name: directory.name(),
        })
    }
}

fn start(paths: &Paths, cgroups: &Hierarchy) -> Result<Sampling, String> {
    probe(&paths.proc).map_err(|error| error.to_string())?;
    let live = Live::new(paths.proc.clone(), cgroups.clone());
    Sampling::start(Arc::new(live))
        .map_err(|error| format!("cannot start the thread that samples hot pages: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hot::fake::Fake;
    use crate::hot::window::Measure;
    use rustix::event::{poll, PollFd, PollFlags, Timespec};

    fn wait(sampling: &Sampling) {
        let patience = Timespec {
            tv_sec: 20,
            tv_nsec: 0,
        };
        let mut fds = [PollFd::new(sampling, PollFlags::IN)];
        assert_eq!(poll(&mut fds, Some(&patience)), Ok(1));
    }

    #[test]
    fn rounds_on_the_thread() {
        let fake = Arc::new(Fake::default());
        fake.start(1, 10, 0..100);
        let mut sampling = Sampling::start(fake.clone()).unwrap();
        let every = Duration::from_secs(60);
        let round = Round {
            targets: vec![Fake::target(1)],
            measure: Measure::new(every * 2, every),
            every,
            allowance: every,
        };
        for number in 0..3 {
            fake.write(10, [7]);
            assert!(!sampling.is_busy() && sampling.seen().is_none());
            sampling.round(round.clone());
            assert!(sampling.is_busy());
            // Not while one is under way.
            sampling.round(round.clone());
            wait(&sampling);
            let (seen, _) = sampling.seen().unwrap();
            assert_eq!(seen.hot[0].1.is_empty(), number < 2);
        }
        assert_eq!(fake.cleared(10), 3);
    }
}
