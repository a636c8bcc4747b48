// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What the sandboxes of a group share: reference pages, their payloads, and the index that leads
//! to pages which may become some.

use super::codec::{Sketch, FEATURES, NO_FEATURE};
use super::index::{key_of_feature, key_of_index};
use super::{Arena, Dictionaries, Index, Pages, References, Slot, Where};

/// Features of a page that an index has keys for. More would find little more, and take the room of
/// other pages.
const KEY_FEATURES: usize = 3;

const _: () = assert!(KEY_FEATURES <= FEATURES);

/// Most pages that are ranked for one page: one for its index, one for each feature.
const MAX_RANKED: usize = 1 + KEY_FEATURES;

/// Everything that a group shares, under one lock.
pub struct Group<P: Pages> {
    /// Payloads of reference pages.
    pub arena: Arena<P>,
    /// The reference pages.
    pub references: References<P>,
    /// Where pages lie that no other page explains well.
    pub index: Index<P>,
    /// The dictionaries in use.
    pub dictionaries: Dictionaries,
    /// The budget, in pages.
    max_pages: u64,
}

/// Where pages may lie that resemble a page, the most promising first.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ranking {
    found: [Option<(Where, u8)>; MAX_RANKED],
}

impl Ranking {
    /// What to look at, in order.
    pub fn iter(&self) -> impl Iterator<Item = Where> + '_ {
        self.found.iter().flatten().map(|&(at, _)| at)
    }

    fn vote(&mut self, at: Where, votes: u8) {
        for place in &mut self.found {
            match place {
                Some((known, sum)) if *known == at => {
                    *sum = sum.saturating_add(votes);
                    return;
                }
                None => {
                    *place = Some((at, votes));
                    return;
                }
                Some(_) => {}
            }
        }
    }

    fn sort(&mut self) {
        // Stable: among equals, the first to be found.
        for end in (1..MAX_RANKED).rev() {
            for i in 0..end {
                let j = i.wrapping_add(1);
                let votes = |place: Option<&Option<(Where, u8)>>| {
                    place.and_then(|place| place.map(|(_, votes)| votes))
                };
                if votes(self.found.get(i)) < votes(self.found.get(j)) {
                    self.found.swap(i, j);
                }
            }
        }
    }
}

/// Which hints are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Pages of the same index.
    pub index: bool,
    /// Pages of similar content.
    pub sketch: bool,
}

fn keys(index: u64, sketch: &Sketch, wanted: Wanted) -> impl Iterator<Item = (u64, u8)> + '_ {
    // A page of the same index resembles ours more often than one that shares a single feature.
    let by_index = wanted.index.then(|| (key_of_index(index), 2));
    let by_content = feature_keys(sketch).map(|key| (key, 1));
    by_index
        .into_iter()
        .chain(by_content.filter(move |_| wanted.sketch))
}

/// The keys under which an [`Index`] has pages with this sketch.
pub fn feature_keys(sketch: &Sketch) -> impl Iterator<Item = u64> + '_ {
    (0u8..)
        .zip(sketch.iter().take(KEY_FEATURES))
        .filter(|&(_, &feature)| feature != NO_FEATURE)
        .map(|(number, &feature)| key_of_feature(number, feature))
}

impl<P: Pages + Clone> Group<P> {
    /// A group without pages. `max_pages` is the budget for its reference pages, `index_pages` bounds
    /// its index.
    pub fn new(pages: P, max_pages: u64, index_pages: u32) -> Self {
        Self {
            arena: Arena::new(pages.clone()),
            references: References::new(pages.clone()),
            index: Index::new(pages, index_pages),
            dictionaries: Dictionaries::new(),
            max_pages,
        }
    }
}

impl<P: Pages> Group<P> {
    /// Sets the budget: the most pages that reference pages, their table included, may take before
    /// no further one is made.
    pub fn set_budget(&mut self, pages: u64) {
        self.max_pages = pages;
    }

    /// Whether the budget for reference pages is used up.
    pub fn is_full(&self) -> bool {
        self.arena.pages().saturating_add(self.references.pages()) >= self.max_pages
    }

    /// Pages of every kind that the group holds.
    pub fn pages(&self) -> u64 {
        self.arena
            .pages()
            .saturating_add(self.references.pages())
            .saturating_add(self.index.pages())
    }

    /// Ranks where pages may lie that resemble one with this index and sketch: only reference pages
    /// when the budget leaves no room for another.
    pub fn rank(&self, index: u64, sketch: &Sketch, wanted: Wanted) -> Ranking {
        let mut ranking = Ranking::default();
        let full = self.is_full();
        for (key, votes) in keys(index, sketch, wanted) {
            match self.index.lookup(key) {
                Some(at) if !full || matches!(at, Where::Reference(_)) => ranking.vote(at, votes),
                _ => {}
            }
        }
        ranking.sort();
        ranking
    }

    /// Enters a page that was stored in `slot`, but for the keys that lead to a reference page: who
    /// is based on that one adds no further one.
    pub fn remember(&mut self, index: u64, sketch: &Sketch, wanted: Wanted, slot: Slot) {
        for (key, _) in keys(index, sketch, wanted) {
            if !self.leads_to_reference(key) {
                self.index.insert(key, Where::Slot(slot.to_bits()));
            }
        }
    }

    /// Whether the hint for a key is a reference page that lives.
    fn leads_to_reference(&self, key: u64) -> bool {
        match self.index.lookup(key) {
            Some(Where::Reference(id)) => self.references.get(id).is_some(),
            _ => false,
        }
    }

    /// Lets the hints through which a page was found lead to the reference page that it became.
    pub fn redirect(&mut self, index: u64, sketch: &Sketch, from: Where, to: Where) {
        let wanted = Wanted {
            index: true,
            sketch: true,
        };
        for (key, _) in keys(index, sketch, wanted) {
            // A hint that is not there any more does not matter.
            self.index.replace(key, from, to);
        }
    }

    /// Gives all pages back. What was stored there is lost.
    pub fn clear(&mut self, mut released: impl FnMut(u32)) {
        self.index.clear(&mut released);
        self.arena.clear(&mut released);
        self.references.clear(&mut released);
    }
}
