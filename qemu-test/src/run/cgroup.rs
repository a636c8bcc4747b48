// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The cgroup v2 directories of a run, and the reclaim of those configurations that have no daemon.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};
use rustix::fs::{removexattr, setxattr, XattrFlags};

/// Where cgroup v2 is mounted.
const ROOT: &str = "/sys/fs/cgroup";
/// Parent of every cgroup of a run.
pub const PARENT: &str = "agentzip-run";
/// What one write to memory.reclaim asks for, in bytes.
const SLICE: u64 = 8 << 20;
/// A slice that freed less than this many bytes gained nothing.
pub const LEAST_GAIN: u64 = 256 << 10;
/// Slices in a row without a gain that end the reclaim.
const MISSES: u32 = 2;
/// EAGAIN of Linux: reclaim got less than it was asked for.
const EAGAIN: i32 = 11;

/// One cgroup directory, made by this program.
#[derive(Clone, Debug)]
pub struct Cgroup {
    path: PathBuf,
}

/// What a cgroup is charged for, in bytes (memory.stat).
#[derive(Clone, Copy, Debug, Default)]
pub struct Charged {
    /// Anonymous pages on the LRU lists, in the swap cache or not, mapped or not.
    pub anonymous: u64,
    /// Of those, the mapped ones: the `anon` line.
    pub mapped: u64,
    /// Pages in the swap cache.
    pub swap_cached: u64,
    /// Kernel memory: page tables, stacks, slab objects, and the arena of AgentZip. None of it is
    /// in the other fields.
    pub kernel: u64,
}

/// Pages that left a cgroup since it was made.
#[derive(Clone, Copy, Debug, Default)]
pub struct Evicted {
    /// Taken by reclaim of any kind.
    pub stolen: u64,
    /// Of those, taken by memory.reclaim.
    pub reclaimed: u64,
    /// Filled with zeros, which the swap core only marks.
    pub zero_filled: u64,
}

impl Cgroup {
    /// Makes the cgroup `name` below the run's parent, with the memory controller.
    pub fn create(name: &str) -> Result<Self> {
        let parent = Self::tree();
        write(&Path::new(ROOT).join("cgroup.subtree_control"), "+memory")?;
        fs::create_dir_all(&parent).with_context(|| format!("mkdir {}", parent.display()))?;
        write(&parent.join("cgroup.subtree_control"), "+memory")?;
        let path = parent.join(name);
        fs::create_dir(&path).with_context(|| format!("mkdir {}", path.display()))?;
        Ok(Self { path })
    }

    /// The directory below which every cgroup of a run is.
    pub fn tree() -> PathBuf {
        Path::new(ROOT).join(PARENT)
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its number, by which module and daemon know it.
    pub fn id(&self) -> Result<u64> {
        let found = fs::metadata(&self.path);
        let found = found.with_context(|| format!("stat {}", self.path.display()))?;
        Ok(found.ino())
    }

    /// Sets the xattr `user.agentzip.NAME`.
    pub fn tell(&self, name: &str, value: &str) -> Result<()> {
        let name = format!("user.agentzip.{name}");
        setxattr(&self.path, &name, value.as_bytes(), XattrFlags::empty())
            .with_context(|| format!("set {name} of {} to {value:?}", self.path.display()))
    }

    /// Takes the xattr `user.agentzip.NAME` away.
    pub fn untell(&self, name: &str) -> Result<()> {
        let name = format!("user.agentzip.{name}");
        removexattr(&self.path, &name)
            .with_context(|| format!("remove {name} of {}", self.path.display()))
    }

    /// Writes one of the cgroup's files.
    pub fn write(&self, file: &str, value: &str) -> Result<()> {
        write(&self.path.join(file), value)
    }

    /// Reads what is charged now. Counts lag until the kernel's next flush: settle first.
    pub fn charged(&self) -> Result<Charged> {
        let field = self.stat()?;
        let lists = field("inactive_anon")? + field("active_anon")? + field("unevictable")?;
        Ok(Charged {
            anonymous: lists.saturating_sub(field("shmem")?),
            mapped: field("anon")?,
            swap_cached: field("swapcached")?,
            kernel: field("kernel")?,
        })
    }

    /// Reads how many pages have left. Counts lag, too.
    pub fn evicted(&self) -> Result<Evicted> {
        let field = self.stat()?;
        Ok(Evicted {
            stolen: field("pgsteal")?,
            reclaimed: field("pgsteal_proactive")?,
            zero_filled: field("swpout_zero")?,
        })
    }

    /// Reads memory.stat; the closure gives the value of a line.
    fn stat(&self) -> Result<impl Fn(&str) -> Result<u64>> {
        let path = self.path.join("memory.stat");
        let lines: HashMap<String, u64> = read(&path)?
            .lines()
            .filter_map(|line| line.split_once(' '))
            .filter_map(|(key, value)| Some((key.to_owned(), value.parse().ok()?)))
            .collect();
        Ok(move |name: &str| {
            lines
                .get(name)
                .copied()
                .with_context(|| format!("no {name} in {}", path.display()))
        })
    }

    /// Asks the kernel for so much anonymous memory, in one write. Less is no error.
    pub fn take(&self, bytes: u64) -> Result<()> {
        let path = self.path.join("memory.reclaim");
        match fs::write(&path, format!("{bytes} swappiness=max")) {
            Ok(()) => Ok(()),
            Err(error) if error.raw_os_error() == Some(EAGAIN) => Ok(()),
            Err(error) => Err(error).with_context(|| format!("write {}", path.display())),
        }
    }

    /// Asks the kernel for all anonymous memory, slice by slice, until nothing is left to gain.
    ///
    /// The wait of every configuration in which no daemon does it.
    pub fn reclaim(&self) -> Result<()> {
        let mut misses = 0;
        let mut before = self.current()?;
        while misses < MISSES {
            self.take(SLICE)?;
            let now = self.current()?;
            if now + LEAST_GAIN > before {
                misses += 1;
                // Pages under write-back need a moment.
                std::thread::sleep(Duration::from_millis(10));
            } else {
                misses = 0;
            }
            before = now;
        }
        Ok(())
    }

    fn current(&self) -> Result<u64> {
        let path = self.path.join("memory.current");
        read(&path)?
            .trim()
            .parse()
            .with_context(|| format!("parse {}", path.display()))
    }

    /// Waits until no process is left, then removes the directory.
    pub fn remove(self) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            match fs::remove_dir(&self.path) {
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                Err(error) if Instant::now() > deadline => {
                    let left = read(&self.path.join("cgroup.procs")).unwrap_or_default();
                    bail!(
                        "rmdir {}: {error}; processes left: {left:?}",
                        self.path.display()
                    );
                }
                Err(_) => std::thread::sleep(Duration::from_millis(50)),
            }
        }
    }
}

/// Reads a small text file; the error names it.
pub fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("read {}", path.display()))
}

/// Writes a small text file; the error names it.
pub fn write(path: &Path, value: &str) -> Result<()> {
    fs::write(path, value).with_context(|| format!("write {value:?} to {}", path.display()))
}
