// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The backend of host builds: libzstd at level 3, and CRC-32C by the CPU's own instructions.

use super::Backend;
use zstd_safe::{CCtx, DCtx};

/// Compression level; the module uses the same.
pub const LEVEL: i32 = 3;

/// zstd contexts of one thread.
pub struct Host {
    compressor: CCtx<'static>,
    decompressor: DCtx<'static>,
}

impl Host {
    /// Makes the contexts.
    pub fn new() -> Self {
        Self {
            compressor: CCtx::create(),
            decompressor: DCtx::create(),
        }
    }
}

impl Default for Host {
    fn default() -> Self {
        Self::new()
    }
}

impl Backend for Host {
    fn zstd_compress(&mut self, src: &[u8], dst: &mut [u8]) -> Option<usize> {
        self.compressor.compress(dst, src, LEVEL).ok()
    }

    fn zstd_decompress(&mut self, src: &[u8], dst: &mut [u8]) -> Option<usize> {
        self.decompressor.decompress(dst, src).ok()
    }

    fn crc32c(&mut self, data: &[u8]) -> u32 {
        crc32c::crc32c(data)
    }
}
