// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Hostile bytes: decoding never panics and never yields wrong bytes unnoticed.

mod common;

use agentzip_codec::{header, Base, DecodeError, HEADER_LEN, MAX_PAYLOAD};
use common::pages::{changed, changes, from_words, random, texture};
use common::{naive, Bench};
use proptest::prelude::*;

const ORDINAL: u32 = 3;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Random bytes, with a header that is right more often than chance.
    #[test]
    fn random_bytes_never_panic(
        format in 0..16u16,
        bytes in prop::collection::vec(any::<u8>(), 0..600),
        right_len in any::<bool>(),
        ordinal in any::<bool>(),
    ) {
        let mut payload = bytes;
        if right_len && payload.len() >= HEADER_LEN {
            let packed = payload.len() as u16 | (format << 12);
            payload[4..6].copy_from_slice(&packed.to_le_bytes());
            payload[6] = naive::header_check(&payload[..6]);
        }
        if ordinal && payload.len() >= HEADER_LEN + 3 {
            payload[HEADER_LEN..HEADER_LEN + 3].copy_from_slice(&[3, 0, 0]);
        }
        let base = from_words(|n| n as u64);
        let mut bench = Bench::new();
        if bench.decode(&payload, ORDINAL, &base).is_ok() {
            let crc = u32::from_le_bytes(payload[..4].try_into().unwrap());
            prop_assert_eq!(naive::crc32c(&bench.page[..]), crc);
        }
    }

    /// Damaged payloads give an error or the right page.
    #[test]
    fn damage_is_noticed(
        base in texture(),
        changes in changes(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
    ) {
        let page = changed(&base, &changes);
        let mut bench = Bench::new();
        let bases = [Base { ordinal: ORDINAL, page: &base }];
        let Some(good) = bench.payload(&page, &bases) else { return Ok(()) };
        let mut bad = good.clone();
        for (at, byte) in damage {
            *at.get_mut(&mut bad) = byte;
        }
        if bench.decode(&bad, ORDINAL, &base).is_ok() {
            prop_assert_eq!(&bench.page, &page);
        }
        let short = &good[..cut.index(good.len())];
        prop_assert_eq!(bench.decode(short, ORDINAL, &base), Err(DecodeError::Truncated));
    }

    /// A base that is not the page that was encoded against is noticed.
    #[test]
    fn a_changed_base_is_noticed(
        base in texture(),
        few in prop::collection::vec((0..512usize, 1..u64::MAX), 1..9),
        other in texture(),
        word in 0..512usize,
        bits in 1..u64::MAX,
    ) {
        let page = changed(&base, &few);
        let mut bench = Bench::new();
        let bases = [Base { ordinal: ORDINAL, page: &base }];
        let Some(payload) = bench.payload(&page, &bases) else { return Ok(()) };
        for base in [other, changed(&base, &[(word, bits)])] {
            if bench.decode(&payload, ORDINAL, &base).is_ok() {
                prop_assert_eq!(&bench.page, &page);
            }
        }
    }
}

#[test]
fn headers() {
    assert_eq!(header(&[]), Err(DecodeError::Truncated));
    assert_eq!(header(&[0; HEADER_LEN - 1]), Err(DecodeError::Truncated));
    // All zero is what memory that was never written has.
    assert_eq!(header(&[0; 64]), Err(DecodeError::Header));
    for packed in 0..=u16::MAX {
        let [low, high] = packed.to_le_bytes();
        let known = (1..=5).contains(&(packed >> 12));
        let len = usize::from(packed & 0xfff);
        let fields = [1, 2, 3, 4, low, high];
        let check = naive::header_check(&fields);
        let [c0, c1, c2, c3, _, _] = fields;
        let result = header(&[c0, c1, c2, c3, low, high, check]);
        assert_eq!(
            result.is_ok(),
            known && (HEADER_LEN..=MAX_PAYLOAD).contains(&len)
        );
        if let Ok(header) = result {
            assert_eq!(usize::from(header.len), len);
            assert_eq!(header.crc, 0x0403_0201);
        }
    }
}

/// The length is used before the checksum of the page can be: no single flipped bit may pass.
#[test]
fn a_flipped_bit_in_a_header_is_noticed() {
    for packed in (0..=u16::MAX).step_by(7) {
        let mut bytes = [0u8; HEADER_LEN];
        bytes[..4].copy_from_slice(&u32::from(packed).wrapping_mul(0x9e37_79b1).to_le_bytes());
        bytes[4..6].copy_from_slice(&packed.to_le_bytes());
        bytes[6] = naive::header_check(&bytes[..6]);
        for bit in 0..8 * HEADER_LEN {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(
                header(&bytes),
                Err(DecodeError::Header),
                "{packed:#x} {bit}"
            );
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }
}

#[test]
fn an_unknown_base_is_an_error() {
    let base = from_words(|n| n as u64);
    let mut bench = Bench::new();
    let bases = [Base {
        ordinal: ORDINAL,
        page: &base,
    }];
    let payload = bench.payload(&changed(&base, &[(1, 1)]), &bases).unwrap();
    let result = bench.decode(&payload, ORDINAL + 1, &base);
    assert_eq!(result, Err(DecodeError::NoBase));
}

/// Every single byte of every payload form replaced by every value.
#[test]
fn every_damaged_byte_is_noticed() {
    let mut next = random(5);
    let base = from_words(|_| 0x7f00_0000_0000 | next() & 0xffff_ffff);
    let bases = [Base {
        ordinal: ORDINAL,
        page: &base,
    }];
    let some: Vec<_> = (0..9).map(|n| (n * n * 5, 0xff_ffff)).collect();
    let many: Vec<_> = (0..200).map(|n| (2 * n, 0x1111)).collect();
    let pages = [
        from_words(|_| 0x0102_0304_0506_0708),
        changed(&base, &some),
        changed(&base, &many),
        from_words(|n| (n % 7) as u64),
    ];
    let mut bench = Bench::new();
    for page in pages {
        let good = bench.payload(&page, &bases).unwrap();
        for at in 0..good.len().min(120) {
            for byte in 0..=u8::MAX {
                let mut bad = good.clone();
                bad[at] = byte;
                if bench.decode(&bad, ORDINAL, &base).is_ok() {
                    assert_eq!(bench.page, page);
                }
            }
        }
    }
}
