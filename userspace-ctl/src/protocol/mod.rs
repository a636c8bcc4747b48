// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What is said on the Unix socket: lines of JSON, one object a line, in UTF-8.
//!
//! A client sends requests and gets one reply for each, in any order across requests that take
//! time, so a client that sends several at once gives them an `id`. A subscriber gets events as well.
//! `Documentation/ABI/agentzip-socket.rst` describes every field.

mod event;
mod reply;
mod request;

pub use event::{Event, Happening, Source, Word};
pub use reply::{Admission, Admitted, Answer, ErrorCode, Response};
pub use request::{check_version, Malformed, Parsed, Request, OPERATIONS};

/// Version of the protocol. It grows when something that a client may rely on changes; new
/// operations, events and fields in replies and events come without.
pub const VERSION: u32 = 1;

/// Longest line, in bytes, without its end.
pub const MAX_LINE: usize = 64 << 10;
