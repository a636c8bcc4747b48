// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `agentzip daemon` on real cgroups and the real module: agents that say by xattr what they do, a
//! daemon that is killed or has no module, sandboxes that are held still or all wake at once.

mod agents;
mod alone;
mod hot;
mod kills;
mod restored;
pub mod storm;

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use agentzip_ctl::client::Client;
use anyhow::{ensure, Context, Result};
use serde::Deserialize;

use super::fixture::{controller, host};
use super::runner::Test;
use super::sys;

/// The tests of this folder. The debug kernel has no time for them, and they are about what is in user space:
/// Python alone takes minutes to start there.
pub const TESTS: &[Test] = &[
    Test {
        name: "daemon.killed_fifty_times",
        timeout_s: 240,
        run: kills::killed_fifty_times,
    },
    Test {
        name: "daemon.quiesced_is_whole",
        timeout_s: 180,
        run: alone::quiesced_is_whole,
    },
    Test {
        name: "daemon.without_the_module",
        timeout_s: 180,
        run: alone::without_the_module,
    },
    Test {
        name: "daemon.everything_follows",
        timeout_s: 240,
        run: restored::everything_follows,
    },
    Test {
        name: "daemon.restored_ahead",
        timeout_s: 300,
        run: restored::restored_ahead,
    },
    Test {
        name: "daemon.eight_agents",
        timeout_s: 600,
        run: agents::eight_agents,
    },
    Test {
        name: "daemon.hot_pages_stay",
        timeout_s: 300,
        run: hot::hot_pages_stay,
    },
];

const CONFIG: &str = "/run/agentzip-suite.toml";
const SOCKET: &str = "/run/agentzip-suite.sock";
const LOG: &str = "/run/agentzip-suite.log";

/// A running daemon. Dropping it kills it.
pub struct Daemon {
    child: Child,
}

/// What the daemon knows of a sandbox.
#[derive(Clone, Debug, Deserialize)]
pub struct Seen {
    /// Id of its cgroup.
    #[serde(rename = "cgroup_id")]
    pub id: u64,
    /// Its state.
    pub state: String,
    /// The module has it.
    pub attached: bool,
    /// It is frozen until there is memory.
    pub held: bool,
    /// Something is being taken from it.
    pub compressing: bool,
    /// Something is to be taken from it.
    pub queued: bool,
    /// It is being brought back.
    pub restoring: bool,
}

impl Seen {
    /// Everything that there is to take has been taken.
    pub fn is_out(&self) -> bool {
        self.state == "compressed" && !self.compressing && !self.queued
    }
}

impl Daemon {
    /// Starts it with a configuration for the cgroups below `tree`; `more` are further keys in TOML.
    pub fn start(tree: &Path, more: &str) -> Result<Daemon> {
        let text = format!(
            "[watch]\ntrees = [\"{}\"]\n[socket]\npath = \"{SOCKET}\"\n{more}\n",
            tree.display()
        );
        host::write(CONFIG, &text)?;
        Daemon::restart()
    }

    /// Starts it with the configuration of the last time.
    pub fn restart() -> Result<Daemon> {
        let log = File::options().append(true).create(true).open(LOG)?;
        let mut command = Command::new(controller::program());
        command.args(["daemon", "--config", CONFIG]);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        // A test that fails leaves no daemon behind.
        sys::program_dies_with_us(&mut command);
        let child = command.spawn().context("start the daemon")?;
        Ok(Daemon { child })
    }

    /// Its pid.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// A client, as soon as it answers.
    pub fn client(&self) -> Result<Client> {
        let answers = || Ok(Client::connect(SOCKET).is_ok());
        host::wait_until("the daemon should answer", Duration::from_secs(20), answers)
            .with_context(log)?;
        Ok(Client::connect(SOCKET)?)
    }

    /// What it says of all sandboxes, in the order of their ids.
    pub fn list(client: &mut Client) -> Result<Vec<Seen>> {
        let mut seen: Vec<Seen> = serde_json::from_value(client.list()?)?;
        seen.sort_by_key(|seen| seen.id);
        Ok(seen)
    }

    /// Kills it as `kill -9` does.
    pub fn kill(mut self) -> Result<()> {
        self.signal(libc::SIGKILL).map(drop)
    }

    /// Ends it in an orderly way.
    pub fn end(mut self) -> Result<()> {
        let status = self.signal(libc::SIGTERM)?;
        ensure!(
            status.success(),
            "the daemon ended with {status}: {}",
            log()
        );
        Ok(())
    }
}

impl Daemon {
    /// Sends it a signal that ends it, and waits for that.
    fn signal(&mut self, signal: i32) -> Result<ExitStatus> {
        // To learn how it ended; members of families end as if nobody waited for them.
        sys::default_sigchld();
        let sent = sys::kill(self.child.id() as i32, signal);
        let status = self.child.wait();
        sys::ignore_sigchld();
        sent.context("signal the daemon")?;
        status.context("wait for the daemon")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It has ended already where the test went well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The end of the daemon's log.
fn log() -> String {
    let text = std::fs::read_to_string(LOG).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(8)..].join(" / ")
}

/// Begins a new log.
fn forget_log() {
    // It may not be there.
    let _ = std::fs::remove_file(LOG);
}

/// Sets an xattr of a cgroup's directory, as an agent's runtime does.
pub fn tell(directory: &Path, name: &str, value: &str) -> Result<()> {
    let attribute = format!("user.agentzip.{name}");
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(directory, &attribute, value.as_bytes(), flags)
        .with_context(|| format!("set {attribute}={value} of {}", directory.display()))
}

/// CPU time that a process has used so far, with its threads.
pub fn cpu_time(pid: u32) -> Result<Duration> {
    let text = host::read(format!("/proc/{pid}/stat"))?;
    let fields = text.rsplit_once(") ").map(|(_, rest)| rest);
    let mut fields = fields.context("stat")?.split(' ').skip(11);
    let mut ticks = || -> Result<u64> { Ok(fields.next().context("stat")?.parse()?) };
    let sum = ticks()? + ticks()?;
    Ok(Duration::from_millis(sum * 10))
}

/// Jain's index of fairness: 1 when all have the same, 1/n when one has everything.
fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    if squares == 0.0 {
        return 0.0;
    }
    sum * sum / (shares.len() as f64 * squares)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fairness() {
        assert_eq!(jain(&[3.0; 8]), 1.0);
        assert_eq!(jain(&[1.0, 0.0, 0.0, 0.0]), 0.25);
        assert_eq!(jain(&[0.0; 2]), 0.0);
        assert!((jain(&[1.0, 2.0]) - 0.9).abs() < 1e-9);
    }
}
