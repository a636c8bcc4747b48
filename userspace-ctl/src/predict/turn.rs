// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What happened to pages in the turn under way.

use std::collections::BTreeMap;

/// It was touched: a demand fault, or a hit.
pub(super) const TOUCHED: u8 = 1;
/// It is in a plan.
pub(super) const ASKED: u8 = 2;
/// It was restored ahead of need and not touched in time.
pub(super) const MISSED: u8 = 4;

/// It was touched while the tool of now ran.
pub(super) const BY_TOOL: u8 = 8;

const BITS: u32 = 4;

const FLAGS: u64 = (1 << BITS) - 1;

/// Pages that are put in order at once.
const RECENT: usize = 512;

/// Flags of pages, by their keys. Eight bytes a page: a key has 59 bits.
#[derive(Clone, Debug, Default)]
pub(super) struct Turn {
    sorted: Vec<u64>,
    recent: BTreeMap<u64, u8>,
    most: usize,
}

impl Turn {
    /// Room for so many pages; flags of further ones are lost.
    pub(super) fn limit(&mut self, most: usize) {
        self.most = most;
        if self.len() > most {
            self.settle();
            self.sorted.truncate(most);
            self.sorted.shrink_to_fit();
        }
    }

    pub(super) fn len(&self) -> usize {
        self.sorted.len() + self.recent.len()
    }

    /// Adds flags.
    pub(super) fn add(&mut self, key: u64, flags: u8) {
        if let Some(place) = self.find(key) {
            self.sorted[place] |= u64::from(flags);
        } else if let Some(known) = self.recent.get_mut(&key) {
            *known |= flags;
        } else if self.len() < self.most {
            self.recent.insert(key, flags);
            if self.recent.len() >= RECENT {
                self.settle();
            }
        }
    }

    /// Takes flags away.
    pub(super) fn remove(&mut self, key: u64, flags: u8) {
        if let Some(place) = self.find(key) {
            self.sorted[place] &= !u64::from(flags);
        } else if let Some(known) = self.recent.get_mut(&key) {
            *known &= !flags;
        }
    }

    /// The flags of a page.
    pub(super) fn flags(&self, key: u64) -> u8 {
        match self.find(key) {
            Some(place) => (self.sorted[place] & FLAGS) as u8,
            None => self.recent.get(&key).copied().unwrap_or(0),
        }
    }

    /// The keys that have a flag, ascending.
    pub(super) fn with(&mut self, flag: u8) -> Vec<u64> {
        self.settle();
        let having = self.sorted.iter().filter(|&&e| e & u64::from(flag) != 0);
        having.map(|e| e >> BITS).collect()
    }

    /// Takes a flag away from all pages.
    pub(super) fn clear_flag(&mut self, flag: u8) {
        self.settle();
        for entry in &mut self.sorted {
            *entry &= !u64::from(flag);
        }
    }

    /// Bytes that it takes.
    pub(super) fn bytes(&self) -> usize {
        self.sorted.capacity() * 8 + self.recent.len() * 24
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.sorted = Vec::new();
        self.recent.clear();
    }

    fn find(&self, key: u64) -> Option<usize> {
        let place = self.sorted.partition_point(|&e| e >> BITS < key);
        (self.sorted.get(place)? >> BITS == key).then_some(place)
    }

    fn settle(&mut self) {
        let recent = std::mem::take(&mut self.recent);
        let recent = recent
            .into_iter()
            .map(|(key, f)| (key << BITS) | u64::from(f));
        self.sorted.extend(recent);
        // Two sorted runs: the stable sort merges them.
        self.sorted.sort();
        self.sorted.shrink_to(self.sorted.len() + RECENT);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn like_a_map(script in prop::collection::vec((0u64..2000, 0u8..8, any::<bool>()), 0..3000)) {
            let mut turn = Turn::default();
            turn.limit(10_000);
            let mut model: BTreeMap<u64, u8> = BTreeMap::new();
            for (key, flags, add) in script {
                if add {
                    turn.add(key, flags);
                    *model.entry(key).or_default() |= flags;
                } else {
                    turn.remove(key, flags);
                    model.entry(key).and_modify(|f| *f &= !flags);
                }
            }
            for key in 0..2000 {
                prop_assert_eq!(turn.flags(key), model.get(&key).copied().unwrap_or(0));
            }
            let touched: Vec<u64> = model.iter().filter(|(_, f)| *f & TOUCHED != 0).map(|(k, _)| *k).collect();
            prop_assert_eq!(turn.with(TOUCHED), touched);
        }
    }

    #[test]
    fn what_has_no_room_is_lost() {
        let mut turn = Turn::default();
        turn.limit(1000);
        for key in 0..5000 {
            turn.add(key, TOUCHED);
        }
        assert_eq!(turn.len(), 1000);
        turn.add(7, ASKED);
        assert_eq!(turn.flags(7), TOUCHED | ASKED);
        turn.limit(10);
        assert_eq!(turn.with(TOUCHED), (0..10).collect::<Vec<_>>());
    }
}
