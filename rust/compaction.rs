// SPDX-License-Identifier: GPL-2.0

//! Compaction of arenas, by the worker: payloads move out of pages that hold little, and the pages go.
//!
//! Everything here runs under the control lock. How payloads are moved beside stores, loads and erases
//! is in the engine's text.

use kernel::sync::atomic::Relaxed;

use crate::platform::Site;
use crate::sandbox::Sandbox;
use crate::state::State;
use crate::store_policy::engine::{self, Platform};
use crate::store_policy::{Owner, MAX_SWAP_TYPES};

/// Reference pages that compaction looks at in one go.
const COMPACT_BATCH: u32 = 64;

/// Leaves of the slot table that a round of compaction walks: some milliseconds.
const COMPACT_LEAVES: usize = 128;

/// Where the walk of a compaction is. Kept by the control lock.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Walk {
    pub(crate) swap_type: u32,
    pub(crate) offset: u64,
}

impl Walk {
    /// At the first slot of all.
    pub(crate) const START: Self = Self {
        swap_type: 0,
        offset: 0,
    };
}

/// Calls `f` with every sandbox and its owner. The caller holds the control lock.
fn for_each_sandbox(state: &State, mut f: impl FnMut(Owner, &Sandbox)) {
    for id in 0..state.sandboxes.capacity() {
        let owner = u16::try_from(id).ok().and_then(Owner::new);
        if let (Some(owner), Some(sandbox)) = (owner, state.sandboxes.share(id)) {
            f(owner, &sandbox);
        }
    }
}

/// Moves payloads out of pages that hold little, and gives those back: the next part of it.
///
/// Called by the worker, which holds the control lock. A compaction marks pages of all arenas that it
/// pays for, walks the whole table, in as many rounds as it takes, and ends.
pub(crate) fn compact(state: &State, walk: &mut Option<Walk>) {
    let site = Site::new(state);
    for_each_sandbox(state, |owner, _| compact_group(&site, owner));
    let Some(mut at) = walk.take().or_else(|| begin_compaction(state)) else {
        return;
    };
    for _ in 0..COMPACT_LEAVES {
        let next = state.table.walk(at.swap_type, at.offset, |slot| {
            engine::compact_entry(&site, slot);
        });
        match next {
            Some(offset) => at.offset = offset,
            None => {
                at = Walk {
                    swap_type: at.swap_type + 1,
                    offset: 0,
                }
            }
        }
        if at.swap_type >= MAX_SWAP_TYPES {
            end_compaction(state);
            return;
        }
    }
    *walk = Some(at);
}

/// Marks pages of every arena that compaction pays for. `None` when there are none.
fn begin_compaction(state: &State) -> Option<Walk> {
    let mut any = false;
    for_each_sandbox(state, |_, sandbox| {
        if !sandbox.arenas.lock().is_sparse() {
            return;
        }
        // First: a relocation must not overlook what is marked.
        sandbox.compacting.store(1, Relaxed);
        let mut marked = false;
        while sandbox.arenas.lock().begin_compaction() {
            marked = true;
        }
        if marked {
            any = true;
        } else {
            end_of(sandbox);
        }
    });
    any.then_some(Walk::START)
}

fn end_compaction(state: &State) {
    for_each_sandbox(state, |_, sandbox| {
        if sandbox.compacting.load(Relaxed) != 0 {
            end_of(sandbox);
        }
    });
}

fn end_of(sandbox: &Sandbox) {
    while sandbox.arenas.lock().end_compaction() {}
    sandbox.compacting.store(0, Relaxed);
}

fn compact_group(site: &Site<'_>, owner: Owner) {
    if site.group(owner, |group| group.arena.is_sparse()) != Some(true) {
        return;
    }
    let mut marked = false;
    while site.group(owner, |group| group.arena.begin_compaction()) == Some(true) {
        marked = true;
    }
    let mut next = marked.then_some(0);
    while let Some(first) = next {
        next = engine::compact_group(site, owner, first, COMPACT_BATCH);
    }
    while site.group(owner, |group| group.arena.end_compaction()) == Some(true) {}
}
