// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Stores that were not needed, as entries are kept when their pages are loaded.
//!
//! A page that was loaded and not changed is reclaimed again without a store. Nobody counts that, and
//! a bit for each entry would cost more than the answer is worth. But the kernel counts the pages that
//! reclaim took, and each of them was stored, declined, marked as filled with zeros, or unchanged.
//! A page that was stored and could not be let go of is taken later, or still there: then the count is
//! too low by it, never too high.
//!
//! All reclaim of a run is by memory.reclaim with swappiness=max, which takes anonymous pages only.

use std::collections::BTreeMap;

use serde::Serialize;

use super::cgroup::Evicted;

/// What became of the pages that were reclaimed, up to the last wait.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct StoresSaved {
    /// Pages that memory.reclaim took out of the sandboxes.
    pub reclaimed_pages: u64,
    /// Pages that the module stored.
    pub stored_pages: u64,
    /// Pages that it declined.
    pub declined_pages: u64,
    /// Pages that the swap core marked as filled with zeros.
    pub zero_filled_pages: u64,
    /// The others: they needed no store.
    pub saved_pages: u64,
    /// `saved_pages` of `saved_pages + stored_pages`; 0 without any.
    pub share: f64,
}

impl StoresSaved {
    /// From the module's counters and the sandboxes' cgroups, read when statistics have settled.
    pub fn new(counters: &BTreeMap<String, u64>, evicted: &[Evicted]) -> Self {
        let reclaimed_pages = evicted.iter().map(|e| e.reclaimed).sum::<u64>();
        let zero_filled_pages = evicted.iter().map(|e| e.zero_filled).sum::<u64>();
        let stored_pages = counters.get("stores").copied().unwrap_or(0);
        let declined = counters
            .iter()
            .filter(|(name, _)| name.starts_with("declined_"));
        let declined_pages = declined.map(|(_, pages)| pages).sum::<u64>();
        let written = stored_pages + declined_pages + zero_filled_pages;
        let saved_pages = reclaimed_pages.saturating_sub(written);
        let needed = saved_pages + stored_pages;
        Self {
            reclaimed_pages,
            stored_pages,
            declined_pages,
            zero_filled_pages,
            saved_pages,
            share: saved_pages as f64 / (needed as f64).max(1.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_is_accounted_for_once() {
        let counters = [
            ("stores", 300),
            ("loads", 9999),
            ("declined_full", 20),
            ("declined_nomem", 30),
        ]
        .map(|(name, pages)| (name.to_owned(), pages))
        .into();
        let evicted = [(400, 0), (100, 50)].map(|(reclaimed, zero_filled)| Evicted {
            stolen: reclaimed,
            reclaimed,
            zero_filled,
        });
        let expected = StoresSaved {
            reclaimed_pages: 500,
            stored_pages: 300,
            declined_pages: 50,
            zero_filled_pages: 50,
            saved_pages: 100,
            share: 0.25,
        };
        assert_eq!(StoresSaved::new(&counters, &evicted), expected);
        assert_eq!(StoresSaved::new(&BTreeMap::new(), &[]).share, 0.0);
    }
}
