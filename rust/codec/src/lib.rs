// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The page codec: makes one 4 KiB page small, against pages of a template where that pays, and
//! brings it back.
//!
//! [`encode`] chooses among the representations by true cost, [`decode`] and its siblings undo it
//! and check the CRC-32C of the page every time. Decoding treats its input as hostile: any bytes
//! give the right page or a [`DecodeError`].
//!
//! Kbuild compiles these files into the module, cargo compiles them into the `agentzip-codec`
//! crate. No allocation, no unsafe code, no panics, no global state; zstd and the checksum come
//! from a [`Backend`], buffers from the caller ([`Scratch`]). All numbers are little endian.

#![cfg_attr(not(CONFIG_RUST), no_std)]
#![forbid(unsafe_code)]

mod decode;
mod delta;
mod diff;
mod encode;
pub mod golden;
#[cfg(feature = "host")]
pub mod host;
mod payload;
mod scratch;
mod words;
mod zstd;

pub use self::decode::{decode, decode_fill, decode_ref};
pub use self::encode::{encode, encode_fill, Encoded};
pub use self::payload::{
    header, DecodeError, Header, Representation, HEADER_LEN, MAX_PAYLOAD, PAYLOAD_VERSION,
};
pub use self::scratch::Scratch;

/// Bytes in a page.
pub const PAGE_SIZE: usize = 4096;

/// One page.
pub type Page = [u8; PAGE_SIZE];

/// Base ordinals are below this.
pub const MAX_ORDINAL: u32 = 1 << 24;

/// What the codec does not bring itself.
pub trait Backend {
    /// Compresses `src` (at most a page and a little more) into one zstd frame, at level 3 or the
    /// like, with the content size in the frame header. Returns its length, `None` when it does not
    /// fit or fails.
    fn zstd_compress(&mut self, src: &[u8], dst: &mut [u8]) -> Option<usize>;

    /// Decompresses one zstd frame. Returns the length of its content, `None` when it does not fit
    /// or the frame is damaged.
    fn zstd_decompress(&mut self, src: &[u8], dst: &mut [u8]) -> Option<usize>;

    /// The standard CRC-32C: `crc32c(b"123456789") == 0xE306_9283`.
    fn crc32c(&mut self, data: &[u8]) -> u32;
}

/// A page that another can be encoded against.
#[derive(Clone, Copy, Debug)]
pub struct Base<'a> {
    /// Names the page in the payload; below [`MAX_ORDINAL`].
    pub ordinal: u32,
    /// Its bytes, which must be the same at decode.
    pub page: &'a Page,
}
