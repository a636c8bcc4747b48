// SPDX-License-Identifier: GPL-2.0 OR MIT
//! zstd with one dictionary for all pages, zram's best.

use agentzip_codec::{Page, PAGE_SIZE};
use serde::Serialize;
use zstd::zstd_safe::{self, CCtx, CDict, DDict};

use super::{zram_len, zsmalloc, Owned};

/// Sizes of dictionaries that are tried, bytes.
const SIZES: [usize; 3] = [64 << 10, 256 << 10, 1 << 20];

/// Levels that are tried.
const LEVELS: [i32; 2] = [3, 6];

/// Most bytes of samples that a dictionary is trained on.
const MAX_SAMPLES: usize = 32 << 20;

/// Pages that the choice is made on.
const TRIAL_PAGES: usize = 4096;

/// The dictionary that was the best.
pub struct Dictionary {
    bytes: Vec<u8>,
    level: i32,
    /// What was tried.
    pub tried: Vec<Trial>,
}

/// A dictionary that was tried.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Trial {
    /// Bytes of the dictionary.
    pub size: usize,
    /// zstd's level.
    pub level: i32,
    /// Bytes of the dictionary with its digested tables.
    pub memory: usize,
    /// Bytes of a page, from a sample, with its part of the memory.
    pub bytes_per_page: f64,
}

impl Dictionary {
    /// Trains dictionaries on samples of the pages and takes the one with which all of them take
    /// the least memory, its own included.
    pub fn best(owned: &Owned<'_>) -> Self {
        let mut best = Self {
            bytes: Vec::new(),
            level: LEVELS[0],
            tried: Vec::new(),
        };
        let mut least = f64::INFINITY;
        let every = |count: usize| owned.pages.len().div_ceil(count).max(1);
        let samples: Vec<u8> = owned
            .pages
            .iter()
            .step_by(every(MAX_SAMPLES / PAGE_SIZE))
            .flat_map(|&(page, _)| page.iter().copied())
            .collect();
        let lens = vec![PAGE_SIZE; samples.len() / PAGE_SIZE];
        for size in SIZES {
            // Too few pages for a dictionary of this size: then none is better.
            let Ok(bytes) = zstd::dict::from_continuous(&samples, &lens, size) else {
                continue;
            };
            for level in LEVELS {
                let memory = memory(&bytes, level);
                let mut compressor = Compressor::new(&bytes, level);
                let (mut sum, mut pages) = (0.0, 0u64);
                // Between the samples, where there are other pages.
                for &(page, count) in owned.pages.iter().skip(1).step_by(every(TRIAL_PAGES)) {
                    let len = zram_len(compressor.len(page));
                    sum += count as f64 * zsmalloc::cost(len);
                    pages += count;
                }
                let share = memory as f64 / owned.count().max(1) as f64;
                let bytes_per_page = sum / pages.max(1) as f64 + share;
                best.tried.push(Trial {
                    size: bytes.len(),
                    level,
                    memory,
                    bytes_per_page,
                });
                if bytes_per_page < least {
                    least = bytes_per_page;
                    best.bytes.clone_from(&bytes);
                    best.level = level;
                }
            }
        }
        best
    }

    /// Memory that it takes, with its digested tables.
    pub fn bytes(&self) -> usize {
        memory(&self.bytes, self.level)
    }

    /// Bytes of the dictionary, and the level.
    pub fn chosen(&self) -> (usize, i32) {
        (self.bytes.len(), self.level)
    }

    /// Lengths of all distinct pages.
    pub(super) fn lengths(&self, owned: &Owned<'_>) -> Vec<usize> {
        owned.map(|| {
            let mut compressor = Compressor::new(&self.bytes, self.level);
            move |page: &Page| compressor.len(page)
        })
    }
}

fn memory(dictionary: &[u8], level: i32) -> usize {
    let digested = CDict::create_by_reference(dictionary, level).sizeof()
        + DDict::create_by_reference(dictionary).sizeof();
    dictionary.len() + digested
}

struct Compressor<'d> {
    context: CCtx<'static>,
    dictionary: CDict<'d>,
    out: Vec<u8>,
}

impl<'d> Compressor<'d> {
    fn new(dictionary: &'d [u8], level: i32) -> Self {
        Self {
            context: CCtx::create(),
            dictionary: CDict::create_by_reference(dictionary, level),
            out: vec![0; zstd_safe::compress_bound(PAGE_SIZE)],
        }
    }

    fn len(&mut self, page: &Page) -> usize {
        self.context
            .compress_using_cdict(&mut self.out[..], page, &self.dictionary)
            .expect("there is room")
    }
}
