// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Padded payloads: of one length whatever the page holds, and nothing but the right page comes out of one.

mod common;

use agentzip_codec::{
    header, DecodeError, Encoder, Level, Limits, Page, Representation, Tried, HEADER_LEN,
    MAX_PAYLOAD, PADDED_LEN, UNIT,
};
use common::pages::{changed, changes, from_words, random, texture};
use common::{naive, Bench};
use proptest::prelude::*;

/// Bytes of the length.
const LENGTH: usize = 2;

/// Encodes a page by itself; the rest of the buffer is what another page may have left.
fn padded(bench: &mut Bench, page: &Page, limits: Limits) -> Option<Vec<u8>> {
    let Bench {
        backend,
        scratch,
        out,
        ..
    } = bench;
    out.fill(0xee);
    let mut encoder = Encoder::new(page, limits, backend);
    let tried = encoder.try_padded(scratch, backend, out);
    assert_eq!(tried != Tried::No, encoder.len().is_some());
    let len = encoder.finish(out)?;
    assert_eq!(encoder.representation(), Some(Representation::Padded));
    assert_eq!((encoder.base(), encoder.dictionary()), (None, None));
    assert_eq!(len, PADDED_LEN);
    Some(out[..len].to_vec())
}

/// Length of the block in a payload.
fn block_len(payload: &[u8]) -> usize {
    let at = HEADER_LEN..HEADER_LEN + LENGTH;
    u16::from_le_bytes(payload[at].try_into().unwrap()).into()
}

/// What is nothing to others is no secret to the size: zeros, a repeated word, text, what a base equals.
#[test]
fn all_that_fits_has_one_length() {
    let mut next = random(3);
    let pages = [
        from_words(|_| 0),
        from_words(|_| 0x0102_0304_0506_0708),
        from_words(|n| (n % 7) as u64),
        from_words(|_| 0x7f00_0000_0000 | next() & 0xff_ffff),
    ];
    let mut bench = Bench::new();
    // Limits are for those who save by them.
    let tight = Limits {
        max_payload: 64,
        max_distance: 0,
        ..Limits::at(Level::Cheap)
    };
    let mut blocks = Vec::new();
    for page in pages {
        let payload = padded(&mut bench, &page, tight).unwrap();
        let end = HEADER_LEN + LENGTH + block_len(&payload);
        assert!(payload[end..].iter().all(|&byte| byte == 0));
        let head = header(&payload[..UNIT]).unwrap();
        assert_eq!(head.crc, naive::crc32c(&page[..]));
        assert_eq!((head.base, head.dictionary, head.padding), (None, None, 0));
        assert_eq!(bench.decode(&payload, &[]), Ok(Representation::Padded));
        assert_eq!(bench.page, page);
        blocks.push(block_len(&payload));
    }
    blocks.dedup();
    assert_eq!(blocks.len(), 4, "the pages should differ in their blocks");
}

#[test]
fn noise_is_not_stored() {
    let mut next = random(4);
    let page = from_words(|_| next());
    let mut bench = Bench::new();
    assert_eq!(padded(&mut bench, &page, Limits::at(Level::Best)), None);
}

/// Between text and noise there is a border, and no page on either side gets through with another length.
#[test]
fn the_border_is_sharp() {
    let mut bench = Bench::new();
    let mut last = 0;
    let mut refused = false;
    for noisy in 0..512 {
        let mut next = random(5);
        let page = from_words(|n| if n < noisy { next() } else { n as u64 / 16 });
        match padded(&mut bench, &page, Limits::at(Level::Fast)) {
            Some(payload) => {
                last = last.max(block_len(&payload));
                bench.decode(&payload, &[]).unwrap();
                assert_eq!(bench.page, page);
            }
            None => refused = true,
        }
    }
    let room = PADDED_LEN - HEADER_LEN - LENGTH;
    assert!(refused && (room - 64..=room).contains(&last), "{last}");
}

#[test]
fn another_length_is_an_error() {
    let page = from_words(|n| (n % 9) as u64);
    let mut bench = Bench::new();
    let good = padded(&mut bench, &page, Limits::at(Level::Fast)).unwrap();
    for len in UNIT..=MAX_PAYLOAD {
        let mut other = good.clone();
        other.resize(len, 0);
        let expected = match len {
            PADDED_LEN => Ok(Representation::Padded),
            _ => Err(DecodeError::Padding),
        };
        assert_eq!(bench.decode(&other, &[]), expected, "{len}");
    }
    // The length of the block: whatever is there but the right one.
    for len in 0..=u16::MAX {
        let mut other = good.clone();
        other[HEADER_LEN..HEADER_LEN + LENGTH].copy_from_slice(&len.to_le_bytes());
        let right = usize::from(len) == block_len(&good);
        assert_eq!(bench.decode(&other, &[]).is_ok(), right, "{len}");
    }
    for padding in 1..8 {
        let mut other = good.clone();
        other[HEADER_LEN - 1] |= padding;
        assert_eq!(bench.decode(&other, &[]), Err(DecodeError::Padding));
    }
}

/// Every byte replaced by some values: an error, or the very page.
#[test]
fn every_damaged_byte_is_noticed() {
    let page = from_words(|n| (n * n % 61) as u64);
    let mut bench = Bench::new();
    let good = padded(&mut bench, &page, Limits::at(Level::Fast)).unwrap();
    for at in 0..good.len() {
        for bits in [1, 0x80, 0xff, 0x10] {
            let mut bad = good.clone();
            bad[at] ^= bits;
            if bench.decode(&bad, &[]).is_ok() {
                assert_eq!(bench.page, page, "byte {at}");
            }
            // What fills it up is looked at, too: nothing may be hidden there.
            if at >= HEADER_LEN + LENGTH + block_len(&good) {
                assert_eq!(bench.decode(&bad, &[]), Err(DecodeError::Padding));
            }
        }
    }
}

proptest! {
    #[test]
    fn any_page_comes_back_or_is_refused(base in texture(), changes in changes()) {
        let page = changed(&base, &changes);
        let mut bench = Bench::new();
        if let Some(payload) = padded(&mut bench, &page, Limits::at(Level::Fast)) {
            prop_assert_eq!(bench.decode(&payload, &[]), Ok(Representation::Padded));
            prop_assert_eq!(&bench.page, &page);
            // The same bytes again, whatever was in the buffers.
            let again = padded(&mut bench, &page, Limits::at(Level::Best));
            prop_assert_eq!(again, Some(payload));
        }
    }

    #[test]
    fn any_bytes_are_an_error_or_a_page(bytes in prop::collection::vec(any::<u8>(), PADDED_LEN)) {
        let mut bytes = bytes;
        bytes[HEADER_LEN - 1] = 23 << 3;
        let mut bench = Bench::new();
        prop_assert!(bench.decode(&bytes, &[]).is_err());
    }
}
