// SPDX-License-Identifier: GPL-2.0

//! The payload pool: where payloads live, on top of zsmalloc.
//!
//! Locking: zsmalloc locks itself. An object is written before its handle is published in the slot
//! table, and freed after the handle has left it. A reader of a handle is therefore either under
//! the lock of the folio whose slot holds it, which keeps the slot alive, or has taken the handle
//! out of the table itself.

use kernel::alloc::AllocError;
use kernel::bindings::{MAX_ERRNO, NUMA_NO_NODE};
use kernel::prelude::*;

use crate::bindings::{self, AGENTZIP_GFP_PAYLOAD as GFP_PAYLOAD};
use crate::counters::Counter;
use crate::store_policy::{HANDLE_BITS, HANDLE_BYTES};

/// Names a payload: below 2^[`HANDLE_BITS`], so that it fits a descriptor.
#[derive(Clone, Copy)]
pub(crate) struct Handle(u64);

impl Handle {
    pub(crate) fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    pub(crate) fn into_raw(self) -> u64 {
        self.0
    }
}

/// zsmalloc handles are addresses of 8-byte objects in the direct map.
const HANDLE_SHIFT: u32 = 3;

/// The pool.
///
/// # Invariants
///
/// `raw` is a zsmalloc pool that we own.
pub(crate) struct Pool {
    raw: *mut bindings::zs_pool,
    /// First address of the direct map, which handles are relative to.
    base: usize,
    handles: Counter,
}

// SAFETY: zsmalloc locks itself.
unsafe impl Send for Pool {}
// SAFETY: As above.
unsafe impl Sync for Pool {}

impl Pool {
    pub(crate) fn new() -> Result<Self> {
        // SAFETY: The name is a C string, which zsmalloc copies.
        let raw = unsafe { bindings::zs_create_pool(c"agentzip".as_char_ptr()) };
        if raw.is_null() {
            return Err(ENOMEM);
        }
        // INVARIANT: Just created.
        Ok(Self {
            raw,
            // SAFETY: No preconditions.
            base: unsafe { bindings::agentzip_direct_map_base() } as usize,
            handles: Counter::new(),
        })
    }

    fn address(&self, handle: Handle) -> usize {
        self.base.wrapping_add((handle.0 as usize) << HANDLE_SHIFT)
    }

    /// Keeps a payload (at least 1 byte, at most a page). Does not wait for memory; under
    /// PF_MEMALLOC it may use the reserves, as zswap does: the page it replaces is freed for it.
    pub(crate) fn insert(&self, payload: &[u8]) -> Result<Handle, AllocError> {
        // SAFETY: By the type invariants `raw` is a pool.
        let address =
            unsafe { bindings::zs_malloc(self.raw, payload.len(), GFP_PAYLOAD, NUMA_NO_NODE) };
        // IS_ERR_VALUE().
        if address >= (MAX_ERRNO as usize).wrapping_neg() {
            return Err(AllocError);
        }
        let relative = address.wrapping_sub(self.base) >> HANDLE_SHIFT;
        let handle = Handle(relative as u64);
        if relative >= 1 << HANDLE_BITS || self.address(handle) != address {
            // SAFETY: Just allocated and given to nobody.
            unsafe { bindings::zs_free(self.raw, address) };
            return Err(AllocError);
        }
        // SAFETY: The object is ours alone and has room for the payload; zsmalloc only reads it.
        unsafe {
            bindings::zs_obj_write(
                self.raw,
                address,
                payload.as_ptr().cast_mut().cast(),
                payload.len(),
            )
        };
        self.handles.add(1);
        Ok(handle)
    }

    /// Calls `f` with the first `len` bytes of a payload. `f` must not sleep. `buffer` (at least
    /// `len` bytes) is used when the object spans two pages.
    ///
    /// # Safety
    ///
    /// `handle` came from [`Self::insert`] with at least `len` bytes, and is not freed meanwhile.
    pub(crate) unsafe fn read<R>(
        &self,
        handle: Handle,
        len: usize,
        buffer: &mut [u8],
        f: impl FnOnce(&[u8]) -> R,
    ) -> R {
        let len = len.min(buffer.len());
        let address = self.address(handle);
        // SAFETY: The object is live and has `len` bytes, by our caller's promise; so has `buffer`.
        let start = unsafe {
            bindings::zs_obj_read_begin(self.raw, address, len, buffer.as_mut_ptr().cast())
        };
        // SAFETY: zsmalloc returned the start of `len` readable bytes: in the object, which it keeps
        // from moving until the read ends, or in `buffer`. Payloads are immutable.
        let result = f(unsafe { core::slice::from_raw_parts(start.cast::<u8>(), len) });
        // SAFETY: Ends the read that began above.
        unsafe { bindings::zs_obj_read_end(self.raw, address, len, start) };
        result
    }

    /// Frees a payload. Any context in which a spinlock may be taken.
    ///
    /// # Safety
    ///
    /// `handle` came from [`Self::insert`]; it is in no slot, has no reader, and is not used again.
    pub(crate) unsafe fn remove(&self, handle: Handle) {
        // SAFETY: By our caller's promise.
        unsafe { bindings::zs_free(self.raw, self.address(handle)) };
        self.handles.sub(1);
    }

    /// Bytes of the pool's pages, holes and rounding included.
    pub(crate) fn bytes(&self) -> u64 {
        // SAFETY: By the type invariants `raw` is a pool.
        (unsafe { bindings::zs_get_total_pages(self.raw) } as u64) * kernel::page::PAGE_SIZE as u64
    }

    /// Bytes of the handles' slab objects.
    pub(crate) fn handle_bytes(&self) -> u64 {
        self.handles.get() * HANDLE_BYTES as u64
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: By the type invariants we own the pool; nobody else uses it any more.
        unsafe { bindings::zs_destroy_pool(self.raw) };
    }
}
