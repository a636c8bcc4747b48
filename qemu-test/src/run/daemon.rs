// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The controller's daemon, told by xattrs what agents do, as an agent runtime would.
//!
//! Nothing is asked of it but by xattr; its socket is used to see how far it is.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use agentzip_ctl::client::Client;
use agentzip_ctl::protocol::Happening;
use anyhow::{bail, ensure, Context, Result};
use rustix::process::{kill_process, Pid, Signal};
use serde::Deserialize;

use super::cgroup::{self, Cgroup, LEAST_GAIN};

/// Where it listens.
const SOCKET: &str = "/run/agentzip-demo.sock";
/// Its configuration.
const CONFIG: &str = "/run/agentzip-demo.toml";
/// Its log.
const LOG: &str = "agentzip-daemon.log";
/// How long it may take to begin, to attach and to end.
const PATIENCE: Duration = Duration::from_secs(60);
/// Longest time in which all that sandboxes own is to be out.
const LIMIT: Duration = Duration::from_secs(8 * 60);
/// Pause between two looks: each takes CPU time of the daemon.
const POLL: Duration = Duration::from_millis(500);
/// Looks in a row that must find nothing more going out.
const QUIET: u32 = 2;

/// How the daemon is set up.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How many times slower than on hardware everything is.
    pub time_scale: f64,
    /// What is brought back before it is touched.
    pub restore: Restore,
    /// The CPU budget of compression and restore, in percent of all cores.
    pub cpu_budget: u32,
    /// With plans: what sandboxes touch is written as traces, to the log's folder.
    pub trace: bool,
}

/// What the daemon brings back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restore {
    /// Nothing.
    Nothing,
    /// Everything, on first-token.
    Everything,
    /// What these predictors expect to be touched.
    Planned(Predictors),
    /// The daemon's default: that by all predictors, on first-token then everything else.
    Default,
}

/// Which predictors are switched on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Predictors {
    /// Sequential and strided runs.
    pub sequential: bool,
    /// What followed what.
    pub transitions: bool,
    /// What tools of that name touched.
    pub working_set: bool,
    /// What was accessed last before the wait.
    pub access_bitmap: bool,
}

impl Predictors {
    /// None.
    pub const NONE: Self = Self {
        sequential: false,
        transitions: false,
        working_set: false,
        access_bitmap: false,
    };
    /// All, the daemon's default.
    pub const ALL: Self = Self {
        sequential: true,
        transitions: true,
        working_set: true,
        access_bitmap: true,
    };
}

/// A running daemon. Dropping it kills it.
pub struct Daemon {
    process: Child,
    client: Mutex<Client>,
    jobs: Arc<Mutex<Vec<Taken>>>,
    events: Option<JoinHandle<()>>,
    expect: Duration,
}

/// A reclaim job that has ended.
#[derive(Clone, Copy, Debug)]
pub struct Taken {
    /// Bytes that it took.
    pub bytes: u64,
    /// CPU time of its worker.
    pub cpu: Duration,
}

/// A sandbox as the daemon lists it; the fields that matter here.
#[derive(Debug, Deserialize)]
struct Listed {
    cgroup: String,
    cgroup_id: u64,
    state: String,
    attachment: String,
    problem: Option<String>,
    compressing: bool,
    queued: bool,
}

impl Listed {
    /// It waits, and nothing is left that the daemon would take.
    fn is_out(&self) -> bool {
        self.state == "compressed" && !self.compressing && !self.queued
    }
}

impl Settings {
    /// What the configuration says. All keys that are not in it have their defaults.
    fn text(&self, tree: &Path, holder: Option<&Path>, log: &Path) -> String {
        let Self {
            time_scale,
            restore,
            cpu_budget,
            trace,
        } = self;
        let Predictors {
            sequential,
            transitions,
            working_set,
            access_bitmap,
        } = match restore {
            Restore::Planned(predictors) => *predictors,
            _ => Predictors::ALL,
        };
        let mode = match restore {
            Restore::Planned(_) => "plan",
            Restore::Everything => "all",
            Restore::Nothing => "off",
            Restore::Default => "auto",
        };
        let holders: Vec<String> = holder
            .iter()
            .map(|path| format!("{:?}", path.display().to_string()))
            .collect();
        format!(
            "# Measured: a fixed loop in this guest against the same one on the machine that runs it.\n\
             time_scale = {time_scale:.1}\n\
             holders = [{holders}]\n\
             [watch]\n\
             trees = [{tree:?}]\n\
             [socket]\n\
             path = {SOCKET:?}\n\
             [schedule]\n\
             cpu_budget = {cpu_budget}\n\
             [prefetch]\n\
             mode = {mode:?}\n\
             sequential = {sequential}\n\
             transitions = {transitions}\n\
             working_set = {working_set}\n\
             access_bitmap = {access_bitmap}\n\
             trace_dir = {trace_dir:?}\n",
            trace_dir = if *trace { log } else { Path::new("") }.display().to_string(),
            holders = holders.join(", "),
            tree = tree.display().to_string(),
        )
    }
}

impl Daemon {
    /// Starts it and waits until it listens. `log` is the folder of its log.
    pub fn start(
        controller: &Path,
        settings: Settings,
        holder: Option<&Path>,
        log: &Path,
    ) -> Result<Self> {
        let text = settings.text(&Cgroup::tree(), holder, log);
        cgroup::write(Path::new(CONFIG), &text)?;
        fs::create_dir_all(log).with_context(|| format!("mkdir {}", log.display()))?;
        let log = log.join(LOG);
        let open = File::options().create(true).append(true).open(&log);
        let open = open.with_context(|| format!("open {}", log.display()))?;
        let mut process = Command::new(controller)
            .args(["daemon", "--config", CONFIG])
            // A line for each job and change of state.
            .env("AGENTZIP_LOG", "debug")
            .stdin(Stdio::null())
            .stderr(open)
            .spawn()
            .with_context(|| format!("start {}", controller.display()))?;
        let clients =
            listening(&mut process).and_then(|client| Ok((client, Client::connect(SOCKET)?)));
        let (client, mut listener) = match clients {
            Ok(clients) => clients,
            Err(error) => {
                // Already failing: the first error is the one to tell.
                let _ = process.kill();
                let _ = process.wait();
                let said = fs::read_to_string(&log).unwrap_or_default();
                return Err(error.context(format!("the daemon said: {}", said.trim())));
            }
        };
        let jobs = Arc::new(Mutex::new(Vec::new()));
        let own = Arc::clone(&jobs);
        listener.subscribe()?;
        let events = std::thread::spawn(move || {
            // Until the daemon ends.
            while let Ok(Some(event)) = listener.next_event() {
                if let Happening::Reclaimed {
                    reclaimed_bytes,
                    cpu_us,
                    ..
                } = event.happening
                {
                    lock(&own).push(Taken {
                        bytes: reclaimed_bytes,
                        cpu: Duration::from_micros(cpu_us),
                    });
                }
            }
        });
        Ok(Self {
            process,
            client: Mutex::new(client),
            jobs,
            events: Some(events),
            // As long as a wait is taken to be when nobody says how long, on hardware.
            expect: agentzip_ctl::hint::DEFAULT_EXPECT.mul_f64(settings.time_scale.max(1.0)),
        })
    }

    /// Makes the cgroups sandboxes of `template`, by xattr, and waits until the module has them.
    pub fn attach(&self, sandboxes: &[Cgroup], template: &str) -> Result<()> {
        for sandbox in sandboxes {
            sandbox.tell("template", template)?;
        }
        self.until("attached", PATIENCE, sandboxes, |listed| {
            listed.attachment == "done"
        })
    }

    /// The agent of a sandbox waits for the LLM.
    pub fn llm_wait(&self, sandbox: &Cgroup) -> Result<()> {
        let expect = self.expect.as_millis();
        sandbox.tell("phase", &format!("llm-wait;expect={expect}"))
    }

    /// Waits until all that these sandboxes own is out.
    ///
    /// That is when the daemon says of each that it waits and that nothing is left to be taken, and the
    /// kernel has no less anonymous memory of them at the next look.
    pub fn wait_out(&self, sandboxes: &[Cgroup]) -> Result<()> {
        let deadline = Instant::now() + LIMIT;
        let mut before = u64::MAX;
        let mut quiet = 0;
        while quiet < QUIET {
            let left = deadline.saturating_duration_since(Instant::now());
            self.until("compressed", left, sandboxes, Listed::is_out)?;
            let mut now = 0;
            for sandbox in sandboxes {
                now += sandbox.charged()?.anonymous;
            }
            quiet = if now + LEAST_GAIN > before {
                quiet + 1
            } else {
                0
            };
            before = now;
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Bytes of anonymous memory that the daemon itself has.
    pub fn own_memory(&self) -> Result<i64> {
        let path = PathBuf::from(format!("/proc/{}/smaps_rollup", self.process.id()));
        let text = cgroup::read(&path)?;
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("Anonymous:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<i64>().ok());
        Ok(kib.with_context(|| format!("no Anonymous in {}", path.display()))? << 10)
    }

    /// The reclaim jobs that have ended so far.
    pub fn jobs(&self) -> Vec<Taken> {
        lock(&self.jobs).clone()
    }

    /// Takes the template's name from the cgroups, waits until they are no sandboxes any more, and ends
    /// the daemon.
    pub fn finish(mut self, sandboxes: &[Cgroup]) -> Result<()> {
        for sandbox in sandboxes {
            sandbox.untell("template")?;
        }
        let deadline = Instant::now() + PATIENCE;
        while !self.list()?.is_empty() {
            ensure!(
                Instant::now() < deadline,
                "the daemon still has sandboxes {} s after they lost their template: {:?}",
                PATIENCE.as_secs(),
                self.list()?
            );
            std::thread::sleep(POLL);
        }
        let id = i32::try_from(self.process.id())
            .ok()
            .and_then(Pid::from_raw);
        let id = id.context("the daemon has no process number")?;
        kill_process(id, Signal::TERM).context("end the daemon")?;
        let status = self.ended(PATIENCE)?;
        ensure!(status.success(), "the daemon ended with {status}");
        if let Some(events) = self.events.take() {
            // Its socket is closed, so the thread is at its end.
            let _ = events.join();
        }
        Ok(())
    }

    fn ended(&mut self, patience: Duration) -> Result<ExitStatus> {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(status) = self.process.try_wait().context("wait for the daemon")? {
                return Ok(status);
            }
            ensure!(
                Instant::now() < deadline,
                "the daemon did not end within {} s",
                patience.as_secs()
            );
            std::thread::sleep(POLL);
        }
    }

    /// Polls until every one of these sandboxes is as it should be.
    fn until(
        &self,
        what: &str,
        patience: Duration,
        sandboxes: &[Cgroup],
        is: impl Fn(&Listed) -> bool,
    ) -> Result<()> {
        let ids = sandboxes
            .iter()
            .map(Cgroup::id)
            .collect::<Result<Vec<_>>>()?;
        let deadline = Instant::now() + patience;
        loop {
            let mut listed = self.list()?;
            listed.retain(|one| ids.contains(&one.cgroup_id));
            if let Some(one) = listed.iter().find(|one| one.problem.is_some()) {
                let problem = one.problem.as_deref().unwrap_or_default();
                bail!("{}: {problem}", one.cgroup);
            }
            let good = listed.iter().filter(|one| is(one)).count();
            if good == ids.len() {
                return Ok(());
            }
            ensure!(
                Instant::now() < deadline,
                "not {what} in time: {good} of {} are; {listed:?}",
                ids.len()
            );
            std::thread::sleep(POLL);
        }
    }

    fn list(&self) -> Result<Vec<Listed>> {
        let listed = lock(&self.client).list().context("ask the daemon")?;
        serde_json::from_value(listed).context("a list of sandboxes")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Both fail when it has ended, which is what is wanted.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Connects as soon as the daemon listens.
fn listening(process: &mut Child) -> Result<Client> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match Client::connect(SOCKET) {
            Ok(client) => return Ok(client),
            Err(error) if Instant::now() > deadline => return Err(error.into()),
            Err(_) => std::thread::sleep(POLL),
        }
        if let Some(status) = process.try_wait().context("look after the daemon")? {
            bail!("the daemon ended with {status}");
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use agentzip_ctl::config::PrefetchMode;

    use super::*;

    #[test]
    fn the_daemon_takes_the_configuration() {
        let settings = Settings {
            time_scale: 31.5,
            restore: Restore::Planned(Predictors {
                working_set: true,
                ..Predictors::NONE
            }),
            cpu_budget: 100,
            trace: true,
        };
        let (tree, holder) = (Path::new("/a/\"b\""), Path::new("/a/t"));
        let text = settings.text(tree, Some(holder), Path::new("/log"));
        let config = agentzip_ctl::config::Config::parse(Path::new("demo.toml"), &text).unwrap();
        assert_eq!(config.time_scale, 31.5);
        assert_eq!(config.watch.trees, [Path::new("/a/\"b\"")]);
        assert_eq!(config.holders, [Path::new("/a/t")]);
        assert_eq!(config.schedule.cpu_budget.part(), 1.0);
        assert_eq!(config.prefetch.mode, PrefetchMode::Plan);
        assert_eq!(config.prefetch.trace_dir, Path::new("/log"));
        assert!(config.prefetch.working_set && !config.prefetch.sequential);
    }
}
