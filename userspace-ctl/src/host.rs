// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What the controller does to the host besides files: a trait, so that tests can stand in.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use agentzip_uapi::Range;
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::process::{pidfd_open, Pid, PidfdFlags};

use crate::sys;
use crate::sys::pages::{process_advise, Advice};

/// A process that stays the same one while this is held, whatever happens to its number.
pub trait Process {
    /// It has not exited.
    fn alive(&self) -> bool;
    /// Asks for swapped pages, without mapping them; at most [`sys::MAX_IOVEC`] ranges.
    fn will_need(&self, ranges: &[Range]) -> io::Result<u64>;
}

/// Operations on processes and swap devices.
pub trait Host {
    /// Takes hold of a process.
    fn process(&self, pid: i32) -> io::Result<Box<dyn Process>>;
    /// Takes a swap device out of use.
    fn swap_off(&self, path: &Path) -> io::Result<()>;
    /// Puts a swap device in use; a negative priority lets the kernel choose.
    fn swap_on(&self, path: &Path, priority: i32) -> io::Result<()>;
}

/// The machine that we run on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Machine;

struct PidFd(OwnedFd);

impl Process for PidFd {
    fn alive(&self) -> bool {
        // A pidfd is readable once its process has exited.
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        matches!(poll(&mut fds, Some(&now)), Ok(0))
    }

    fn will_need(&self, ranges: &[Range]) -> io::Result<u64> {
        process_advise(self.0.as_fd(), ranges, Advice::WillNeed)
    }
}

impl Host for Machine {
    fn process(&self, pid: i32) -> io::Result<Box<dyn Process>> {
        let pid = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidInput)?;
        let fd = pidfd_open(pid, PidfdFlags::empty())?;
        Ok(Box::new(PidFd(fd)))
    }

    fn swap_off(&self, path: &Path) -> io::Result<()> {
        sys::swap_off(path)
    }

    fn swap_on(&self, path: &Path, priority: i32) -> io::Result<()> {
        sys::swap_on(path, priority)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_alive_until_it_exits() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let process = Machine.process(child.id() as i32).unwrap();
        assert!(process.alive());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!process.alive());
    }
}
