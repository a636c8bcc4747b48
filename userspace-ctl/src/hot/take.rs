// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Takes the memory of a sandbox out, but for its hot pages: `MADV_PAGEOUT` on the anonymous pages of
//! each of its processes, `MADV_COLD` on the hot ones, which so are the first that the kernel takes when
//! it needs memory itself.
//!
//! Other than `memory.reclaim` this leaves pages alone that several processes have mapped, as
//! `MADV_PAGEOUT` does, and shared memory.

use std::io;

use agentzip_uapi::Range;

use super::process::{has_ended, is_gone, refused, Most, Processes, Subject, END};
use super::{ranges, HotSet, Target};
use crate::error::Result;
use crate::sys::pages::{Advice, Kind};
use crate::sys::MAX_IOVEC;
use crate::PAGE_SIZE;

/// Bytes of one call, which no signal interrupts: as many pages as `memory.reclaim` takes between two
/// looks for one.
const BATCH: u64 = 64 * PAGE_SIZE;
/// Pages that are looked for in one step.
const STEP: u64 = 2048;

/// How far a sandbox is looked through.
const MOST: Most = Most {
    cgroups: 4096,
    processes: 65_536,
};

/// What came of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Bytes of pages that are not mapped any more.
    pub bytes: u64,
    /// Bytes of hot pages that were left where they are.
    pub spared: u64,
    /// It was stopped before it was done.
    pub stopped: bool,
}

/// Takes so many bytes, or all that there are but for what is hot. `stop` is asked between two calls.
///
/// # Errors
///
/// When the kernel refused. A process, or the sandbox, that ends meanwhile is no error.
pub fn take(
    processes: &dyn Processes,
    target: &Target,
    hot: &HotSet,
    bytes: u64,
    stop: &dyn Fn() -> bool,
) -> Result<Taken> {
    let mut taken = Taken::default();
    let pids = match processes.list(target, MOST) {
        Err(error) if has_ended(&error) => Vec::new(),
        other => other?,
    };
    for pid in pids {
        taken.stopped |= stop();
        if taken.bytes >= bytes || taken.stopped {
            break;
        }
        let all = match processes.open(target, pid) {
            Ok(Some(process)) => take_from(process.as_ref(), hot, bytes, stop, &mut taken),
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        };
        match all {
            Ok(()) => {}
            Err(error) if is_gone(&error) => {}
            // It was to stop while a file was opened.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(refused("compress", pid, error)),
        }
    }
    Ok(taken)
}

fn take_from(
    process: &dyn Subject,
    hot: &HotSet,
    bytes: u64,
    stop: &dyn Fn() -> bool,
    taken: &mut Taken,
) -> io::Result<()> {
    let advised = |runs: &[Range], advice| -> io::Result<bool> {
        for batch in ranges::batches(runs, BATCH, MAX_IOVEC) {
            if stop() {
                return Ok(true);
            }
            advise(process, &batch, advice)?;
        }
        Ok(false)
    };
    let identity = process.identity();
    if !hot.is_cold(&identity) {
        taken.stopped = advised(hot.of(&identity), Advice::Cold)?;
        if !taken.stopped {
            hot.set_cold(&identity);
        }
    }
    let hot = hot.of(&identity);
    let mut at = 0;
    while at < END && taken.bytes < bytes && !taken.stopped {
        if stop() {
            taken.stopped = true;
            break;
        }
        let here = Range {
            start: at,
            end: END,
        };
        let mut there = Vec::new();
        let left = bytes.saturating_sub(taken.bytes).div_ceil(PAGE_SIZE);
        // The hot ones count, too, but each step goes on.
        at = process.scan(here, Kind::Anonymous, left.clamp(64, STEP), &mut there)?;
        let (Some(first), Some(last)) = (there.first(), there.last()) else {
            break;
        };
        let looked = Range {
            start: first.start,
            end: last.end,
        };
        if at < looked.end {
            break;
        }
        taken.spared = taken
            .spared
            .saturating_add(ranges::bytes(&ranges::intersect(&there, hot)));
        let go = ranges::subtract(&there, hot);
        taken.stopped = advised(&go, Advice::PageOut)?;
        let stay = ranges::bytes(&ranges::intersect(&go, &present(process, looked)?));
        taken.bytes = taken
            .bytes
            .saturating_add(ranges::bytes(&go).saturating_sub(stay));
    }
    Ok(())
}

/// The anonymous pages that are in a range now.
fn present(process: &dyn Subject, mut range: Range) -> io::Result<Vec<Range>> {
    let mut there = Vec::new();
    while range.start < range.end {
        let next = process.scan(range, Kind::Anonymous, u64::MAX, &mut there)?;
        if next <= range.start {
            break;
        }
        range.start = next;
    }
    Ok(there)
}

/// Advises on all of these, but for those of which the kernel will not have it: unmapped meanwhile,
/// locked, of a device.
fn advise(process: &dyn Subject, batch: &[Range], advice: Advice) -> io::Result<()> {
    let mut rest = batch;
    while !rest.is_empty() {
        let mut done = match process.advise(rest, advice) {
            Ok(done) => done,
            Err(error) => match error.raw_os_error() {
                Some(libc::EINVAL | libc::ENOMEM | libc::EBADF | libc::EAGAIN | libc::EINTR) => 0,
                _ => return Err(error),
            },
        };
        let mut whole = 0;
        while let Some(range) = rest.get(whole) {
            let length = range.end.saturating_sub(range.start);
            if done < length {
                break;
            }
            done -= length;
            whole += 1;
        }
        // The one that failed is left out.
        rest = rest.get(whole + 1..).unwrap_or(&[]);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::fake::{page, Fake};
    use super::*;
    use proptest::prelude::*;

    const GO: fn() -> bool = || false;
    const ALL: u64 = u64::MAX;

    fn hot(fake: &Fake, of: &[(i32, Range)]) -> HotSet {
        let mut hot = HotSet::default();
        for (pid, range) in of {
            hot.insert(fake.identity(*pid), vec![*range]);
        }
        hot
    }

    fn pages(bytes: u64) -> u64 {
        bytes / PAGE_SIZE
    }

    #[test]
    fn all_but_the_hot_pages() {
        let fake = Fake::default();
        fake.start(1, 10, 0..5000);
        fake.start(1, 11, 0..100);
        // Another sandbox.
        fake.start(2, 12, 0..100);
        let hot = hot(&fake, &[(10, page(2040, 2060))]);
        let taken = take(&fake, &Fake::target(1), &hot, ALL, &GO).unwrap();
        assert_eq!(pages(taken.bytes), 5000 - 20 + 100);
        assert_eq!(pages(taken.spared), 20);
        assert!(!taken.stopped);
        assert_eq!(fake.present(10), (2040..2060).collect::<Vec<u64>>());
        assert_eq!(fake.cold(10), (2040..2060).collect::<Vec<u64>>());
        assert_eq!((fake.present(11).len(), fake.present(12).len()), (0, 100));
        // Nothing is left.
        let again = take(&fake, &Fake::target(1), &hot, ALL, &GO).unwrap();
        assert_eq!((again.bytes, pages(again.spared)), (0, 20));
    }

    proptest! {
        #[test]
        fn nothing_hot_goes_and_nothing_else_stays(
            there in proptest::collection::btree_set(0_u64..9000, 0..700),
            hot in proptest::collection::btree_set(0_u64..9000, 0..300),
            turn in 1_u64..400,
        ) {
            let fake = Fake::default();
            fake.start(1, 10, 0..0);
            fake.write(10, there.iter().copied());
            let mut set = HotSet::default();
            set.insert(fake.identity(10), super::ranges::tests::runs(&hot).iter().map(|run| page(run.start, run.end)).collect());
            let rest = (&there - &hot).len() as u64;
            let mut all = 0;
            // In turns, as the daemon takes it.
            for _ in 0..=rest {
                let taken = take(&fake, &Fake::target(1), &set, turn * PAGE_SIZE, &GO).unwrap();
                prop_assert!(pages(taken.bytes) < turn + 64);
                all += pages(taken.bytes);
                if taken.bytes == 0 {
                    break;
                }
            }
            prop_assert_eq!(all, rest);
            prop_assert_eq!(fake.present(10), (&there & &hot).into_iter().collect::<Vec<u64>>());
        }
    }

    #[test]
    fn as_much_as_was_asked_for() {
        let fake = Fake::default();
        fake.start(1, 10, 0..5000);
        let taken = take(&fake, &Fake::target(1), &HotSet::default(), 1 << 20, &GO).unwrap();
        assert_eq!(pages(taken.bytes), 256);
        assert_eq!(fake.present(10).len(), 5000 - 256);
    }

    #[test]
    fn what_cannot_be_taken_is_passed_over() {
        let fake = Fake::default();
        fake.start(1, 10, 0..300);
        fake.lock(10, 100..110);
        let taken = take(&fake, &Fake::target(1), &HotSet::default(), ALL, &GO).unwrap();
        assert!(fake.present(10).len() < 300 && fake.present(10).contains(&100));
        assert_eq!(pages(taken.bytes) as usize, 300 - fake.present(10).len());
        // In the end only the locked ones are left.
        for _ in 0..3 {
            take(&fake, &Fake::target(1), &HotSet::default(), ALL, &GO).unwrap();
        }
        assert!(fake.present(10).iter().all(|page| *page < 128));
    }

    #[test]
    fn stopped_within_a_batch() {
        let fake = Fake::default();
        fake.start(1, 10, 0..5000);
        fake.start(1, 11, 0..5000);
        let stop = || fake.present(10).len() <= 5000 - 3 * 64;
        let taken = take(&fake, &Fake::target(1), &HotSet::default(), ALL, &stop).unwrap();
        assert!(taken.stopped);
        assert_eq!(pages(taken.bytes), 3 * 64);
        assert_eq!(fake.present(11).len(), 5000);
    }

    #[test]
    fn what_ends_or_moves_away_is_no_error() {
        let fake = Fake::default();
        for pid in 10..14 {
            fake.start(1, pid, 0..100);
        }
        fake.vanish(10);
        fake.leave(11);
        fake.die_at_advice(12);
        let taken = take(&fake, &Fake::target(1), &HotSet::default(), ALL, &GO).unwrap();
        assert_eq!(pages(taken.bytes), 100);
        assert_eq!(fake.present(11).len(), 100);
        fake.start(1, 20, 0..100);
        fake.refuse(20, libc::EPERM);
        let error = take(&fake, &Fake::target(1), &HotSet::default(), ALL, &GO).unwrap_err();
        assert!(
            error.to_string().contains("compress process 20: "),
            "{error}"
        );
    }
}
