// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The socket's file: made with its mode and group before anyone can connect, taken over only from
//! a daemon that is gone, and removed only while it is ours.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::fs::{self, FlockOperation, Gid, Mode};
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Clients that may wait to be accepted.
const BACKLOG: i32 = 128;

/// Where the socket is and who may connect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Its path.
    pub path: PathBuf,
    /// Its mode, of which only the bits for reading and writing count: writing means connecting.
    pub mode: u32,
    /// Its group, as a name in /etc/group or a number; the daemon's own when `None`.
    pub group: Option<String>,
    /// Most clients at a time, 1 to 65,536. One user other than root gets at most a quarter.
    pub max_clients: usize,
}

/// Where the socket is when the configuration does not say otherwise.
pub const DEFAULT_PATH: &str = "/run/agentzip.sock";

impl Default for Settings {
    fn default() -> Self {
        Settings {
            path: DEFAULT_PATH.into(),
            mode: 0o660,
            group: None,
            max_clients: 256,
        }
    }
}

impl Settings {
    /// Checks the values.
    ///
    /// # Errors
    ///
    /// When one is out of its range, which.
    pub fn check(&self) -> Result<()> {
        if self.mode & !0o777 != 0 {
            let problem = format!("{:o} is no mode; 0660 and 0666 are", self.mode);
            return Err(Error::invalid("socket mode", problem));
        }
        if !(1..=65_536).contains(&self.max_clients) {
            let problem = format!("{} is not in 1..=65536", self.max_clients);
            return Err(Error::invalid("socket max_clients", problem));
        }
        if !self.path.is_absolute() {
            let problem = "not absolute; give the whole path";
            return Err(Error::invalid(self.path.display().to_string(), problem));
        }
        self.gid().map(|_| ())
    }

    fn gid(&self) -> Result<Option<Gid>> {
        self.group
            .as_deref()
            .map(|name| gid(name, Path::new("/etc/group")))
            .transpose()
    }
}

/// The number of a group.
fn gid(name: &str, file: &Path) -> Result<Gid> {
    // All ones means "leave it" to chown.
    if let Some(number) = name.parse().ok().filter(|number| *number != u32::MAX) {
        return Ok(Gid::from_raw(number));
    }
    let text = crate::error::read_text(file)?;
    let line = text.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then(|| fields.nth(1))
    });
    match line.flatten().and_then(|number| number.parse().ok()) {
        Some(number) => Ok(Gid::from_raw(number)),
        None => {
            let problem = format!(
                "no such group in {}; groups from elsewhere are given by number",
                file.display()
            );
            Err(Error::invalid(name, problem))
        }
    }
}

/// The listening socket. Its file goes when this goes.
pub(super) struct Listener {
    fd: OwnedFd,
    path: PathBuf,
    inode: (u64, u64),
    /// Holds the lock that makes us the only one to take the path over.
    _lock: File,
}

impl Listener {
    /// Makes the socket.
    pub(super) fn bind(settings: &Settings) -> Result<Listener> {
        settings.check()?;
        let path = &settings.path;
        let lock = lock(path)?;
        remove_stale(path)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let failed =
            |operation| move |errno: rustix::io::Errno| Error::io(operation, path)(errno.into());
        let fd = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
            .map_err(failed("make socket"))?;
        let address = SocketAddrUnix::new(path).map_err(failed("use as a socket's path"))?;
        net::bind(&fd, &address).map_err(failed("bind socket"))?;
        // Nobody can connect before `listen`, so nobody gets in by the mode that bind gave.
        let prepared = settings.gid().and_then(|gid| {
            fs::chownat(fs::CWD, path, None, gid, fs::AtFlags::SYMLINK_NOFOLLOW)
                .map_err(failed("give to its group"))?;
            fs::chmod(path, Mode::from_raw_mode(settings.mode)).map_err(failed("set mode of"))?;
            let metadata = path
                .symlink_metadata()
                .map_err(Error::io("look at", path))?;
            net::listen(&fd, BACKLOG).map_err(failed("listen on"))?;
            Ok((metadata.dev(), metadata.ino()))
        });
        match prepared {
            Ok(inode) => Ok(Listener {
                fd,
                path: path.clone(),
                inode,
                _lock: lock,
            }),
            Err(error) => {
                let _ = std::fs::remove_file(path);
                Err(error)
            }
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let ours = self.path.symlink_metadata();
        if ours.is_ok_and(|m| (m.dev(), m.ino()) == self.inode) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Locks `PATH.lock`. The lock goes with the process, the file stays.
fn lock(path: &Path) -> Result<File> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let name = PathBuf::from(name);
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(&name)
        .map_err(Error::io("open lock file", &name))?;
    match fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(in_use(path)),
        Err(errno) => Err(Error::io("lock", &name)(errno.into())),
    }
}

fn in_use(path: &Path) -> Error {
    let problem = "another daemon listens there; stop it first";
    Error::invalid(path.display().to_string(), problem)
}

/// Removes a socket that nobody listens on. Called with the lock held.
fn remove_stale(path: &Path) -> Result<()> {
    let metadata = match path.symlink_metadata() {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(Error::io("look at", path)(error)),
    };
    if !metadata.file_type().is_socket() {
        let problem = "is there and is no socket; remove it, or configure another path";
        return Err(Error::invalid(path.display().to_string(), problem));
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {}
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Ok(_) => return Err(in_use(path)),
        // Full, for example: someone listens.
        Err(error) => return Err(Error::io("try", path)(error)),
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::io("remove stale socket", path)(error))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;

    fn settings(dir: &tempfile::TempDir) -> Settings {
        Settings {
            path: dir.path().join("s"),
            ..Settings::default()
        }
    }

    #[test]
    fn a_stale_socket_is_taken_over_and_a_live_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let settings = settings(&dir);
        let live = UnixListener::bind(&settings.path).unwrap();
        let error = Listener::bind(&settings).err().unwrap().to_string();
        assert!(error.contains("another daemon listens there"), "{error}");
        drop(live);
        assert!(settings.path.exists());
        let ours = Listener::bind(&settings).unwrap();
        let error = Listener::bind(&settings).err().unwrap().to_string();
        assert!(error.contains("another daemon listens there"), "{error}");
        drop(ours);
        assert!(!settings.path.exists());
        Listener::bind(&settings).unwrap();
    }

    #[test]
    fn what_is_not_ours_stays() {
        let dir = tempfile::tempdir().unwrap();
        let settings = settings(&dir);
        std::fs::write(&settings.path, "precious").unwrap();
        let error = Listener::bind(&settings).err().unwrap().to_string();
        assert!(error.contains("is no socket"), "{error}");
        std::fs::remove_file(&settings.path).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", &settings.path).unwrap();
        assert!(Listener::bind(&settings).is_err());
        std::fs::remove_file(&settings.path).unwrap();
        let ours = Listener::bind(&settings).unwrap();
        std::fs::remove_file(&settings.path).unwrap();
        std::fs::write(&settings.path, "precious").unwrap();
        drop(ours);
        assert!(settings.path.exists());
    }

    #[test]
    fn mode_and_group() {
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().metadata().unwrap().gid();
        let settings = Settings {
            mode: 0o606,
            group: Some(own.to_string()),
            ..settings(&dir)
        };
        let _listener = Listener::bind(&settings).unwrap();
        let metadata = settings.path.metadata().unwrap();
        assert_eq!(metadata.permissions().mode() & 0o777, 0o606);
        assert_eq!(metadata.gid(), own);
    }

    #[test]
    fn settings_are_checked() {
        let dir = tempfile::tempdir().unwrap();
        let groups = dir.path().join("group");
        std::fs::write(&groups, "root:x:0:\nagents:x:77:a,b\nbroken\n").unwrap();
        assert_eq!(gid("agents", &groups).unwrap().as_raw(), 77);
        assert_eq!(gid("78", &groups).unwrap().as_raw(), 78);
        for bad in ["none", "broken", "4294967295", ""] {
            assert!(gid(bad, &groups).is_err(), "{bad}");
        }
        for (bad, reason) in [
            (
                Settings {
                    mode: 0o4777,
                    ..Settings::default()
                },
                "is no mode",
            ),
            (
                Settings {
                    max_clients: 0,
                    ..Settings::default()
                },
                "1..=65536",
            ),
            (
                Settings {
                    path: "s".into(),
                    ..Settings::default()
                },
                "not absolute",
            ),
            (
                Settings {
                    group: Some("no such".into()),
                    ..Settings::default()
                },
                "no such group",
            ),
        ] {
            let error = bad.check().unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
        Settings::default().check().unwrap();
    }
}
