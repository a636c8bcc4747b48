// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The page codec: makes one 4 KiB page small, against other pages where that pays, and brings it
//! back.
//!
//! An [`Encoder`] tries what its caller thinks worth trying, step by step, and keeps the shortest
//! payload; [`encode`] is the usual order of steps in one call. [`decode`] and its siblings undo it
//! and check the CRC-32C of the page every time. Decoding treats its input as hostile: any bytes
//! give the right page or a [`DecodeError`]. [`sketch()`] finds pages worth trying as bases.
//!
//! Kbuild compiles these files into the module, cargo compiles them into the `agentzip-codec`
//! crate. No allocation, no unsafe code, no panics, no global state; zstd and the checksum come
//! from a [`Backend`], buffers from the caller ([`Scratch`]). All numbers are little endian.

#![cfg_attr(not(CONFIG_RUST), no_std)]
#![cfg_attr(not(feature = "host"), forbid(unsafe_code))]
#![deny(unsafe_code)]

mod decode;
mod delta;
mod diff;
mod encode;
pub mod golden;
#[cfg(feature = "host")]
pub mod host;
mod literals;
mod noise;
mod payload;
mod scratch;
mod sketch;
mod words;
pub mod zstd;

pub use self::decode::{
    check_ref, decode, decode_dictionary, decode_fill, decode_onto, decode_ref,
};
pub use self::decode::{decode_dictionary_unchecked, decode_unchecked};
pub use self::encode::{encode, Encoded, Encoder, Limits, Tried};
pub use self::noise::{looks_like_noise, SAMPLE as NOISE_SAMPLE};
pub use self::payload::{
    header, DecodeError, Header, Representation, HEADER_LEN, MAX_PAYLOAD, PADDED_LEN,
    PAYLOAD_VERSION, UNIT,
};
pub use self::scratch::Scratch;
pub use self::sketch::{sketch, Sketch, Words, FEATURES, NO_FEATURE};
pub use self::zstd::{Level, Literals};

/// Bytes in a page.
pub const PAGE_SIZE: usize = 4096;

/// One page.
pub type Page = [u8; PAGE_SIZE];

/// Numbers of bases are below this.
pub const MAX_BASES: u32 = 1 << 24;

/// What the codec does not bring itself.
///
/// Each call stands for itself: nothing of an earlier one counts, and nothing is kept for a later one.
pub trait Backend {
    /// A dictionary, made ready for use: a handle that is cheap to clone.
    type Dictionary: Clone;

    /// Compresses `src`, at most [`MAX_CONTENT`](zstd::MAX_CONTENT) bytes, into a bare zstd block.
    ///
    /// Its matches reach back into `prefix`, at most [`MAX_PREFIX`](zstd::MAX_PREFIX) bytes: content
    /// that resembles `src`, empty if there is none. The block depends on the arguments alone, the
    /// length of `dst` included. Returns its length; `None` when it is not shorter than `src` by a few
    /// bytes, does not fit, or an argument is too long.
    fn compress(
        &mut self,
        level: Level,
        literals: Literals,
        prefix: &[u8],
        src: &[u8],
        dst: &mut [u8],
    ) -> Option<usize>;

    /// Compresses `src`, at most [`MAX_WITH_DICTIONARY`](zstd::MAX_WITH_DICTIONARY) bytes, with a
    /// dictionary, at its own effort, likewise.
    fn compress_with(
        &mut self,
        dictionary: &Self::Dictionary,
        literals: Literals,
        src: &[u8],
        dst: &mut [u8],
    ) -> Option<usize>;

    /// Decompresses a block that [`compress`](Self::compress) made with the same prefix.
    ///
    /// `src` may be any bytes. Returns the length of the content; `None` when it does not fit or the
    /// block is damaged. Then `dst` holds arbitrary bytes.
    fn decompress(&mut self, prefix: &[u8], src: &[u8], dst: &mut [u8]) -> Option<usize>;

    /// Decompresses a block that [`compress_with`](Self::compress_with) made with the same dictionary,
    /// likewise.
    fn decompress_with(
        &mut self,
        dictionary: &Self::Dictionary,
        src: &[u8],
        dst: &mut [u8],
    ) -> Option<usize>;

    /// The standard CRC-32C: `crc32c(b"123456789") == 0xE306_9283`.
    fn crc32c(&mut self, data: &[u8]) -> u32;
}

/// Names a page that another is encoded against. The numbers are below [`MAX_BASES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BaseId {
    /// A page of the template, by its ordinal.
    Template(u32),
    /// A page that siblings share, by its reference id.
    Reference(u32),
}

impl BaseId {
    /// The number, without its kind.
    pub const fn number(self) -> u32 {
        match self {
            Self::Template(number) | Self::Reference(number) => number,
        }
    }
}

/// A page that another can be encoded against.
#[derive(Clone, Copy, Debug)]
pub struct Base<'a> {
    /// Names the page in the payload.
    pub id: BaseId,
    /// Its bytes, which must be the same at decode.
    pub page: &'a Page,
}
