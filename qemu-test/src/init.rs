// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The guest's first process.
//!
//! It mounts what the table says, writes the settings, makes and enables the
//! swap disk, runs what the kernel command line asks for, hands the report
//! files out and powers the machine off.
//!
//! Kernel command line: `agentzip.run=suite|demo|run|restore|incompressible|torture|selftests|exec|shell`
//! and `agentzip.args=...`, the arguments in one word, percent-encoded and separated by `,`.
//! Standard output is the second serial port; the first belongs to the kernel.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};

use anyhow::{bail, Context, Result};
use rustix::mount::{mount, MountFlags};
use rustix::process::{kill_process_group, wait, Pid, Signal, WaitOptions};
use rustix::system::{reboot, RebootCommand};

use crate::verdict::{self, Tally};

/// Folder of the payload disk.
const PAYLOAD: &str = "/opt/agentzip";
/// The serial port of programs; the other, ttyS0, is the kernel's.
const TERMINAL: &str = "/dev/ttyS1";
/// Files put here reach the host.
const REPORT: &str = "/run/agentzip/report";

/// What is mounted, in order: type, target, options.
///
/// `/tmp` stays on the disk: a tmpfs is swappable memory and would add to what is measured.
const MOUNTS: &[(&str, &str, &str)] = &[
    ("proc", "/proc", ""),
    ("sysfs", "/sys", ""),
    ("devtmpfs", "/dev", ""),
    ("devpts", "/dev/pts", "mode=620,ptmxmode=666"),
    ("tmpfs", "/dev/shm", "mode=1777"),
    ("tmpfs", "/run", "mode=755"),
    ("cgroup2", "/sys/fs/cgroup", ""),
    ("debugfs", "/sys/kernel/debug", ""),
    ("tracefs", "/sys/kernel/tracing", ""),
];

/// What is written where, after the mounts.
const SETTINGS: &[(&str, &str)] = &[
    ("/proc/sys/kernel/hostname", "agentzip-guest"),
    // Readahead goes by slot, over the borders of sandboxes.
    ("/proc/sys/vm/page-cluster", "0"),
    // An oops ends the guest at once; WARN lines are seen by the host.
    ("/proc/sys/kernel/panic_on_oops", "1"),
    ("/proc/sys/kernel/panic", "-1"),
    ("/proc/sys/kernel/hung_task_timeout_secs", "180"),
    // Emulated processors on a busy host do stall for some seconds.
    ("/proc/sys/kernel/watchdog_thresh", "40"),
    (
        "/sys/module/rcupdate/parameters/rcu_cpu_stall_timeout",
        "60",
    ),
    (
        "/sys/fs/cgroup/cgroup.subtree_control",
        "+memory +pids +cpu",
    ),
];

/// Runs the guest; returns only when the machine cannot be powered off.
pub fn main() -> ExitCode {
    if !rustix::process::getpid().is_init() {
        eprintln!("agentzip-guest init: it must be the first process of a guest, and would power this machine off");
        return ExitCode::FAILURE;
    }
    let printed = guest().unwrap_or_else(|error| {
        println!("@@ init: {error:#}");
        false
    });
    if !printed {
        verdict::print(Tally {
            passed: 0,
            failed: 1,
        });
    }
    rustix::fs::sync();
    match reboot(RebootCommand::PowerOff) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("@@ init: power off: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Prepares the machine and runs the job. Returns whether a verdict was printed.
fn guest() -> Result<bool> {
    for (kind, target, options) in MOUNTS {
        fs::create_dir_all(target).with_context(|| format!("mkdir {target}"))?;
        let options = std::ffi::CString::new(*options)?;
        mount(
            *kind,
            *target,
            *kind,
            MountFlags::empty(),
            Some(options.as_c_str()),
        )
        .with_context(|| format!("mount {kind} on {target}"))?;
    }
    for (path, value) in SETTINGS {
        fs::write(path, value).with_context(|| format!("write {value} to {path}"))?;
    }
    fs::create_dir_all(REPORT).with_context(|| format!("mkdir {REPORT}"))?;
    let swap = swap_on()?;

    let cmdline = fs::read_to_string("/proc/cmdline").context("read /proc/cmdline")?;
    let job = Job::parse(&cmdline)?;
    // The host looks for this line: from here on a failure is never put down to the boot.
    println!("init: starting {}", job.name);
    let status = run(&job, swap.as_deref())?;
    report()?;

    Ok(match (&job.own_verdict(), status.code()) {
        // verdict::finish() printed it.
        (true, Some(0 | 1)) => true,
        (false, Some(0)) => {
            verdict::print(Tally {
                passed: 1,
                failed: 0,
            });
            true
        }
        _ => {
            println!("@@ init: {} ended with {status}", job.name);
            false
        }
    })
}

/// Marks every virtio disk as not rotating and enables the one with serial `swap`.
fn swap_on() -> Result<Option<PathBuf>> {
    let mut swap = None;
    for entry in fs::read_dir("/sys/block").context("read /sys/block")? {
        let disk = entry?.path();
        let name = disk
            .file_name()
            .and_then(OsStr::to_str)
            .unwrap_or_default()
            .to_owned();
        if !name.starts_with("vd") {
            continue;
        }
        // QEMU says 1, and the swap core then spreads slots for a rotating disk.
        fs::write(disk.join("queue/rotational"), "0")?;
        if serial(&disk).as_deref() == Some("swap") {
            swap = Some(Path::new("/dev").join(name));
        }
    }
    if let Some(device) = &swap {
        check(
            Command::new("mkswap")
                .arg(device)
                .stdout(std::process::Stdio::null()),
        )?;
        check(Command::new("swapon").arg(device))?;
    }
    Ok(swap)
}

/// Serial number of a disk in /sys/block.
fn serial(disk: &Path) -> Option<String> {
    Some(
        fs::read_to_string(disk.join("serial"))
            .ok()?
            .trim()
            .to_owned(),
    )
}

/// Runs a helper program that must succeed.
fn check(command: &mut Command) -> Result<()> {
    let status = command
        .env("PATH", path())
        .status()
        .with_context(|| format!("run {}", command.get_program().to_string_lossy()))?;
    if !status.success() {
        bail!(
            "{} ended with {status}",
            command.get_program().to_string_lossy()
        );
    }
    Ok(())
}

/// Search path of everything in the guest.
fn path() -> String {
    format!("{PAYLOAD}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
}

/// What the kernel command line asks for.
#[derive(Debug, PartialEq, Eq)]
struct Job {
    name: String,
    args: Vec<String>,
    /// `kvm` or `tcg`, as the host says.
    accel: String,
}

/// Value of a word `key=value` of the kernel command line.
fn word<'a>(cmdline: &'a str, key: &str) -> Option<&'a str> {
    cmdline
        .split_ascii_whitespace()
        .filter_map(|word| word.split_once('='))
        .find_map(|(k, v)| (k == key).then_some(v))
}

impl Job {
    fn parse(cmdline: &str) -> Result<Self> {
        let name = word(cmdline, "agentzip.run")
            .context("no agentzip.run= on the kernel command line")?
            .to_owned();
        let accel = word(cmdline, "agentzip.accel")
            .unwrap_or("unknown")
            .to_owned();
        let args = match word(cmdline, "agentzip.args") {
            None | Some("") => Vec::new(),
            Some(list) => list.split(',').map(decode).collect::<Result<_>>()?,
        };
        Ok(Self { name, args, accel })
    }

    /// Whether the job is one of this program's subcommands that print the verdict.
    fn own_verdict(&self) -> bool {
        matches!(
            self.name.as_str(),
            "suite" | "demo" | "run" | "restore" | "incompressible" | "torture" | "selftests"
        )
    }

    /// The program to start.
    fn command(&self) -> Result<Command> {
        let mut command = match self.name.as_str() {
            "suite" | "demo" | "run" | "restore" | "incompressible" | "torture" | "selftests" => {
                let mut command = Command::new(format!("{PAYLOAD}/agentzip-guest"));
                command.arg(&self.name).env(verdict::VARIABLE, "1");
                command
            }
            // The command, a script, is on the payload disk.
            "exec" => {
                let mut command = Command::new("/bin/bash");
                command.arg(format!("{PAYLOAD}/command"));
                command
            }
            // A session of its own, so that the terminal's keys make signals.
            "shell" => {
                let mut command = Command::new("setsid");
                command.args(["--ctty", "--wait", "/bin/bash", "-i"]);
                command
                    .stdin(fs::File::open(TERMINAL).with_context(|| format!("open {TERMINAL}"))?);
                command
            }
            other => bail!("agentzip.run={other} is not known"),
        };
        command.args(&self.args);
        Ok(command)
    }
}

/// Undoes the percent-encoding of one argument.
fn decode(argument: &str) -> Result<String> {
    let mut bytes = Vec::with_capacity(argument.len());
    let mut rest = argument.as_bytes();
    while let [first, tail @ ..] = rest {
        if *first == b'%' {
            let hex = tail.get(..2).and_then(|h| std::str::from_utf8(h).ok());
            let byte = hex.and_then(|h| u8::from_str_radix(h, 16).ok());
            bytes.push(byte.with_context(|| format!("bad percent-encoding in {argument}"))?);
            rest = &tail[2..];
        } else {
            bytes.push(*first);
            rest = tail;
        }
    }
    String::from_utf8(bytes).with_context(|| format!("{argument} is not UTF-8"))
}

/// Runs the job to its end, reaping every orphan meanwhile.
fn run(job: &Job, swap: Option<&Path>) -> Result<ExitStatus> {
    let mut command = job.command()?;
    command
        .current_dir("/root")
        .env("PATH", path())
        .env("HOME", "/root")
        .env("LC_ALL", "C.UTF-8")
        .env("AGENTZIP_REPORT", REPORT)
        .env("AGENTZIP_ACCEL", &job.accel)
        .process_group(0);
    if let Some(swap) = swap {
        command.env("AGENTZIP_SWAP", swap);
    }
    let child = command
        .spawn()
        .with_context(|| format!("start {}", command.get_program().to_string_lossy()))?;
    let child = Pid::from_child(&child);
    let status = loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid == child => break ExitStatus::from_raw(status.as_raw()),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error).context("wait for the job"),
        }
    };
    // What the job left behind must not write into the report. ESRCH: nothing was left.
    let _ = kill_process_group(child, Signal::KILL);
    Ok(status)
}

/// Writes the report folder to the report disk, as a tar archive.
fn report() -> Result<()> {
    let disk = fs::read_dir("/sys/block")?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|disk| serial(disk).as_deref() == Some("report"));
    if let Some(name) = disk.as_deref().and_then(Path::file_name) {
        let device = Path::new("/dev").join(name);
        check(
            Command::new("tar")
                .args(["-C", REPORT, "-cf"])
                .arg(device)
                .arg("."),
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn job_from_command_line() {
        let job = Job::parse(
            "agentzip.accel=kvm agentzip.run=suite agentzip.args=--filter,a%20b%2Cc quiet",
        )
        .unwrap();
        assert_eq!(
            job,
            Job {
                name: "suite".into(),
                args: vec!["--filter".into(), "a b,c".into()],
                accel: "kvm".into()
            }
        );
        assert!(Job::parse("console=ttyS0").is_err());
    }

    #[test]
    fn bad_encoding_is_refused() {
        assert_eq!(decode("a%2525").unwrap(), "a%25");
        for bad in ["%", "%2", "%zz", "%ff"] {
            assert!(decode(bad).is_err(), "{bad}");
        }
    }
}
