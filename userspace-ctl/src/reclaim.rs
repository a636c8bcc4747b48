// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Takes the anonymous memory of a sandbox out, in slices, until nothing is left to gain.

use std::time::{Duration, Instant};

use serde::Serialize;

use crate::cgroup::{Cgroup, MemoryStat, Reclaimed};
use crate::error::Result;
use crate::PAGE_SIZE;

/// How to go about it.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Bytes asked for at once. The kernel looks for signals only now and then within a slice.
    pub slice: u64,
    /// A slice that gains fewer bytes than this counts as dry. Not below the error of
    /// `memory.stat` (256 KiB for each CPU), or noise looks like progress.
    pub floor: u64,
    /// Dry slices in a row that are borne: pages under write-back need a moment.
    pub patience: u32,
    /// Pause after a dry slice.
    pub pause: Duration,
    /// Most slices in all.
    pub max_slices: u32,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            slice: 32 << 20,
            floor: 512 << 10,
            patience: 2,
            pause: Duration::from_millis(10),
            max_slices: 4096,
        }
    }
}

/// Why reclaim ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stop {
    /// No reclaimable anonymous memory is left, or less than the floor.
    Empty,
    /// Some is left, but slices no longer gain anything: it is in use, locked, or swap is full.
    Dry,
    /// The bound on slices was reached.
    Bound,
}

/// What was done.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Report {
    /// Memory before.
    pub before: MemoryStat,
    /// Memory after.
    pub after: MemoryStat,
    /// Writes to `memory.reclaim`.
    pub slices: u32,
    /// Those of them that reclaimed less than was asked (`EAGAIN`).
    pub short_slices: u32,
    /// Why it ended.
    pub stop: Stop,
    /// Time in seconds.
    #[serde(rename = "seconds", serialize_with = "seconds")]
    pub elapsed: Duration,
}

pub(crate) fn seconds<S: serde::Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_f64(time.as_secs_f64())
}

/// Memory that can be reclaimed: a cgroup, or a model of one in tests.
pub trait Memory {
    /// How much there is.
    fn stat(&self) -> Result<MemoryStat>;
    /// Reclaims up to this many bytes.
    fn reclaim(&self, bytes: u64) -> Result<Reclaimed>;
}

impl Memory for Cgroup {
    fn stat(&self) -> Result<MemoryStat> {
        self.memory_stat()
    }

    fn reclaim(&self, bytes: u64) -> Result<Reclaimed> {
        Cgroup::reclaim(self, bytes)
    }
}

/// Reclaims anonymous memory until nothing is left to gain.
///
/// # Errors
///
/// When a file of the cgroup cannot be read, or reclaim fails otherwise than by falling short.
pub fn reclaim(memory: &impl Memory, options: &Options) -> Result<Report> {
    let started = Instant::now();
    let before = memory.stat()?;
    let mut report = Report {
        before,
        after: before,
        slices: 0,
        short_slices: 0,
        stop: Stop::Empty,
        elapsed: Duration::ZERO,
    };
    let mut dry = 0;
    // The statistics lag: they may say zero while the last pages are still there, so one slice is
    // always asked for.
    loop {
        let left = report.after.reclaimable;
        let ask = left.clamp(options.floor.min(options.slice), options.slice);
        let outcome = memory.reclaim(ask.next_multiple_of(PAGE_SIZE))?;
        report.slices += 1;
        report.after = memory.stat()?;
        let gained = left.saturating_sub(report.after.reclaimable);
        report.short_slices += u32::from(outcome == Reclaimed::Less);
        // Pages that came in lately are in no list yet. Only a slice that falls short collects them.
        let hidden = report.after.anon + report.after.swap_cached;
        if report.after.reclaimable == 0 && (hidden == 0 || outcome == Reclaimed::Less) {
            report.stop = Stop::Empty;
            break;
        }
        dry = if gained < options.floor { dry + 1 } else { 0 };
        if dry > options.patience {
            report.stop = Stop::Dry;
            break;
        }
        if report.slices >= options.max_slices {
            report.stop = Stop::Bound;
            break;
        }
        if dry > 0 {
            std::thread::sleep(options.pause);
        }
    }
    if report.stop == Stop::Dry && report.after.reclaimable < options.floor {
        report.stop = Stop::Empty;
    }
    report.elapsed = started.elapsed();
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};

    /// `hard` bytes never go; each write frees at most `each`.
    struct Model {
        easy: Cell<u64>,
        hard: u64,
        each: u64,
        asked: RefCell<Vec<u64>>,
    }

    impl Model {
        fn new(easy: u64, hard: u64) -> Self {
            Model {
                easy: Cell::new(easy),
                hard,
                each: u64::MAX,
                asked: RefCell::default(),
            }
        }
    }

    impl Memory for Model {
        fn stat(&self) -> Result<MemoryStat> {
            Ok(MemoryStat {
                reclaimable: self.easy.get() + self.hard,
                ..MemoryStat::default()
            })
        }

        fn reclaim(&self, bytes: u64) -> Result<Reclaimed> {
            self.asked.borrow_mut().push(bytes);
            let gone = self.easy.get().min(bytes).min(self.each);
            self.easy.set(self.easy.get() - gone);
            Ok(if gone >= bytes {
                Reclaimed::All
            } else {
                Reclaimed::Less
            })
        }
    }

    fn quick() -> Options {
        Options {
            pause: Duration::ZERO,
            ..Options::default()
        }
    }

    #[test]
    fn everything_goes_in_slices() {
        let model = Model::new(100 << 20, 0);
        let report = reclaim(&model, &quick()).unwrap();
        assert_eq!(report.stop, Stop::Empty);
        assert_eq!(report.after.reclaimable, 0);
        assert_eq!(
            *model.asked.borrow(),
            [32 << 20, 32 << 20, 32 << 20, 4 << 20]
        );
    }

    #[test]
    fn what_stays_ends_it() {
        let model = Model::new(10 << 20, 6 << 20);
        let report = reclaim(&model, &quick()).unwrap();
        assert_eq!(report.stop, Stop::Dry);
        assert_eq!(report.after.reclaimable, 6 << 20);
        assert!(report.slices <= 4, "{report:?}");
        assert!(report.short_slices >= 1);
    }

    #[test]
    fn short_slices_that_gain_go_on() {
        let model = Model {
            each: 1 << 20,
            ..Model::new(20 << 20, 0)
        };
        let report = reclaim(&model, &quick()).unwrap();
        assert_eq!((report.stop, report.after.reclaimable), (Stop::Empty, 0));
        assert_eq!(report.slices, 20);
    }

    /// Pages in per-CPU batches: `anon` counts them, the lists do not until a slice falls short.
    #[test]
    fn pages_in_no_list_yet_go_too() {
        struct Batches {
            listed: Cell<u64>,
            hidden: Cell<u64>,
        }
        impl Memory for Batches {
            fn stat(&self) -> Result<MemoryStat> {
                Ok(MemoryStat {
                    anon: self.listed.get() + self.hidden.get(),
                    reclaimable: self.listed.get(),
                    ..MemoryStat::default()
                })
            }
            fn reclaim(&self, bytes: u64) -> Result<Reclaimed> {
                let gone = self.listed.get().min(bytes);
                self.listed.set(self.listed.get() - gone);
                if gone == bytes {
                    return Ok(Reclaimed::All);
                }
                self.hidden.set(0);
                Ok(Reclaimed::Less)
            }
        }
        let memory = Batches {
            listed: Cell::new(1 << 20),
            hidden: Cell::new(60 << 10),
        };
        let report = reclaim(&memory, &quick()).unwrap();
        assert_eq!((report.stop, report.slices), (Stop::Empty, 2));
        assert_eq!(report.after.anon, 0);
    }

    #[test]
    fn an_empty_sandbox_takes_one_slice() {
        let report = reclaim(&Model::new(0, 0), &quick()).unwrap();
        assert_eq!((report.stop, report.slices), (Stop::Empty, 1));
    }

    #[test]
    fn less_than_the_floor_is_no_endless_loop() {
        let report = reclaim(&Model::new(0, 4096), &quick()).unwrap();
        assert_eq!(report.stop, Stop::Empty);
        assert!(report.slices <= 3, "{report:?}");
    }

    #[test]
    fn the_number_of_slices_is_bounded() {
        let model = Model {
            each: 1 << 20,
            ..Model::new(100 << 20, 0)
        };
        let options = Options {
            max_slices: 5,
            ..quick()
        };
        let report = reclaim(&model, &options).unwrap();
        assert_eq!((report.stop, report.slices), (Stop::Bound, 5));
    }

    /// A plain file as `memory.reclaim` takes every write and changes nothing.
    #[test]
    fn writes_that_do_nothing_end_it_too() {
        struct Plain;
        impl Memory for Plain {
            fn stat(&self) -> Result<MemoryStat> {
                Ok(MemoryStat {
                    reclaimable: 8 << 20,
                    ..MemoryStat::default()
                })
            }
            fn reclaim(&self, _: u64) -> Result<Reclaimed> {
                Ok(Reclaimed::All)
            }
        }
        let report = reclaim(&Plain, &quick()).unwrap();
        assert_eq!(report.stop, Stop::Dry);
    }
}
