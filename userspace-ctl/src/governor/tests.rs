// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The governor at a desk: a clock that is set by hand, inputs one by one, and what they lead to.

mod budget;
mod pressure;
mod restores;
mod sandboxes;
mod waits;

use super::*;

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

/// A governor, its clock, and all that it asked for.
pub struct Desk {
    pub governor: Governor,
    pub now: Time,
    pub all: Vec<Effect>,
}

impl Desk {
    /// Two processors, half of the memory used.
    pub fn new() -> Desk {
        Desk::with(Config::default())
    }

    pub fn with(config: Config) -> Desk {
        let mut desk = Desk {
            governor: Governor::new(config, 2, Duration::from_secs(1)),
            now: Duration::from_secs(1),
            all: Vec::new(),
        };
        desk.memory(50);
        desk
    }

    /// What follows from this, but for what is only told, and the share of the second look.
    pub fn on(&mut self, input: Input) -> Vec<Effect> {
        self.governor.handle(input, self.now);
        let mut effects = self.governor.effects();
        effects.retain(|effect| {
            !matches!(
                effect,
                Effect::Note(Note::State(..)) | Effect::SecondLook(_)
            )
        });
        self.all.extend(&effects);
        effects
    }

    pub fn memory(&mut self, used_percent: u64) {
        self.on(Input::Memory(Memory {
            total: 100 * GIB,
            available: (100 - used_percent) * GIB,
            swap_free: 100 * GIB,
        }));
    }

    pub fn sandbox(&mut self, id: Id, profile: Profile) {
        self.on(Input::Appeared {
            id,
            profile,
            known: None,
        });
        self.on(Input::Attached(id));
    }

    pub fn hint(&mut self, id: Id, text: &str) -> Vec<Effect> {
        self.on(Input::Hint(id, text.parse().unwrap()))
    }

    /// A job took this much, in a millisecond.
    pub fn done(&mut self, id: Id, reclaimed: u64) -> Vec<Effect> {
        self.on(Input::JobDone(
            id,
            Done {
                reclaimed,
                cpu: Duration::from_millis(1),
                elapsed: Duration::from_millis(1),
                ..Done::default()
            },
        ))
    }

    /// Two jobs found nothing.
    pub fn dry(&mut self, id: Id) {
        self.done(id, 0);
        self.done(id, 0);
    }

    pub fn pass(&mut self, time: Duration) -> Vec<Effect> {
        self.now += time;
        self.on(Input::Clock)
    }

    /// A round in which every sandbox has this much, after a period.
    pub fn round(&mut self, current: u64, psi: f64) -> Vec<Effect> {
        self.now += Duration::from_secs(5);
        let ids: Vec<Id> = self.governor.ids().collect();
        let mut effects = Vec::new();
        for id in ids {
            let needs = self.governor.needs(id);
            let sample = Sample {
                current,
                cpu_usec: needs.cpu.then_some(7),
                psi: needs.psi.then_some(psi),
            };
            effects.extend(self.on(Input::Sample(id, sample)));
        }
        effects.extend(self.on(Input::Sampled));
        effects
    }

    pub fn starts(effects: &[Effect]) -> Vec<(Id, u64, bool)> {
        effects
            .iter()
            .filter_map(|effect| match effect {
                Effect::Start {
                    id,
                    bytes,
                    file_first,
                } => Some((*id, *bytes, *file_first)),
                _ => None,
            })
            .collect()
    }
}
