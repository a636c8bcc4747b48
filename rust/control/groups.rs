// SPDX-License-Identifier: GPL-2.0

//! Groups: who is in which, which sandbox stands for one, and what its reference pages may take.
//!
//! Callers hold the control lock: under it alone groups and their domains come, go and get their shares.
//! Only [`for_each_group`] needs no more than RCU.

use kernel::prelude::*;
use kernel::sync::rcu;
use kernel::sync::Arc;

use super::with_sandbox;
use crate::domain::Domain;
use crate::group::Group;
use crate::state::State;
use crate::uapi::Name;

/// Reference pages of all groups may take one part in this many of what the store may.
const REFERENCE_SHARE: u64 = 2;

/// Divides what reference pages may take: equally between the domains that have groups, and between
/// the groups of a domain. Reference pages are charged to nobody, so that nobody should be able to
/// take them all. Groups of sensitive sandboxes have none. The caller holds the control lock.
pub(super) fn share_out(state: &State) {
    let bytes = state.max_bytes.get() / REFERENCE_SHARE;
    let rcu = rcu::read_lock();
    let for_each_open = |f: &mut dyn FnMut(&Group)| {
        for_each_group(state, &rcu, |group| {
            if !group.private {
                f(group);
            }
        });
    };
    for_each_open(&mut |group| group.domain.begin_count());
    let mut domains: u64 = 0;
    for_each_open(&mut |group| domains += u64::from(group.domain.count_group()));
    for_each_open(&mut |group| {
        group.set_budget(bytes / domains.max(1) / group.domain.groups().max(1));
    });
}

/// Calls `f` with every group.
pub(super) fn for_each_group(state: &State, rcu: &rcu::Guard, mut f: impl FnMut(&Group)) {
    state.sandboxes.for_each(rcu, |id, sandbox| {
        if sandbox.group.is_represented_by(id) {
            f(&sandbox.group);
        }
    });
}

/// Lets another sandbox stand for the group of one that is gone, if there is one. The caller holds the
/// control lock.
pub(super) fn pass_on_group(state: &State, gone: usize, group: &Group) {
    if !group.is_represented_by(gone) {
        return;
    }
    let rcu = rcu::read_lock();
    state.sandboxes.for_each(&rcu, |id, sandbox| {
        if core::ptr::eq(&*sandbox.group, group) {
            group.represent_by(id);
        }
    });
}

/// The group of this name, domain and template; a new one, which the sandbox with this id will stand
/// for, when no sandbox is in it yet. A private one is always new, and nobody else gets it.
pub(super) fn share_group(
    state: &State,
    id: usize,
    name: Name,
    domain: Name,
    template_id: usize,
    private: bool,
) -> Result<Arc<Group>> {
    let mut known = None;
    for other in 0..state.sandboxes.capacity() {
        let Some(sandbox) = state.sandboxes.share(other) else {
            continue;
        };
        let group = &sandbox.group;
        if group.domain.name != domain {
            continue;
        }
        let open = !private && !group.private;
        if open && group.name == name && group.template_id == template_id {
            return Ok(group.clone());
        }
        if known.is_none() {
            known = Some(group.domain.clone());
        }
    }
    let domain = match known {
        Some(domain) => domain,
        None => Domain::new(domain)?,
    };
    // Its share is found when it is in the table.
    Arc::pin_init(
        Group::new(name, domain, template_id, id, private),
        GFP_KERNEL,
    )
}

/// The group of a sandbox, attached or not. The caller holds the control lock.
pub(super) fn group_of(state: &State, cgroup_id: u64) -> Result<Arc<Group>> {
    with_sandbox(state, cgroup_id, |sandbox| sandbox.group.clone())
}

/// The same to give it dictionaries, or to take samples of its pages: `EPERM` for that of a sensitive sandbox.
pub(super) fn open_group_of(state: &State, cgroup_id: u64) -> Result<Arc<Group>> {
    let group = group_of(state, cgroup_id)?;
    match group.private {
        true => Err(EPERM),
        false => Ok(group),
    }
}
