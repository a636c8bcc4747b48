// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Settings of the learner.

use super::plan::Predictor;

/// What the predictors may do, and how much memory they may take.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// [`Predictor::Sequential`] is on.
    pub sequential: bool,
    /// [`Predictor::Transitions`] is on.
    pub transitions: bool,
    /// [`Predictor::WorkingSet`] is on.
    pub working_set: bool,
    /// [`Predictor::AccessBitmap`] is on.
    pub access_bitmap: bool,
    /// Bytes that all knowledge may take together, from 1 MiB on. The parts and their shares are those
    /// of [`Pools`](super::Pools).
    pub memory: usize,
    /// Turns after which what happened counts half, in the knowledge about a tool; greater than 0.
    pub half_life: f32,
    /// The same in the knowledge about one sandbox.
    pub own_half_life: f32,
    /// Least share of a plan's pages that is expected to be touched; pages are added while it holds.
    pub expected_hit_ratio: f32,
    /// Least probability of a page to be touched for which it is restored.
    pub least: f32,
    /// Pages of a plan that is nothing but a guess ([`Basis::Probe`](super::Basis::Probe)).
    pub probe: usize,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            sequential: true,
            transitions: true,
            working_set: true,
            access_bitmap: true,
            memory: 64 << 20,
            half_life: 12.0,
            own_half_life: 4.0,
            expected_hit_ratio: 0.8,
            least: 0.4,
            probe: 64,
        }
    }
}

impl Settings {
    /// A predictor is on.
    pub fn is_on(&self, predictor: Predictor) -> bool {
        match predictor {
            Predictor::Sequential => self.sequential,
            Predictor::Transitions => self.transitions,
            Predictor::WorkingSet => self.working_set,
            Predictor::AccessBitmap => self.access_bitmap,
        }
    }

    /// Everything off but this one.
    pub fn only(predictor: Predictor) -> Settings {
        Settings {
            sequential: predictor == Predictor::Sequential,
            transitions: predictor == Predictor::Transitions,
            working_set: predictor == Predictor::WorkingSet,
            access_bitmap: predictor == Predictor::AccessBitmap,
            ..Settings::default()
        }
    }
}

/// How [`Settings::memory`] is shared out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pools {
    /// Pages in the working sets of tools.
    pub tools: usize,
    /// Pages in the sets of single sandboxes, all together.
    pub own: usize,
    /// Pages touched in turns under way, all together.
    pub turns: usize,
    /// Runs of the access bitmaps, all together.
    pub accessed: usize,
    /// Runs of the pages that exist, all together.
    pub extents: usize,
    /// Pages whose followers are known.
    pub transitions: usize,
    /// Pages of plans that the mixer compares with what came, all together.
    pub samples: usize,
}

impl Pools {
    /// The shares of a number of bytes.
    pub fn of(bytes: usize) -> Pools {
        let share = |percent: usize, size: usize| bytes.max(1 << 20) / 100 * percent / size;
        Pools {
            tools: share(13, 16),
            own: share(25, 16),
            turns: share(25, 8),
            accessed: share(12, 16),
            extents: share(6, 16),
            transitions: share(12, 104),
            samples: share(5, 16),
        }
    }
}
