// SPDX-License-Identifier: GPL-2.0

//! Dictionaries: what zstd needs of one to compress and to decompress with it.

use core::ptr::NonNull;
use kernel::ffi::c_void;
use kernel::prelude::*;
use kernel::sync::atomic::{Acquire, Atomic, Release};
use kernel::sync::Arc;

use crate::bindings;
use crate::codec::zstd::{BEHIND_DICTIONARY, DICTIONARY, MAX_DICTIONARY};
use crate::pages;
use crate::uapi;
use crate::zstd::{level, memory, zero_words, SIZED};

const _: () = assert!(uapi::MAX_DICTIONARY as usize == MAX_DICTIONARY);

/// A dictionary with the tables that zstd makes of it. Dropping the last handle frees up to a mebibyte
/// and a half of virtually mapped memory: not in atomic context, that is under no spinlock and not under
/// RCU. Whoever uses one keeps its handle meanwhile: zstd's contexts keep none.
///
/// # Invariants
///
/// `compressor` and `decompressor` are tables of the dictionary that `content` begins with, in
/// `compressor_memory` and `decompressor_memory`; neither changes after it was made. `behind` is where the
/// [`BEHIND_DICTIONARY`] bytes begin that end `content`; they belong to who has a [`Behind`].
pub(crate) struct Dictionary {
    compressor: NonNull<c_void>,
    decompressor: NonNull<c_void>,
    behind: NonNull<u8>,
    /// Whether somebody has the room behind.
    taken: Atomic<bool>,
    content: VVec<u8>,
    compressor_memory: VVec<u64>,
    decompressor_memory: VVec<u64>,
}

// SAFETY: Plain memory that this value owns.
unsafe impl Send for Dictionary {}
// SAFETY: By the type invariants nobody writes to what several use.
unsafe impl Sync for Dictionary {}

impl Dictionary {
    /// Makes the tables. May sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` when zstd refuses the dictionary, or it is longer than [`MAX_DICTIONARY`].
    pub(crate) fn new(dictionary: &[u8]) -> Result<Arc<Self>> {
        let len = dictionary.len();
        if len > MAX_DICTIONARY {
            return Err(EINVAL);
        }
        let mut content = VVec::with_capacity(len + BEHIND_DICTIONARY, GFP_KERNEL)?;
        content.extend_from_slice(dictionary, GFP_KERNEL)?;
        content.extend_with(BEHIND_DICTIONARY, 0, GFP_KERNEL)?;
        let start: *mut u8 = content.as_mut_ptr();
        let dict = start.cast_const().cast::<c_void>();
        // SAFETY: It is longer than that.
        let behind = unsafe { start.add(len) };
        let parameters = level(DICTIONARY, SIZED);
        // SAFETY: The parameters are valid during the call.
        let c_bytes = unsafe { bindings::agentzip_zstd_cdict_bytes(&parameters, len) };
        // SAFETY: No preconditions.
        let d_bytes = unsafe { bindings::agentzip_zstd_ddict_bytes() };
        let mut compressor_memory = memory(c_bytes)?;
        let mut decompressor_memory = memory(d_bytes)?;
        // SAFETY: The memory is writable, aligned to 8 bytes and of this size, the dictionary as long as
        // said. Neither moves: the heap blocks stay with the vectors that are kept.
        let (compressor, decompressor) = unsafe {
            (
                bindings::agentzip_zstd_cdict(
                    compressor_memory.as_mut_ptr().cast(),
                    c_bytes,
                    &parameters,
                    dict,
                    len,
                ),
                bindings::agentzip_zstd_ddict(
                    decompressor_memory.as_mut_ptr().cast(),
                    d_bytes,
                    dict,
                    len,
                ),
            )
        };
        // INVARIANT: Just made, of what `content` begins with.
        let dictionary = Self {
            compressor: NonNull::new(compressor.cast_mut()).ok_or(EINVAL)?,
            decompressor: NonNull::new(decompressor.cast_mut()).ok_or(EINVAL)?,
            behind: NonNull::new(behind).ok_or(EINVAL)?,
            taken: Atomic::new(false),
            content,
            compressor_memory,
            decompressor_memory,
        };
        Ok(Arc::new(dictionary, GFP_KERNEL)?)
    }

    /// zstd's tables to compress with, valid as long as the dictionary.
    pub(crate) fn compressor(&self) -> *const c_void {
        self.compressor.as_ptr()
    }

    /// zstd's tables to decompress with, likewise.
    pub(crate) fn decompressor(&self) -> *const c_void {
        self.decompressor.as_ptr()
    }

    /// The room behind it; `None` while somebody else has it. Waits for nobody.
    pub(crate) fn behind(&self) -> Option<Behind<'_>> {
        let free = !self.taken.xchg(true, Acquire);
        // INVARIANT: It was not taken, and is from now on.
        free.then(|| Behind(self))
    }

    /// Bytes of the content, of the room behind it and of the tables.
    pub(crate) fn bytes(&self) -> u64 {
        let words = self.compressor_memory.capacity() + self.decompressor_memory.capacity();
        (self.content.capacity() + words * size_of::<u64>()) as u64
    }
}

impl Drop for Dictionary {
    fn drop(&mut self) {
        pages::zero(&mut self.content);
        zero_words(&mut self.compressor_memory);
        zero_words(&mut self.decompressor_memory);
    }
}

/// The room behind a dictionary, [`BEHIND_DICTIONARY`] bytes.
///
/// # Invariants
///
/// `taken` is set, and nobody else has one for this dictionary.
pub(crate) struct Behind<'a>(&'a Dictionary);

impl Behind<'_> {
    /// Where it begins. Nobody else reads or writes it as long as this value lives.
    pub(crate) fn start(&self) -> *mut u8 {
        self.0.behind.as_ptr()
    }
}

impl Drop for Behind<'_> {
    fn drop(&mut self) {
        self.0.taken.store(false, Release);
    }
}
