// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What a process maps: any file has a signature, whatever headers and notes it has, and any line of
//! `/proc/PID/maps` is refused or a mapping.
//!
//! An input is both: a file that a process has mapped, and lines.

use std::cell::RefCell;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use agentzip_ctl::procfs::{Mapping, Procfs};
use agentzip_ctl::signature::Binaries;
use tempfile::TempDir;

/// The process.
const PID: i32 = 1;

/// What it maps.
const MAPS: &str = "1000-2000 r-xp 00000000 00:00 5 /binary\n";

thread_local! {
    static PROCESS: RefCell<Process> = RefCell::new(Process::new());
}

/// A procfs with one process, which has one file mapped.
struct Process {
    procfs: Procfs,
    binary: File,
    _dir: TempDir,
}

impl Process {
    fn new() -> Self {
        let dir = TempDir::new().expect("a folder for temporary files");
        let process = dir.path().join(PID.to_string());
        let root = process.join("root");
        fs::create_dir_all(&root).expect("a folder in our own one");
        fs::write(process.join("maps"), MAPS).expect("a file in our own folder");
        Self {
            procfs: Procfs::new(dir.path().to_owned()),
            binary: File::create(root.join("binary")).expect("a file in our own folder"),
            _dir: dir,
        }
    }
}

/// The target.
pub fn target(data: &[u8]) {
    for line in String::from_utf8_lossy(data).lines() {
        if let Ok(mapping) = line.parse::<Mapping>() {
            assert!(mapping.range.start < mapping.range.end);
            assert!(mapping.name.starts_with(mapping.path()));
            assert!(mapping.holds_anonymous_pages() || !mapping.is_template_material());
        }
    }
    PROCESS.with_borrow_mut(|process| {
        let written = process.binary.set_len(0);
        let written = written.and_then(|()| process.binary.write_all_at(data, 0));
        written.expect("an open file can be written");
        let signature = Binaries::default().signature(&process.procfs, PID);
        let signature = signature.expect("a file that can be read has a signature");
        assert!(!signature.is_none());
        assert_eq!(signature.to_string().parse(), Ok(signature));
    });
}
