// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Cgroups of template holders: their `memory.swap.max` is 0 while the daemon runs, so that the kernel
//! leaves the template's pages alone, and what it was before is given back.
//!
//! What it was is noted on the directory before it is changed, so that a daemon that comes after one
//! that was killed gives back the right value.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::mark;
use crate::directory::{Directory, Mount};
use crate::error::{read_text, write_text, Result};

/// The cgroups that are held.
#[derive(Debug, Default)]
pub struct Holders {
    held: BTreeMap<PathBuf, Held>,
}

#[derive(Debug)]
struct Held {
    directory: Directory,
    /// `memory.swap.max` before.
    before: String,
}

impl Holders {
    /// Holds these, and gives back those that are not among them. What could not be held yet is tried
    /// at the next call. Returns what went wrong.
    pub fn set(&mut self, mount: &Mount, wanted: &[PathBuf]) -> Vec<String> {
        let mut problems = Vec::new();
        let over: Vec<PathBuf> = self
            .held
            .keys()
            .filter(|path| !wanted.contains(path))
            .cloned()
            .collect();
        for path in over {
            problems.extend(self.give_back(mount, &path));
        }
        for path in wanted {
            let known = self.held.get(path).map(|held| held.directory.id());
            let now = mount.directory(path);
            // One that was made anew is not held yet.
            if matches!(&now, Ok(now) if Some(now.id()) == known) {
                continue;
            }
            match now.and_then(|directory| hold(mount, directory)) {
                Ok(held) => {
                    self.held.insert(path.clone(), held);
                }
                Err(error) => {
                    self.held.remove(path);
                    problems.push(format!("holder {}: {error}", path.display()));
                }
            }
        }
        problems
    }

    /// Gives all of them back.
    pub fn give_all_back(&mut self, mount: &Mount) -> Vec<String> {
        self.set(mount, &[])
    }

    fn give_back(&mut self, mount: &Mount, path: &Path) -> Option<String> {
        let held = self.held.remove(path)?;
        let file = swap_max(mount, &held.directory);
        // It may be gone.
        if file.exists() {
            if let Err(error) = write_text(&file, &held.before) {
                return Some(format!("holder {}: {error}", path.display()));
            }
        }
        mark::remove(&held.directory, mark::SWAP_MAX);
        None
    }
}

/// Gives back what a daemon that is gone held, if it did. Returns what went wrong.
pub fn free_left(mount: &Mount, directory: &Directory) -> Option<String> {
    let before = mark::read(directory, mark::SWAP_MAX)?;
    let file = swap_max(mount, directory);
    if let Err(error) = write_text(&file, &before) {
        return Some(format!("holder {}: {error}", directory.name()));
    }
    mark::remove(directory, mark::SWAP_MAX);
    None
}

fn swap_max(mount: &Mount, directory: &Directory) -> PathBuf {
    mount
        .path()
        .join(directory.inside())
        .join("memory.swap.max")
}

fn hold(mount: &Mount, directory: Directory) -> Result<Held> {
    let file = swap_max(mount, &directory);
    let before = match mark::read(&directory, mark::SWAP_MAX) {
        Some(before) => before,
        None => {
            let before = read_text(&file)?.trim().to_owned();
            mark::write(&directory, mark::SWAP_MAX, &before);
            before
        }
    };
    write_text(&file, "0")?;
    Ok(Held { directory, before })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn held_and_given_back() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("holder/memory.swap.max");
        std::fs::create_dir(dir.path().join("holder")).unwrap();
        std::fs::write(&file, "max\n").unwrap();
        let mount = Mount::open(dir.path()).unwrap();
        let wanted = [dir.path().join("holder")];
        let mut holders = Holders::default();
        assert_eq!(holders.set(&mount, &wanted), [""; 0]);
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "0");
        assert_eq!(holders.set(&mount, &wanted), [""; 0]);
        // Killed: the next one knows what it was, if notes can be written here.
        let directory = mount.directory(&wanted[0]).unwrap();
        let noted = mark::read(&directory, mark::SWAP_MAX).is_some();
        if noted {
            holders = Holders::default();
            assert_eq!(holders.set(&mount, &wanted), [""; 0]);
        }
        assert_eq!(holders.give_all_back(&mount), [""; 0]);
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "max");
        assert_eq!(mark::read(&directory, mark::SWAP_MAX), None);
    }

    #[test]
    fn one_that_is_not_there_is_tried_again() {
        let dir = tempfile::tempdir().unwrap();
        let mount = Mount::open(dir.path()).unwrap();
        let wanted = [dir.path().join("holder")];
        let mut holders = Holders::default();
        let problems = holders.set(&mount, &wanted);
        assert!(problems[0].contains("no such cgroup"), "{problems:?}");
        std::fs::create_dir(dir.path().join("holder")).unwrap();
        std::fs::write(dir.path().join("holder/memory.swap.max"), "5\n").unwrap();
        assert_eq!(holders.set(&mount, &wanted), [""; 0]);
    }
}
