// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `/proc/swaps`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// A swap device or file in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwapDevice {
    /// Where it is.
    pub path: PathBuf,
    /// Bytes.
    pub size: u64,
    /// Bytes of slots taken.
    pub used: u64,
    /// Higher ones fill first; negative ones were chosen by the kernel.
    pub priority: i32,
    /// The file was deleted: it could not be put in use again.
    pub deleted: bool,
}

/// Parses the table.
pub(super) fn parse(text: &str) -> Result<Vec<SwapDevice>, String> {
    text.lines()
        .skip(1)
        .map(|line| device(line).ok_or_else(|| format!("not a swap device: {line:?}")))
        .collect()
}

fn device(line: &str) -> Option<SwapDevice> {
    let mut fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let priority = fields.pop()?.parse().ok()?;
    let used = fields.pop()?.parse::<u64>().ok()?.checked_mul(1024)?;
    let size = fields.pop()?.parse::<u64>().ok()?.checked_mul(1024)?;
    let _kind = fields.pop()?;
    let (path, deleted) = match fields.as_slice() {
        [path] => (unescape(path), false),
        [path, "(deleted)"] => (unescape(path), true),
        _ => return None,
    };
    // The kernel escapes the blank of its own remark as well.
    let (path, deleted) = match path.as_encoded_bytes().strip_suffix(b" (deleted)") {
        Some(path) => (OsString::from_vec(path.to_vec()), true),
        None => (path, deleted),
    };
    Some(SwapDevice {
        path: path.into(),
        size,
        used,
        priority,
        deleted,
    })
}

/// Undoes the kernel's octal escapes (`\040`).
pub(super) fn unescape(text: &str) -> OsString {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let octal = match rest {
            [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ..] => {
                Some(((a - b'0') << 6) | ((b - b'0') << 3) | (c - b'0'))
            }
            _ => None,
        };
        match octal {
            Some(byte) => {
                bytes.push(byte);
                rest = &rest[4..];
            }
            None => {
                bytes.push(first);
                rest = tail;
            }
        }
    }
    OsString::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_and_files() {
        let text = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n\
            /dev/vdb                                partition\t4194300\t\t1024\t\t-2\n\
            /swap\\040file                           file\t\t2048\t\t0\t\t5\n\
            /gone\\040(deleted)                      file\t\t2048\t\t0\t\t-3\n";
        let devices = parse(text).unwrap();
        assert_eq!(devices[0].path, PathBuf::from("/dev/vdb"));
        assert_eq!(
            (devices[0].size, devices[0].used),
            (4_194_300 << 10, 1 << 20)
        );
        assert_eq!(devices[0].priority, -2);
        assert_eq!(devices[1].path, PathBuf::from("/swap file"));
        assert_eq!((devices[1].priority, devices[1].deleted), (5, false));
        assert_eq!(
            (devices[2].path.to_str(), devices[2].deleted),
            (Some("/gone"), true)
        );
    }

    #[test]
    fn none_and_nonsense() {
        assert_eq!(parse("Filename Type Size Used Priority\n").unwrap(), []);
        assert!(parse("header\nfoo bar\n").unwrap_err().contains("foo bar"));
    }

    #[test]
    fn escapes() {
        assert_eq!(unescape("a\\040b\\134c\\"), OsString::from("a b\\c\\"));
    }
}
