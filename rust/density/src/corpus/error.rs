// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What can go wrong with a corpus.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Result of an operation on a corpus.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a corpus could not be read or written.
#[derive(Debug)]
pub enum Error {
    /// The system refused an operation.
    Io {
        /// What was tried: "read", "write", "mkdir" ...
        what: &'static str,
        /// On this file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file does not hold what it should: made by another version, cut off, or changed.
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong in it.
        why: String,
    },
    /// The corpus has no scenario of this name.
    Unknown {
        /// The folder of the corpus.
        dir: PathBuf,
        /// The name asked for.
        name: String,
    },
    /// A scenario has more distinct pages than [`MAX_PAGES`](super::MAX_PAGES).
    TooLarge {
        /// The folder of the scenario.
        path: PathBuf,
    },
}

impl Error {
    /// For `map_err`: adds operation and path.
    pub(super) fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
        let path = path.to_path_buf();
        move |source| Error::Io { what, path, source }
    }

    /// A damaged file.
    pub(super) fn damaged(path: &Path, why: impl Into<String>) -> Error {
        Error::Damaged {
            path: path.to_path_buf(),
            why: why.into(),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Io { what, path, source } => write!(f, "{what} {}: {source}", path.display()),
            Error::Damaged { path, why } => write!(
                f,
                "{} is damaged: {why}; make the corpus anew (cargo xtask corpus --again)",
                path.display()
            ),
            Error::Unknown { dir, name } => write!(
                f,
                "the corpus {} has no scenario \"{name}\"; cargo xtask corpus --scenario {name} makes it",
                dir.display()
            ),
            Error::TooLarge { path } => write!(
                f,
                "{} would have more than {} distinct pages; use fewer sandboxes",
                path.display(),
                super::MAX_PAGES
            ),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}
