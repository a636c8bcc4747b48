// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What the governor tells others: the state of each sandbox, and whether one more has room.

use std::time::Duration;

use serde::Serialize;

use super::{Counts, Governor, Id, Profile, Reason};
use crate::lifecycle::{State, Time};
use crate::schedule::watermark::Memory;

/// Whether a platform may spawn another sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "answer", rename_all = "lowercase")]
pub enum Admit {
    /// There is room.
    Yes,
    /// Not yet.
    Wait {
        /// Why.
        reason: String,
        /// When to ask again, in milliseconds.
        retry_ms: u64,
    },
    /// Nor will there be as long as nobody ends.
    No {
        /// Why.
        reason: String,
    },
}

/// What is known of a sandbox.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct View {
    /// Id of its cgroup.
    pub id: Id,
    /// Its state.
    pub state: State,
    /// What it is weighed by.
    pub profile: Profile,
    /// The module has it.
    pub attached: bool,
    /// A tool runs in it.
    pub tool: bool,
    /// Hints say what it does; else it is observed.
    pub hinted: bool,
    /// Hints that it was given since the daemon started.
    pub hints: u64,
    /// Held still for a tool that reads its memory.
    pub quiesced: bool,
    /// Frozen until there is memory for it.
    pub held: bool,
    /// Something is being taken from it.
    pub compressing: bool,
    /// Something is to be taken from it when its turn comes.
    pub queued: bool,
    /// It is being brought back, or is to be, for a quiesce as well.
    pub restoring: bool,
    /// Bytes that were taken since it last woke.
    pub taken: u64,
    /// Bytes charged to its cgroup, as of the last round.
    pub current: u64,
    /// Its score, as of the last round.
    pub score: f64,
    /// For how much longer it is expected to wait, in milliseconds.
    pub remaining_ms: Option<u64>,
    /// Why nothing can be taken from it.
    pub reason: Option<Reason>,
}

/// What is known of the host.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Overview {
    /// Its memory.
    pub memory: Memory,
    /// Memory is short.
    pub short: bool,
    /// A running sandbox stalls for memory.
    pub strained: bool,
    /// CPU time that may be spent, in processors.
    pub cpu_budget: f64,
    /// What the second look may take, in percent of one processor.
    pub second_look: Option<u32>,
    /// Totals.
    pub counts: Counts,
}

impl Governor {
    /// What is known of a sandbox.
    pub fn view(&self, id: Id, now: Time) -> Option<View> {
        let sandbox = self.sandboxes.get(&id)?;
        let machine = &sandbox.machine;
        Some(View {
            id,
            state: machine.state(),
            profile: sandbox.profile,
            attached: sandbox.attached,
            tool: machine.runs_a_tool(),
            hinted: machine.is_hinted(),
            hints: sandbox.hints,
            quiesced: sandbox.quiesced,
            held: self.admission.holds(id),
            compressing: sandbox.job.is_some(),
            queued: sandbox.want.is_some() && sandbox.job.is_none(),
            restoring: self.restores.is_pending(id),
            taken: sandbox.taken,
            current: sandbox.current,
            score: sandbox.score,
            remaining_ms: machine
                .remaining(now)
                .map(|wait| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)),
            reason: self.why_not(id),
        })
    }

    /// What is known of the host.
    pub fn overview(&self) -> Overview {
        let mut states = [0; 5];
        for sandbox in self.sandboxes.values() {
            let state = sandbox.machine.state();
            for (count, other) in states.iter_mut().zip(State::ALL) {
                *count += usize::from(other == state);
            }
        }
        Overview {
            memory: self.memory,
            short: self.watermark.is_short(),
            strained: self.strained,
            cpu_budget: self.budget.rate(),
            second_look: self.second_look,
            counts: Counts {
                states,
                jobs: self.jobs,
                queued: self.ring.len(),
                held: self.admission.held(),
            },
        }
    }

    /// Memory is not short: what is restored without anybody expecting it to be touched does no harm.
    pub fn has_room(&self) -> bool {
        !self.watermark.is_short()
    }

    /// Whether there is room for one more sandbox that will need so many bytes.
    ///
    /// Yes, when memory stays below the high watermark with it. Wait, when sandboxes are held for
    /// want of memory, or when there would be room if all that can be taken were taken. Otherwise no.
    pub fn admit(&self, bytes: u64) -> Admit {
        let memory = &self.memory;
        if memory.total == 0 {
            return Admit::Wait {
                reason: "the memory of the host is not known yet".to_owned(),
                retry_ms: 1000,
            };
        }
        let high = self.config.schedule.hysteresis_high.part();
        let spare = memory.total as f64 * (1.0 - high);
        let retry = self.config.time(self.config.schedule.period);
        let wait = |reason: String| Admit::Wait {
            reason,
            retry_ms: u64::try_from(retry.max(Duration::from_millis(100)).as_millis())
                .unwrap_or(u64::MAX),
        };
        if bytes as f64 > memory.total as f64 - spare {
            return Admit::No {
                reason: format!("{bytes} bytes are more than this host may use in all"),
            };
        }
        let available = memory.available.saturating_sub(self.admission.promised());
        let short_by = (bytes as f64 + spare - available as f64).max(0.0) as u64;
        if self.admission.held() > 0 {
            let held = self.admission.held();
            return wait(format!(
                "{held} sandboxes are held until there is memory for them"
            ));
        }
        if short_by == 0 {
            return Admit::Yes;
        }
        let within_reach = self.within_reach();
        match within_reach >= short_by {
            true => wait(format!(
                "{short_by} bytes too few are free; sandboxes that wait have {within_reach} to give"
            )),
            false => Admit::No {
                reason: format!(
                    "{short_by} bytes too few are free, and sandboxes that wait have only {within_reach} to \
                     give; end some, or add memory or swap"
                ),
            },
        }
    }

    /// Bytes that sandboxes which do not work could give.
    fn within_reach(&self) -> u64 {
        let waiting = self.sandboxes.values().filter(|sandbox| {
            matches!(sandbox.machine.state(), State::Compressed | State::Cooling)
                && sandbox.reason.is_none()
                && !sandbox.quiesced
        });
        waiting
            .fold(0u64, |sum, sandbox| sum.saturating_add(sandbox.current))
            .min(self.memory.swap_free)
    }
}
