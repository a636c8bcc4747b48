// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The test guest: stock kernel, cached root image, payload disk made anew.

pub mod accel;
mod console;
mod payload;
mod qemu;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail, ensure, Context, Result};

use crate::build::Artifacts;
use crate::kernel::Kernel;
use crate::setup::Cache;
use crate::{paths, progress};
use console::Console;
pub use console::Failure;

/// What a guest runs and how long it may take.
pub struct Guest<'a> {
    /// Names the log, `target/guest/<name>.log`, and the folder of the report.
    pub name: &'a str,
    /// `suite`, `demo`, `run`, `restore`, `torture`, `selftests`, `exec` or `shell`, see qemu-test/src/init.rs.
    pub job: &'a str,
    /// Arguments of the job.
    pub args: Vec<String>,
    /// Script for the job `exec`.
    pub command: Option<String>,
    /// The guest is killed after this time.
    pub limit: Duration,
    /// The guest is killed when it says nothing for this long.
    pub silence: Duration,
    /// The kernel that it runs.
    pub kernel: Kernel,
    /// Its memory, in MiB.
    pub memory_mib: u32,
    /// More words for its kernel's command line.
    pub cmdline: &'a str,
}

/// How a guest ended, when nothing went wrong with the guest itself.
pub struct Outcome {
    /// Checks passed, from the verdict line.
    pub passed: u32,
    /// Checks failed.
    pub failed: u32,
    /// The tests of the suite among them.
    pub failures: Vec<Failure>,
    /// Files that the guest handed out.
    pub report: PathBuf,
    /// From the start of QEMU to its end.
    pub elapsed: Duration,
}

impl Outcome {
    /// A file that the guest handed out.
    pub fn file(&self, name: &str) -> Result<PathBuf> {
        let file = self.report.join(name);
        ensure!(
            file.exists(),
            "the guest handed out no {name}: what it said, as of an option that it does not know, is at the end of {}",
            self.report.with_extension("log").display()
        );
        Ok(file)
    }
}

/// How one boot ended.
enum Attempt {
    Done(Outcome),
    Failed {
        /// The fault of the emulation that was the cause, if it was one.
        emulator: Option<&'static str>,
        error: anyhow::Error,
    },
}

impl Guest<'_> {
    /// A guest with the usual limits: 15 minutes, 3 minutes of silence.
    pub fn new<'a>(name: &'a str, job: &'a str) -> Guest<'a> {
        Guest {
            name,
            job,
            args: Vec::new(),
            command: None,
            limit: Duration::from_secs(15 * 60),
            silence: Duration::from_secs(180),
            kernel: Kernel::Stock,
            memory_mib: 3072,
            cmdline: "",
        }
    }

    /// Boots the guest, prints its `@@ ` lines (all lines with `show_all`), and waits for its end.
    ///
    /// An emulated guest that dies of a known fault of the emulation is booted again.
    ///
    /// # Errors
    ///
    /// When QEMU cannot run, when the kernel reports a problem, on silence, when
    /// the time is over, and when there is not exactly one verdict line.
    pub fn boot(&self, cache: &Cache, artifacts: &Artifacts, show_all: bool) -> Result<Outcome> {
        /// How often a guest that the emulator broke is booted again.
        const RETRIES: u32 = 2;
        let accel = accel::choose(cache)?;
        let mut retries = 0;
        loop {
            match self.attempt(cache, artifacts, accel, show_all)? {
                Attempt::Done(outcome) => return Ok(outcome),
                Attempt::Failed {
                    emulator: Some(why),
                    error,
                } if accel == accel::Accel::Tcg && retries < RETRIES => {
                    retries += 1;
                    println!("{error:#}");
                    println!(
                        "guest {}: {why}, a fault of the emulation: booting again ({retries} of {RETRIES})",
                        self.name
                    );
                }
                Attempt::Failed { error, .. } => return Err(error),
            }
        }
    }

    /// QEMU's command line, without the serial ports.
    fn qemu(&self, cache: &Cache, accel: accel::Accel, disks: &payload::Disks) -> Command {
        let cmdline = self.cmdline(accel);
        qemu::command(cache, self.kernel, self.memory_mib, accel, disks, &cmdline)
    }

    /// Boots the guest once.
    fn attempt(
        &self,
        cache: &Cache,
        artifacts: &Artifacts,
        accel: accel::Accel,
        show_all: bool,
    ) -> Result<Attempt> {
        let dir = self.folder()?;
        let disks = payload::make(&dir, artifacts, self.command.as_deref())?;
        let log = dir.with_extension("log");
        let mut console = Console::create(&dir, &log, show_all)?;
        let mut command = self.qemu(cache, accel, &disks);
        qemu::serial_files(&mut command, &console);
        let start = Instant::now();
        let mut child = qemu::spawn(command, &log)?;
        let ended = self.watch(&mut child, &mut console, start);
        // Errors: it has ended already.
        let _ = child.kill();
        let status = child.wait().context("wait for QEMU")?;
        console.poll()?;
        let elapsed = start.elapsed();
        let failure = match (ended, console.problem(), console.verdicts()) {
            (Err(error), _, _) => format!("{error:#}"),
            (Ok(()), Some(line), _) => format!("the guest's kernel reported a problem: {line}"),
            (Ok(()), None, [verdict]) if status.success() => {
                return Ok(Attempt::Done(Outcome {
                    passed: verdict.passed,
                    failed: verdict.failed,
                    failures: console.failures().to_vec(),
                    report: payload::unpack_report(&disks, &dir)?,
                    elapsed,
                }));
            }
            (Ok(()), None, [_]) => format!("QEMU ended with {status}"),
            (Ok(()), None, verdicts) => format!("{} verdict lines instead of one", verdicts.len()),
        };
        let lines = console.last_lines().join("\n    ");
        Ok(Attempt::Failed {
            emulator: console.emulator_fault(),
            error: anyhow!(
                "guest {}: {failure}\n  after {}, log: {}\n    {lines}",
                self.name,
                progress::seconds(elapsed),
                log.display()
            ),
        })
    }

    /// Boots the guest with the second serial port on the terminal.
    pub fn interact(&self, cache: &Cache, artifacts: &Artifacts) -> Result<()> {
        let dir = self.folder()?;
        let disks = payload::make(&dir, artifacts, self.command.as_deref())?;
        let accel = accel::choose(cache)?;
        let kernel_log = dir.with_extension("log");
        let mut command = self.qemu(cache, accel, &disks);
        qemu::serial_terminal(&mut command, &kernel_log);
        println!(
            "kernel log: {}; leave with `exit`, or Ctrl-A X to kill the guest",
            kernel_log.display()
        );
        let status = command.status().context("start QEMU")?;
        if !status.success() {
            bail!("QEMU ended with {status}");
        }
        Ok(())
    }

    /// Follows a running guest until QEMU ends.
    fn watch(
        &self,
        child: &mut std::process::Child,
        console: &mut Console,
        start: Instant,
    ) -> Result<()> {
        /// How long the guest may go on after a problem, so that the log holds the whole trace.
        const GRACE: Duration = Duration::from_secs(3);
        /// How long the kernel may take to come up; emulated on a busy machine it needs 20 s.
        const BOOT: Duration = Duration::from_secs(120);
        let mut problem_seen: Option<Instant> = None;
        loop {
            let ended = child.try_wait().context("wait for QEMU")?.is_some();
            console.poll()?;
            if ended {
                return Ok(());
            }
            if console.problem().is_some() {
                let seen = *problem_seen.get_or_insert_with(Instant::now);
                if seen.elapsed() > GRACE {
                    return Ok(());
                }
            }
            if !console.started() && start.elapsed() > BOOT {
                bail!("not booted after {}", progress::seconds(BOOT));
            }
            if start.elapsed() > self.limit {
                bail!(
                    "not finished after its time limit of {}",
                    progress::seconds(self.limit)
                );
            }
            if console.quiet_for() > self.silence {
                bail!("no output for {}", progress::seconds(self.silence));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn folder(&self) -> Result<PathBuf> {
        let dir = paths::target().join("guest").join(self.name);
        if dir.exists() {
            fs::remove_dir_all(&dir).with_context(|| format!("remove {}", dir.display()))?;
        }
        fs::create_dir_all(&dir).with_context(|| format!("mkdir {}", dir.display()))?;
        Ok(dir)
    }

    /// The kernel command line.
    fn cmdline(&self, accel: accel::Accel) -> String {
        let args: Vec<String> = self.args.iter().map(|arg| encode(arg)).collect();
        // No reboot after a panic: QEMU runs with -no-reboot.
        format!(
            "console=ttyS0 panic=-1{} {} agentzip.accel={} agentzip.run={} agentzip.args={}",
            self.kernel.cmdline(),
            self.cmdline,
            accel.name(),
            self.job,
            args.join(",")
        )
    }
}

/// Percent-encodes an argument for the kernel command line.
fn encode(arg: &str) -> String {
    let mut out = String::new();
    for byte in arg.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_./:=+".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02x}"));
        }
    }
    out
}

/// Runs a program that must succeed, and shows its output only when it does not.
fn check(command: &mut Command) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command
        .output()
        .with_context(|| format!("start {program}"))?;
    if !output.status.success() {
        bail!(
            "{program} ended with {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(())
}

/// Creates a file of `size` bytes that holds nothing yet.
fn sparse(path: &Path, size: u64) -> Result<()> {
    let create = || fs::File::create(path)?.set_len(size);
    create().with_context(|| format!("create {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_survive_the_command_line() {
        assert_eq!(encode("--filter=a b,c%"), "--filter=a%20b%2cc%25");
    }
}
