// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The measurements: every page by every codec, interleaved.
//!
//! Pages are grouped by the representation that the codec chose for them. The codecs take turns on
//! batches of pages; before each turn all pages of the batch are read once, so that each codec finds
//! them in the same caches, and a change of the CPU's frequency meets all alike. Every operation is
//! timed by itself; the time of reading the clock is taken off.

use crate::codecs::{AgentZip, Codec, Lz4, Zstd};
use crate::corpus::{Aligned, Corpus, Record};
use agentzip_codec::{Representation, UNIT};
use std::hint::black_box;
use std::time::Instant;

/// Fill pages that are added to those of the corpus.
pub const FILL_PAGES: u64 = 64;

/// Nanoseconds per page.
#[derive(Clone, Copy, Default)]
pub struct Times {
    pub median: u64,
    pub mean: u64,
    pub p99: u64,
}

/// One codec on the pages of one representation.
pub struct CodecResult {
    pub name: &'static str,
    pub encode: Times,
    pub decode: Times,
    /// Mean length of what it made of a page, bytes.
    pub bytes: f64,
    /// Mean length of that in a store, its slot included, bytes.
    pub cost: f64,
}

/// The pages of one representation.
pub struct ClassResult {
    pub representation: Representation,
    pub pages: usize,
    /// AgentZip first, then those it is compared with.
    pub codecs: Vec<CodecResult>,
}

pub const ALL: [(Representation, &str); 6] = [
    (Representation::Fill, "fill"),
    (Representation::Ref, "ref"),
    (Representation::Delta, "delta"),
    (Representation::DeltaZstd, "delta_zstd"),
    (Representation::Zstd, "zstd"),
    (Representation::Prefix, "prefix"),
];

/// Encodes, decodes, compares and times every page `rounds` times.
pub fn run(corpus: &Corpus, rounds: usize, batch: usize) -> Result<Vec<ClassResult>, String> {
    let mut classes: Vec<(Representation, Vec<&Record>)> =
        ALL.iter().map(|&(kind, _)| (kind, Vec::new())).collect();
    let mut agentzip = AgentZip::new(true);
    let made = fill_pages();
    for record in corpus.records.iter().chain(&made) {
        let chosen = agentzip.classify(record)?;
        for (kind, records) in &mut classes {
            if *kind == chosen {
                records.push(record);
            }
        }
    }
    let overhead = clock_overhead();
    let mut results = Vec::new();
    for (representation, records) in classes {
        if records.is_empty() {
            continue;
        }
        let mut codecs: Vec<Box<dyn Codec>> = vec![
            Box::new(AgentZip::new(true)),
            Box::new(AgentZip::new(false)),
            Box::new(Zstd::default()),
            Box::new(Lz4::default()),
        ];
        results.push(ClassResult {
            representation,
            pages: records.len(),
            codecs: measure(&records, &mut codecs, (rounds, batch), overhead)?,
        });
    }
    Ok(results)
}

/// Pages that repeat a word: too rare in a process for a measurement, so they are made.
fn fill_pages() -> Vec<Record> {
    let made = (0..FILL_PAGES).map(|n| {
        let mut page = Aligned::new();
        for word in page.0.chunks_exact_mut(8) {
            word.copy_from_slice(&(0x0101 * n).to_le_bytes());
        }
        Record {
            sandbox: 0,
            index: n,
            page,
            base: None,
        }
    });
    made.collect()
}

/// Times of each page and round, and what the page became.
#[derive(Default)]
struct Samples {
    encode: Vec<Vec<u64>>,
    decode: Vec<Vec<u64>>,
    payloads: Vec<Vec<u8>>,
}

fn measure(
    records: &[&Record],
    codecs: &mut [Box<dyn Codec>],
    (rounds, batch): (usize, usize),
    overhead: u64,
) -> Result<Vec<CodecResult>, String> {
    let mut samples: Vec<Samples> = codecs.iter().map(|_| Samples::default()).collect();
    for samples in &mut samples {
        samples.encode = vec![Vec::with_capacity(rounds); records.len()];
        samples.decode = vec![Vec::with_capacity(rounds); records.len()];
        samples.payloads = vec![Vec::new(); records.len()];
    }
    for (codec, samples) in codecs.iter_mut().zip(&mut samples) {
        for (record, payload) in records.iter().zip(&mut samples.payloads) {
            *payload = codec
                .encode(record)
                .ok_or("a page did not encode")?
                .to_vec();
            if codec.decode(record, payload) != Some(&record.page.0) {
                return Err(format!(
                    "{}: page {:#x} of sandbox {} did not come back the same",
                    codec.name(),
                    record.index,
                    record.sandbox
                ));
            }
        }
    }
    for start in (0..records.len()).step_by(batch) {
        let range = start..(start + batch).min(records.len());
        for round in 0..=rounds {
            for (codec, samples) in codecs.iter_mut().zip(&mut samples) {
                touch(&records[range.clone()]);
                for n in range.clone() {
                    let time = timed(|| codec.encode(records[n]).map(<[u8]>::len));
                    // Round 0 warms up.
                    if round > 0 {
                        samples.encode[n].push(time.saturating_sub(overhead));
                    }
                }
            }
            for (codec, samples) in codecs.iter_mut().zip(&mut samples) {
                touch(&records[range.clone()]);
                for n in range.clone() {
                    let payload = &samples.payloads[n];
                    let time = timed(|| codec.decode(records[n], payload).is_some());
                    if round > 0 {
                        samples.decode[n].push(time.saturating_sub(overhead));
                    }
                }
            }
        }
    }
    let results = codecs.iter().zip(samples).map(|(codec, samples)| {
        let lens = samples.payloads.iter().map(|payload| codec.stored(payload));
        let mean = |sum: usize| sum as f64 / records.len() as f64;
        CodecResult {
            name: codec.name(),
            encode: times(samples.encode),
            decode: times(samples.decode),
            bytes: mean(lens.clone().sum()),
            cost: mean(lens.map(cost).sum()),
        }
    });
    Ok(results.collect())
}

/// Bytes of a slot, where the address of a payload is, or a fill word, or the number of a base.
const SLOT: usize = 8;

/// What so many bytes take in a store that hands out memory in units, and the slot.
fn cost(stored: usize) -> usize {
    SLOT + stored.next_multiple_of(UNIT)
}

/// Reads all pages once, so that every codec finds them in the same caches.
fn touch(records: &[&Record]) {
    for record in records {
        let pages = [Some(&record.page), record.base.as_ref()];
        for page in pages.into_iter().flatten() {
            let sum: u64 = page.0.iter().step_by(64).map(|&byte| u64::from(byte)).sum();
            black_box(sum);
        }
    }
}

fn timed<T>(operation: impl FnOnce() -> T) -> u64 {
    let start = Instant::now();
    black_box(operation());
    start.elapsed().as_nanos() as u64
}

fn clock_overhead() -> u64 {
    let mut times: Vec<u64> = (0..10_001).map(|_| timed(|| ())).collect();
    times.sort_unstable();
    times[times.len() / 2]
}

/// Statistics over pages of each page's median over rounds.
fn times(pages: Vec<Vec<u64>>) -> Times {
    let mut medians: Vec<u64> = pages
        .into_iter()
        .map(|mut rounds| {
            rounds.sort_unstable();
            rounds[rounds.len() / 2]
        })
        .collect();
    medians.sort_unstable();
    Times {
        median: medians[medians.len() / 2],
        mean: medians.iter().sum::<u64>() / medians.len() as u64,
        p99: medians[(medians.len() * 99 / 100).min(medians.len() - 1)],
    }
}
