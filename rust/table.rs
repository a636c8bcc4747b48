// SPDX-License-Identifier: GPL-2.0

//! The slot table: from a swap slot to the descriptor of the page that was swapped out there.
//!
//! Descriptors lie in leaves of one page ([`Leaf`]), found through XArrays that are sharded by leaf
//! number so that CPUs working in different parts of a swap device do not meet.
//!
//! # Locking
//!
//! One lock: the spinlock of a shard's XArray, which is the lock of its slots. It nests inside the
//! swap cluster lock (invalidate runs under that one); the locks of arenas and groups nest inside
//! it, and the slab's. Nothing is allocated under it in a way that could sleep.
//!
//! Two operations on one slot race as follows:
//!
//! * store and load hold the lock of the folio that owns the slot: one after the other;
//! * invalidate runs when a slot is freed. A slot is not free while its folio is in the swap cache,
//!   and leaves the swap cache only under the folio lock: never during store or load of that slot;
//! * operations on other slots of the same leaf: the shard lock.
//!
//! So whoever gets a descriptor out of the table by [`SlotTable::replace`] or [`SlotTable::erase`]
//! is its only owner. Promotion and compaction hold no folio: they look and change in one hold of
//! the shard lock ([`SlotTable::entry`]), and a load reads the payload in the hold in which it reads
//! the descriptor. The engine's text has all pairs.

use kernel::alloc::flags::{GFP_KERNEL, GFP_NOWAIT, __GFP_NOWARN, __GFP_ZERO};
use kernel::alloc::{AllocError, KBox, KVec};
use kernel::prelude::*;
use kernel::sync::atomic::{Atomic, Relaxed};
use kernel::xarray::{AllocKind, XArray};

use crate::counters::Counter;
use crate::store_policy::{locate, Descriptor, Leaf, Slot, SlotAddress, MAX_SWAP_TYPES, SLOTS};

/// Number of XArrays. A power of two.
const SHARDS: usize = 64;

/// The table.
pub(crate) struct SlotTable {
    shards: KVec<Pin<KBox<XArray<KBox<Leaf>>>>>,
    entries: Counter,
    leaves: Counter,
    /// By swap type, one more than the highest offset that a leaf was made for.
    ends: [Atomic<u64>; MAX_SWAP_TYPES as usize],
}

fn address(slot: Slot) -> SlotAddress {
    locate(slot.swap_type(), slot.offset())
}

/// Makes `value` at least `least`.
fn raise(value: &Atomic<u64>, least: u64) {
    let mut old = value.load(Relaxed);
    while old < least {
        match value.cmpxchg(old, least, Relaxed) {
            Ok(_) => return,
            Err(now) => old = now,
        }
    }
}

fn new_leaf() -> Result<KBox<Leaf>, AllocError> {
    // Never waits: our caller holds a scratch mutex, which reclaim on our behalf could want. Under
    // PF_MEMALLOC it may use the reserves.
    let leaf = KBox::<Leaf>::new_uninit(GFP_NOWAIT | __GFP_ZERO | __GFP_NOWARN)?;
    // SAFETY: All bytes zero is a valid, empty leaf.
    Ok(unsafe { leaf.assume_init() })
}

impl SlotTable {
    pub(crate) fn new() -> Result<Self> {
        let mut shards = KVec::with_capacity(SHARDS, GFP_KERNEL)?;
        for _ in 0..SHARDS {
            shards.push(
                KBox::pin_init(XArray::new(AllocKind::Alloc), GFP_KERNEL)?,
                GFP_KERNEL,
            )?;
        }
        Ok(Self {
            shards,
            entries: Counter::new(),
            leaves: Counter::new(),
            ends: [const { Atomic::new(0) }; MAX_SWAP_TYPES as usize],
        })
    }

    fn shard(&self, address: &SlotAddress) -> Option<&XArray<KBox<Leaf>>> {
        self.shards
            .get(address.leaf as usize % SHARDS)
            .map(|shard| &**shard)
    }

    /// Key of a leaf in its shard. Neighbouring leaves lie in different shards, and those of one
    /// shard side by side.
    fn key(address: &SlotAddress) -> usize {
        address.leaf as usize / SHARDS
    }

    /// Whether the table holds nothing: then no slot needs to be looked up.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.get() == 0
    }

    /// Number of descriptors.
    pub(crate) fn entries(&self) -> u64 {
        self.entries.get()
    }

    /// Bytes of the leaves and of the tree nodes that hold them.
    pub(crate) fn bytes(&self) -> u64 {
        // A node of 576 bytes holds 64 leaves when full; the leaves of a device are dense.
        self.leaves.get() * (size_of::<Leaf>() as u64 + 576 / 64)
    }

    /// Whether a slot has a descriptor. Does not sleep.
    pub(crate) fn has(&self, slot: Slot) -> bool {
        self.entry(slot, |_| ()).is_some()
    }

    /// Calls `f` with the descriptor of a slot, under the lock of the slot; what `f` leaves there
    /// stays. `None` when the slot has none. Neither sleeps nor allocates, nor may `f`.
    pub(crate) fn entry<R>(&self, slot: Slot, f: impl FnOnce(&mut Descriptor) -> R) -> Option<R> {
        let address = address(slot);
        let mut guard = self.shard(&address)?.lock();
        guard.get_mut(Self::key(&address))?.update(address.index, f)
    }

    /// Calls `f` with the [`SLOTS`] slots around the one at `offset` of a swap type, if one of them may have
    /// a descriptor. Returns the offset to go on with, `None` after the last leaf.
    pub(crate) fn walk(&self, swap_type: u32, offset: u64, mut f: impl FnMut(Slot)) -> Option<u64> {
        let end = self.ends.get(swap_type as usize)?.load(Relaxed);
        if offset >= end {
            return None;
        }
        let first = offset - offset % SLOTS as u64;
        let leaf = locate(swap_type, first);
        let has_leaf = self
            .shard(&leaf)
            .is_some_and(|shard| shard.lock().get(Self::key(&leaf)).is_some());
        for n in 0..SLOTS as u64 {
            if !has_leaf {
                break;
            }
            if let Some(slot) = Slot::new(swap_type, first.saturating_add(n)) {
                f(slot);
            }
        }
        Some(first.saturating_add(SLOTS as u64))
    }

    /// Takes the descriptor of a slot out. Does not sleep, does not allocate.
    pub(crate) fn erase(&self, slot: Slot) -> Option<Descriptor> {
        self.erase_first(slot, 1).1
    }

    /// Takes the first descriptor of the `count` slots from `first` on out, looking at one leaf
    /// only. Also returns how many slots are done with, at least 1. Does not sleep, does not
    /// allocate.
    pub(crate) fn erase_first(&self, first: Slot, count: usize) -> (usize, Option<Descriptor>) {
        let address = address(first);
        let here = SLOTS.saturating_sub(address.index).clamp(1, count.max(1));
        let Some(shard) = self.shard(&address) else {
            return (here, None);
        };
        let key = Self::key(&address);
        let mut dead = None;
        let mut guard = shard.lock();
        let Some(leaf) = guard.get_mut(key) else {
            return (here, None);
        };
        let found = (0..here).find_map(|n| {
            let old = leaf.replace(address.index.wrapping_add(n), None)?;
            Some((n.wrapping_add(1), old))
        });
        let Some((done, old)) = found else {
            return (here, None);
        };
        if leaf.is_empty() {
            dead = guard.remove(key);
        }
        drop(guard);
        if dead.is_some() {
            self.leaves.sub(1);
        }
        self.entries.sub(1);
        (done, Some(old))
    }

    /// Sets the descriptor of a slot and returns the former one. May allocate a leaf, without
    /// waiting for memory.
    pub(crate) fn replace(
        &self,
        slot: Slot,
        new: Descriptor,
    ) -> Result<Option<Descriptor>, AllocError> {
        let address = address(slot);
        let key = Self::key(&address);
        let shard = self.shard(&address).ok_or(AllocError)?;
        let mut spare = None;
        loop {
            let mut guard = shard.lock();
            if let Some(leaf) = guard.get_mut(key) {
                let old = leaf.replace(address.index, Some(new));
                drop(guard);
                if old.is_none() {
                    self.entries.add(1);
                }
                return Ok(old);
            }
            let Some(mut leaf) = spare.take() else {
                drop(guard);
                spare = Some(new_leaf()?);
                continue;
            };
            leaf.replace(address.index, Some(new));
            // Without waiting, `store()` keeps the lock throughout: nobody else's leaf is lost.
            guard
                .store(key, leaf, GFP_NOWAIT | __GFP_NOWARN)
                .map_err(|_| AllocError)?;
            drop(guard);
            self.leaves.add(1);
            self.entries.add(1);
            if let Some(end) = self.ends.get(slot.swap_type() as usize) {
                raise(end, slot.offset().saturating_add(1));
            }
            return Ok(None);
        }
    }
}
