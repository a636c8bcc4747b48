// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The backend of host builds: the C library that is also compiled into the module, and CRC-32C by
//! the CPU's own instructions.
#![expect(unsafe_code, reason = "zstd is written in C")]

extern crate std;

use super::zstd::{content, Joined, Strategy};
use super::{Backend, Level};
use core::ptr::NonNull;
use std::boxed::Box;
use std::vec;
use std::vec::Vec;
use zstd_sys as sys;

/// `ZSTD_CONTENTSIZE_UNKNOWN`: the tables are as large as the parameters say.
const UNKNOWN: u64 = u64::MAX;

/// zstd contexts of one thread.
///
/// # Invariants
///
/// `compressor` and `decompressor` are initialised contexts in `_compressor_memory` and
/// `_decompressor_memory`.
pub struct Host {
    compressor: NonNull<sys::ZSTD_CCtx>,
    decompressor: NonNull<sys::ZSTD_DCtx>,
    joined: Box<Joined>,
    _compressor_memory: Vec<u64>,
    _decompressor_memory: Vec<u64>,
}

// SAFETY: The contexts are plain memory that this value owns.
unsafe impl Send for Host {}

impl Host {
    /// Makes the contexts, about 250 KiB.
    ///
    /// # Panics
    ///
    /// When zstd refuses memory of the size that it asked for.
    pub fn new() -> Self {
        let bytes = Level::ALL.map(|level| {
            // SAFETY: No preconditions.
            unsafe { sys::ZSTD_estimateCCtxSize_usingCParams(parameters(level).cParams) }
        });
        let c_bytes = bytes.into_iter().max().unwrap_or(0);
        // SAFETY: No preconditions.
        let d_bytes = unsafe { sys::ZSTD_estimateDCtxSize() };
        let mut compressor_memory = memory(c_bytes);
        let mut decompressor_memory = memory(d_bytes);
        // SAFETY: The memory is writable, aligned to 8 bytes and of this size. It does not move: the
        // heap blocks stay with the vectors that are kept.
        let (compressor, decompressor) = unsafe {
            (
                sys::ZSTD_initStaticCCtx(compressor_memory.as_mut_ptr().cast(), c_bytes),
                sys::ZSTD_initStaticDCtx(decompressor_memory.as_mut_ptr().cast(), d_bytes),
            )
        };
        // INVARIANT: Just initialised.
        Self {
            compressor: NonNull::new(compressor).expect("zstd's own size of a compressor"),
            decompressor: NonNull::new(decompressor).expect("zstd's own size of a decompressor"),
            joined: Box::new(Joined::new()),
            _compressor_memory: compressor_memory,
            _decompressor_memory: decompressor_memory,
        }
    }
}

impl Default for Host {
    fn default() -> Self {
        Self::new()
    }
}

/// Zeroed memory of at least `bytes` bytes, aligned for zstd.
fn memory(bytes: usize) -> Vec<u64> {
    vec![0; bytes.div_ceil(size_of::<u64>())]
}

/// What zstd is told, in its own type.
fn parameters(level: Level) -> sys::ZSTD_parameters {
    let parameters = level.parameters();
    sys::ZSTD_parameters {
        cParams: sys::ZSTD_compressionParameters {
            windowLog: parameters.window_log,
            chainLog: parameters.chain_log,
            hashLog: parameters.hash_log,
            searchLog: parameters.search_log,
            minMatch: parameters.min_match,
            targetLength: parameters.target_length,
            strategy: match parameters.strategy {
                Strategy::DoubleFast => sys::ZSTD_strategy::ZSTD_dfast,
                Strategy::Lazy => sys::ZSTD_strategy::ZSTD_lazy,
            },
        },
        fParams: sys::ZSTD_frameParameters {
            contentSizeFlag: 0,
            checksumFlag: 0,
            noDictIDFlag: 0,
        },
    }
}

/// A length that zstd returned; `None` for an error, and for 0, which says that a block is no use.
fn checked(len: usize) -> Option<usize> {
    // SAFETY: Pure arithmetic.
    (len != 0 && unsafe { sys::ZSTD_isError(len) } == 0).then_some(len)
}

impl Backend for Host {
    fn zstd_compress(
        &mut self,
        level: Level,
        prefix: &[u8],
        src: &[u8],
        dst: &mut [u8],
    ) -> Option<usize> {
        let (prefix_len, joined) = self.joined.join(prefix, src)?;
        let (prefix, src) = joined.split_at_checked(prefix_len)?;
        let compressor = self.compressor.as_ptr();
        // SAFETY: By the type invariants the context is initialised. The buffers are as long as said,
        // and neither the prefix nor the source changes before the block is done.
        unsafe {
            let begun = sys::ZSTD_compressBegin_advanced(
                compressor,
                prefix.as_ptr().cast(),
                prefix.len(),
                parameters(level),
                UNKNOWN,
            );
            if sys::ZSTD_isError(begun) != 0 {
                return None;
            }
            checked(sys::ZSTD_compressBlock(
                compressor,
                dst.as_mut_ptr().cast(),
                dst.len(),
                src.as_ptr().cast(),
                src.len(),
            ))
        }
    }

    fn zstd_decompress(&mut self, prefix: &[u8], src: &[u8], dst: &mut [u8]) -> Option<usize> {
        let prefix = content(prefix);
        let decompressor = self.decompressor.as_ptr();
        // SAFETY: As above. zstd checks what it decompresses.
        unsafe {
            let begun = sys::ZSTD_decompressBegin_usingDict(
                decompressor,
                prefix.as_ptr().cast(),
                prefix.len(),
            );
            if sys::ZSTD_isError(begun) != 0 {
                return None;
            }
            checked(sys::ZSTD_decompressBlock(
                decompressor,
                dst.as_mut_ptr().cast(),
                dst.len(),
                src.as_ptr().cast(),
                src.len(),
            ))
        }
    }

    fn crc32c(&mut self, data: &[u8]) -> u32 {
        crc32c::crc32c(data)
    }
}
