// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What the memory of a process should hold.

use anyhow::{Context, Result};

use super::random::Random;
use crate::suite::fixture::page::Spec;
use crate::suite::fixture::puppet::{Puppet, Region};

/// First gibibyte of the arena for what processes map themselves; the template's region is before it.
const FIRST_SLOT: usize = 2;
/// Gibibytes of the arena, less one.
const SLOTS: usize = 900;

/// A stretch of pages that is one mapping.
#[derive(Clone)]
pub struct Piece {
    /// Where it is and what it holds.
    pub region: Region,
    /// It is shared memory.
    pub shared: bool,
    /// It is locked into memory.
    pub locked: bool,
}

/// A process and its memory.
pub struct Process {
    /// The process.
    pub puppet: Puppet,
    /// Its mappings.
    pub pieces: Vec<Piece>,
    slot: usize,
    /// Addresses of shared memory that it inherited and does not use.
    inherited: Vec<usize>,
}

impl Process {
    /// One that was just forked from the template's zygote.
    pub fn new(puppet: Puppet, template: &Region) -> Process {
        let piece = Piece {
            region: template.clone(),
            shared: false,
            locked: false,
        };
        Process {
            puppet,
            pieces: vec![piece],
            slot: FIRST_SLOT,
            inherited: Vec::new(),
        }
    }

    /// One that this one just forked. What both share only this one goes on to use; locks are not
    /// inherited.
    pub fn forked(&self, puppet: Puppet) -> Process {
        let (shared, own): (Vec<Piece>, Vec<Piece>) =
            self.pieces.iter().cloned().partition(|piece| piece.shared);
        let pieces = own.into_iter().map(|piece| Piece {
            locked: false,
            ..piece
        });
        let shared = shared.iter().map(|piece| piece.region.addr);
        Process {
            puppet,
            pieces: pieces.collect(),
            slot: self.slot,
            inherited: self.inherited.iter().copied().chain(shared).collect(),
        }
    }

    /// Pages that it has mapped.
    pub fn pages(&self) -> usize {
        self.pieces.iter().map(|piece| piece.region.pages()).sum()
    }

    /// A place of the arena where nothing is mapped.
    pub fn free_address(&mut self) -> usize {
        loop {
            self.slot = if self.slot == SLOTS {
                FIRST_SLOT
            } else {
                self.slot + 1
            };
            let there = Region::new(self.slot, 0).addr;
            let mut mapped = self.pieces.iter().map(|piece| piece.region.addr);
            let taken = |addr: usize| addr >> 30 == there >> 30;
            if !mapped.any(taken) && !self.inherited.iter().copied().any(taken) {
                return there;
            }
        }
    }

    /// Writes new contents to some pages of a mapping.
    pub fn write(&mut self, piece: usize, part: (usize, usize), random: &mut Random) -> Result<()> {
        let specs: Vec<Spec> = (part.0..part.0 + part.1)
            .map(|page| random.spec(page))
            .collect();
        let region = &mut self.pieces[piece].region;
        self.puppet.write(region, |page| {
            page.checked_sub(part.0)
                .and_then(|index| specs.get(index).copied())
        })
    }

    /// Checks some pages of a mapping.
    pub fn check(&self, piece: usize, part: (usize, usize)) -> Result<u64> {
        let region = &self.pieces[piece].region;
        let some = region.part(part.0, part.1);
        self.puppet
            .check(&some)
            .with_context(|| format!("from page {} of {:#x}", part.0, region.addr))?;
        Ok(part.1 as u64)
    }

    /// Checks everything; returns the number of pages.
    pub fn check_all(&self) -> Result<u64> {
        let pieces = 0..self.pieces.len();
        pieces
            .map(|piece| self.check(piece, (0, self.pieces[piece].region.pages())))
            .sum()
    }

    /// Forgets some pages in the middle of a mapping, which is two then, or one, or none.
    pub fn cut(&mut self, piece: usize, (from, pages): (usize, usize)) {
        let whole = self.pieces.remove(piece);
        let end = from + pages;
        let rest = whole.region.pages() - end;
        for (from, pages) in [(0, from), (end, rest)] {
            if pages > 0 {
                let region = whole.region.part(from, pages);
                self.pieces.push(Piece {
                    region,
                    ..whole.clone()
                });
            }
        }
    }
}
