// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The cgroup v2 tree, below a root that tests replace by a directory of plain files.

mod memory;

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

pub use memory::{Evicted, MemoryStat, Reclaimed};

use crate::error::{read_text, Error, Result};

/// A cgroup v2 mount.
#[derive(Clone, Debug)]
pub struct Hierarchy {
    root: PathBuf,
}

/// One cgroup: an existing directory of the mount.
#[derive(Clone, Debug)]
pub struct Cgroup {
    root: PathBuf,
    path: PathBuf,
    id: u64,
}

/// Which cgroup a command is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selector {
    /// By path: absolute, or relative to the mount.
    Path(PathBuf),
    /// By id, also after its directory was removed: `id:412`.
    Id(u64),
}

impl std::str::FromStr for Selector {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("the path is empty".to_owned());
        }
        match text.strip_prefix("id:") {
            Some(id) => match id.parse() {
                Ok(id) if id > 0 => Ok(Selector::Id(id)),
                _ => Err(format!(
                    "{id:?} is no cgroup id: a number is expected after \"id:\""
                )),
            },
            None => Ok(Selector::Path(text.into())),
        }
    }
}

impl std::fmt::Display for Selector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Selector::Path(path) => path.display().fmt(f),
            Selector::Id(id) => write!(f, "id:{id}"),
        }
    }
}

impl Hierarchy {
    /// The mount at this path.
    pub fn new(root: PathBuf) -> Self {
        Hierarchy { root }
    }

    /// Where it is mounted.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Finds a cgroup by path: relative to the mount; absolute; or absolute within the hierarchy,
    /// as `/proc/PID/cgroup` shows it.
    ///
    /// # Errors
    ///
    /// When there is no such directory or it is no cgroup.
    pub fn open(&self, path: &Path) -> Result<Cgroup> {
        let object = path.display().to_string();
        if path.components().any(|part| part == Component::ParentDir) {
            return Err(Error::invalid(object, "write the path without \"..\""));
        }
        let inside = self.root.join(path.strip_prefix("/").unwrap_or(path));
        let directory = match path.is_absolute() && (path.is_dir() || !inside.is_dir()) {
            true => path.to_owned(),
            false => inside,
        };
        let metadata = match directory.metadata() {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let problem = format!(
                    "no such cgroup: {} does not exist; give a path below {}",
                    directory.display(),
                    self.root.display()
                );
                return Err(Error::invalid(object, problem));
            }
            Err(error) => return Err(Error::io("look at", &directory)(error)),
        };
        if !directory.join("cgroup.procs").is_file() {
            let problem = format!(
                "not a cgroup v2 directory: {} has no file cgroup.procs; cgroup v2 is mounted at {}",
                directory.display(),
                self.root.display()
            );
            return Err(Error::invalid(object, problem));
        }
        Ok(self.cgroup(directory, metadata.ino()))
    }

    fn cgroup(&self, path: PathBuf, id: u64) -> Cgroup {
        Cgroup {
            root: self.root.clone(),
            path,
            id,
        }
    }

    /// Every cgroup of the mount by id. Cgroups that vanish meanwhile are left out.
    ///
    /// # Errors
    ///
    /// When the root itself cannot be read.
    pub fn by_id(&self) -> Result<HashMap<u64, Cgroup>> {
        let metadata = self.root.metadata();
        let metadata = metadata.map_err(Error::io("look at", &self.root))?;
        let root = self.cgroup(self.root.clone(), metadata.ino());
        Ok(root
            .subtree()
            .into_iter()
            .map(|cgroup| (cgroup.id, cgroup))
            .collect())
    }
}

impl Cgroup {
    /// The id, by which the module knows it: the inode number of the directory.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Its directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its path in the hierarchy, beginning with a slash.
    pub fn name(&self) -> String {
        match self.path.strip_prefix(&self.root) {
            Ok(inside) => format!("/{}", inside.display()),
            Err(_) => self.path.display().to_string(),
        }
    }

    /// Opens the directory, as the module takes it.
    ///
    /// # Errors
    ///
    /// When it is gone or may not be opened.
    pub fn open(&self) -> Result<File> {
        File::open(&self.path).map_err(Error::io("open", &self.path))
    }

    /// Itself and every cgroup below it, parents first. What vanishes meanwhile is left out.
    pub fn subtree(&self) -> Vec<Cgroup> {
        let mut found = vec![self.clone()];
        let mut next = 0;
        while let Some(cgroup) = found.get(next).cloned() {
            next += 1;
            let Ok(children) = std::fs::read_dir(&cgroup.path) else {
                continue;
            };
            for child in children.flatten() {
                let is_directory = child.file_type().is_ok_and(|kind| kind.is_dir());
                if let (true, Ok(metadata)) = (is_directory, child.metadata()) {
                    found.push(Cgroup {
                        root: cgroup.root.clone(),
                        path: child.path(),
                        id: metadata.ino(),
                    });
                }
            }
        }
        found
    }

    /// It and its ancestors up to the mount, from the inside out.
    pub fn ancestors(&self) -> impl Iterator<Item = &Path> {
        self.path
            .ancestors()
            .take_while(|path| path.starts_with(&self.root))
    }

    /// Processes of the subtree, and how many have no number in our pid namespace.
    ///
    /// # Errors
    ///
    /// When a list cannot be read though its cgroup is still there.
    pub fn processes(&self) -> Result<(Vec<i32>, usize)> {
        let mut pids = Vec::new();
        let mut foreign = 0;
        for cgroup in self.subtree() {
            let path = cgroup.path.join("cgroup.procs");
            let text = match read_text(&path) {
                Ok(text) => text,
                // Removed meanwhile; or a threaded cgroup, whose processes its domain lists.
                Err(error)
                    if matches!(
                        error.errno(),
                        Some(libc::ENOENT | libc::ENODEV | libc::EOPNOTSUPP)
                    ) =>
                {
                    continue;
                }
                Err(error) => return Err(error),
            };
            for line in text.lines() {
                match line.trim().parse() {
                    Ok(0) => foreign += 1,
                    Ok(pid) => pids.push(pid),
                    Err(_) => return Err(Error::parse(&path, format!("no pid: {line:?}"))),
                }
            }
        }
        pids.sort_unstable();
        pids.dedup();
        Ok((pids, foreign))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(cgroups: &[(&str, &str)]) -> (tempfile::TempDir, Hierarchy) {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("cgroup.procs"), "").unwrap();
        for (name, pids) in cgroups {
            let path = dir.path().join(name);
            std::fs::create_dir_all(&path).unwrap();
            std::fs::write(path.join("cgroup.procs"), pids).unwrap();
        }
        let hierarchy = Hierarchy::new(dir.path().to_owned());
        (dir, hierarchy)
    }

    #[test]
    fn three_ways_to_name_a_cgroup() {
        let (dir, hierarchy) = tree(&[("agents", ""), ("agents/sb1", "")]);
        let absolute = hierarchy.open(&dir.path().join("agents/sb1")).unwrap();
        let relative = hierarchy.open(Path::new("agents/sb1")).unwrap();
        let inside = hierarchy.open(Path::new("/agents/sb1")).unwrap();
        assert_eq!(absolute.id(), relative.id());
        assert_eq!(absolute.id(), inside.id());
        assert_eq!(absolute.name(), "/agents/sb1");
        let metadata = dir.path().join("agents/sb1").metadata().unwrap();
        assert_eq!(absolute.id(), metadata.ino());
        assert_eq!(
            hierarchy.by_id().unwrap()[&absolute.id()].path(),
            absolute.path()
        );
    }

    #[test]
    fn errors_say_what_is_wrong() {
        let (dir, hierarchy) = tree(&[]);
        std::fs::create_dir(dir.path().join("plain")).unwrap();
        let error = hierarchy.open(Path::new("none")).unwrap_err().to_string();
        assert!(error.starts_with("none: no such cgroup"), "{error}");
        let error = hierarchy.open(Path::new("plain")).unwrap_err().to_string();
        assert!(
            error.starts_with("plain: not a cgroup v2 directory"),
            "{error}"
        );
        let error = hierarchy.open(Path::new("a/../b")).unwrap_err().to_string();
        assert!(error.contains("without \"..\""), "{error}");
    }

    #[test]
    fn processes_of_the_subtree() {
        let (_dir, hierarchy) = tree(&[
            ("sb", "20\n10\n"),
            ("sb/in", "30\n0\n10\n"),
            ("other", "40\n"),
        ]);
        let cgroup = hierarchy.open(Path::new("sb")).unwrap();
        assert_eq!(cgroup.processes().unwrap(), (vec![10, 20, 30], 1));
    }

    #[test]
    fn a_bad_pid_is_an_error() {
        let (_dir, hierarchy) = tree(&[("sb", "x\n")]);
        let error = hierarchy
            .open(Path::new("sb"))
            .unwrap()
            .processes()
            .unwrap_err();
        assert!(
            error.to_string().contains("sb/cgroup.procs: no pid: \"x\""),
            "{error}"
        );
    }

    #[test]
    fn selectors() {
        assert_eq!("id:12".parse(), Ok(Selector::Id(12)));
        assert_eq!("a/b".parse(), Ok(Selector::Path("a/b".into())));
        assert!("id:x".parse::<Selector>().is_err());
        assert!("id:0".parse::<Selector>().is_err());
        assert!("".parse::<Selector>().is_err());
    }
}
