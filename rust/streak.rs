// SPDX-License-Identifier: GPL-2.0

//! Not trying again and again what nothing makes smaller.
//!
//! To decline a page costs two tries of zstd, more than to write it to a fast device. Who has many such pages
//! has them in rows: media, archives, ciphertext. So when the last [`STREAK`] folios of a sandbox were declined
//! for that reason, one with a page that looks like noise and has no page of the template below it is declined
//! at sight. Each [`TRIED`]-th of them is tried all the same, and one folio that is stored ends the streak: what
//! is wrongly taken for noise costs at most so many folios a place on the swap device. With the second look
//! off, when reclaim tries everything, a sibling's page that would have helped is not found either.
//!
//! Stores of a sandbox on several CPUs may each overwrite what another counts. It is a guess anyway.

use kernel::sync::atomic::{Atomic, Relaxed};

use crate::codec::{looks_like_noise, Page, NOISE_SAMPLE, PAGE_SIZE};

/// Folios in a row that make a streak.
const STREAK: u32 = 16;
/// One of so many folios of a streak is tried.
const TRIED: u32 = 64;
/// Parts of a page that are looked at.
const PARTS: usize = 4;

/// How many folios of a sandbox were declined in a row because nothing made one of their pages smaller.
pub(crate) struct Streak(Atomic<u32>);

impl Streak {
    pub(crate) const fn new() -> Self {
        Self(Atomic::new(0))
    }

    /// Whether there is a streak, in which a page of the next folio is not to be tried if it looks like noise.
    pub(crate) fn lasts(&self) -> bool {
        let refused = self.0.load(Relaxed);
        refused >= STREAK && refused % TRIED != 0
    }

    /// A folio was declined, tried or not.
    pub(crate) fn refused(&self) {
        self.0.store(next(self.0.load(Relaxed)), Relaxed);
    }

    /// A folio was stored.
    pub(crate) fn ends(&self) {
        // The line is shared by all CPUs: written only when it must be.
        if self.0.load(Relaxed) != 0 {
            self.0.store(0, Relaxed);
        }
    }
}

/// The count after one more; stays above [`STREAK`] when it wraps.
fn next(refused: u32) -> u32 {
    match refused.checked_add(1) {
        Some(next) => next,
        None => STREAK,
    }
}

/// Whether a page looks like noise.
///
/// # Safety
///
/// `page` must be valid for reads. Others may write it meanwhile, as a device or `O_DIRECT` may.
pub(crate) unsafe fn is_noise(page: *const Page) -> bool {
    const PART: usize = NOISE_SAMPLE / PARTS;
    let mut sample = [0; NOISE_SAMPLE];
    for (i, part) in sample.chunks_exact_mut(PART).enumerate() {
        let at = (PAGE_SIZE / PARTS).wrapping_mul(i);
        // SAFETY: The part lies within the page, which our caller keeps; the sample is ours.
        unsafe {
            core::ptr::copy_nonoverlapping(
                page.cast::<u8>().wrapping_add(at),
                part.as_mut_ptr(),
                PART,
            )
        };
    }
    looks_like_noise(&sample)
}
