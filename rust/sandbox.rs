// SPDX-License-Identifier: GPL-2.0

//! Sandboxes: one attached cgroup v2 directory, with what is below it.
//!
//! A sandbox object outlives its attachment while entries exist that its processes stored: they
//! need its template, its arena and its group. Its life: attached -> detached -> (last entry gone)
//! reaped by the worker. `entries` rises before an entry is published in the slot table and falls
//! after all of it is gone, so that zero, seen after a grace period that followed the detach, is
//! final.

use kernel::prelude::*;
use kernel::sync::atomic::{Acquire, Atomic, Relaxed, Release};
use kernel::sync::{new_spinlock, Arc, SpinLock};

use crate::codec::Level;
use crate::counters::{Counter, Counters};
use crate::group::Group;
use crate::pages::{self, DirectMap, Limit};
use crate::ranges::RangesCell;
use crate::recorder::Recorder;
use crate::second_look;
use crate::store_policy::template::Candidates;
use crate::store_policy::Arenas;
use crate::streak::Streak;
use crate::sysfs::Node;
use crate::template::Template;
use crate::uapi::Phase;

/// A sandbox.
#[pin_data(PinnedDrop)]
pub(crate) struct Sandbox {
    pub(crate) cgroup_id: u64,
    /// Ids of the cgroup's ancestors when it was attached.
    pub(crate) ancestors: KVec<u64>,
    pub(crate) template: Arc<Template>,
    pub(crate) group: Arc<Group>,
    /// Where its memory lies in the template.
    pub(crate) ranges: RangesCell,
    phase: Atomic<u32>,
    /// Whether anybody has ever told a phase.
    told: Atomic<u32>,
    /// zstd's level of the second look, one of [`LEVELS`].
    level: Atomic<u32>,
    /// How often the agent began to wait.
    waits: Atomic<u32>,
    attached: Atomic<u32>,
    /// The group's edition that all entries were looked at with, and the one that the present walk of the
    /// second look does so with; 0 when that misses some.
    renewed: Atomic<u32>,
    renewing: Atomic<u32>,
    /// Walks that were begun for the edition that the last one was begun for.
    walks: Atomic<u32>,
    walked_for: Atomic<u32>,
    /// Pages in a row that nothing made smaller.
    pub(crate) streak: Streak,
    /// Entries in the slot table, or about to be.
    pub(crate) entries: Counter,
    pub(crate) counters: Counters,
    /// Bound on the bytes of its arena.
    pub(crate) max_bytes: Limit,
    /// Whether pages of the arena are marked for compaction.
    pub(crate) compacting: Atomic<u32>,
    /// Payloads of its entries. Nests inside the lock of a slot.
    #[pin]
    pub(crate) arenas: SpinLock<Arenas<DirectMap>>,
    /// Its page faults.
    #[pin]
    pub(crate) recorder: Recorder,
    /// Its directory in sysfs.
    _node: Node,
}

/// Walks of the second look that try a new dictionary for a sandbox, if its agent cuts them short.
const MAX_WALKS: u32 = 8;

/// zstd's levels that the second look may encode with: by number, and the search that finds as much.
const LEVELS: [(u32, Level); 2] = [(3, Level::Fast), (6, Level::Best)];
const DEFAULT_LEVEL: u32 = 6;

fn new_arenas(wiping: bool) -> Arenas<DirectMap> {
    // INVARIANT: Inside a structure of the store policy.
    let arenas = Arenas::new(DirectMap);
    match wiping {
        true => arenas.wiping(),
        false => arenas,
    }
}

impl Sandbox {
    pub(crate) fn new(
        cgroup_id: u64,
        ancestors: KVec<u64>,
        template: Arc<Template>,
        group: Arc<Group>,
        node: Node,
    ) -> impl PinInit<Self> {
        let edition = group.edition();
        let private = group.private;
        pin_init!(Self {
            cgroup_id,
            ancestors,
            template,
            group,
            ranges: RangesCell::new(),
            phase: Atomic::new(Phase::Running as u32),
            told: Atomic::new(0),
            level: Atomic::new(DEFAULT_LEVEL),
            waits: Atomic::new(0),
            attached: Atomic::new(1),
            renewed: Atomic::new(edition),
            renewing: Atomic::new(0),
            walks: Atomic::new(0),
            walked_for: Atomic::new(0),
            streak: Streak::new(),
            entries: Counter::new(),
            counters: Counters::new(),
            max_bytes: Limit::new(Limit::NONE),
            compacting: Atomic::new(0),
            arenas <- new_spinlock!(new_arenas(private), "agentzip_arenas"),
            recorder <- Recorder::new(),
            _node: node,
        })
    }

    /// Ordinals of the template pages that a page with this index may be like.
    pub(crate) fn candidates(&self, index: u64) -> Candidates {
        self.ranges.candidates(&self.template.pages, index)
    }

    /// What the agent is doing, as last told.
    pub(crate) fn phase(&self) -> Phase {
        Phase::from_raw(self.phase.load(Relaxed)).unwrap_or(Phase::Running)
    }

    /// How often the agent began to wait: what is to be restored for what it did before is not wanted
    /// after that.
    pub(crate) fn waits(&self) -> u32 {
        self.waits.load(Relaxed)
    }

    /// Notes what the agent is doing. `ENOENT` when detached.
    pub(crate) fn set_phase(&self, phase: Phase) -> Result {
        if !self.is_attached() {
            return Err(ENOENT);
        }
        let before = self.phase.xchg(phase as u32, Relaxed);
        if phase == Phase::Waiting && before != phase as u32 {
            self.waits.add(1, Relaxed);
        }
        self.told.store(1, Relaxed);
        match phase {
            Phase::Waiting => second_look::kick(),
            // A walk passes its entries by.
            Phase::Running | Phase::Resuming => self.renewing.store(0, Relaxed),
        }
        Ok(())
    }

    /// Whether its pages share nothing and all take the same room. The same for as long as it has entries.
    pub(crate) fn is_sensitive(&self) -> bool {
        self.group.private
    }

    /// zstd's level of its second looks.
    pub(crate) fn level(&self) -> u32 {
        self.level.load(Relaxed)
    }

    /// Sets it. `EINVAL` when the second look has no such level.
    pub(crate) fn set_level(&self, level: u32) -> Result {
        if LEVELS.iter().all(|(number, _)| *number != level) {
            return Err(EINVAL);
        }
        self.level.store(level, Relaxed);
        Ok(())
    }

    /// The effort of its second looks.
    pub(crate) fn effort(&self) -> Level {
        let level = self.level();
        let found = LEVELS.iter().find(|(number, _)| *number == level);
        found.map_or(Level::Best, |(_, effort)| *effort)
    }

    /// Whether its entries may be looked at again now: its agent waits, or nobody tells its phases.
    pub(crate) fn may_look_again(&self) -> bool {
        self.told.load(Relaxed) == 0 || self.phase() == Phase::Waiting
    }

    /// Whether its group has had a dictionary since all its entries were last looked at.
    pub(crate) fn is_behind(&self) -> bool {
        self.renewed.load(Relaxed) != self.group.edition()
    }

    /// A walk of the second look begins. Returns whether it will look at all its entries, if its agent goes
    /// on waiting.
    ///
    /// After [`MAX_WALKS`] walks that the agent cut short the renewal is over as well. And a phase that
    /// changes at the same time may be overlooked. Entries that were missed stay as they are until the next
    /// dictionary, which costs a few bytes.
    pub(crate) fn begin_renewal(&self) -> bool {
        let may = || self.is_attached() && self.may_look_again();
        if !may() {
            return false;
        }
        let edition = self.group.edition();
        // Only the worker writes these two.
        let walks = match self.walked_for.load(Relaxed) == edition {
            true => self.walks.load(Relaxed).saturating_add(1),
            false => 1,
        };
        self.walked_for.store(edition, Relaxed);
        self.walks.store(walks, Relaxed);
        if walks > MAX_WALKS {
            self.renewed.store(edition, Relaxed);
            return false;
        }
        self.renewing.store(edition, Relaxed);
        if !may() {
            self.renewing.store(0, Relaxed);
        }
        true
    }

    /// The walk is at its end.
    pub(crate) fn end_renewal(&self) {
        match self.renewing.load(Relaxed) {
            0 => {}
            edition => self.renewed.store(edition, Relaxed),
        }
        self.renewing.store(0, Relaxed);
    }

    /// Whether stores of its pages are taken.
    pub(crate) fn is_attached(&self) -> bool {
        self.attached.load(Acquire) != 0
    }

    /// The caller holds the control lock.
    pub(crate) fn set_attached(&self, attached: bool) {
        self.attached.store(attached.into(), Release);
        if !attached {
            // A walk passes its entries by.
            self.renewing.store(0, Relaxed);
        }
    }

    /// Bytes of the pages of its arena.
    pub(crate) fn arena_bytes(&self) -> u64 {
        self.arenas.lock().pages() * kernel::page::PAGE_SIZE as u64
    }
}

#[pinned_drop]
impl PinnedDrop for Sandbox {
    fn drop(self: Pin<&mut Self>) {
        // Without entries there are no payloads, and an arena keeps no empty page: this finds one
        // only when a damaged page kept it from being given back.
        self.arenas.lock().clear(pages::free);
    }
}
