// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Files that are read again and again: opened once, read by `pread`.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{openat, Mode, OFlags};

use crate::directory::Directory;
use crate::governor::{Needs, Sample};
use crate::schedule::watermark::Memory;

/// Reads the beginning of a file; what is read are numbers and a few lines.
fn beginning<'a>(file: &File, buffer: &'a mut [u8]) -> io::Result<&'a str> {
    let length = file.read_at(buffer, 0)?;
    let text = buffer.get(..length).unwrap_or(&[]);
    std::str::from_utf8(text).map_err(|_| io::ErrorKind::InvalidData.into())
}

fn open(directory: &Directory, name: &str) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    Ok(openat(directory, name, flags, Mode::empty())?.into())
}

/// The files of a sandbox's cgroup.
#[derive(Debug, Default)]
pub struct CgroupFiles {
    current: Option<File>,
    cpu: Option<File>,
    psi: Option<File>,
}

impl CgroupFiles {
    /// One is held open: reading it will tell when the cgroup is gone.
    pub fn are_open(&self) -> bool {
        self.current.is_some()
    }

    /// Reads what is needed. Files of controllers that are off count as not there.
    ///
    /// # Errors
    ///
    /// `ENODEV` when the cgroup is gone.
    pub fn sample(&mut self, directory: &Directory, needs: Needs) -> io::Result<Sample> {
        let number = |text: &str| text.trim().parse().ok();
        let current = read(&mut self.current, directory, "memory.current", number)?;
        let cpu_usec = match needs.cpu {
            true => read(&mut self.cpu, directory, "cpu.stat", usage)?,
            false => None,
        };
        let psi = match needs.psi {
            true => read(&mut self.psi, directory, "memory.pressure", some_avg10)?,
            false => None,
        };
        Ok(Sample {
            current: current.unwrap_or(0),
            cpu_usec,
            psi,
        })
    }
}

/// Reads a file, which it opens at the first time.
fn read<T>(
    slot: &mut Option<File>,
    directory: &Directory,
    name: &str,
    parse: impl Fn(&str) -> Option<T>,
) -> io::Result<Option<T>> {
    let file = match slot {
        Some(file) => file,
        None => match open(directory, name) {
            Ok(file) => slot.insert(file),
            Err(_) => return Ok(None),
        },
    };
    let mut buffer = [0; 512];
    match beginning(file, &mut buffer) {
        Ok(text) => Ok(parse(text)),
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Err(error),
        // PSI may be switched off.
        Err(_) => Ok(None),
    }
}

/// `usage_usec` of `cpu.stat`.
fn usage(text: &str) -> Option<u64> {
    let mut lines = text.lines();
    lines.find_map(|line| line.strip_prefix("usage_usec ")?.trim().parse().ok())
}

/// `some avg10` of a pressure file, as a part of 1.
fn some_avg10(text: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let value = line
        .split(' ')
        .find_map(|field| field.strip_prefix("avg10="))?;
    let percent: f64 = value.parse().ok()?;
    percent.is_finite().then_some(percent / 100.0)
}

/// `/proc/meminfo`.
#[derive(Debug)]
pub struct MemInfo(File);

impl MemInfo {
    /// Opens it below this mount of procfs.
    ///
    /// # Errors
    ///
    /// When it is not there.
    pub fn open(proc: &Path) -> io::Result<MemInfo> {
        File::open(proc.join("meminfo")).map(MemInfo)
    }

    /// Reads it. Without a line for swap, swap counts as endless.
    ///
    /// # Errors
    ///
    /// When it lacks a line for memory.
    pub fn read(&self) -> io::Result<Memory> {
        let mut buffer = [0; 8192];
        let text = beginning(&self.0, &mut buffer)?;
        let field = |name: &str| {
            let mut lines = text.lines().filter_map(|line| line.split_once(':'));
            let (_, value) = lines.find(|(key, _)| *key == name)?;
            let kib: u64 = value.trim().strip_suffix(" kB")?.parse().ok()?;
            Some(kib << 10)
        };
        match (field("MemTotal"), field("MemAvailable")) {
            (Some(total), Some(available)) => Ok(Memory {
                total,
                available,
                swap_free: field("SwapFree").unwrap_or(u64::MAX),
            }),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::Mount;

    #[test]
    fn lines_of_the_kernel() {
        assert_eq!(usage("usage_usec 1234\nuser_usec 7\n"), Some(1234));
        assert_eq!(usage("user_usec 7\n"), None);
        let psi = "some avg10=12.50 avg60=0.00 avg300=0.00 total=1\nfull avg10=9.00 avg60=0.00\n";
        assert_eq!(some_avg10(psi), Some(0.125));
        for bad in ["", "full avg10=1.00", "some avg10=", "some avg10=NaN"] {
            assert_eq!(some_avg10(bad), None, "{bad}");
        }
    }

    #[test]
    fn samples_of_a_cgroup() {
        let dir = tempfile::tempdir().unwrap();
        let sandbox = dir.path().join("sb");
        std::fs::create_dir(&sandbox).unwrap();
        let mount = Mount::open(dir.path()).unwrap();
        let directory = mount.directory(Path::new("sb")).unwrap();
        let mut files = CgroupFiles::default();
        let needs = Needs {
            cpu: true,
            psi: true,
        };
        // No controllers.
        assert_eq!(files.sample(&directory, needs).unwrap(), Sample::default());
        std::fs::write(sandbox.join("memory.current"), "4096\n").unwrap();
        std::fs::write(sandbox.join("cpu.stat"), "usage_usec 5\n").unwrap();
        let sample = files.sample(&directory, needs).unwrap();
        assert_eq!(
            (sample.current, sample.cpu_usec, sample.psi),
            (4096, Some(5), None)
        );
        // The same file, read again.
        std::fs::write(sandbox.join("memory.current"), "8192\n").unwrap();
        let sample = files.sample(&directory, Needs::default()).unwrap();
        assert_eq!((sample.current, sample.cpu_usec), (8192, None));
    }

    #[test]
    fn memory_of_the_host() {
        let dir = tempfile::tempdir().unwrap();
        let write = |text| std::fs::write(dir.path().join("meminfo"), text).unwrap();
        write("MemTotal: 100 kB\nMemFree: 1 kB\nMemAvailable: 40 kB\nSwapFree: 7 kB\n");
        let file = MemInfo::open(dir.path()).unwrap();
        let memory = file.read().unwrap();
        assert_eq!(
            (memory.total, memory.available, memory.swap_free),
            (102_400, 40_960, 7168)
        );
        write("MemTotal: 100 kB\n");
        assert!(file.read().is_err());
    }
}
