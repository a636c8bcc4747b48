// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The error type of the library: every error names the operation and what it was done to.
//!
//! Messages are complete: the cause is in them, not in `source()`, which would print it twice.

use std::io;
use std::path::{Path, PathBuf};

/// Result of this library.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file operation failed.
    #[error("cannot {operation} {}: {cause}", path.display())]
    Io {
        /// What was done: `read`, `write`, `open` ...
        operation: &'static str,
        /// To which file.
        path: PathBuf,
        /// Why it failed.
        cause: io::Error,
    },
    /// A file holds something else than it should.
    #[error("cannot understand {}: {problem}", path.display())]
    Parse {
        /// Which file.
        path: PathBuf,
        /// What was expected, and what stood there.
        problem: String,
    },
    /// The control device is not there or may not be opened.
    #[error("cannot open {}: {cause}; {advice}", path.display())]
    Device {
        /// Path of the device.
        path: PathBuf,
        /// Why.
        cause: io::Error,
        /// What to do about it.
        advice: &'static str,
    },
    /// The module or the kernel refused.
    #[error("{operation} {object}: {cause}: {advice}")]
    Refused {
        /// The command, as on the command line.
        operation: &'static str,
        /// What it was done to.
        object: String,
        /// The kernel's answer.
        cause: io::Error,
        /// What it means here and what to do about it.
        advice: String,
    },
    /// The request makes no sense; nothing was tried.
    #[error("{object}: {problem}")]
    Invalid {
        /// What was asked for.
        object: String,
        /// Why it cannot be.
        problem: String,
    },
}

impl Error {
    /// Makes a closure for `map_err` that records operation and path.
    pub fn io<'a>(
        operation: &'static str,
        path: &'a (impl AsRef<Path> + ?Sized),
    ) -> impl FnOnce(io::Error) -> Error + 'a {
        move |cause| Error::Io {
            operation,
            path: path.as_ref().to_owned(),
            cause,
        }
    }

    /// An [`Error::Parse`].
    pub fn parse(path: impl AsRef<Path>, problem: impl Into<String>) -> Error {
        Error::Parse {
            path: path.as_ref().to_owned(),
            problem: problem.into(),
        }
    }

    /// An [`Error::Invalid`].
    pub fn invalid(object: impl Into<String>, problem: impl Into<String>) -> Error {
        Error::Invalid {
            object: object.into(),
            problem: problem.into(),
        }
    }

    /// The errno behind this error, if the kernel gave one.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Error::Io { cause, .. }
            | Error::Device { cause, .. }
            | Error::Refused { cause, .. } => cause.raw_os_error(),
            Error::Parse { .. } | Error::Invalid { .. } => None,
        }
    }
}

/// Reads a whole file as text; bytes that are no UTF-8 are replaced.
pub(crate) fn read_text(path: &Path) -> Result<String> {
    let bytes = std::fs::read(path).map_err(Error::io("read", path))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Reads a file that holds one number.
pub(crate) fn read_number(path: &Path) -> Result<u64> {
    let text = read_text(path)?;
    text.trim().parse().map_err(|_| {
        Error::parse(
            path,
            format!("expected one number, found {:?}", text.trim()),
        )
    })
}

/// Writes a file that is there already, in one `write`, as a shell's `>` does.
pub(crate) fn write_text(path: &Path, text: &str) -> Result<()> {
    use std::io::Write;
    std::fs::OpenOptions::new()
        .write(true)
        .truncate(true)
        .open(path)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(Error::io("write", path))
}
