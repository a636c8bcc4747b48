// SPDX-License-Identifier: GPL-2.0 OR MIT

//! An arena with the list of what should be in it, on pages that count and record how they are
//! used.

use agentzip_store::{
    Arena, Pages, Place, Released, MAX_FRAGMENTS, MAX_PACKED, PAGE_BYTES, UNIT_BYTES,
};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

pub type Page = [u8; PAGE_BYTES];

/// Bytes of a page's header, and of a link.
const HEADER_BYTES: u64 = 16;
const LINK_BYTES: u64 = 8;

/// Which units of a page are taken.
type Units = [bool; PAGE_BYTES / UNIT_BYTES];

/// What the arena and the test both see of the pages.
#[derive(Default)]
pub struct Shared {
    /// Calls of the arena for a page.
    pub accesses: Cell<usize>,
    /// Those for a page that it does not have.
    pub strays: Cell<usize>,
    /// Pages that the arena has.
    pub owned: RefCell<Vec<bool>>,
    /// Set to have all pages copied to `copies` at the next call.
    pub copy: Cell<bool>,
    pub copies: RefCell<Vec<Page>>,
    /// Page, byte and bits to flip at the next call for a page to be changed.
    pub flips: RefCell<Vec<(u32, usize, u8)>>,
}

impl Shared {
    fn access(&self, page: u32) -> bool {
        self.accesses.set(self.accesses.get() + 1);
        let owned = self.owned.borrow().get(page as usize) == Some(&true);
        if !owned {
            self.strays.set(self.strays.get() + 1);
        }
        owned
    }
}

pub struct Memory {
    pages: Vec<Page>,
    /// Stands for all pages that the arena does not have.
    foreign: Box<Page>,
    shared: Rc<Shared>,
}

impl Pages for Memory {
    fn bytes(&self, page: u32) -> &Page {
        if self.shared.copy.take() {
            *self.shared.copies.borrow_mut() = self.pages.clone();
        }
        if self.shared.access(page) {
            &self.pages[page as usize]
        } else {
            &self.foreign
        }
    }

    fn bytes_mut(&mut self, page: u32) -> &mut Page {
        for (page, byte, bits) in self.shared.flips.borrow_mut().drain(..) {
            self.pages[page as usize][byte] ^= bits;
        }
        if self.shared.access(page) {
            &mut self.pages[page as usize]
        } else {
            &mut self.foreign
        }
    }
}

/// Numbers that look random (splitmix64).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }

    /// A length as pages have it in a group of sandboxes: deltas and compressed pages.
    pub fn len(&mut self) -> usize {
        if self.below(2) == 0 {
            16 + self.below(185)
        } else {
            400 + self.below(2101)
        }
    }
}

pub fn padded(payload: &[u8]) -> Vec<u8> {
    let mut padded = payload.to_vec();
    padded.resize(payload.len().next_multiple_of(UNIT_BYTES), 0);
    padded
}

/// An arena, the pages that it may have, and what should be in it.
pub struct Checked {
    pub arena: Arena<Memory>,
    pub shared: Rc<Shared>,
    unused: Vec<u32>,
    pub live: Vec<(Place, Vec<u8>)>,
}

impl Checked {
    pub fn new(pages: usize) -> Self {
        let shared = Rc::new(Shared::default());
        shared.owned.borrow_mut().resize(pages, false);
        let memory = Memory {
            // Pages come with anything in them.
            pages: vec![[0xa5; PAGE_BYTES]; pages],
            foreign: Box::new([0; PAGE_BYTES]),
            shared: shared.clone(),
        };
        Self {
            arena: Arena::new(memory),
            shared,
            unused: (0..pages as u32).collect(),
            live: Vec::new(),
        }
    }

    /// The same with an arena that overwrites what is freed.
    pub fn wiping(pages: usize) -> Self {
        let mut checked = Self::new(pages);
        let empty = Arena::new(Memory {
            pages: Vec::new(),
            foreign: Box::new([0; PAGE_BYTES]),
            shared: Rc::default(),
        });
        checked.arena = std::mem::replace(&mut checked.arena, empty).wiping();
        checked
    }

    /// Units of all pages, those that the arena gave back included, that are this.
    pub fn units_that_are(&mut self, unit: [u8; UNIT_BYTES]) -> usize {
        // A call for any page copies them all.
        self.shared.copy.set(true);
        self.arena
            .read_start(Place::from_bits((2 << 31) | (1 << 40)), &mut [0]);
        let copies = self.shared.copies.borrow();
        let units = copies.iter().flat_map(|page| page.chunks_exact(UNIT_BYTES));
        units.filter(|found| **found == unit).count()
    }

    /// Inserts as the store does: a page is handed in only after the arena asked for it.
    pub fn try_insert(&mut self, payload: &[u8]) -> Option<Place> {
        if let Ok(place) = self.arena.insert(payload, &mut None) {
            return Some(place);
        }
        let page = self.unused.pop()?;
        self.shared.owned.borrow_mut()[page as usize] = true;
        let mut spare = Some(page);
        let place = self.arena.insert(payload, &mut spare);
        if let Some(page) = spare {
            self.shared.owned.borrow_mut()[page as usize] = false;
            self.unused.push(page);
        }
        place.ok()
    }

    pub fn insert(&mut self, payload: &[u8]) {
        let place = self.try_insert(payload).expect("pages for the test");
        self.live.push((place, payload.to_vec()));
    }

    /// Takes back pages, which must have been the arena's.
    pub fn take_back(&mut self, released: &Released) {
        for page in released.iter() {
            let owned = &mut self.shared.owned.borrow_mut()[page as usize];
            assert!(std::mem::take(owned), "page {page} released twice");
            self.unused.push(page);
        }
    }

    pub fn remove(&mut self, index: usize) {
        let (place, payload) = self.live.swap_remove(index);
        let mut released = Released::new();
        let freed = self.arena.remove(place, &mut released);
        assert_eq!(freed, padded(&payload).len());
        assert!(released.iter().count() <= MAX_FRAGMENTS);
        self.take_back(&released);
    }

    /// Offers a payload to compaction; whether it moved.
    pub fn relocate(&mut self, index: usize) -> bool {
        let mut released = Released::new();
        let moved = self.arena.relocate(self.live[index].0, &mut released);
        self.take_back(&released);
        if let Some(place) = moved {
            self.live[index].0 = place;
        }
        moved.is_some()
    }

    /// One compaction of everything; the pages that it gave back.
    pub fn compact(&mut self) -> u64 {
        let before = self.arena.pages();
        while self.arena.begin_compaction() {}
        for index in 0..self.live.len() {
            self.relocate(index);
        }
        while self.arena.end_compaction() {}
        before - self.arena.pages()
    }

    /// Asserts that the payloads are what they should be.
    pub fn check_contents(&self) {
        let mut out = [0; MAX_PACKED];
        for (place, payload) in &self.live {
            let expected = padded(payload);
            assert_eq!(self.arena.read(*place, &mut out), Some(expected.len()));
            assert_eq!(out[..expected.len()], expected);
        }
    }

    /// The units of each page that fragments take, and the number of links. Asserts that fragments
    /// do not overlap.
    fn used(&self) -> (BTreeMap<u32, Units>, u64) {
        if let Some((place, _)) = self.live.first() {
            self.shared.copy.set(true);
            self.arena.read_start(*place, &mut [0]);
        }
        let pages = self.shared.copies.borrow();
        let mut used: BTreeMap<u32, Units> = BTreeMap::new();
        let mut links = 0;
        for (place, _) in &self.live {
            let mut place = *place;
            loop {
                let units =
                    usize::from(place.offset())..usize::from(place.offset() + place.units());
                let start = units.start * UNIT_BYTES;
                for unit in &mut used
                    .entry(place.page())
                    .or_insert([false; PAGE_BYTES / UNIT_BYTES])[units]
                {
                    assert!(!std::mem::replace(unit, true), "{place:?} overlaps");
                }
                if !place.continued() {
                    break;
                }
                links += 1;
                let link = &pages[place.page() as usize][start..start + UNIT_BYTES];
                place = Place::from_bits(u64::from_ne_bytes(link.try_into().unwrap()));
            }
        }
        (used, links)
    }

    /// Fills every hole, the largest first. Asserts that the arena finds each of them.
    pub fn fill_holes(&mut self) {
        loop {
            let (used, _) = self.used();
            let holes = used.values().flat_map(|units| {
                let units = &units[HEADER_BYTES as usize / UNIT_BYTES..];
                units.split(|used| *used).map(<[bool]>::len)
            });
            let largest = holes.max().unwrap_or(0);
            if largest == 0 {
                break;
            }
            let payload = vec![0x77; largest * UNIT_BYTES];
            let place = self.arena.insert(&payload, &mut None);
            let place = place.unwrap_or_else(|e| panic!("{e:?}: hole of {largest}"));
            assert!(!place.continued(), "hole of {largest}");
            self.live.push((place, payload));
        }
        assert_eq!(self.arena.free_bytes(), 0);
    }

    /// Asserts that fragments do not overlap and that the accounts are exact.
    pub fn check_accounts(&self) {
        let (used, links) = self.used();
        let payloads: usize = self.live.iter().map(|(_, p)| padded(p).len()).sum();
        let owned = self.shared.owned.borrow().iter().filter(|o| **o).count() as u64;
        let taken = used.values().flatten().filter(|u| **u).count() * UNIT_BYTES;
        assert_eq!(self.arena.pages(), owned);
        assert_eq!(self.arena.payload_bytes(), payloads as u64);
        assert_eq!(
            self.arena.overhead_bytes(),
            owned * HEADER_BYTES + links * LINK_BYTES
        );
        assert_eq!(
            self.arena.free_bytes(),
            owned * (PAGE_BYTES as u64 - HEADER_BYTES) - taken as u64
        );
        assert_eq!(used.len() as u64, owned, "an empty page was kept");
        assert_eq!(self.shared.strays.get(), 0, "a page that the arena lacks");
    }

    /// Removes everything and asserts that nothing is left.
    pub fn finish(mut self) {
        while !self.live.is_empty() {
            self.remove(self.live.len() - 1);
        }
        let arena = &self.arena;
        assert_eq!((arena.pages(), arena.free_bytes()), (0, 0));
        assert_eq!((arena.payload_bytes(), arena.overhead_bytes()), (0, 0));
        assert!(!self.shared.owned.borrow().contains(&true));
        assert_eq!(self.shared.strays.get(), 0, "a page that the arena lacks");
    }

    /// Share of the pages' bytes.
    pub fn share(&self, bytes: u64) -> f64 {
        bytes as f64 / (self.arena.pages() * PAGE_BYTES as u64) as f64
    }
}
