// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Pages of a stopped process, read through /proc.

use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use agentzip_density::corpus::PAGE_SIZE;
use anyhow::{ensure, Context, Result};

// /proc/PID/pagemap, see Documentation/admin-guide/mm/pagemap.rst of the kernel.
const PRESENT: u64 = 1 << 63;
const FILE_OR_SHARED: u64 = 1 << 61;
const EXCLUSIVE: u64 = 1 << 56;
const FRAME: u64 = (1 << 55) - 1;

// /proc/kpageflags
const ANONYMOUS: u64 = 1 << 12;
const KSM: u64 = 1 << 21;

/// Pages read at once.
const BATCH: u64 = 256;

/// Which anonymous pages of a process are meant.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// Every present one, shared with other processes or not: what a template takes.
    All,
    /// Those that nobody else maps: what a sandbox owns.
    Owned,
}

/// What the kernel knows of each page frame. Only root may read it.
pub struct Frames {
    flags: File,
    counts: File,
}

impl Frames {
    /// Opens /proc/kpageflags and /proc/kpagecount.
    pub fn open() -> Result<Frames> {
        let open = |path: &str| {
            File::open(path).with_context(|| {
                format!("open {path}: page frames are shown to root only; run as root")
            })
        };
        let frames = Frames {
            flags: open("/proc/kpageflags")?,
            counts: open("/proc/kpagecount")?,
        };
        // Without CAP_SYS_ADMIN pagemap hides the frames' numbers, and says nothing.
        let local = Box::new(1u8);
        let index = std::ptr::from_ref::<u8>(&local) as u64 / PAGE_SIZE as u64;
        let pagemap = Path::new("/proc/self/pagemap");
        let entry = word(&File::open(pagemap)?, index).context("read /proc/self/pagemap")?;
        ensure!(
            entry & PRESENT != 0 && entry & FRAME != 0,
            "/proc/self/pagemap shows no page frames: run as root (it needs CAP_SYS_ADMIN)"
        );
        Ok(frames)
    }

    fn is_anonymous(&self, frame: u64) -> Result<bool> {
        let flags = word(&self.flags, frame).context("read /proc/kpageflags")?;
        Ok(flags & ANONYMOUS != 0 && flags & KSM == 0)
    }

    fn mappings(&self, frame: u64) -> Result<u64> {
        word(&self.counts, frame).context("read /proc/kpagecount")
    }
}

/// One 64-bit word of a file of words.
fn word(file: &File, index: u64) -> std::io::Result<u64> {
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, index * 8)?;
    Ok(u64::from_ne_bytes(bytes))
}

/// Part of an address space that has anonymous pages.
#[derive(Debug, PartialEq, Eq)]
struct Area {
    /// Virtual page numbers.
    pages: Range<u64>,
    /// Index of the first page, as the kernel numbers anonymous pages of this area.
    index: u64,
}

/// The areas with anonymous pages of a process, from its `smaps`.
///
/// The index of an anonymous page is its place in the area plus the area's offset: in a private
/// mapping of a file that is the offset in the file, elsewhere the address where it was mapped.
/// (The kernel does not show the offset of an anonymous area that mremap has moved, which keeps
/// its old one: such pages are numbered by their new address here.)
fn areas(smaps: &str) -> Result<Vec<Area>> {
    let mut areas = Vec::new();
    let mut area = None;
    for line in smaps.lines() {
        let (first, rest) = line.split_once(' ').unwrap_or((line, ""));
        if !first.ends_with(':') {
            area = Some(
                parse_area(line).with_context(|| format!("unexpected line of smaps: {line}"))?,
            );
        } else if first == "Anonymous:" && rest.trim() != "0 kB" {
            areas.extend(area.take());
        }
    }
    Ok(areas)
}

/// An area's first line: `start-end mode offset device inode [name]`.
fn parse_area(line: &str) -> Option<Area> {
    let mut fields = line.split_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let offset = fields.nth(1)?;
    let inode = fields.nth(1)?;
    let page = |text| Some(u64::from_str_radix(text, 16).ok()? / PAGE_SIZE as u64);
    let pages = page(start)?..page(end)?;
    let index = if inode == "0" {
        pages.start
    } else {
        page(offset)?
    };
    Some(Area { pages, index })
}

/// Calls `each` with index and content of the pages of a process, which must be stopped.
/// Returns their number.
pub fn visit(
    pid: u32,
    frames: &Frames,
    which: Which,
    mut each: impl FnMut(u64, &[u8; PAGE_SIZE]) -> Result<()>,
) -> Result<u64> {
    let path = |name: &str| format!("/proc/{pid}/{name}");
    let open = |name: &str| File::open(path(name)).with_context(|| format!("open {}", path(name)));
    let pagemap = open("pagemap")?;
    let memory = open("mem")?;
    let smaps =
        fs::read_to_string(path("smaps")).with_context(|| format!("read {}", path("smaps")))?;
    let mut entries = vec![0; BATCH as usize * 8];
    let mut content = vec![0; BATCH as usize * PAGE_SIZE];
    let mut found = 0;
    for area in areas(&smaps)? {
        let mut next = area.pages.start;
        while next < area.pages.end {
            let count = BATCH.min(area.pages.end - next);
            let entries = &mut entries[..count as usize * 8];
            pagemap
                .read_exact_at(entries, next * 8)
                .with_context(|| format!("read {} at page {next:#x}", path("pagemap")))?;
            let mut wanted = Vec::with_capacity(count as usize);
            for entry in entries.chunks_exact(8) {
                let entry = u64::from_ne_bytes(entry.try_into().expect("eight bytes"));
                wanted.push(is_wanted(entry, frames, which)?);
            }
            for run in runs(&wanted) {
                let content = &mut content[..run.len() * PAGE_SIZE];
                let first = next + run.start as u64;
                memory
                    .read_exact_at(content, first * PAGE_SIZE as u64)
                    .with_context(|| format!("read {} at page {first:#x}", path("mem")))?;
                let indexes = first - area.pages.start + area.index..;
                for (index, page) in indexes.zip(content.chunks_exact(PAGE_SIZE)) {
                    each(index, page.try_into().expect("a whole page"))?;
                    found += 1;
                }
            }
            next += count;
        }
    }
    Ok(found)
}

fn is_wanted(entry: u64, frames: &Frames, which: Which) -> Result<bool> {
    if entry & PRESENT == 0 || entry & FILE_OR_SHARED != 0 {
        return Ok(false);
    }
    if which == Which::Owned && entry & EXCLUSIVE == 0 {
        return Ok(false);
    }
    let frame = entry & FRAME;
    Ok(frames.is_anonymous(frame)? && (which == Which::All || frames.mappings(frame)? == 1))
}

/// The ranges in which `wanted` is true.
fn runs(wanted: &[bool]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for (at, _) in wanted.iter().enumerate().filter(|(_, wanted)| **wanted) {
        match runs.last_mut() {
            Some(run) if run.end == at => run.end = at + 1,
            _ => runs.push(at..at + 1),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_of_smaps() {
        let smaps = "1000-3000 rw-p 00000000 00:00 0 \nSize: 8 kB\nAnonymous:             4 kB\nVmFlags: rd\n\
            7000-9000 r--p 00000000 08:01 77     /lib/x\nAnonymous:             0 kB\n\
            9000-b000 rw-p 00005000 08:01 77     /lib/x\nAnonymous:             8 kB\n";
        let expected = [
            Area {
                pages: 1..3,
                index: 1,
            },
            Area {
                pages: 9..11,
                index: 5,
            },
        ];
        assert_eq!(areas(smaps).unwrap(), expected);
        assert!(areas("what is this\n").is_err());
    }

    #[test]
    fn runs_of_pages() {
        assert_eq!(runs(&[true, true, false, true]), [0..2, 3..4]);
        assert!(runs(&[false]).is_empty());
    }

    /// A small process, dumped for real. Only root can.
    #[test]
    fn pages_of_a_process() {
        const MARK: &str = "in the environment of a small process; ";
        if !rustix::process::geteuid().is_root() {
            eprintln!("not run: pages of processes are shown to root only");
            return;
        }
        let frames = Frames::open().unwrap();
        let mut child = std::process::Command::new("cat")
            // More than once, so that it is whole in some page.
            .env("AGENTZIP_MARK", MARK.repeat(4))
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        // Once it has answered it is past its start.
        let mut answer = [0];
        let input = child.stdin.as_mut().unwrap();
        std::io::Write::write_all(input, b"x").unwrap();
        let output = child.stdout.as_mut().unwrap();
        std::io::Read::read_exact(output, &mut answer).unwrap();
        let pid = rustix::process::Pid::from_child(&child);
        crate::process::stop(pid).unwrap();

        let dump = |which| {
            let mut pages = Vec::new();
            let count = visit(child.id(), &frames, which, |index, page| {
                pages.push((index, page.to_vec()));
                Ok(())
            });
            assert_eq!(count.unwrap(), pages.len() as u64);
            pages
        };
        let owned = dump(Which::Owned);
        let all = dump(Which::All);
        // The environment lies on the stack, which is its own.
        let mark = MARK.as_bytes();
        let marked = |(_, page): &(u64, Vec<u8>)| page.windows(mark.len()).any(|w| w == mark);
        assert!(owned.iter().any(marked));
        assert!(owned.iter().all(|page| all.contains(page)));
        child.kill().unwrap();
        child.wait().unwrap();

        let gone = visit(child.id(), &frames, Which::All, |_, _| Ok(()));
        let error = format!("{:#}", gone.unwrap_err());
        assert!(error.contains(&format!("/proc/{}/", child.id())), "{error}");
    }
}
