// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Fixed loops, to compare the speed of a guest with that of the machine which runs it.
//!
//! One does what a compressor does most: look into pages, hash, compare and copy. The other one has page
//! faults, which emulation slows down several times more. What they say is an order of magnitude.

use std::hint::black_box;
use std::time::Duration;

use rustix::mm::{madvise, mmap_anonymous, munmap, Advice, MapFlags, ProtFlags};
use rustix::time::{clock_gettime, ClockId};

/// Bytes of a page.
const PAGE: usize = 4096;
/// Pages of one loop.
const PAGES: u64 = 2000;
/// The fastest of so many loops counts: others run on the machine, too.
const LOOPS: u32 = 7;

/// Pages that are faulted in by the other one.
const FAULTS: usize = 8000;

/// CPU time of the loop over pages: what else runs on the machine does not count.
pub fn measure() -> Duration {
    least(|| {
        black_box(pages(black_box(PAGES)));
    })
}

/// CPU time of the loop with page faults. Zero when there is no memory for it.
pub fn measure_faults() -> Duration {
    least(faults)
}

fn least(work: impl Fn()) -> Duration {
    let times = (0..LOOPS).map(|_| {
        let begin = cpu_time();
        work();
        cpu_time().saturating_sub(begin)
    });
    times.min().unwrap_or_default()
}

/// Maps pages, touches each, and unmaps them.
fn faults() {
    let length = FAULTS * PAGE;
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: A new mapping, wherever the kernel likes.
    let mapped =
        unsafe { mmap_anonymous(std::ptr::null_mut(), length, protection, MapFlags::PRIVATE) };
    let Ok(start) = mapped else { return };
    // SAFETY: The mapping is ours, and private; huge pages would have no faults.
    let _ = unsafe { madvise(start, length, Advice::LinuxNoHugepage) };
    for page in 0..FAULTS {
        // SAFETY: Inside of the mapping, which nobody else knows.
        unsafe { start.cast::<u8>().add(page * PAGE).write_volatile(1) };
    }
    // SAFETY: Nothing refers to it any more.
    let _ = unsafe { munmap(start, length) };
}

/// CPU time of this thread.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Makes pages, finds the words of each in a table of the last ones, and copies those that are not there.
fn pages(count: u64) -> u64 {
    let mut table = [0u16; 1024];
    let mut page = [0u8; PAGE];
    let mut copy = Vec::with_capacity(2 * PAGE);
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut sum = 0;
    for number in 0..count {
        for word in page.chunks_exact_mut(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            word.copy_from_slice(&(state & 0x0fff_00ff_0000_000f).to_le_bytes());
        }
        copy.clear();
        for (at, word) in page.windows(8).enumerate().step_by(4) {
            let value = word
                .iter()
                .fold(0u64, |value, byte| (value << 8) | u64::from(*byte));
            let hash = (value.wrapping_mul(0xff51_afd7_ed55_8ccd) >> 54) as usize;
            let before = usize::from(std::mem::replace(&mut table[hash & 1023], at as u16));
            if page.get(before..before + 8) != Some(word) {
                copy.extend_from_slice(word);
            }
        }
        sum ^= copy
            .iter()
            .fold(number, |sum, byte| sum.rotate_left(5) ^ u64::from(*byte));
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_same_everywhere() {
        assert_eq!(pages(3), pages(3));
        assert_ne!(pages(3), pages(4));
        assert!(measure() > Duration::ZERO && measure_faults() > Duration::ZERO);
    }
}
