// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The processes of a scenario: how they are started, told to take a turn, and stopped.
//!
//! They are left to the PID namespace's end: this program is its first process.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use rustix::process::{kill_process, Pid, Signal};
use serde::de::DeserializeOwned;
use serde::Deserialize;
use serde_json::json;

use crate::scenario::{Scenario, Start};

/// Longest silence of a process before the run is given up.
const PATIENCE: Duration = Duration::from_secs(300);
/// The folder of the workload's programs, in the root that all this runs in.
const WORKLOAD: &str = "/agentzip/workload";
/// What an agent unpacks.
const ARCHIVE: &str = "/agentzip/repository.tar.gz";

/// A connection that carries one JSON object a line.
struct Line(BufReader<UnixStream>);

impl Line {
    fn send(&mut self, message: &serde_json::Value) -> Result<()> {
        let text = format!("{message}\n");
        let stream = self.0.get_mut();
        stream
            .write_all(text.as_bytes())
            .with_context(|| format!("send {message}"))
    }

    fn receive<T: DeserializeOwned>(&mut self) -> Result<T> {
        let mut text = String::new();
        let length = self
            .0
            .read_line(&mut text)
            .context("wait for a workload process")?;
        ensure!(
            length != 0,
            "a workload process ended unexpectedly; its error text is above"
        );
        serde_json::from_str(&text).with_context(|| format!("unexpected answer {text:?}"))
    }

    fn ask<T: DeserializeOwned>(&mut self, message: &serde_json::Value) -> Result<T> {
        self.send(message)?;
        self.receive().with_context(|| format!("after {message}"))
    }
}

#[derive(Deserialize)]
struct Hello {
    hello: String,
    #[serde(default)]
    index: u32,
}

#[derive(Deserialize)]
struct Held {
    holder: i32,
}

#[derive(Deserialize)]
struct Spawned {
    pids: Vec<i32>,
}

#[derive(Deserialize)]
struct Turn {
    turn: u32,
}

/// A process that waits for orders.
pub struct Sandbox {
    pid: Pid,
    line: Line,
    turns: u32,
    /// Keeps the process that it was forked from alive: it ends when the connection does.
    _zygote: Option<Arc<Line>>,
}

impl Sandbox {
    /// Runs the next turn, to its wait.
    pub fn turn(&mut self) -> Result<()> {
        self.turns += 1;
        let Turn { turn } = self.line.ask(&json!({"cmd": "turn"}))?;
        ensure!(
            turn == self.turns,
            "process {} took turn {turn} instead of {}",
            self.pid,
            self.turns
        );
        Ok(())
    }

    /// Calls `what` with the number of the process while it is stopped.
    pub fn stopped<T>(&self, what: impl FnOnce(u32) -> Result<T>) -> Result<T> {
        stop(self.pid)?;
        let result = what(self.pid.as_raw_nonzero().get() as u32)?;
        signal(self.pid, Signal::CONT)?;
        Ok(result)
    }
}

fn signal(pid: Pid, signal: Signal) -> Result<()> {
    kill_process(pid, signal).with_context(|| format!("send {signal:?} to process {pid}"))
}

/// Stops a process, and returns when none of its threads runs any more.
pub fn stop(pid: Pid) -> Result<()> {
    signal(pid, Signal::STOP)?;
    wait_stopped(pid.as_raw_nonzero().get() as u32)
}

/// Waits until every thread of a process is stopped.
fn wait_stopped(pid: u32) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mut all = true;
        let tasks = format!("/proc/{pid}/task");
        for task in fs::read_dir(&tasks).with_context(|| format!("read {tasks}"))? {
            // "pid (name) state ...", and the name may contain anything. A thread may also be
            // gone by now: then the next round decides.
            let stat = fs::read_to_string(task?.path().join("stat")).unwrap_or_default();
            all &= stat
                .rsplit_once(')')
                .is_some_and(|(_, rest)| rest.starts_with(" T"));
        }
        if all {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "process {pid} does not stop");
        sleep(Duration::from_millis(1));
    }
}

/// Listens for processes, which connect once they are ready.
struct Listener {
    listener: UnixListener,
    path: PathBuf,
}

impl Listener {
    fn new() -> Result<Listener> {
        let path = PathBuf::from(format!("/tmp/agentzip-corpus.{}", std::process::id()));
        // One that an earlier run left, in a PID namespace with the same numbers.
        let _ = fs::remove_file(&path);
        let listener =
            UnixListener::bind(&path).with_context(|| format!("bind {}", path.display()))?;
        listener
            .set_nonblocking(true)
            .context("set the listener non-blocking")?;
        Ok(Listener { listener, path })
    }

    /// The next process that says hello as `what`, and its number.
    /// Gives up when `parent`, which it is or which forks it, has ended.
    fn accept(&self, what: &str, parent: &mut Child) -> Result<(u32, Line)> {
        let deadline = Instant::now() + PATIENCE;
        let stream = loop {
            match self.listener.accept() {
                Ok((stream, _)) => break stream,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error).context("accept a workload process"),
            }
            if let Some(status) = parent.try_wait().context("look after a process")? {
                bail!("no {what} came: its process ended with {status}, see above");
            }
            ensure!(
                Instant::now() < deadline,
                "no {what} came within {} s; its error text may be above",
                PATIENCE.as_secs()
            );
            sleep(Duration::from_millis(10));
        };
        stream
            .set_nonblocking(false)
            .context("set a connection blocking")?;
        stream
            .set_read_timeout(Some(PATIENCE))
            .context("set a read timeout")?;
        let mut line = Line(BufReader::new(stream));
        let Hello { hello, index } = line.receive()?;
        ensure!(
            hello == what,
            "unexpected first message of a {what}: {hello}"
        );
        Ok((index, line))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Nothing is lost if it stays.
        let _ = fs::remove_file(&self.path);
    }
}

/// A command with nothing of the caller's environment, and what every process is given.
fn clean(program: &str) -> Command {
    let mut command = Command::new(program);
    command
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("HOME", "/root")
        .env("LANG", "C.UTF-8")
        .env("TZ", "UTC")
        .current_dir("/")
        .stdin(Stdio::null());
    command
}

/// Starts a scenario: calls `template` with the number of the stopped process whose pages are
/// the template, then gives the sandboxes.
pub fn start(
    scenario: &Scenario,
    sandboxes: u32,
    seed: u64,
    template: impl FnOnce(u32) -> Result<()>,
) -> Result<Vec<Sandbox>> {
    match scenario.start {
        Start::Fork => fork(scenario, sandboxes, seed, template),
        Start::Scratch(program) => scratch(scenario, program, sandboxes, seed, template),
    }
}

/// A zygote, whose forks the sandboxes are.
fn fork(
    scenario: &Scenario,
    sandboxes: u32,
    seed: u64,
    template: impl FnOnce(u32) -> Result<()>,
) -> Result<Vec<Sandbox>> {
    let listener = Listener::new()?;
    let mut process = clean("/usr/bin/python3")
        .arg(format!("{WORKLOAD}/zygote.py"))
        .arg("--socket")
        .arg(&listener.path)
        .args(["--lib", ARCHIVE, "--sandbox", "corpus_sandbox"])
        .spawn()
        .context("start the zygote")?;
    let (_, mut zygote) = listener.accept("zygote", &mut process)?;
    let Held { holder } = zygote.ask(&json!({"cmd": "hold"}))?;
    let holder = u32::try_from(holder).context("number of the holder")?;
    wait_stopped(holder)?;
    template(holder)?;
    let nowhere = vec![serde_json::Value::Null; sandboxes as usize];
    let order =
        json!({"cmd": "spawn", "cgroups": nowhere, "seed": seed, "scenario": scenario.name});
    let Spawned { pids } = zygote.ask(&order)?;
    let mut lines: Vec<Option<Line>> = pids.iter().map(|_| None).collect();
    for _ in &pids {
        let (index, line) = listener.accept("sandbox", &mut process)?;
        let slot = lines.get_mut(index as usize);
        *slot.with_context(|| format!("unexpected sandbox {index}"))? = Some(line);
    }
    let zygote = Arc::new(zygote);
    pids.into_iter()
        .zip(lines)
        .map(|(pid, line)| {
            Ok(Sandbox {
                pid: Pid::from_raw(pid).context("process 0 is no sandbox")?,
                line: line.context("two sandboxes have one number")?,
                turns: 0,
                _zygote: Some(zygote.clone()),
            })
        })
        .collect()
}

/// Processes of their own; the first one is the template.
fn scratch(
    scenario: &Scenario,
    program: &[&str],
    sandboxes: u32,
    seed: u64,
    template: impl FnOnce(u32) -> Result<()>,
) -> Result<Vec<Sandbox>> {
    let setting = "/proc/sys/kernel/randomize_va_space";
    let aslr = fs::read_to_string(setting).with_context(|| format!("read {setting}"))?;
    if aslr.trim() != "2" {
        bail!("{setting} is {}: this scenario needs 2", aslr.trim());
    }
    let listener = Listener::new()?;
    let launch = |index: u32| -> Result<Sandbox> {
        let mut child = clean(program[0])
            .args(&program[1..])
            .arg("--socket")
            .arg(&listener.path)
            .args(["--archive", ARCHIVE, "--scenario", scenario.name])
            .args(["--index", &index.to_string(), "--seed", &seed.to_string()])
            // Random as it is elsewhere, but the same in every corpus of this seed.
            .env(
                "PYTHONHASHSEED",
                (1 + (seed + u64::from(index)) % u64::from(u32::MAX)).to_string(),
            )
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("OPENBLAS_NUM_THREADS", "1")
            .spawn()
            .with_context(|| format!("start {}", program[0]))?;
        let (said, line) = listener.accept("sandbox", &mut child)?;
        ensure!(said == index, "sandbox {index} says that it is {said}");
        Ok(Sandbox {
            pid: Pid::from_child(&child),
            line,
            turns: 0,
            _zygote: None,
        })
    };
    launch(sandboxes)?.stopped(template)?;
    (0..sandboxes).map(launch).collect()
}
