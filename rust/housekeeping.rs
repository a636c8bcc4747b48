// SPDX-License-Identifier: GPL-2.0

//! The periodic work (ffi/worker.c): see [`control::housekeeping`].

use crate::bindings;
use crate::control;
use crate::state;

/// A round of the worker. Returns whether there should be another.
#[no_mangle]
extern "C" fn agentzip_rs_housekeeping() -> bool {
    state::get().is_some_and(control::housekeeping)
}

/// Stops the worker when dropped.
pub(crate) struct Worker;

impl Drop for Worker {
    fn drop(&mut self) {
        // SAFETY: The device is gone, so nobody kicks it again.
        unsafe { bindings::agentzip_worker_stop() };
    }
}
