// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What the same pages take in other stores.
//!
//! Each is given the benefit of the doubt: zsmalloc without holes, no lists, no trees but the one
//! that holds the entries, and for the dictionary samples of the very pages that are stored.

pub mod codecs;
mod dictionary;
pub mod zsmalloc;

use std::collections::BTreeMap;
use std::thread;

use agentzip_codec::{Page, PAGE_SIZE};
use serde::Serialize;

use self::codecs::{lzo, Lz4, Zstd};
pub use self::dictionary::Dictionary;
use crate::account::ratio;
use crate::lab::Contents;

/// Threads that compress.
const THREADS: usize = 2;

/// zswap's `struct zswap_entry` has 56 bytes; a slab page holds 73 of them.
const ZSWAP_ENTRY: f64 = PAGE_SIZE as f64 / (PAGE_SIZE / 56) as f64;

/// The entry's place in zswap's tree: a node of 576 bytes holds 64, and 28 nodes are in a slab of 4
/// pages.
const ZSWAP_TREE: f64 = 4.0 * PAGE_SIZE as f64 / 28.0 / 64.0;

/// zram's `struct zram_table_entry`.
const ZRAM_ENTRY: f64 = 16.0;

/// How often each content is owned. All-zero pages are left out: the swap core keeps them to
/// itself.
pub struct Owned<'a> {
    pages: Vec<(&'a Page, u64)>,
}

impl<'a> Owned<'a> {
    /// Counts the pages with these numbers.
    pub fn new(contents: &'a dyn Contents, numbers: impl Iterator<Item = u32>) -> Self {
        let mut counts = BTreeMap::<u32, u64>::new();
        for number in numbers {
            *counts.entry(number).or_default() += 1;
        }
        let pages = counts
            .into_iter()
            .map(|(number, count)| (contents.page(number), count))
            .filter(|&(page, _)| *page != [0; PAGE_SIZE])
            .collect();
        Self { pages }
    }

    /// Distinct contents.
    pub fn distinct(&self) -> usize {
        self.pages.len()
    }

    /// Pages.
    pub fn count(&self) -> u64 {
        self.pages.iter().map(|&(_, count)| count).sum()
    }

    /// Calls `make` for each thread and what it returns for each distinct page; the results in the
    /// order of the pages.
    fn map<T: Send, F: FnMut(&Page) -> T>(&self, make: impl Fn() -> F + Sync) -> Vec<T> {
        let part = self.pages.len().div_ceil(THREADS).max(1);
        thread::scope(|scope| {
            let threads: Vec<_> = self
                .pages
                .chunks(part)
                .map(|pages| {
                    let make = &make;
                    scope.spawn(move || {
                        let mut f = make();
                        pages.iter().map(|&(page, _)| f(page)).collect::<Vec<T>>()
                    })
                })
                .collect();
            let results = threads.into_iter().map(|thread| thread.join());
            results.flat_map(|part| part.expect("no panic")).collect()
        })
    }
}

/// What a store makes of the pages.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Baseline {
    /// Name of the store, its compressor and what is special.
    pub name: &'static str,
    /// Bytes of compressed pages.
    pub content: u64,
    /// All bytes.
    pub bytes: u64,
    /// Owned bytes for each byte of the store.
    pub ratio: f64,
    /// All bytes but the content, per page.
    pub metadata_bytes_per_page: f64,
}

/// Name of the baseline that the targets refer to.
pub const ZSWAP_ZSTD: &str = "zswap zstd-3";

/// Lengths of a page by compressor.
struct Lengths {
    lzo: usize,
    lz4: usize,
    zstd: usize,
    /// Whether the page repeats a word.
    filled: bool,
}

/// Measures all baselines.
pub fn measure(owned: &Owned<'_>) -> (Vec<Baseline>, Dictionary) {
    let lengths = owned.map(|| {
        let (mut lz4, mut zstd) = (Lz4::default(), Zstd::default());
        move |page: &Page| Lengths {
            lzo: lzo(page),
            lz4: lz4.compress(page),
            zstd: zstd.compress(page).len(),
            filled: page.chunks_exact(8).all(|word| *word == page[..8]),
        }
    });
    let dictionary = Dictionary::best(owned);
    let with_dictionary = dictionary.lengths(owned);

    let sum = |name, shared: f64, cost: &dyn Fn(usize, u64) -> (f64, f64)| {
        let (mut content, mut bytes) = (0.0, shared);
        for (n, &(_, count)) in owned.pages.iter().enumerate() {
            let (payload, all) = cost(n, count);
            content += payload;
            bytes += all;
        }
        let pages = owned.count() as f64;
        Baseline {
            name,
            content: content as u64,
            bytes: bytes as u64,
            ratio: ratio(pages * PAGE_SIZE as f64, bytes),
            metadata_bytes_per_page: ratio(bytes - content, pages),
        }
    };
    let zswap = |name, len: &dyn Fn(&Lengths) -> usize| {
        sum(name, 0.0, &|n, count| {
            let len = zswap_len(len(&lengths[n]));
            times(count, len, ZSWAP_ENTRY + ZSWAP_TREE + zsmalloc::cost(len))
        })
    };
    let zram = |name, shared: f64, len: &dyn Fn(usize) -> usize| {
        sum(name, shared, &|n, count| match lengths[n].filled {
            true => times(count, 0, ZRAM_ENTRY),
            false => {
                let len = zram_len(len(n));
                times(count, len, ZRAM_ENTRY + zsmalloc::cost(len))
            }
        })
    };
    let baselines = vec![
        zswap("zswap lzo", &|lengths| lengths.lzo),
        zswap("zswap lz4", &|lengths| lengths.lz4),
        zswap(ZSWAP_ZSTD, &|lengths| lengths.zstd),
        sum("zswap zstd-3, equal pages once", 0.0, &|n, count| {
            let len = zswap_len(lengths[n].zstd);
            let entries = count as f64 * (ZSWAP_ENTRY + ZSWAP_TREE);
            (len as f64, entries + zsmalloc::cost(len))
        }),
        zram("zram lzo", 0.0, &|n| lengths[n].lzo),
        zram("zram lz4", 0.0, &|n| lengths[n].lz4),
        zram("zram zstd-3", 0.0, &|n| lengths[n].zstd),
        zram(
            "zram zstd, one dictionary",
            dictionary.bytes() as f64,
            &|n| with_dictionary[n],
        ),
    ];
    (baselines, dictionary)
}

/// Content and all bytes of `count` pages.
fn times(count: u64, len: usize, cost: f64) -> (f64, f64) {
    (count as f64 * len as f64, count as f64 * cost)
}

/// What zswap keeps of a page that a compressor makes `len` bytes of: the page itself if that is
/// no shorter.
fn zswap_len(len: usize) -> usize {
    len.min(PAGE_SIZE)
}

/// What zram keeps: the page itself if the object would have a page of its own anyway.
fn zram_len(len: usize) -> usize {
    if len >= zsmalloc::HUGE {
        PAGE_SIZE
    } else {
        len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A page of every kind that the stores treat differently.
    fn pages() -> Vec<Page> {
        let mut random = 1u64;
        let mut noise = [0; PAGE_SIZE];
        for byte in &mut noise {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            *byte = (random >> 56) as u8;
        }
        let mut text = [0; PAGE_SIZE];
        for (n, byte) in text.iter_mut().enumerate() {
            *byte = b"some text "[n % 10] + (n / 256) as u8;
        }
        vec![[0; PAGE_SIZE], [7; PAGE_SIZE], noise, text]
    }

    #[test]
    fn pages_are_counted_with_what_others_do_to_them() {
        let pages = pages();
        let owned = Owned::new(&pages, [0, 1, 2, 3, 3, 0].into_iter());
        // Zero pages do not count.
        assert_eq!((owned.count(), owned.distinct()), (4, 3));
        let (baselines, _) = measure(&owned);
        let of = |name| baselines.iter().find(|b| b.name == name).expect("is there");
        let zswap = of(ZSWAP_ZSTD);
        // The incompressible page is kept as it is, with its metadata.
        assert!(zswap.bytes as f64 > 4096.0 + 4.0 * (ZSWAP_ENTRY + ZSWAP_TREE));
        assert!((70.0..110.0).contains(&zswap.metadata_bytes_per_page));
        // The page that is there twice is kept once.
        let once = of("zswap zstd-3, equal pages once");
        let len = Zstd::default().compress(&pages[3]).len();
        let saved = (zswap.bytes - once.bytes) as f64;
        assert!((saved - zsmalloc::cost(len)).abs() < 2.0);
        // The page that repeats a word has no object in zram.
        assert_eq!(of("zram zstd-3").content, 4096 + 2 * len as u64);
    }

    #[test]
    fn threads_keep_the_order() {
        let pages: Vec<Page> = (1..100).map(|n| [n; PAGE_SIZE]).collect();
        let owned = Owned::new(&pages, 0..99);
        let first: Vec<u8> = owned.map(|| |page: &Page| page[0]);
        assert!(first.into_iter().eq(1..100));
    }
}
