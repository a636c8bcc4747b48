// SPDX-License-Identifier: GPL-2.0

//! Sandboxes: attach and detach a cgroup, say where its memory lies in its template, and what its agent
//! does.
//!
//! Attach, detach and ranges take the control lock: only under it sandboxes come into their table and the
//! registry, and leave them. [`with_sandbox`] is an RCU reader, so what it calls must not sleep; it and the
//! phase take no control lock.

use kernel::prelude::*;
use kernel::sync::rcu;
use kernel::sync::Arc;

use super::groups::{share_group, share_out};
use super::templates::find_template;
use super::tidy::tidy_sandboxes;
use super::{default_domain, name_or};
use crate::bindings;
use crate::id_table::synchronize_readers;
use crate::ranges::Ranges;
use crate::sandbox::Sandbox;
use crate::state::State;
use crate::store_policy::Owner;
use crate::sysfs;
use crate::uapi::{self, Name, Phase, Signature};

/// Deepest cgroup that can be attached, in levels below the root.
const MAX_DEPTH: usize = 64;

/// Makes a cgroup a sandbox; fills `arg.attach.cgroup_id`.
///
/// # Errors
///
/// `EINVAL` for an illegal name or flag, and for a group of a sensitive sandbox; `EBADF` and others of the descriptor; `EOPNOTSUPP` for the root and
/// for a cgroup without the memory controller; `E2BIG` for one deeper than [`MAX_DEPTH`]; `ENOENT`
/// for an unknown template; `EPERM` when the template belongs to another domain; `EKEYREJECTED` when
/// both have a signature and the two differ; `EEXIST` when the cgroup, one above or one below it is
/// attached already; `EBUSY` when entries remain from an attachment with another template or group, or
/// of which only one was sensitive;
/// `ENOSPC` when there are too many sandboxes.
pub(crate) fn sandbox_attach(state: &State, arg: &mut uapi::SandboxAttachSigned) -> Result {
    const NONE: Signature = [0; uapi::SIGNATURE_LEN];
    const NO_GROUP: Name = [0; uapi::NAME_LEN];
    let uapi::SandboxAttachSigned {
        attach: arg,
        signature,
    } = arg;
    let template_name = name_or(&arg.template, None)?;
    let sensitive = match arg.flags {
        0 => false,
        uapi::SANDBOX_SENSITIVE if arg.group == NO_GROUP => true,
        _ => return Err(EINVAL),
    };
    let group = name_or(&arg.group, Some(&template_name))?;
    let domain = name_or(&arg.domain, Some(&default_domain()?))?;

    let mut ids = KVec::from_elem(0u64, MAX_DEPTH, GFP_KERNEL)?;
    // SAFETY: The array has room for what is asked.
    let count = unsafe {
        bindings::agentzip_cgroup_ids(arg.cgroup_fd, ids.as_mut_ptr(), MAX_DEPTH as c_int)
    };
    kernel::error::to_result(count.min(0))?;
    ids.truncate(count as usize);
    let (&cgroup_id, ancestors) = ids.split_first().ok_or(EBADF)?;

    let _control = state.control.lock();
    tidy_sandboxes(state);
    let template_id = find_template(state, &template_name).ok_or(ENOENT)?;
    let mut former = None;
    {
        let rcu = rcu::read_lock();
        let template = state.templates.get(template_id, &rcu).ok_or(ENOENT)?;
        if template.domain != domain {
            return Err(EPERM);
        }
        let known = *signature != NONE && template.signature != NONE;
        if known && template.signature != *signature {
            return Err(EKEYREJECTED);
        }
        if ids.iter().any(|&id| state.registry.get(id, &rcu).is_some()) {
            return Err(EEXIST);
        }
        let mut below = false;
        state.sandboxes.for_each(&rcu, |id, sandbox| {
            below |= sandbox.is_attached() && sandbox.ancestors.contains(&cgroup_id);
            if sandbox.cgroup_id == cgroup_id {
                let old = &sandbox.group;
                let same = old.template_id == template_id && old.name == group;
                former = Some((id, same && old.private == sensitive));
            }
        });
        if below {
            return Err(EEXIST);
        }
    }
    let id = match former {
        // Detached, with entries: it comes back to life.
        Some((id, true)) => id,
        Some((_, false)) => return Err(EBUSY),
        None => {
            let place = (template_id, group, domain);
            add_sandbox(state, cgroup_id, ancestors, place, sensitive)?
        }
    };
    let owner = Owner::new(id as u16).ok_or(ENOSPC)?;
    let result = state.registry.insert(cgroup_id, owner);
    {
        let rcu = rcu::read_lock();
        if let Some(sandbox) = state.sandboxes.get(id, &rcu) {
            sandbox.set_attached(result.is_ok());
        }
    }
    arg.cgroup_id = cgroup_id;
    // A sandbox that was not registered after all is reaped like a detached one.
    // SAFETY: May be called at any time while the module is loaded.
    unsafe { bindings::agentzip_worker_kick() };
    result
}

/// Makes the object of a sandbox that is not registered yet; returns its id.
fn add_sandbox(
    state: &State,
    cgroup_id: u64,
    ancestors: &[u64],
    (template_id, name, domain): (usize, Name, Name),
    sensitive: bool,
) -> Result<usize> {
    let mut ancestor_ids = KVec::with_capacity(ancestors.len(), GFP_KERNEL)?;
    ancestor_ids.extend_from_slice(ancestors, GFP_KERNEL)?;
    let id = state.sandboxes.free_id()?;
    let template = state.templates.share(template_id).ok_or(ENOENT)?;
    let group = share_group(state, id, name, domain, template_id, sensitive)?;
    let node = sysfs::add_sandbox(id, cgroup_id)?;
    let sandbox = Arc::pin_init(
        Sandbox::new(cgroup_id, ancestor_ids, template, group, node),
        GFP_KERNEL,
    )?;
    state.sandboxes.fill(id, sandbox);
    share_out(state);
    Ok(id)
}

/// Calls `f` with the sandbox of a cgroup, attached or not.
pub(crate) fn with_sandbox<R>(
    state: &State,
    cgroup_id: u64,
    f: impl FnOnce(&Sandbox) -> R,
) -> Result<R> {
    let rcu = rcu::read_lock();
    let mut found = None;
    state.sandboxes.for_each(&rcu, |id, sandbox| {
        if sandbox.cgroup_id == cgroup_id {
            found = Some(id);
        }
    });
    let sandbox = found
        .and_then(|id| state.sandboxes.get(id, &rcu))
        .ok_or(ENOENT)?;
    Ok(f(sandbox))
}

/// Stops new stores of a sandbox; its entries stay loadable. Fills `arg.entries`.
pub(crate) fn sandbox_detach(state: &State, arg: &mut uapi::SandboxDetach) -> Result {
    let _control = state.control.lock();
    with_sandbox(state, arg.cgroup_id, |sandbox| {
        if !sandbox.is_attached() {
            return Err(ENOENT);
        }
        sandbox.set_attached(false);
        Ok(())
    })??;
    state.registry.remove(arg.cgroup_id);
    // Stores that began before end here, so that the count is true.
    synchronize_readers();
    let recording;
    (arg.entries, recording) = with_sandbox(state, arg.cgroup_id, |sandbox| {
        (sandbox.entries.get(), sandbox.recorder.stop())
    })?;
    drop(recording);
    // SAFETY: May be called at any time while the module is loaded.
    unsafe { bindings::agentzip_worker_kick() };
    Ok(())
}

/// Replaces the ranges that say where the memory of a sandbox lies in its template. Entries name
/// pages of the template, so they stay right.
pub(crate) fn sandbox_ranges(state: &State, cgroup_id: u64, ranges: Ranges) -> Result {
    let _control = state.control.lock();
    let ranges = match ranges.is_empty() {
        true => None,
        false => Some(KBox::new(ranges, GFP_KERNEL)?),
    };
    let old = with_sandbox(state, cgroup_id, |sandbox| {
        sandbox
            .is_attached()
            .then(|| sandbox.ranges.replace(ranges))
    })?
    .ok_or(ENOENT)?;
    if old.is_some() {
        rcu::synchronize_rcu();
    }
    Ok(())
}

/// Notes what the agent of a sandbox is doing.
pub(crate) fn sandbox_phase(state: &State, arg: &uapi::SandboxPhase) -> Result {
    if arg.reserved != 0 {
        return Err(EINVAL);
    }
    let phase = Phase::from_raw(arg.phase).ok_or(EINVAL)?;
    with_sandbox(state, arg.cgroup_id, |sandbox| sandbox.set_phase(phase))?
}
