// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The codec against a naive second implementation: same bytes out, same verdict on any bytes in.

mod common;

use agentzip_codec::{header, DecodeError, Page, Representation, PAGE_SIZE, UNIT};
use common::pages::{changed, changes, moved, texture};
use common::{naive, reference, template, Bench};
use proptest::prelude::*;

const NUMBER: u32 = 0x0b_0a09;

/// Format numbers of the formats whose base is a template page.
const DELTA: u8 = 9;
const DELTA_ZSTD: u8 = 14;

/// Puts a header before a body, the base's number included, and padding after.
fn frame(format: u8, crc: u32, body: &[u8]) -> Vec<u8> {
    let mut payload = crc.to_le_bytes().to_vec();
    payload.push(0);
    payload.extend(body);
    let len = payload.len();
    payload.resize(len.next_multiple_of(UNIT), 0);
    payload[4] = format * 8 + (payload.len() - len) as u8;
    payload
}

/// A payload without header, base and padding.
fn body(payload: &[u8]) -> &[u8] {
    &payload[UNIT..payload.len() - usize::from(header(payload).unwrap().padding)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn payloads_mean_the_same(
        base in texture(),
        changes in changes(),
        shift in 0..PAGE_SIZE,
        of_template in any::<bool>(),
    ) {
        let page = changed(&moved(&base, shift), &changes);
        let mut bench = Bench::new();
        let bases = [match of_template {
            true => template(NUMBER, &base),
            false => reference(NUMBER, &base),
        }];
        let Some(payload) = bench.payload(&page, &bases) else { return Ok(()) };
        match header(&payload).unwrap().representation {
            Representation::Delta => {
                prop_assert_eq!(body(&payload), naive::joined(&page, &base));
            }
            Representation::DeltaZstd => {
                let stream = naive::unzstd(body(&payload), &[]).unwrap();
                prop_assert_eq!(stream, naive::split(&page, &base));
            }
            _ => {}
        }
        prop_assert_eq!(naive::decode(&payload, &bases), Some(page));
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
        agree(&base, DELTA, &body)?;
    }

    #[test]
    fn split_streams_of_any_bytes_mean_the_same(
        base in texture(),
        tokens in prop::collection::vec(0..0x40u8, 20..100),
        literal in any::<u8>(),
        slip in -2..3i32,
    ) {
        let wanted: usize = tokens.iter().map(|t| usize::from(t >> 4) + 1).sum();
        let literals = vec![literal; wanted.saturating_add_signed(slip as isize)];
        let stream = [&(tokens.len() as u16).to_le_bytes()[..], &tokens, &literals].concat();
        let block = naive::zstd(&stream);
        let body = [&[0x09, 0x0a, 0x0b], &block[..]].concat();
        agree(&base, DELTA_ZSTD, &body)?;
    }

    #[test]
    fn mutated_payloads_get_the_same_verdict(
        base in texture(),
        changes in changes(),
        shift in 0..PAGE_SIZE,
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let page = changed(&moved(&base, shift), &changes);
        let mut bench = Bench::new();
        let bases = [template(NUMBER, &base), reference(NUMBER, &base)];
        let Some(mut payload) = bench.payload(&page, &bases) else { return Ok(()) };
        *at.get_mut(&mut payload) = byte;
        let result = bench.decode(&payload, &bases);
        let naive = naive::decode(&payload, &bases);
        prop_assert_eq!(result.is_ok(), naive.is_some());
        if let Some(decoded) = naive {
            prop_assert_eq!(&bench.page, &decoded);
            prop_assert_eq!(&decoded, &page);
        }
    }
}

/// Both implementations give the same page for this body, or both refuse it.
fn agree(base: &Page, format: u8, body: &[u8]) -> Result<(), TestCaseError> {
    let mut bench = Bench::new();
    let bases = [template(NUMBER, base)];
    // With a wrong checksum the codec says whether it got as far as checking it.
    let probe = frame(format, 0, body);
    let parsed = match bench.decode(&probe, &bases) {
        Ok(_) | Err(DecodeError::Checksum) => Some(bench.page.clone()),
        Err(_) => None,
    };
    match parsed {
        Some(page) => {
            let payload = frame(format, naive::crc32c(&page[..]), body);
            prop_assert_eq!(naive::decode(&payload, &bases), Some(page));
            prop_assert!(bench.decode(&payload, &bases).is_ok());
        }
        None => prop_assert_eq!(naive::decode(&probe, &bases), None),
    }
    Ok(())
}
