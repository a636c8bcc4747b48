// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The engine: what happens to a page on its way into the store and out of it.
//!
//! Generic over a [`Platform`], which has the locks, the pages and the slot table. The module is one
//! platform, the laboratory's replay and the interleaving tests are others; all run these lines.
//!
//! # Who holds what
//!
//! * A slot's descriptor is held by the slot table, under the lock of the slot.
//! * A payload is held by the descriptor that has its [`Place`], and lies in one of the two arenas of
//!   the descriptor's owner; or by a reference page, and lies in the arena of the group.
//! * A reference page is held by its count: one for each descriptor that equals it, one for each
//!   payload (of an entry or of another reference page) that names it as its base, one for each
//!   store under way that decided for it ("pin"). Whoever takes the count to zero frees the payload,
//!   then releases the base that the payload named.
//!
//! # Locks
//!
//! Slot -> sandbox's arenas -> group, in this order. Each closure that a [`Platform`] method calls runs
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
//!   the same page, for its checksum is among the bytes: names of bases mean the same, as template
//!   pages do not change and the candidate's own base is pinned from before the first look to after
//!   the second; that of a dictionary may have been given anew, and then the checksum says it.
//! * promotion / promotion of one entry: the second finds a `Ref` instead of a payload and gives up.
//! * second look / everything: it copies a provisional payload out, encodes its page under no lock,
//!   puts the new payload into the arena, and only then looks at the descriptor again, under the
//!   slot's lock: if the payload there is provisional and has the very bytes that were copied, it
//!   exchanges the two and frees the old one; else it takes the new one back. A load before that
//!   reads the old payload, one after it the new one, each in one hold. If the slot was freed and
//!   filled again in between with the same bytes, it is the same page, with the same index: a
//!   provisional payload names template pages only. Provisional entries are no candidates, so nobody
//!   else moves their payloads but compaction, after which the same bytes lie elsewhere.
//! * renewal with a new dictionary / everything: the same exchange, of a payload that is not
//!   provisional and has no base. It is a candidate and may be promoted: then the bytes are there no
//!   more. The use of its former dictionary is taken under the slot's lock, in the hold in which the
//!   payload is read, and kept until the exchange is over: so its number means the same all the time, and
//!   the same bytes are the same page.
//! * renewal of a reference page / everything: it takes a use of the page under the lock of a slot whose
//!   entry names it, so the page stays and keeps its number. The new payload goes into the group's arena
//!   and takes the place of the old one in one hold of the group's lock, if the old one still has the
//!   bytes that were read: compaction may have moved it, another renewal may have been faster. Who
//!   decodes the page copies its payload out under that lock, and gets one of the two. Only a payload that
//!   needs neither base nor dictionary is renewed, so it is at most once, and whoever copied either
//!   one finds what it needs: nothing, or a dictionary that the page uses for as long as it lives.
//! * second look, renewal / end of the sandbox: the caller keeps one sandbox and says which. Whoever owns
//!   the slot when it is read must be that one: the entry that the caller saw may be gone by then.
//! * use of a dictionary / its end: a dictionary goes when it is retired and has no users. A use is
//!   taken of the current one only, under the group's lock, before its handle is asked for; a payload
//!   counts as a user for as long as it lives, wherever it is moved. A load takes a use of the one that its
//!   payload needs in the hold in which it copies the payload: the entry may be renewed before it is
//!   decoded. It needs none of the one that a reference page needs, for that never gets another.
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

mod choose;
mod compact;
mod improve;
mod load;
mod release;
mod siblings;
mod store;

use super::codec::{
    self, Backend, Base, DecodeError, Level, Limits, Page, Representation, PAGE_SIZE,
};
use super::{Arenas, Descriptor, Group, Index, Owner, Pages, Slot};

pub use self::compact::{compact_entry, compact_group};
pub use self::improve::{dated, improve, provisional, renew, Improved, Renewed};
pub use self::load::{load, peek, LoadError, Loaded};
pub use self::release::{erase, release, Erased};
pub use self::siblings::Promoted;
pub use self::store::{store, Refusal, Stored};

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

    /// A handle of a dictionary, as the codec's backend knows it.
    type Dictionary: Clone;

    /// Calls `f` with the descriptor of a slot, under the slot's lock; what `f` leaves there stays.
    /// `None` when the slot has none.
    fn entry<R>(&self, slot: Slot, f: impl FnOnce(&mut Descriptor) -> R) -> Option<R>;

    /// Sets the descriptor of a slot and returns the former one. May allocate, not wait.
    fn put(&self, slot: Slot, new: Descriptor) -> Result<Option<Descriptor>, NoMemory>;

    /// Takes the descriptor of a slot out. Allocates nothing.
    fn take(&self, slot: Slot) -> Option<Descriptor>;

    /// Calls `f` with the arenas of a sandbox, under their lock. `None` when there is no such sandbox.
    fn arena<R>(&self, owner: Owner, f: impl FnOnce(&mut Arenas<Self::Pages>) -> R) -> Option<R>;

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

    /// The dictionary of a sandbox's group with this number, which has users or is the current one.
    /// Whoever drops the last handle frees memory: so none is dropped in a closure that runs under a
    /// lock of the platform's.
    fn dictionary(&self, owner: Owner, number: u8) -> Option<Self::Dictionary>;

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
    /// Encode with the group's dictionary.
    pub dictionary: bool,
    /// Nothing but zstd for each page by itself, filled up to one length: all of the following is nothing
    /// to such a page, and such a page is nothing to any other.
    pub padded: bool,
    /// Store in a hurry, and look again later.
    pub second_look: bool,
    /// The codec's effort, and the longest payload worth storing.
    pub limits: Limits,
    /// The same for a store that will be looked at again.
    pub cheap: Limits,
    /// Bytes that a sibling's page must save.
    pub min_gain: usize,
    /// What it must save to be made a reference page: so many percent of its own payload, which then
    /// stays for as long as anybody needs it.
    pub new_share: usize,
    /// What a reference page must save to be used by one more: so many percent of its payload.
    pub old_share: usize,
    /// What a sibling's page must save of the page's own payload, in percent: with it a load has more
    /// to decode.
    pub own_share: usize,
    /// Hints that are followed for one page.
    pub tries: usize,
    /// Words that a page found by content, or a sibling's, must have in common with the page to be tried
    /// at all.
    pub least_common: u32,
    /// With so many words in common with a sibling's page, the second look tries nothing else.
    pub much_common: u32,
    /// Payloads longer than this are entered in the group's index.
    pub index_from: usize,
}

impl Policy {
    /// Everything on, most of it in the second look.
    pub const DEFAULT: Self = Self {
        template: true,
        template_sketch: true,
        sibling_index: true,
        sibling_sketch: true,
        dictionary: true,
        padded: false,
        second_look: true,
        limits: Limits {
            max_payload: PAGE_SIZE - 64,
            ..Limits::at(Level::Best)
        },
        cheap: Limits {
            max_payload: PAGE_SIZE - 64,
            delta_zstd: false,
            prefix: false,
            ..Limits::at(Level::Cheap)
        },
        min_gain: 32,
        index_from: 256,
        new_share: 25,
        old_share: 5,
        own_share: 10,
        tries: 4,
        least_common: 48,
        much_common: 112,
    };

    /// Everything at once, with the effort that a store in reclaim can wait for, and with compressors
    /// that are too small for dictionaries. Without one, pages gain from siblings that have less in
    /// common.
    pub const AT_ONCE: Self = Self {
        second_look: false,
        dictionary: false,
        least_common: 16,
        own_share: 5,
        limits: Limits {
            max_payload: PAGE_SIZE - 64,
            ..Limits::at(Level::Fast)
        },
        ..Self::DEFAULT
    };

    /// Bytes that a candidate must save of the `alone` bytes that the page takes without it.
    fn least_gain(&self, candidate: &siblings::Candidate, alone: usize) -> usize {
        let (bytes, new) = candidate.cost();
        let share = if new { self.new_share } else { self.old_share };
        let own = alone * self.own_share / 100;
        self.min_gain.max(bytes * share / 100).max(own)
    }
}

/// Buffers of one store, load or promotion at a time. Plain bytes: all zero is a valid value.
pub struct Work {
    /// The best payload so far, and the one being tried.
    best: Buffer,
    trial: Buffer,
    /// The payload of the entry that is looked at again.
    looked_at: Buffer,
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
            looked_at: [0; codec::MAX_PAYLOAD],
            candidate: [0; codec::MAX_PAYLOAD],
            payload: [0; codec::MAX_PAYLOAD],
            base: [0; PAGE_SIZE],
            inner: [0; PAGE_SIZE],
            kept_base: [0; PAGE_SIZE],
            kept_candidate: [0; codec::MAX_PAYLOAD],
            codec: codec::Scratch::new(),
        }
    }

    /// Leaves nothing in them of a page that was stored with [`Policy::padded`], or of one that was loaded
    /// and had been.
    pub fn wipe(&mut self) {
        self.best.fill(0);
        self.payload.fill(0);
        self.codec.wipe();
    }

    /// Leaves nothing in any of them. `zero` overwrites a buffer in a way that the compiler keeps even if
    /// nobody reads it again.
    pub fn wipe_all(&mut self, zero: impl Fn(&mut [u8])) {
        let Self {
            best,
            trial,
            looked_at,
            candidate,
            payload,
            base,
            inner,
            kept_base,
            kept_candidate,
            codec,
        } = self;
        for buffer in [best, trial, looked_at, candidate, payload, kept_candidate] {
            zero(buffer);
        }
        for page in [base, inner, kept_base] {
            zero(page);
        }
        codec.wipe_with(zero);
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
