// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The engine: what happens to a page on its way into the store and out of it.
//!
//! Generic over a [`Platform`], which has the locks, the pages and the slot table. The module is one
//! platform, the laboratory's replay and the interleaving tests are others; all run these lines.
//!
//! # Who holds what
//!
//! * A slot's descriptor is held by the slot table, under the lock of the slot.
//! * A payload is held by the descriptor that has its [`Place`], and lies in the arena of the
//!   descriptor's owner; or by a reference page, and lies in the arena of the group.
//! * A reference page is held by its count: one for each descriptor that equals it, one for each
//!   payload (of an entry or of another reference page) that names it as its base, one for each
//!   store under way that decided for it ("pin"). Whoever takes the count to zero frees the payload,
//!   then releases the base that the payload named.
//!
//! # Locks
//!
//! Slot -> sandbox's arena -> group, in this order. Each closure that a [`Platform`] method calls runs
//! under one of them, is bounded, neither sleeps nor allocates. Pages are allocated and freed
//! outside.
//!
//! # Races, by pair
//!
//! * store / load of one slot: excluded by the caller (the folio lock in the kernel), as is freeing
//!   the slot during either. So an entry that is being loaded stays; its reference pages stay with
//!   it, for it counts as their user.
//! * load / promotion, compaction: both move payloads. A load copies the payload out under the
//!   slot's lock, in the same hold in which it reads the descriptor; they move it under that lock.
//!   Reference pages are moved and copied out under the group's lock, and named by number.
//! * promotion / free or new store of the maker's slot: promotion looks at the descriptor again under
//!   the slot's lock, and goes on only when the payload there has the very bytes that the candidate
//!   was decoded from. If the slot was freed and filled again in between with the same bytes, it is
//!   the same page: names of bases mean the same, as template pages do not change and the
//!   candidate's own base is pinned from before the first look to after the second.
//! * promotion / promotion of one entry: the second finds a `Ref` instead of a payload and gives up.
//! * free / free: whoever takes a descriptor out of the table is its only owner.
//! * pin / last release of a reference page: both under the group's lock. A pin is taken only where
//!   the number is known to be live: from a descriptor under its slot's lock, which counts as a
//!   user; or from the index, a hint, where [`References::acquire`] says whether it is live. A number
//!   that was given anew meanwhile names another page of the same group: a candidate like any other.
//! * group removal: a group lives as long as one of its sandboxes has an entry or is attached, and
//!   every user of a reference page is an entry or a store of such a sandbox.
//!
//! # Trust
//!
//! The index is of hints: what it names may be gone or be something else. Everything it leads to is
//! looked at under its lock, must belong to the same group, and is decoded (with its checksum)
//! before it is used. Groups never cross domains or templates, so neither do candidates.

mod compact;
mod load;
mod release;
mod siblings;
mod store;

use super::codec::{
    self, Backend, Base, DecodeError, Level, Limits, Page, Representation, PAGE_SIZE,
};
use super::{Arena, Descriptor, Group, Index, Owner, Pages, Slot};

pub use self::compact::{compact_entry, compact_group};
pub use self::load::{load, LoadError, Loaded};
pub use self::release::{erase, release, Erased};
pub use self::store::{store, Promoted, Refusal, Stored};

/// Most reference pages that have to be decoded before an entry can be.
pub const MAX_DEPTH: u8 = 2;

/// Who pays for a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Account {
    /// The sandbox: pages of its arena.
    Sandbox,
    /// Nobody; the group's budget bounds them.
    Group,
}

/// No memory for the slot table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoMemory;

/// What the engine needs of its surroundings.
///
/// Closures run under the lock that the method names; see the module's text for the order.
pub trait Platform {
    /// How arenas and tables reach their pages.
    type Pages: Pages;

    /// Calls `f` with the descriptor of a slot, under the slot's lock; what `f` leaves there stays.
    /// `None` when the slot has none.
    fn entry<R>(&self, slot: Slot, f: impl FnOnce(&mut Descriptor) -> R) -> Option<R>;

    /// Sets the descriptor of a slot and returns the former one. May allocate, not wait.
    fn put(&self, slot: Slot, new: Descriptor) -> Result<Option<Descriptor>, NoMemory>;

    /// Takes the descriptor of a slot out. Allocates nothing.
    fn take(&self, slot: Slot) -> Option<Descriptor>;

    /// Calls `f` with the arena of a sandbox, under its lock. `None` when there is no such sandbox.
    fn arena<R>(&self, owner: Owner, f: impl FnOnce(&mut Arena<Self::Pages>) -> R) -> Option<R>;

    /// Whether pages of a sandbox's arena are marked for compaction; a guess that spares taking its
    /// lock. What is marked during the whole call must not be missed.
    fn is_compacting(&self, owner: Owner) -> bool;

    /// Calls `f` with the group of a sandbox, under its lock. `None` when there is no such sandbox.
    fn group<R>(&self, owner: Owner, f: impl FnOnce(&mut Group<Self::Pages>) -> R) -> Option<R>;

    /// Whether two sandboxes are in the same group.
    fn same_group(&self, a: Owner, b: Owner) -> bool;

    /// Calls `f` with the template pages that have a page index, at most
    /// [`MAX_CANDIDATES`](super::template::MAX_CANDIDATES).
    fn template_bases<R>(&self, owner: Owner, index: u64, f: impl FnOnce(&[Base<'_>]) -> R) -> R;

    /// Calls `f` with a page of the sandbox's template. `None` when there is no such page.
    fn template_page<R>(&self, owner: Owner, ordinal: u32, f: impl FnOnce(&Page) -> R)
        -> Option<R>;

    /// Calls `f` with the content index of the sandbox's template, once it is built.
    fn template_index<R>(
        &self,
        owner: Owner,
        f: impl FnOnce(&Index<Self::Pages>) -> R,
    ) -> Option<R>;

    /// A zeroed page for an arena or a table, without waiting for memory. `None` when there is no
    /// memory or a limit is reached.
    fn allocate(&self, owner: Owner, account: Account) -> Option<u32>;

    /// Frees a page that [`Self::allocate`] gave. Does not sleep.
    fn free(&self, page: u32);

    /// Is told of an entry that became a reference to its former payload, whether or not the page is
    /// stored that it was promoted for. Called under no lock.
    fn promoted(&self, _promoted: &Promoted) {}
}

/// What the engine may do, and from where on it pays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Encode against template pages of the same index.
    pub template: bool,
    /// Encode against template pages of similar content.
    pub template_sketch: bool,
    /// Encode against siblings' pages of the same index.
    pub sibling_index: bool,
    /// Encode against siblings' pages of similar content.
    pub sibling_sketch: bool,
    /// The codec's effort, and the longest payload worth storing.
    pub limits: Limits,
    /// Bytes that a sibling's page must save.
    pub min_gain: usize,
    /// What it must save to be made a reference page: so many percent of its own payload, which then
    /// stays for as long as anybody needs it.
    pub new_share: usize,
    /// What a reference page must save to be used by one more: so many percent of its payload.
    pub old_share: usize,
    /// Hints that are followed for one page.
    pub tries: usize,
    /// Words that a sibling's page must have in common with the page to be tried at all.
    pub least_common: u32,
    /// Payloads longer than this are entered in the group's index.
    pub index_from: usize,
}

impl Policy {
    /// Everything on.
    pub const DEFAULT: Self = Self {
        template: true,
        template_sketch: true,
        sibling_index: true,
        sibling_sketch: true,
        limits: Limits {
            max_payload: PAGE_SIZE - 64,
            ..Limits::at(Level::Fast)
        },
        min_gain: 32,
        index_from: 256,
        new_share: 60,
        old_share: 10,
        tries: 4,
        least_common: 32,
    };

    /// Bytes that a candidate must save.
    fn least_gain(&self, candidate: &siblings::Candidate) -> usize {
        let (bytes, new) = candidate.cost();
        let share = if new { self.new_share } else { self.old_share };
        self.min_gain.max(bytes * share / 100)
    }
}

/// Buffers of one store, load or promotion at a time. Plain bytes: all zero is a valid value.
pub struct Work {
    /// The best payload so far, and the one being tried.
    best: Buffer,
    trial: Buffer,
    /// The payload of a candidate, as it was when the candidate was decoded.
    candidate: Buffer,
    /// A payload on its way to the decoder.
    payload: Buffer,
    /// Pages decoded on the way: the candidate, and what it is based on.
    base: Page,
    inner: Page,
    /// The nearest candidate so far, while others are looked at, and its payload.
    kept_base: Page,
    kept_candidate: Buffer,
    /// The codec's own.
    codec: codec::Scratch,
}

/// Room for a payload.
type Buffer = [u8; codec::MAX_PAYLOAD];

impl Work {
    /// Buffers ready for use.
    pub const fn new() -> Self {
        Self {
            best: [0; codec::MAX_PAYLOAD],
            trial: [0; codec::MAX_PAYLOAD],
            candidate: [0; codec::MAX_PAYLOAD],
            payload: [0; codec::MAX_PAYLOAD],
            base: [0; PAGE_SIZE],
            inner: [0; PAGE_SIZE],
            kept_base: [0; PAGE_SIZE],
            kept_candidate: [0; codec::MAX_PAYLOAD],
            codec: codec::Scratch::new(),
        }
    }

    /// The codec's own buffers, for who uses the codec by itself.
    pub fn codec(&mut self) -> &mut codec::Scratch {
        &mut self.codec
    }
}

impl Default for Work {
    fn default() -> Self {
        Self::new()
    }
}
