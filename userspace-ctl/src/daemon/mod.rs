// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `agentzip daemon`: one thread that waits for hints by xattr and by socket, for jobs, orders and
//! signals, and for the time that the [`crate::governor`] named; and does what that says.
//!
//! Nothing in the loop waits: reclaim runs in jobs ([`crate::worker`]), attachments and restores with
//! the [`clerk`], samples of hot pages, where they are wanted, in a thread of their own (`sampling`). What is left are short reads and writes of the kernel's files. While all sandboxes
//! are idle the daemon wakes once in each `schedule.period` and reads one small file of each.
//!
//! It may be killed at any time. Its jobs die with it, as they are its threads. What it holds is noted
//! on the cgroups ([`mark`]), and what it knows is with the module and in the xattrs; the next one begins
//! with that.

pub mod clerk;
mod entry;
pub mod files;
pub mod holders;
pub mod limit;
mod manage;
pub mod mark;
pub mod notify;
mod obey;
mod restoring;
mod sampling;
mod serve;
pub mod totals;

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use tracing::{error, info, warn};

pub use entry::Listed;

use self::clerk::Clerk;
use self::entry::Entry;
use self::files::MemInfo;
use self::holders::Holders;
use self::limit::LogLimit;
use self::notify::Notify;
use self::restoring::Restoring;
use self::sampling::Sampling;
use self::totals::Totals;
use crate::authority::{Authority, Uid};
use crate::cgroup::Hierarchy;
use crate::config::Config;
use crate::directory::Mount;
use crate::error::{Error, Result};
use crate::governor::{Governor, Id, Input};
use crate::lifecycle::Time;
use crate::procfs::Procfs;
use crate::protocol::{Event, Happening};
use crate::socket::Server;
use crate::sys::signals::{Signal, Signals};
use crate::sysfs::Sysfs;
use crate::watch::Watcher;
use crate::worker::Job;
use crate::Paths;

/// Numbers of the host's memory that are older are read anew before anything is decided.
const FRESH: Duration = Duration::from_millis(200);

/// How the daemon is started.
#[derive(Clone, Debug)]
pub struct Options {
    /// The configuration file; [`crate::config::PATH`], or every default, when `None`.
    pub config: Option<PathBuf>,
    /// Where things are.
    pub paths: Paths,
}

/// The daemon.
pub struct Daemon {
    options: Options,
    began: Instant,
    mount: Arc<Mount>,
    hierarchy: Hierarchy,
    sysfs: Sysfs,
    meminfo: MemInfo,
    authority: Authority,
    watcher: Watcher,
    server: Server,
    signals: Signals,
    clerk: Clerk,
    notify: Notify,
    governor: Governor,
    inbox: VecDeque<Input>,
    entries: BTreeMap<Id, Entry>,
    jobs: BTreeMap<Id, Job>,
    /// Orders to detach that the clerk has, for each sandbox.
    leaving: BTreeMap<Id, usize>,
    /// What the module has and is nowhere in the tree, as of when.
    strays: BTreeMap<Id, Time>,
    /// Only while `encode.hot_skip` is on.
    sampling: Option<Sampling>,
    /// Restores that run; false: not wanted any more.
    restores: BTreeMap<Id, Arc<AtomicBool>>,
    restoring: Restoring,
    holders: Holders,
    totals: Totals,
    /// The module is loaded.
    module: bool,
    /// The share of the second look before the daemon began.
    second_look: Option<u64>,
    log: LogLimit,
    memory_at: Option<Time>,
    alive_at: Time,
    /// When the governor wanted to be called, as of when the loop began to wait: at that time it may see
    /// nothing to wait for any more.
    timer: Option<Time>,
}

/// What woke the loop.
struct Ready {
    signals: bool,
    server: bool,
    watcher: bool,
    clerk: bool,
    sampling: bool,
    restorer: bool,
    jobs: Vec<Id>,
}

/// Runs the daemon until it is told to end.
///
/// # Errors
///
/// When it cannot begin: the configuration is wrong, another daemon listens on the socket, or there is no
/// cgroup tree.
pub fn run(options: Options) -> Result<()> {
    // Before any thread is there.
    let signals = Signals::take().map_err(Error::io("take signals for", "the daemon"))?;
    let config = Config::load(options.config.as_deref())
        .map_err(|problem| Error::invalid("configuration", problem.to_string()))?;
    raise_file_limit();
    let mut daemon = Daemon::new(options, config, signals)?;
    daemon.begin();
    let outcome = daemon.wait_and_work();
    daemon.end();
    outcome
}

impl Daemon {
    fn new(options: Options, config: Config, signals: Signals) -> Result<Daemon> {
        let paths = &options.paths;
        let procfs = Procfs::new(paths.proc.clone());
        let root = paths
            .cgroup_root
            .clone()
            .or_else(|| procfs.cgroup2_mount())
            .unwrap_or_else(|| "/sys/fs/cgroup".into());
        let mount = Arc::new(Mount::open(&root)?);
        let authority = Authority::new(&config.tenants, &root)?;
        let watcher = Watcher::new(mount.clone(), &config.watch)?;
        let server = Server::new(&config.socket.settings())?;
        let failed = |what: &'static str| Error::io("start", what);
        let clerk = Clerk::new(paths).map_err(failed("the clerk"))?;
        let meminfo =
            MemInfo::open(&paths.proc).map_err(Error::io("open", &paths.proc.join("meminfo")))?;
        let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get());
        let sysfs = Sysfs::new(paths.sysfs.clone());
        let module = sysfs.is_there();
        Ok(Daemon {
            began: Instant::now(),
            hierarchy: Hierarchy::new(root),
            mount,
            sysfs,
            meminfo,
            authority,
            watcher,
            server,
            signals,
            clerk,
            notify: Notify::from_environment(),
            governor: Governor::new(config, cpus, Duration::ZERO),
            inbox: VecDeque::new(),
            entries: BTreeMap::new(),
            jobs: BTreeMap::new(),
            leaving: BTreeMap::new(),
            strays: BTreeMap::new(),
            sampling: None,
            restores: BTreeMap::new(),
            restoring: Restoring::default(),
            holders: Holders::default(),
            totals: Totals::default(),
            module,
            second_look: None,
            log: LogLimit::default(),
            memory_at: None,
            alive_at: Duration::ZERO,
            timer: None,
            options,
        })
    }

    /// Time since the daemon began, by a clock that does not jump.
    fn now(&self) -> Time {
        self.began.elapsed()
    }

    fn begin(&mut self) {
        self.second_look = self.sysfs.second_look_percent().ok();
        self.read_memory();
        self.free_what_was_left();
        // The module knows the phases of before; what was told meanwhile stands in the trees.
        self.governor.hold_still(true);
        self.adopt_all();
        self.look_at_trees();
        self.apply_settings();
        self.governor.hold_still(false);
        self.feed(Input::Clock);
        let config = self.governor.config();
        info!(
            sandboxes = self.entries.len(),
            module = self.module,
            socket = %config.socket.path.display(),
            took_ms = self.began.elapsed().as_millis() as u64,
            "ready"
        );
        self.report_module();
        self.notify.ready();
        self.report_status();
    }

    fn report_module(&mut self) {
        match (self.module, self.sysfs.module()) {
            (false, _) => info!(
                "no module: what is taken out goes to the host's own swap, zswap or zram; \
                 hints and scheduling are the same"
            ),
            (true, Ok(state)) if !state.armed => {
                warn!("the module is not armed, so it stores nothing; fix: agentzip arm");
            }
            (true, Ok(_)) => {}
            (true, Err(error)) => warn!("{error}"),
        }
    }

    /// What the configuration says about module and holders.
    fn apply_settings(&mut self) {
        self.set_sampling();
        self.set_restorer();
        let config = self.governor.config();
        for problem in self.holders.set(&self.mount, &config.holders) {
            warn!("{problem}");
        }
        if !self.module {
            return;
        }
        let distance = config.encode.max_template_distance.get() * 100.0;
        let total = self.governor.overview().memory.total;
        let results = [
            self.sysfs.set_max_distance(distance.round() as u32),
            self.sysfs.set_store_limit(config.store_limit(total)),
        ];
        for error in results.into_iter().filter_map(Result::err) {
            warn!("{error}");
        }
    }

    fn wait_and_work(&mut self) -> Result<()> {
        loop {
            let ready = self.wait()?;
            // Hints first: what they stop is to stop at once.
            if ready.watcher {
                self.read_changes();
            }
            if ready.server {
                self.serve();
            }
            // Before anything else is decided; a hint that came has seen to that by itself.
            self.refresh_memory();
            for id in ready.jobs {
                self.job_ended(id);
            }
            if ready.clerk {
                self.take_reports();
            }
            if ready.sampling {
                self.take_samples();
            }
            if ready.restorer {
                self.take_restores();
            }
            if ready.signals && !self.take_signals() {
                return Ok(());
            }
            self.keep_time();
        }
    }

    /// Waits until something is to be done.
    fn wait(&mut self) -> Result<Ready> {
        let now = self.now();
        self.timer = self.governor.next_timer(now);
        let mut until = self.governor.next_round();
        let times = [
            self.timer,
            self.watchdog(),
            self.next_hot_round(),
            self.restoring.next(),
        ];
        for time in times.into_iter().flatten() {
            until = until.min(time);
        }
        let left = until.saturating_sub(now);
        let timeout = Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        };
        let ids: Vec<Id> = self.jobs.keys().copied().collect();
        let others = [
            self.signals.as_fd(),
            self.server.as_fd(),
            self.watcher.as_fd(),
            self.clerk.as_fd(),
        ];
        let mut fds: Vec<PollFd<'_>> = others
            .into_iter()
            .chain(self.jobs.values().map(|job| job.as_fd()))
            .chain(self.sampling.as_ref().map(|sampling| sampling.as_fd()))
            .chain(self.restoring.restorer().map(|restorer| restorer.as_fd()))
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(Error::io("wait for", "events")(errno.into())),
        }
        let is_ready = |index: usize| fds.get(index).is_some_and(|fd| !fd.revents().is_empty());
        let sampling = others.len() + self.jobs.len();
        let restorer = sampling + usize::from(self.sampling.is_some());
        Ok(Ready {
            signals: is_ready(0),
            server: is_ready(1),
            watcher: is_ready(2),
            clerk: is_ready(3),
            sampling: self.sampling.is_some() && is_ready(sampling),
            restorer: is_ready(restorer),
            jobs: ids
                .into_iter()
                .enumerate()
                .filter(|(index, _)| is_ready(others.len() + index))
                .map(|(_, id)| id)
                .collect(),
        })
    }

    /// When the watchdog wants to hear of us.
    fn watchdog(&self) -> Option<Time> {
        let every = self.notify.watchdog()?;
        Some(self.alive_at.saturating_add(every))
    }

    /// What is due by the clock.
    fn keep_time(&mut self) {
        let now = self.now();
        if self.watchdog().is_some_and(|due| now >= due) {
            self.notify.alive();
            self.alive_at = now;
        }
        if self.next_hot_round().is_some_and(|due| now >= due) {
            self.sample_hot();
        }
        self.start_held();
        if now >= self.governor.next_round() {
            self.round();
        } else if self.timer.is_some_and(|due| now >= due) {
            self.feed(Input::Clock);
        }
    }

    /// Gives the governor something, does what it says, and gives it what comes of that.
    fn feed(&mut self, input: Input) {
        self.inbox.push_back(input);
        while let Some(input) = self.inbox.pop_front() {
            let now = self.now();
            self.governor.handle(input, now);
            for effect in self.governor.effects() {
                self.obey(effect);
            }
        }
    }

    /// Reads the host's memory again unless it was read a moment ago.
    fn refresh_memory(&mut self) {
        let now = self.now();
        if self
            .memory_at
            .is_none_or(|at| now.saturating_sub(at) >= FRESH)
        {
            self.read_memory();
        }
    }

    fn read_memory(&mut self) {
        let now = self.now();
        match self.meminfo.read() {
            Ok(memory) => {
                self.memory_at = Some(now);
                self.feed(Input::Memory(memory));
            }
            Err(error) => {
                if self.log.allow("meminfo", now).is_some() {
                    error!("cannot read /proc/meminfo: {error}; the pressure path stands still");
                }
            }
        }
    }

    /// False when the daemon shall end.
    fn take_signals(&mut self) -> bool {
        while let Some(signal) = self.signals.next() {
            match signal {
                Signal::Reload => self.reload(),
                Signal::End => {
                    info!("told to end");
                    return false;
                }
            }
        }
        true
    }

    fn reload(&mut self) {
        self.notify.reloading(since_boot());
        let error = self.try_reload().err().map(|error| error.to_string());
        match &error {
            None => info!("configuration read again"),
            Some(problem) => error!("the former configuration stays: {problem}"),
        }
        self.publish(Uid::ROOT, Happening::Reloaded { error });
        self.notify.ready();
    }

    /// All or nothing: what can fail is done before anything is changed.
    fn try_reload(&mut self) -> Result<()> {
        let config = Config::load(self.options.config.as_deref())
            .map_err(|problem| Error::invalid("configuration", problem.to_string()))?;
        let authority = Authority::new(&config.tenants, self.mount.path())?;
        let old = self.governor.config();
        if config.socket != old.socket {
            return Err(Error::invalid(
                "socket",
                "its settings take effect with a restart of the daemon only",
            ));
        }
        let moved = config.watch != old.watch;
        if moved {
            self.watcher = Watcher::new(self.mount.clone(), &config.watch)?;
        }
        self.authority = authority;
        self.feed(Input::Config(Box::new(config)));
        let seen = self.look_at_trees();
        if moved {
            self.drop_unseen(&seen);
        }
        self.apply_settings();
        Ok(())
    }

    fn publish(&mut self, owner: Uid, happening: Happening) {
        self.server.publish(&Event::now(owner, happening));
    }

    fn report_status(&mut self) {
        let counts = self.governor.overview().counts;
        let [running, cooling, compressed, resuming, _] = counts.states;
        self.notify.status(format!(
            "{} sandboxes: {running} running, {cooling} cooling, {compressed} compressed, {resuming} resuming, \
             {} held",
            self.entries.len(),
            counts.held
        ));
    }

    /// Stops what runs and gives back what was taken.
    fn end(&mut self) {
        self.notify.stopping();
        self.jobs.values().for_each(Job::stop);
        let frozen: Vec<Id> = self
            .entries
            .iter()
            .filter(|(_, entry)| entry.frozen)
            .map(|(id, _)| *id)
            .collect();
        for id in frozen {
            self.thaw(id);
        }
        for problem in self.holders.give_all_back(&self.mount) {
            warn!("{problem}");
        }
        if let Some(percent) = self.second_look {
            let percent = u32::try_from(percent).unwrap_or(100);
            let _ = self.sysfs.set_second_look_percent(percent);
        }
        for (_, job) in std::mem::take(&mut self.jobs) {
            // Within two batches of the kernel, or when it has aged the pages.
            let _ = job.finish();
        }
        self.end_restorer();
        self.clerk.finish();
        info!("ended");
    }

    /// Where a sandbox's directory is in the file system.
    fn path(&self, inside: &Path) -> PathBuf {
        self.mount.path().join(inside)
    }
}

/// Two hundred sandboxes have more files open than the usual soft limit allows. When the hard one is
/// as low, sandboxes are refused one by one, with that reason.
fn raise_file_limit() {
    use rustix::process::{getrlimit, setrlimit, Resource};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(errno) = setrlimit(Resource::Nofile, limit) {
        warn!("cannot raise the limit of open files: {errno}");
    }
}

/// The kernel's monotonic clock.
fn since_boot() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or(0),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    )
}
