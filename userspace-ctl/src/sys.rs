// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The system calls that need `unsafe`: the only module of this crate that has any.

#![expect(unsafe_code, reason = "this is the one module for it")]

pub mod interrupt;
pub mod pages;
pub mod restore;
pub mod signals;

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use agentzip_uapi as uapi;
use rustix::ioctl::{ioctl, Ioctl, IoctlOutput, NoArg, Opcode};

use crate::PAGE_SIZE;

/// Most ranges that [`pages::process_advise`] takes (`UIO_MAXIOV`).
pub const MAX_IOVEC: usize = 1024;

/// An argument structure together with the ioctl that it belongs to.
///
/// # Safety
///
/// The kernel must read and write at most one `Self` at the address it gets with `OPCODE`, every
/// bit pattern it writes must be a valid `Self`, and it must follow no address inside `Self`.
pub unsafe trait Command {
    /// The full ioctl number.
    const OPCODE: u32;
}

// SAFETY: `rust/uapi` defines these structures for these numbers, for module and controller; they
// consist of integers and arrays of integers, and hold no addresses.
unsafe impl Command for uapi::Info {
    const OPCODE: u32 = uapi::INFO;
}
// SAFETY: As above.
unsafe impl Command for uapi::TemplateAddFile {
    const OPCODE: u32 = uapi::TEMPLATE_ADD_FILE;
}
// SAFETY: As above.
unsafe impl Command for uapi::TemplateRemove {
    const OPCODE: u32 = uapi::TEMPLATE_REMOVE;
}
// SAFETY: As above.
unsafe impl Command for uapi::SandboxAttachSigned {
    const OPCODE: u32 = uapi::SANDBOX_ATTACH_SIGNED;
}
// SAFETY: As above.
unsafe impl Command for uapi::SandboxDetach {
    const OPCODE: u32 = uapi::SANDBOX_DETACH;
}
// SAFETY: As above.
unsafe impl Command for uapi::SandboxPhase {
    const OPCODE: u32 = uapi::SANDBOX_PHASE;
}
// SAFETY: As above.
unsafe impl Command for uapi::DictionaryRetire {
    const OPCODE: u32 = uapi::DICTIONARY_RETIRE;
}
// SAFETY: As above; the file descriptor in it is one that the caller has open.
unsafe impl Command for uapi::SandboxRecord {
    const OPCODE: u32 = uapi::SANDBOX_RECORD;
}
// SAFETY: As above.
unsafe impl Command for uapi::Drain {
    const OPCODE: u32 = uapi::DRAIN;
}

/// Passes a pointer to `T` with an ioctl number; what the kernel wrote stays also on an error.
struct Update<'a, T> {
    opcode: u32,
    value: &'a mut T,
}

// SAFETY: `as_ptr` gives a pointer to a live, exclusively borrowed `T`; the constructors below
// pair each number with the `T` that the kernel reads and writes for it.
unsafe impl<T> Ioctl for Update<'_, T> {
    type Output = usize;
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        self.opcode
    }

    fn as_ptr(&mut self) -> *mut libc::c_void {
        std::ptr::from_mut(self.value).cast()
    }

    unsafe fn output_from_ptr(
        output: IoctlOutput,
        _: *mut libc::c_void,
    ) -> rustix::io::Result<usize> {
        Ok(usize::try_from(output).unwrap_or(0))
    }
}

/// Runs the ioctl of `C` on the control device.
///
/// # Errors
///
/// The kernel's errno. `argument` then holds what the module wrote before it refused.
pub fn call<C: Command>(device: BorrowedFd<'_>, argument: &mut C) -> io::Result<()> {
    let command = Update {
        opcode: C::OPCODE,
        value: argument,
    };
    // SAFETY: By the contract of `Command`.
    unsafe { ioctl(device, command) }?;
    Ok(())
}

/// Arms the hooks.
///
/// # Errors
///
/// The kernel's errno.
pub fn arm(device: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: `ARM` takes no argument.
    Ok(unsafe { ioctl(device, NoArg::<{ uapi::ARM }>::new()) }?)
}

/// Disarms the hooks.
///
/// # Errors
///
/// The kernel's errno.
pub fn disarm(device: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: `DISARM` takes no argument.
    Ok(unsafe { ioctl(device, NoArg::<{ uapi::DISARM }>::new()) }?)
}

/// Registers the pages of `ranges` as a template; sets `argument.add.ranges` and `.nr_ranges` itself.
///
/// # Errors
///
/// The kernel's errno; `E2BIG` for more than [`uapi::MAX_RANGES`] ranges.
pub fn template_add(
    device: BorrowedFd<'_>,
    argument: &mut uapi::TemplateAddSigned,
    ranges: &[uapi::Range],
) -> io::Result<()> {
    argument.add.ranges = ranges.as_ptr() as u64;
    argument.add.nr_ranges = bounded(ranges.len(), uapi::MAX_RANGES)?;
    let command = Update {
        opcode: uapi::TEMPLATE_ADD_SIGNED,
        value: argument,
    };
    // SAFETY: `TEMPLATE_ADD_SIGNED` reads and writes one `TemplateAddSigned` and reads `nr_ranges`
    // ranges at `ranges`, which is a live slice of that length.
    unsafe { ioctl(device, command) }?;
    Ok(())
}

/// Replaces the ranges of a sandbox.
///
/// # Errors
///
/// The kernel's errno; `E2BIG` for more than [`uapi::MAX_SANDBOX_RANGES`] ranges.
pub fn sandbox_ranges(
    device: BorrowedFd<'_>,
    cgroup_id: u64,
    ranges: &[uapi::SandboxRange],
) -> io::Result<()> {
    let mut argument = uapi::SandboxRanges {
        cgroup_id,
        ranges: ranges.as_ptr() as u64,
        nr_ranges: bounded(ranges.len(), uapi::MAX_SANDBOX_RANGES)?,
        reserved: 0,
    };
    let command = Update {
        opcode: uapi::SANDBOX_RANGES,
        value: &mut argument,
    };
    // SAFETY: `SANDBOX_RANGES` reads one `SandboxRanges` and `nr_ranges` ranges at `ranges`, which is
    // a live slice of that length; it writes nothing.
    unsafe { ioctl(device, command) }?;
    Ok(())
}

/// Gives the group of a sandbox a dictionary; returns its number.
///
/// # Errors
///
/// The kernel's errno; `E2BIG` for more than [`uapi::MAX_DICTIONARY`] bytes.
pub fn dictionary_add(device: BorrowedFd<'_>, cgroup_id: u64, content: &[u8]) -> io::Result<u32> {
    let mut argument = uapi::DictionaryAdd {
        cgroup_id,
        content: content.as_ptr() as u64,
        length: bounded(content.len(), uapi::MAX_DICTIONARY)?,
        number: 0,
    };
    let command = Update {
        opcode: uapi::DICTIONARY_ADD,
        value: &mut argument,
    };
    // SAFETY: `DICTIONARY_ADD` reads and writes one `DictionaryAdd` and reads `length` bytes at
    // `content`, which is a live slice of that length.
    unsafe { ioctl(device, command) }?;
    Ok(argument.number)
}

/// Fetches pages that the group of a sandbox has stored; sets `argument.buffer` and `.capacity` itself.
/// The first `argument.pages` of `pages` are those.
///
/// # Errors
///
/// The kernel's errno; `E2BIG` for room for more than [`uapi::MAX_SAMPLES`].
pub fn dictionary_samples(
    device: BorrowedFd<'_>,
    argument: &mut uapi::DictionarySamples,
    pages: &mut [[u8; PAGE_SIZE as usize]],
) -> io::Result<()> {
    argument.buffer = pages.as_mut_ptr() as u64;
    argument.capacity = bounded(pages.len(), uapi::MAX_SAMPLES)?;
    let command = Update {
        opcode: uapi::DICTIONARY_SAMPLES,
        value: argument,
    };
    // SAFETY: `DICTIONARY_SAMPLES` reads and writes one `DictionarySamples` and writes at most
    // `capacity` pages at `buffer`, which is a live, exclusively borrowed slice of that length.
    unsafe { ioctl(device, command) }?;
    Ok(())
}

/// The length of an array, or `E2BIG`.
fn bounded(len: usize, max: u32) -> io::Result<u32> {
    u32::try_from(len)
        .ok()
        .filter(|&len| len <= max)
        .ok_or_else(|| io::Error::from_raw_os_error(libc::E2BIG))
}

/// A run of pages, as `PAGEMAP_SCAN` returns it (`struct page_region`).
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct PageRegion {
    start: u64,
    end: u64,
    categories: u64,
}

/// Argument of `PAGEMAP_SCAN` (`struct pm_scan_arg`).
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct PageScan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

const PAGE_IS_SWAPPED: u64 = 1 << 4;
/// `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: u32 =
    (3 << 30) | ((size_of::<PageScan>() as u32) << 16) | ((b'f' as u32) << 8) | 16;

/// Appends the swapped-out runs of `range` to `runs`, from an open `/proc/PID/pagemap`.
///
/// # Errors
///
/// The kernel's errno: `ENOTTY` where there is no such ioctl (before Linux 6.7, or a plain file),
/// `ESRCH` when the process is gone.
pub fn scan_swapped(
    pagemap: impl AsFd,
    range: uapi::Range,
    runs: &mut Vec<uapi::Range>,
) -> io::Result<()> {
    let mut regions = [PageRegion::default(); 512];
    let mut start = range.start;
    while start < range.end {
        let mut scan = PageScan {
            size: size_of::<PageScan>() as u64,
            start,
            end: range.end,
            vec: regions.as_mut_ptr() as u64,
            vec_len: regions.len() as u64,
            category_mask: PAGE_IS_SWAPPED,
            return_mask: PAGE_IS_SWAPPED,
            ..PageScan::default()
        };
        let command = Update {
            opcode: PAGEMAP_SCAN,
            value: &mut scan,
        };
        // SAFETY: `PAGEMAP_SCAN` reads and writes one `pm_scan_arg`, and writes at most `vec_len`
        // regions of plain integers to `vec`, a live array that nothing else refers to meanwhile.
        let found = unsafe { ioctl(pagemap.as_fd(), command) }?;
        runs.extend(regions.iter().take(found).map(|region| uapi::Range {
            start: region.start,
            end: region.end,
        }));
        if scan.walk_end <= start {
            break;
        }
        start = scan.walk_end;
    }
    Ok(())
}

/// Brings every page of a swap device back and takes the device out of use.
///
/// # Errors
///
/// The kernel's errno: `ENOMEM` when memory does not suffice, `EINVAL` when it is no swap device
/// in use, `EPERM`, `EINTR` after a signal (the device then stays in use).
pub fn swap_off(path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: `path` is a NUL-terminated string.
    match unsafe { libc::swapoff(path.as_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Puts a swap device in use; a negative `priority` lets the kernel choose one.
///
/// # Errors
///
/// The kernel's errno.
pub fn swap_on(path: &Path, priority: i32) -> io::Result<()> {
    const SWAP_FLAG_PREFER: libc::c_int = 0x8000;
    const SWAP_FLAG_PRIO_MASK: libc::c_int = 0x7fff;
    let flags = match priority {
        ..0 => 0,
        _ => SWAP_FLAG_PREFER | (priority & SWAP_FLAG_PRIO_MASK),
    };
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: `path` is a NUL-terminated string.
    match unsafe { libc::swapon(path.as_ptr(), flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// User and process on the other end of a Unix socket, as they were when it connected. The process is 0
/// when it has no number in our pid namespace.
///
/// # Errors
///
/// The kernel's errno: `ENOTSOCK`, `ENOPROTOOPT`.
pub fn peer_credentials(socket: BorrowedFd<'_>) -> io::Result<(u32, i32)> {
    let mut credentials = libc::ucred {
        pid: 0,
        uid: u32::MAX,
        gid: u32::MAX,
    };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: The kernel writes at most `length` bytes to `credentials`, which consists of integers, and
    // the length to `length`; nothing else refers to them meanwhile.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            std::ptr::from_mut(&mut credentials).cast(),
            &mut length,
        )
    };
    match result {
        0 => Ok((credentials.uid, credentials.pid)),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout_of_the_kernel_structures() {
        assert_eq!(size_of::<PageScan>(), 96);
        assert_eq!(size_of::<PageRegion>(), 24);
        assert_eq!(PAGEMAP_SCAN, 0xc060_6610);
    }

    #[test]
    fn ioctl_on_a_plain_file_is_enotty() {
        let file = tempfile::tempfile().unwrap();
        let mut info = uapi::Info::default();
        let error = call(file.as_fd(), &mut info).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOTTY));
        let range = uapi::Range {
            start: 0,
            end: 4096,
        };
        let error = scan_swapped(&file, range, &mut Vec::new()).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOTTY));
    }

    #[test]
    fn scan_of_our_own_memory_runs() {
        let pagemap = std::fs::File::open("/proc/self/pagemap").unwrap();
        let page = Box::new([1u8; 8192]);
        let start = page.as_ptr() as u64 & !4095;
        let range = uapi::Range {
            start,
            end: start + 8192,
        };
        match scan_swapped(&pagemap, range, &mut Vec::new()) {
            Ok(()) => {}
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ENOTTY)),
        }
    }

    #[test]
    fn too_many_ranges_are_refused_before_the_call() {
        let file = tempfile::tempfile().unwrap();
        let ranges = vec![uapi::Range::default(); uapi::MAX_RANGES as usize + 1];
        let mut add = uapi::TemplateAddSigned {
            add: uapi::TemplateAdd {
                pid: 0,
                flags: 0,
                ranges: 0,
                nr_ranges: 0,
                reserved: 0,
                name: [0; uapi::NAME_LEN],
                domain: [0; uapi::NAME_LEN],
                pages_referenced: 0,
                pages_copied: 0,
                pages_skipped: 0,
            },
            signature: [0; uapi::SIGNATURE_LEN],
        };
        let error = template_add(file.as_fd(), &mut add, &ranges).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::E2BIG));
        let ranges = vec![uapi::SandboxRange::default(); uapi::MAX_SANDBOX_RANGES as usize + 1];
        let error = sandbox_ranges(file.as_fd(), 1, &ranges).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::E2BIG));
    }

    #[test]
    fn who_is_on_the_other_end() {
        use std::os::unix::fs::MetadataExt;
        let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let own = tempfile::tempfile().unwrap().metadata().unwrap().uid();
        let pid = i32::try_from(std::process::id()).unwrap();
        assert_eq!(peer_credentials(one.as_fd()).unwrap(), (own, pid));
        let file = tempfile::tempfile().unwrap();
        let error = peer_credentials(file.as_fd()).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOTSOCK));
    }

    #[test]
    fn swap_calls_report_errno() {
        let missing = Path::new("/nonexistent/swap");
        assert!(swap_off(missing).is_err());
        assert!(swap_on(missing, 3).is_err());
    }
}
