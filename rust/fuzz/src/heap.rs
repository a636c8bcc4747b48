// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The heap of the targets: the system's, which counts what a thread holds and refuses blocks that no
//! input should ask for. Rust then aborts. What C code allocates is not seen here.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr::null_mut;

/// Longest block in bytes.
const LONGEST: usize = 64 << 20;

thread_local! {
    /// Bytes that this thread has allocated and not given back.
    static HELD: Cell<isize> = const { Cell::new(0) };
}

/// Bytes that this thread has allocated and not given back; negative when it gave back more, which other
/// threads had allocated.
pub(crate) fn held() -> isize {
    HELD.get()
}

fn count(bytes: isize) {
    HELD.set(held().wrapping_add(bytes));
}

struct Heap;

#[global_allocator]
static HEAP: Heap = Heap;

impl Heap {
    /// Counts a block, if it is one, and returns it.
    fn counted(block: *mut u8, bytes: usize) -> *mut u8 {
        if !block.is_null() {
            count(bytes as isize);
        }
        block
    }
}

// SAFETY: Blocks are the system's, with the layouts that were asked for. Nothing here allocates.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.size() > LONGEST {
            return null_mut();
        }
        // SAFETY: As our caller promises.
        Heap::counted(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if layout.size() > LONGEST {
            return null_mut();
        }
        // SAFETY: As our caller promises.
        Heap::counted(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: As our caller promises; the block is the system's.
        unsafe { System.dealloc(block, layout) };
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        if new_size > LONGEST {
            return null_mut();
        }
        // SAFETY: As our caller promises; the block is the system's.
        let moved = unsafe { System.realloc(block, layout, new_size) };
        if !moved.is_null() {
            count(new_size as isize - layout.size() as isize);
        }
        moved
    }
}
