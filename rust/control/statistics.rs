// SPDX-License-Identifier: GPL-2.0

//! Statistics of a sandbox and of the whole store, and what the store occupies.
//!
//! Takes no control lock: tables are walked under RCU. Numbers change while they are added up.

use kernel::prelude::*;
use kernel::sync::rcu;

use super::groups::for_each_group;
use super::with_sandbox;
use crate::group::Group;
use crate::pages;
use crate::sandbox::Sandbox;
use crate::state::State;
use crate::template::Template;
use crate::uapi;

/// What the store occupies.
pub(crate) fn memory(state: &State) -> uapi::MemoryStats {
    let rcu = rcu::read_lock();
    let mut stats = uapi::MemoryStats {
        table: state.table.bytes(),
        scratch: state.scratch.bytes() + state.look.bytes(),
        objects: state.sandboxes.bytes() + state.templates.bytes() + state.requests.bytes(),
        ..Default::default()
    };
    state.templates.for_each(&rcu, |_, template| {
        stats.template_pages += template.pages.page_bytes();
        stats.template_index += template.pages.index_bytes();
        stats.objects += size_of::<Template>() as u64;
        stats.sketches += template.content.bytes();
    });
    state.sandboxes.for_each(&rcu, |_, sandbox| {
        stats.objects +=
            size_of::<Sandbox>() as u64 + sandbox.ranges.bytes(&rcu) + sandbox.recorder.bytes();
    });
    for_each_group(state, &rcu, |group| {
        let (references, sketches) = group.bytes();
        stats.references += references;
        stats.sketches += sketches;
        stats.dictionaries += group.dictionaries().bytes;
        stats.objects += size_of::<Group>() as u64;
    });
    // The rest of the store's pages; they change while we count.
    stats.arenas = pages::bytes().saturating_sub(stats.references + stats.sketches);
    stats
}

/// Statistics of a sandbox, or with cgroup id 0 of the whole store.
pub(crate) fn stats(state: &State, arg: &mut uapi::Stats) -> Result {
    if arg.cgroup_id == 0 {
        arg.page = state.counters.snapshot();
        arg.memory = memory(state);
    } else {
        arg.page = with_sandbox(state, arg.cgroup_id, |sandbox| sandbox.counters.snapshot())?;
        arg.memory = uapi::MemoryStats::default();
    }
    Ok(())
}
