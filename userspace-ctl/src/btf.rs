// SPDX-License-Identifier: GPL-2.0 OR MIT

//! BTF: what the running kernel says about its structures and the prototypes of its functions.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::error::{Error, Result};

/// Bytes read at once.
const CHUNK: usize = 64 << 10;

/// The file that it is in.
#[derive(Clone, Debug)]
pub struct Btf {
    path: PathBuf,
}

impl Btf {
    /// The BTF in this file, which need not be there.
    pub fn new(path: PathBuf) -> Self {
        Btf { path }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its SHA-256, in hexadecimal digits; `None` when the kernel was built without.
    ///
    /// # Errors
    ///
    /// When the file cannot be read.
    pub fn digest(&self) -> Result<Option<String>> {
        let mut file = match File::open(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(Error::io("open", &self.path))?,
        };
        let mut hasher = Sha256::new();
        let mut chunk = vec![0; CHUNK];
        loop {
            match file.read(&mut chunk) {
                Ok(0) => return Ok(Some(format!("{:x}", hasher.finalize()))),
                Ok(len) => hasher.update(&chunk[..len]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::io("read", &self.path)(error)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(content: &[u8]) -> Option<String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("vmlinux");
        std::fs::write(&path, content).unwrap();
        Btf::new(path).digest().unwrap()
    }

    #[test]
    fn digests_are_sha256() {
        assert_eq!(
            digest(b"abc").unwrap(),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        let long: Vec<u8> = (0..2 * CHUNK + 7).map(|i| i as u8).collect();
        let whole = format!("{:x}", Sha256::digest(&long));
        assert_eq!(digest(&long).unwrap(), whole);
        assert_ne!(digest(&long[..2 * CHUNK]).unwrap(), whole);
    }

    #[test]
    fn a_kernel_without() {
        let dir = tempfile::tempdir().unwrap();
        let btf = Btf::new(dir.path().join("vmlinux"));
        assert_eq!(btf.digest().unwrap(), None);
        // A directory can be opened, not read.
        let error = Btf::new(dir.path().to_owned()).digest().unwrap_err();
        assert!(error.to_string().contains("cannot read"), "{error}");
    }
}
