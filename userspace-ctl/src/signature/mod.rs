// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Signatures: fingerprints that tell whether a sandbox was cloned from what a template was made of.
//!
//! The module only compares them. A signature of a process covers the binaries that it maps: path,
//! and build id or contents, of its executable and of every library. One of a file covers the pages
//! that a template takes of it, so that holes and zeros make no difference.

mod elf;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::str::FromStr;

use rustix::fs::{seek, SeekFrom};
use serde::{Serialize, Serializer};
use sha2::{Digest, Sha256};

use crate::error::{Error, Result};
use crate::procfs::{Mapping, Procfs};
use crate::PAGE_SIZE;

/// Bytes read at once.
const CHUNK: usize = 16 * PAGE_SIZE as usize;

/// Bytes of binaries without a build id that are read for one call, or for several of one owner: they can
/// be as large as anyone likes, for holes cost nothing.
const MOST: u64 = 1 << 30;

/// A signature, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signature(agentzip_uapi::Signature);

impl Signature {
    /// No signature: never compared.
    pub const NONE: Signature = Signature([0; agentzip_uapi::SIGNATURE_LEN]);

    /// As the module takes it.
    pub fn raw(&self) -> agentzip_uapi::Signature {
        self.0
    }

    /// There is none.
    pub fn is_none(&self) -> bool {
        *self == Signature::NONE
    }

    /// Its first digits, for tables.
    pub fn short(&self) -> String {
        self.to_string().chars().take(12).collect()
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_none() {
            return f.write_str("none");
        }
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A text that is no signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a signature has {} hexadecimal digits, or is: none", 2 * agentzip_uapi::SIGNATURE_LEN)]
pub struct BadSignature;

impl FromStr for Signature {
    type Err = BadSignature;

    fn from_str(text: &str) -> Result<Self, BadSignature> {
        if text == "none" {
            return Ok(Signature::NONE);
        }
        let mut bytes = [0; agentzip_uapi::SIGNATURE_LEN];
        if text.len() != 2 * bytes.len() || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(BadSignature);
        }
        for (i, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).map_err(|_| BadSignature)?;
        }
        Ok(Signature(bytes))
    }
}

impl Serialize for Signature {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.is_none() {
            true => serializer.serialize_none(),
            false => serializer.collect_str(self),
        }
    }
}

/// A fingerprint of one kind; kinds never coincide.
fn hasher(kind: &str) -> Sha256 {
    Sha256::new_with_prefix(kind)
}

/// Computes signatures of processes; remembers the binaries that it has seen.
#[derive(Debug)]
pub struct Binaries {
    known: HashMap<((u32, u32), u64), Vec<u8>>,
    /// Bytes that may still be read.
    left: u64,
}

impl Default for Binaries {
    fn default() -> Binaries {
        Binaries {
            known: HashMap::new(),
            left: MOST,
        }
    }
}

impl Binaries {
    /// The signature of a process.
    ///
    /// # Errors
    ///
    /// When the process or one of its binaries cannot be read, or it maps none.
    pub fn signature(&mut self, procfs: &Procfs, pid: i32) -> Result<Signature> {
        let maps = procfs.maps(pid)?;
        let mut binaries = BTreeMap::new();
        for mapping in maps.iter().filter(|m| m.file && m.executable) {
            if !binaries.contains_key(mapping.path()) {
                binaries.insert(mapping.path(), self.identity(procfs, pid, mapping)?);
            }
        }
        if binaries.is_empty() {
            let problem = "maps no binaries (a kernel thread, or exiting?)";
            return Err(Error::invalid(format!("process {pid}"), problem));
        }
        let mut hash = hasher("agentzip process 1\0");
        for (path, identity) in binaries {
            for part in [path.as_bytes(), &identity] {
                hash.update((part.len() as u64).to_le_bytes());
                hash.update(part);
            }
        }
        Ok(Signature(hash.finalize().into()))
    }

    /// The build id of a binary, else a fingerprint of its contents.
    fn identity(&mut self, procfs: &Procfs, pid: i32, mapping: &Mapping) -> Result<Vec<u8>> {
        let key = (mapping.device, mapping.inode);
        if let Some(identity) = self.known.get(&key) {
            return Ok(identity.clone());
        }
        let (path, file) = procfs.mapped_file(pid, mapping)?;
        let identity = match elf::build_id(&file) {
            Ok(Some(id)) => Ok(id),
            Ok(None) => contents(&file, &mut self.left),
            Err(error) => Err(error),
        }
        .map_err(Error::io("read", &path))?;
        self.known.insert(key, identity.clone());
        Ok(identity)
    }
}

fn contents(file: &File, left: &mut u64) -> io::Result<Vec<u8>> {
    let too_much = || io::Error::new(ErrorKind::FileTooLarge, "too large, and has no build id");
    if file.metadata()?.len() > *left {
        return Err(too_much());
    }
    let mut hash = hasher("agentzip binary 1\0");
    let mut buffer = vec![0; CHUNK];
    let mut position = 0;
    loop {
        match read_at(file, &mut buffer, position)? {
            0 => return Ok(hash.finalize().to_vec()),
            len => {
                hash.update(&buffer[..len]);
                position += len as u64;
                // It may grow meanwhile.
                *left = left.checked_sub(len as u64).ok_or_else(too_much)?;
            }
        }
    }
}

/// The signature of a part of a file; `length` 0 means to its end.
///
/// # Errors
///
/// What reading the file gives.
pub fn of_file(file: &File, offset: u64, length: u64) -> io::Result<Signature> {
    let end = match length {
        0 => u64::MAX,
        length => offset.saturating_add(length),
    };
    let mut hash = hasher("agentzip file 1\0");
    let mut buffer = vec![0; CHUNK];
    let mut position = next_data(file, offset)?;
    while position < end {
        let want = CHUNK.min(usize::try_from(end - position).unwrap_or(CHUNK));
        let len = read_at(file, &mut buffer[..want], position)?;
        if len == 0 {
            break;
        }
        // What is beyond the end of the file is zero.
        let pages = len.div_ceil(PAGE_SIZE as usize) * PAGE_SIZE as usize;
        buffer[len..pages].fill(0);
        let mut found = false;
        for page in buffer[..pages].chunks(PAGE_SIZE as usize) {
            if page.iter().any(|&byte| byte != 0) {
                hash.update((position / PAGE_SIZE).to_le_bytes());
                hash.update(page);
                found = true;
            }
            position += PAGE_SIZE;
        }
        if !found {
            position = next_data(file, position)?;
        }
    }
    Ok(Signature(hash.finalize().into()))
}

/// Where the next page begins that is no hole; the largest number when there is none.
fn next_data(file: &File, position: u64) -> io::Result<u64> {
    match seek(file, SeekFrom::Data(position)) {
        Ok(data) => Ok(data / PAGE_SIZE * PAGE_SIZE),
        Err(rustix::io::Errno::NXIO) => Ok(u64::MAX),
        // A file system without holes.
        Err(rustix::io::Errno::INVAL) => Ok(position),
        Err(error) => Err(error.into()),
    }
}

/// Reads until the buffer is full or the file ends.
fn read_at(file: &File, buffer: &mut [u8], position: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match file.read_at(&mut buffer[done..], position + done as u64) {
            Ok(0) => break,
            Ok(len) => done += len,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(parts: &[(u64, &[u8])]) -> File {
        let file = tempfile::tempfile().unwrap();
        for (offset, bytes) in parts {
            file.write_all_at(bytes, *offset).unwrap();
        }
        file
    }

    #[test]
    fn text_and_back() {
        let text = "00ff".repeat(16);
        let signature: Signature = text.parse().unwrap();
        assert_eq!(signature.to_string(), text);
        assert_eq!(signature.short(), "00ff00ff00ff");
        assert_eq!("none".parse(), Ok(Signature::NONE));
        assert_eq!(Signature::NONE.to_string(), "none");
        for bad in ["", "00", "zz", &"0".repeat(63), &"+1".repeat(32)] {
            assert_eq!(bad.parse::<Signature>(), Err(BadSignature), "{bad}");
        }
    }

    #[test]
    fn holes_and_zeros_of_a_file_make_no_difference() {
        let page = [7; 4096];
        let sparse = file(&[(0, &page), (1 << 20, &page)]);
        let dense = file(&[
            (0, &[0; (1 << 20) + 3 * 4096]),
            (0, &page),
            (1 << 20, &page),
        ]);
        let signature = of_file(&sparse, 0, 0).unwrap();
        assert_eq!(of_file(&dense, 0, 0).unwrap(), signature);
        // The same pages elsewhere are something else, and so is a part of them.
        let moved = file(&[(0, &page), (1 << 21, &page)]);
        assert_ne!(of_file(&moved, 0, 0).unwrap(), signature);
        let part = of_file(&sparse, 0, 4096).unwrap();
        assert_ne!(part, signature);
        assert_eq!(of_file(&file(&[(0, &page)]), 0, 0).unwrap(), part);
        assert_eq!(of_file(&sparse, 0, 1 << 30).unwrap(), signature);
    }

    #[test]
    fn the_last_page_of_a_file_is_filled_with_zeros() {
        let mut page = [0; 4096];
        page[..10].fill(3);
        let short = of_file(&file(&[(0, &page[..10])]), 0, 0).unwrap();
        assert_eq!(of_file(&file(&[(0, &page)]), 0, 0).unwrap(), short);
        // Longer than what is read at once, with an odd end.
        let long = vec![1; 3 * CHUNK + 5];
        let mut padded = vec![0; 3 * CHUNK + 4096];
        padded[..long.len()].copy_from_slice(&long);
        assert_eq!(
            of_file(&file(&[(0, &long)]), 0, 0).unwrap(),
            of_file(&file(&[(0, &padded)]), 0, 0).unwrap()
        );
    }
}
