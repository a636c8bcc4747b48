// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Names of templates, groups and domains; signatures.

/// Longest template, group or domain name in bytes, without the terminating NUL.
pub const NAME_MAX: usize = 47;

/// Size of a name field: NUL-padded bytes, at least one NUL at the end.
pub const NAME_LEN: usize = NAME_MAX + 1;

/// A name field: ASCII letters, digits, `.`, `_`, `-`; NUL-padded.
pub type Name = [u8; NAME_LEN];

/// Builds a name field.
///
/// Returns `None` when `text` is empty, longer than [`NAME_MAX`], or has a character other than
/// ASCII letters, digits, `.`, `_` and `-`, or starts with a dot (names become directory names).
pub fn name_from_str(text: &str) -> Option<Name> {
    let bytes = text.as_bytes();
    let mut name = [0; NAME_LEN];
    name.get_mut(..bytes.len())?.copy_from_slice(bytes);
    // Zero bytes at its end would look like padding.
    name_as_str(&name)
        .is_some_and(|found| found == text)
        .then_some(name)
}

/// Reads a name field back; `None` when it breaks the rules of [`name_from_str`].
pub fn name_as_str(name: &Name) -> Option<&str> {
    let len = name.iter().position(|&b| b == 0)?;
    let (text, padding) = name.split_at(len);
    let legal = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    if text.is_empty()
        || text.len() > NAME_MAX
        || text.first() == Some(&b'.')
        || !text.iter().all(legal)
        || !padding.iter().all(|&b| b == 0)
    {
        return None;
    }
    core::str::from_utf8(text).ok()
}

/// Name of the domain that is meant when a name field is all zero.
pub const DEFAULT_DOMAIN: &str = "default";

/// Size of a [`Signature`] in bytes.
pub const SIGNATURE_LEN: usize = 32;

/// What a template was made of, as a fingerprint that user space computes and the module only
/// compares; all zero: none.
pub type Signature = [u8; SIGNATURE_LEN];

const _: () = assert!(NAME_LEN % 8 == 0);
