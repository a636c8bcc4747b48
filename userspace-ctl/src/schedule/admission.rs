// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Who of the sandboxes that wake may go on.
//!
//! A sandbox that wakes is about to need again what was taken from it. When many wake at once that
//! may be more than the host has, so each one's need is set aside when it is let go on, until
//! the host's numbers show it; those for whom nothing is left are held. Interactive ones come first
//! and are held only while what they need is not there; batch ones also while memory is short.
//! Nobody is held for longer than its limit.

use std::time::Duration;

use super::watermark::Memory;
use crate::lifecycle::Time;

/// How long the need of a sandbox that was let go on is set aside.
pub const SETTLING: Duration = Duration::from_secs(5);

/// Part of the memory that is never given away: 1 in this many.
const RESERVE: u64 = 20;

/// One that wants to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wish {
    /// Which sandbox.
    pub id: u64,
    /// Bytes that it is about to need.
    pub need: u64,
    /// Somebody waits for it.
    pub interactive: bool,
    /// How long it may be held.
    pub limit: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    wish: Wish,
    since: Time,
}

#[derive(Clone, Copy, Debug)]
struct Promise {
    id: u64,
    need: u64,
    since: Time,
}

/// Why one was let go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// There is memory for it.
    Room,
    /// It was held for as long as it may be.
    Limit,
}

/// Those that are held, and those that were let go on a moment ago.
#[derive(Clone, Debug)]
pub struct Admission {
    settling: Duration,
    held: Vec<Held>,
    promises: Vec<Promise>,
}

impl Admission {
    /// Nobody is held. What is promised is set aside for `settling`; see [`SETTLING`].
    pub fn new(settling: Duration) -> Admission {
        Admission {
            settling,
            held: Vec::new(),
            promises: Vec::new(),
        }
    }

    /// How many are held.
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// This one is held.
    pub fn holds(&self, id: u64) -> bool {
        self.held.iter().any(|held| held.wish.id == id)
    }

    /// Bytes that were promised and that the host's numbers may not show yet.
    pub fn promised(&self) -> u64 {
        self.promises
            .iter()
            .fold(0, |sum, promise| sum.saturating_add(promise.need))
    }

    /// Bytes that can be promised now.
    pub fn room(&self, memory: &Memory) -> u64 {
        memory
            .available
            .saturating_sub(memory.total / RESERVE)
            .saturating_sub(self.promised())
    }

    /// Asks to let one go on. Returns false when it is held: [`Admission::review`] lets it go on.
    ///
    /// `resume_below`: part of the memory used below which batch ones go on.
    pub fn ask(&mut self, wish: Wish, memory: &Memory, resume_below: f64, now: Time) -> bool {
        self.forget(wish.id);
        // Nobody overtakes one of its kind.
        let before = self
            .held
            .iter()
            .any(|held| held.wish.interactive || !wish.interactive);
        if !before && self.fits(&wish, memory, resume_below) {
            self.promise(&wish, now);
            return true;
        }
        self.held.push(Held { wish, since: now });
        false
    }

    fn fits(&self, wish: &Wish, memory: &Memory, resume_below: f64) -> bool {
        // While nothing is known, or nothing was taken, nothing is held back.
        if memory.total == 0 || wish.need == 0 {
            return true;
        }
        let promised = Memory {
            available: memory.available.saturating_sub(self.promised()),
            ..*memory
        };
        let calm = wish.interactive || promised.used() < resume_below;
        calm && wish.need <= self.room(memory)
    }

    fn promise(&mut self, wish: &Wish, now: Time) {
        if wish.need > 0 {
            self.promises.push(Promise {
                id: wish.id,
                need: wish.need,
                since: now,
            });
        }
    }

    /// Looks who may go on now: interactive ones first, each kind in the order of its coming. Those
    /// behind do not take what those in front wait for.
    pub fn review(&mut self, memory: &Memory, resume_below: f64, now: Time) -> Vec<(u64, Release)> {
        // When the clock went back, their time begins anew.
        for promise in &mut self.promises {
            promise.since = promise.since.min(now);
        }
        for held in &mut self.held {
            held.since = held.since.min(now);
        }
        self.promises
            .retain(|promise| now.saturating_sub(promise.since) < self.settling);
        let mut order = self.held.clone();
        order.sort_by_key(|held| !held.wish.interactive);
        let mut released = Vec::new();
        let mut blocked = false;
        for Held { wish, since } in order {
            let over = now.saturating_sub(since) >= wish.limit;
            let fits = !blocked && self.fits(&wish, memory, resume_below);
            if !over && !fits {
                blocked = true;
                continue;
            }
            self.held.retain(|held| held.wish.id != wish.id);
            self.promise(&wish, now);
            released.push((wish.id, if fits { Release::Room } else { Release::Limit }));
        }
        released
    }

    /// One does not want to go on any more, or its need is over. Returns whether it was held.
    pub fn forget(&mut self, id: u64) -> bool {
        let before = self.held.len();
        self.held.retain(|held| held.wish.id != id);
        self.promises.retain(|promise| promise.id != id);
        self.held.len() != before
    }

    /// When the first of the held ones has to be let go on.
    pub fn deadline(&self) -> Option<Time> {
        self.held
            .iter()
            .map(|held| held.since.saturating_add(held.wish.limit))
            .min()
    }

    /// Those that are held, in the order of their coming.
    pub fn ids(&self) -> impl Iterator<Item = u64> + '_ {
        self.held.iter().map(|held| held.wish.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn memory(available: u64) -> Memory {
        Memory {
            total: 20 * GIB,
            available: available * GIB,
            swap_free: GIB,
        }
    }

    fn wish(id: u64, need: u64, interactive: bool) -> Wish {
        Wish {
            id,
            need: need * GIB,
            interactive,
            limit: Duration::from_secs(if interactive { 2 } else { 30 }),
        }
    }

    fn at(seconds: u64) -> Time {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_storm_goes_on_one_by_one() {
        let mut admission = Admission::new(SETTLING);
        // 9 GiB can be given; each needs 4.
        let asked: Vec<bool> = (0..5)
            .map(|id| admission.ask(wish(id, 4, false), &memory(10), 0.95, at(0)))
            .collect();
        assert_eq!(asked, [true, true, false, false, false]);
        assert_eq!(admission.held(), 3);
        assert_eq!(admission.promised(), 8 * GIB);
        // The promises are in the numbers now, and something was freed.
        let released = admission.review(&memory(6), 0.95, at(6));
        assert_eq!(released, [(2, Release::Room)]);
        assert_eq!(admission.review(&memory(6), 0.95, at(7)), []);
        let released = admission.review(&memory(1), 0.95, at(30));
        assert_eq!(released, [(3, Release::Limit), (4, Release::Limit)]);
        assert_eq!(admission.held(), 0);
    }

    #[test]
    fn interactive_ones_come_first_and_are_held_briefly() {
        let mut admission = Admission::new(SETTLING);
        assert!(!admission.ask(wish(1, 4, false), &memory(3), 0.8, at(0)));
        assert!(!admission.ask(wish(2, 4, true), &memory(3), 0.8, at(0)));
        assert_eq!(admission.deadline(), Some(at(2)));
        assert_eq!(
            admission.review(&memory(8), 0.8, at(1)),
            [(2, Release::Room)]
        );
        assert!(admission.holds(1) && !admission.holds(2));
    }

    #[test]
    fn batch_waits_while_memory_is_short() {
        let mut admission = Admission::new(SETTLING);
        // 85% used.
        assert!(!admission.ask(wish(1, 1, false), &memory(3), 0.8, at(0)));
        assert!(admission.ask(wish(2, 1, true), &memory(3), 0.8, at(0)));
        // Nothing was taken from it: it needs nothing back.
        admission.forget(1);
        assert!(admission.ask(wish(3, 0, false), &memory(3), 0.8, at(0)));
        assert_eq!(admission.promised(), GIB);
        admission.forget(2);
        assert_eq!(admission.promised(), 0);
    }

    #[test]
    fn nobody_overtakes_its_kind() {
        let mut admission = Admission::new(SETTLING);
        assert!(!admission.ask(wish(1, 8, false), &memory(8), 0.99, at(0)));
        assert!(!admission.ask(wish(2, 1, false), &memory(8), 0.99, at(0)));
        assert!(admission.ask(wish(3, 1, true), &memory(8), 0.99, at(0)));
        assert_eq!(admission.ids().collect::<Vec<_>>(), [1, 2]);
        // Asking again is no second place.
        assert!(!admission.ask(wish(2, 1, false), &memory(8), 0.99, at(1)));
        assert_eq!(admission.held(), 2);
    }

    #[test]
    fn the_clock_may_jump() {
        let mut admission = Admission::new(SETTLING);
        assert!(!admission.ask(wish(1, 9, false), &memory(3), 0.8, at(1000)));
        assert_eq!(admission.review(&memory(3), 0.8, at(10)), []);
        assert_eq!(admission.deadline(), Some(at(40)));
        assert_eq!(
            admission.review(&memory(3), 0.8, at(40)),
            [(1, Release::Limit)]
        );
    }

    #[test]
    fn without_numbers_nobody_is_held() {
        let mut admission = Admission::new(SETTLING);
        assert!(admission.ask(wish(1, 9, false), &Memory::default(), 0.8, at(0)));
    }
}
