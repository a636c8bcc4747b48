// SPDX-License-Identifier: GPL-2.0

//! What user space can do, by subject: [`templates`], [`sandboxes`] and their [`groups`],
//! [`dictionaries`], recorded [`faults`], the states of pages ([`page_states`]), [`statistics`]. Here: arm,
//! disarm and drain. The worker's round is in [`tidy`].
//!
//! Every function takes the control lock, changes everything or nothing, and may sleep; where one does
//! not take it, its file says so. What other files of this folder call says whether its caller holds it.

mod dictionaries;
mod faults;
mod groups;
mod page_states;
mod sandboxes;
mod statistics;
mod templates;
mod tidy;

use kernel::prelude::*;
use kernel::sync::atomic::{Acquire, Atomic, Release};

use crate::bindings;
use crate::id_table::synchronize_readers;
use crate::state::State;
use crate::uapi::{self, Name};

pub(crate) use self::dictionaries::{dictionary_add, dictionary_retire, dictionary_samples};
pub(crate) use self::faults::{lose_faults, sandbox_record, take_faults};
pub(crate) use self::page_states::page_states;
pub(crate) use self::sandboxes::{
    sandbox_attach, sandbox_detach, sandbox_phase, sandbox_ranges, with_sandbox,
};
pub(crate) use self::statistics::{memory, stats};
pub(crate) use self::templates::{
    template_add, template_add_file, template_remove, template_users,
};
pub(crate) use self::tidy::housekeeping;

fn set(flag: &Atomic<u32>, on: bool) {
    flag.store(on.into(), Release);
}

/// Installs the hooks and pins the module. Ends draining.
///
/// # Errors
///
/// `EALREADY` when armed; `EOPNOTSUPP` while zswap was never set up since boot (hooks.c); `EBUSY` and others from
/// ftrace.
pub(crate) fn arm(state: &State) -> Result {
    let mut control = state.control.lock();
    if control.stuck {
        return Err(EBUSY);
    }
    if state.armed.load(Acquire) != 0 {
        set(&state.draining, false);
        return Err(EALREADY);
    }
    // SAFETY: May sleep, as we may.
    let result = kernel::error::to_result(unsafe { bindings::agentzip_hooks_arm() });
    if result == Err(ENOTRECOVERABLE) {
        control.stuck = true;
    }
    result?;
    set(&state.draining, false);
    set(&state.armed, true);
    pr_info!("armed\n");
    Ok(())
}

/// Removes the hooks and unpins the module.
///
/// # Errors
///
/// `EBUSY` while entries exist; `EALREADY` when not armed. When a hook cannot be removed the module
/// stays pinned for ever.
pub(crate) fn disarm(state: &State) -> Result {
    let mut control = state.control.lock();
    if state.armed.load(Acquire) == 0 {
        return Err(EALREADY);
    }
    if control.stuck {
        return Err(EBUSY);
    }
    // No store may add an entry between the check and the removal of the hooks.
    let was_draining = state.draining.load(Acquire) != 0;
    set(&state.draining, true);
    synchronize_readers();
    if !state.table.is_empty() {
        set(&state.draining, was_draining);
        return Err(EBUSY);
    }
    // SAFETY: May sleep, as we may.
    let result = kernel::error::to_result(unsafe { bindings::agentzip_hooks_disarm() });
    if let Err(error) = result {
        control.stuck = true;
        pr_err!("disarm: a hook cannot be removed; the module stays loaded until reboot\n");
        return Err(error);
    }
    set(&state.armed, false);
    set(&state.draining, was_draining);
    pr_info!("disarmed\n");
    Ok(())
}

/// Stops new stores, waits for those under way and returns the number of entries left.
pub(crate) fn drain(state: &State) -> u64 {
    let _control = state.control.lock();
    set(&state.draining, true);
    // Handlers that saw the former state are RCU readers, the stores they began are in flight.
    synchronize_readers();
    state.table.entries()
}

/// The name, or `instead` when all its bytes are zero. `EINVAL` for an illegal one.
pub(super) fn name_or(name: &Name, instead: Option<&Name>) -> Result<Name> {
    if let (true, Some(instead)) = (name.iter().all(|&b| b == 0), instead) {
        return Ok(*instead);
    }
    uapi::name_as_str(name).ok_or(EINVAL)?;
    Ok(*name)
}

pub(super) fn default_domain() -> Result<Name> {
    uapi::name_from_str(uapi::DEFAULT_DOMAIN).ok_or(EINVAL)
}
