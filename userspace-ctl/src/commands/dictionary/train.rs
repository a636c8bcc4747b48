// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `agentzip dict train`: makes a dictionary of what a group has stored, if that pays.

use std::fmt;
use std::sync::Arc;

use agentzip_codec::host::{Dictionary, Host};
use agentzip_codec::zstd::MAX_DICTIONARY;
use agentzip_codec::{Encoder, Level, Limits, Page, Scratch, MAX_PAYLOAD, PAGE_SIZE};
use serde::Serialize;

use super::no_sandbox;
use crate::cgroup::Selector;
use crate::commands::explain::Refusal;
use crate::commands::{sandbox_name, select};
use crate::error::{Error, Result};
use crate::format::{count, percent, Bytes, Table};
use crate::Context;

/// Least payload of a page that a dictionary could help, in bytes.
const LEAST: u32 = 600;

/// Pages that are trained with and judged by: 32 MiB, some seconds of training.
const MAX_SAMPLES: usize = 8192;

/// One page in so many is held out: the dictionary is judged by pages that it was not made of.
const HELD_OUT: usize = 5;

/// A dictionary is at most one part in so many of what it is made of.
const MIN_RATIO: usize = 8;

/// Sizes that are tried.
const SIZES: [usize; 3] = [64 << 10, 128 << 10, 256 << 10];

/// How to train.
#[derive(Clone, Copy, Debug, Default)]
pub struct Request {
    /// Try only this size, in bytes.
    pub size: Option<u64>,
    /// Load nothing.
    pub dry_run: bool,
}

/// A dictionary that was tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Candidate {
    /// Bytes of its content.
    pub size: u64,
    /// Bytes that it takes in the kernel, with zstd's tables.
    pub cost: u64,
    /// Bytes of the payloads of the held-out pages with it.
    pub with: u64,
    /// Bytes that it saves in all pages that the samples stand for, less its cost.
    pub gain: i64,
}

/// What `dict train` found out and did.
#[derive(Debug, Serialize)]
pub struct Trained {
    /// The sandbox, for people.
    #[serde(skip)]
    name: String,
    /// Its id.
    pub cgroup_id: u64,
    /// Pages that the group has stored with payloads that are worth it.
    pub pages: u64,
    /// Those of them that served.
    pub samples: u64,
    /// Those of these that dictionaries were judged by.
    pub held_out: u64,
    /// Bytes of their payloads without a dictionary.
    pub without: u64,
    /// What was tried.
    pub candidates: Vec<Candidate>,
    /// The best, if it pays.
    pub best: Option<Candidate>,
    /// Number of the dictionary that was loaded.
    pub number: Option<u32>,
}

impl fmt::Display for Trained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "group of {}: {} with payloads of {LEAST} B or more; {} tried on {}",
            self.name,
            count(self.pages, "page"),
            count(self.samples, "sample"),
            count(self.held_out, "page"),
        )?;
        if self.candidates.is_empty() {
            return writeln!(
                f,
                "too few for a dictionary of {}: nothing loaded",
                Bytes(SIZES[0] as u64)
            );
        }
        let mut table = Table::new(&[">SIZE", ">COST", ">WITHOUT", ">WITH", ">OF IT", ">GAIN"]);
        for candidate in &self.candidates {
            let sign = if candidate.gain < 0 { "-" } else { "" };
            table.row([
                Bytes(candidate.size).to_string(),
                Bytes(candidate.cost).to_string(),
                Bytes(self.without).to_string(),
                Bytes(candidate.with).to_string(),
                percent(candidate.with, self.without),
                format!("{sign}{}", Bytes(candidate.gain.unsigned_abs())),
            ]);
        }
        write!(f, "{table}")?;
        match (self.best, self.number) {
            (None, _) => writeln!(f, "a dictionary does not pay: nothing loaded"),
            (Some(best), None) => writeln!(
                f,
                "a dictionary of {} pays: it would save {}; not loaded (--dry-run)",
                Bytes(best.size),
                Bytes(best.gain.unsigned_abs())
            ),
            (Some(best), Some(number)) => writeln!(
                f,
                "dictionary {number} of {} loaded: it saves about {} once the pages are stored again",
                Bytes(best.size),
                Bytes(best.gain.unsigned_abs())
            ),
        }
    }
}

/// Trains a dictionary for the group of a sandbox and loads it if it pays.
///
/// # Errors
///
/// When it is no sandbox, the size makes no sense, zstd cannot train, or the module refuses.
pub fn train(context: &Context, selector: &Selector, request: &Request) -> Result<Trained> {
    let (cgroup_id, cgroup) = select(context, selector)?;
    let name = sandbox_name(cgroup_id, cgroup.as_ref());
    let sizes = sizes(request.size, &name)?;
    let (samples, pages) = samples(context, cgroup_id, &name)?;
    let (held_out, rest): (Vec<_>, Vec<_>) = samples
        .iter()
        .enumerate()
        .partition(|(number, _)| number % HELD_OUT == 0);
    let bench = Bench::new(held_out.into_iter().map(|(_, page)| page).collect(), pages);
    let material: Vec<&Page> = rest.into_iter().map(|(_, page)| page).collect();
    let most = material.len() * PAGE_SIZE / MIN_RATIO;
    if let Some(size) = request.size.filter(|&size| size > most as u64) {
        let problem = format!(
            "{} of samples are enough for a dictionary of at most {}, not of {}; \
             wait until the group has stored more",
            Bytes((material.len() * PAGE_SIZE) as u64),
            Bytes(most as u64),
            Bytes(size)
        );
        return Err(Error::invalid(name, problem));
    }
    let mut trained = Trained {
        cgroup_id,
        pages,
        samples: samples.len() as u64,
        held_out: bench.pages.len() as u64,
        without: bench.without,
        candidates: Vec::new(),
        best: None,
        number: None,
        name,
    };
    let mut content = Vec::new();
    for size in sizes.into_iter().filter(|&size| size <= most) {
        let made = make(&material, size, &trained.name)?;
        let candidate = bench.judge(&made, &trained.name)?;
        trained.candidates.push(candidate);
        let best = trained.best.map_or(0, |best| best.gain);
        if candidate.gain > best {
            trained.best = Some(candidate);
            content = made;
        }
    }
    if trained.best.is_some() && !request.dry_run {
        trained.number = Some(load(context, cgroup_id, &trained.name, &content)?);
    }
    Ok(trained)
}

/// The sizes to try.
fn sizes(wanted: Option<u64>, name: &str) -> Result<Vec<usize>> {
    let Some(size) = wanted else {
        return Ok(SIZES.to_vec());
    };
    let least = agentzip_uapi::MIN_DICTIONARY as usize;
    match usize::try_from(size) {
        Ok(size) if (least..=MAX_DICTIONARY).contains(&size) => Ok(vec![size]),
        _ => {
            let problem = format!(
                "a dictionary has {} to {}",
                Bytes(least as u64),
                Bytes(MAX_DICTIONARY as u64)
            );
            Err(Error::invalid(name, problem))
        }
    }
}

/// Pages that the group has stored, and how many pages they stand for.
fn samples(context: &Context, cgroup_id: u64, name: &str) -> Result<(Vec<Page>, u64)> {
    let mut samples = Vec::new();
    let mut seen = 0u64;
    // Of every so many pages one is kept, more of them skipped as more come.
    let mut stride = 1;
    let mut cursor = Some(0);
    while let Some(at) = cursor {
        let some = context
            .device
            .dictionary_samples(cgroup_id, LEAST, at)
            .map_err(|failure| refused(name).explain(failure, |errno, _| no_sandbox(errno)))?;
        for page in some.pages {
            if seen % stride == 0 {
                samples.push(page);
            }
            seen += 1;
            if samples.len() > MAX_SAMPLES {
                let mut keep = false;
                samples.retain(|_| {
                    keep = !keep;
                    keep
                });
                stride *= 2;
            }
        }
        cursor = some.next;
    }
    Ok((samples, seen))
}

fn refused(name: &str) -> Refusal {
    Refusal {
        operation: "dict train",
        object: name.to_owned(),
    }
}

/// Makes a dictionary of at most `size` bytes.
fn make(samples: &[&Page], size: usize, name: &str) -> Result<Vec<u8>> {
    zstd::dict::from_samples(samples, size).map_err(|cause| {
        let problem = format!(
            "zstd makes no dictionary of {}: {cause}",
            count(samples.len() as u64, "page")
        );
        Error::invalid(name, problem)
    })
}

fn load(context: &Context, cgroup_id: u64, name: &str, content: &[u8]) -> Result<u32> {
    let added = context.device.dictionary_add(cgroup_id, content);
    added.map_err(|failure| {
        refused(name).explain(failure, |errno, _| match errno {
            libc::ENOSPC => Some(
                "payloads need eight older dictionaries; wait until some of these pages are stored again"
                    .to_owned(),
            ),
            libc::ENOMEM => Some(
                "no memory, or the store is at its bound: agentzip limit SIZE".to_owned(),
            ),
            libc::EINVAL => {
                Some("the module's zstd refuses the dictionary; see: agentzip --version".to_owned())
            }
            _ => no_sandbox(errno),
        })
    })
}

/// What dictionaries are judged by.
struct Bench<'a> {
    pages: Vec<&'a Page>,
    /// How many pages of the group they stand for.
    stand_for: u64,
    /// Bytes of their payloads without a dictionary.
    without: u64,
}

impl<'a> Bench<'a> {
    fn new(pages: Vec<&'a Page>, stand_for: u64) -> Self {
        let mut codec = Codec::new();
        let without = pages.iter().map(|page| codec.payload(page, None)).sum();
        Self {
            pages,
            stand_for,
            without,
        }
    }

    fn judge(&self, content: &[u8], name: &str) -> Result<Candidate> {
        let dictionary = Dictionary::new(content)
            .ok_or_else(|| Error::invalid(name, "zstd refuses the dictionary that it made"))?;
        let mut codec = Codec::new();
        let payloads = self.pages.iter();
        let with = payloads
            .map(|page| codec.payload(page, Some(&dictionary)))
            .sum();
        let saved = self.without as i64 - with as i64;
        let cost = dictionary.bytes() as u64;
        let all = i128::from(saved) * i128::from(self.stand_for);
        let all = all / self.pages.len().max(1) as i128;
        Ok(Candidate {
            size: content.len() as u64,
            cost,
            with,
            gain: i64::try_from(all).unwrap_or(i64::MAX) - cost as i64,
        })
    }
}

/// The codec, as the second look uses it for a page that resembles no other.
struct Codec {
    host: Host,
    scratch: Box<Scratch>,
    out: [u8; MAX_PAYLOAD],
}

impl Codec {
    fn new() -> Self {
        Self {
            host: Host::new(),
            scratch: Box::default(),
            out: [0; MAX_PAYLOAD],
        }
    }

    /// Bytes of the payload of a page, with a dictionary or without; a page that has none is not stored.
    fn payload(&mut self, page: &Page, dictionary: Option<&Arc<Dictionary>>) -> u64 {
        let Self { host, scratch, out } = self;
        let mut encoder = Encoder::new(page, Limits::at(Level::Best), host);
        match dictionary {
            Some(dictionary) => encoder.try_dictionary(0, dictionary, scratch, host, out),
            None => encoder.try_zstd(scratch, host, out),
        };
        encoder.finish(out).unwrap_or(PAGE_SIZE) as u64
    }
}
