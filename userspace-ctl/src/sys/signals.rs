// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Signals to the process, read from a file descriptor.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;

/// What the process was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGHUP: read the configuration again.
    Reload,
    /// SIGTERM or SIGINT: end.
    End,
}

/// The signals that a daemon takes.
#[derive(Debug)]
pub struct Signals(OwnedFd);

impl Signals {
    /// Takes SIGHUP, SIGTERM and SIGINT from now on. To be called before any thread is made: threads
    /// made later inherit that these signals do not interrupt them.
    ///
    /// # Errors
    ///
    /// When the kernel gives no file descriptor.
    pub fn take() -> io::Result<Signals> {
        let mut set = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: `sigemptyset` initialises the set, and the others get it initialised; what they
        // change is the mask of the calling thread.
        let fd = unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            for signal in [libc::SIGHUP, libc::SIGTERM, libc::SIGINT] {
                libc::sigaddset(set.as_mut_ptr(), signal);
            }
            let blocked =
                libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut());
            if blocked != 0 {
                return Err(io::Error::from_raw_os_error(blocked));
            }
            libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `signalfd` gave this descriptor to us, and nobody else has it.
        Ok(Signals(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// The next signal, without waiting.
    pub fn next(&self) -> Option<Signal> {
        // signalfd_siginfo: the number comes first.
        let mut info = [0u8; size_of::<libc::signalfd_siginfo>()];
        loop {
            match rustix::io::read(&self.0, &mut info) {
                Ok(length) if length >= 4 => {}
                Err(Errno::INTR) => continue,
                _ => return None,
            }
            let [a, b, c, d, ..] = info;
            return Some(match i32::from_ne_bytes([a, b, c, d]) {
                libc::SIGHUP => Signal::Reload,
                _ => Signal::End,
            });
        }
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
