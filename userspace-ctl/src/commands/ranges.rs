// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `agentzip sandbox ranges`: where the memory of a sandbox lies in its template.

use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use agentzip_uapi::{SandboxRange, MAX_SANDBOX_RANGES};
use rustix::fs::{major, minor};
use serde::Serialize;

use super::explain::Refusal;
use super::sandbox::not_attached;
use super::{sandbox_name, select};
use crate::cgroup::{Cgroup, Selector};
use crate::error::{Error, Result};
use crate::format::count;
use crate::{Context, PAGE_SIZE};

/// One range, as on the command line: `ADDRESS:LENGTH:OFFSET`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeArgument(pub SandboxRange);

/// What is wrong with a range on the command line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadRange {
    /// Not three numbers.
    #[error("a range is ADDRESS:LENGTH:OFFSET, each 0x1000 or 4096 or 4K (M, G)")]
    Form,
    /// Not whole pages.
    #[error("address, length and offset must be multiples of 4096")]
    Unaligned,
    /// Empty, or beyond the end of the address space.
    #[error("the range is empty or too long")]
    Length,
}

impl FromStr for RangeArgument {
    type Err = BadRange;

    fn from_str(text: &str) -> Result<Self, BadRange> {
        let mut parts = text.split(':').map(size);
        let mut next = || parts.next().flatten().ok_or(BadRange::Form);
        let (start, length, offset) = (next()?, next()?, next()?);
        if parts.next().is_some() {
            return Err(BadRange::Form);
        }
        if (start | length | offset) % PAGE_SIZE != 0 {
            return Err(BadRange::Unaligned);
        }
        let end = start.checked_add(length).filter(|&end| end > start);
        offset.checked_add(length).ok_or(BadRange::Length)?;
        Ok(RangeArgument(SandboxRange {
            start,
            end: end.ok_or(BadRange::Length)?,
            offset,
        }))
    }
}

/// A number of bytes: `4096`, `0x1000`, `4K`, `4M`, `4G`.
pub fn size(text: &str) -> Option<u64> {
    if let Some(digits) = text.strip_prefix("0x") {
        // Signs are no digits.
        let plain = digits.bytes().all(|b| b.is_ascii_hexdigit());
        return plain
            .then(|| u64::from_str_radix(digits, 16).ok())
            .flatten();
    }
    let (digits, shift) = match text.char_indices().last()? {
        (at, 'K') => (&text[..at], 10),
        (at, 'M') => (&text[..at], 20),
        (at, 'G') => (&text[..at], 30),
        _ => (text, 0),
    };
    let plain = digits.bytes().all(|b| b.is_ascii_digit());
    let number: u64 = plain.then(|| digits.parse().ok()).flatten()?;
    number.checked_mul(1 << shift)
}

/// Where the ranges of a sandbox come from.
#[derive(Clone, Copy, Debug, Default)]
pub struct Request<'a> {
    /// Ranges as given.
    pub given: &'a [RangeArgument],
    /// Files whose private mappings in the sandbox's processes are ranges.
    pub mapped: &'a [PathBuf],
}

impl Request<'_> {
    /// Nothing is asked for.
    pub fn is_empty(&self) -> bool {
        self.given.is_empty() && self.mapped.is_empty()
    }

    /// The ranges, as the module takes them.
    ///
    /// # Errors
    ///
    /// When a file is not there or no process maps it, or there are too many ranges.
    pub(super) fn resolve(&self, context: &Context, cgroup: &Cgroup) -> Result<Vec<SandboxRange>> {
        let mut ranges: Vec<SandboxRange> = self.given.iter().map(|range| range.0).collect();
        for file in self.mapped {
            let found = mappings(context, cgroup, file)?;
            if found.is_empty() {
                let problem = format!("no process in {} maps it privately", cgroup.name());
                return Err(Error::invalid(file.display().to_string(), problem));
            }
            ranges.extend(found);
        }
        let ranges = merged(ranges);
        if ranges.len() > MAX_SANDBOX_RANGES as usize {
            let problem = format!(
                "{} ranges; a sandbox takes at most {MAX_SANDBOX_RANGES}",
                ranges.len()
            );
            return Err(Error::invalid(cgroup.name(), problem));
        }
        Ok(ranges)
    }
}

/// Private mappings of a file in the processes of a cgroup and below.
fn mappings(context: &Context, cgroup: &Cgroup, file: &Path) -> Result<Vec<SandboxRange>> {
    let status = std::fs::metadata(file).map_err(Error::io("inspect", file))?;
    let device = (major(status.dev()), minor(status.dev()));
    let (processes, _) = cgroup.processes()?;
    let mut ranges = Vec::new();
    for pid in processes {
        // One that has exited has no mappings.
        let maps = match context.procfs.maps(pid) {
            Err(error) if matches!(error.errno(), Some(libc::ENOENT | libc::ESRCH)) => continue,
            maps => maps?,
        };
        let ours = maps
            .into_iter()
            .filter(|m| m.private && m.file && (m.device, m.inode) == (device, status.ino()));
        ranges.extend(ours.map(|mapping| SandboxRange {
            start: mapping.range.start,
            end: mapping.range.end,
            offset: mapping.offset,
        }));
    }
    Ok(ranges)
}

/// In ascending order, with those that continue or repeat each other made one.
fn merged(mut ranges: Vec<SandboxRange>) -> Vec<SandboxRange> {
    let shift = |range: &SandboxRange| range.offset.wrapping_sub(range.start);
    ranges.sort_by_key(|range| (shift(range), range.start));
    let mut merged: Vec<SandboxRange> = Vec::new();
    for range in ranges {
        match merged.last_mut() {
            Some(last) if shift(last) == shift(&range) && range.start <= last.end => {
                last.end = last.end.max(range.end);
            }
            _ => merged.push(range),
        }
    }
    merged.sort_by_key(|range| (range.start, range.offset));
    merged
}

/// What `sandbox ranges` did.
#[derive(Debug, Serialize)]
pub struct Replaced {
    /// The sandbox, for people.
    #[serde(skip)]
    name: String,
    /// Its id.
    pub cgroup_id: u64,
    /// The ranges that it has now.
    pub ranges: Vec<Shown>,
}

/// A range in a report.
#[derive(Debug, Serialize)]
pub struct Shown {
    /// First address.
    pub start: u64,
    /// Address after the last.
    pub end: u64,
    /// Where the first page lies in the template.
    pub offset: u64,
}

impl fmt::Display for Replaced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = count(self.ranges.len() as u64, "range");
        writeln!(f, "sandbox {}: {number}", self.name)?;
        for Shown { start, end, offset } in &self.ranges {
            writeln!(f, "  {start:#x}-{end:#x} from {offset:#x}")?;
        }
        Ok(())
    }
}

/// Replaces the ranges of a sandbox.
///
/// # Errors
///
/// When it is no sandbox, the ranges cannot be found, or the module refuses.
pub fn replace(context: &Context, selector: &Selector, request: &Request<'_>) -> Result<Replaced> {
    let (cgroup_id, cgroup) = select(context, selector)?;
    let name = sandbox_name(cgroup_id, cgroup.as_ref());
    let ranges = match &cgroup {
        Some(cgroup) => request.resolve(context, cgroup)?,
        None => return Err(Error::invalid(name, "its cgroup is gone")),
    };
    tell(context, cgroup_id, &name, &ranges)?;
    let ranges = ranges.into_iter().map(|range| Shown {
        start: range.start,
        end: range.end,
        offset: range.offset,
    });
    Ok(Replaced {
        name,
        cgroup_id,
        ranges: ranges.collect(),
    })
}

/// Gives the ranges to the module.
pub(super) fn tell(
    context: &Context,
    cgroup_id: u64,
    name: &str,
    ranges: &[SandboxRange],
) -> Result<()> {
    let result = context.device.sandbox_ranges(cgroup_id, ranges);
    result.map_err(|failure| {
        let refusal = Refusal {
            operation: "sandbox ranges",
            object: name.to_owned(),
        };
        refusal.explain(failure, |errno, _| match errno {
            libc::E2BIG => Some(
                "more than eight ranges lie over each other; give fewer processes one sandbox"
                    .to_owned(),
            ),
            _ => not_attached(context, errno, cgroup_id),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64, offset: u64) -> SandboxRange {
        SandboxRange { start, end, offset }
    }

    #[test]
    fn sizes() {
        for (text, expected) in [
            ("4096", Some(4096)),
            ("0x1000", Some(4096)),
            ("4K", Some(4096)),
            ("3M", Some(3 << 20)),
            ("64G", Some(64 << 30)),
            ("0", Some(0)),
            ("", None),
            ("K", None),
            ("0x", None),
            ("+1", None),
            ("0x+1", None),
            ("4k", None),
            ("18446744073709551615G", None),
        ] {
            assert_eq!(size(text), expected, "{text}");
        }
    }

    #[test]
    fn ranges_on_the_command_line() {
        let parse = |text: &str| text.parse::<RangeArgument>().map(|range| range.0);
        assert_eq!(
            parse("0x7f0000000000:2M:0x1000"),
            Ok(range(0x7f00_0000_0000, 0x7f00_0020_0000, 0x1000))
        );
        for text in ["", "1", "0:4K", "0:4K:0:0", "0:4K:x"] {
            assert_eq!(parse(text), Err(BadRange::Form), "{text}");
        }
        assert_eq!(parse("1:4K:0"), Err(BadRange::Unaligned));
        assert_eq!(parse("0:0:0"), Err(BadRange::Length));
        assert_eq!(parse("0xfffffffffffff000:8K:0"), Err(BadRange::Length));
    }

    #[test]
    fn neighbours_and_repetitions_are_merged() {
        let ranges = vec![
            range(0x5000, 0x6000, 0x1000),
            range(0x1000, 0x3000, 0),
            range(0x3000, 0x4000, 0x2000),
            range(0x1000, 0x2000, 0),
            range(0x1000, 0x3000, 0x8000),
        ];
        assert_eq!(
            merged(ranges),
            [
                range(0x1000, 0x4000, 0),
                range(0x1000, 0x3000, 0x8000),
                range(0x5000, 0x6000, 0x1000),
            ]
        );
    }
}
