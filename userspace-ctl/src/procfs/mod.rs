// SPDX-License-Identifier: GPL-2.0 OR MIT

//! procfs, below a root that tests replace.

mod maps;
mod pagemap;
mod swaps;

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;

use rustix::fs::{self, FileType, Mode, OFlags, ResolveFlags};

pub use maps::Mapping;
pub use pagemap::PageMap;
pub use swaps::SwapDevice;

use crate::error::{read_number, read_text, Error, Result};

/// A procfs mount.
#[derive(Clone, Debug)]
pub struct Procfs {
    root: PathBuf,
}

/// What `/proc/meminfo` says, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemInfo {
    /// All memory that the kernel manages.
    pub total: u64,
    /// Memory that can be had without swapping.
    pub available: u64,
    /// Memory whose pages have a slot in swap too, so that swapoff need not read them.
    pub swap_cached: u64,
}

impl Procfs {
    /// The mount at this path.
    pub fn new(root: PathBuf) -> Self {
        Procfs { root }
    }

    fn process_file(&self, pid: i32, name: &str) -> PathBuf {
        self.root.join(pid.to_string()).join(name)
    }

    /// Where cgroup v2 is mounted, from `/proc/self/mountinfo`.
    pub fn cgroup2_mount(&self) -> Option<PathBuf> {
        let text = read_text(&self.root.join("self/mountinfo")).ok()?;
        text.lines().find_map(|line| {
            let (mount, filesystem) = line.split_once(" - ")?;
            if filesystem.split(' ').next()? != "cgroup2" {
                return None;
            }
            mount
                .split(' ')
                .nth(4)
                .map(|path| swaps::unescape(path).into())
        })
    }

    /// Mappings of a process, in the order of their addresses.
    ///
    /// # Errors
    ///
    /// When the process is gone, or the file cannot be understood.
    pub fn maps(&self, pid: i32) -> Result<Vec<Mapping>> {
        let path = self.process_file(pid, "maps");
        read_text(&path)?
            .lines()
            .map(|line| {
                line.parse()
                    .map_err(|problem: String| Error::parse(&path, problem))
            })
            .collect()
    }

    /// Opens the file that a process has mapped, and says how it was found: through the mapping, or
    /// else by its path below the process's root.
    ///
    /// # Errors
    ///
    /// When the process is gone, or the file is and may not be reached through the mapping.
    pub fn mapped_file(&self, pid: i32, mapping: &Mapping) -> Result<(PathBuf, File)> {
        let range = &mapping.range;
        let name = format!("map_files/{:x}-{:x}", range.start, range.end);
        let path = self.process_file(pid, &name);
        let at = fs::open(&path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
        if let Ok(file) = at.map_err(io::Error::from).and_then(open_plain) {
            return Ok((path, file));
        }
        // What is there by now may be anything: whoever owns the process can put it there.
        let root = self.process_file(pid, "root");
        let path = root.join(mapping.path().trim_start_matches('/'));
        let inside = path.strip_prefix(&root).unwrap_or(&path);
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let file = fs::open(&root, flags, Mode::empty())
            .and_then(|root| {
                let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
                let flags = OFlags::PATH | OFlags::CLOEXEC;
                fs::openat2(root, inside, flags, Mode::empty(), resolve)
            })
            .map_err(io::Error::from)
            .and_then(open_plain)
            .map_err(Error::io("open", &path))?;
        Ok((path, file))
    }

    /// State letter of a process: `R`, `S`, `T` ...
    ///
    /// # Errors
    ///
    /// When the process is gone, or the file cannot be understood.
    pub fn state(&self, pid: i32) -> Result<char> {
        let path = self.process_file(pid, "stat");
        let text = read_text(&path)?;
        // The name, in parentheses, can hold anything.
        text.rsplit_once(") ")
            .and_then(|(_, rest)| rest.chars().next())
            .ok_or_else(|| Error::parse(&path, "no state after the name"))
    }

    /// The cgroup v2 path of a process, as `/proc/PID/cgroup` gives it: relative to the root of
    /// the hierarchy, beginning with a slash.
    pub fn cgroup(&self, pid: i32) -> Option<String> {
        let text = read_text(&self.process_file(pid, "cgroup")).ok()?;
        text.lines()
            .find_map(|line| line.strip_prefix("0::"))
            .map(str::to_owned)
    }

    /// Opens the page table view of a process.
    ///
    /// # Errors
    ///
    /// When the process is gone or may not be inspected.
    pub fn pagemap(&self, pid: i32) -> Result<PageMap> {
        let path = self.process_file(pid, "pagemap");
        PageMap::open(path)
    }

    /// Opens the memory of a process for reading.
    ///
    /// # Errors
    ///
    /// When the process is gone or may not be inspected.
    pub fn memory(&self, pid: i32) -> Result<File> {
        let path = self.process_file(pid, "mem");
        File::open(&path).map_err(Error::io("open", &path))
    }

    /// Swap devices in use.
    ///
    /// # Errors
    ///
    /// When the file cannot be read or understood.
    pub fn swaps(&self) -> Result<Vec<SwapDevice>> {
        let path = self.root.join("swaps");
        swaps::parse(&read_text(&path)?).map_err(|problem| Error::parse(&path, problem))
    }

    /// How much memory there is, and how much is available.
    ///
    /// # Errors
    ///
    /// When the file cannot be read or lacks a line.
    pub fn meminfo(&self) -> Result<MemInfo> {
        let path = self.root.join("meminfo");
        let text = read_text(&path)?;
        let field = |name: &str| {
            text.lines()
                .filter_map(|line| line.split_once(':'))
                .find(|(key, _)| *key == name)
                .and_then(|(_, value)| value.trim().strip_suffix(" kB")?.parse::<u64>().ok())
                .map(|kib| kib << 10)
                .ok_or_else(|| Error::parse(&path, format!("no line {name}: N kB")))
        };
        Ok(MemInfo {
            total: field("MemTotal")?,
            available: field("MemAvailable")?,
            swap_cached: field("SwapCached")?,
        })
    }

    /// The swap readahead window as a power of two: `vm.page-cluster`.
    ///
    /// # Errors
    ///
    /// When the file cannot be read or understood.
    pub fn page_cluster(&self) -> Result<u64> {
        read_number(&self.root.join("sys/vm/page-cluster"))
    }
}

/// Opens for reading what was found; only plain files: opening a device may do something, and opening a
/// FIFO may never end.
fn open_plain(found: OwnedFd) -> io::Result<File> {
    if FileType::from_raw_mode(fs::fstat(&found)?.st_mode) != FileType::RegularFile {
        let problem = "no plain file";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
    }
    File::open(format!("/proc/self/fd/{}", found.as_raw_fd()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fake(files: &[(&str, &str)]) -> (tempfile::TempDir, Procfs) {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let procfs = Procfs::new(dir.path().to_owned());
        (dir, procfs)
    }

    #[test]
    fn state_after_any_name() {
        let (_dir, procfs) = fake(&[
            ("7/stat", "7 (a) S (b)) T 1 7 7\n"),
            ("8/stat", "8 nonsense"),
        ]);
        assert_eq!(procfs.state(7).unwrap(), 'T');
        assert!(procfs
            .state(8)
            .unwrap_err()
            .to_string()
            .contains("8/stat: no state"));
        assert_eq!(procfs.state(9).unwrap_err().errno(), Some(libc::ENOENT));
    }

    #[test]
    fn mount_of_cgroup2() {
        let (_dir, procfs) = fake(&[(
            "self/mountinfo",
            "29 22 0:25 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
             30 22 0:26 / /sys/fs/my\\040cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n",
        )]);
        assert_eq!(procfs.cgroup2_mount(), Some("/sys/fs/my cgroup".into()));
    }

    #[test]
    fn meminfo_in_bytes() {
        let (_dir, procfs) = fake(&[(
            "meminfo",
            "MemTotal: 4000 kB\nMemAvailable:   1000 kB\nSwapCached:  3 kB\n",
        )]);
        let info = procfs.meminfo().unwrap();
        assert_eq!((info.total, info.available), (4000 << 10, 1000 << 10));
        assert_eq!(info.swap_cached, 3 << 10);
    }

    #[test]
    fn meminfo_names_what_is_missing() {
        let (_dir, procfs) = fake(&[("meminfo", "MemTotal: 4000 kB\n")]);
        let error = procfs.meminfo().unwrap_err().to_string();
        assert!(
            error.ends_with("meminfo: no line MemAvailable: N kB"),
            "{error}"
        );
    }

    #[test]
    fn cgroup_of_a_process() {
        let (_dir, procfs) = fake(&[("5/cgroup", "1:memory:/x\n0::/agents/sb 3\n")]);
        assert_eq!(procfs.cgroup(5).as_deref(), Some("/agents/sb 3"));
        assert_eq!(procfs.cgroup(6), None);
    }
}
