// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Faults, states of pages, and pages that are to come back: what the control device does with arrays.

use std::io;
use std::os::fd::BorrowedFd;

use agentzip_uapi as uapi;
use rustix::ioctl::ioctl;

use super::{bounded, Update};
use crate::PAGE_SIZE;

/// Takes the oldest records out of the ring of a sandbox. Returns how many were written to `room`, and how
/// many were lost since the sandbox was attached.
///
/// # Errors
///
/// The kernel's errno; `E2BIG` for room for more than [`uapi::MAX_RECORDS`].
pub fn faults_read(
    device: BorrowedFd<'_>,
    cgroup_id: u64,
    room: &mut [uapi::FaultRecord],
) -> io::Result<(usize, u64)> {
    let mut argument = uapi::FaultsRead {
        cgroup_id,
        buffer: room.as_mut_ptr() as u64,
        capacity: bounded(room.len(), uapi::MAX_RECORDS)?,
        ..Default::default()
    };
    let command = Update {
        opcode: uapi::FAULTS_READ,
        value: &mut argument,
    };
    // SAFETY: `FAULTS_READ` reads and writes one `FaultsRead` and writes at most `capacity` records of
    // plain integers at `buffer`, which is a live, exclusively borrowed slice of that length.
    unsafe { ioctl(device, command) }?;
    Ok((argument.records as usize, argument.lost))
}

/// Restores pages of a process ahead of need; sets `argument.ranges` and `.nr_ranges` itself, and the
/// module `.pages`.
///
/// # Errors
///
/// The kernel's errno; `E2BIG` for more than [`uapi::MAX_PREFETCH_RANGES`] ranges.
pub fn prefetch(
    device: BorrowedFd<'_>,
    argument: &mut uapi::Prefetch,
    ranges: &[uapi::Range],
) -> io::Result<()> {
    argument.ranges = ranges.as_ptr() as u64;
    argument.nr_ranges = bounded(ranges.len(), uapi::MAX_PREFETCH_RANGES)?;
    let command = Update {
        opcode: uapi::PREFETCH,
        value: argument,
    };
    // SAFETY: `PREFETCH` reads and writes one `Prefetch` and reads `nr_ranges` ranges at `ranges`, which
    // is a live slice of that length.
    unsafe { ioctl(device, command) }?;
    Ok(())
}

/// The states of the pages from `argument.start` to `argument.end`; sets `argument.states` itself.
///
/// # Errors
///
/// The kernel's errno; `E2BIG` for more than [`uapi::MAX_PAGE_STATES`] pages.
pub fn page_states(device: BorrowedFd<'_>, argument: &mut uapi::PageStates) -> io::Result<Vec<u8>> {
    let pages = argument.end.saturating_sub(argument.start) / PAGE_SIZE;
    if pages > uapi::MAX_PAGE_STATES {
        return Err(io::Error::from_raw_os_error(libc::E2BIG));
    }
    let mut states = vec![0; pages as usize];
    argument.states = states.as_mut_ptr() as u64;
    let command = Update {
        opcode: uapi::PAGE_STATES,
        value: argument,
    };
    // SAFETY: `PAGE_STATES` reads one `PageStates` and writes a byte for each of its pages at `states`,
    // which is a live, exclusively borrowed vector of that length.
    unsafe { ioctl(device, command) }?;
    Ok(states)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn an_older_module_knows_none_of_it() {
        let file = tempfile::tempfile().unwrap();
        let device = file.as_fd();
        let range = uapi::Range {
            start: 0,
            end: PAGE_SIZE,
        };
        let mut states = uapi::PageStates {
            end: PAGE_SIZE,
            ..Default::default()
        };
        let errors = [
            faults_read(device, 1, &mut [uapi::FaultRecord::default(); 4]).unwrap_err(),
            prefetch(device, &mut uapi::Prefetch::default(), &[range]).unwrap_err(),
            page_states(device, &mut states).unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.raw_os_error(), Some(libc::ENOTTY));
        }
    }

    #[test]
    fn too_much_is_refused_before_the_call() {
        let file = tempfile::tempfile().unwrap();
        let device = file.as_fd();
        let mut room = vec![uapi::FaultRecord::default(); uapi::MAX_RECORDS as usize + 1];
        let ranges = vec![uapi::Range::default(); uapi::MAX_PREFETCH_RANGES as usize + 1];
        let mut states = uapi::PageStates {
            end: (uapi::MAX_PAGE_STATES + 1) * PAGE_SIZE,
            ..Default::default()
        };
        let errors = [
            faults_read(device, 1, &mut room).unwrap_err(),
            prefetch(device, &mut uapi::Prefetch::default(), &ranges).unwrap_err(),
            page_states(device, &mut states).unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.raw_os_error(), Some(libc::E2BIG));
        }
    }
}
