// SPDX-License-Identifier: GPL-2.0 OR MIT

//! zstd blocks: they come back, depend on nothing but the arguments, and may be any bytes.

mod common;

use agentzip_codec::host::Host;
use agentzip_codec::zstd::{content, MAX_CONTENT, MAX_PREFIX};
use agentzip_codec::{Backend, Level, Literals, Page, PAGE_SIZE};
use common::naive;
use common::pages::{changed, changes, from_words, random, texture};
use proptest::prelude::*;

/// How zstd's own dictionaries begin.
const MAGIC: [u8; 4] = [0x37, 0xa4, 0x30, 0xec];

/// Level, and what becomes of literals.
type Effort = (Level, Literals);

/// Compresses with all the room that a block can need.
fn compress(host: &mut Host, effort: Effort, prefix: &[u8], src: &[u8]) -> Option<Vec<u8>> {
    let mut block = vec![0; MAX_CONTENT];
    let len = host.compress(effort.0, effort.1, prefix, src, &mut block)?;
    block.truncate(len);
    Some(block)
}

fn decompress(host: &mut Host, prefix: &[u8], block: &[u8]) -> Option<Vec<u8>> {
    let mut out = vec![0; MAX_CONTENT];
    let len = host.decompress(prefix, block, &mut out)?;
    out.truncate(len);
    Some(out)
}

/// A prefix of up to a page, with a page that resembles it.
fn related() -> impl Strategy<Value = (Vec<u8>, Box<Page>)> {
    let len = prop_oneof![Just(PAGE_SIZE), 0..PAGE_SIZE];
    (texture(), changes(), len, any::<bool>()).prop_map(|(base, changes, len, magic)| {
        let page = changed(&base, &changes);
        let mut prefix = base[..len].to_vec();
        if magic && prefix.len() >= MAGIC.len() {
            prefix[..MAGIC.len()].copy_from_slice(&MAGIC);
        }
        (prefix, page)
    })
}

fn effort() -> impl Strategy<Value = Effort> {
    let literals = prop::sample::select(&Literals::ALL[..]);
    (prop::sample::select(&Level::ALL[..]), literals)
}

fn efforts() -> impl Iterator<Item = Effort> {
    let both = |level| Literals::ALL.map(|literals| (level, literals));
    Level::ALL.into_iter().flat_map(both)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn blocks_come_back(effort in effort(), (prefix, page) in related()) {
        let mut host = Host::new();
        for prefix in [&prefix[..], &[]] {
            let Some(block) = compress(&mut host, effort, prefix, &page[..]) else { continue };
            prop_assert!(block.len() < PAGE_SIZE);
            let mut out = [0; PAGE_SIZE];
            prop_assert_eq!(host.decompress(prefix, &block, &mut out), Some(PAGE_SIZE));
            prop_assert!(out == *page);
            prop_assert_eq!(naive::unzstd(&block, content(prefix)), Some(page.to_vec()));
            // Too little room.
            prop_assert_eq!(host.decompress(prefix, &block, &mut out[1..]), None);
        }
    }

    /// Neither what the contexts did before nor where the arguments lie in memory counts.
    #[test]
    fn blocks_depend_on_the_arguments_alone(
        earlier in prop::collection::vec((effort(), related()), 0..6),
        effort in effort(),
        (prefix, page) in related(),
    ) {
        let wanted = compress(&mut Host::new(), effort, &prefix, &page[..]);
        let mut host = Host::new();
        for (effort, (prefix, page)) in earlier {
            compress(&mut host, effort, &prefix, &page[..]);
        }
        prop_assert_eq!(&compress(&mut host, effort, &prefix, &page[..]), &wanted);
        // Side by side, in both orders.
        let joined = [&prefix, &page[..], &prefix].concat();
        let at = prefix.len();
        let (before, after) = (&joined[..at], &joined[at + PAGE_SIZE..]);
        let src = &joined[at..at + PAGE_SIZE];
        prop_assert_eq!(&compress(&mut host, effort, before, src), &wanted);
        prop_assert_eq!(&compress(&mut host, effort, after, src), &wanted);
    }

    /// Any bytes, or a damaged block, give an error or some content, and do no harm to what follows.
    #[test]
    fn damaged_blocks_do_no_harm(
        effort in effort(),
        (prefix, page) in related(),
        noise in prop::collection::vec(any::<u8>(), 0..300),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..5),
        cut in any::<prop::sample::Index>(),
        room in 0..=MAX_CONTENT,
    ) {
        let mut host = Host::new();
        let Some(good) = compress(&mut host, effort, &prefix, &page[..]) else { return Ok(()) };
        let mut bad = good.clone();
        for (at, byte) in damage {
            *at.get_mut(&mut bad) = byte;
        }
        // What must not be written lies after the room.
        let mut out = vec![0xa5; MAX_CONTENT + 64];
        for prefix in [&prefix[..], &[]] {
            for block in [&noise, &bad, &good, &good[..cut.index(good.len())]] {
                let len = host.decompress(prefix, block, &mut out[..room]);
                prop_assert!(len.is_none_or(|len| 0 < len && len <= room));
                prop_assert!(out[room..].iter().all(|&byte| byte == 0xa5));
            }
        }
        prop_assert_eq!(decompress(&mut host, &prefix, &good), Some(page.to_vec()));
    }
}

#[test]
fn a_prefix_pays() {
    let mut host = Host::new();
    let mut next = random(7);
    let base = from_words(|_| next());
    let page = changed(&base, &(0..300).map(|n| (n, 1)).collect::<Vec<_>>());
    for effort in efforts() {
        assert_eq!(compress(&mut host, effort, &[], &page[..]), None);
        let block = compress(&mut host, effort, &base[..], &page[..]).unwrap();
        assert!(block.len() < PAGE_SIZE / 2, "{effort:?}: {}", block.len());
        assert!(decompress(&mut host, &base[..], &block).is_some_and(|out| out == page[..]));
        // The wrong one, or none.
        let other = from_words(|_| next());
        assert!(decompress(&mut host, &other[..], &block).is_none_or(|out| out != page[..]));
        assert!(decompress(&mut host, &[], &block).is_none());
    }
}

#[test]
fn more_effort_makes_smaller_blocks() {
    let mut host = Host::new();
    let words = [" the", " page", " of", " a", " swap", " slot", "s"];
    let mut sum = |effort| -> usize {
        let mut next = random(3);
        let texts = (0..40).map(|_| {
            let text = (0..PAGE_SIZE).map(|_| words[next() as usize % words.len()]);
            text.collect::<String>()
        });
        let blocks =
            texts.map(|text| compress(&mut host, effort, &[], &text.as_bytes()[..PAGE_SIZE]));
        blocks.map(|block| block.unwrap().len()).sum()
    };
    for literals in Literals::ALL {
        assert!(sum((Level::Best, literals)) < sum((Level::Fast, literals)));
    }
}

#[test]
fn what_does_not_shrink_is_refused() {
    let mut host = Host::new();
    let mut next = random(2);
    let noise = from_words(|_| next());
    for effort in efforts() {
        for len in [0, 1, 7, 100, PAGE_SIZE] {
            assert_eq!(compress(&mut host, effort, &[], &noise[..len]), None);
        }
    }
}

#[test]
fn what_is_too_long_is_refused() {
    let mut host = Host::new();
    let long = vec![0; MAX_PREFIX.max(MAX_CONTENT) + 1];
    for effort in efforts() {
        let most = match effort.0 {
            Level::Cheap => PAGE_SIZE,
            Level::Fast | Level::Best => MAX_CONTENT,
        };
        assert!(compress(&mut host, effort, &long[..MAX_PREFIX], &long[..most]).is_some());
        assert_eq!(compress(&mut host, effort, &[], &long[..=most]), None);
        let prefix = &long[..=MAX_PREFIX];
        assert_eq!(
            compress(&mut host, effort, prefix, &long[..PAGE_SIZE]),
            None
        );
        assert_eq!(
            compress(&mut host, effort, &[], &long[..=MAX_CONTENT]),
            None
        );
    }
}
