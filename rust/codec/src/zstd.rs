// SPDX-License-Identifier: GPL-2.0 OR MIT

//! zstd frames inside payloads, without the bytes at their start that are always the same.

use super::delta::MAX_SPLIT;
use super::{Backend, PAGE_SIZE};

/// zstd's magic number: every frame starts with it.
pub(super) const MAGIC: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];

/// Start of every frame whose content is a page: the magic number, a single segment, a content size
/// of 4096 (stored as 4096 - 256 in two bytes), no checksum, no dictionary.
pub(super) const PAGE_START: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd, 0x60, 0x00, 0x0f];

const LONGEST_CONTENT: usize = if MAX_SPLIT > PAGE_SIZE {
    MAX_SPLIT
} else {
    PAGE_SIZE
};

/// Room for the frame of anything the codec compresses: `ZSTD_COMPRESSBOUND`.
pub(super) const FRAME_BUFFER: usize =
    LONGEST_CONTENT + (LONGEST_CONTENT >> 8) + (((128 << 10) - PAGE_SIZE) >> 11);

/// Compresses `content` into `frame` and returns the frame.
pub(super) fn compress<'f, B: Backend>(
    content: &[u8],
    frame: &'f mut [u8; FRAME_BUFFER],
    backend: &mut B,
) -> Option<&'f [u8]> {
    let len = backend.zstd_compress(content, frame)?;
    frame.get(..len)
}

/// Decompresses the frame `start` ++ `rest` into `content`, joining its parts in `frame`.
pub(super) fn decompress<B: Backend>(
    start: &[u8],
    rest: &[u8],
    frame: &mut [u8; FRAME_BUFFER],
    backend: &mut B,
    content: &mut [u8],
) -> Option<usize> {
    if start.is_empty() {
        return backend.zstd_decompress(rest, content);
    }
    let (head, tail) = frame.split_at_mut_checked(start.len())?;
    head.copy_from_slice(start);
    tail.get_mut(..rest.len())?.copy_from_slice(rest);
    let len = start.len().wrapping_add(rest.len());
    backend.zstd_decompress(frame.get(..len)?, content)
}
