// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Payloads packed into pages at a granularity of 8 bytes.
//!
//! Each page has a list of its holes (`page`), and the pages are in lists by the class of their
//! largest hole (`lists`). A payload goes into the smallest hole that is large enough. When there
//! is none, it is split over the largest holes (`fragments`); a page is asked for when even they
//! do not do. So holes stay few and small however long payloads come and go. When many have gone at
//! once, compaction empties pages into the holes of others (`compaction`).
//!
//! Every step is bounded: a walk in a page by its holes, one over pages by a constant. The owner's
//! lock, which may be a spinlock, is held throughout.
//!
//! Pages that somebody else wrote to lead to lost room or wrong payloads, never to a panic, to a
//! loop, or, but for a chance of 2^-14, to a page that is not the arena's: headers and links have
//! checks.

mod compaction;
mod fragments;
mod lists;
mod page;

use self::lists::Lists;
use self::page::{Header, CAPACITY};
use super::place::{Place, MAX_PAGE_NUMBER, UNIT_BYTES};
use super::{Pages, Released, PAGE_BYTES};

/// Most bytes of a payload: what an empty page takes.
pub const MAX_PACKED: usize = CAPACITY as usize * UNIT_BYTES;

/// Most fragments of a payload, hence most pages that [`Arena::remove`] gives up.
pub const MAX_FRAGMENTS: usize = 6;

const _: () = assert!(MAX_FRAGMENTS <= Released::CAPACITY);

/// Why a payload was not inserted; nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InsertError {
    /// There is no room: call again with a spare page.
    NeedPage,
    /// The payload is empty or longer than [`MAX_PACKED`], or the spare page's number exceeds
    /// [`MAX_PAGE_NUMBER`].
    Invalid,
}

/// Sums over pages.
#[derive(Clone, Copy)]
struct Totals {
    pages: u64,
    free_units: u64,
}

impl Totals {
    const ZERO: Self = Self {
        pages: 0,
        free_units: 0,
    };

    fn add(&mut self, header: &Header) {
        self.pages = self.pages.wrapping_add(1);
        self.free_units = self.free_units.wrapping_add(header.free().into());
    }

    fn remove(&mut self, header: &Header) {
        self.pages = self.pages.saturating_sub(1);
        self.free_units = self.free_units.saturating_sub(header.free().into());
    }

    fn used_units(&self) -> u64 {
        self.pages
            .wrapping_mul(CAPACITY.into())
            .saturating_sub(self.free_units)
    }
}

/// Payloads packed into pages.
///
/// # Examples
///
/// ```
/// use agentzip_store::{Arena, InsertError, Pages, Released, PAGE_BYTES};
///
/// struct Memory(Vec<[u8; PAGE_BYTES]>);
///
/// impl Pages for Memory {
///     fn bytes(&self, page: u32) -> &[u8; PAGE_BYTES] {
///         &self.0[page as usize]
///     }
///     fn bytes_mut(&mut self, page: u32) -> &mut [u8; PAGE_BYTES] {
///         &mut self.0[page as usize]
///     }
/// }
///
/// let mut arena = Arena::new(Memory(vec![[0; PAGE_BYTES]; 2]));
/// assert_eq!(arena.insert(b"payload", &mut None), Err(InsertError::NeedPage));
/// let mut spare = Some(1);
/// let place = arena.insert(b"payload", &mut spare).unwrap();
/// assert_eq!(spare, None);
///
/// let mut out = [0; 16];
/// assert_eq!(arena.read(place, &mut out), Some(8));
/// assert_eq!(&out[..8], b"payload\0");
///
/// let mut released = Released::new();
/// assert_eq!(arena.remove(place, &mut released), 8);
/// assert!(released.iter().eq([1]));
/// ```
pub struct Arena<P: Pages> {
    pages: P,
    lists: Lists,
    /// All pages.
    all: Totals,
    /// Those that compaction marked.
    marked: Totals,
    payload_units: u64,
    /// Units in holes that a compaction in vain left behind, less what was filled since.
    settled_units: u64,
    /// Pages when the compaction under way began.
    pages_before: Option<u64>,
    /// Whether freed payloads are overwritten with zeros.
    wipes: bool,
}

impl<P: Pages> Arena<P> {
    /// An arena without pages.
    pub const fn new(pages: P) -> Self {
        Self {
            pages,
            lists: Lists::new(),
            all: Totals::ZERO,
            marked: Totals::ZERO,
            payload_units: 0,
            settled_units: 0,
            pages_before: None,
            wipes: false,
        }
    }

    /// The same arena, but one that overwrites with zeros what is freed, as it is freed: a payload that is
    /// removed, and the old place of one that is moved. Only holes' own descriptions are written there.
    #[must_use]
    pub fn wiping(mut self) -> Self {
        self.wipes = true;
        self
    }

    /// Stores a payload of 1 to [`MAX_PACKED`] bytes, filled up with zeros to a multiple of 8.
    ///
    /// Takes the page out of `spare` when it needs it.
    ///
    /// # Errors
    ///
    /// See [`InsertError`]. With a spare page it does not need another.
    pub fn insert(
        &mut self,
        payload: &[u8],
        spare: &mut Option<u32>,
    ) -> Result<Place, InsertError> {
        let valid = !payload.is_empty()
            && payload.len() <= MAX_PACKED
            && spare.is_none_or(|page| page <= MAX_PAGE_NUMBER);
        if !valid {
            return Err(InsertError::Invalid);
        }
        let units = payload.len().div_ceil(UNIT_BYTES) as u16;
        let fragments = self.allocate(units, spare).ok_or(InsertError::NeedPage)?;
        self.settled_units = self.settled_units.min(self.all.free_units);
        let mut rest = payload;
        for &place in fragments.as_slice() {
            let room = self.data_mut(place);
            let (now, later) = rest.split_at_checked(room.len()).unwrap_or((rest, &[]));
            if let Some((data, padding)) = room.split_at_mut_checked(now.len()) {
                data.copy_from_slice(now);
                padding.fill(0);
            }
            rest = later;
        }
        fragments
            .as_slice()
            .first()
            .copied()
            .ok_or(InsertError::NeedPage)
    }

    /// Copies a payload to the start of `out` and returns its length, a multiple of 8.
    ///
    /// `None` when `out` is shorter, or when no payload can be at `place`.
    pub fn read(&self, place: Place, out: &mut [u8]) -> Option<usize> {
        let mut len = 0usize;
        self.each(place, |data| {
            let end = len.wrapping_add(data.len());
            let room = out.get_mut(len..end)?;
            room.copy_from_slice(data);
            len = end;
            Some(())
        })?;
        Some(len)
    }

    /// Copies the first bytes of a payload to the start of `out`, as many as both have, and returns
    /// their number.
    ///
    /// `None` when no payload can be at `place`.
    pub fn read_start(&self, place: Place, out: &mut [u8]) -> Option<usize> {
        let mut len = 0usize;
        let mut next = Some(place);
        for _ in 0..MAX_FRAGMENTS {
            let Some(place) = next.filter(|_| len < out.len()) else {
                break;
            };
            let (data, after) = self.fragment(place)?;
            let room = out.get_mut(len..)?;
            let now = data.len().min(room.len());
            room.get_mut(..now)?.copy_from_slice(data.get(..now)?);
            len = len.wrapping_add(now);
            next = after;
        }
        Some(len)
    }

    /// Whether the payload at `place` is what [`insert`](Self::insert) makes of `payload`.
    pub fn matches(&self, place: Place, payload: &[u8]) -> bool {
        let mut rest = payload;
        let same = self.each(place, |data| {
            let (now, later) = rest.split_at_checked(data.len()).unwrap_or((rest, &[]));
            let (data, padding) = data.split_at_checked(now.len())?;
            rest = later;
            let equal =
                data == now && padding.len() < UNIT_BYTES && padding.iter().all(|b| *b == 0);
            equal.then_some(())
        });
        same.is_some() && rest.is_empty()
    }

    /// Frees a payload and returns its length in bytes, a multiple of 8.
    ///
    /// Pages that became empty leave the arena through `released`; where that is full, they stay.
    pub fn remove(&mut self, place: Place, released: &mut Released) -> usize {
        let (fragments, _) = self.fragments(place);
        usize::from(self.free(&fragments, released)).wrapping_mul(UNIT_BYTES)
    }

    /// Gives all pages back. What was stored in them is lost.
    pub fn clear(&mut self, mut released: impl FnMut(u32)) {
        // The count bounds the walk, should a link be damaged.
        for _ in 0..self.all.pages {
            match self.lists.pop(&self.pages) {
                Some(page) => released(page),
                None => break,
            }
        }
        self.lists = Lists::new();
        self.all = Totals::ZERO;
        self.marked = Totals::ZERO;
        self.payload_units = 0;
        self.settled_units = 0;
    }

    /// Pages of the arena.
    pub const fn pages(&self) -> u64 {
        self.all.pages
    }

    /// Bytes in holes.
    pub const fn free_bytes(&self) -> u64 {
        self.all.free_units.wrapping_mul(UNIT_BYTES as u64)
    }

    /// Bytes of payloads, with their padding but without links.
    pub const fn payload_bytes(&self) -> u64 {
        self.payload_units.wrapping_mul(UNIT_BYTES as u64)
    }

    /// Bytes of headers and links: what is neither payload nor hole.
    pub const fn overhead_bytes(&self) -> u64 {
        self.all
            .pages
            .wrapping_mul(PAGE_BYTES as u64)
            .saturating_sub(self.free_bytes())
            .saturating_sub(self.payload_bytes())
    }

    /// Calls `visit` with the bytes of each fragment in turn. `None` when a link is broken or a
    /// call returned it.
    #[inline]
    fn each(&self, place: Place, mut visit: impl FnMut(&[u8]) -> Option<()>) -> Option<()> {
        let mut place = place;
        for _ in 0..MAX_FRAGMENTS {
            let (data, next) = self.fragment(place)?;
            visit(data)?;
            match next {
                Some(next) => place = next,
                None => return Some(()),
            }
        }
        None
    }

    /// The payload bytes of a fragment that was just allocated.
    fn data_mut(&mut self, place: Place) -> &mut [u8] {
        let bytes = self.pages.bytes_mut(place.page());
        page::data(place)
            .and_then(|span| bytes.get_mut(span))
            .unwrap_or_default()
    }
}
