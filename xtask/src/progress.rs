// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Runs long commands with a log file and shows how they get on.

use std::fs::{self, File};
use std::io::{IsTerminal, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// How often the line is drawn again on a terminal.
const REDRAW: Duration = Duration::from_millis(300);
/// How often a line is printed where output is no terminal.
const REPORT: Duration = Duration::from_secs(30);
/// Columns used of a terminal's line.
const WIDTH: usize = 100;

/// Runs `command` with its output in the file `log`, showing `title`, the time
/// since the start and the last line of the log. Returns its status and the time it took.
pub fn run(title: &str, command: &mut Command, log: &Path) -> Result<(ExitStatus, Duration)> {
    if let Some(dir) = log.parent() {
        fs::create_dir_all(dir).with_context(|| format!("mkdir {}", dir.display()))?;
    }
    let file = File::create(log).with_context(|| format!("create {}", log.display()))?;
    let start = Instant::now();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file)
        .spawn()
        .with_context(|| format!("start {}", command.get_program().to_string_lossy()))?;
    let terminal = std::io::stdout().is_terminal();
    let mut next = Duration::ZERO;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if start.elapsed() >= next {
            show(title, start.elapsed(), log, terminal);
            next = start.elapsed() + if terminal { REDRAW } else { REPORT };
        }
        sleep(Duration::from_millis(50));
    };
    let elapsed = start.elapsed();
    let clear = if terminal { "\r\x1b[K" } else { "" };
    let word = if status.success() { "done" } else { "FAILED" };
    println!("{clear}{title}: {word} in {}", seconds(elapsed));
    Ok((status, elapsed))
}

/// Draws the progress line.
fn show(title: &str, elapsed: Duration, log: &Path, terminal: bool) {
    // The scripts trace themselves (set -x); what their programs print says more.
    let mut lines = tail(log, 5);
    lines.retain(|line| !line.starts_with('+'));
    let last = lines.pop().unwrap_or_default();
    let line: String = format!("{title} {} {last}", seconds(elapsed))
        .chars()
        .take(WIDTH)
        .collect();
    if terminal {
        print!("\r\x1b[K{line}");
        let _ = std::io::stdout().flush();
    } else {
        println!("{line}");
    }
}

/// A time as people read it: `7.2 s`, `3 min 05 s`.
pub fn seconds(time: Duration) -> String {
    let s = time.as_secs();
    if s < 60 {
        format!("{:.1} s", time.as_secs_f64())
    } else {
        format!("{} min {:02} s", s / 60, s % 60)
    }
}

/// The last `count` lines of a file that are not empty, without control characters.
pub fn tail(path: &Path, count: usize) -> Vec<String> {
    const CHUNK: u64 = 16 * 1024;
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
        let len = file.metadata()?.len();
        file.seek(SeekFrom::Start(len.saturating_sub(CHUNK)))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let text = String::from_utf8_lossy(&read().unwrap_or_default()).into_owned();
    let lines: Vec<&str> = text
        .split(['\n', '\r'])
        .filter(|l| !l.trim().is_empty())
        .collect();
    lines[lines.len().saturating_sub(count)..]
        .iter()
        .map(|l| l.chars().filter(|c| !c.is_control()).collect())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_readable() {
        assert_eq!(seconds(Duration::from_millis(7_240)), "7.2 s");
        assert_eq!(seconds(Duration::from_secs(185)), "3 min 05 s");
    }

    #[test]
    fn tail_of_a_log() {
        let path = std::env::temp_dir().join(format!("agentzip-tail-{}", std::process::id()));
        fs::write(&path, "one\n\ntwo\x1b[K\nthree\n").unwrap();
        assert_eq!(tail(&path, 2), ["two[K", "three"]);
        assert_eq!(tail(&path, 9).len(), 3);
        fs::remove_file(&path).unwrap();
        assert!(tail(&path, 1).is_empty());
    }
}
