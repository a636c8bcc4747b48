// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Runs the tests: each in a process of its own, bounded in time, with the kernel log watched.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};

use super::fixture::{self, host, Ctx};
use super::sys::{self, Forked};

/// What the error of a body begins with that did nothing wrong, but left something behind.
pub const AFTERWARDS: &str = "afterwards";

/// One test.
#[derive(Clone, Copy)]
pub struct Test {
    /// Subject and name, as the filter sees it.
    pub name: &'static str,
    /// Longest time in seconds.
    pub timeout_s: u64,
    /// The body.
    pub run: fn(&mut Ctx) -> Result<()>,
}

/// Texts in the kernel log that no test may cause.
const BAD_LOG: &[&str] = &[
    "WARNING:",
    "BUG:",
    "BUG ",
    "Oops",
    "general protection fault",
    "unable to handle",
    "refcount_t:",
    "Bad page",
    "bad page",
    "Bad swap",
    "Bad rss-counter",
    "INFO: task ",
    "rcu_tasks detected stalls",
    "possible recursive locking",
    "circular locking",
    "sleeping function called",
    "scheduling while atomic",
    "list_add corruption",
    "list_del corruption",
    "kernel panic",
    "panicked at",
    "ftrace failed",
];

/// The kernel log from some point on.
pub struct KernelLog {
    file: File,
}

impl KernelLog {
    /// Starts at the end of what was logged so far.
    pub fn open() -> Result<KernelLog> {
        let mut file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK)
            .open("/dev/kmsg")
            .context("open /dev/kmsg")?;
        file.seek(SeekFrom::End(0)).context("seek in /dev/kmsg")?;
        Ok(KernelLog { file })
    }

    /// New messages that tell of a fault in the kernel.
    pub fn faults(&mut self) -> Result<Vec<String>> {
        let mut faults = Vec::new();
        let mut record = [0; 8192];
        loop {
            match self.file.read(&mut record) {
                Ok(0) => return Ok(faults),
                Ok(n) => {
                    let text = String::from_utf8_lossy(&record[..n]);
                    let first = text.lines().next().unwrap_or_default();
                    let message = first.split_once(';').map_or(first, |(_, m)| m);
                    if BAD_LOG.iter().any(|bad| message.contains(bad)) {
                        faults.push(message.to_owned());
                    }
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(faults),
                // Messages were overwritten before we read them; go on with the next.
                Err(e) if e.raw_os_error() == Some(libc::EPIPE) => {}
                Err(e) => return Err(e).context("read /dev/kmsg"),
            }
        }
    }
}

/// Runs one test and cleans up after it; an error says why it failed.
pub fn run(test: &Test, log: &mut KernelLog) -> Result<()> {
    let outcome = bounded(Duration::from_secs(test.timeout_s), &test.run);
    let faults = log.faults()?;
    if outcome.is_err() || !faults.is_empty() {
        fixture::recover().context("the host does not recover from the test")?;
    }
    outcome?;
    ensure!(faults.is_empty(), "kernel log: {}", faults.join(" | "));
    Ok(())
}

/// Runs a body in a process of its own, for as long at most.
pub fn bounded(timeout: Duration, body: &dyn Fn(&mut Ctx) -> Result<()>) -> Result<()> {
    let (mut ours, theirs) = UnixStream::pair()?;
    std::io::stdout().flush()?;
    let pid = match sys::fork()? {
        Forked::Child => {
            drop(ours);
            child(body, theirs);
        }
        Forked::Parent(pid) => pid,
    };
    drop(theirs);
    let deadline = Instant::now() + host::patience(timeout);
    let mut text = String::new();
    let answered = loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break false;
        }
        if sys::wait_readable(ours.as_fd(), left.as_millis().min(500) as i32)? {
            // Members of a family inherit the other end, so the text ends with a NUL, not EOF.
            let mut bytes = [0; 4096];
            let n = ours.read(&mut bytes)?;
            text.push_str(&String::from_utf8_lossy(&bytes[..n]));
            if n == 0 || text.ends_with('\0') {
                break true;
            }
        } else if sys::try_wait(pid)?.is_some() {
            break true;
        }
    };
    // ESRCH: it has ended and left no child.
    let _ = sys::kill(-pid, libc::SIGKILL);
    let _ = sys::kill(pid, libc::SIGKILL);
    while matches!(sys::try_wait(pid), Ok(None)) {
        std::thread::sleep(Duration::from_millis(2));
    }
    ensure!(answered, "not done within {} s", timeout.as_secs());
    match text.strip_suffix('\0') {
        Some("ok") => Ok(()),
        Some(error) => Err(anyhow::Error::msg(error.to_owned())),
        None => Err(anyhow::Error::msg("the test process died")),
    }
}

fn child(body: &dyn Fn(&mut Ctx) -> Result<()>, mut answer: UnixStream) -> ! {
    let result = catch_unwind(AssertUnwindSafe(|| {
        sys::new_process_group()?;
        sys::die_with_parent()?;
        sys::ignore_sigchld();
        let mut ctx = Ctx::new()?;
        body(&mut ctx)?;
        ctx.finish().context(AFTERWARDS)
    }));
    let text = match result {
        Ok(Ok(())) => "ok".to_owned(),
        Ok(Err(e)) => format!("{e:#}").replace('\n', " "),
        Err(_) => "the test panicked".to_owned(),
    };
    // When this fails, the runner reports that the process died.
    let _ = answer.write_all(format!("{text}\0").as_bytes());
    sys::exit_now(0)
}
