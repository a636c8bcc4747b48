// SPDX-License-Identifier: GPL-2.0

//! What the page table of a process in a sandbox says about its pages.
//!
//! Takes no control lock, and mmap_lock for a part of the pages at a time.

use kernel::prelude::*;

use crate::codec::PAGE_SIZE;
use crate::process::Process;
use crate::restore;
use crate::state::State;
use crate::uapi;

/// Calls `write` with the states of the pages of a process, a part at a time: see [`uapi::PageStates`].
///
/// # Errors
///
/// `ENOENT` when the sandbox is not attached; `ESRCH`, `EPERM`: see [`Process::find`]; `EINTR` when the
/// caller is being killed; `ENOMEM`; those of `write`.
pub(crate) fn page_states(
    state: &State,
    arg: &uapi::PageStates,
    mut write: impl FnMut(&[u8]) -> Result,
) -> Result {
    /// Pages under one hold of mmap_lock.
    const PART: usize = 4096;
    restore::attached(state, arg.cgroup_id, |_| ()).ok_or(ENOENT)?;
    let process = Process::find(arg.pid, arg.cgroup_id)?;
    let memory = process.memory().ok_or(ESRCH)?;
    let mut states = KVec::from_elem(0u8, PART, GFP_KERNEL)?;
    if arg.flags & uapi::PAGE_STATES_CLEAR != 0 {
        restore::test_now(state, arg.cgroup_id);
    }
    let mut at = arg.start;
    while at < arg.end {
        let pages = ((arg.end - at) / PAGE_SIZE as u64).min(PART as u64) as usize;
        let part = states.get_mut(..pages).ok_or(EINVAL)?;
        memory.states(at, part, arg.flags & uapi::PAGE_STATES_CLEAR != 0)?;
        write(part)?;
        at += (pages * PAGE_SIZE) as u64;
    }
    Ok(())
}
