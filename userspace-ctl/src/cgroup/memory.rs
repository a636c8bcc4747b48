// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The memory controller's files of a cgroup.

use std::path::Path;

use serde::Serialize;

use super::Cgroup;
use crate::error::{read_text, write_text, Error, Result};

/// Memory of a cgroup and what is below it, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MemoryStat {
    /// Everything charged: `memory.current`.
    pub current: u64,
    /// Mapped anonymous memory: `anon` of `memory.stat`. The kernel batches this; it can be off
    /// by 256 KiB for each CPU.
    pub anon: u64,
    /// Pages that have a slot in swap too: `swapcached`.
    pub swap_cached: u64,
    /// tmpfs and shared memory: `shmem`.
    pub shmem: u64,
    /// What reclaim can take to swap: `inactive_anon` and `active_anon`, mapped or not.
    pub reclaimable: u64,
    /// Memory that cannot be reclaimed (mlock): `unevictable`.
    pub unevictable: u64,
    /// Slots in swap: `memory.swap.current`. Pages that came back keep theirs.
    pub swap: u64,
}

/// Pages that left memory, since the cgroup was made. The kernel batches these counts, too: they
/// can be off by 64 for each CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evicted {
    /// Taken by `memory.reclaim`, of the kind that it was told to take.
    pub reclaimed: u64,
    /// Filled with zeros: swapped out without going anywhere.
    pub zero_filled: u64,
}

/// What one write to `memory.reclaim` came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reclaimed {
    /// At least what was asked for.
    All,
    /// Less (`EAGAIN`): how much, the kernel does not say.
    Less,
}

impl Cgroup {
    /// How much memory it has.
    ///
    /// # Errors
    ///
    /// When a file of the memory controller is missing or cannot be understood.
    pub fn memory_stat(&self) -> Result<MemoryStat> {
        let field = self.stat_fields()?;
        Ok(MemoryStat {
            current: self.number("memory.current")?.unwrap_or(0),
            anon: field("anon")?,
            swap_cached: field("swapcached")?,
            shmem: field("shmem")?,
            reclaimable: field("inactive_anon")? + field("active_anon")?,
            unevictable: field("unevictable")?,
            swap: self.number("memory.swap.current")?.unwrap_or(0),
        })
    }

    /// How many pages left its memory.
    ///
    /// # Errors
    ///
    /// When a file of the memory controller is missing or cannot be understood.
    pub fn evicted(&self) -> Result<Evicted> {
        let field = self.stat_fields()?;
        Ok(Evicted {
            reclaimed: field("pgsteal_proactive")?,
            zero_filled: field("swpout_zero")?,
        })
    }

    /// Reads `memory.stat`; the closure gives a line's value.
    fn stat_fields(&self) -> Result<impl Fn(&str) -> Result<u64>> {
        let path = self.path().join("memory.stat");
        let text = read_text(&path).map_err(|error| self.explain(error))?;
        Ok(move |name: &str| {
            text.lines()
                .filter_map(|line| line.split_once(' '))
                .find(|(key, _)| *key == name)
                .and_then(|(_, value)| value.trim().parse::<u64>().ok())
                .ok_or_else(|| Error::parse(&path, format!("no line \"{name} NUMBER\"")))
        })
    }

    /// Takes anonymous memory of the subtree to swap: writes `memory.reclaim`.
    ///
    /// # Errors
    ///
    /// Whatever the write gives except `EAGAIN`, which is normal.
    pub fn reclaim(&self, bytes: u64) -> Result<Reclaimed> {
        let path = self.path().join("memory.reclaim");
        match write_text(&path, &format!("{bytes} swappiness=max")) {
            Ok(()) => Ok(Reclaimed::All),
            Err(error) => match error.errno() {
                Some(libc::EAGAIN) => Ok(Reclaimed::Less),
                Some(libc::EINVAL) => Err(Error::Refused {
                    operation: "reclaim",
                    object: self.name(),
                    cause: std::io::Error::from_raw_os_error(libc::EINVAL),
                    advice: "this kernel's memory.reclaim does not know swappiness=max".to_owned(),
                }),
                _ => Err(self.explain(error)),
            },
        }
    }

    /// Bytes that can be charged before it or an ancestor meets `memory.high` or `memory.max`;
    /// `None` when nothing limits it.
    ///
    /// # Errors
    ///
    /// When a file cannot be understood.
    pub fn headroom(&self) -> Result<Option<u64>> {
        let mut least = None;
        for directory in self.ancestors() {
            for limit in ["memory.high", "memory.max"] {
                let Some(limit) = number(directory, limit)? else {
                    continue;
                };
                let used = number(directory, "memory.current")?.unwrap_or(0);
                let room = limit.saturating_sub(used);
                least = Some(least.map_or(room, |least: u64| least.min(room)));
            }
        }
        Ok(least)
    }

    /// The smallest `memory.swap.max` of it and its ancestors, with the file that sets it.
    ///
    /// # Errors
    ///
    /// When a file cannot be understood.
    pub fn swap_limit(&self) -> Result<Option<(u64, std::path::PathBuf)>> {
        let mut least: Option<(u64, _)> = None;
        for directory in self.ancestors() {
            if let Some(limit) = number(directory, "memory.swap.max")? {
                if least.as_ref().is_none_or(|(least, _)| limit < *least) {
                    least = Some((limit, directory.join("memory.swap.max")));
                }
            }
        }
        Ok(least)
    }

    fn number(&self, name: &str) -> Result<Option<u64>> {
        number(self.path(), name)
    }

    /// Names the usual cause when a file of the memory controller is missing.
    fn explain(&self, error: Error) -> Error {
        match error {
            Error::Io {
                operation,
                path,
                cause,
            } if cause.kind() == std::io::ErrorKind::NotFound && self.path().is_dir() => {
                let parent = self.path().parent().unwrap_or(self.path());
                Error::Refused {
                    operation,
                    object: path.display().to_string(),
                    cause,
                    advice: format!(
                        "the memory controller is not on; try: echo +memory > {}/cgroup.subtree_control",
                        parent.display()
                    ),
                }
            }
            other => other,
        }
    }
}

/// A file with one number; `None` when there is no such file or it says `max`.
fn number(directory: &Path, name: &str) -> Result<Option<u64>> {
    let path = directory.join(name);
    let text = match read_text(&path) {
        Ok(text) => text,
        Err(error) if error.errno() == Some(libc::ENOENT) => return Ok(None),
        Err(error) => return Err(error),
    };
    match text.trim() {
        "max" => Ok(None),
        value => value.parse().map(Some).map_err(|_| {
            Error::parse(
                &path,
                format!("expected a number or \"max\", found {value:?}"),
            )
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::Hierarchy;

    fn fixture(files: &[(&str, &str)]) -> (tempfile::TempDir, Cgroup) {
        let dir = tempfile::tempdir().unwrap();
        let sandbox = dir.path().join("agents/sb");
        std::fs::create_dir_all(&sandbox).unwrap();
        std::fs::write(sandbox.join("cgroup.procs"), "").unwrap();
        for (name, text) in files {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        let cgroup = Hierarchy::new(dir.path().to_owned())
            .open(Path::new("agents/sb"))
            .unwrap();
        (dir, cgroup)
    }

    const STAT: &str = "anon 100\nfile 5\nshmem 7\nswapcached 9\ninactive_anon 60\n\
        active_anon 50\ninactive_file 1\nunevictable 3\npgsteal_proactive 70\nswpout_zero 2\n";

    #[test]
    fn statistics() {
        let (_dir, cgroup) = fixture(&[
            ("agents/sb/memory.stat", STAT),
            ("agents/sb/memory.current", "1000\n"),
            ("agents/sb/memory.swap.current", "4096\n"),
        ]);
        let stat = cgroup.memory_stat().unwrap();
        let expected = MemoryStat {
            current: 1000,
            anon: 100,
            swap_cached: 9,
            shmem: 7,
            reclaimable: 110,
            unevictable: 3,
            swap: 4096,
        };
        assert_eq!(stat, expected);
        let expected = Evicted {
            reclaimed: 70,
            zero_filled: 2,
        };
        assert_eq!(cgroup.evicted().unwrap(), expected);
    }

    #[test]
    fn no_memory_controller() {
        let (_dir, cgroup) = fixture(&[]);
        let error = cgroup.memory_stat().unwrap_err().to_string();
        assert!(
            error.contains("memory controller is not on; try: echo +memory >"),
            "{error}"
        );
        assert!(error.contains("agents/cgroup.subtree_control"), "{error}");
        let error = cgroup.reclaim(1).unwrap_err().to_string();
        assert!(error.contains("memory controller is not on"), "{error}");
    }

    #[test]
    fn a_missing_line_is_named() {
        let (_dir, cgroup) = fixture(&[("agents/sb/memory.stat", "anon 100\n")]);
        let error = cgroup.memory_stat().unwrap_err().to_string();
        assert!(
            error.contains("memory.stat: no line \"swapcached NUMBER\""),
            "{error}"
        );
    }

    #[test]
    fn reclaim_asks_for_anonymous_memory_only() {
        let (dir, cgroup) = fixture(&[("agents/sb/memory.reclaim", "")]);
        assert_eq!(cgroup.reclaim(8192).unwrap(), Reclaimed::All);
        let written = std::fs::read_to_string(dir.path().join("agents/sb/memory.reclaim")).unwrap();
        assert_eq!(written, "8192 swappiness=max");
    }

    #[test]
    fn the_tightest_limit_counts() {
        let (_dir, cgroup) = fixture(&[
            ("agents/sb/memory.max", "max\n"),
            ("agents/sb/memory.high", "1000\n"),
            ("agents/sb/memory.current", "400\n"),
            ("agents/memory.max", "2000\n"),
            ("agents/memory.current", "1900\n"),
            ("agents/memory.swap.max", "0\n"),
        ]);
        assert_eq!(cgroup.headroom().unwrap(), Some(100));
        let (limit, file) = cgroup.swap_limit().unwrap().unwrap();
        assert_eq!(limit, 0);
        assert!(file.ends_with("agents/memory.swap.max"));
    }

    #[test]
    fn no_limit() {
        let (_dir, cgroup) = fixture(&[("agents/sb/memory.max", "max\n")]);
        assert_eq!(cgroup.headroom().unwrap(), None);
        assert_eq!(cgroup.swap_limit().unwrap(), None);
    }
}
