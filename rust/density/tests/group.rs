// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Groups of sandboxes with random pages, random edits, and memory that is out at random: every page
//! comes back, and nothing is left at the end.

use agentzip_codec::Page;
use agentzip_density::corpus::IndexedPage;
use agentzip_density::lab::{Blind, Lab};
use agentzip_density::platform::Bounds;
use agentzip_store::engine::Policy;
use proptest::prelude::*;

/// A random number generator that shrinks well: xorshift64*.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

/// What one page is like.
fn fresh(random: &mut Random) -> Page {
    let mut page = [0; 4096];
    match random.below(8) {
        0 => page.fill(random.below(3) as u8),
        // Does not fit a descriptor.
        1 => {
            let word = random.next().to_le_bytes();
            page.chunks_exact_mut(8)
                .for_each(|chunk| chunk.copy_from_slice(&word));
        }
        // Hardly compressible.
        2 => page
            .chunks_exact_mut(8)
            .for_each(|chunk| chunk.copy_from_slice(&random.next().to_le_bytes())),
        // Text.
        3 | 4 => page
            .iter_mut()
            .for_each(|byte| *byte = b"etaoin shr\n"[random.below(11)]),
        // Pointers and small numbers.
        _ => page.chunks_exact_mut(8).for_each(|chunk| {
            let word = match random.below(4) {
                0 => 0,
                1 => random.below(1000) as u64,
                _ => 0x7f00_0000_0000 | (random.next() & 0xf_fff8),
            };
            chunk.copy_from_slice(&word.to_le_bytes());
        }),
    }
    page
}

/// Another state of the same page.
fn edited(page: &Page, random: &mut Random) -> Page {
    let mut page = *page;
    match random.below(6) {
        0 => return page,
        1 => page.rotate_left(8 * random.below(16)),
        n => {
            for _ in 0..1 << (2 * n - 2) {
                let at = 8 * random.below(512);
                page[at] ^= random.next() as u8;
                page[at + 2] ^= (random.next() >> 7) as u8;
            }
        }
    }
    page
}

#[derive(Clone, Debug)]
struct Case {
    seed: u64,
    sandboxes: usize,
    pages: usize,
    waits: usize,
    groups: usize,
    policy: usize,
    reference_pages: u64,
    index_pages: u32,
    fail_one_in: u64,
}

fn case() -> impl Strategy<Value = Case> {
    (
        any::<u64>(),
        (1usize..6, 1usize..60, 1usize..4, 1usize..3),
        0usize..64,
        (prop_oneof![Just(u64::MAX), 0..8u64], 0u32..4),
        prop_oneof![Just(0), 2..20u64],
    )
        .prop_map(
            |(
                seed,
                (sandboxes, pages, waits, groups),
                policy,
                (reference_pages, index_pages),
                fail_one_in,
            )| Case {
                seed: seed | 1,
                sandboxes,
                pages,
                waits,
                groups,
                policy,
                reference_pages,
                index_pages,
                fail_one_in,
            },
        )
}

/// One of the policies that differ in what is switched on.
fn policy(bits: usize) -> Policy {
    let on = |bit: usize| bits & (1 << bit) == 0;
    let mut policy = Policy::DEFAULT;
    policy.template = on(0);
    policy.template_sketch = on(1);
    policy.sibling_index = on(2);
    policy.sibling_sketch = on(3);
    if !on(4) {
        policy.index_from = 0;
    }
    if !on(5) {
        policy.min_gain = 1;
        policy.limits.delta_final = 16;
    }
    policy
}

/// Lets groups live. Returns how many pages were refused for lack of memory and how many entries
/// became reference pages.
fn live(case: &Case) -> (u64, u64) {
    let mut random = Random(case.seed);
    let mut contents: Vec<Page> = Vec::new();
    let mut add = |page: Page| {
        contents.push(page);
        (contents.len() - 1) as u32
    };
    // Indexes are not unique, and some are the sandboxes' own.
    let index = |random: &mut Random| 0x1000 + random.below(case.pages) as u64;
    let mut template = Vec::new();
    let mut seeds = Vec::new();
    for _ in 0..case.pages {
        let page = fresh(&mut random);
        let number = add(page);
        let indexed = IndexedPage {
            index: index(&mut random),
            page: number,
        };
        if random.below(3) > 0 {
            template.push(indexed);
        }
        seeds.push((indexed.index, page));
    }
    template.sort_unstable();
    // By sandbox and wait.
    let mut lists = Vec::new();
    for _ in 0..case.sandboxes * case.groups {
        let mut mine: Vec<(IndexedPage, Page)> = Vec::new();
        let mut waits = Vec::new();
        for _ in 0..case.waits {
            mine.retain(|_| random.below(8) > 0);
            for (indexed, page) in &mut mine {
                if random.below(3) == 0 {
                    *page = edited(page, &mut random);
                    indexed.page = add(*page);
                }
            }
            for (index, seed) in &seeds {
                if random.below(3) == 0 {
                    let page = edited(seed, &mut random);
                    let indexed = IndexedPage {
                        index: *index,
                        page: add(page),
                    };
                    mine.push((indexed, page));
                }
            }
            waits.push(mine.iter().map(|&(indexed, _)| indexed).collect::<Vec<_>>());
        }
        lists.push(waits);
    }

    let bounds = Bounds {
        reference_pages: case.reference_pages,
        index_pages: case.index_pages,
    };
    let mut lab = Lab::new(&contents, policy(case.policy));
    let groups: Vec<_> = (0..case.groups)
        .map(|_| lab.add_group(&template, bounds))
        .collect();
    let content_pages = lab.native().pool().counts();
    lab.native().pool().fail(case.fail_one_in, case.seed);
    for wait in 0..case.waits {
        for (number, waits) in lists.iter().enumerate() {
            if wait == 0 {
                lab.arrive(number, groups[number % case.groups]);
            }
            lab.swap_out(number, &waits[wait], &mut Blind);
            // Whatever is there, not only what this sandbox has just stored.
            for other in 0..lists.len() {
                if lab.sandboxes().contains_key(&other) {
                    lab.swap_in(other, &mut Blind);
                }
            }
            lab.compact();
        }
    }
    while !lab.sandboxes().is_empty() {
        let left: Vec<usize> = lab.sandboxes().keys().copied().collect();
        lab.leave(left[random.below(left.len())]);
        lab.compact();
        for number in left {
            if lab.sandboxes().contains_key(&number) {
                lab.swap_in(number, &mut Blind);
            }
        }
    }
    for group in groups {
        lab.remove_group(group);
    }
    assert_eq!(lab.native().entries(), 0);
    assert_eq!(lab.native().leaves(), 0);
    assert_eq!(
        lab.native().pool().counts(),
        content_pages,
        "pages are left"
    );
    (lab.events().no_memory, lab.events().promotions)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]
    #[test]
    fn every_page_comes_back_and_nothing_is_left(case in case()) {
        live(&case);
    }
}

/// The cases above would show little if these things never happened in them.
#[test]
fn pages_are_refused_and_promoted() {
    let case = Case {
        seed: 1,
        sandboxes: 4,
        pages: 60,
        waits: 3,
        groups: 2,
        policy: 0,
        reference_pages: u64::MAX,
        index_pages: 3,
        fail_one_in: 0,
    };
    let (no_memory, promotions) = live(&case);
    assert_eq!(no_memory, 0);
    assert!(promotions > 10, "{promotions}");
    let out_of_memory = Case {
        fail_one_in: 4,
        ..case
    };
    let (no_memory, _) = live(&out_of_memory);
    assert!(no_memory > 5, "{no_memory}");
}
