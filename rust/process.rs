// SPDX-License-Identifier: GPL-2.0

//! Processes whose pages are looked at and restored (ffi/walk.c, ffi/restore.c).
//!
//! What is kept of a process between two looks is its `mm_struct`, which keeps no memory: that goes
//! with the process. A number that another process has by then leads nowhere, for it is looked up
//! once. Only a [`Memory`] keeps the memory, for as long as a job at the longest.

use kernel::error::to_result;
use kernel::prelude::*;

use crate::bindings;
use crate::bindings::agentzip_outcome as outcome;
use crate::bindings::agentzip_room as room;
use crate::codec::PAGE_SIZE;

/// Pages that are restored under one hold of mmap_lock.
pub(crate) const BATCH: usize = bindings::AGENTZIP_RESTORE_BATCH as usize;

/// The end of the addresses that user space can have.
pub(crate) fn user_end() -> u64 {
    // SAFETY: No preconditions.
    unsafe { bindings::agentzip_user_end() as u64 }
}

/// A process.
///
/// # Invariants
///
/// `mm` is valid, and a reference on the structure is the value's own.
pub(crate) struct Process {
    mm: *mut bindings::mm_struct,
    /// Its number in the initial pid namespace.
    pub(crate) tgid: i32,
}

// SAFETY: References on an mm may be dropped anywhere.
unsafe impl Send for Process {}
// SAFETY: An mm locks itself.
unsafe impl Sync for Process {}

impl Process {
    /// The process with this number in the caller's pid namespace, which must be in the sandbox. May
    /// sleep.
    ///
    /// # Errors
    ///
    /// `ESRCH` when there is none, or it has no memory of its own; `EPERM` when it is not in the sandbox.
    pub(crate) fn find(pid: i32, cgroup_id: u64) -> Result<Self> {
        let mut found = bindings::agentzip_process {
            mm: core::ptr::null_mut(),
            tgid: 0,
        };
        // SAFETY: `found` is valid for writes.
        to_result(unsafe { bindings::agentzip_process_find(pid, cgroup_id, &mut found) })?;
        // INVARIANT: On success the reference is ours.
        Ok(Self {
            mm: found.mm,
            tgid: found.tgid,
        })
    }

    /// Keeps its memory. `None` when the process is gone, or has begun another program.
    pub(crate) fn memory(&self) -> Option<Memory<'_>> {
        // SAFETY: By the type invariants.
        let is_there = unsafe { bindings::agentzip_mm_begin(self.mm) };
        // INVARIANT: Just taken.
        is_there.then_some(Memory(self))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // SAFETY: By the type invariants the reference is ours, and it ends here.
        unsafe { bindings::agentzip_mm_drop(self.mm) };
    }
}

/// Whether pages can be restored.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Room {
    /// They can.
    Enough,
    /// A limit of a memory cgroup, or the end of the machine's memory, is near.
    None,
    /// The process has left the sandbox: others would pay.
    Elsewhere,
}

/// What has become of a page.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It was not swapped out, and not in memory: left as it is.
    Absent,
    /// It was in memory.
    Present,
    /// It is in memory now, mapped and with its accessed bit clear.
    Restored,
    /// It is swapped out and could not be had now: another try may help.
    Left,
    /// It is swapped out, and touching it would be an error.
    Failed,
}

/// The memory of a process.
///
/// # Invariants
///
/// A reference on the memory is the value's own.
pub(crate) struct Memory<'a>(&'a Process);

impl Memory<'_> {
    /// Whether so many pages can be restored within the limits of the sandbox and of all above it.
    pub(crate) fn room(&self, cgroup_id: u64, pages: usize) -> Room {
        // SAFETY: By the type invariants the mm is in use.
        match unsafe { bindings::agentzip_restore_room(self.0.mm, cgroup_id, pages) } {
            room::AGENTZIP_ROOM => Room::Enough,
            room::AGENTZIP_ROOM_ELSEWHERE => Room::Elsewhere,
            _ => Room::None,
        }
    }

    /// Restores pages, up to [`BATCH`], and says what has become of each. May sleep. `ENOMEM` when there
    /// is no memory for more.
    pub(crate) fn restore(&self, pages: &[u64], outcomes: &mut [Outcome]) -> Result {
        let mut raw = [0u8; BATCH];
        let count = pages.len().min(BATCH);
        let (addresses, out) = (pages.as_ptr(), raw.as_mut_ptr());
        // SAFETY: By the type invariants the mm is in use; `pages` and `raw` have as many elements.
        let result =
            unsafe { bindings::agentzip_restore(self.0.mm, addresses, count as c_uint, out) };
        for (to, from) in outcomes.iter_mut().zip(raw.iter().take(count)) {
            *to = match (*from).into() {
                outcome::AGENTZIP_WAS_ABSENT => Outcome::Absent,
                outcome::AGENTZIP_WAS_PRESENT => Outcome::Present,
                outcome::AGENTZIP_RESTORED => Outcome::Restored,
                outcome::AGENTZIP_FAILED => Outcome::Failed,
                _ => Outcome::Left,
            };
        }
        to_result(result)
    }

    /// States of the pages from `start`, one for each element of `states`, as [`crate::uapi::PageStates`]
    /// has them; with `clear` their accessed bits are cleared. May sleep. `EINTR` when the caller is being
    /// killed; `EBUSY`, in a work item only, when mmap_lock is held for too long.
    pub(crate) fn states(&self, start: u64, states: &mut [u8], clear: bool) -> Result {
        let start = usize::try_from(start)?;
        let end = start
            .checked_add(states.len() * PAGE_SIZE)
            .ok_or(EOVERFLOW)?;
        // SAFETY: By the type invariants the mm is in use; `states` has an element for each page.
        to_result(unsafe {
            bindings::agentzip_page_states(self.0.mm, start, end, states.as_mut_ptr(), clear)
        })
    }
}

impl Drop for Memory<'_> {
    fn drop(&mut self) {
        // SAFETY: By the type invariants the reference is ours, and it ends here.
        unsafe { bindings::agentzip_mm_end(self.0.mm) };
    }
}
