// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What is watched, and how much of it at most.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::directory;
use crate::error::{Error, Result};

/// Most levels below a tree that can be watched.
pub const MAX_DEPTH: usize = 16;

/// Most trees.
pub const MAX_TREES: usize = 256;

/// Where sandboxes are looked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WatchSettings {
    /// Cgroups below which sandboxes are, at most [`MAX_TREES`]: paths in the hierarchy, or below the mount.
    /// None of them in another one.
    pub trees: Vec<PathBuf>,
    /// Levels below a tree on which a sandbox can be, 1 to [`MAX_DEPTH`].
    pub max_depth: usize,
    /// Most cgroups of one tree that are kept in view, 1 to 1,000,000. Those below a sandbox do not count.
    pub max_directories: usize,
}

impl Default for WatchSettings {
    fn default() -> Self {
        WatchSettings {
            trees: Vec::new(),
            max_depth: 4,
            max_directories: 4096,
        }
    }
}

impl WatchSettings {
    /// Checks the values, and gives the trees as paths in the hierarchy.
    ///
    /// # Errors
    ///
    /// When one is out of its range, which.
    pub fn check(&self, mount: &Path) -> Result<Vec<PathBuf>> {
        if !(1..=MAX_DEPTH).contains(&self.max_depth) {
            let problem = format!("{} is not in 1..={MAX_DEPTH}", self.max_depth);
            return Err(Error::invalid("watch max_depth", problem));
        }
        if !(1..=1_000_000).contains(&self.max_directories) {
            let problem = format!("{} is not in 1..=1000000", self.max_directories);
            return Err(Error::invalid("watch max_directories", problem));
        }
        if self.trees.len() > MAX_TREES {
            let problem = format!("{}, more than {MAX_TREES}", self.trees.len());
            return Err(Error::invalid("watch trees", problem));
        }
        let mut trees: Vec<PathBuf> = Vec::with_capacity(self.trees.len());
        for given in &self.trees {
            let tree = directory::inside(mount, given)?;
            let nested = |other: &&PathBuf| other.starts_with(&tree) || tree.starts_with(other);
            if let Some(other) = trees.iter().find(nested) {
                let problem = format!(
                    "this tree and /{} overlap; keep the outer one",
                    other.display()
                );
                return Err(Error::invalid(given.display().to_string(), problem));
            }
            trees.push(tree);
        }
        Ok(trees)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_checked() {
        let mount = Path::new("/sys/fs/cgroup");
        let with = |trees: &[&str]| WatchSettings {
            trees: trees.iter().map(PathBuf::from).collect(),
            ..WatchSettings::default()
        };
        let trees = with(&["/a", "/sys/fs/cgroup/b/c", "ab"])
            .check(mount)
            .unwrap();
        assert_eq!(trees, [Path::new("a"), Path::new("b/c"), Path::new("ab")]);
        for (bad, reason) in [
            (with(&["/a", "a/b"]), "overlap"),
            (with(&["a", "/sys/fs/cgroup/a/"]), "overlap"),
            (with(&["/", "a"]), "overlap"),
            (with(&["../a"]), "without \"..\""),
            (with(&["a"; MAX_TREES + 1]), "more than 256"),
            (
                WatchSettings {
                    max_depth: 0,
                    ..with(&[])
                },
                "1..=16",
            ),
            (
                WatchSettings {
                    max_directories: 0,
                    ..with(&[])
                },
                "1..=1000000",
            ),
        ] {
            let error = bad.check(mount).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }
}
