// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A table of page numbers by position, kept in pages itself.
//!
//! It spares its owner an array of thousands of numbers that would have to be one allocation.

use super::pages::{read_u32, write_u32};
use super::{Pages, MAX_PAGE_NUMBER, NO_PAGE, PAGE_BYTES};

const ENTRY_BYTES: usize = size_of::<u32>();
const TABLE_ENTRIES: u32 = (PAGE_BYTES / ENTRY_BYTES) as u32;
const TABLES: usize = 4;

/// Positions of a directory.
pub(super) const MAX_POSITIONS: u32 = TABLES as u32 * TABLE_ENTRIES;

/// What became of a page that was put into a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Put {
    /// It is found at its position now.
    AtPosition,
    /// The directory needed it for itself; the position needs another one.
    AsTable,
    /// Nothing: the position is not below [`MAX_POSITIONS`], or the page's number exceeds
    /// [`MAX_PAGE_NUMBER`].
    Nowhere,
}

/// The numbers of the pages at positions 0 to [`MAX_POSITIONS`], any of which may be empty.
pub(super) struct Directory {
    /// The pages that hold the numbers, [`NO_PAGE`] where none was needed yet.
    tables: [u32; TABLES],
}

impl Directory {
    pub(super) const fn new() -> Self {
        Self {
            tables: [NO_PAGE; TABLES],
        }
    }

    /// The page at a position.
    pub(super) fn get<P: Pages>(&self, pages: &P, position: u32) -> Option<u32> {
        let (table, offset) = self.locate(position)?;
        present(read_u32(pages.bytes(present(table)?), offset))
    }

    /// Whether [`put`](Self::put) needs no page for the directory itself at a position.
    pub(super) fn covers(&self, position: u32) -> bool {
        self.locate(position)
            .is_some_and(|(table, _)| table != NO_PAGE)
    }

    /// Puts a page at an empty position, or takes it for the directory itself.
    pub(super) fn put<P: Pages>(&mut self, pages: &mut P, position: u32, page: u32) -> Put {
        let Some((table, offset)) = self.locate(position) else {
            return Put::Nowhere;
        };
        if page > MAX_PAGE_NUMBER {
            return Put::Nowhere;
        }
        if let Some(table) = present(table) {
            write_u32(pages.bytes_mut(table), offset, page);
            return Put::AtPosition;
        }
        for entry in pages.bytes_mut(page).chunks_exact_mut(ENTRY_BYTES) {
            entry.copy_from_slice(&NO_PAGE.to_ne_bytes());
        }
        match self.tables.get_mut((position / TABLE_ENTRIES) as usize) {
            Some(table) => {
                *table = page;
                Put::AsTable
            }
            None => Put::Nowhere,
        }
    }

    /// Takes the page at a position out.
    pub(super) fn take<P: Pages>(&mut self, pages: &mut P, position: u32) -> Option<u32> {
        let (table, offset) = self.locate(position)?;
        let bytes = pages.bytes_mut(present(table)?);
        let page = present(read_u32(bytes, offset))?;
        write_u32(bytes, offset, NO_PAGE);
        Some(page)
    }

    /// Takes out one of the pages that the directory took for itself; for when no position has a
    /// page any more.
    pub(super) fn take_table(&mut self) -> Option<u32> {
        let table = self.tables.iter_mut().find(|table| **table != NO_PAGE)?;
        Some(core::mem::replace(table, NO_PAGE))
    }

    /// Number of pages that the directory took for itself.
    pub(super) fn tables(&self) -> usize {
        self.tables
            .iter()
            .filter(|&&table| table != NO_PAGE)
            .count()
    }

    /// The table of a position, [`NO_PAGE`] if it is yet to come, and the byte offset in it.
    fn locate(&self, position: u32) -> Option<(u32, usize)> {
        let table = *self.tables.get((position / TABLE_ENTRIES) as usize)?;
        Some((table, (position % TABLE_ENTRIES) as usize * ENTRY_BYTES))
    }
}

fn present(page: u32) -> Option<u32> {
    (page != NO_PAGE).then_some(page)
}
