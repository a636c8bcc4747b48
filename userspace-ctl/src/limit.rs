// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Bounds on bytes, written as in the files of a memory cgroup.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

use crate::format::Bytes;

/// The word that stands for no bound.
const MAX: &str = "max";

/// A bound on bytes, or none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limit(pub Option<u64>);

impl Limit {
    /// No bound.
    pub const NONE: Limit = Limit(None);

    /// As the kernel's files take it: a number of bytes, or `max`.
    pub fn to_file(self) -> String {
        match self.0 {
            Some(bytes) => bytes.to_string(),
            None => MAX.to_owned(),
        }
    }
}

impl FromStr for Limit {
    type Err = BadLimit;

    /// Bytes, or a number with `K`, `M`, `G` or `T` for KiB to TiB, or `max`.
    fn from_str(text: &str) -> Result<Self, BadLimit> {
        if text == MAX {
            return Ok(Limit::NONE);
        }
        let (digits, shift) = match text.as_bytes().last().map(u8::to_ascii_uppercase) {
            Some(b'K') => (&text[..text.len() - 1], 10),
            Some(b'M') => (&text[..text.len() - 1], 20),
            Some(b'G') => (&text[..text.len() - 1], 30),
            Some(b'T') => (&text[..text.len() - 1], 40),
            _ => (text, 0),
        };
        // parse() would take a plus sign.
        if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(BadLimit);
        }
        let number: u64 = digits.parse().map_err(|_| BadLimit)?;
        let bytes = number.checked_mul(1 << shift).ok_or(BadLimit)?;
        Ok(Limit(Some(bytes)))
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(bytes) => Bytes(bytes).fmt(f),
            None => f.pad(MAX),
        }
    }
}

/// A number; null without a bound.
impl Serialize for Limit {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(to)
    }
}

/// The text is no bound.
#[derive(Debug, thiserror::Error)]
#[error("a bound is a number of bytes, also with K, M, G or T behind it (512M), or max")]
pub struct BadLimit;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_units_and_max() {
        for (text, bytes) in [
            ("0", Some(0)),
            ("4096", Some(4096)),
            ("64K", Some(64 << 10)),
            ("512m", Some(512 << 20)),
            ("2G", Some(2 << 30)),
            ("1T", Some(1 << 40)),
            ("max", None),
        ] {
            let limit: Limit = text.parse().unwrap();
            assert_eq!(limit, Limit(bytes), "{text}");
            assert_eq!(limit.to_file().parse::<Limit>().unwrap(), limit);
        }
        for bad in [
            "",
            "M",
            "-1",
            "+1",
            "1.5G",
            "12Q",
            "Max",
            "17179869184G",
            "ü",
        ] {
            assert!(bad.parse::<Limit>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn for_people() {
        assert_eq!(Limit(Some(512 << 20)).to_string(), "512.0 MiB");
        assert_eq!(Limit::NONE.to_string(), "max");
    }
}
