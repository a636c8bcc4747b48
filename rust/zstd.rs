// SPDX-License-Identifier: GPL-2.0

//! zstd's library in ffi/zstd.c and the kernel's CRC-32C as the codec's backend.
//!
//! Contexts live in memory that is allocated when the module loads: compressing and decompressing
//! neither allocate, free nor sleep.

use core::ptr::{self, NonNull};
use kernel::alloc::flags::{GFP_KERNEL, __GFP_ZERO};
use kernel::ffi::c_void;
use kernel::prelude::*;
use kernel::sync::Arc;

use crate::bindings;
use crate::codec::zstd::{content, Joined, Parameters};
use crate::codec::zstd::{BEHIND_DICTIONARY, DICTIONARY, MAX_WITH_DICTIONARY};
use crate::codec::{Backend, Level, Literals, PAGE_SIZE};
use crate::dictionary::Dictionary;

/// What a [`Zstd`] can do with dictionaries.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dictionaries {
    /// Decompress only, which takes no memory: [`Backend::compress_with`] fails.
    Decompress,
    /// Compress, too.
    Compress,
}

/// A compressor and two decompressors.
///
/// # Invariants
///
/// `compressor` and the decompressors are initialised ones in `compressor_memory` and
/// `decompressor_memory`.
pub(crate) struct Zstd {
    compressor: NonNull<c_void>,
    decompressor: NonNull<c_void>,
    /// For dictionaries alone: a context that had another one before takes its tables for cold, and
    /// decompresses in another, slower, way.
    dictionary_decompressor: NonNull<c_void>,
    joined: KVBox<Joined>,
    compressor_memory: VVec<u64>,
    decompressor_memory: [VVec<u64>; 2],
}

// SAFETY: Compressor and decompressor are plain memory that this value owns.
unsafe impl Send for Zstd {}

/// Zeroed memory of at least `bytes` bytes, aligned for zstd. It is virtually mapped: a power of two of
/// contiguous pages would be up to twice as large as what is counted.
pub(crate) fn memory(bytes: usize) -> Result<VVec<u64>> {
    let words = bytes.div_ceil(size_of::<u64>());
    Ok(VVec::from_elem(0, words, GFP_KERNEL)?)
}

/// Overwrites what [`memory`] gave; returns its bytes.
pub(crate) fn zero_words(memory: &mut [u64]) -> usize {
    memory.fill(0);
    // The compiler must not think that nobody looks at it any more.
    core::hint::black_box(&mut *memory);
    size_of_val(memory)
}

/// For what does not depend on the literals, such as the size of tables.
pub(crate) const SIZED: Literals = Literals::Plain;

/// What zstd is told, in the border's type.
pub(crate) fn level(parameters: Parameters, literals: Literals) -> bindings::agentzip_zstd_level {
    bindings::agentzip_zstd_level {
        window_log: parameters.window_log,
        chain_log: parameters.chain_log,
        hash_log: parameters.hash_log,
        search_log: parameters.search_log,
        min_match: parameters.min_match,
        target_length: parameters.target_length,
        strategy: parameters.strategy as u32,
        literals: literals as u32,
    }
}

/// Bytes that a compressor for all levels needs.
fn compressor_bytes(dictionaries: Dictionaries) -> usize {
    let bytes = Level::ALL.map(|effort| {
        // SAFETY: The parameters are valid during the call.
        unsafe { bindings::agentzip_zstd_compressor_bytes(&level(effort.parameters(), SIZED)) }
    });
    let with_dictionary = match dictionaries {
        Dictionaries::Decompress => 0,
        // SAFETY: As above.
        Dictionaries::Compress => unsafe {
            bindings::agentzip_zstd_dict_compressor_bytes(
                &level(DICTIONARY, SIZED),
                MAX_WITH_DICTIONARY,
            )
        },
    };
    bytes.into_iter().fold(with_dictionary, usize::max)
}

impl Zstd {
    pub(crate) fn new(dictionaries: Dictionaries) -> Result<Self> {
        let c_bytes = compressor_bytes(dictionaries);
        // SAFETY: No preconditions.
        let d_bytes = unsafe { bindings::agentzip_zstd_decompressor_bytes() };
        let mut compressor_memory = memory(c_bytes)?;
        let mut decompressor_memory = [memory(d_bytes)?, memory(d_bytes)?];
        // SAFETY: The memory is writable, aligned to 8 bytes and of this size. It does not move: the
        // heap blocks stay with the vectors that are kept.
        let (compressor, [decompressor, dictionary_decompressor]) = unsafe {
            (
                bindings::agentzip_zstd_compressor(compressor_memory.as_mut_ptr().cast(), c_bytes),
                decompressor_memory.each_mut().map(|memory| {
                    bindings::agentzip_zstd_decompressor(memory.as_mut_ptr().cast(), d_bytes)
                }),
            )
        };
        let joined = KVBox::<Joined>::new_uninit(GFP_KERNEL | __GFP_ZERO)?;
        // INVARIANT: Just initialised.
        Ok(Self {
            compressor: NonNull::new(compressor).ok_or(EINVAL)?,
            decompressor: NonNull::new(decompressor).ok_or(EINVAL)?,
            dictionary_decompressor: NonNull::new(dictionary_decompressor).ok_or(EINVAL)?,
            // SAFETY: All bytes zero is a valid value, as its documentation says.
            joined: unsafe { joined.assume_init() },
            compressor_memory,
            decompressor_memory,
        })
    }

    /// Leaves nothing in the compressor of what it compressed, nor in the room that this lay in.
    pub(crate) fn wipe_compressor(&mut self) {
        self.joined.wipe();
        let bytes = zero_words(&mut self.compressor_memory);
        // SAFETY: As in `new()`.
        let made = unsafe {
            bindings::agentzip_zstd_compressor(self.compressor_memory.as_mut_ptr().cast(), bytes)
        };
        // INVARIANT: Just initialised. It is where it was, in memory that was enough before.
        self.compressor = NonNull::new(made).unwrap_or(self.compressor);
    }

    /// Leaves nothing in the decompressor of pages without a dictionary.
    pub(crate) fn wipe_decompressor(&mut self) {
        let [memory, _] = &mut self.decompressor_memory;
        let bytes = zero_words(memory);
        // SAFETY: As in `new()`.
        let made =
            unsafe { bindings::agentzip_zstd_decompressor(memory.as_mut_ptr().cast(), bytes) };
        // INVARIANT: As above.
        self.decompressor = NonNull::new(made).unwrap_or(self.decompressor);
    }

    /// Bytes of all that was allocated.
    pub(crate) fn bytes(&self) -> u64 {
        let decompressors = self.decompressor_memory.iter().map(VVec::capacity);
        let words = self.compressor_memory.capacity() + decompressors.sum::<usize>();
        (words * size_of::<u64>() + size_of::<Joined>()) as u64
    }
}

impl Drop for Zstd {
    fn drop(&mut self) {
        self.joined.wipe();
        core::hint::black_box(&mut *self.joined);
        zero_words(&mut self.compressor_memory);
        for memory in &mut self.decompressor_memory {
            zero_words(memory);
        }
    }
}

/// A length from the border, where 0 stands for failure.
fn checked(len: usize) -> Option<usize> {
    (len != 0).then_some(len)
}

impl Backend for Zstd {
    type Dictionary = Arc<Dictionary>;

    fn compress(
        &mut self,
        effort: Level,
        literals: Literals,
        prefix: &[u8],
        src: &[u8],
        dst: &mut [u8],
    ) -> Option<usize> {
        let (prefix, src) = self.joined.join(prefix, src)?;
        // SAFETY: By the type invariants the compressor is initialised. The buffers are as long as said.
        checked(unsafe {
            bindings::agentzip_zstd_compress(
                self.compressor.as_ptr(),
                &level(effort.parameters(), literals),
                prefix.as_ptr().cast(),
                prefix.len(),
                src.as_ptr().cast(),
                src.len(),
                dst.as_mut_ptr().cast(),
                dst.len(),
            )
        })
    }

    fn compress_with(
        &mut self,
        dictionary: &Arc<Dictionary>,
        literals: Literals,
        src: &[u8],
        dst: &mut [u8],
    ) -> Option<usize> {
        if src.len() > MAX_WITH_DICTIONARY {
            return None;
        }
        // SAFETY: As above, also for the dictionary, by its type invariants. The source is no longer
        // than said.
        checked(unsafe {
            bindings::agentzip_zstd_compress_with(
                self.compressor.as_ptr(),
                &level(DICTIONARY, literals),
                dictionary.compressor(),
                MAX_WITH_DICTIONARY,
                src.as_ptr().cast(),
                src.len(),
                dst.as_mut_ptr().cast(),
                dst.len(),
            )
        })
    }

    fn decompress(&mut self, prefix: &[u8], src: &[u8], dst: &mut [u8]) -> Option<usize> {
        let prefix = content(prefix);
        // SAFETY: As for compression. zstd checks what it decompresses.
        checked(unsafe {
            bindings::agentzip_zstd_decompress(
                self.decompressor.as_ptr(),
                prefix.as_ptr().cast(),
                prefix.len(),
                src.as_ptr().cast(),
                src.len(),
                dst.as_mut_ptr().cast(),
                dst.len(),
            )
        })
    }

    fn decompress_with(
        &mut self,
        dictionary: &Arc<Dictionary>,
        src: &[u8],
        dst: &mut [u8],
    ) -> Option<usize> {
        let behind = dictionary.behind().filter(|_| dst.len() <= PAGE_SIZE);
        let (to, room) = match &behind {
            Some(behind) => (behind.start(), BEHIND_DICTIONARY),
            None => (dst.as_mut_ptr(), dst.len()),
        };
        // SAFETY: As above. The room behind the dictionary is as long as said, and ours.
        let len = checked(unsafe {
            bindings::agentzip_zstd_decompress_with(
                self.dictionary_decompressor.as_ptr(),
                dictionary.decompressor(),
                src.as_ptr().cast(),
                src.len(),
                to.cast(),
                room,
            )
        })?;
        if let Some(behind) = behind {
            let dst = dst.get_mut(..len)?;
            // SAFETY: zstd has written so many bytes there. It is not `dst`, which is the caller's.
            unsafe { ptr::copy_nonoverlapping(behind.start(), dst.as_mut_ptr(), len) };
        }
        Some(len)
    }

    fn crc32c(&mut self, data: &[u8]) -> u32 {
        // SAFETY: The buffer is as long as said.
        !unsafe { bindings::crc32c(!0, data.as_ptr().cast(), data.len()) }
    }
}
