// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Hostile bytes: decoding never panics and never yields wrong bytes unnoticed.

mod common;

use agentzip_codec::{header, BaseId, DecodeError, Representation, HEADER_LEN, PAGE_SIZE, UNIT};
use common::pages::{changed, changes, from_words, moved, random, texture};
use common::{naive, reference, template, Bench};
use proptest::prelude::*;

const NUMBER: u32 = 3;

/// Format numbers that exist.
const FORMATS: [u8; 10] = [8, 9, 10, 14, 15, 16, 17, 18, 22, PADDED];

/// The format whose payloads have one length.
const PADDED: u8 = 23;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Random bytes, with a header that is right more often than chance.
    #[test]
    fn random_bytes_never_panic(
        format in prop::sample::select(&FORMATS[..]),
        padding in 0..8u8,
        bytes in prop::collection::vec(any::<u8>(), 0..600),
        right_header in any::<bool>(),
        right_base in any::<bool>(),
    ) {
        let mut payload = bytes;
        if right_header && payload.len() >= UNIT {
            payload[4] = format * 8 + padding;
        }
        if right_base && payload.len() >= UNIT {
            payload[HEADER_LEN..UNIT].copy_from_slice(&[3, 0, 0]);
        }
        let base = from_words(|n| n as u64);
        let bases = [template(NUMBER, &base), reference(NUMBER, &base)];
        let mut bench = Bench::new();
        if bench.decode(&payload, &bases).is_ok() {
            let crc = u32::from_le_bytes(payload[..4].try_into().unwrap());
            prop_assert_eq!(naive::crc32c(&bench.page[..]), crc);
        }
    }

    /// Damaged payloads give an error or the right page.
    #[test]
    fn damage_is_noticed(
        base in texture(),
        changes in changes(),
        shift in 0..PAGE_SIZE,
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
    ) {
        let page = changed(&moved(&base, shift), &changes);
        let mut bench = Bench::new();
        let bases = [template(NUMBER, &base)];
        let Some(good) = bench.payload(&page, &bases) else { return Ok(()) };
        let mut bad = good.clone();
        for (at, byte) in damage {
            *at.get_mut(&mut bad) = byte;
        }
        let short = &good[..cut.index(good.len())];
        for payload in [&bad[..], short] {
            if bench.decode(payload, &bases).is_ok() {
                prop_assert_eq!(&bench.page, &page);
            }
        }
        if short.len() < UNIT {
            prop_assert_eq!(bench.decode(short, &bases), Err(DecodeError::Truncated));
        }
    }

    /// A base that is not the page that was encoded against is noticed.
    #[test]
    fn a_changed_base_is_noticed(
        base in texture(),
        changes in changes(),
        shift in 0..PAGE_SIZE,
        other in texture(),
        word in 0..512usize,
        bits in 1..u64::MAX,
    ) {
        let page = changed(&moved(&base, shift), &changes);
        let mut bench = Bench::new();
        let Some(payload) = bench.payload(&page, &[template(NUMBER, &base)]) else {
            return Ok(());
        };
        for base in [other, changed(&base, &[(word, bits)])] {
            if bench.decode(&payload, &[template(NUMBER, &base)]).is_ok() {
                prop_assert_eq!(&bench.page, &page);
            }
        }
    }
}

#[test]
fn headers() {
    assert_eq!(header(&[]), Err(DecodeError::Truncated));
    assert_eq!(header(&[0x48; UNIT - 1]), Err(DecodeError::Truncated));
    // What memory that was never written, or was poisoned, has.
    for byte in [0, 0x5a, 0x6b, 0xa5, 0xaa, 0xff] {
        assert_eq!(header(&[byte; 64]), Err(DecodeError::Header), "{byte:#x}");
    }
    for packed in 0..=u8::MAX {
        let result = header(&[1, 2, 3, 4, packed, 5, 6, 7]);
        assert_eq!(
            result.is_ok(),
            FORMATS.contains(&(packed / 8)),
            "{packed:#x}"
        );
        let Ok(header) = result else { continue };
        assert_eq!(header.crc, 0x0403_0201);
        assert_eq!(header.padding, packed % 8);
        let base = match packed / 8 {
            9 | 14 | 16 => Some(BaseId::Template(0x07_0605)),
            10 | 15 | 17 => Some(BaseId::Reference(0x07_0605)),
            _ => None,
        };
        assert_eq!(header.base, base);
        assert_eq!(header.dictionary, (packed / 8 == 22).then_some(5));
        let representation = match packed / 8 {
            8 => Representation::Fill,
            9 | 10 => Representation::Delta,
            14 | 15 => Representation::DeltaZstd,
            16 | 17 => Representation::Prefix,
            22 => Representation::Dict,
            PADDED => Representation::Padded,
            _ => Representation::Zstd,
        };
        assert_eq!(header.representation, representation);
    }
}

#[test]
fn padding_longer_than_the_body_is_an_error() {
    let base = from_words(|n| n as u64);
    let bases = [template(NUMBER, &base), reference(NUMBER, &base)];
    let mut bench = Bench::new();
    for format in FORMATS {
        let payload = [1, 2, 3, 4, format * 8 + 7, 3, 0, 0];
        let result = bench.decode(&payload, &bases);
        assert_eq!(result, Err(DecodeError::Truncated), "{format}");
    }
}

#[test]
fn a_missing_base_is_an_error() {
    let base = from_words(|n| n as u64);
    let mut bench = Bench::new();
    let page = changed(&base, &[(1, 1)]);
    let payload = bench.payload(&page, &[template(NUMBER, &base)]).unwrap();
    for other in [template(NUMBER + 1, &base), reference(NUMBER, &base)] {
        assert_eq!(bench.decode(&payload, &[other]), Err(DecodeError::NoBase));
    }
}

/// Every single byte of every payload form replaced by every value.
#[test]
fn every_damaged_byte_is_noticed() {
    let mut next = random(5);
    let base = from_words(|_| 0x7f00_0000_0000 | next() & 0xffff_ffff);
    let bases = [template(NUMBER, &base)];
    let some: Vec<_> = (0..9).map(|n| (n * n * 5, 0xff_ffff)).collect();
    let many: Vec<_> = (0..200).map(|n| (2 * n, 0x1111)).collect();
    let mut halves = base.clone();
    halves[..2048].rotate_left(40);
    let pages = [
        (from_words(|_| 0x0102_0304_0506_0708), Representation::Fill),
        (changed(&base, &some), Representation::Delta),
        (changed(&base, &many), Representation::DeltaZstd),
        (halves, Representation::Prefix),
        (from_words(|n| (n % 7) as u64), Representation::Zstd),
    ];
    let mut bench = Bench::new();
    for (page, representation) in pages {
        let good = bench.payload(&page, &bases).unwrap();
        assert_eq!(bench.decode(&good, &bases), Ok(representation));
        for at in 0..good.len().min(120) {
            for byte in 0..=u8::MAX {
                let mut bad = good.clone();
                bad[at] = byte;
                if bench.decode(&bad, &bases).is_ok() {
                    assert_eq!(bench.page, page);
                }
            }
        }
    }
}
