// SPDX-License-Identifier: GPL-2.0 OR MIT

//! When memory is short: above the high watermark, until it is below the low one.

use serde::Serialize;

/// Memory of the host, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// All of it.
    pub total: u64,
    /// What can be had without swapping.
    pub available: u64,
    /// Swap that is not taken.
    pub swap_free: u64,
}

impl Memory {
    /// The part that is used: 0 to 1. 0 while nothing is known.
    pub fn used(&self) -> f64 {
        if self.total == 0 {
            return 0.0;
        }
        1.0 - (self.available.min(self.total) as f64 / self.total as f64)
    }
}

/// Whether memory is short, with hysteresis.
#[derive(Clone, Copy, Debug, Default)]
pub struct Watermark {
    short: bool,
}

impl Watermark {
    /// Memory is short.
    pub fn is_short(&self) -> bool {
        self.short
    }

    /// Looks again; all three are parts of 1. Returns whether the answer changed.
    pub fn update(&mut self, used: f64, low: f64, high: f64) -> bool {
        let was = self.short;
        self.short = used >= high || (was && used > low);
        self.short != was
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hysteresis() {
        let mut mark = Watermark::default();
        let mut seen = Vec::new();
        for used in [0.5, 0.7, 0.75, 0.7, 0.61, 0.6, 0.7, 0.9] {
            mark.update(used, 0.6, 0.75);
            seen.push(mark.is_short());
        }
        assert_eq!(seen, [false, false, true, true, true, false, false, true]);
        assert!(!mark.update(0.9, 0.6, 0.75));
        assert!(mark.update(0.1, 0.6, 0.75));
    }

    #[test]
    fn part_used() {
        let memory = |total, available| Memory {
            total,
            available,
            swap_free: 0,
        };
        assert_eq!(memory(0, 0).used(), 0.0);
        assert_eq!(memory(100, 25).used(), 0.75);
        assert_eq!(memory(100, 200).used(), 0.0);
    }
}
