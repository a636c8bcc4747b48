// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The encoder step by step: whatever is tried in whatever order, its words about the payload are
//! true, and the payload is the page.

mod common;

use agentzip_codec::{
    decode, header, BaseId, Encoder, Level, Limits, Literals, Page, Representation, Tried,
    HEADER_LEN, MAX_PAYLOAD, PAGE_SIZE, UNIT,
};
use common::pages::{changed, changes, from_words, moved, random, texture};
use common::{naive, reference, template, Bench, LIMITS};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Fill,
    Bases(Vec<usize>),
    Similar(usize),
    Zstd,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        Just(Step::Fill),
        prop::collection::vec(0..3usize, 0..3).prop_map(Step::Bases),
        (0..3usize).prop_map(Step::Similar),
        Just(Step::Zstd),
    ];
    prop::collection::vec(step, 0..5)
}

/// Length with padding of what the encoder has; the payload is decoded and compared.
fn checked(encoder: &Encoder<'_>, page: &Page, pages: &[Box<Page>; 3], bench: &mut Bench) -> usize {
    let Some(len) = encoder.finish(&mut bench.out) else {
        assert!(encoder.is_empty());
        assert_eq!(encoder.len(), None);
        assert_eq!(encoder.representation(), None);
        assert_eq!(encoder.base(), None);
        assert!(!encoder.is_final());
        return usize::MAX;
    };
    assert_eq!(encoder.len().unwrap().next_multiple_of(UNIT), len);
    let payload = bench.out[..len].to_vec();
    let head = header(&payload).unwrap();
    assert_eq!(head.crc, encoder.crc());
    assert_eq!(head.base, encoder.base());
    let base = head.base.map(|id| &*pages[id.number() as usize]);
    let representation = decode(
        &payload,
        base,
        &mut bench.scratch,
        &mut bench.backend,
        &mut bench.page,
    );
    assert_eq!(representation.ok(), encoder.representation());
    assert_eq!(&*bench.page, page);
    len
}

proptest! {
    #[test]
    fn steps_in_any_order(
        base in texture(),
        other in texture(),
        changes in changes(),
        shift in 0..PAGE_SIZE,
        steps in steps(),
    ) {
        let page = changed(&base, &changes);
        let pages = [base.clone(), moved(&base, shift), other];
        let bases = [template(0, &pages[0]), reference(1, &pages[1]), reference(2, &pages[2])];
        let mut bench = Bench::new();
        let mut encoder = Encoder::new(&page, LIMITS, &mut bench.backend);
        prop_assert_eq!(encoder.crc(), naive::crc32c(&page[..]));
        let mut before = checked(&encoder, &page, &pages, &mut bench);
        for step in steps {
            let Bench { backend, scratch, out, .. } = &mut bench;
            let tried = match step {
                Step::Fill => {
                    let kept = encoder.try_fill(out);
                    prop_assert!(encoder.fill().is_some() || !kept);
                    None
                }
                Step::Bases(numbers) => {
                    let bases: Vec<_> = numbers.iter().map(|&n| bases[n]).collect();
                    let equal = bases.iter().find(|base| base.page == &*page);
                    let tried = encoder.try_bases(&bases, scratch, backend, out);
                    match equal {
                        Some(base) => prop_assert_eq!(tried, Tried::Equal(base.id)),
                        None => prop_assert!(!matches!(tried, Tried::Equal(_))),
                    }
                    Some(tried)
                }
                Step::Similar(n) => Some(encoder.try_similar(&bases[n], scratch, backend, out)),
                Step::Zstd => Some(encoder.try_zstd(scratch, backend, out)),
            };
            let after = checked(&encoder, &page, &pages, &mut bench);
            prop_assert!(after <= before);
            match tried {
                Some(Tried::Equal(_)) => prop_assert!(after <= 2 * UNIT),
                Some(Tried::Improved(saved)) => match before {
                    usize::MAX => prop_assert_eq!(saved, usize::MAX),
                    _ => prop_assert_eq!(saved, before - after),
                },
                Some(Tried::No) => prop_assert_eq!(after, before),
                None => {}
            }
            before = after;
        }
    }
}

/// A copy that works in another buffer leaves the payload alone.
#[test]
fn a_copy_tries_aside() {
    let mut next = random(3);
    let page = from_words(|_| next() & 0xffff);
    let base = changed(&page, &[(1, 1)]);
    let Bench {
        mut backend,
        mut scratch,
        mut out,
        page: mut decoded,
    } = Bench::new();
    let mut encoder = Encoder::new(&page, LIMITS, &mut backend);
    encoder.try_zstd(&mut scratch, &mut backend, &mut out);
    let long = encoder.finish(&mut out).unwrap();
    let mut aside = Box::new([0; MAX_PAYLOAD]);
    let mut copy = encoder;
    let base = template(0, &base);
    let tried = copy.try_bases(&[base], &mut scratch, &mut backend, &mut aside);
    let short = copy.finish(&mut aside).unwrap();
    assert_eq!(tried, Tried::Improved(long - short));
    for (payload, base) in [(&out[..long], None), (&aside[..short], Some(base.page))] {
        decode(payload, base, &mut scratch, &mut backend, &mut decoded).unwrap();
        assert_eq!(decoded, page);
    }
    assert_eq!(encoder.representation(), Some(Representation::Zstd));
    assert_eq!(copy.base(), Some(BaseId::Template(0)));
}

/// Counts what is asked of it.
struct Counting {
    inner: agentzip_codec::host::Host,
    zstd: usize,
}

impl agentzip_codec::Backend for Counting {
    type Dictionary = <agentzip_codec::host::Host as agentzip_codec::Backend>::Dictionary;

    fn compress(
        &mut self,
        level: Level,
        literals: Literals,
        prefix: &[u8],
        src: &[u8],
        dst: &mut [u8],
    ) -> Option<usize> {
        self.zstd += 1;
        self.inner.compress(level, literals, prefix, src, dst)
    }

    fn compress_with(
        &mut self,
        dictionary: &Self::Dictionary,
        literals: Literals,
        src: &[u8],
        dst: &mut [u8],
    ) -> Option<usize> {
        self.zstd += 1;
        self.inner.compress_with(dictionary, literals, src, dst)
    }

    fn decompress(&mut self, prefix: &[u8], src: &[u8], dst: &mut [u8]) -> Option<usize> {
        self.inner.decompress(prefix, src, dst)
    }

    fn decompress_with(
        &mut self,
        dictionary: &Self::Dictionary,
        src: &[u8],
        dst: &mut [u8],
    ) -> Option<usize> {
        self.inner.decompress_with(dictionary, src, dst)
    }

    fn crc32c(&mut self, data: &[u8]) -> u32 {
        self.inner.crc32c(data)
    }
}

/// What is cheap stays cheap: how often zstd runs for one page.
#[test]
fn a_final_delta_skips_zstd() {
    let mut next = random(4);
    let base = from_words(|_| 0x7f00_0000_0000 | next() & 0xffff_ffff);
    let runs = |changes: &[(usize, u64)], limits: Limits| {
        let page = changed(&base, changes);
        let mut bench = Bench::new();
        let mut backend = Counting {
            inner: agentzip_codec::host::Host::new(),
            zstd: 0,
        };
        let bases = [template(1, &base)];
        let Bench { scratch, out, .. } = &mut bench;
        agentzip_codec::encode(&page, &bases, limits, scratch, &mut backend, out).unwrap();
        backend.zstd
    };
    let few: Vec<_> = (0..60).map(|n| (8 * n, 1)).collect();
    assert_eq!(runs(&few, LIMITS), 0);
    // A compressed delta that is short enough.
    let more: Vec<_> = (0..160).map(|n| (3 * n, 1)).collect();
    assert_eq!(runs(&more, LIMITS), 1);
    // One that is not: the base as prefix, too.
    let many: Vec<_> = (0..240).map(|n| (2 * n, u64::MAX << 8)).collect();
    assert_eq!(runs(&many, LIMITS), 2);
    // A base without use: the page by itself.
    let all: Vec<_> = (0..512).map(|n| (n, 0xff_ffff)).collect();
    assert_eq!(runs(&all, LIMITS), 1);
    // In a hurry, a delta is enough.
    let hurry = Limits {
        delta_zstd: false,
        prefix: false,
        ..LIMITS
    };
    assert_eq!(runs(&more, hurry), 0);
}

/// A base whose content lies elsewhere in the page is of use only to who says so.
#[test]
fn similar_pages_need_not_be_in_place() {
    let mut next = random(6);
    let base = from_words(|_| next());
    let page = moved(&base, 40);
    let bases = [reference(1, &base)];
    let Bench {
        mut backend,
        mut scratch,
        mut out,
        ..
    } = Bench::new();
    let mut encoder = Encoder::new(&page, LIMITS, &mut backend);
    let tried = encoder.try_bases(&bases, &mut scratch, &mut backend, &mut out);
    assert_eq!(tried, Tried::No);
    let tried = encoder.try_similar(&bases[0], &mut scratch, &mut backend, &mut out);
    assert_eq!(tried, Tried::Improved(usize::MAX));
    assert_eq!(encoder.representation(), Some(Representation::Prefix));
    assert!(encoder.len().unwrap() < 64);
}

/// Literals are compressed where that makes the block much shorter, and left plain where it does not.
#[test]
fn literals_are_compressed_where_it_pays() {
    let mut next = random(11);
    // Half a page that only codes make shorter, twice; and the same of numbers.
    let letters = |next: &mut dyn FnMut() -> u64| {
        let mut page = [0; PAGE_SIZE];
        for at in 0..PAGE_SIZE / 2 {
            page[at] = b'a' + (next() % 16) as u8;
            page[at + PAGE_SIZE / 2] = page[at];
        }
        page
    };
    let numbers = |next: &mut dyn FnMut() -> u64| {
        let mut page = [0; PAGE_SIZE];
        for word in page.chunks_exact_mut(16) {
            word[..8].copy_from_slice(&next().to_le_bytes());
        }
        page
    };
    for (page, kind) in [(letters(&mut next), 2), (numbers(&mut next), 0)] {
        for level in [Level::Cheap, Level::Best] {
            let mut bench = Bench::new();
            let mut encoder = Encoder::new(&page, Limits::at(level), &mut bench.backend);
            encoder.try_zstd(&mut bench.scratch, &mut bench.backend, &mut bench.out);
            let len = encoder.finish(&mut bench.out).unwrap();
            // The first two bits of a block of zstd say how its literals are encoded.
            let found = bench.out[HEADER_LEN] & 3;
            let wanted = if level == Level::Cheap { 0 } else { kind };
            assert_eq!(found, wanted, "{level:?}, {len} bytes");
        }
    }
}
