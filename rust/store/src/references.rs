// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The reference pages of a group: stored payloads that entries of siblings are encoded against.
//!
//! A reference has an id, which never changes while it lives, a place, which compaction may change,
//! and a count of the entries that need it. Records of 16 bytes lie in pages:
//!
//! ```text
//! bytes   0..8    number of the first free record, RECORDS_PER_PAGE for none
//! bytes   8..16   number of live records
//! bytes  16..     RECORDS_PER_PAGE records of two words:
//!                   live: word 0: bits 0..50 place, 50..58 depth, 62 settled, 63 set; word 1: count
//!                   free: word 0: number of the next free record;         word 1: 0
//! ```
//!
//! New references go to the lowest page that has room, so that the others empty in time.

use super::directory::{Directory, Put};
use super::pages::{read_u64, write_u64};
use super::place::PLACE_BITS;
use super::{Pages, Place, Released, PAGE_BYTES};

const FIRST_FREE: usize = 0;
const LIVE_RECORDS: usize = 8;
const HEADER_BYTES: usize = 16;
const RECORD_BYTES: usize = 16;
const COUNT: usize = 8;

const RECORDS_PER_PAGE: u32 = ((PAGE_BYTES - HEADER_BYTES) / RECORD_BYTES) as u32;
const MAX_PAGES: u32 = 512;

const DEPTH_SHIFT: u32 = PLACE_BITS;
const SETTLED: u64 = 1 << 62;
const LIVE: u64 = 1 << 63;

/// Most references that can live at a time; ids are below it.
pub const MAX_REFERENCES: u32 = MAX_PAGES * RECORDS_PER_PAGE;

const _: () =
    assert!(MAX_REFERENCES <= 1 << 24 && DEPTH_SHIFT + u8::BITS <= SETTLED.trailing_zeros());

/// A live reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reference {
    /// Where its payload lies.
    pub place: Place,
    /// Number of entries that need it, at least 1.
    pub count: u32,
    /// How many other references one has to decode before it.
    pub depth: u8,
    /// Whether a dictionary was tried for it, and is not worth it.
    pub settled: bool,
}

/// Why no reference was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateError {
    /// A page is needed: hand one in and try again. The first page of all goes to the directory;
    /// then it takes a second one.
    NeedPage,
    /// [`MAX_REFERENCES`] live already, or the spare page's number exceeds
    /// [`MAX_PAGE_NUMBER`](super::MAX_PAGE_NUMBER).
    Full,
}

/// What is left of a reference after a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterRelease {
    /// It still lives, with this count.
    Shared(u32),
    /// It is gone and its id free: the payload at this place has no user any more.
    Gone(Place),
}

/// The references of a group.
///
/// No call needs more than a few steps for each of the pages, [`get`](Self::get),
/// [`acquire`](Self::acquire) and [`release`](Self::release) a constant number.
///
/// # Invariants
///
/// The directory has a page exactly at the positions in `room` or `used`. `room` has those whose
/// page has a free record, `used` those whose page has a live one; `live` counts these.
pub struct References<P> {
    pages: P,
    directory: Directory,
    room: Positions,
    used: Positions,
    live: u32,
}

impl<P: Pages> References<P> {
    /// No references.
    pub const fn new(pages: P) -> Self {
        Self {
            pages,
            directory: Directory::new(),
            room: Positions::new(),
            used: Positions::new(),
            live: 0,
        }
    }

    /// Makes a reference and returns its id, below [`MAX_REFERENCES`]; ids of references that are
    /// gone are used again. A count of 0 is taken for 1.
    ///
    /// # Errors
    ///
    /// See [`CreateError`]. No reference was made; `spare` may have been taken.
    pub fn create(
        &mut self,
        place: Place,
        count: u32,
        depth: u8,
        spare: &mut Option<u32>,
    ) -> Result<u32, CreateError> {
        let position = match self.room.first() {
            Some(position) => position,
            None => self.add_page(spare)?,
        };
        let page = self
            .directory
            .get(&self.pages, position)
            .ok_or(CreateError::Full)?;
        let bytes = self.pages.bytes_mut(page);
        let number = read_u64(bytes, FIRST_FREE);
        let at = record_offset(number);
        let next = read_u64(bytes, at);
        write_u64(bytes, FIRST_FREE, next);
        write_u64(
            bytes,
            LIVE_RECORDS,
            read_u64(bytes, LIVE_RECORDS).wrapping_add(1),
        );
        let reference = Reference {
            place,
            count: count.max(1),
            depth,
            settled: false,
        };
        write_record(bytes, at, &reference);
        // INVARIANT: the page has a live record now, and a free one if the chain goes on.
        self.used.set(position, true);
        self.room.set(position, next < RECORDS_PER_PAGE.into());
        self.live = self.live.wrapping_add(1);
        Ok(position
            .wrapping_mul(RECORDS_PER_PAGE)
            .wrapping_add(number as u32))
    }

    /// The reference with this id; `None` when none lives.
    pub fn get(&self, id: u32) -> Option<Reference> {
        let page = self.directory.get(&self.pages, id / RECORDS_PER_PAGE)?;
        read_record(self.pages.bytes(page), id_offset(id))
    }

    /// Counts one more entry that needs the reference.
    ///
    /// `None`, and nothing changes, when none lives or its count is the largest possible.
    pub fn acquire(&mut self, id: u32) -> Option<()> {
        let count = self.get(id)?.count.checked_add(1)?;
        self.update(id, |reference| reference.count = count)
    }

    /// Counts one entry less, and frees the id with the last one.
    ///
    /// `None`, and nothing changes, when none lives.
    pub fn release(&mut self, id: u32) -> Option<AfterRelease> {
        let reference = self.get(id)?;
        let count = reference.count.saturating_sub(1);
        if count > 0 {
            self.update(id, |reference| reference.count = count)?;
            return Some(AfterRelease::Shared(count));
        }
        let position = id / RECORDS_PER_PAGE;
        let page = self.directory.get(&self.pages, position)?;
        let bytes = self.pages.bytes_mut(page);
        let live = read_u64(bytes, LIVE_RECORDS).saturating_sub(1);
        write_u64(bytes, LIVE_RECORDS, live);
        let at = id_offset(id);
        write_u64(bytes, at, read_u64(bytes, FIRST_FREE));
        write_u64(bytes, at.wrapping_add(COUNT), 0);
        write_u64(bytes, FIRST_FREE, (id % RECORDS_PER_PAGE).into());
        // INVARIANT: the page has a free record now, and a live one if any is left.
        self.room.set(position, true);
        self.used.set(position, live > 0);
        self.live = self.live.wrapping_sub(1);
        Some(AfterRelease::Gone(reference.place))
    }

    /// Notes that the payload of a reference has moved. `None` when none lives.
    pub fn set_place(&mut self, id: u32, place: Place) -> Option<()> {
        self.update(id, |reference| reference.place = place)
    }

    /// Notes that no dictionary is worth it for a reference. `None` when none lives.
    pub fn settle(&mut self, id: u32) -> Option<()> {
        self.update(id, |reference| reference.settled = true)
    }

    /// The live reference with the lowest id that is not below `from`.
    ///
    /// Whoever walks all of them this way may drop the lock between two calls.
    pub fn next_live(&self, from: u32) -> Option<(u32, Reference)> {
        let mut id = from;
        while id < MAX_REFERENCES {
            let position = id / RECORDS_PER_PAGE;
            if !self.used.contains(position) {
                id = self
                    .used
                    .first_from(position)?
                    .wrapping_mul(RECORDS_PER_PAGE);
            }
            // A page in `used` has a live record; only the first one looked at may have it below
            // `from`, so this goes through two pages at most.
            if let Some(reference) = self.get(id) {
                return Some((id, reference));
            }
            id = id.wrapping_add(1);
        }
        None
    }

    /// Gives back pages without a live reference, until none is left or `released` is full.
    pub fn shrink(&mut self, released: &mut Released) {
        while !released.is_full() {
            let page = match self.room.without(&self.used).first() {
                Some(position) => {
                    // INVARIANT: the page leaves directory and `room` together.
                    self.room.set(position, false);
                    self.directory.take(&mut self.pages, position)
                }
                None if self.live == 0 => self.directory.take_table(),
                None => None,
            };
            if !page.is_some_and(|page| released.push(page)) {
                break;
            }
        }
    }

    /// Forgets all references and gives all pages back.
    pub fn clear(&mut self, mut released: impl FnMut(u32)) {
        let held = self.room.or(&self.used);
        let mut next = held.first();
        while let Some(position) = next {
            if let Some(page) = self.directory.take(&mut self.pages, position) {
                released(page);
            }
            next = held.first_from(position.wrapping_add(1));
        }
        while let Some(page) = self.directory.take_table() {
            released(page);
        }
        self.room = Positions::new();
        self.used = Positions::new();
        self.live = 0;
    }

    /// Number of live references.
    pub const fn live(&self) -> u32 {
        self.live
    }

    /// Number of pages held, all told.
    pub fn pages(&self) -> u64 {
        let held = self.room.or(&self.used).len();
        held.wrapping_add(self.directory.tables()) as u64
    }

    /// Adds a page of free records and returns its position.
    fn add_page(&mut self, spare: &mut Option<u32>) -> Result<u32, CreateError> {
        let position = self
            .room
            .or(&self.used)
            .first_absent()
            .ok_or(CreateError::Full)?;
        let page = spare.take().ok_or(CreateError::NeedPage)?;
        match self.directory.put(&mut self.pages, position, page) {
            Put::AtPosition => {}
            Put::AsTable => return Err(CreateError::NeedPage),
            Put::Nowhere => {
                *spare = Some(page);
                return Err(CreateError::Full);
            }
        }
        let bytes = self.pages.bytes_mut(page);
        bytes.fill(0);
        for number in 0..u64::from(RECORDS_PER_PAGE) {
            write_u64(bytes, record_offset(number), number.wrapping_add(1));
        }
        // INVARIANT: a page whose records are all free, at a position that had none.
        self.room.set(position, true);
        Ok(position)
    }

    fn update(&mut self, id: u32, change: impl FnOnce(&mut Reference)) -> Option<()> {
        let page = self.directory.get(&self.pages, id / RECORDS_PER_PAGE)?;
        let bytes = self.pages.bytes_mut(page);
        let at = id_offset(id);
        let mut reference = read_record(bytes, at)?;
        change(&mut reference);
        write_record(bytes, at, &reference);
        Some(())
    }
}

/// Byte offset of a record in its page.
fn record_offset(number: u64) -> usize {
    (number as usize)
        .wrapping_mul(RECORD_BYTES)
        .wrapping_add(HEADER_BYTES)
}

fn id_offset(id: u32) -> usize {
    record_offset((id % RECORDS_PER_PAGE).into())
}

fn read_record(bytes: &[u8; PAGE_BYTES], at: usize) -> Option<Reference> {
    let word = read_u64(bytes, at);
    (word & LIVE != 0).then(|| Reference {
        place: Place::from_bits(word),
        count: read_u64(bytes, at.wrapping_add(COUNT)) as u32,
        depth: (word >> DEPTH_SHIFT) as u8,
        settled: word & SETTLED != 0,
    })
}

fn write_record(bytes: &mut [u8; PAGE_BYTES], at: usize, reference: &Reference) {
    let depth = u64::from(reference.depth) << DEPTH_SHIFT;
    let settled = if reference.settled { SETTLED } else { 0 };
    write_u64(
        bytes,
        at,
        LIVE | settled | depth | reference.place.to_bits(),
    );
    write_u64(bytes, at.wrapping_add(COUNT), reference.count.into());
}

/// A set of positions below [`MAX_PAGES`].
#[derive(Clone, Copy)]
struct Positions([u64; (MAX_PAGES / u64::BITS) as usize]);

impl Positions {
    const fn new() -> Self {
        Self([0; (MAX_PAGES / u64::BITS) as usize])
    }

    fn set(&mut self, position: u32, present: bool) {
        if let Some(word) = self.0.get_mut((position / u64::BITS) as usize) {
            let bit = 1 << (position % u64::BITS);
            *word = if present { *word | bit } else { *word & !bit };
        }
    }

    fn contains(&self, position: u32) -> bool {
        self.0
            .get((position / u64::BITS) as usize)
            .is_some_and(|word| word & (1 << (position % u64::BITS)) != 0)
    }

    fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    fn first(&self) -> Option<u32> {
        self.first_from(0)
    }

    /// The lowest position present that is not below `from`.
    fn first_from(&self, from: u32) -> Option<u32> {
        let mut keep = u64::MAX << (from % u64::BITS);
        let words = (0u32..).step_by(u64::BITS as usize).zip(&self.0);
        for (base, word) in words.skip((from / u64::BITS) as usize) {
            if word & keep != 0 {
                return Some(base.wrapping_add((word & keep).trailing_zeros()));
            }
            keep = u64::MAX;
        }
        None
    }

    fn first_absent(&self) -> Option<u32> {
        Self(self.0.map(|word| !word)).first()
    }

    fn or(&self, other: &Self) -> Self {
        self.combine(other, |a, b| a | b)
    }

    fn without(&self, other: &Self) -> Self {
        self.combine(other, |a, b| a & !b)
    }

    fn combine(&self, other: &Self, with: impl Fn(u64, u64) -> u64) -> Self {
        let mut combined = *self;
        for (word, &other) in combined.0.iter_mut().zip(&other.0) {
            *word = with(*word, other);
        }
        combined
    }
}
