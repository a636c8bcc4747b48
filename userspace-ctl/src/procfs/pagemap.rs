// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `/proc/PID/pagemap`: which pages are swapped out.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use agentzip_uapi::Range;

use crate::error::{Error, Result};
use crate::{sys, PAGE_SIZE};

/// Bit of an entry that says "swapped out".
const SWAPPED: u64 = 1 << 62;
const ENTRY: usize = 8;
/// Entries read at once.
const BATCH: usize = 8192;

/// The page table view of a process.
#[derive(Debug)]
pub struct PageMap {
    file: File,
    path: PathBuf,
}

impl PageMap {
    /// Opens the file.
    ///
    /// # Errors
    ///
    /// When it cannot be opened.
    pub fn open(path: PathBuf) -> Result<Self> {
        let file = File::open(&path).map_err(Error::io("open", &path))?;
        Ok(PageMap { file, path })
    }

    /// The runs of swapped-out pages in a range. Empty when the process is gone.
    ///
    /// Uses the `PAGEMAP_SCAN` ioctl, which skips what is not mapped at once, or where there is
    /// none reads the entries one by one.
    ///
    /// # Errors
    ///
    /// When the file cannot be read.
    pub fn swapped(&self, range: Range) -> Result<Vec<Range>> {
        let mut runs = Vec::new();
        let scanned = match sys::scan_swapped(&self.file, range, &mut runs) {
            Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => self.read(range, &mut runs),
            other => other,
        };
        match scanned {
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
            other => other.map_err(Error::io("scan", &self.path))?,
        }
        Ok(runs)
    }

    fn read(&self, range: Range, runs: &mut Vec<Range>) -> io::Result<()> {
        let mut buffer = vec![0; BATCH * ENTRY];
        let mut page = range.start / PAGE_SIZE;
        let end = range.end.div_ceil(PAGE_SIZE);
        while page < end {
            let want = usize::try_from(end - page).map_or(BATCH, |left| left.min(BATCH)) * ENTRY;
            let got = self
                .file
                .read_at(&mut buffer[..want], page * ENTRY as u64)?;
            let entries = buffer[..got].chunks_exact(ENTRY);
            if entries.len() == 0 {
                break;
            }
            for entry in entries {
                let entry = entry.try_into().map_or(0, u64::from_ne_bytes);
                if entry & SWAPPED != 0 {
                    let start = page * PAGE_SIZE;
                    match runs.last_mut() {
                        Some(last) if last.end == start => last.end += PAGE_SIZE,
                        _ => runs.push(Range {
                            start,
                            end: start + PAGE_SIZE,
                        }),
                    }
                }
                page += 1;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_in_a_plain_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pagemap");
        let file = File::create(&path).unwrap();
        for page in [16, 17, 18, 40, 9000, 9001] {
            let entry = SWAPPED | page;
            file.write_all_at(&entry.to_ne_bytes(), page * ENTRY as u64)
                .unwrap();
        }
        let present = (1u64 << 63) | 7;
        file.write_all_at(&present.to_ne_bytes(), 20 * ENTRY as u64)
            .unwrap();
        let pagemap = PageMap::open(path).unwrap();
        let pages = |start: u64, end: u64| Range {
            start: start * PAGE_SIZE,
            end: end * PAGE_SIZE,
        };
        let all = pagemap.swapped(pages(0, 20_000)).unwrap();
        assert_eq!(all, [pages(16, 19), pages(40, 41), pages(9000, 9002)]);
        assert_eq!(
            pagemap.swapped(pages(17, 41)).unwrap(),
            [pages(17, 19), pages(40, 41)]
        );
        assert_eq!(pagemap.swapped(pages(19, 40)).unwrap(), []);
    }
}
