// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What every backend does alike with zstd, so that all write the same bytes.
//!
//! zstd's blocks are used without a frame: the payload knows all that a frame would say.

use super::delta::MAX_SPLIT;
use super::PAGE_SIZE;

/// How much effort goes into a compression. Any level is decompressed alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// What reclaim can wait for: as fast as lz4, and about as small. For pages only: longer content is
    /// refused.
    Cheap,
    /// About as small and as fast as zstd's level 3.
    Fast,
    /// What has time: finds about what zstd's level 6 finds, and is faster than that.
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
    /// `ZSTD_fast`: a table of short matches.
    Fast = 1,
    /// `ZSTD_dfast`: a table of short matches and one of long ones.
    DoubleFast = 2,
    /// `ZSTD_lazy`: chains, and a look at the next byte before a match is taken.
    Lazy = 4,
}

/// What becomes of a block's literals, the bytes that no match brings, by zstd's numbers of
/// `ZSTD_ParamSwitch_e`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Literals {
    /// Huffman codes, where those are shorter.
    Compressed = 1,
    /// The bytes as they are.
    Plain = 2,
}

impl Literals {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Compressed, Self::Plain];
}

impl Level {
    /// All levels, in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::Cheap, Self::Fast, Self::Best];

    /// What becomes of literals, unless there is a reason for something else.
    pub const fn literals(self) -> Literals {
        match self {
            Self::Cheap | Self::Best => Literals::Plain,
            Self::Fast => Literals::Compressed,
        }
    }

    /// What zstd is told.
    ///
    /// Windows are those of zstd's own table for up to 16 KiB, the hash tables smaller: they then
    /// stay in the first-level cache, and find as much in so little data.
    pub const fn parameters(self) -> Parameters {
        match self {
            Self::Cheap => Parameters {
                window_log: 12,
                chain_log: 6,
                hash_log: 11,
                search_log: 1,
                min_match: 5,
                target_length: 1,
                strategy: Strategy::Fast,
            },
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

/// The parameters of a dictionary: they find about what zstd's level 6 finds.
///
/// The window need not reach over the dictionary, which zstd searches in tables of its own. With a
/// longer one it would use another match finder, whose results depend on what the context did
/// before.
pub const DICTIONARY: Parameters = Parameters {
    window_log: 14,
    chain_log: 15,
    hash_log: 15,
    search_log: 5,
    min_match: 4,
    target_length: 16,
    strategy: Strategy::Lazy,
};

/// Longest dictionary in bytes.
pub const MAX_DICTIONARY: usize = 1 << 20;

/// Longest prefix in bytes: a page.
pub const MAX_PREFIX: usize = PAGE_SIZE;

/// Most bytes that are compressed at once: a page or a change stream.
pub const MAX_CONTENT: usize = if MAX_SPLIT > PAGE_SIZE {
    MAX_SPLIT
} else {
    PAGE_SIZE
};

/// Most bytes that are compressed at once with a dictionary: a page. zstd is told so, and makes its
/// tables and buffers as large as that needs: more must never be given to it.
pub const MAX_WITH_DICTIONARY: usize = PAGE_SIZE;

/// Room right behind a dictionary, in bytes: a page, and what lets zstd copy the last matches of one as
/// fast as the others.
///
/// A page that is decompressed there lies in one piece with the dictionary. Anywhere else zstd brings each
/// match from the dictionary by a call, which takes an eighth more time for the whole page.
pub const BEHIND_DICTIONARY: usize = PAGE_SIZE + 32;

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

/// Room for a prefix and what is compressed after it, side by side.
///
/// zstd searches in one piece of memory otherwise than in two, and finds other matches. In one it is
/// also faster, by more than the copy takes. All zero is a valid value.
pub struct Joined {
    bytes: [u8; MAX_PREFIX + MAX_CONTENT],
}

impl Joined {
    /// Room, ready for use.
    pub const fn new() -> Self {
        Self {
            bytes: [0; MAX_PREFIX + MAX_CONTENT],
        }
    }

    /// Leaves nothing of what was copied.
    pub fn wipe(&mut self) {
        self.bytes.fill(0);
    }

    /// Copies the prefix's [`content`] and `src`, and returns them in their places. `None` when one is
    /// longer than [`MAX_PREFIX`] or [`MAX_CONTENT`].
    pub fn join(&mut self, prefix: &[u8], src: &[u8]) -> Option<(&[u8], &[u8])> {
        let prefix = content(prefix);
        if prefix.len() > MAX_PREFIX || src.len() > MAX_CONTENT {
            return None;
        }
        let (before, rest) = self.bytes.split_at_mut_checked(prefix.len())?;
        let after = rest.get_mut(..src.len())?;
        before.copy_from_slice(prefix);
        after.copy_from_slice(src);
        Some((before, after))
    }
}

impl Default for Joined {
    fn default() -> Self {
        Self::new()
    }
}
