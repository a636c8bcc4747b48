// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What it costs, natively, to find that nothing makes a page of noise smaller: copy and checksum, both tries of
//! zstd as reclaim makes them, and the glance that takes their place in a streak of such pages.
//!
//! `cargo bench -p agentzip-codec --all-features --bench noise`

use std::hint::black_box;
use std::time::Instant;

use agentzip_codec::host::Host;
use agentzip_codec::{
    looks_like_noise, Encoder, Level, Limits, Page, Scratch, MAX_PAYLOAD, NOISE_SAMPLE, PAGE_SIZE,
};

/// Pages of one pass: more than a second-level cache holds.
const PAGES: usize = 2048;
/// Passes, of which the median counts.
const PASSES: usize = 15;

fn main() {
    let pages = noise();
    let mut host = Host::new();
    let mut scratch = Scratch::default();
    let mut out = [0; MAX_PAYLOAD];
    let mut copy = [0; PAGE_SIZE];
    // The limits of a store that a second look follows (rust/store/src/engine/mod.rs).
    let limits = Limits {
        max_payload: PAGE_SIZE - 64,
        delta_zstd: false,
        prefix: false,
        ..Limits::at(Level::Cheap)
    };
    let begin = median(&pages, |page| {
        copy.copy_from_slice(page);
        let encoder = Encoder::new(&copy, limits, &mut host);
        u32::from(encoder.fill().is_some()) ^ encoder.crc()
    });
    let tried = median(&pages, |page| {
        copy.copy_from_slice(page);
        let mut encoder = Encoder::new(&copy, limits, &mut host);
        encoder.try_zstd(&mut scratch, &mut host, &mut out);
        encoder.set_level(Level::Fast);
        encoder.try_zstd(&mut scratch, &mut host, &mut out);
        assert!(encoder.is_empty(), "noise became smaller");
        encoder.crc()
    });
    let glance = median(&pages, |page| {
        let mut sample = [0; NOISE_SAMPLE];
        for (i, part) in sample.chunks_exact_mut(NOISE_SAMPLE / 4).enumerate() {
            let at = i * PAGE_SIZE / 4;
            part.copy_from_slice(&page[at..at + NOISE_SAMPLE / 4]);
        }
        u32::from(looks_like_noise(&sample))
    });
    println!("a page of noise: copy and checksum {begin:.0} ns, with both tries of zstd {tried:.0} ns; a glance {glance:.0} ns");
}

fn noise() -> Vec<Page> {
    let mut state = 1u64;
    let mut page = || -> Page {
        std::array::from_fn(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        })
    };
    (0..PAGES).map(|_| page()).collect()
}

/// Nanoseconds a page.
fn median(pages: &[Page], mut work: impl FnMut(&Page) -> u32) -> f64 {
    let mut times: Vec<f64> = (0..PASSES)
        .map(|_| {
            let began = Instant::now();
            for page in pages {
                black_box(work(black_box(page)));
            }
            began.elapsed().as_secs_f64() * 1e9 / pages.len() as f64
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[PASSES / 2]
}
