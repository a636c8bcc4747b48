// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What every backend does alike with zstd, so that all write the same bytes.
//!
//! zstd's blocks are used without a frame: the payload knows all that a frame would say.

use super::delta::MAX_SPLIT;
use super::PAGE_SIZE;

/// How much effort goes into a compression. Any level is decompressed alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// What reclaim can wait for: about as small and as fast as zstd's level 3.
    Fast,
    /// What has time: about as small as zstd's level 6, and faster than that.
    Best,
}

/// The parameters of zstd's match finder, by zstd's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// Logarithm of the longest distance of a match.
    pub window_log: u32,
    /// Logarithm of the entries of the second table: of short matches, or of chains.
    pub chain_log: u32,
    /// Logarithm of the entries of the hash table.
    pub hash_log: u32,
    /// Logarithm of the candidates that are looked at.
    pub search_log: u32,
    /// Bytes that a match has at least.
    pub min_match: u32,
    /// A match of this length is good enough.
    pub target_length: u32,
    /// Which match finder.
    pub strategy: Strategy,
}

/// zstd's match finders, by its numbers. The module has no others (rust/ffi/zstd.c).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Strategy {
    /// `ZSTD_dfast`: a table of short matches and one of long ones.
    DoubleFast = 2,
    /// `ZSTD_lazy`: chains, and a look at the next byte before a match is taken.
    Lazy = 4,
}

impl Level {
    /// All levels.
    pub const ALL: [Self; 2] = [Self::Fast, Self::Best];

    /// What zstd is told.
    ///
    /// Windows are those of zstd's own table for up to 16 KiB, the hash tables smaller: they then
    /// stay in the first-level cache, and find as much in so little data.
    pub const fn parameters(self) -> Parameters {
        match self {
            Self::Fast => Parameters {
                window_log: 14,
                chain_log: 12,
                hash_log: 12,
                search_log: 2,
                min_match: 4,
                target_length: 0,
                strategy: Strategy::DoubleFast,
            },
            Self::Best => Parameters {
                window_log: 14,
                chain_log: 13,
                hash_log: 13,
                search_log: 5,
                min_match: 4,
                target_length: 16,
                strategy: Strategy::Lazy,
            },
        }
    }
}

/// Longest prefix of a compression in bytes.
pub const MAX_PREFIX: usize = 3 * PAGE_SIZE;

/// Most bytes that are compressed at once: a page or a change stream.
pub const MAX_CONTENT: usize = if MAX_SPLIT > PAGE_SIZE {
    MAX_SPLIT
} else {
    PAGE_SIZE
};

/// How zstd's formatted dictionaries begin.
const DICTIONARY_MAGIC: [u8; 4] = [0x37, 0xa4, 0x30, 0xec];

/// The part of a prefix that zstd may be given.
///
/// zstd takes a prefix that begins like one of its dictionaries for one. Without its first byte it
/// is mere content. Compression and decompression must both use this.
pub fn content(prefix: &[u8]) -> &[u8] {
    match prefix.split_first() {
        Some((_, rest)) if prefix.starts_with(&DICTIONARY_MAGIC) => rest,
        _ => prefix,
    }
}

/// Room to put a prefix and what is to be compressed side by side.
///
/// zstd searches in one piece of memory otherwise than in two, and finds other matches. In one it is
/// also faster, by more than the copy takes. All zero is a valid value.
pub struct Joined([u8; MAX_PREFIX + MAX_CONTENT]);

impl Joined {
    /// Room ready for use.
    pub const fn new() -> Self {
        Self([0; MAX_PREFIX + MAX_CONTENT])
    }

    /// Joins the two. Returns the length of the prefix's [`content`], and all bytes. `None` when one
    /// is longer than [`MAX_PREFIX`] or [`MAX_CONTENT`].
    pub fn join(&mut self, prefix: &[u8], src: &[u8]) -> Option<(usize, &[u8])> {
        if prefix.len() > MAX_PREFIX || src.len() > MAX_CONTENT {
            return None;
        }
        let prefix = content(prefix);
        let len = prefix.len().checked_add(src.len())?;
        let joined = self.0.get_mut(..len)?;
        let (head, tail) = joined.split_at_mut_checked(prefix.len())?;
        head.copy_from_slice(prefix);
        tail.copy_from_slice(src);
        Some((prefix.len(), joined))
    }
}

impl Default for Joined {
    fn default() -> Self {
        Self::new()
    }
}
