// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A fixed loop, to compare the speed of a guest with that of the machine which runs it.
//!
//! It does what a compressor does most: look into pages, hash, compare and copy. Emulation slows that
//! down by another factor than page faults or floating-point arithmetic, so what it says is an order of
//! magnitude.

use std::hint::black_box;
use std::time::Duration;

use rustix::time::{clock_gettime, ClockId};

/// Bytes of a page.
const PAGE: usize = 4096;
/// Pages of one loop.
const PAGES: u64 = 2000;
/// The fastest of so many loops counts: others run on the machine, too.
const LOOPS: u32 = 7;

/// CPU time of one loop: what else runs on the machine does not count.
pub fn measure() -> Duration {
    let times = (0..LOOPS).map(|_| {
        let begin = cpu_time();
        black_box(pages(black_box(PAGES)));
        cpu_time().saturating_sub(begin)
    });
    times.min().unwrap_or_default()
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
        assert!(measure() > Duration::ZERO);
    }
}
