// SPDX-License-Identifier: GPL-2.0

//! zstd's library in ffi/zstd.c and the kernel's CRC-32C as the codec's backend.
//!
//! Contexts live in memory that is allocated when the module loads: compressing and decompressing
//! never allocate.

use core::ptr::NonNull;
use kernel::alloc::flags::{GFP_KERNEL, __GFP_ZERO};
use kernel::ffi::c_void;
use kernel::prelude::*;

use crate::bindings;
use crate::codec::zstd::{content, Joined};
use crate::codec::{Backend, Level};

/// A compressor and a decompressor.
///
/// # Invariants
///
/// `compressor` and `decompressor` are initialised ones in `compressor_memory` and
/// `decompressor_memory`.
pub(crate) struct Zstd {
    compressor: NonNull<c_void>,
    decompressor: NonNull<c_void>,
    joined: KVBox<Joined>,
    compressor_memory: KVVec<u64>,
    decompressor_memory: KVVec<u64>,
}

// SAFETY: Compressor and decompressor are plain memory that this value owns.
unsafe impl Send for Zstd {}

/// Zeroed memory of at least `bytes` bytes, aligned for zstd.
fn memory(bytes: usize) -> Result<KVVec<u64>> {
    let words = bytes.div_ceil(size_of::<u64>());
    Ok(KVVec::from_elem(0, words, GFP_KERNEL)?)
}

/// What zstd is told, in the border's type.
fn parameters(level: Level) -> bindings::agentzip_zstd_level {
    let parameters = level.parameters();
    bindings::agentzip_zstd_level {
        window_log: parameters.window_log,
        chain_log: parameters.chain_log,
        hash_log: parameters.hash_log,
        search_log: parameters.search_log,
        min_match: parameters.min_match,
        target_length: parameters.target_length,
        strategy: parameters.strategy as u32,
    }
}

impl Zstd {
    pub(crate) fn new() -> Result<Self> {
        let bytes = Level::ALL.map(|level| {
            // SAFETY: The parameters are valid during the call.
            unsafe { bindings::agentzip_zstd_compressor_bytes(&parameters(level)) }
        });
        let c_bytes = bytes.into_iter().max().unwrap_or(0);
        // SAFETY: No preconditions.
        let d_bytes = unsafe { bindings::agentzip_zstd_decompressor_bytes() };
        let mut compressor_memory = memory(c_bytes)?;
        let mut decompressor_memory = memory(d_bytes)?;
        // SAFETY: The memory is writable, aligned to 8 bytes and of this size. It does not move: the
        // heap blocks stay with the vectors that are kept.
        let (compressor, decompressor) = unsafe {
            (
                bindings::agentzip_zstd_compressor(compressor_memory.as_mut_ptr().cast(), c_bytes),
                bindings::agentzip_zstd_decompressor(
                    decompressor_memory.as_mut_ptr().cast(),
                    d_bytes,
                ),
            )
        };
        let joined = KVBox::<Joined>::new_uninit(GFP_KERNEL | __GFP_ZERO)?;
        // INVARIANT: Just initialised.
        Ok(Self {
            compressor: NonNull::new(compressor).ok_or(EINVAL)?,
            decompressor: NonNull::new(decompressor).ok_or(EINVAL)?,
            // SAFETY: All bytes zero is a valid value: an array of bytes.
            joined: unsafe { joined.assume_init() },
            compressor_memory,
            decompressor_memory,
        })
    }

    /// Bytes of all that was allocated.
    pub(crate) fn bytes(&self) -> u64 {
        let words = self.compressor_memory.capacity() + self.decompressor_memory.capacity();
        (words * size_of::<u64>() + size_of::<Joined>()) as u64
    }
}

/// A length from the border, where 0 stands for failure.
fn checked(len: usize) -> Option<usize> {
    (len != 0).then_some(len)
}

impl Backend for Zstd {
    fn zstd_compress(
        &mut self,
        level: Level,
        prefix: &[u8],
        src: &[u8],
        dst: &mut [u8],
    ) -> Option<usize> {
        let (prefix_len, joined) = self.joined.join(prefix, src)?;
        // SAFETY: By the type invariants the compressor is initialised. The first `prefix_len` of the
        // joined bytes are the prefix, the others the source; `dst` is as long as said.
        checked(unsafe {
            bindings::agentzip_zstd_compress(
                self.compressor.as_ptr(),
                &parameters(level),
                joined.as_ptr().cast(),
                prefix_len,
                joined.len() - prefix_len,
                dst.as_mut_ptr().cast(),
                dst.len(),
            )
        })
    }

    fn zstd_decompress(&mut self, prefix: &[u8], src: &[u8], dst: &mut [u8]) -> Option<usize> {
        let prefix = content(prefix);
        // SAFETY: By the type invariants the decompressor is initialised. The buffers are as long as
        // said. zstd checks what it decompresses.
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

    fn crc32c(&mut self, data: &[u8]) -> u32 {
        // SAFETY: The buffer is as long as said.
        !unsafe { bindings::crc32c(!0, data.as_ptr().cast(), data.len()) }
    }
}
