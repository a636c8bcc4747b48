// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What stays the same for a round, chosen by its seed.

use serde::Serialize;

use super::random::Random;

/// Where pages go that the module does not take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Swap {
    /// A disk.
    Disk,
    /// Compressed memory: a device that needs no queue, and that the kernel treats otherwise.
    Zram,
}

/// Settings of a round.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Recipe {
    /// Sandboxes.
    pub sandboxes: usize,
    /// Templates, which they take in turn.
    pub templates: usize,
    /// Swap device.
    pub swap: Swap,
    /// A daemon decides about phases, and is killed again and again.
    pub daemon: bool,
    /// The first sandbox is sensitive: its pages share nothing.
    pub sensitive: bool,
    /// The kernel's code may be patched: tracers and probes come and go, and the module is loaded anew.
    pub patching: bool,
    /// At the end of the round pages outlive the module.
    pub reload: bool,
    /// On a kernel that can: one of so many allocations of the module fails; 0: none.
    pub failing: u32,
}

impl Recipe {
    /// That of a seed; `failing`: the kernel can make allocations fail.
    pub fn new(seed: u64, failing: bool) -> Recipe {
        let mut random = Random::new(seed, 0);
        Recipe {
            sandboxes: 2 + random.below(4),
            templates: 1 + random.below(2),
            swap: if random.chance(25) {
                Swap::Zram
            } else {
                Swap::Disk
            },
            daemon: random.chance(30),
            sensitive: random.chance(40),
            patching: true,
            reload: random.chance(50),
            failing: match random.below(3) {
                0 => 0,
                _ if !failing => 0,
                1 => 200,
                _ => 20,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_differ_and_follow_from_the_seed() {
        let all: Vec<Recipe> = (0..100).map(|seed| Recipe::new(seed, true)).collect();
        assert_eq!(all[3], Recipe::new(3, true));
        let count = |what: fn(&Recipe) -> bool| all.iter().filter(|one| what(one)).count();
        for (what, wanted) in [
            (count(|one| one.swap == Swap::Zram), 5..50),
            (count(|one| one.reload), 25..75),
            (count(|one| one.sensitive), 20..60),
            (count(|one| one.failing > 0), 33..95),
            (count(|one| one.templates == 2), 25..75),
        ] {
            assert!(wanted.contains(&what), "{what} of 100");
        }
        assert!((0..100).all(|seed| Recipe::new(seed, false).failing == 0));
    }
}
