// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Pages of other processes: which there are, and advice about them.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use agentzip_uapi::Range;
use rustix::ioctl::ioctl;

use super::{PageRegion, PageScan, Update, MAX_IOVEC, PAGEMAP_SCAN};

/// What can be advised about pages of another process. None of it changes what they hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// They are needed soon: `MADV_WILLNEED`.
    WillNeed,
    /// They are the first to go when memory is short: `MADV_COLD`.
    Cold,
    /// They are to go now: `MADV_PAGEOUT`.
    PageOut,
}

impl Advice {
    fn number(self) -> libc::c_int {
        match self {
            Advice::WillNeed => libc::MADV_WILLNEED,
            Advice::Cold => libc::MADV_COLD,
            Advice::PageOut => libc::MADV_PAGEOUT,
        }
    }
}

/// Advises the kernel about ranges of the process behind `pidfd`, at most [`MAX_IOVEC`] of them. Returns
/// the bytes of the ranges that were done; the first that failed ends it.
///
/// # Errors
///
/// The kernel's errno when not even the first range was done: `ESRCH` when the process is gone, `EPERM`
/// without `CAP_SYS_NICE`, `EINVAL` for locked or special memory and for too many ranges, `ENOMEM` when
/// the range is not mapped.
pub fn process_advise(pidfd: BorrowedFd<'_>, ranges: &[Range], advice: Advice) -> io::Result<u64> {
    let vector: Vec<libc::iovec> = ranges
        .iter()
        .map(|range| libc::iovec {
            // An address of the other process, never dereferenced here.
            iov_base: std::ptr::without_provenance_mut(range.start as usize),
            iov_len: range.end.saturating_sub(range.start) as usize,
        })
        .collect();
    debug_assert!(vector.len() <= MAX_IOVEC);
    // SAFETY: `vector` is a live array of that length; no advice of `Advice` changes what is in the
    // memory of any process.
    let advised = unsafe {
        libc::syscall(
            libc::SYS_process_madvise,
            pidfd.as_raw_fd(),
            vector.as_ptr(),
            vector.len(),
            advice.number(),
            0,
        )
    };
    u64::try_from(advised).map_err(|_| io::Error::last_os_error())
}

/// Which pages are looked for. All of them are anonymous, and present: not swapped out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Any.
    Anonymous,
    /// Those that were written since the soft-dirty bits were cleared.
    Written,
}

const FILE: u64 = 1 << 2;
const PRESENT: u64 = 1 << 3;
const ZERO: u64 = 1 << 5;
const SOFT_DIRTY: u64 = 1 << 7;

/// Runs that one call gives at most.
const REGIONS: usize = 512;

/// Appends runs of such pages of `range` to `runs`, in the order of their addresses, from an open
/// `/proc/PID/pagemap`: one step, of at most 512 runs and `most` pages. Returns the address up to which
/// it looked.
///
/// # Errors
///
/// The kernel's errno: `ENOTTY` where there is no `PAGEMAP_SCAN` (before Linux 6.7), `ESRCH` when the
/// process is gone or did an exec since the file was opened.
pub fn scan_anonymous(
    pagemap: impl AsFd,
    range: Range,
    kind: Kind,
    most: u64,
    runs: &mut Vec<Range>,
) -> io::Result<u64> {
    let mut regions = [PageRegion::default(); REGIONS];
    let also = match kind {
        Kind::Anonymous => 0,
        Kind::Written => SOFT_DIRTY,
    };
    let mut scan = PageScan {
        size: size_of::<PageScan>() as u64,
        start: range.start,
        end: range.end,
        vec: regions.as_mut_ptr() as u64,
        vec_len: REGIONS as u64,
        max_pages: most.max(1),
        // Neither of a file nor the zero page.
        category_inverted: FILE | ZERO,
        category_mask: FILE | ZERO | PRESENT | also,
        return_mask: PRESENT,
        ..PageScan::default()
    };
    let command = Update {
        opcode: PAGEMAP_SCAN,
        value: &mut scan,
    };
    // SAFETY: `PAGEMAP_SCAN` reads and writes one `pm_scan_arg`, and writes at most `vec_len` regions of
    // plain integers to `vec`, a live array that nothing else refers to meanwhile.
    let found = unsafe { ioctl(pagemap.as_fd(), command) }?;
    runs.extend(regions.iter().take(found).map(|region| Range {
        start: region.start,
        end: region.end,
    }));
    Ok(scan.walk_end)
}
