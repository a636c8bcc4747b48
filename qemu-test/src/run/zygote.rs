// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The workload's processes: the Python zygote, its holder and the sandboxes forked from it.

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};
use serde::de::DeserializeOwned;
use serde::Deserialize;
use serde_json::json;

use super::cgroup::{self, Cgroup};

/// Longest silence of a process before the run gives up.
const PATIENCE: Duration = Duration::from_secs(300);

/// A running zygote with its holder. Dropping it kills both.
pub struct Zygote {
    process: Child,
    listener: UnixListener,
    socket: PathBuf,
    line: Line,
    hello: Hello,
    holder: u32,
    cgroup: Option<Cgroup>,
}

/// A sandbox, blocked until it is told to take a turn.
pub struct Sandbox {
    /// Its process.
    pub pid: u32,
    line: Line,
}

/// One turn's outcome.
#[derive(Deserialize)]
pub struct Digest {
    /// SHA-256 of the turn's result and of what it worked with, in hex.
    pub digest: String,
}

#[derive(Deserialize)]
struct Hello {
    hello: String,
    #[serde(default)]
    index: usize,
    #[serde(default)]
    version: String,
    #[serde(default)]
    thp_disabled: bool,
}

#[derive(Deserialize)]
struct Held {
    holder: u32,
}

#[derive(Deserialize)]
struct Spawned {
    pids: Vec<u32>,
}

impl Zygote {
    /// Starts the zygote in a cgroup of its own that never swaps, and lets it fork the holder.
    ///
    /// `workload` is the folder of `zygote.py`, `module` the one in it that sandboxes run.
    pub fn start(workload: &Path, python: &str, module: &str) -> Result<Self> {
        let started = Instant::now();
        println!("@@ zygote: starting");
        let cgroup = Cgroup::create("template")?;
        cgroup.write("memory.swap.max", "0")?;
        let socket = PathBuf::from(format!("/run/agentzip-run.{}", std::process::id()));
        let listener =
            UnixListener::bind(&socket).with_context(|| format!("bind {}", socket.display()))?;
        listener
            .set_nonblocking(true)
            .context("set the listener non-blocking")?;
        // The shell moves itself first, so that the interpreter's first page is charged there.
        let mut process = Command::new("/bin/sh")
            .arg("-c")
            .arg(r#"echo $$ >"$0/cgroup.procs" && exec "$@""#)
            .arg(cgroup.path())
            .arg(python)
            .arg(workload.join("zygote.py"))
            .arg("--socket")
            .arg(&socket)
            .args(["--sandbox", module])
            .spawn()
            .context("start the zygote")?;
        let mut line = match accept(&listener, &mut process) {
            Ok(line) => line,
            Err(error) => {
                // Already failing: the first error is the one to tell.
                let _ = process.kill();
                let _ = process.wait();
                return Err(error);
            }
        };
        let hello: Hello = line.receive()?;
        if hello.hello != "zygote" || !hello.thp_disabled {
            bail!("unexpected first message of the zygote ({})", hello.hello);
        }
        let Held { holder } = line.ask(&json!({"cmd": "hold"}))?;
        wait_stopped(holder)?;
        println!(
            "@@ zygote: ready after {:.1} s",
            started.elapsed().as_secs_f64()
        );
        Ok(Self {
            process,
            listener,
            socket,
            line,
            hello,
            holder,
            cgroup: Some(cgroup),
        })
    }

    /// The stopped child that keeps the template's pages mapped.
    pub fn holder(&self) -> u32 {
        self.holder
    }

    /// The interpreter's version.
    pub fn python(&self) -> &str {
        &self.hello.version
    }

    /// The cgroup of zygote and holder.
    pub fn cgroup(&self) -> Option<&Cgroup> {
        self.cgroup.as_ref()
    }

    /// Forks a sandbox into each of `cgroups`; results in the same order.
    pub fn spawn(&mut self, cgroups: &[Cgroup], seed: u64) -> Result<Vec<Sandbox>> {
        let paths: Vec<&Path> = cgroups.iter().map(Cgroup::path).collect();
        let order = json!({"cmd": "spawn", "cgroups": paths, "seed": seed});
        let Spawned { pids } = self.line.ask(&order)?;
        let mut lines: Vec<Option<Line>> = pids.iter().map(|_| None).collect();
        for _ in &pids {
            let mut line = accept(&self.listener, &mut self.process)?;
            let hello: Hello = line.receive()?;
            let slot = lines
                .get_mut(hello.index)
                .filter(|_| hello.hello == "sandbox");
            *slot.with_context(|| format!("unexpected first message ({})", hello.hello))? =
                Some(line);
        }
        pids.into_iter()
            .zip(lines)
            .map(|(pid, line)| {
                Ok(Sandbox {
                    pid,
                    line: line.context("two sandboxes have one number")?,
                })
            })
            .collect()
    }

    /// Ends zygote and holder and removes their cgroup.
    pub fn finish(mut self) -> Result<()> {
        self.line.send(&json!({"cmd": "exit"}))?;
        kill(self.holder);
        self.process.wait().context("wait for the zygote")?;
        self.cgroup.take().map_or(Ok(()), Cgroup::remove)
    }
}

impl Drop for Zygote {
    fn drop(&mut self) {
        kill(self.holder);
        // Both fail when the zygote is gone already, which is what is wanted.
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_file(&self.socket);
    }
}

impl Sandbox {
    /// Runs the next turn.
    pub fn turn(&mut self) -> Result<Digest> {
        self.line.ask(&json!({"cmd": "turn"}))
    }

    /// Reads files and runs every tool once (tool_sandbox.py).
    pub fn prepare(&mut self, files: usize) -> Result<Digest> {
        self.line.ask(&json!({"cmd": "prepare", "files": files}))
    }

    /// Runs one tool call (tool_sandbox.py).
    pub fn call(&mut self, tool: &str) -> Result<Digest> {
        self.line.ask(&json!({"cmd": "call", "tool": tool}))
    }

    /// Walks everything that the sandbox keeps.
    pub fn walk(&mut self) -> Result<Digest> {
        self.line.ask(&json!({"cmd": "final"}))
    }

    /// Lets the sandbox exit.
    pub fn exit(mut self) -> Result<()> {
        self.line.send(&json!({"cmd": "exit"}))
    }
}

/// A connection that carries one JSON object a line.
struct Line {
    stream: BufReader<UnixStream>,
}

impl Line {
    fn send(&mut self, message: &serde_json::Value) -> Result<()> {
        let text = format!("{message}\n");
        self.stream
            .get_mut()
            .write_all(text.as_bytes())
            .with_context(|| format!("send {message}"))
    }

    fn receive<T: DeserializeOwned>(&mut self) -> Result<T> {
        let mut text = String::new();
        let length = self
            .stream
            .read_line(&mut text)
            .context("wait for a workload process")?;
        if length == 0 {
            bail!("a workload process ended unexpectedly; its error text is above");
        }
        serde_json::from_str(&text).with_context(|| format!("unexpected answer {text:?}"))
    }

    fn ask<T: DeserializeOwned>(&mut self, message: &serde_json::Value) -> Result<T> {
        self.send(message)?;
        self.receive().with_context(|| format!("after {message}"))
    }
}

/// Waits for the next connection, as long as the zygote lives.
fn accept(listener: &UnixListener, zygote: &mut Child) -> Result<Line> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream
                    .set_nonblocking(false)
                    .context("set a connection blocking")?;
                stream
                    .set_read_timeout(Some(PATIENCE))
                    .context("set a read timeout")?;
                return Ok(Line {
                    stream: BufReader::new(stream),
                });
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error).context("accept a workload process"),
        }
        if let Some(status) = zygote.try_wait().context("look after the zygote")? {
            bail!("the zygote ended with {status}");
        }
        if Instant::now() > deadline {
            bail!("no workload process came within {} s", PATIENCE.as_secs());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Waits until a process is stopped.
fn wait_stopped(pid: u32) -> Result<()> {
    let path = PathBuf::from(format!("/proc/{pid}/stat"));
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        let stat = cgroup::read(&path)?;
        // "pid (name) state ...", and the name may contain anything.
        if stat
            .rsplit_once(") ")
            .is_some_and(|(_, rest)| rest.starts_with('T'))
        {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    bail!("the holder, process {pid}, did not stop");
}

/// Kills a process that may be gone already.
fn kill(pid: u32) {
    let pid = i32::try_from(pid)
        .ok()
        .and_then(rustix::process::Pid::from_raw);
    if let Some(pid) = pid {
        // ESRCH: it is gone.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}
