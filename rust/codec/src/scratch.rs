// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Buffers of the codec, owned by the caller.

use super::delta::MAX_SPLIT;
use super::zstd::MAX_CONTENT;

/// Buffers for one step of an [`Encoder`](super::Encoder) or one [`decode`](super::decode) at a
/// time.
///
/// Plain bytes: all zero is a valid value, and what an earlier call left behind does not matter.
/// About 9 KiB, too large for a kernel stack.
pub struct Scratch {
    /// A change stream.
    pub(super) stream: [u8; MAX_SPLIT],
    /// A zstd block.
    pub(super) block: [u8; MAX_CONTENT],
}

impl Scratch {
    /// Buffers ready for use.
    pub const fn new() -> Self {
        Self {
            stream: [0; MAX_SPLIT],
            block: [0; MAX_CONTENT],
        }
    }

    /// Leaves nothing of a page in them.
    pub fn wipe(&mut self) {
        self.wipe_with(|buffer| buffer.fill(0));
    }

    /// The same, with the caller's way to overwrite a buffer with zeros.
    pub fn wipe_with(&mut self, zero: impl Fn(&mut [u8])) {
        zero(&mut self.stream);
        zero(&mut self.block);
    }
}

impl Default for Scratch {
    fn default() -> Self {
        Self::new()
    }
}
