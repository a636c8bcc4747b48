// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The real daemon in a process of its own, on the trees of a fake machine, and what its tests share.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use agentzip_ctl::client::Client;
use rustix::fs::{setxattr, XattrFlags};
use rustix::process::{kill_process, Pid, Signal};
use serde_json::Value;

use super::Trees;

/// How long a test waits for what is to happen.
const PATIENCE: Duration = Duration::from_secs(20);

/// A daemon that is killed when it goes out of scope.
pub struct Daemon {
    child: Child,
    /// Its socket, which takes clients.
    pub socket: PathBuf,
    log: PathBuf,
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Daemon {
    /// Starts it, and waits until its socket takes clients.
    pub fn start(trees: &Trees) -> Daemon {
        let log = trees.path("daemon.log");
        let file = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&log)
            .unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_agentzip"))
            .args(["daemon", "--config"])
            .arg(trees.path("agentzip.toml"))
            .env("AGENTZIP_DEV", trees.path("dev/agentzip"))
            .env("AGENTZIP_SYSFS", trees.path("sysfs"))
            .env("AGENTZIP_CGROUP_ROOT", trees.path("cgroup"))
            .env("AGENTZIP_PROC", trees.path("proc"))
            .env("AGENTZIP_ZSWAP", trees.path("zswap"))
            .env("AGENTZIP_LOG", "debug")
            .stdin(Stdio::null())
            .stderr(file)
            .spawn()
            .unwrap();
        let daemon = Daemon {
            child,
            socket: trees.path("agentzip.sock"),
            log,
        };
        let begun = Instant::now();
        while Client::connect(&daemon.socket).is_err() {
            assert!(begun.elapsed() < PATIENCE, "no daemon: {}", daemon.log());
            std::thread::sleep(Duration::from_millis(5));
        }
        daemon
    }

    /// What it, and each daemon before it on these trees, has written to standard error.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    /// Another client of its socket.
    pub fn client(&self) -> Client {
        Client::connect(&self.socket).unwrap()
    }

    /// Sends it this signal.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Ends it as a service manager does; gives its log.
    pub fn end(mut self) -> String {
        self.signal(Signal::TERM);
        assert!(self.child.wait().unwrap().success());
        self.log()
    }

    /// Ends it as a crash does.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits until this holds, at most [`PATIENCE`].
    #[track_caller]
    pub fn until(&self, what: &str, mut is: impl FnMut(&mut Client) -> bool) {
        let mut client = self.client();
        let begun = Instant::now();
        while !is(&mut client) {
            assert!(begun.elapsed() < PATIENCE, "not {what}: {}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until the sandbox is in this state.
    #[track_caller]
    pub fn until_state(&self, cgroup: &str, state: &str) {
        self.until(state, |client| status(client, cgroup)["state"] == state);
    }

    /// CPU time that it has used.
    pub fn cpu(&self) -> Duration {
        let path = format!("/proc/{}/schedstat", self.child.id());
        let text = std::fs::read_to_string(path).unwrap();
        let ns = text.split(' ').next().unwrap().parse().unwrap();
        Duration::from_nanos(ns)
    }
}

/// Whether this file system takes `user` xattrs, which most do.
pub fn xattrs(trees: &Trees) -> bool {
    setxattr(
        trees.path("cgroup"),
        c"user.agentzip.test",
        b"1",
        XattrFlags::empty(),
    )
    .is_ok()
}

/// Writes a configuration: a socket, the watched tree `/agents`, which is made, and these lines.
pub fn configure(trees: &Trees, more: &str) {
    let socket = trees.path("agentzip.sock");
    let tree = trees.path("cgroup/agents");
    std::fs::create_dir_all(&tree).unwrap();
    trees.write("cgroup/agents/cgroup.procs", "");
    trees.write(
        "agentzip.toml",
        &format!("[socket]\npath = {socket:?}\n[watch]\ntrees = [{tree:?}]\n{more}"),
    );
}

/// Leaves these trees without a module.
pub fn no_module(trees: &Trees) {
    std::fs::remove_dir_all(trees.path("sysfs")).unwrap();
}

/// What the daemon says of a sandbox; null where it knows none.
pub fn status(client: &mut Client, cgroup: &str) -> Value {
    client.status(Some(cgroup.as_ref())).unwrap_or(Value::Null)
}

/// Sets the xattr `user.agentzip.NAME` of a cgroup.
pub fn tag(trees: &Trees, cgroup: &str, name: &str, value: &str) {
    let path = trees.path("cgroup").join(cgroup);
    let name = format!("user.agentzip.{name}");
    setxattr(path, name, value.as_bytes(), XattrFlags::empty()).unwrap();
}

/// What makes a sandbox of a template.
pub fn python() -> agentzip_ctl::Attributes {
    agentzip_ctl::Attributes {
        template: Some("python".parse().unwrap()),
        ..Default::default()
    }
}
