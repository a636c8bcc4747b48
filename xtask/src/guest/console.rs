// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What the guest says: the kernel on its first serial port, programs on the second.
//!
//! QEMU writes each port to a file; both are followed here, joined in one log,
//! and searched: kernel lines for problems, program lines for the verdict.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// Begins a line that the user shall see.
const SHOWN: &str = "@@ ";
/// Begins the line that says how the guest's work ended.
const VERDICT: &str = "@@ VERDICT ";
/// Begins the line about a test that failed: its name, a colon, and why.
const NOT_OK: &str = "not ok ";
/// Printed by the guest's init when the kernel is up and the job begins.
const STARTING: &str = "init: starting ";
/// How many lines `last_lines` gives.
const KEPT: usize = 25;

/// What the kernel prints only when something is wrong.
const PROBLEMS: &[&str] = &[
    "Kernel panic",
    "BUG:",
    "kernel BUG at",
    "WARNING:",
    "Oops:",
    "Oops ",
    "KASAN",
    "KFENCE",
    "UBSAN",
    "unable to handle",
    "general protection fault",
    "soft lockup",
    "hard LOCKUP",
    "self-detected stall",
    "detected stalls",
    "detected expedited stalls",
    "blocked for more than",
    "possible circular locking",
    "possible recursive locking",
    "inconsistent lock state",
    "suspicious RCU usage",
    "scheduling while atomic",
    "sleeping function called from invalid context",
    "refcount_t:",
    "list_add corruption",
    "list_del corruption",
    "Bad page state",
    "Bad page map",
    "Bad rss-counter state",
    "bad: scheduling from the idle thread",
    "Out of memory: Killed",
];

/// What a line that looks like a problem contains when it is none: out-of-tree modules taint the kernel, and one
/// test lets a process of this name take all memory.
const EXPECTED: &[&str] = &["module verification failed", "(azt-hog)"];

/// A verdict line, taken apart.
#[derive(Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Checks passed.
    pub passed: u32,
    /// Checks failed; at least 1 when the word is `fail`.
    pub failed: u32,
}

impl Verdict {
    /// Parses `@@ VERDICT <pass|fail> <passed> <failed>`; a malformed one counts as failed.
    fn parse(line: &str) -> Option<Self> {
        let words: Vec<&str> = line
            .strip_prefix(VERDICT)?
            .split_ascii_whitespace()
            .collect();
        let number = |index: usize| words.get(index).and_then(|word| word.parse::<u32>().ok());
        Some(match (words.first(), number(1), number(2)) {
            (Some(&"pass"), Some(passed), Some(0)) => Self { passed, failed: 0 },
            (Some(&"fail"), Some(passed), Some(failed)) => Self {
                passed,
                failed: failed.max(1),
            },
            _ => Self {
                passed: 0,
                failed: 1,
            },
        })
    }
}

/// A test of the suite that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Name of the test.
    pub test: String,
    /// Why it failed.
    pub why: String,
}

impl Failure {
    /// Parses `not ok NAME: WHY`, what follows [`SHOWN`].
    fn parse(text: &str) -> Option<Self> {
        let (test, why) = text.strip_prefix(NOT_OK)?.split_once(": ")?;
        Some(Self {
            test: test.to_owned(),
            why: why.to_owned(),
        })
    }
}

/// One serial port: QEMU's file and the line that is not complete yet.
struct Port {
    path: PathBuf,
    file: File,
    partial: Vec<u8>,
}

impl Port {
    fn create(path: PathBuf) -> Result<Self> {
        File::create(&path).with_context(|| format!("create {}", path.display()))?;
        let file = File::open(&path)?;
        Ok(Self {
            path,
            file,
            partial: Vec::new(),
        })
    }

    /// Lines that are complete since the last call, and whether anything came.
    fn read(&mut self) -> Result<(Vec<String>, bool)> {
        let mut bytes = Vec::new();
        self.file
            .read_to_end(&mut bytes)
            .with_context(|| format!("read {}", self.path.display()))?;
        let any = !bytes.is_empty();
        self.partial.extend_from_slice(&bytes);
        let mut lines = Vec::new();
        while let Some(end) = self.partial.iter().position(|b| *b == b'\n') {
            let line: Vec<u8> = self.partial.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line);
            lines.push(line.trim_end_matches(['\n', '\r']).to_owned());
        }
        Ok((lines, any))
    }
}

/// Follows both serial ports of a guest.
pub struct Console {
    kernel: Port,
    user: Port,
    log: File,
    show_all: bool,
    last_output: Instant,
    last: Vec<String>,
    problem: Option<String>,
    /// The instruction bytes that the kernel dumped after the problem.
    code: Option<String>,
    started: bool,
    verdicts: Vec<Verdict>,
    failures: Vec<Failure>,
}

impl Console {
    /// Makes the files of the ports in `dir` and the joined log.
    pub fn create(dir: &Path, log: &Path, show_all: bool) -> Result<Self> {
        Ok(Self {
            kernel: Port::create(dir.join("kernel.console"))?,
            user: Port::create(dir.join("user.console"))?,
            log: File::create(log).with_context(|| format!("create {}", log.display()))?,
            show_all,
            last_output: Instant::now(),
            last: Vec::new(),
            problem: None,
            code: None,
            started: false,
            verdicts: Vec::new(),
            failures: Vec::new(),
        })
    }

    /// File of the kernel's port.
    pub fn kernel_file(&self) -> &Path {
        &self.kernel.path
    }

    /// File of the programs' port.
    pub fn user_file(&self) -> &Path {
        &self.user.path
    }

    /// Takes in what came since the last call.
    pub fn poll(&mut self) -> Result<()> {
        let (kernel, any_kernel) = self.kernel.read()?;
        let (user, any_user) = self.user.read()?;
        if any_kernel || any_user {
            self.last_output = Instant::now();
        }
        for line in kernel {
            if self.problem.is_none() && is_problem(&line) {
                self.problem = Some(line.clone());
            }
            if self.problem.is_some() && self.code.is_none() && line.contains("Code: ") {
                self.code = Some(line.clone());
            }
            self.keep(line)?;
        }
        for line in user {
            self.started |= line.starts_with(STARTING);
            if let Some(verdict) = Verdict::parse(&line) {
                self.verdicts.push(verdict);
            } else if let Some(text) = line.strip_prefix(SHOWN) {
                println!("  {text}");
                self.failures.extend(Failure::parse(text));
            } else if self.show_all {
                println!("{line}");
            }
            self.keep(line)?;
        }
        Ok(())
    }

    fn keep(&mut self, line: String) -> Result<()> {
        writeln!(self.log, "{line}").context("write the guest's log")?;
        if self.last.len() == KEPT {
            self.last.remove(0);
        }
        self.last.push(line);
        Ok(())
    }

    /// The first kernel line that says something is wrong.
    pub fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    /// Whether the guest's job has begun.
    pub fn started(&self) -> bool {
        self.started
    }

    /// Why a failure is the emulation's and not the guest's, if it is.
    ///
    /// With several emulated processors QEMU now and then runs an old translation
    /// after the kernel has patched its text (the processor traps on a breakpoint
    /// that memory no longer holds), or loses a timer. Both were seen while the
    /// stock kernel was booting, before anything of ours ran.
    pub fn emulator_fault(&self) -> Option<&'static str> {
        let breakpoint = self
            .problem()
            .is_some_and(|line| line.contains("Oops: int3"));
        if breakpoint
            && self
                .code
                .as_deref()
                .is_some_and(|code| !breakpoint_in_memory(code))
        {
            return Some("QEMU ran a stale translation of patched kernel text");
        }
        if !self.started && self.verdicts.is_empty() {
            return Some("the emulated kernel did not come up");
        }
        None
    }

    /// The verdict lines so far.
    pub fn verdicts(&self) -> &[Verdict] {
        &self.verdicts
    }

    /// The tests that failed so far.
    pub fn failures(&self) -> &[Failure] {
        &self.failures
    }

    /// The newest lines of both ports.
    pub fn last_lines(&self) -> &[String] {
        &self.last
    }

    /// Time since the last output.
    pub fn quiet_for(&self) -> Duration {
        self.last_output.elapsed()
    }
}

/// Whether a kernel line reports a problem. The line about the module's taint is none.
fn is_problem(line: &str) -> bool {
    PROBLEMS.iter().any(|p| line.contains(p))
        && !EXPECTED.iter().any(|expected| line.contains(expected))
}

/// Whether the byte before the instruction pointer, marked `<..>`, is a breakpoint.
fn breakpoint_in_memory(code: &str) -> bool {
    let before = code.split(" <").next().unwrap_or_default();
    before.split_ascii_whitespace().next_back() == Some("cc")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdict_lines() {
        assert_eq!(
            Verdict::parse("@@ VERDICT pass 12 0"),
            Some(Verdict {
                passed: 12,
                failed: 0
            })
        );
        assert_eq!(
            Verdict::parse("@@ VERDICT fail 11 1"),
            Some(Verdict {
                passed: 11,
                failed: 1
            })
        );
        // What contradicts itself is a failure.
        assert_eq!(
            Verdict::parse("@@ VERDICT pass 12 1"),
            Some(Verdict {
                passed: 0,
                failed: 1
            })
        );
        assert_eq!(
            Verdict::parse("@@ VERDICT fail 3 0"),
            Some(Verdict {
                passed: 3,
                failed: 1
            })
        );
        assert_eq!(Verdict::parse("@@ ok 1"), None);
    }

    #[test]
    fn failed_tests() {
        let failure = Failure::parse("not ok zswap.huge_page: only 3: too few").unwrap();
        assert_eq!(failure.test, "zswap.huge_page");
        assert_eq!(failure.why, "only 3: too few");
        assert_eq!(Failure::parse("suite: 3 passed, 1 failed"), None);
    }

    #[test]
    fn problems_are_seen_and_noise_is_not() {
        for line in [
            "[   12.3] WARNING: CPU: 0 PID: 9 at mm/zswap.c:12 zswap_store+0x1/0x2",
            "[   12.3] BUG: kernel NULL pointer dereference, address: 0",
            "[   12.3] watchdog: BUG: soft lockup - CPU#0 stuck for 26s!",
            "[   12.3] rcu: INFO: rcu_preempt self-detected stall on CPU",
            "[   12.3] INFO: task kswapd0:57 blocked for more than 120 seconds.",
            "[   12.3] Kernel panic - not syncing: Fatal exception",
        ] {
            assert!(is_problem(line), "{line}");
        }
        for line in [
            "[    9.9] Out of memory: Killed process 12 (azt-hog) total-vm:1kB, oom_score_adj:1000",
            "[    3.1] agentzip: loading out-of-tree module taints kernel.",
            "[    3.1] agentzip: module verification failed: signature and/or required key missing - tainting kernel",
            "[    1.3] PCI: Using host bridge windows from ACPI; if necessary, use \"pci=nocrs\" and report a bug",
            "[    9.9] Memory cgroup out of memory: Killed process 12 (python3)",
        ] {
            assert!(!is_problem(line), "{line}");
        }
    }

    #[test]
    fn a_breakpoint_that_memory_lacks_is_the_emulators() {
        assert!(!breakpoint_in_memory(
            "[ 1.2] Code: 90 90 f3 0f 1e fa 0f <1f> 44 00 00 41 57"
        ));
        assert!(breakpoint_in_memory(
            "[ 1.2] Code: 90 90 f3 0f 1e fa cc <1f> 44 00 00 41 57"
        ));
    }

    #[test]
    fn only_the_boot_is_forgiven() {
        let dir = std::env::temp_dir().join(format!("agentzip-boot-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let mut console = Console::create(&dir, &dir.join("log"), false).unwrap();
        let append = |path: &Path, text: &[u8]| {
            let mut file = std::fs::OpenOptions::new().append(true).open(path).unwrap();
            file.write_all(text).unwrap();
        };
        let stall = b"[   23.2] rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:\n";
        append(console.kernel_file(), stall);
        console.poll().unwrap();
        assert!(console.problem().is_some() && console.emulator_fault().is_some());
        append(console.user_file(), b"init: starting suite\n");
        console.poll().unwrap();
        assert!(console.emulator_fault().is_none());
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn lines_may_arrive_in_pieces() {
        let dir = std::env::temp_dir().join(format!("agentzip-console-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let mut console = Console::create(&dir, &dir.join("log"), false).unwrap();
        let mut port = std::fs::OpenOptions::new()
            .append(true)
            .open(console.user_file())
            .unwrap();
        port.write_all(b"noise\r\n@@ VERDICT pa").unwrap();
        console.poll().unwrap();
        assert!(console.verdicts().is_empty());
        port.write_all(b"ss 3 0\r\n").unwrap();
        console.poll().unwrap();
        assert!(console.failures().is_empty());
        assert_eq!(
            console.verdicts(),
            [Verdict {
                passed: 3,
                failed: 0
            }]
        );
        assert_eq!(
            std::fs::read_to_string(dir.join("log")).unwrap(),
            "noise\n@@ VERDICT pass 3 0\n"
        );
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
