// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Buffers between two pages that nobody may touch: code that reads or writes beyond their end, or before
//! the beginning of a full one, is killed at once, C code too.

use std::ptr::{null_mut, NonNull};

use agentzip_codec::{Page, PAGE_SIZE};
use rustix::mm::{mmap_anonymous, mprotect, munmap, MapFlags, MprotectFlags, ProtFlags};

/// A buffer whose last bytes are used.
///
/// # Invariants
///
/// `start` is that of a private mapping of `capacity` bytes and two pages, which this value owns. All of
/// it can be read and written but for the first page and the last.
pub(crate) struct Guarded {
    start: NonNull<u8>,
    capacity: usize,
}

impl Guarded {
    /// A buffer of so many pages, all zero.
    pub(crate) fn new(pages: usize) -> Self {
        let capacity = pages * PAGE_SIZE;
        let length = capacity + 2 * PAGE_SIZE;
        let nothing = ProtFlags::empty();
        // SAFETY: A new mapping, wherever the kernel likes.
        let mapped = unsafe { mmap_anonymous(null_mut(), length, nothing, MapFlags::PRIVATE) };
        let start = mapped.ok().and_then(|start| NonNull::new(start.cast()));
        let start: NonNull<u8> = start.expect("there is address space for a few pages");
        let all = MprotectFlags::READ | MprotectFlags::WRITE;
        // SAFETY: Inside of the mapping, which nobody else knows.
        let opened = unsafe {
            let first = start.as_ptr().add(PAGE_SIZE);
            mprotect(first.cast(), capacity, all)
        };
        opened.expect("a part of a mapping can be made writable");
        // INVARIANT: Just mapped, and opened between its first page and its last.
        Self { start, capacity }
    }

    /// Its last bytes, at most as many as it has, as they were left.
    pub(crate) fn last(&mut self, length: usize) -> &mut [u8] {
        let length = length.min(self.capacity);
        let at = PAGE_SIZE + self.capacity - length;
        // SAFETY: By the type invariants so many bytes before the last page are ours, and can be written.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().add(at), length) }
    }

    /// Copies bytes to its end; of more than it has room for, the first.
    pub(crate) fn hold(&mut self, bytes: &[u8]) -> &mut [u8] {
        let place = self.last(bytes.len());
        let length = place.len();
        place.copy_from_slice(&bytes[..length]);
        place
    }

    /// Its last page, as it was left.
    pub(crate) fn page(&mut self) -> &mut Page {
        let page = self.last(PAGE_SIZE).first_chunk_mut();
        page.expect("a buffer has a page at least")
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        let length = self.capacity + 2 * PAGE_SIZE;
        // SAFETY: By the type invariants it is ours. A mapping that stays is none of our business.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), length) };
    }
}
