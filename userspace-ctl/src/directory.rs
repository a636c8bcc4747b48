// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Directories of cgroups by paths that others gave: opened component by component below the mount,
//! never through a symlink, a mount or `..`, and held open, so that what was checked is what is used.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{self, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::error::{Error, Result};

/// Longest path that is taken from others, in bytes.
pub const MAX_PATH: usize = 4095;

/// Attempts against a tree that is renamed all the time (`EAGAIN` of openat2).
const ATTEMPTS: usize = 16;

/// The mount of cgroup v2, held open.
#[derive(Debug)]
pub struct Mount {
    root: OwnedFd,
    path: PathBuf,
}

/// A cgroup's directory, held open.
#[derive(Debug)]
pub struct Directory {
    fd: OwnedFd,
    name: PathBuf,
    id: u64,
}

/// To whom a directory belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ownership {
    /// User id of the owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Permission bits.
    pub mode: u32,
    /// Others than the owner may write, and so set xattrs.
    pub shared: bool,
}

impl Mount {
    /// Opens the mount.
    ///
    /// # Errors
    ///
    /// When it is not there.
    pub fn open(path: &Path) -> Result<Mount> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = fs::open(path, flags, Mode::empty())
            .map_err(|errno| Error::io("open", path)(errno.into()))?;
        Ok(Mount {
            root,
            path: path.to_owned(),
        })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of a cgroup in the hierarchy, without a slash in front: from an absolute path below
    /// the mount, a path as `/proc/PID/cgroup` shows it, or a path relative to the mount. The root
    /// is the empty path.
    ///
    /// # Errors
    ///
    /// For a path that has `..` or a NUL byte, or is too long.
    pub fn inside(&self, path: &Path) -> Result<PathBuf> {
        inside(&self.path, path)
    }

    /// Opens the directory at a path of any of the forms that [`inside`](Mount::inside) takes.
    ///
    /// # Errors
    ///
    /// When there is none, or the way there goes through a symlink or another mount.
    pub fn directory(&self, path: &Path) -> Result<Directory> {
        let name = self.inside(path)?;
        let at = match name.as_os_str().is_empty() {
            true => Path::new("."),
            false => &name,
        };
        Directory::beneath(self.root.as_fd(), at, name.clone())
            .map_err(|cause| self.explain(path, cause))
    }

    fn explain(&self, path: &Path, cause: io::Error) -> Error {
        let object = path.display().to_string();
        let problem = match Errno::from_io_error(&cause) {
            Some(Errno::NOENT) => format!("no such cgroup below {}", self.path.display()),
            Some(Errno::LOOP) => "a symlink is on the way; give the directory itself".to_owned(),
            Some(Errno::XDEV) => format!(
                "leads out of {}, or into another mount; give a cgroup's own path",
                self.path.display()
            ),
            Some(Errno::NOTDIR) => "no directory, so no cgroup".to_owned(),
            _ => return Error::io("open cgroup", path)(cause),
        };
        Error::invalid(object, problem)
    }
}

/// As [`Mount::inside`], for a mount that need not be open.
///
/// # Errors
///
/// For a path that has `..` or a NUL byte, or is too long.
pub fn inside(mount: &Path, path: &Path) -> Result<PathBuf> {
    let bytes = path.as_os_str().as_bytes();
    if bytes.len() > MAX_PATH || bytes.contains(&0) {
        let problem = format!("a path has at most {MAX_PATH} bytes, none of them NUL");
        let shown: String = path.to_string_lossy().chars().take(80).collect();
        return Err(Error::invalid(format!("{shown:?}"), problem));
    }
    let below = path.strip_prefix(mount).unwrap_or(path);
    let mut name = PathBuf::new();
    for part in below.components() {
        match part {
            Component::Normal(part) => name.push(part),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
            Component::ParentDir => {
                let object = path.display().to_string();
                return Err(Error::invalid(object, "write the path without \"..\""));
            }
        }
    }
    Ok(name)
}

impl Directory {
    fn beneath(at: BorrowedFd<'_>, path: &Path, name: PathBuf) -> io::Result<Directory> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        let mut attempts = 1;
        let fd = loop {
            match fs::openat2(at, path, flags, Mode::empty(), resolve) {
                Ok(fd) => break fd,
                // The kernel could not tell, as something was renamed or mounted meanwhile.
                Err(Errno::AGAIN | Errno::INTR) if attempts < ATTEMPTS => attempts += 1,
                Err(errno) => return Err(errno.into()),
            }
        };
        let id = fs::fstat(&fd)?.st_ino;
        Ok(Directory { fd, name, id })
    }

    /// Opens a child.
    ///
    /// # Errors
    ///
    /// When it is gone, no directory, or on another mount.
    pub fn child(&self, name: &OsStr) -> io::Result<Directory> {
        Directory::beneath(self.fd.as_fd(), Path::new(name), self.name.join(name))
    }

    /// The path in the hierarchy, without a slash in front.
    pub fn inside(&self) -> &Path {
        &self.name
    }

    /// The path in the hierarchy, beginning with a slash, for people.
    pub fn name(&self) -> String {
        format!("/{}", self.name.display())
    }

    /// The cgroup's id: the inode number.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// To whom it belongs now.
    ///
    /// # Errors
    ///
    /// Whatever fstat gives.
    pub fn ownership(&self) -> io::Result<Ownership> {
        let stat = fs::fstat(&self.fd)?;
        Ok(Ownership {
            uid: stat.st_uid,
            gid: stat.st_gid,
            mode: stat.st_mode & 0o7777,
            shared: stat.st_mode & 0o022 != 0,
        })
    }

    /// Names of the subdirectories, at most `most`; the flag says that there are more.
    ///
    /// # Errors
    ///
    /// When it cannot be read.
    pub fn children(&self, most: usize) -> io::Result<(Vec<std::ffi::OsString>, bool)> {
        let mut names = Vec::new();
        for entry in fs::Dir::read_from(&self.fd)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            // Some file systems do not say what it is; opening it will.
            let maybe = matches!(
                entry.file_type(),
                fs::FileType::Directory | fs::FileType::Unknown
            );
            if !maybe || name == b"." || name == b".." {
                continue;
            }
            if names.len() >= most {
                return Ok((names, true));
            }
            names.push(OsStr::from_bytes(name).to_owned());
        }
        Ok((names, false))
    }
}

impl AsFd for Directory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{symlink, MetadataExt};

    fn tree() -> (tempfile::TempDir, Mount) {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("mount/a/b")).unwrap();
        std::fs::create_dir(dir.path().join("outside")).unwrap();
        std::fs::write(dir.path().join("mount/file"), "").unwrap();
        let mount = Mount::open(&dir.path().join("mount")).unwrap();
        (dir, mount)
    }

    #[test]
    fn three_ways_to_name_a_directory() {
        let (dir, mount) = tree();
        let id = dir.path().join("mount/a/b").metadata().unwrap().ino();
        let absolute = dir.path().join("mount/a/b");
        for path in [absolute.as_path(), Path::new("/a/b"), Path::new("a/./b/")] {
            let directory = mount.directory(path).unwrap();
            assert_eq!((directory.id(), directory.name().as_str()), (id, "/a/b"));
        }
        let root = mount.directory(Path::new("/")).unwrap();
        assert_eq!(root.name(), "/");
        assert_eq!(root.children(10).unwrap(), (vec!["a".into()], false));
        assert_eq!(root.children(0).unwrap(), (vec![], true));
        assert_eq!(root.child(OsStr::new("a")).unwrap().name(), "/a");
    }

    #[test]
    fn no_way_out() {
        let (dir, mount) = tree();
        symlink("../outside", dir.path().join("mount/up")).unwrap();
        symlink("a", dir.path().join("mount/alias")).unwrap();
        symlink("/", dir.path().join("mount/a/slash")).unwrap();
        let long = "x/".repeat(3000);
        for (path, reason) in [
            ("up", "symlink"),
            ("alias", "symlink"),
            ("alias/b", "symlink"),
            ("a/slash/tmp", "symlink"),
            ("../outside", "without \"..\""),
            ("a/../../outside", "without \"..\""),
            ("/nowhere", "no such cgroup below"),
            ("file", "no directory"),
            ("a\0b", "none of them NUL"),
            (&long, "at most 4095 bytes"),
        ] {
            let error = mount.directory(Path::new(path)).unwrap_err().to_string();
            assert!(error.contains(reason), "{path}: {error}");
        }
        let a = mount.directory(Path::new("a")).unwrap();
        assert!(a.child(OsStr::new("slash")).is_err());
        assert!(a.child(OsStr::new("..")).is_err());
    }

    /// While a directory and a symlink to a foreign one change places, only the directory is opened.
    #[test]
    fn symlink_race() {
        use std::sync::atomic::{AtomicBool, Ordering};
        let (dir, mount) = tree();
        let base = dir.path().join("mount/a");
        symlink("../../outside", base.join("trap")).unwrap();
        let real = base.join("b").metadata().unwrap().ino();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let flags = fs::RenameFlags::EXCHANGE;
                    fs::renameat_with(fs::CWD, base.join("b"), fs::CWD, base.join("trap"), flags)
                        .unwrap();
                }
            });
            let mut opened = 0;
            // However unlucky: once it is opened, for the other thread leaves it in place half of the time.
            for attempt in 0.. {
                if attempt >= 2000 && opened > 0 || attempt >= 2_000_000 {
                    break;
                }
                if let Ok(directory) = mount.directory(Path::new("a/b")) {
                    assert_eq!(directory.id(), real);
                    opened += 1;
                }
            }
            stop.store(true, Ordering::Relaxed);
            assert!(opened > 0);
        });
    }
}
