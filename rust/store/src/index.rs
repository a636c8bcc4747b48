// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A bounded hash index of hints: where a page may be found that resembles the one at hand.
//!
//! A key has one hint, the last that was entered. More would mostly lead to pages that resemble each
//! other, and take room from other keys. A hint may be stale, or belong to another key whose hash is
//! alike: whoever follows one checks what it finds. In return an entry takes 8 bytes, and no call but
//! [`Index::clear`] does more than a page's work.
//!
//! The index grows by linear hashing: each page added takes over half of the entries of one other
//! page. A page is 32 left and 32 right sets of 8 entries, a cache line each. A key has one left
//! and one right set, mostly in different pages, and goes to the emptier one; if both are full, one
//! of the entries there makes room by going to its other set. That evens out the sets, and also the
//! pages: with linear hashing, those yet to be split are twice as popular.
//!
//! ```text
//! key     bits  0..12  selects the page of the left set     \ together the tag
//!         bits 12..24  selects the page of the right set    /
//!         bits 24..29  the set in either page
//!         bit      29  the set that gives way when both are full
//! entry   bits  0..40  where: bit 39 set: slot in bits 0..39,
//!                             else bits 32..34: 1 reference, 2 template page, in bits 0..32
//!         bits 40..64  tag
//! ```
//!
//! An entry of all zeros is empty. The entries of a set are roughly in the order of their age, the
//! newest first, the empty ones last. When nothing makes room, the oldest entry of a set is lost.

use super::directory::{Directory, Put, MAX_POSITIONS};
use super::{Pages, PAGE_BYTES};

const ENTRY_BYTES: usize = size_of::<u64>();
const SET_ENTRIES: usize = 8;
/// Position of the oldest entry of a full set.
const LAST: usize = SET_ENTRIES - 1;
const SET_BYTES: usize = SET_ENTRIES * ENTRY_BYTES;
const SET_BITS: u32 = 5;
const SIDE_SETS: usize = 1 << SET_BITS;
const PAGE_ENTRIES: u64 = (PAGE_BYTES / ENTRY_BYTES) as u64;

const _: () = assert!(2 * SIDE_SETS * SET_BYTES == PAGE_BYTES);

const SELECTOR_BITS: u32 = 12;
const TAG_BITS: u32 = 2 * SELECTOR_BITS;
const WHERE_BITS: u32 = u64::BITS - TAG_BITS;
const SLOT: u64 = 1 << (WHERE_BITS - 1);
const REFERENCE: u64 = 1 << 32;
const TEMPLATE: u64 = 2 << 32;

const _: () = assert!(MAX_POSITIONS <= 1 << SELECTOR_BITS);

/// The number of slots that [`Where::Slot`] can name.
pub const MAX_SLOTS: u64 = SLOT;

/// Where a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Where {
    /// In the store, under this slot, below [`MAX_SLOTS`].
    Slot(u64),
    /// The reference with this id.
    Reference(u32),
    /// The template page with this ordinal.
    Template(u32),
}

impl Where {
    /// `None` for a slot out of range. Never 0.
    const fn pack(self) -> Option<u64> {
        match self {
            Self::Slot(slot) if slot < MAX_SLOTS => Some(SLOT | slot),
            Self::Slot(_) => None,
            Self::Reference(id) => Some(REFERENCE | id as u64),
            Self::Template(ordinal) => Some(TEMPLATE | ordinal as u64),
        }
    }

    const fn unpack(bits: u64) -> Self {
        if bits & SLOT != 0 {
            Self::Slot(bits & (SLOT - 1))
        } else if bits & TEMPLATE != 0 {
            Self::Template(bits as u32)
        } else {
            Self::Reference(bits as u32)
        }
    }
}

/// Spreads the bits of a value: each bit of it changes half of the result, and different values
/// have different results.
pub const fn mix(value: u64) -> u64 {
    let mut mixed = value ^ (value >> 32);
    mixed = mixed.wrapping_mul(0xd6e8_feb8_6659_fd93);
    mixed ^= mixed >> 32;
    mixed = mixed.wrapping_mul(0xd6e8_feb8_6659_fd93);
    mixed ^ (mixed >> 32)
}

/// The key of the pages with a page index, below 2^63.
pub const fn key_of_index(page_index: u64) -> u64 {
    mix(page_index & (FEATURE - 1))
}

/// The key of the pages whose feature number `number` is `feature`.
///
/// Different for each pair, and different from the key of every page index.
pub const fn key_of_feature(number: u8, feature: u32) -> u64 {
    mix(FEATURE | ((number as u64) << u32::BITS) | feature as u64)
}

/// Tells features from page indexes before they are mixed.
const FEATURE: u64 = 1 << 63;

/// The index of a group, or of a template. The comment at the head of the file has its rules.
///
/// # Invariants
///
/// The directory has pages at the positions below `buckets`. Every entry is in a set that
/// [`Index::set_of`] names for its tag, and no other there or in its other set has this tag. `entries`
/// counts those that are not empty.
pub struct Index<P> {
    pages: P,
    directory: Directory,
    buckets: u32,
    max_pages: u32,
    entries: u64,
}

impl<P: Pages> Index<P> {
    /// An index without pages, which will hold `max_pages` at most.
    ///
    /// For each 1024 pages of entries there is one more that serves to find them; they are given
    /// and counted alike. There are at most 4096 pages of entries.
    pub const fn new(pages: P, max_pages: u32) -> Self {
        Self {
            pages,
            directory: Directory::new(),
            buckets: 0,
            max_pages,
            entries: 0,
        }
    }

    /// The hint for the key. It may be another key's.
    pub fn lookup(&self, key: u64) -> Option<Where> {
        let (_, set, position) = self.find(key)?;
        Some(Where::unpack(where_of(set.get(position))))
    }

    /// Enters a hint for the key, in place of the one that it may have, and as the newest of its set.
    ///
    /// The entry of another key may have to give way. Nothing happens while the index has no page,
    /// and with a slot out of range.
    pub fn insert(&mut self, key: u64, hint: Where) {
        let number = number_of(key);
        let (Some(entry), Some(left_at), Some(right_at)) = (
            pack_entry(key, hint),
            self.set_of(key, number, Side::Left),
            self.set_of(key, number, Side::Right),
        ) else {
            return;
        };
        let (mut left, mut right) = (self.load(left_at), self.load(right_at));
        let (side, gone) = match position_to_reuse(&left, &right, key) {
            Some(reused) => reused,
            None if left.is_full() && right.is_full() => {
                if self.make_room(&mut left, number, Side::Left) {
                    (Side::Left, LAST)
                } else if self.make_room(&mut right, number, Side::Right) {
                    (Side::Right, LAST)
                } else {
                    (victim_of(key), LAST)
                }
            }
            None if right.len() < left.len() => (Side::Right, LAST),
            None => (Side::Left, LAST),
        };
        let (mut set, at) = match side {
            Side::Left => (left, left_at),
            Side::Right => (right, right_at),
        };
        if set.push(entry, gone) == 0 {
            // INVARIANT: an empty entry went.
            self.entries = self.entries.wrapping_add(1);
        }
        self.save(at, &set);
    }

    /// Turns the hint for the key into another, which has its age then, and tells whether it was
    /// `from`.
    pub fn replace(&mut self, key: u64, from: Where, to: Where) -> bool {
        let (Some((at, mut set, position)), Some(old), Some(new)) =
            (self.find(key), pack_entry(key, from), pack_entry(key, to))
        else {
            return false;
        };
        match set.0.get_mut(position) {
            Some(entry) if *entry == old => *entry = new,
            _ => return false,
        }
        self.save(at, &set);
        true
    }

    /// Whether the index is so full that a page should be [added](Self::add_page), and may have it.
    pub fn wants_page(&self) -> bool {
        self.may_grow() && self.entries >= self.capacity() / 4 * 3
    }

    /// Gives the index a page. False, and the page stays the caller's, when it has all it may have
    /// or the page's number exceeds [`MAX_PAGE_NUMBER`](super::MAX_PAGE_NUMBER).
    #[must_use]
    pub fn add_page(&mut self, page: u32) -> bool {
        if !self.may_grow() {
            return false;
        }
        let bucket = self.buckets;
        match self.directory.put(&mut self.pages, bucket, page) {
            Put::AsTable => return true,
            Put::Nowhere => return false,
            Put::AtPosition => {}
        }
        self.pages.bytes_mut(page).fill(0);
        self.buckets = bucket.wrapping_add(1);
        let parent = bucket & !highest_bit(bucket);
        if let (true, Some(parent)) = (parent != bucket, self.directory.get(&self.pages, parent)) {
            self.split(parent, page, bucket);
        }
        true
    }

    /// Forgets everything and gives all pages back.
    pub fn clear(&mut self, mut released: impl FnMut(u32)) {
        for bucket in 0..self.buckets {
            if let Some(page) = self.directory.take(&mut self.pages, bucket) {
                released(page);
            }
        }
        while let Some(page) = self.directory.take_table() {
            released(page);
        }
        self.buckets = 0;
        self.entries = 0;
    }

    /// Number of pages held, all told.
    pub fn pages(&self) -> u64 {
        u64::from(self.buckets).wrapping_add(self.directory.tables() as u64)
    }

    /// Number of hints held.
    pub const fn entries(&self) -> u64 {
        self.entries
    }

    /// Number of hints that the pages have room for.
    fn capacity(&self) -> u64 {
        PAGE_ENTRIES.wrapping_mul(self.buckets.into())
    }

    /// Moves one entry of a full set to its other set, the oldest that has room there.
    ///
    /// Not tried when the index as a whole is nearly full: it would seldom succeed.
    fn make_room(&mut self, set: &mut Set, number: usize, side: Side) -> bool {
        if self.entries >= self.capacity() / 8 * 7 {
            return false;
        }
        for position in (0..SET_ENTRIES).rev() {
            let entry = set.get(position);
            let Some(at) = self.set_of(tag_of(entry), number, side.other()) else {
                continue;
            };
            let mut other = self.load(at);
            if !other.is_full() {
                other.append(entry);
                self.save(at, &other);
                set.remove(position);
                return true;
            }
        }
        false
    }

    /// Whether one more page of entries is within the bounds, with the table that it may take.
    fn may_grow(&self) -> bool {
        let more = if self.directory.covers(self.buckets) {
            1
        } else {
            2
        };
        self.buckets < MAX_POSITIONS && self.pages().wrapping_add(more) <= self.max_pages.into()
    }

    /// Moves the entries of a page that belong to bucket `bucket` now to the page of that.
    fn split(&mut self, from: u32, to: u32, bucket: u32) {
        for side in Side::BOTH {
            for number in 0..SIDE_SETS {
                let offset = side.offset(number);
                let old = self.load(At { page: from, offset });
                let (mut stay, mut go) = (Set::EMPTY, Set::EMPTY);
                for &entry in old.0.iter().take_while(|&&entry| entry != 0) {
                    let selected = bucket_of(side.selector(tag_of(entry)), self.buckets);
                    let set = if selected == bucket {
                        &mut go
                    } else {
                        &mut stay
                    };
                    set.append(entry);
                }
                self.save(At { page: from, offset }, &stay);
                self.save(At { page: to, offset }, &go);
            }
        }
    }

    /// The set on one side of the keys with a tag and a set number; `None` while there is no page.
    fn set_of(&self, tag: u64, number: usize, side: Side) -> Option<At> {
        if self.buckets == 0 {
            return None;
        }
        let bucket = bucket_of(side.selector(tag), self.buckets);
        Some(At {
            page: self.directory.get(&self.pages, bucket)?,
            offset: side.offset(number),
        })
    }

    /// The set with the key's entry, and its position there.
    fn find(&self, key: u64) -> Option<(At, Set, usize)> {
        Side::BOTH.into_iter().find_map(|side| {
            let at = self.set_of(key, number_of(key), side)?;
            let set = self.load(at);
            let position = set.find(key)?;
            Some((at, set, position))
        })
    }

    fn load(&self, at: At) -> Set {
        Set::read(self.pages.bytes(at.page), at.offset)
    }

    fn save(&mut self, at: At, set: &Set) {
        set.write(self.pages.bytes_mut(at.page), at.offset);
    }
}

/// Where the key has an entry, whose position a new one has to take although its sets may have room.
fn position_to_reuse(left: &Set, right: &Set, key: u64) -> Option<(Side, usize)> {
    let in_left = left.find(key).map(|position| (Side::Left, position));
    in_left.or_else(|| right.find(key).map(|position| (Side::Right, position)))
}

/// The number of a key's set on either side, below [`SIDE_SETS`].
const fn number_of(key: u64) -> usize {
    (key >> TAG_BITS) as usize & (SIDE_SETS - 1)
}

/// The side on which the oldest entry gives way.
const fn victim_of(key: u64) -> Side {
    if key & (1 << (TAG_BITS + SET_BITS)) == 0 {
        Side::Left
    } else {
        Side::Right
    }
}

/// The two halves of each page.
#[derive(Clone, Copy)]
enum Side {
    Left,
    Right,
}

impl Side {
    const BOTH: [Self; 2] = [Self::Left, Self::Right];

    /// The bits of a tag, or of the key with this tag, that select the bucket.
    const fn selector(self, tag: u64) -> u32 {
        let bits = match self {
            Self::Left => tag,
            Self::Right => tag >> SELECTOR_BITS,
        };
        bits as u32 & ((1 << SELECTOR_BITS) - 1)
    }

    const fn other(self) -> Self {
        match self {
            Self::Left => Self::Right,
            Self::Right => Self::Left,
        }
    }

    /// Byte offset in its page of the set with this number.
    const fn offset(self, number: usize) -> usize {
        let first = match self {
            Self::Left => 0,
            Self::Right => SIDE_SETS,
        };
        first.wrapping_add(number).wrapping_mul(SET_BYTES)
    }
}

/// Where a set lies.
#[derive(Clone, Copy)]
struct At {
    page: u32,
    offset: usize,
}

/// The entries of a set, newest first, empty ones last.
#[derive(Clone, Copy)]
struct Set([u64; SET_ENTRIES]);

impl Set {
    const EMPTY: Self = Self([0; SET_ENTRIES]);

    fn read(page: &[u8; PAGE_BYTES], offset: usize) -> Self {
        let mut set = Self::EMPTY;
        if let Some(bytes) = page
            .get(offset..)
            .and_then(<[u8]>::first_chunk::<SET_BYTES>)
        {
            for (entry, bytes) in set.0.iter_mut().zip(bytes.chunks_exact(ENTRY_BYTES)) {
                *entry = bytes.try_into().map_or(0, u64::from_ne_bytes);
            }
        }
        set
    }

    fn write(&self, page: &mut [u8; PAGE_BYTES], offset: usize) {
        if let Some(bytes) = page
            .get_mut(offset..)
            .and_then(<[u8]>::first_chunk_mut::<SET_BYTES>)
        {
            for (entry, bytes) in self.0.iter().zip(bytes.chunks_exact_mut(ENTRY_BYTES)) {
                bytes.copy_from_slice(&entry.to_ne_bytes());
            }
        }
    }

    fn get(&self, position: usize) -> u64 {
        self.0.get(position).copied().unwrap_or(0)
    }

    fn is_full(&self) -> bool {
        self.get(LAST) != 0
    }

    fn len(&self) -> usize {
        self.0.iter().filter(|&&entry| entry != 0).count()
    }

    /// Position of the entry of a key.
    fn find(&self, key: u64) -> Option<usize> {
        self.0.iter().position(|&entry| has_tag(entry, key))
    }

    /// Adds an entry as the newest, at the cost of the one at `gone`, and returns that, 0 if it was
    /// empty.
    fn push(&mut self, entry: u64, gone: usize) -> u64 {
        let mut carried = entry;
        for place in self.0.iter_mut().take(gone.saturating_add(1)) {
            carried = core::mem::replace(place, carried);
        }
        carried
    }

    /// Adds an entry as the oldest to a set that is not full.
    fn append(&mut self, entry: u64) {
        if let Some(place) = self.0.iter_mut().find(|entry| **entry == 0) {
            *place = entry;
        }
    }

    fn remove(&mut self, position: usize) {
        let mut carried = 0;
        for place in self.0.iter_mut().skip(position).rev() {
            carried = core::mem::replace(place, carried);
        }
    }
}

/// The bucket of linear hashing among `buckets`, of which there is at least one.
const fn bucket_of(selector: u32, buckets: u32) -> u32 {
    let highest = highest_bit(buckets);
    // As many bits as it takes to name the last bucket; those yet to come are in their parent.
    let bucket = selector & (highest.wrapping_shl(1).wrapping_sub(1));
    if bucket < buckets {
        bucket
    } else {
        bucket & highest.wrapping_sub(1)
    }
}

/// The highest bit set; 0 for 0.
const fn highest_bit(value: u32) -> u32 {
    match value.checked_ilog2() {
        Some(bit) => 1 << bit,
        None => 0,
    }
}

fn pack_entry(key: u64, hint: Where) -> Option<u64> {
    Some((key << WHERE_BITS) | hint.pack()?)
}

const fn tag_of(entry: u64) -> u64 {
    entry >> WHERE_BITS
}

const fn where_of(entry: u64) -> u64 {
    entry & ((1 << WHERE_BITS) - 1)
}

/// Whether an entry is one of a key.
const fn has_tag(entry: u64, key: u64) -> bool {
    // The same tag leaves where the entry points, which is 0 in an empty one only.
    let rest = entry ^ (key << WHERE_BITS);
    rest != 0 && rest >> WHERE_BITS == 0
}
