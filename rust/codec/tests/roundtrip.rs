// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Every page comes back, in every representation, and the choice among them is by cost.

mod common;

use agentzip_codec::{
    decode_fill, decode_ref, encode_fill, header, Base, Encoded, Representation, HEADER_LEN,
    MAX_ORDINAL, MAX_PAYLOAD, PAGE_SIZE,
};
use common::pages::{changed, changes, from_words, random, texture};
use common::{naive, Bench};
use proptest::prelude::*;

proptest! {
    #[test]
    fn any_page_comes_back(
        base in texture(),
        other in texture(),
        changes in changes(),
        ordinal in 0..MAX_ORDINAL,
    ) {
        let page = changed(&base, &changes);
        let mut bench = Bench::new();
        let bases = [
            Base { ordinal: ordinal ^ 1, page: &other },
            Base { ordinal, page: &base },
        ];
        let pages = |wanted| match wanted {
            _ if wanted == ordinal => Some(&*base),
            _ if wanted == ordinal ^ 1 => Some(&*other),
            _ => None,
        };
        match bench.encode(&page, &bases) {
            Some(Encoded::Fill(word)) => {
                decode_fill(word, &mut bench.page);
                prop_assert_eq!(&bench.page, &page);
                let len = encode_fill(&page, &mut bench.backend, &mut bench.out).unwrap();
                let payload = bench.out[..len].to_vec();
                prop_assert_eq!(bench.decode(&payload, 0, &base), Ok(Representation::Fill));
            }
            Some(Encoded::Ref { ordinal, crc }) => {
                let base = pages(ordinal).unwrap();
                decode_ref(base, crc, 32, &mut bench.backend, &mut bench.page).unwrap();
                prop_assert_eq!(crc, naive::crc32c(&page[..]));
            }
            Some(Encoded::Payload { representation, len }) => {
                let mut payload = bench.out[..len].to_vec();
                let head = header(&payload[..HEADER_LEN]).unwrap();
                prop_assert_eq!(usize::from(head.len), len);
                prop_assert_eq!(head.representation, representation);
                prop_assert_eq!(head.crc, naive::crc32c(&page[..]));
                // Allocators round up.
                payload.extend([0xaa; 13]);
                let Bench { scratch, backend, page, .. } = &mut bench;
                let result = agentzip_codec::decode(&payload, pages, scratch, backend, page);
                prop_assert_eq!(result, Ok(representation));
            }
            None => return Ok(()),
        }
        prop_assert_eq!(&bench.page, &page);
    }

    #[test]
    fn pages_without_a_base_come_back(page in texture()) {
        let mut bench = Bench::new();
        if let Some(payload) = bench.payload(&page, &[]) {
            bench.decode(&payload, 0, &[0; PAGE_SIZE]).unwrap();
            prop_assert_eq!(&bench.page, &page);
        }
    }

    #[test]
    fn the_limit_holds(base in texture(), changes in changes(), limit in 0..PAGE_SIZE) {
        let page = changed(&base, &changes);
        let mut bench = Bench::new();
        let bases = [Base { ordinal: 1, page: &base }];
        let cost = |len: usize| len.next_multiple_of(16) + 16;
        match bench.encode_with(&page, &bases, &cost, limit) {
            Some(Encoded::Payload { len, .. }) => prop_assert!(cost(len) <= limit),
            Some(_) => {}
            None => {
                if let Some(Encoded::Payload { len, .. }) =
                    bench.encode_with(&page, &bases, &cost, usize::MAX)
                {
                    prop_assert!(cost(len) > limit);
                }
            }
        }
    }
}

#[test]
fn every_representation_occurs() {
    let mut bench = Bench::new();
    let mut next = random(1);
    let base = from_words(|_| 0x7f00_0000_0000 | next() & 0xffff_ffff);
    let bases = [Base {
        ordinal: 9,
        page: &base,
    }];
    let mut chosen = |page: &agentzip_codec::Page| match bench.encode(page, &bases) {
        Some(Encoded::Payload { representation, .. }) => Some(representation),
        Some(Encoded::Fill(_)) => Some(Representation::Fill),
        Some(Encoded::Ref { .. }) => Some(Representation::Ref),
        None => None,
    };
    assert_eq!(chosen(&from_words(|_| 77)), Some(Representation::Fill));
    assert_eq!(chosen(&base), Some(Representation::Ref));
    let few = changed(&base, &[(3, 1), (400, 2)]);
    assert_eq!(chosen(&few), Some(Representation::Delta));
    let many: Vec<_> = (0..250).map(|n| (2 * n, 0xffff)).collect();
    assert_eq!(
        chosen(&changed(&base, &many)),
        Some(Representation::DeltaZstd)
    );
    let numbers = from_words(|n| (n % 61) as u64);
    assert_eq!(chosen(&numbers), Some(Representation::Zstd));
    let mut next = random(2);
    assert_eq!(chosen(&from_words(|_| next())), None);
}

#[test]
fn small_changes_make_small_payloads() {
    let mut bench = Bench::new();
    let base = from_words(|n| 0x7f00_0000_0000 + n as u64 * 48);
    let bases = [Base {
        ordinal: 0,
        page: &base,
    }];
    // One reference count: header, ordinal, token, one byte.
    let page = changed(&base, &[(10, 1)]);
    assert_eq!(
        bench.payload(&page, &bases).unwrap().len(),
        HEADER_LEN + 3 + 1 + 1
    );
    // Two far apart.
    let page = changed(&base, &[(10, 1), (300, 1)]);
    assert_eq!(
        bench.payload(&page, &bases).unwrap().len(),
        HEADER_LEN + 3 + 2 + 3
    );
}

#[test]
fn the_nearest_base_is_taken() {
    let mut bench = Bench::new();
    let page = from_words(|n| n as u64);
    let bases: Vec<_> = [5, 3, 1, 2, 4]
        .map(|words| changed(&page, &(0..words).map(|n| (n, 1)).collect::<Vec<_>>()))
        .into();
    let bases: Vec<_> = (0..)
        .zip(&bases)
        .map(|(ordinal, page)| Base { ordinal, page })
        .collect();
    let payload = bench.payload(&page, &bases).unwrap();
    assert_eq!(payload[HEADER_LEN..HEADER_LEN + 3], [2, 0, 0]);
}

#[test]
fn a_base_out_of_range_is_ignored() {
    let mut bench = Bench::new();
    let page = from_words(|n| n as u64);
    let bases = [Base {
        ordinal: MAX_ORDINAL,
        page: &page,
    }];
    assert!(matches!(
        bench.encode(&page, &bases),
        Some(Encoded::Payload {
            representation: Representation::Zstd,
            ..
        })
    ));
}

#[test]
fn refs_check_as_many_bits_as_are_kept() {
    let mut bench = Bench::new();
    let page = from_words(|n| n as u64 * 3);
    let crc = naive::crc32c(&page[..]);
    for bits in 0..=32u32 {
        let kept = (u64::from(crc) & ((1 << bits) - 1)) as u32;
        let Bench {
            backend, page: out, ..
        } = &mut bench;
        decode_ref(&page, kept, bits, backend, out).unwrap();
        assert_eq!(out, &page);
        if bits > 0 {
            let wrong = kept ^ (1 << (bits - 1));
            decode_ref(&page, wrong, bits, backend, out).unwrap_err();
        }
    }
}

#[test]
fn encode_fill_refuses_other_pages() {
    let mut bench = Bench::new();
    let page = changed(&from_words(|_| 5), &[(200, 1)]);
    assert_eq!(encode_fill(&page, &mut bench.backend, &mut bench.out), None);
    const { assert!(MAX_PAYLOAD < PAGE_SIZE) }
}
