// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What the page tables of a sandbox's processes say: which pages were accessed of late.

use std::time::Duration;

use agentzip_uapi::{Range, PAGE_ACCESSED, PAGE_PRESENT, PAGE_SWAPPED};

use super::table::Table;
use crate::device::{Device, Failure};
use crate::governor::Id;
use crate::predict::{PageState, Place, Run};
use crate::PAGE_SIZE;

/// Pages between two runs that are asked about with them: the call costs more.
const GAP: u64 = 512;
/// Pages that are asked about at once: 128 MiB.
const STEP: u64 = (1 << 15) * PAGE_SIZE;

/// What was found.
#[derive(Debug, Default)]
pub struct States {
    /// Every page that is there or swapped out.
    pub pages: Vec<(Place, PageState)>,
    /// The time was over before all was seen.
    pub cut: bool,
}

impl States {
    /// The part of the resident pages that was accessed.
    pub fn active(&self) -> f64 {
        let count = |wanted| {
            let alike = self.pages.iter().filter(|(_, state)| *state == wanted);
            alike.count() as f64
        };
        let accessed = count(PageState::Accessed);
        accessed / (accessed + count(PageState::Resident)).max(1.0)
    }
}

/// Looks at all pages of the processes that are held, until `over` says that the time is, and ends that
/// they count as accessed: the next look tells what was accessed since this one.
///
/// # Errors
///
/// When the module knows no such command, or the sandbox not.
pub fn read(
    device: &dyn Device,
    id: Id,
    table: &Table,
    over: &dyn Fn() -> bool,
) -> Result<States, Failure> {
    let mut states = States::default();
    for (pid, role, subject) in table.held() {
        // One that ended has no pages.
        let mappings = subject.private().unwrap_or_default();
        let near = |a: &Range, b: &Range| b.start.saturating_sub(a.end) <= GAP * PAGE_SIZE;
        for near in mappings.chunk_by(near) {
            let (Some(first), Some(last)) = (near.first(), near.last()) else {
                continue;
            };
            let mut start = first.start;
            while start < last.end {
                if over() {
                    states.cut = true;
                    return Ok(states);
                }
                let end = last.end.min(start.saturating_add(STEP));
                match device.page_states(id, pid, Range { start, end }, true) {
                    Ok(found) => {
                        let first = start / PAGE_SIZE;
                        let known = found.iter().enumerate().filter_map(|(index, state)| {
                            let page = first + index as u64;
                            Some((Place { role, page }, state_of(*state)?))
                        });
                        states.pages.extend(known);
                    }
                    Err(error) if is_unknown(&error) => return Err(error),
                    // Of this process there is no more to learn.
                    Err(_) => break,
                }
                start = end;
            }
        }
    }
    Ok(states)
}

/// Which of the pages of the processes that are held are swapped out, in the order of `pages`; `None` when
/// `over` said that the time was.
///
/// # Errors
///
/// When the module knows no such command, or the sandbox not.
pub fn out(
    device: &dyn Device,
    id: Id,
    table: &Table,
    pages: &[Run],
    over: &dyn Fn() -> bool,
) -> Result<Option<Vec<Run>>, Failure> {
    let mut out = Vec::new();
    let near = |a: &Run, b: &Run| {
        let gap = b.start.page.saturating_sub(a.start.page + a.pages);
        a.role() == b.role() && gap <= GAP
    };
    for runs in pages.chunk_by(near) {
        let (Some(first), Some(last)) = (runs.first(), runs.last()) else {
            continue;
        };
        let role = first.role();
        let Some(pid) = table.process(role) else {
            continue;
        };
        let (mut page, end) = (first.start.page, last.start.page + last.pages);
        while page < end {
            if over() {
                return Ok(None);
            }
            let next = end.min(page + STEP / PAGE_SIZE);
            let range = Range {
                start: page * PAGE_SIZE,
                end: next * PAGE_SIZE,
            };
            match device.page_states(id, pid, range, false) {
                Ok(found) => {
                    let mut first = page;
                    for alike in found.chunk_by(|a, b| (a ^ b) & PAGE_SWAPPED == 0) {
                        let pages = alike.len() as u64;
                        if alike.first().is_some_and(|state| state & PAGE_SWAPPED != 0) {
                            let start = Place { role, page: first };
                            out.push(Run { start, pages });
                        }
                        first += pages;
                    }
                }
                Err(error) if is_unknown(&error) => return Err(error),
                // Of this process there is no more to learn.
                Err(_) => break,
            }
            page = next;
        }
    }
    Ok(Some(out))
}

/// Has the hit tests of a sandbox made that are still to come, without a look at its pages.
pub fn settle(device: &dyn Device, id: Id, table: &Table) {
    let held = table.held().find_map(|(pid, _, subject)| {
        let start = subject.private().ok()?.first()?.start;
        Some((pid, start))
    });
    if let Some((pid, start)) = held {
        let end = start + PAGE_SIZE;
        // What it says is of no interest, and that it fails is seen elsewhere.
        let _ = device.page_states(id, pid, Range { start, end }, true);
    }
}

/// The module is older, or knows the sandbox no more.
pub fn is_unknown(error: &Failure) -> bool {
    match error.errno() {
        Some(errno) => matches!(errno, libc::ENOTTY | libc::ENOENT | libc::ENODEV),
        None => true,
    }
}

fn state_of(state: u8) -> Option<PageState> {
    let has = |flag: u8| state & flag != 0;
    match (has(PAGE_PRESENT), has(PAGE_SWAPPED)) {
        (true, _) if has(PAGE_ACCESSED) => Some(PageState::Accessed),
        (true, _) => Some(PageState::Resident),
        (false, true) => Some(PageState::Out),
        (false, false) => None,
    }
}

/// Time that one look may take, on a machine that is so many times slower.
pub fn patience(scale: f64) -> Duration {
    Duration::from_millis(20).mul_f64(scale)
}
