// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Every page comes back, in every representation, and the shortest payload is chosen.

mod common;

use agentzip_codec::{
    decode_fill, decode_ref, header, Base, BaseId, Encoded, Level, Limits, Page, Representation,
    MAX_BASES, MAX_PAYLOAD, PAGE_SIZE, UNIT,
};
use common::pages::{changed, changes, from_words, moved, random, texture};
use common::{naive, reference, template, Bench, LIMITS};
use proptest::prelude::*;

proptest! {
    #[test]
    fn any_page_comes_back(
        base in texture(),
        other in texture(),
        changes in changes(),
        shift in 0..PAGE_SIZE,
        number in 0..MAX_BASES,
        level in prop::sample::select(&Level::ALL[..]),
    ) {
        let page = changed(&moved(&base, shift), &changes);
        let mut bench = Bench::new();
        let bases = [template(number, &other), reference(number, &base)];
        match bench.encode_with(&page, &bases, Limits::at(level)) {
            Some(Encoded::Fill(word)) => {
                decode_fill(word, &mut bench.page);
                prop_assert_eq!(&bench.page, &page);
            }
            Some(Encoded::Ref { base, crc }) => {
                let base = bases.iter().find(|known| known.id == base).unwrap();
                decode_ref(base.page, crc, 32, &mut bench.backend, &mut bench.page).unwrap();
                prop_assert_eq!(&bench.page, &page);
                prop_assert_eq!(crc, naive::crc32c(&page[..]));
            }
            Some(Encoded::Payload { representation, len }) => {
                prop_assert!(len % UNIT == 0 && len <= MAX_PAYLOAD);
                let payload = bench.out[..len].to_vec();
                let head = header(&payload[..UNIT]).unwrap();
                prop_assert_eq!(head.representation, representation);
                prop_assert_eq!(head.crc, naive::crc32c(&page[..]));
                let padding = &payload[len - usize::from(head.padding)..];
                prop_assert!(padding.iter().all(|&byte| byte == 0));
            }
            None => return Ok(()),
        }
        // In a payload, too, whatever it is.
        let Some(payload) = bench.payload(&page, &bases) else { return Ok(()) };
        bench.decode(&payload, &bases).unwrap();
        prop_assert_eq!(&bench.page, &page);
    }

    #[test]
    fn pages_without_a_base_come_back(page in texture()) {
        let mut bench = Bench::new();
        if let Some(payload) = bench.payload(&page, &[]) {
            bench.decode(&payload, &[]).unwrap();
            prop_assert_eq!(&bench.page, &page);
        }
    }

    #[test]
    fn the_limits_hold(
        base in texture(),
        changes in changes(),
        max_payload in 0..PAGE_SIZE,
        max_distance in 0..PAGE_SIZE,
        delta_zstd in any::<bool>(),
        prefix in any::<bool>(),
    ) {
        let page = changed(&base, &changes);
        let bases = [template(1, &base)];
        let limits = Limits { max_payload, max_distance, delta_zstd, prefix, ..LIMITS };
        let mut bench = Bench::new();
        if let Some(Encoded::Payload { representation, len }) =
            bench.encode_with(&page, &bases, limits)
        {
            prop_assert!(len <= max_payload);
            match representation {
                Representation::Delta => prop_assert!(len <= max_distance),
                Representation::DeltaZstd => prop_assert!(delta_zstd && len <= max_distance),
                Representation::Prefix => prop_assert!(prefix && len <= max_distance),
                _ => {}
            }
            let payload = bench.out[..len].to_vec();
            bench.decode(&payload, &bases).unwrap();
            prop_assert_eq!(&bench.page, &page);
        }
    }
}

/// The representation that is chosen for a page.
fn chosen(bench: &mut Bench, page: &Page, bases: &[Base<'_>]) -> Option<Representation> {
    match bench.encode(page, bases)? {
        Encoded::Payload { representation, .. } => Some(representation),
        Encoded::Fill(_) => Some(Representation::Fill),
        Encoded::Ref { .. } => Some(Representation::Ref),
    }
}

/// A page of pointers.
fn pointers() -> Box<Page> {
    let mut next = random(1);
    from_words(|_| 0x7f00_0000_0000 | next() & 0xffff_ffff)
}

#[test]
fn every_representation_occurs() {
    let mut bench = Bench::new();
    let base = pointers();
    for base in [template(9, &base), reference(9, &base)] {
        let mut chosen = |page: &Page| chosen(&mut bench, page, &[base]);
        assert_eq!(chosen(&from_words(|_| 77)), Some(Representation::Fill));
        assert_eq!(chosen(base.page), Some(Representation::Ref));
        let few = changed(base.page, &[(3, 1), (400, 2)]);
        assert_eq!(chosen(&few), Some(Representation::Delta));
        let many: Vec<_> = (0..250).map(|n| (2 * n, 0xffff)).collect();
        let many = changed(base.page, &many);
        assert_eq!(chosen(&many), Some(Representation::DeltaZstd));
        let mut shifted = Box::new(*base.page);
        shifted[1024..].rotate_left(8);
        assert_eq!(chosen(&shifted), Some(Representation::Prefix));
        let numbers = from_words(|n| (n % 61) as u64);
        assert_eq!(chosen(&numbers), Some(Representation::Zstd));
        let mut next = random(2);
        assert_eq!(chosen(&from_words(|_| next())), None);
    }
}

#[test]
fn small_changes_make_small_payloads() {
    let mut bench = Bench::new();
    let base = from_words(|n| 0x7f00_0000_0000 + n as u64 * 48);
    let bases = [template(0, &base)];
    // An equal page: header and base.
    assert_eq!(bench.payload(&base, &bases).unwrap().len(), UNIT);
    // Three reference counts nearby: three tokens and a byte each.
    let page = changed(&base, &[(10, 1), (12, 1), (20, 1)]);
    assert_eq!(bench.payload(&page, &bases).unwrap().len(), 2 * UNIT);
    // One that is far away takes a longer token.
    let page = changed(&base, &[(10, 1), (12, 1), (20, 1), (300, 1)]);
    assert_eq!(bench.payload(&page, &bases).unwrap().len(), 3 * UNIT);
}

#[test]
fn the_nearest_base_is_taken() {
    let mut bench = Bench::new();
    let page = from_words(|n| n as u64);
    let pages: Vec<_> = [5, 3, 1, 2, 4]
        .map(|words| changed(&page, &(0..words).map(|n| (n, 1)).collect::<Vec<_>>()))
        .into();
    let bases: Vec<_> = (0..)
        .zip(&pages)
        .map(|(number, page)| template(number, page))
        .collect();
    let payload = bench.payload(&page, &bases).unwrap();
    assert_eq!(header(&payload).unwrap().base, Some(BaseId::Template(2)));
}

#[test]
fn a_base_out_of_range_is_ignored() {
    let mut bench = Bench::new();
    let page = from_words(|n| n as u64);
    for base in [template(MAX_BASES, &page), reference(u32::MAX, &page)] {
        let representation = chosen(&mut bench, &page, &[base]);
        assert_eq!(representation, Some(Representation::Zstd));
    }
}

/// A base that begins like a zstd dictionary is content like any other.
#[test]
fn a_base_like_a_dictionary_is_no_dictionary() {
    let mut bench = Bench::new();
    let mut base = pointers();
    base[..4].copy_from_slice(&[0x37, 0xa4, 0x30, 0xec]);
    let bases = [template(1, &base)];
    let mut page = base.clone();
    page[1024..].rotate_left(8);
    let payload = bench.payload(&page, &bases).unwrap();
    assert_eq!(bench.decode(&payload, &bases), Ok(Representation::Prefix));
    assert_eq!(bench.page, page);
    assert_eq!(naive::decode(&payload, &bases), Some(page));
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
