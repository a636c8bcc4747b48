// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The window: how many pages a sandbox's restore may go ahead of need.

/// Least and most pages of a window.
pub const MIN_WINDOW: u32 = 16;

/// See [`MIN_WINDOW`].
pub const MAX_WINDOW: u32 = 64;

/// Pages of a plan for each page of the window: a window is what one job of the restore workers takes at
/// most, a plan is as long as 64 such jobs.
pub const PLAN_FACTOR: u32 = 64;

/// Results that make a verdict about the window.
const VERDICT: u32 = 64;

/// The window of a sandbox.
#[derive(Clone, Debug, PartialEq)]
pub struct Window {
    pages: u32,
    floor: f64,
    ceiling: f64,
    hits: u32,
    results: u32,
}

impl Window {
    /// The first window: `clamp(32 * (0.7 * events + 0.3 * active_ratio), 16, 64)` pages.
    ///
    /// `events` is how many demand faults the last turn had, as a multiple of what is usual (1 when
    /// nothing is known), `active_ratio` the share of the resident pages that had been accessed when
    /// the wait began. A ratio of hits below `floor` halves the window, one above `ceiling` grows it.
    pub fn new(events: f64, active_ratio: f64, floor: f64, ceiling: f64) -> Window {
        let pages = 32.0 * (0.7 * events + 0.3 * active_ratio);
        // A NaN becomes the least.
        let pages = pages.max(f64::from(MIN_WINDOW)).min(f64::from(MAX_WINDOW));
        Window {
            pages: pages.round() as u32,
            floor,
            ceiling,
            hits: 0,
            results: 0,
        }
    }

    /// Pages of the window, [`MIN_WINDOW`] to [`MAX_WINDOW`].
    pub fn pages(&self) -> u32 {
        self.pages
    }

    /// Most pages of a plan: [`PLAN_FACTOR`] windows.
    pub fn plan_pages(&self) -> u32 {
        self.pages * PLAN_FACTOR
    }

    /// Tells how pages ended that were restored ahead of need. Each 64 results or more make a verdict:
    /// fewer hits than the floor halve the window, more than the ceiling add an eighth.
    pub fn ended(&mut self, hits: u32, misses: u32) {
        self.hits = self.hits.saturating_add(hits);
        self.results = self.results.saturating_add(hits).saturating_add(misses);
        if self.results < VERDICT {
            return;
        }
        let ratio = f64::from(self.hits) / f64::from(self.results);
        if ratio < self.floor {
            self.pages = (self.pages / 2).max(MIN_WINDOW);
        } else if ratio > self.ceiling {
            self.pages = (self.pages + self.pages / 8).min(MAX_WINDOW);
        }
        (self.hits, self.results) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn window(events: f64, active: f64) -> Window {
        Window::new(events, active, 0.5, 0.8)
    }

    #[test]
    fn first_window() {
        assert_eq!(window(0.0, 0.0).pages(), 16);
        assert_eq!(window(1.0, 1.0).pages(), 32);
        assert_eq!(window(1.5, 0.5).pages(), 38);
        assert_eq!(window(9.0, 1.0).pages(), 64);
        assert_eq!(window(f64::NAN, f64::NAN).pages(), 16);
        assert_eq!(window(f64::INFINITY, 0.0).pages(), 64);
        assert_eq!(window(-1.0, 0.0).pages(), 16);
        assert_eq!(window(1.0, 1.0).plan_pages(), 2048);
    }

    #[test]
    fn halves_at_once_and_grows_slowly() {
        let mut window = window(9.0, 1.0);
        window.ended(20, 43);
        assert_eq!(window.pages(), 64, "63 results are no verdict");
        window.ended(0, 1);
        assert_eq!(window.pages(), 32);
        window.ended(45, 19);
        assert_eq!(
            window.pages(),
            32,
            "between floor and ceiling nothing changes"
        );
        window.ended(60, 4);
        assert_eq!(window.pages(), 36);
        for _ in 0..5 {
            window.ended(64, 0);
        }
        assert_eq!(window.pages(), 63);
        window.ended(64, 0);
        assert_eq!(window.pages(), 64);
    }

    proptest! {
        #[test]
        fn never_leaves_its_bounds(
            events in any::<f64>(),
            active in any::<f64>(),
            ends in prop::collection::vec((any::<u32>(), any::<u32>()), 0..50),
        ) {
            let mut window = window(events, active);
            for (hits, misses) in ends {
                window.ended(hits, misses);
                prop_assert!((MIN_WINDOW..=MAX_WINDOW).contains(&window.pages()));
            }
        }
    }
}
