// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Whether the literals of a zstd block, the bytes that no match brings, are worth being compressed.
//!
//! Plain ones decode in about 3/4 of the time, and for most pages the block is hardly longer: codes save a
//! few percent of it, and their table takes some of that back.

/// Compressed literals must make the block shorter by one in so many of its bytes.
const WORTH: usize = 14;

/// Logarithms are in sixteenths of a bit.
const ONE: u32 = 16;

/// log2(1 + i / 16), rounded. A logarithm is off by less than 2.
const FRACTIONS: [u8; 16] = [0, 1, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 14, 15];

/// Whether a block, whose literals are plain, would be shorter by a sixteenth or more with codes for
/// them: by the entropy of the literals and about half a byte in the table for each value that occurs.
pub(super) fn worth_compressing(block: &[u8]) -> bool {
    let Some(literals) = plain(block) else {
        return false;
    };
    let mut counts = [0u16; 256];
    for &byte in literals {
        if let Some(count) = counts.get_mut(usize::from(byte)) {
            *count = count.saturating_add(1);
        }
    }
    let len = literals.len() as u32;
    let mut bits = len.saturating_mul(log2(len));
    let mut table = 0usize;
    for &count in counts.iter().filter(|&&count| count != 0) {
        let count = u32::from(count);
        bits = bits.saturating_sub(count.saturating_mul(log2(count)));
        table = table.wrapping_add(1);
    }
    let coded = (bits / (8 * ONE)) as usize;
    let saved = literals
        .len()
        .saturating_sub(coded)
        .saturating_sub(table / 2);
    saved >= block.len() / WORTH
}

/// The literals of a block if they are plain.
fn plain(block: &[u8]) -> Option<&[u8]> {
    let byte = |at: usize| block.get(at).copied().map(usize::from);
    let first = byte(0)?;
    // RFC 8878, 3.1.1.3.1.1: two bits of type, 0 for plain, then one or two that say how long the
    // length is.
    if first & 3 != 0 {
        return None;
    }
    let (at, len): (usize, usize) = match (first >> 2) & 3 {
        1 => (2, (first >> 4) | (byte(1)? << 4)),
        3 => (3, (first >> 4) | (byte(1)? << 4) | (byte(2)? << 12)),
        _ => (1, first >> 3),
    };
    block.get(at..at.wrapping_add(len))
}

/// The logarithm of a number; 0 of 0.
fn log2(number: u32) -> u32 {
    let Some(whole) = number.checked_ilog2() else {
        return 0;
    };
    let top = number.wrapping_shl(31u32.wrapping_sub(whole));
    let fraction = FRACTIONS.get(((top >> 27) & 15) as usize).copied();
    whole
        .wrapping_mul(ONE)
        .wrapping_add(fraction.unwrap_or(0).into())
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use std::vec::Vec;

    fn block(literals: &[u8], rest: usize) -> Vec<u8> {
        let len = literals.len();
        let mut block = match len {
            0..32 => std::vec![(len << 3) as u8],
            32..4096 => std::vec![((len << 4) & 0xf0) as u8 | 4, (len >> 4) as u8],
            _ => {
                std::vec![
                    ((len << 4) & 0xf0) as u8 | 12,
                    (len >> 4) as u8,
                    (len >> 12) as u8
                ]
            }
        };
        block.extend(literals);
        block.resize(block.len() + rest, 7);
        block
    }

    #[test]
    fn literals_are_found() {
        for len in [0, 1, 31, 32, 100, 4095, 4096] {
            let literals: Vec<u8> = (0..len).map(|at| at as u8).collect();
            assert_eq!(plain(&block(&literals, 5)), Some(&literals[..]), "{len}");
        }
        assert_eq!(plain(&[]), None);
        assert_eq!(plain(&[4]), None);
        assert_eq!(plain(&[32 << 3]), Some(&[][..]));
        assert_eq!(plain(&[31 << 3, 0]), None);
        assert_eq!(plain(&[2, 0, 0]), None);
    }

    #[test]
    fn text_is_worth_it_and_noise_is_not() {
        let letters: Vec<u8> = (0..1000u32).map(|at| b'a' + (at * at % 16) as u8).collect();
        assert!(worth_compressing(&block(&letters, 200)));
        // Half a kilobyte saved, of a long block.
        assert!(!worth_compressing(&block(&letters[..200], 3000)));
        let noise: Vec<u8> = (0..1000u32).map(|at| (at * 167) as u8).collect();
        assert!(!worth_compressing(&block(&noise, 200)));
        assert!(!worth_compressing(&block(&[], 200)));
    }

    #[test]
    fn logarithms() {
        assert_eq!(log2(0), 0);
        for number in 1..=4096u32 {
            let exact = f64::from(number).log2() * f64::from(ONE);
            assert!((f64::from(log2(number)) - exact).abs() < 2.0, "{number}");
        }
    }
}
