// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Makes the corpus: runs workload.py and dumps its stopped processes.

use super::{Aligned, Record};
use agentzip_codec::PAGE_SIZE;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

const WORKLOAD: &str = include_str!("../workload.py");
const SANDBOXES: u32 = 6;
const TURNS: u32 = 6;

/// Most pages of each kind in the corpus: 16 MiB of pairs and 9 MiB of fresh pages.
const MAX_BACKED: usize = 2048;
const MAX_FRESH: usize = 2304;

const PRESENT: u64 = 1 << 63;
const FILE_OR_SHARED: u64 = 1 << 61;
const EXCLUSIVE: u64 = 1 << 56;

/// Runs the workload with files in `folder` and returns the pages, sampled evenly.
pub fn make(folder: &Path) -> Result<Vec<Record>, String> {
    eprintln!("making the corpus with python3 ...");
    let script = folder.join("codec-corpus-workload.py");
    fs::write(&script, WORKLOAD).map_err(|e| format!("write {}: {e}", script.display()))?;
    let mut child = Command::new("python3")
        .arg("-I")
        .arg(&script)
        .args([SANDBOXES.to_string(), TURNS.to_string()])
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .env("PYTHONHASHSEED", "0")
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|e| format!("start python3 (is it installed?): {e}"))?;
    let records = dump_all(&mut child);
    // The end of its standard input tells the workload to end.
    drop(child.stdin.take());
    let status = child.wait().map_err(|e| format!("wait for python3: {e}"))?;
    let records = records?;
    if !status.success() {
        return Err(format!("the corpus workload failed: {status}"));
    }
    Ok(records)
}

fn dump_all(child: &mut Child) -> Result<Vec<Record>, String> {
    let output = child.stdout.take().ok_or("python3 has no output")?;
    let mut line = String::new();
    BufReader::new(output)
        .read_line(&mut line)
        .map_err(|e| format!("read from python3: {e}"))?;
    let pids: Vec<u32> = match line.split_whitespace().collect::<Vec<_>>().split_first() {
        Some((&"READY", pids)) => pids.iter().filter_map(|pid| pid.parse().ok()).collect(),
        _ => {
            return Err(
                "the corpus workload ended early; it needs all of Python's standard library \
                        (Debian: package python3, not python3-minimal)"
                    .into(),
            )
        }
    };
    let (&holder, sandboxes) = pids.split_first().ok_or("no processes to dump")?;
    let template = Process::open(holder)?;
    let mut backed = Vec::new();
    let mut fresh = Vec::new();
    for (sandbox, &pid) in (0..).zip(sandboxes) {
        let process = Process::open(pid)?;
        for index in process.pages(|flags| flags & EXCLUSIVE != 0)? {
            let Some(page) = process.read(index).filter(|page| page.0 != [0; PAGE_SIZE]) else {
                continue;
            };
            let base = if template.has(index) {
                template.read(index)
            } else {
                None
            };
            let kind = if base.is_some() {
                &mut backed
            } else {
                &mut fresh
            };
            kind.push(Record {
                sandbox,
                index,
                page,
                base,
            });
        }
    }
    eprintln!(
        "owned pages: {} with a template page, {} fresh",
        backed.len(),
        fresh.len()
    );
    let mut records = sample(backed, MAX_BACKED);
    records.extend(sample(fresh, MAX_FRESH));
    Ok(records)
}

/// At most `most` of the items, at even distances.
fn sample(items: Vec<Record>, most: usize) -> Vec<Record> {
    let len = items.len();
    let keep = |n: usize| n * most / len != (n + 1) * most / len;
    let all = len <= most;
    let numbered = items.into_iter().enumerate();
    numbered
        .filter_map(|(n, item)| (all || keep(n)).then_some(item))
        .collect()
}

/// A stopped process.
struct Process {
    pid: u32,
    memory: File,
    pagemap: File,
}

impl Process {
    fn open(pid: u32) -> Result<Self, String> {
        let open = |name: &str| {
            let path = format!("/proc/{pid}/{name}");
            File::open(&path).map_err(|e| format!("open {path}: {e}"))
        };
        Ok(Self {
            pid,
            memory: open("mem")?,
            pagemap: open("pagemap")?,
        })
    }

    /// Indexes of the present anonymous pages whose pagemap entry pleases `wanted`.
    fn pages(&self, wanted: impl Fn(u64) -> bool) -> Result<Vec<u64>, String> {
        let path = format!("/proc/{}/maps", self.pid);
        let maps = fs::read_to_string(&path).map_err(|e| format!("read {path}: {e}"))?;
        let mut indexes = Vec::new();
        for line in maps.lines() {
            let Some((start, end)) = private_writable(line) else {
                continue;
            };
            for index in start / PAGE_SIZE as u64..end / PAGE_SIZE as u64 {
                if self.flags(index).is_some_and(|f| anonymous(f) && wanted(f)) {
                    indexes.push(index);
                }
            }
        }
        Ok(indexes)
    }

    /// Whether it has an anonymous page at this index.
    fn has(&self, index: u64) -> bool {
        self.flags(index).is_some_and(anonymous)
    }

    fn flags(&self, index: u64) -> Option<u64> {
        let mut entry = [0; 8];
        self.pagemap.read_exact_at(&mut entry, index * 8).ok()?;
        Some(u64::from_le_bytes(entry))
    }

    fn read(&self, index: u64) -> Option<Box<Aligned>> {
        let mut page = Aligned::new();
        let offset = index * PAGE_SIZE as u64;
        self.memory.read_exact_at(&mut page.0, offset).ok()?;
        Some(page)
    }
}

fn anonymous(flags: u64) -> bool {
    flags & PRESENT != 0 && flags & FILE_OR_SHARED == 0
}

/// The range of a line of `maps`, if it is private and writable.
fn private_writable(line: &str) -> Option<(u64, u64)> {
    let mut fields = line.split_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let mode = fields.next()?;
    if !(mode.contains('w') && mode.ends_with('p')) {
        return None;
    }
    let hex = |text| u64::from_str_radix(text, 16).ok();
    Some((hex(start)?, hex(end)?))
}
