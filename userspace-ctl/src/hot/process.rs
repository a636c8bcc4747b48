// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Processes of a sandbox, as far as their pages go: traits, so that tests can stand in, and the machine.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use agentzip_uapi::Range;
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::fs::{open, openat, Mode, OFlags};
use rustix::process::{pidfd_open, Pid, PidfdFlags};

use super::{Identity, Target};
use crate::cgroup::Hierarchy;
use crate::error::{Error, Result};
use crate::procfs::Mapping;
use crate::sys::pages::{process_advise, scan_anonymous, Advice, Kind};
use crate::PAGE_SIZE;

/// End of the addresses that are looked at: those that a process gets without asking for more.
pub const END: u64 = 0x7fff_ffff_f000;
/// Most that is read of a file of a process: some ten thousand mappings.
const MAX_TEXT: u64 = 1 << 20;

/// The processes of sandboxes.
pub trait Processes: Send + Sync {
    /// Numbers of the processes that are in a sandbox now, as far as these bounds reach.
    ///
    /// # Errors
    ///
    /// When the sandbox is gone.
    fn list(&self, target: &Target, most: Most) -> Result<Vec<i32>>;

    /// Takes hold of one of them; `None` when it is gone or not in that sandbox any more.
    ///
    /// # Errors
    ///
    /// The kernel's errno.
    fn open(&self, target: &Target, pid: i32) -> io::Result<Option<Box<dyn Subject>>>;
}

/// How far a sandbox is looked through. It may be made of very many cgroups, to keep others busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Most {
    /// Cgroups, itself included.
    pub cgroups: usize,
    /// Processes.
    pub processes: usize,
}

/// A process that is held: it stays the same one, whatever becomes of its number. When it ends, all of
/// this fails with `ESRCH`.
pub trait Subject: Send {
    /// Which it is.
    fn identity(&self) -> Identity;

    /// Bytes that are mapped in it.
    ///
    /// # Errors
    ///
    /// The kernel's errno.
    fn resident(&self) -> io::Result<u64>;

    /// Its mappings, in the order of their addresses.
    ///
    /// # Errors
    ///
    /// The kernel's errno.
    fn mappings(&self) -> io::Result<Vec<Range>>;

    /// Those of them that hold pages of its own, or may.
    ///
    /// # Errors
    ///
    /// The kernel's errno.
    fn private(&self) -> io::Result<Vec<Range>>;

    /// Name of its command, as the kernel has it: at most 15 bytes, chosen by the process.
    ///
    /// # Errors
    ///
    /// The kernel's errno.
    fn command(&self) -> io::Result<String>;

    /// It has not exited, so its number is still its own.
    fn is_alive(&self) -> bool;

    /// One step of a scan, as [`scan_anonymous`] does it.
    ///
    /// # Errors
    ///
    /// The kernel's errno.
    fn scan(&self, range: Range, kind: Kind, most: u64, runs: &mut Vec<Range>) -> io::Result<u64>;

    /// Says of no page any more that it was written.
    ///
    /// # Errors
    ///
    /// The kernel's errno.
    fn clear(&self) -> io::Result<()>;

    /// Advises the kernel, as [`process_advise`] does.
    ///
    /// # Errors
    ///
    /// The kernel's errno.
    fn advise(&self, ranges: &[Range], advice: Advice) -> io::Result<u64>;
}

/// The process has ended, or has another memory by now.
pub fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ESRCH | libc::ENOENT))
}

/// The sandbox has ended, which is no news.
pub fn has_ended(error: &Error) -> bool {
    matches!(error.errno(), None | Some(libc::ENOENT | libc::ENODEV))
}

/// What a refusal means here and what to do about it.
pub fn refused(operation: &'static str, pid: i32, cause: io::Error) -> Error {
    let advice = match cause.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            "run the daemon as root, with CAP_SYS_PTRACE and CAP_SYS_NICE"
        }
        _ => "set encode.hot_skip = false in agentzip.toml if this goes on",
    };
    Error::Refused {
        operation,
        object: format!("process {pid}"),
        cause,
        advice: advice.to_owned(),
    }
}

/// The processes of this machine.
#[derive(Debug)]
pub struct Live {
    procfs: PathBuf,
    cgroups: Hierarchy,
}

impl Live {
    /// Below these mounts of procfs and cgroup v2.
    pub fn new(procfs: PathBuf, cgroups: Hierarchy) -> Live {
        Live { procfs, cgroups }
    }
}

impl Processes for Live {
    fn list(&self, target: &Target, most: Most) -> Result<Vec<i32>> {
        let cgroup = self.cgroups.open(&target.path)?;
        if cgroup.id() != target.id {
            let problem = "no such cgroup any more: another one has its place";
            return Err(Error::invalid(target.name.clone(), problem));
        }
        let mut pids = Vec::new();
        let mut waiting = VecDeque::from([cgroup.path().to_owned()]);
        let mut room = most.cgroups.saturating_sub(1);
        while let Some(path) = waiting.pop_front().filter(|_| pids.len() < most.processes) {
            pids.extend(processes_of(&path, most.processes - pids.len()));
            let below = std::fs::read_dir(&path).into_iter().flatten().flatten();
            let below = below.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
            waiting.extend(below.take(room).map(|entry| {
                room -= 1;
                entry.path()
            }));
        }
        Ok(pids)
    }

    fn open(&self, target: &Target, pid: i32) -> io::Result<Option<Box<dyn Subject>>> {
        let held = hold(&self.procfs, pid).and_then(|process| {
            let inside = is_inside(&process.text("cgroup")?, &target.name);
            Ok((process, inside))
        });
        match held {
            Ok((process, true)) => Ok(Some(Box::new(process))),
            Ok((_, false)) => Ok(None),
            Err(error) if is_gone(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// The first processes of one cgroup. None when it is gone, or a threaded one, whose processes its domain
/// lists.
fn processes_of(path: &Path, most: usize) -> Vec<i32> {
    let Ok(file) = File::open(path.join("cgroup.procs")) else {
        return Vec::new();
    };
    let lines = BufReader::new(file).lines().map_while(io::Result::ok);
    // 0: of another pid namespace, so without a number here.
    let pids = lines.filter_map(|line| line.trim().parse().ok().filter(|pid| *pid > 0));
    pids.take(most).collect()
}

/// Whether this is the `/proc/PID/cgroup` of a process in the cgroup of that name, or below it.
fn is_inside(text: &str, name: &str) -> bool {
    let path = text.lines().find_map(|line| line.strip_prefix("0::"));
    let rest = path.and_then(|path| path.strip_prefix(name));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/') || name == "/")
}

/// A process of this machine.
#[derive(Debug)]
struct Held {
    identity: Identity,
    /// Its directory of procfs, which stays with the process and does not go to a later one of its number.
    directory: OwnedFd,
    /// Fails for its memory before an exec.
    pagemap: OwnedFd,
    pidfd: OwnedFd,
}

fn hold(procfs: &Path, pid: i32) -> io::Result<Held> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = open(procfs.join(pid.to_string()), flags, Mode::empty())?;
    let number = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidInput)?;
    let pidfd = pidfd_open(number, PidfdFlags::empty())?;
    // The process of the directory is still there, so the number was its own all the time, and both are
    // the same process.
    let stat = text(&directory, "stat")?;
    let identity = identity(pid, &stat).ok_or(io::ErrorKind::InvalidData)?;
    let pagemap = file(&directory, "pagemap", OFlags::RDONLY)?;
    Ok(Held {
        identity,
        directory,
        pagemap,
        pidfd,
    })
}

/// From `/proc/PID/stat`: fields 22, 28 and 48.
fn identity(pid: i32, stat: &str) -> Option<Identity> {
    // The name, in parentheses, can hold anything.
    let (_, rest) = stat.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    // The first one after the name is field 3.
    let field = |number: usize| fields.get(number - 3)?.parse().ok();
    Some(Identity {
        pid,
        started: field(22)?,
        stack: field(28)?,
        arguments: field(48).unwrap_or(0),
    })
}

fn file(directory: &OwnedFd, name: &str, flags: OFlags) -> io::Result<OwnedFd> {
    Ok(openat(
        directory,
        name,
        flags | OFlags::CLOEXEC,
        Mode::empty(),
    )?)
}

fn text(directory: &OwnedFd, name: &str) -> io::Result<String> {
    let file = File::from(file(directory, name, OFlags::RDONLY)?);
    let mut bytes = Vec::new();
    file.take(MAX_TEXT).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

impl Held {
    fn text(&self, name: &str) -> io::Result<String> {
        text(&self.directory, name)
    }
}

impl Subject for Held {
    fn identity(&self) -> Identity {
        self.identity
    }

    fn resident(&self) -> io::Result<u64> {
        let text = self.text("statm")?;
        let pages = text.split_ascii_whitespace().nth(1);
        let pages: Option<u64> = pages.and_then(|pages| pages.parse().ok());
        Ok(pages
            .ok_or(io::ErrorKind::InvalidData)?
            .saturating_mul(PAGE_SIZE))
    }

    fn mappings(&self) -> io::Result<Vec<Range>> {
        let text = self.text("maps")?;
        // What cannot be read, at the end of a text that is too long, is no mapping.
        let mappings = text.lines().filter_map(|line| line.parse().ok());
        Ok(mappings.map(|mapping: Mapping| mapping.range).collect())
    }

    fn private(&self) -> io::Result<Vec<Range>> {
        let text = self.text("maps")?;
        let mappings = text.lines().filter_map(|line| line.parse().ok());
        Ok(mappings
            .filter(Mapping::holds_anonymous_pages)
            .map(|mapping: Mapping| mapping.range)
            .filter(|range| range.end <= END)
            .collect())
    }

    fn command(&self) -> io::Result<String> {
        Ok(self.text("comm")?.trim_end_matches('\n').to_owned())
    }

    fn is_alive(&self) -> bool {
        // A pidfd is readable once its process has exited.
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        matches!(poll(&mut fds, Some(&now)), Ok(0))
    }

    fn scan(&self, range: Range, kind: Kind, most: u64, runs: &mut Vec<Range>) -> io::Result<u64> {
        scan_anonymous(&self.pagemap, range, kind, most, runs)
    }

    fn clear(&self) -> io::Result<()> {
        let file = file(&self.directory, "clear_refs", OFlags::WRONLY)?;
        File::from(file).write_all(b"4")
    }

    fn advise(&self, ranges: &[Range], advice: Advice) -> io::Result<u64> {
        process_advise(self.pidfd.as_fd(), ranges, advice)
    }
}

/// Whether this kernel says which pages were written: tries it on a page of our own.
///
/// # Errors
///
/// What it lacks.
pub fn probe(procfs: &Path) -> Result<()> {
    let path = procfs.join("self/pagemap");
    let pagemap = File::open(&path).map_err(Error::io("open", &path))?;
    let mut memory = vec![0_u8; 2 * PAGE_SIZE as usize];
    // Written, and not optimised away.
    memory.fill(std::hint::black_box(1));
    let start = (memory.as_ptr() as u64).next_multiple_of(PAGE_SIZE);
    let page = Range {
        start,
        end: start.saturating_add(PAGE_SIZE),
    };
    let mut runs = Vec::new();
    let scanned = scan_anonymous(&pagemap, page, Kind::Written, 1, &mut runs);
    std::hint::black_box(&memory);
    let lacks = match scanned {
        Ok(_) if runs.is_empty() => "CONFIG_MEM_SOFT_DIRTY",
        Ok(_) => return Ok(()),
        Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => {
            "the ioctl PAGEMAP_SCAN (Linux 6.7)"
        }
        Err(error) => return Err(Error::io("scan", &path)(error)),
    };
    Err(Error::invalid(
        "encode.hot_skip",
        format!(
            "has no effect: this kernel lacks {lacks}; set it to false, or boot one that has it"
        ),
    ))
}

#[cfg(test)]
mod tests;
