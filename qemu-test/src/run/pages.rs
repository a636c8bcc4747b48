// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Pages of a process, seen through /proc/PID/pagemap and /proc/PID/mem.

use std::collections::HashSet;
use std::fs::File;
use std::hash::{DefaultHasher, Hasher};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use anyhow::{Context, Result};

use super::cgroup;

/// Bytes in a page.
pub const PAGE: u64 = 4096;
/// Addresses from here on are the kernel's (the vsyscall page).
const USER_END: u64 = 1 << 47;
/// Pages that one read of pagemap covers.
const BATCH: u64 = 4096;

const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
const FILE_OR_SHARED: u64 = 1 << 61;
const EXCLUSIVE: u64 = 1 << 56;

/// One page of a process.
#[derive(Clone, Copy, Debug)]
pub struct Page {
    /// Virtual address over the page size.
    pub number: u64,
    bits: u64,
}

impl Page {
    /// Present and anonymous (a copied page of a private file mapping is anonymous too).
    pub fn anonymous(self) -> bool {
        self.bits & PRESENT != 0 && self.bits & FILE_OR_SHARED == 0
    }

    /// Anonymous and mapped by this process only.
    pub fn owned(self) -> bool {
        self.anonymous() && self.bits & EXCLUSIVE != 0
    }

    /// Swapped out.
    pub fn swapped(self) -> bool {
        self.bits & SWAPPED != 0 && self.bits & FILE_OR_SHARED == 0
    }
}

/// Every present or swapped page of process `pid`, by address.
pub fn pages(pid: u32) -> Result<Vec<Page>> {
    let maps = cgroup::read(&PathBuf::from(format!("/proc/{pid}/maps")))?;
    let path = format!("/proc/{pid}/pagemap");
    let map = File::open(&path).with_context(|| format!("open {path}"))?;
    let mut found = Vec::new();
    let mut buffer = vec![0; (BATCH * 8) as usize];
    for line in maps.lines() {
        let (start, end) = range(line).with_context(|| format!("parse {line:?}"))?;
        let mut number = start / PAGE;
        while number < end / PAGE && end <= USER_END {
            let count = BATCH.min(end / PAGE - number);
            let bytes = &mut buffer[..(count * 8) as usize];
            map.read_exact_at(bytes, number * 8)
                .with_context(|| format!("read {path}"))?;
            for (entry, number) in bytes.chunks_exact(8).zip(number..) {
                let bits = entry
                    .iter()
                    .rev()
                    .fold(0, |bits, &byte| (bits << 8) | u64::from(byte));
                if bits & (PRESENT | SWAPPED) != 0 {
                    found.push(Page { number, bits });
                }
            }
            number += count;
        }
    }
    Ok(found)
}

fn range(line: &str) -> Option<(u64, u64)> {
    let (start, end) = line.split_ascii_whitespace().next()?.split_once('-')?;
    Some((
        u64::from_str_radix(start, 16).ok()?,
        u64::from_str_radix(end, 16).ok()?,
    ))
}

/// Pages that a sandbox owns, and those of them that its template has no page for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shares {
    /// Anonymous pages mapped by this sandbox only.
    pub owned: u64,
    /// Of those, pages at an address where the template has no anonymous page.
    pub fresh: u64,
}

/// Compares a sandbox with its template's holder, page address by page address.
pub fn shares(sandbox: u32, template: &HashSet<u64>) -> Result<Shares> {
    let mut shares = Shares::default();
    for page in pages(sandbox)?.into_iter().filter(|page| page.owned()) {
        shares.owned += 1;
        shares.fresh += u64::from(!template.contains(&page.number));
    }
    Ok(shares)
}

/// Addresses (over the page size) at which a process has an anonymous page.
pub fn anonymous(pid: u32) -> Result<HashSet<u64>> {
    Ok(pages(pid)?
        .into_iter()
        .filter(|page| page.anonymous())
        .map(|page| page.number)
        .collect())
}

/// Contents of a process's owned pages, as hashes.
pub struct Contents {
    pid: u32,
    hashes: Vec<(u64, u64)>,
}

impl Contents {
    /// Reads and hashes every owned page of a process that does not run.
    pub fn read(pid: u32) -> Result<Self> {
        let memory = Memory::open(pid)?;
        let hashes = pages(pid)?
            .into_iter()
            .filter(|page| page.owned())
            .map(|page| Ok((page.number, memory.hash(page.number)?)))
            .collect::<Result<_>>()?;
        Ok(Self { pid, hashes })
    }

    /// Reads again the pages that are swapped out now; returns how many, and how many differ.
    ///
    /// A page that cannot be read counts as one that differs.
    pub fn compare_swapped(&self) -> Result<(u64, u64)> {
        let memory = Memory::open(self.pid)?;
        let swapped: HashSet<u64> = pages(self.pid)?
            .into_iter()
            .filter(|p| p.swapped())
            .map(|p| p.number)
            .collect();
        let (mut checked, mut wrong) = (0, 0);
        for (number, hash) in self
            .hashes
            .iter()
            .filter(|(number, _)| swapped.contains(number))
        {
            checked += 1;
            wrong += u64::from(memory.hash(*number).ok() != Some(*hash));
        }
        Ok((checked, wrong))
    }
}

struct Memory {
    path: String,
    file: File,
}

impl Memory {
    fn open(pid: u32) -> Result<Self> {
        let path = format!("/proc/{pid}/mem");
        let file = File::open(&path).with_context(|| format!("open {path}"))?;
        Ok(Self { path, file })
    }

    fn hash(&self, number: u64) -> Result<u64> {
        let mut page = [0; PAGE as usize];
        self.file
            .read_exact_at(&mut page, number * PAGE)
            .with_context(|| format!("read page {number:#x} of {}", self.path))?;
        let mut hasher = DefaultHasher::new();
        hasher.write(&page);
        Ok(hasher.finish())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_pages_are_found_and_equal() {
        let data = vec![0x5a_u8; 64 * PAGE as usize];
        let own = std::process::id();
        let first = data.as_ptr() as u64 / PAGE + 1;
        let numbers = anonymous(own).unwrap();
        assert!((first..first + 62).all(|number| numbers.contains(&number)));
        let memory = Memory::open(own).unwrap();
        assert_eq!(
            memory.hash(first).unwrap(),
            memory.hash(first + 61).unwrap()
        );
        drop(data);
    }

    #[test]
    fn ranges_of_maps() {
        assert_eq!(
            range("7f00-8000 rw-p 00000000 00:00 0"),
            Some((0x7f00, 0x8000))
        );
        assert_eq!(range(""), None);
    }
}
