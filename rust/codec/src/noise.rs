// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Whether a page looks like noise, at a glance.

/// Bytes that are looked at.
pub const SAMPLE: usize = 256;

/// Of so many bytes of noise 162 different values are expected, and 5 is the standard deviation. Text has
/// about 40, pointers and numbers have less than 110, Base64 has at most 64.
const DIFFERENT: u32 = 140;

/// Whether a sample of a page looks like noise: compressed, encrypted or random bytes.
///
/// It errs on both sides. What has many values but long repetitions, or a few values more often than
/// others, looks like noise, too; so do not rely on this alone.
pub fn looks_like_noise(sample: &[u8; SAMPLE]) -> bool {
    let mut seen = [0u64; 4];
    for &byte in sample {
        if let Some(word) = seen.get_mut(usize::from(byte >> 6)) {
            *word |= 1u64.wrapping_shl(u32::from(byte & 63));
        }
    }
    let different = seen
        .iter()
        .fold(0u32, |sum, word| sum.wrapping_add(word.count_ones()));
    different >= DIFFERENT
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(mut next: impl FnMut() -> u8) -> [u8; SAMPLE] {
        core::array::from_fn(|_| next())
    }

    fn random(mut state: u64) -> impl FnMut() -> u8 {
        move || {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (state >> 56) as u8
        }
    }

    #[test]
    fn noise_looks_like_noise() {
        for seed in 0..10_000 {
            assert!(looks_like_noise(&bytes(random(seed * 77 + 1))), "{seed}");
        }
    }

    #[test]
    fn what_has_few_values_does_not() {
        const BASE64: &[u8; 64] =
            b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        for seed in 0..1000 {
            let mut noise = random(seed);
            assert!(!looks_like_noise(&bytes(
                || BASE64[usize::from(noise() >> 2)]
            )));
            // Six bits of eight, and numbers below 2^24 in words of eight bytes.
            assert!(!looks_like_noise(&bytes(|| noise() & 0x7e)));
            let mut at = 0;
            assert!(!looks_like_noise(&bytes(|| {
                at += 1;
                if at % 8 < 3 {
                    noise()
                } else {
                    0
                }
            })));
        }
        assert!(!looks_like_noise(&[0; SAMPLE]));
    }
}
