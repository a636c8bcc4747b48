// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Brings the swapped-out pages of a sandbox's processes back.
//!
//! `MADV_POPULATE_READ` cannot be done to another process. So the swapped ranges, as pagemap shows
//! them, are asked for with `process_madvise(MADV_WILLNEED)`, which reads anonymous memory ahead
//! into the swap cache but maps nothing and passes over private file mappings; then one byte of
//! each page is read through `/proc/PID/mem`, which maps it. Reading changes nothing: a page stays
//! clean, keeps its slot, and can be reclaimed again without being stored again.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use agentzip_uapi::Range;
use serde::Serialize;

use crate::cgroup::Cgroup;
use crate::error::{Error, Result};
use crate::host::{Host, Process};
use crate::procfs::{PageMap, Procfs};
use crate::{sys, PAGE_SIZE};

/// Bytes brought back between two looks at the limits of the cgroup.
const CHUNK: u64 = 8 << 20;
/// Bytes left free below a limit: charges are made in batches, on every CPU. A restore into a full
/// cgroup would call its OOM killer.
const MARGIN: u64 = 2 << 20;

/// What was done.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Report {
    /// Processes found in the subtree.
    pub processes: usize,
    /// Those of them that exited before they were done.
    pub exited: usize,
    /// Processes of the subtree that have no number in our pid namespace: left alone.
    pub foreign: usize,
    /// Swapped-out pages that were asked for; a page mapped by two processes counts twice.
    pub pages_asked: u64,
    /// Pages that could not be read (`EIO`: the page is lost, or access was refused).
    pub pages_failed: u64,
    /// Pages still swapped out at the end.
    pub pages_still_swapped: u64,
    /// Stopped early: the cgroup or an ancestor is near a memory limit.
    pub stopped_at_limit: bool,
    /// Ended early: it was not wanted any more.
    pub ended_early: bool,
    /// Time in seconds.
    #[serde(rename = "seconds", serialize_with = "crate::reclaim::seconds")]
    pub elapsed: Duration,
}

/// Brings back what is swapped out in every process of a cgroup and what is below it.
///
/// # Errors
///
/// When the cgroup's files cannot be read, or a process may not be inspected. A process that exits
/// meanwhile is no error.
pub fn restore(procfs: &Procfs, host: &dyn Host, cgroup: &Cgroup) -> Result<Report> {
    restore_while(procfs, host, cgroup, &|| true)
}

/// The same, for as long as it is wanted: looks before every 8 MiB.
///
/// # Errors
///
/// As [`restore`].
pub fn restore_while(
    procfs: &Procfs,
    host: &dyn Host,
    cgroup: &Cgroup,
    wanted: &dyn Fn() -> bool,
) -> Result<Report> {
    let started = Instant::now();
    let (pids, foreign) = cgroup.processes()?;
    let mut report = Report {
        processes: pids.len(),
        foreign,
        ..Report::default()
    };
    let places = Places {
        procfs,
        host,
        cgroup,
        wanted,
    };
    for pid in pids {
        match restore_process(&places, pid, &mut report) {
            Ok(true) => {}
            Ok(false) => report.exited += 1,
            Err(error) if is_gone(error.errno()) => report.exited += 1,
            Err(error) => return Err(error),
        }
    }
    report.elapsed = started.elapsed();
    Ok(report)
}

fn is_gone(errno: Option<i32>) -> bool {
    matches!(errno, Some(libc::ESRCH | libc::ENOENT))
}

/// What every process is restored with.
struct Places<'a> {
    procfs: &'a Procfs,
    host: &'a dyn Host,
    cgroup: &'a Cgroup,
    wanted: &'a dyn Fn() -> bool,
}

/// Returns whether the process was there to the end.
fn restore_process(places: &Places<'_>, pid: i32, report: &mut Report) -> Result<bool> {
    let Places {
        procfs,
        host,
        cgroup,
        wanted,
    } = *places;
    if !wanted() {
        report.ended_early = true;
        return Ok(true);
    }
    let object = format!("/proc/{pid}");
    let process = host.process(pid).map_err(Error::io("open", &object))?;
    let pagemap = procfs.pagemap(pid)?;
    let memory = procfs.memory(pid)?;
    // Alive after the files were opened: they are this process's, not a later one's of that number.
    if !process.alive() {
        return Ok(false);
    }
    let swapped = swapped(procfs, pid, &pagemap)?;
    report.pages_asked += pages(swapped.iter().map(|run| &run.range));
    for chunk in chunks(&swapped) {
        if cgroup.headroom()?.is_some_and(|room| room < CHUNK + MARGIN) {
            report.stopped_at_limit = true;
            break;
        }
        if !wanted() {
            report.ended_early = true;
            break;
        }
        if !ask(process.as_ref(), &chunk)? {
            return Ok(false);
        }
        for run in &chunk {
            match touch(&memory, run.range) {
                Some(failed) => report.pages_failed += failed,
                None => return Ok(false),
            }
        }
    }
    if !swapped.is_empty() {
        for run in &swapped {
            report.pages_still_swapped += pages(&pagemap.swapped(run.range)?);
        }
    }
    Ok(process.alive())
}

/// A run of swapped-out pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    range: Range,
    file: bool,
}

fn swapped(procfs: &Procfs, pid: i32, pagemap: &PageMap) -> Result<Vec<Run>> {
    let mut runs = Vec::new();
    for mapping in procfs.maps(pid)? {
        if mapping.holds_anonymous_pages() {
            let found = pagemap.swapped(mapping.range)?;
            runs.extend(found.into_iter().map(|range| Run {
                range,
                file: mapping.file,
            }));
        }
    }
    Ok(runs)
}

fn pages<'a>(ranges: impl IntoIterator<Item = &'a Range>) -> u64 {
    let bytes: u64 = ranges.into_iter().map(|r| r.end - r.start).sum();
    bytes / PAGE_SIZE
}

/// Cuts runs into groups of at most [`CHUNK`] bytes and [`sys::MAX_IOVEC`] runs.
fn chunks(runs: &[Run]) -> Vec<Vec<Run>> {
    let mut chunks = vec![Vec::new()];
    let mut room = CHUNK;
    for run in runs {
        let mut start = run.range.start;
        while start < run.range.end {
            let full = chunks
                .last()
                .is_some_and(|chunk| chunk.len() >= sys::MAX_IOVEC);
            if room == 0 || full {
                chunks.push(Vec::new());
                room = CHUNK;
            }
            let end = run.range.end.min(start + room);
            let range = Range { start, end };
            if let Some(chunk) = chunks.last_mut() {
                chunk.push(Run { range, ..*run });
            }
            room -= end - start;
            start = end;
        }
    }
    chunks.retain(|chunk| !chunk.is_empty());
    chunks
}

/// Reads ahead. It is only a hint, so that a refusal does no harm; returns false when the process
/// is gone.
fn ask(process: &dyn Process, chunk: &[Run]) -> Result<bool> {
    let anonymous: Vec<Range> = chunk
        .iter()
        .filter(|run| !run.file)
        .map(|run| run.range)
        .collect();
    if anonymous.is_empty() {
        return Ok(true);
    }
    match process.will_need(&anonymous) {
        Err(error) if is_gone(error.raw_os_error()) => Ok(false),
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => Err(Error::Refused {
            operation: "restore",
            object: "process_madvise(MADV_WILLNEED)".to_owned(),
            cause: error,
            advice: "run as root (needs CAP_SYS_NICE and CAP_SYS_PTRACE)".to_owned(),
        }),
        // Part of the range was unmapped meanwhile, or the kernel knows no such call.
        _ => Ok(true),
    }
}

/// Reads one byte of every page; returns how many pages failed, or `None` when the process is gone.
fn touch(memory: &File, range: Range) -> Option<u64> {
    let mut failed = 0;
    for address in (range.start..range.end).step_by(PAGE_SIZE as usize) {
        match memory.read_at(&mut [0], address) {
            // Its memory is gone: it has exited.
            Ok(0) => return None,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if is_gone(error.raw_os_error()) => return None,
            // Unmapped meanwhile, or unreadable.
            Err(_) => failed += 1,
        }
    }
    Some(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(start: u64, pages: u64) -> Run {
        let start = start * PAGE_SIZE;
        let range = Range {
            start,
            end: start + pages * PAGE_SIZE,
        };
        Run { range, file: false }
    }

    #[test]
    fn chunks_cover_everything_once() {
        let runs: Vec<Run> = (0..3000)
            .map(|i| run(i * 10, 1))
            .chain([run(100_000, 5000)])
            .collect();
        let chunks = chunks(&runs);
        assert!(chunks.iter().all(|chunk| chunk.len() <= sys::MAX_IOVEC));
        let mut total = 0;
        let mut last = 0;
        for chunk in &chunks {
            let bytes = pages(chunk.iter().map(|run| &run.range)) * PAGE_SIZE;
            assert!(bytes <= CHUNK);
            total += bytes / PAGE_SIZE;
            for run in chunk {
                assert!(run.range.start >= last && run.range.end > run.range.start);
                last = run.range.end;
            }
        }
        assert_eq!(total, 8000);
    }

    #[test]
    fn no_runs_no_chunks() {
        assert_eq!(chunks(&[]).len(), 0);
    }
}
