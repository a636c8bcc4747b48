// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The two arenas of a sandbox.
//!
//! Payloads that wait for a second look lie apart from those that are there to stay. Most of them go
//! in the order in which they came, so that whole pages become free; among the others each would leave
//! a hole that nothing fits into.

use super::{Arena, Pages};

/// The arenas of a sandbox, under one lock.
pub struct Arenas<P: Pages> {
    provisional: Arena<P>,
    lasting: Arena<P>,
}

impl<P: Pages + Clone> Arenas<P> {
    /// Empty ones.
    pub fn new(pages: P) -> Self {
        Self {
            provisional: Arena::new(pages.clone()),
            lasting: Arena::new(pages),
        }
    }

    /// The same, but [wiping](Arena::wiping) ones.
    #[must_use]
    pub fn wiping(self) -> Self {
        Self {
            provisional: self.provisional.wiping(),
            lasting: self.lasting.wiping(),
        }
    }
}

impl<P: Pages> Arenas<P> {
    /// The arena of payloads that wait for a second look, or of the others.
    pub fn of(&mut self, provisional: bool) -> &mut Arena<P> {
        match provisional {
            true => &mut self.provisional,
            false => &mut self.lasting,
        }
    }

    /// Both.
    pub fn each(&self) -> [&Arena<P>; 2] {
        [&self.provisional, &self.lasting]
    }

    /// Pages of both.
    pub fn pages(&self) -> u64 {
        let [one, other] = self.each();
        one.pages().saturating_add(other.pages())
    }

    /// As [`Arena::is_sparse`], of either.
    pub fn is_sparse(&self) -> bool {
        self.each().into_iter().any(Arena::is_sparse)
    }

    /// As [`Arena::begin_compaction`], of those that are sparse.
    pub fn begin_compaction(&mut self) -> bool {
        for arena in [&mut self.provisional, &mut self.lasting] {
            if arena.is_sparse() && arena.begin_compaction() {
                return true;
            }
        }
        false
    }

    /// As [`Arena::end_compaction`], of both.
    pub fn end_compaction(&mut self) -> bool {
        let mut left = false;
        for arena in [&mut self.provisional, &mut self.lasting] {
            left |= arena.end_compaction();
        }
        left
    }

    /// As [`Arena::clear`], of both.
    pub fn clear(&mut self, mut released: impl FnMut(u32)) {
        self.provisional.clear(&mut released);
        self.lasting.clear(&mut released);
    }
}
