// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The codec against a naive second implementation: same bytes out, same verdict on any bytes in.

mod common;

use agentzip_codec::{Base, Representation, HEADER_LEN};
use common::pages::{changed, changes, texture};
use common::{naive, Bench};
use proptest::prelude::*;

const ORDINAL: u32 = 0x0b_0a09;
const BODY: usize = HEADER_LEN + 3;

/// Puts a header before a body: the format and a checksum that is right for `page`.
fn frame(format: u16, crc: u32, body: &[u8]) -> Vec<u8> {
    let len = (HEADER_LEN + body.len()) as u16;
    let mut payload = crc.to_le_bytes().to_vec();
    payload.extend((len | (format << 12)).to_le_bytes());
    payload.push(naive::header_check(&payload));
    payload.extend(body);
    payload
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn deltas_have_the_same_bytes(base in texture(), changes in changes()) {
        let page = changed(&base, &changes);
        let mut bench = Bench::new();
        let bases = [Base { ordinal: ORDINAL, page: &base }];
        let Some(payload) = bench.payload(&page, &bases) else { return Ok(()) };
        match agentzip_codec::header(&payload).unwrap().representation {
            Representation::Delta => {
                prop_assert_eq!(&payload[HEADER_LEN..BODY], &[0x09, 0x0a, 0x0b]);
                prop_assert_eq!(&payload[BODY..], naive::joined(&page, &base));
            }
            Representation::DeltaZstd => {
                let frame = [&[0x28, 0xb5, 0x2f, 0xfd], &payload[BODY..]].concat();
                let mut stream = vec![0; 8192];
                let len = zstd_safe::decompress(&mut stream[..], &frame).unwrap();
                prop_assert_eq!(&stream[..len], naive::split(&page, &base));
            }
            _ => {}
        }
        prop_assert_eq!(naive::decode(&payload, ORDINAL, &base), Some(page));
    }

    /// Change streams of arbitrary bytes, with the checksum of what they mean if they mean anything.
    #[test]
    fn streams_of_any_bytes_mean_the_same(
        base in texture(),
        stream in prop::collection::vec(any::<u8>(), 0..200),
        small_skips in any::<bool>(),
    ) {
        let stream: Vec<u8> = stream
            .into_iter()
            .map(|byte| if small_skips { byte & 0xf3 } else { byte })
            .collect();
        let body = [&[0x09, 0x0a, 0x0b], &stream[..]].concat();
        agree(&base, 2, &body)?;
    }

    #[test]
    fn split_streams_of_any_bytes_mean_the_same(
        base in texture(),
        tokens in prop::collection::vec(0..0x40u8, 0..100),
        literals in prop::collection::vec(any::<u8>(), 0..300),
        slip in -2..3i32,
    ) {
        let wanted: usize = tokens.iter().map(|t| usize::from(t >> 4) + 1).sum();
        let wanted = wanted.saturating_add_signed(slip as isize);
        let literals: Vec<u8> = literals.into_iter().cycle().take(wanted).collect();
        let stream = [&(tokens.len() as u16).to_le_bytes()[..], &tokens, &literals].concat();
        let mut compressed = vec![0; 8192];
        let len = zstd_safe::compress(&mut compressed[..], &stream, 1).unwrap();
        let body = [&[0x09, 0x0a, 0x0b], &compressed[4..len]].concat();
        agree(&base, 3, &body)?;
    }

    #[test]
    fn mutated_payloads_get_the_same_verdict(
        base in texture(),
        changes in changes(),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let page = changed(&base, &changes);
        let mut bench = Bench::new();
        let bases = [Base { ordinal: ORDINAL, page: &base }];
        let Some(mut payload) = bench.payload(&page, &bases) else { return Ok(()) };
        *at.get_mut(&mut payload) = byte;
        let result = bench.decode(&payload, ORDINAL, &base);
        let naive = naive::decode(&payload, ORDINAL, &base);
        prop_assert_eq!(result.is_ok(), naive.is_some());
        if let Some(decoded) = naive {
            prop_assert_eq!(&bench.page, &decoded);
            prop_assert_eq!(&decoded, &page);
        }
    }
}

/// Both implementations give the same page for this body, or both refuse it.
fn agree(base: &agentzip_codec::Page, format: u16, body: &[u8]) -> Result<(), TestCaseError> {
    let mut bench = Bench::new();
    // With a wrong checksum the codec says whether it got as far as checking it.
    let probe = frame(format, 0, body);
    let parsed = match bench.decode(&probe, ORDINAL, base) {
        Ok(_) | Err(agentzip_codec::DecodeError::Checksum) => Some(bench.page.clone()),
        Err(_) => None,
    };
    match parsed {
        Some(page) => {
            let payload = frame(format, naive::crc32c(&page[..]), body);
            prop_assert_eq!(naive::decode(&payload, ORDINAL, base), Some(page));
            prop_assert!(bench.decode(&payload, ORDINAL, base).is_ok());
        }
        None => prop_assert_eq!(naive::decode(&probe, ORDINAL, base), None),
    }
    Ok(())
}
