// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Where things are.

use std::env;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The folder of the repository.
pub fn repo() -> PathBuf {
    // Known at build time; CARGO_MANIFEST_DIR is <repo>/xtask.
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("..")
        .canonicalize()
        .unwrap_or_else(|_| PathBuf::from("."))
}

/// A file or folder of the repository.
pub fn in_repo(path: &str) -> PathBuf {
    repo().join(path)
}

/// Everything that a build or a run makes.
pub fn target() -> PathBuf {
    in_repo("target")
}

/// The cache folder: everything that set-up makes.
pub fn cache() -> Result<PathBuf> {
    if let Some(dir) = env::var_os("AGENTZIP_CACHE").filter(|d| !d.is_empty()) {
        return std::path::absolute(&dir)
            .with_context(|| format!("AGENTZIP_CACHE={}", dir.to_string_lossy()));
    }
    let base = match env::var_os("XDG_CACHE_HOME").filter(|d| !d.is_empty()) {
        Some(dir) => PathBuf::from(dir),
        None => {
            PathBuf::from(env::var_os("HOME").context("neither AGENTZIP_CACHE nor HOME is set")?)
                .join(".cache")
        }
    };
    Ok(base.join("agentzip"))
}

/// User and group that this program runs as.
pub fn owner() -> (u32, u32) {
    // /proc/self belongs to the effective user.
    std::fs::metadata("/proc/self").map_or((0, 0), |m| (m.uid(), m.gid()))
}

/// The first folder of PATH (and the usual system folders) that holds `program`.
pub fn find_program(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/bin"].map(PathBuf::from))
        .map(|dir| dir.join(program))
        .find(|file| file.is_file())
}
