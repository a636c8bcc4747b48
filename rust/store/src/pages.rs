// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The pages that the structures of the store live in.
//!
//! Nothing here allocates. Whoever uses a structure hands pages in, named by number (the kernel
//! uses page frame numbers), and takes back those that a structure gives up.

/// Bytes of a page.
pub const PAGE_BYTES: usize = 4096;

/// Access to pages by number, at most [`MAX_PAGE_NUMBER`](super::MAX_PAGE_NUMBER).
///
/// A structure passes only the numbers of pages that it was given and has not given back. Their
/// contents are its own: nobody else may change them.
pub trait Pages {
    /// The bytes of a page.
    fn bytes(&self, page: u32) -> &[u8; PAGE_BYTES];

    /// The bytes of a page, to be changed.
    fn bytes_mut(&mut self, page: u32) -> &mut [u8; PAGE_BYTES];
}

/// Pages that a structure gave up: the caller frees them once it holds no lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Released {
    pages: [u32; Self::CAPACITY],
    len: usize,
}

impl Released {
    /// Most pages that it holds.
    pub const CAPACITY: usize = 8;

    /// No pages.
    pub const fn new() -> Self {
        Self {
            pages: [0; Self::CAPACITY],
            len: 0,
        }
    }

    /// Adds a page. False, and nothing was added, when it [is full](Self::is_full).
    #[must_use]
    pub fn push(&mut self, page: u32) -> bool {
        let Some(place) = self.pages.get_mut(self.len) else {
            return false;
        };
        *place = page;
        self.len = self.len.wrapping_add(1);
        true
    }

    /// Whether no further page can be added.
    pub const fn is_full(&self) -> bool {
        self.len >= Self::CAPACITY
    }

    /// The pages, in the order in which they were given up.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.pages.iter().copied().take(self.len)
    }
}

/// The native-endian word at a byte offset; 0 beyond the end.
pub(super) fn read_u64(page: &[u8; PAGE_BYTES], offset: usize) -> u64 {
    page.get(offset..)
        .and_then(<[u8]>::first_chunk)
        .map_or(0, |bytes| u64::from_ne_bytes(*bytes))
}

/// Puts a native-endian word at a byte offset; does nothing beyond the end.
pub(super) fn write_u64(page: &mut [u8; PAGE_BYTES], offset: usize, value: u64) {
    if let Some(bytes) = page.get_mut(offset..).and_then(<[u8]>::first_chunk_mut) {
        *bytes = value.to_ne_bytes();
    }
}

/// The native-endian half-word at a byte offset; 0 beyond the end.
pub(super) fn read_u32(page: &[u8; PAGE_BYTES], offset: usize) -> u32 {
    page.get(offset..)
        .and_then(<[u8]>::first_chunk)
        .map_or(0, |bytes| u32::from_ne_bytes(*bytes))
}

/// Puts a native-endian half-word at a byte offset; does nothing beyond the end.
pub(super) fn write_u32(page: &mut [u8; PAGE_BYTES], offset: usize, value: u32) {
    if let Some(bytes) = page.get_mut(offset..).and_then(<[u8]>::first_chunk_mut) {
        *bytes = value.to_ne_bytes();
    }
}
