// SPDX-License-Identifier: GPL-2.0

//! The worker's round, and what it shares with attach and the removal of a template: sandboxes whose cgroup
//! is gone are detached, and freed when their last entry is.
//!
//! The round takes the control lock; callers of all else hold it.

use kernel::prelude::*;
use kernel::sync::rcu;

use super::groups::{pass_on_group, share_out};
use crate::bindings;
use crate::compaction;
use crate::id_table::synchronize_readers;
use crate::second_look;
use crate::state::State;

/// The worker's round: detaches sandboxes whose cgroup was removed, frees detached ones without
/// entries, drops dictionaries that nobody needs any more, shares out what reference pages may take,
/// compacts arenas, adopts orphaned template pages and indexes their contents. Starts the second look
/// if there is something for it. Returns whether there will be more to do.
pub(crate) fn housekeeping(state: &State) -> bool {
    let mut control = state.control.lock();
    tidy_sandboxes(state);
    drop_unused_dictionaries(state);
    share_out(state);
    compaction::compact(state, &mut control.compaction);
    if second_look::is_due(state) {
        second_look::kick();
    }
    let mut more = !state.registry.is_empty();
    for id in 0..state.templates.capacity() {
        if let Some(template) = state.templates.share(id) {
            template.pages.adopt_orphans();
            template.content.build(&template.pages, &state.max_bytes);
            more = true;
        }
    }
    more
}

/// Drops retired dictionaries without users. Entries end where nothing can be freed that may sleep, so
/// that it is done here. The caller holds the control lock.
fn drop_unused_dictionaries(state: &State) {
    for id in 0..state.sandboxes.capacity() {
        if let Some(sandbox) = state.sandboxes.share(id) {
            if sandbox.group.is_represented_by(id) {
                sandbox.group.drop_unused_dictionaries();
            }
        }
    }
}

/// Detaches sandboxes whose cgroup was removed and frees detached ones without entries. The caller
/// holds the control lock.
pub(super) fn tidy_sandboxes(state: &State) {
    detach_removed(state);
    reap_sandboxes(state);
}

fn detach_removed(state: &State) {
    for id in 0..state.sandboxes.capacity() {
        let Some(sandbox) = state.sandboxes.share(id) else {
            continue;
        };
        // SAFETY: May sleep, as we may.
        if sandbox.is_attached() && !unsafe { bindings::agentzip_cgroup_exists(sandbox.cgroup_id) }
        {
            sandbox.set_attached(false);
            state.registry.remove(sandbox.cgroup_id);
            drop(sandbox.recorder.stop());
        }
    }
}

fn reap_sandboxes(state: &State) {
    let mut detached = KVec::new();
    {
        let rcu = rcu::read_lock();
        state.sandboxes.for_each(&rcu, |id, sandbox| {
            if !sandbox.is_attached() && sandbox.entries.get() == 0 {
                // Without memory the next round takes it.
                let _ = detached.push(id, GFP_NOWAIT);
            }
        });
    }
    let Ok(mut dead) = KVec::with_capacity(detached.len(), GFP_KERNEL) else {
        return;
    };
    if detached.is_empty() {
        return;
    }
    // A store that found the sandbox before it was detached may still add an entry.
    synchronize_readers();
    for &id in detached.iter() {
        let is_dead = {
            let rcu = rcu::read_lock();
            state
                .sandboxes
                .get(id, &rcu)
                .is_some_and(|sandbox| sandbox.entries.get() == 0)
        };
        if let Some(sandbox) = is_dead.then(|| state.sandboxes.take(id)).flatten() {
            pass_on_group(state, id, &sandbox.group);
            // Cannot fail: there is room for all.
            let _ = dead.push_within_capacity(sandbox);
        }
    }
    synchronize_readers();
    drop(dead);
}
