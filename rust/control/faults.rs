// SPDX-License-Identifier: GPL-2.0

//! Recorded page faults: begin and end the recording of a sandbox, take its records.
//!
//! Rings and eventfds are replaced under the control lock. Records are taken and counted as lost without
//! it: the recorder has a lock of its own.

use kernel::prelude::*;

use super::with_sandbox;
use crate::recorder::{EventFd, Ring};
use crate::state::State;
use crate::uapi;

/// Begins, changes or ends the recording of a sandbox's page faults. Without a ring the eventfd is not
/// looked at.
///
/// # Errors
///
/// `EINVAL` for a size that a ring cannot have; `EBADF`, `EINVAL` when there is no such eventfd; `ENOENT`
/// when it is not attached.
pub(crate) fn sandbox_record(state: &State, arg: &uapi::SandboxRecord) -> Result {
    const NONE: i32 = -1;
    let sizes = uapi::MIN_RECORDS..=uapi::MAX_RECORDS;
    if arg.records != 0 && !(sizes.contains(&arg.records) && arg.records.is_power_of_two()) {
        return Err(EINVAL);
    }
    let eventfd = match (arg.records, arg.eventfd) {
        (0, _) | (_, NONE) => None,
        (_, fd) => Some(EventFd::get(fd)?),
    };
    let _control = state.control.lock();
    let capacity = with_sandbox(state, arg.cgroup_id, |sandbox| {
        sandbox.is_attached().then(|| sandbox.recorder.capacity())
    })?
    .ok_or(ENOENT)?;
    // The control lock keeps it from being detached, and the ring from being replaced.
    let former_ring = match arg.records {
        records if records as usize == capacity => None,
        records => {
            let ring = (records != 0).then(|| Ring::new(records)).transpose()?;
            with_sandbox(state, arg.cgroup_id, |sandbox| {
                sandbox.recorder.replace_ring(ring)
            })?
        }
    };
    let former_eventfd = with_sandbox(state, arg.cgroup_id, |sandbox| {
        sandbox.recorder.replace_eventfd(eventfd)
    })?;
    drop((former_ring, former_eventfd));
    Ok(())
}

/// Takes the oldest records out of the ring of an attached sandbox, as many as there are and fit into
/// `out`; returns how many. Takes no control lock. `ENOENT` when it is not attached.
pub(crate) fn take_faults(
    state: &State,
    cgroup_id: u64,
    out: &mut [uapi::FaultRecord],
) -> Result<usize> {
    with_sandbox(state, cgroup_id, |sandbox| {
        sandbox.is_attached().then(|| sandbox.recorder.take(out))
    })?
    .ok_or(ENOENT)
}

/// Counts records of a sandbox that were taken and did not arrive; returns how many were lost so far.
/// `ENOENT` when there is no such sandbox.
pub(crate) fn lose_faults(state: &State, cgroup_id: u64, records: usize) -> Result<u64> {
    with_sandbox(state, cgroup_id, |sandbox| {
        sandbox.recorder.lose(records);
        sandbox.recorder.counts.lost.get()
    })
}
