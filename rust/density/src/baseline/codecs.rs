// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The compressors that others use, one page at a time, contexts reused.

use agentzip_codec::{Page, PAGE_SIZE};
use zstd::zstd_safe::{self, CCtx, DCtx};

/// The level that zswap and zram use zstd at.
pub const ZSTD_LEVEL: i32 = 3;

/// zstd.
pub struct Zstd {
    compressor: CCtx<'static>,
    decompressor: DCtx<'static>,
    out: Vec<u8>,
    page: Box<Page>,
}

impl Default for Zstd {
    fn default() -> Self {
        Self {
            compressor: CCtx::create(),
            decompressor: DCtx::create(),
            out: vec![0; zstd_safe::compress_bound(PAGE_SIZE)],
            page: Box::new([0; PAGE_SIZE]),
        }
    }
}

impl Zstd {
    /// Compresses a page at [`ZSTD_LEVEL`].
    pub fn compress(&mut self, page: &Page) -> &[u8] {
        let len = self
            .compressor
            .compress(&mut self.out[..], page, ZSTD_LEVEL)
            .expect("there is room");
        &self.out[..len]
    }

    /// The page of a payload.
    ///
    /// # Panics
    ///
    /// When it is not one that [`compress`](Self::compress) made.
    pub fn decompress(&mut self, payload: &[u8]) -> &Page {
        let len = self.decompressor.decompress(&mut self.page[..], payload);
        assert_eq!(len, Ok(PAGE_SIZE));
        &self.page
    }
}

/// LZ4, the reference implementation with the default acceleration, as in the kernel.
pub struct Lz4 {
    out: Vec<u8>,
}

impl Default for Lz4 {
    fn default() -> Self {
        let bound = lz4::block::compress_bound(PAGE_SIZE).expect("a page is small");
        Self {
            out: vec![0; bound],
        }
    }
}

impl Lz4 {
    /// Compresses a page. Returns the length.
    pub fn compress(&mut self, page: &Page) -> usize {
        lz4::block::compress_to_buffer(page, None, false, &mut self.out).expect("there is room")
    }
}

/// Length of a page with LZO1X-1, which is a port: its speed says nothing.
pub fn lzo(page: &Page) -> usize {
    lzo1x::compress(page, LZO_LEVEL).len()
}

/// LZO1X-1, with a table twice as large as the kernel's.
const LZO_LEVEL: lzo1x::CompressLevel = lzo1x::CompressLevel::new(3);
