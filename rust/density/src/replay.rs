// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A group lives: sandboxes arrive, wait, diverge, leave.

use std::collections::{BTreeMap, HashMap};

use agentzip_codec::Page;
use agentzip_store::engine::{Improved, Loaded, Policy, Refusal, Stored};
use serde::Serialize;

use crate::account::{name, Account};
use crate::baseline::codecs::{Lz4, Zstd};
use crate::corpus::{IndexedPage, Scenario};
use crate::lab::{Blind, Events, Lab, Observer};
use crate::platform::Bounds;
use crate::timing::{Clock, Samples, Times};
use crate::training::Training;

/// Sandboxes that arrive together. The next ones arrive when these come to their second wait.
const ARRIVING: usize = 4;

/// One of so many stores and loads is repeated with zstd-3 and lz4.
pub const SAMPLED: usize = 16;

/// What a group's life showed.
#[derive(Clone, Debug, Serialize)]
pub struct Life {
    /// Bytes of the store after each round of waits. In the last one every sandbox is at its last
    /// wait.
    pub rounds: Vec<Account>,
    /// Bytes of the store when half of the sandboxes have left.
    pub half_left: Account,
    /// Whether the group had a dictionary of its own.
    pub dictionary: bool,
    /// What happened.
    pub events: Events,
}

impl Life {
    /// When every sandbox is at its last wait.
    pub fn last(&self) -> &Account {
        self.rounds.last().expect("a scenario has waits")
    }

    /// Mean of the ratios after each round.
    pub fn mean_ratio(&self) -> f64 {
        let sum: f64 = self.rounds.iter().map(Account::ratio).sum();
        sum / self.rounds.len() as f64
    }
}

/// Lets the first `sandboxes` sandboxes of a scenario live as a group.
///
/// Every page that is swapped out is brought back and compared, at each wait, and once more when
/// all are at their last one.
///
/// # Panics
///
/// When a page comes back differently, or anything is left of the group at its end.
pub fn live(
    scenario: &Scenario,
    sandboxes: usize,
    policy: Policy,
    bounds: Bounds,
    observer: &mut dyn Observer,
) -> Life {
    let mut lab = Lab::new(&scenario.pages, policy);
    let group = lab.add_group(&scenario.template, bounds);
    let before = lab.native().pool().counts();
    let lists: Vec<_> = scenario.sandboxes.iter().take(sandboxes).collect();
    let waits = scenario.waits.len();
    let batches = lists.len().div_ceil(ARRIVING);
    let mut rounds = Vec::new();
    let mut dictionary = false;
    for round in 0..waits + batches.saturating_sub(1) {
        for (number, sandbox) in lists.iter().enumerate() {
            let list = round
                .checked_sub(number / ARRIVING)
                .and_then(|wait| Some((wait, sandbox.waits.get(wait)?)));
            let Some((wait, list)) = list else { continue };
            if wait == 0 {
                lab.arrive(number, group);
            }
            lab.swap_out(number, list, observer);
            lab.compact();
            lab.swap_in(number, observer);
        }
        rounds.push(Account::of(&lab));
        if policy.dictionary && round == Training::DEFAULT.round {
            dictionary = lab.train(group, &Training::DEFAULT);
        }
    }
    let all: Vec<usize> = lab.sandboxes().keys().copied().collect();
    for &number in &all {
        lab.swap_in(number, &mut Blind);
    }
    let mut half_left = None;
    for (gone, &number) in all.iter().enumerate() {
        if gone == all.len() / 2 {
            half_left = Some(Account::of(&lab));
            for &left in &all[gone..] {
                lab.swap_in(left, &mut Blind);
            }
        }
        lab.leave(number);
        lab.compact();
    }
    lab.remove_group(group);
    assert_eq!(lab.native().entries(), 0, "entries are left");
    assert_eq!(lab.native().pool().counts(), before, "pages are left");
    Life {
        rounds,
        half_left: half_left.expect("a scenario has sandboxes"),
        dictionary,
        events: lab.events(),
    }
}

/// Lists of the pages that the first `sandboxes` sandboxes own at their last wait.
pub fn last_wait(scenario: &Scenario, sandboxes: usize) -> impl Iterator<Item = IndexedPage> + '_ {
    let lists = scenario.sandboxes.iter().take(sandboxes);
    lists.flat_map(|sandbox| sandbox.waits.last().into_iter().flatten().copied())
}

/// Times stores and loads, and zstd-3 and lz4 in between on some of the same pages.
pub struct Stopwatch {
    clock: Clock,
    stores: BTreeMap<&'static str, Samples>,
    looks: BTreeMap<&'static str, Samples>,
    loads: BTreeMap<&'static str, Samples>,
    /// What zstd-3 and lz4 are given.
    sampled: HashMap<u32, Vec<u8>>,
    count: usize,
    zstd: Zstd,
    lz4: Lz4,
    zstd_encode: Samples,
    zstd_decode: Samples,
    lz4_encode: Samples,
}

/// Key of the times of all operations together.
pub const ALL: &str = "all";

/// Key of the times of stores that were refused.
pub const REFUSED: &str = "refused";

/// What a [`Stopwatch`] showed.
#[derive(Clone, Debug, Serialize)]
pub struct Timings {
    /// Stores, by the representation chosen, and [`ALL`].
    pub encode: BTreeMap<&'static str, Times>,
    /// Second looks, by the representation that they led to, and [`ALL`].
    pub second_look: BTreeMap<&'static str, Times>,
    /// Loads, likewise.
    pub decode: BTreeMap<&'static str, Times>,
    /// One of [`SAMPLED`] pages with zstd-3.
    pub zstd3_encode: Times,
    /// Those of them that were loaded, each as often as it was.
    pub zstd3_decode: Times,
    /// The same pages with lz4.
    pub lz4_encode: Times,
}

impl Stopwatch {
    /// Ready to measure.
    pub fn new() -> Self {
        Self {
            clock: Clock::new(),
            stores: BTreeMap::new(),
            looks: BTreeMap::new(),
            loads: BTreeMap::new(),
            sampled: HashMap::new(),
            count: 0,
            zstd: Zstd::default(),
            lz4: Lz4::default(),
            zstd_encode: Samples::default(),
            zstd_decode: Samples::default(),
            lz4_encode: Samples::default(),
        }
    }

    /// Sums everything up.
    pub fn timings(&self) -> Timings {
        let times = |samples: &BTreeMap<&'static str, Samples>| {
            samples
                .iter()
                .map(|(&name, samples)| (name, samples.times()))
                .collect()
        };
        Timings {
            encode: times(&self.stores),
            second_look: times(&self.looks),
            decode: times(&self.loads),
            zstd3_encode: self.zstd_encode.times(),
            zstd3_decode: self.zstd_decode.times(),
            lz4_encode: self.lz4_encode.times(),
        }
    }
}

impl Default for Stopwatch {
    fn default() -> Self {
        Self::new()
    }
}

/// Adds the latest of all operations to those of their representation.
fn sort_in(samples: &mut BTreeMap<&'static str, Samples>, name: &'static str) {
    let ns = samples.get(ALL).and_then(Samples::last);
    if let Some(ns) = ns {
        samples.entry(name).or_default().add(ns);
    }
}

impl Observer for Stopwatch {
    fn store(
        &mut self,
        page: u32,
        bytes: &Page,
        run: &mut dyn FnMut() -> Result<Stored, Refusal>,
    ) -> Result<Stored, Refusal> {
        let all = self.stores.entry(ALL).or_default();
        let stored = self.clock.time(all, run);
        sort_in(
            &mut self.stores,
            stored.map_or(REFUSED, |stored| name(stored.representation)),
        );
        self.count += 1;
        if self.count % SAMPLED == 0 {
            let (zstd, lz4) = (&mut self.zstd, &mut self.lz4);
            self.clock
                .time(&mut self.lz4_encode, || lz4.compress(bytes));
            let payload = self
                .clock
                .time(&mut self.zstd_encode, || zstd.compress(bytes));
            let payload = payload.to_vec();
            self.sampled.insert(page, payload);
        }
        stored
    }

    fn improve(
        &mut self,
        _page: u32,
        _bytes: &Page,
        run: &mut dyn FnMut() -> Option<Improved>,
    ) -> Option<Improved> {
        let all = self.looks.entry(ALL).or_default();
        let improved = self.clock.time(all, run);
        if let Some(improved) = improved {
            sort_in(&mut self.looks, name(improved.representation));
        }
        improved
    }

    fn load(&mut self, page: u32, _bytes: &Page, run: &mut dyn FnMut() -> Option<Loaded>) {
        let all = self.loads.entry(ALL).or_default();
        if let Some(loaded) = self.clock.time(all, run) {
            sort_in(&mut self.loads, name(loaded.representation));
        }
        if let Some(payload) = self.sampled.get(&page) {
            let zstd = &mut self.zstd;
            self.clock.time(&mut self.zstd_decode, || {
                zstd.decompress(payload);
            });
        }
    }
}
