// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Interrupts a system call of one thread, without a race: a timer sends the thread a signal again and
//! again until the thread says that it is out of the call. A single signal that came between the last
//! look at a flag and the call would be lost.

use std::io;
use std::mem::MaybeUninit;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// Pause between two signals, in nanoseconds.
const AGAIN: libc::c_long = 500_000;

/// The signal: of the real-time ones, which nothing else here uses.
fn signal() -> libc::c_int {
    libc::SIGRTMIN() + 7
}

extern "C" fn nothing(_: libc::c_int) {}

/// Gives the signal a handler that does nothing, so that it interrupts and does not kill.
fn install() -> io::Result<()> {
    static INSTALLED: OnceLock<Option<i32>> = OnceLock::new();
    let errno = INSTALLED.get_or_init(|| {
        // SAFETY: All zero is a valid sigaction: no flags, an empty mask.
        let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
        action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as libc::sighandler_t;
        // SAFETY: `action` is valid and its handler, without SA_SIGINFO, takes the one argument that it
        // is given; it does nothing, so it may run at any time. Without SA_RESTART, so calls end.
        match unsafe { libc::sigaction(signal(), &action, std::ptr::null_mut()) } {
            0 => None,
            _ => io::Error::last_os_error().raw_os_error(),
        }
    });
    match errno {
        None => Ok(()),
        Some(errno) => Err(io::Error::from_raw_os_error(*errno)),
    }
}

/// A handle by which other threads interrupt the thread that [`arm`](Interrupt::arm)ed it.
#[derive(Debug, Default)]
pub struct Interrupt {
    timer: Mutex<Option<Timer>>,
}

#[derive(Debug)]
struct Timer(libc::timer_t);

// SAFETY: The id of a timer belongs to the process; any thread may use it.
unsafe impl Send for Timer {}

impl Drop for Timer {
    fn drop(&mut self) {
        // SAFETY: The timer was made by `timer_create` and is deleted here only, once.
        unsafe { libc::timer_delete(self.0) };
    }
}

/// While this lives, the thread can be interrupted.
#[derive(Debug)]
pub struct Armed<'a>(&'a Interrupt);

impl Drop for Armed<'_> {
    fn drop(&mut self) {
        *self.0.lock() = None;
    }
}

impl Interrupt {
    fn lock(&self) -> MutexGuard<'_, Option<Timer>> {
        // What it guards is whole at any time.
        self.timer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the calling thread one that can be interrupted, and by no other signal than this one.
    ///
    /// # Errors
    ///
    /// When the kernel has no timer left for us (`EAGAIN`).
    pub fn arm(&self) -> io::Result<Armed<'_>> {
        install()?;
        let mut set = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: `sigfillset` initialises the set; `sigdelset` and `pthread_sigmask` get it initialised,
        // and a mask of this thread is changed only.
        let blocked = unsafe {
            libc::sigfillset(set.as_mut_ptr());
            libc::sigdelset(set.as_mut_ptr(), signal());
            libc::pthread_sigmask(libc::SIG_SETMASK, set.as_ptr(), std::ptr::null_mut())
        };
        if blocked != 0 {
            return Err(io::Error::from_raw_os_error(blocked));
        }
        // SAFETY: All zero is a valid sigevent.
        let mut event: libc::sigevent = unsafe { MaybeUninit::zeroed().assume_init() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = signal();
        event.sigev_notify_thread_id = thread_id();
        let mut timer: libc::timer_t = std::ptr::null_mut();
        // SAFETY: `event` is valid, and `timer` has room for an id.
        if unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer) } != 0 {
            return Err(io::Error::last_os_error());
        }
        *self.lock() = Some(Timer(timer));
        Ok(Armed(self))
    }

    /// Sends the signal now, and again every half millisecond for as long as the thread is armed. Nothing
    /// happens when it is not.
    pub fn interrupt(&self) {
        let guard = self.lock();
        let Some(timer) = guard.as_ref() else {
            return;
        };
        let at = |tv_nsec| libc::timespec { tv_sec: 0, tv_nsec };
        let times = libc::itimerspec {
            it_interval: at(AGAIN),
            it_value: at(1),
        };
        // SAFETY: The timer lives while the lock is held; `times` is valid. It cannot fail with these.
        unsafe { libc::timer_settime(timer.0, 0, &times, std::ptr::null_mut()) };
    }
}

/// Number of the calling thread.
pub fn thread_id() -> i32 {
    // SAFETY: It takes nothing and cannot fail.
    unsafe { libc::gettid() }
}

/// CPU time of a thread of this process so far, user and system.
///
/// # Errors
///
/// `EINVAL` when there is no such thread any more.
pub fn thread_cpu_time(thread: i32) -> io::Result<Duration> {
    // MAKE_THREAD_CPUCLOCK of the kernel: the number inverted, then "per thread" and "scheduler's clock".
    let clock = (!thread << 3) | 4 | 2;
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` has room for the answer.
    match unsafe { libc::clock_gettime(clock, &mut time) } {
        0 => {
            let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
            let nanoseconds = u32::try_from(time.tv_nsec).unwrap_or(0);
            Ok(Duration::new(seconds, nanoseconds))
        }
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::time::Instant;

    #[test]
    fn a_call_that_waits_is_interrupted() {
        let (read, _write) = std::os::unix::net::UnixStream::pair().unwrap();
        let interrupt = Arc::new(Interrupt::default());
        let other = interrupt.clone();
        interrupt.interrupt();
        let thread = std::thread::spawn(move || {
            let _armed = other.arm().unwrap();
            rustix::io::read(&read, &mut [0; 1])
        });
        std::thread::sleep(Duration::from_millis(20));
        assert!(!thread.is_finished());
        let deadline = Instant::now() + Duration::from_secs(20);
        while !thread.is_finished() && Instant::now() < deadline {
            // It may not have armed yet.
            interrupt.interrupt();
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(thread.is_finished());
        assert_eq!(thread.join().unwrap(), Err(rustix::io::Errno::INTR));
        interrupt.interrupt();
    }

    #[test]
    fn time_of_a_thread() {
        let mut work = 0_u64;
        let before = thread_cpu_time(thread_id()).unwrap();
        while thread_cpu_time(thread_id()).unwrap() - before < Duration::from_millis(5) {
            work = work.wrapping_add(1);
        }
        assert!(work > 0);
        let gone = std::thread::spawn(thread_id).join().unwrap();
        // join() returns a moment before the kernel has let it go.
        let is_gone = |_| {
            std::thread::sleep(Duration::from_millis(1));
            thread_cpu_time(gone).is_err()
        };
        assert!((0..1000).any(is_gone));
    }
}
