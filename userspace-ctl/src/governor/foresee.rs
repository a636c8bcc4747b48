// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Restores ahead of the end of a wait, and how far compression goes in short ones.
//!
//! A wait is about to end when a message is announced, when its expected end nears, or, where that is
//! wanted, at any time that the machine has nothing else to do. It is restored once in a wait, not while
//! memory is short, and stays so for `schedule.min_residency`; if it still waits then, it is taken again.

#[cfg(test)]
mod tests;

use std::time::Duration;

use super::sandbox::{Profile, Sandbox};
use super::{Governor, Id};
use crate::config::PrefetchMode;
use crate::hint::Hint;
use crate::lifecycle::{Event, State, Time};
use crate::predict::Trigger;

/// Waits of interactive sandboxes that are not worth it while the objective is missed: shorter than this.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spare(Duration);

impl Spare {
    /// What it is for this sandbox.
    pub fn of(self, sandbox: &Sandbox) -> Duration {
        let pressed = sandbox.want.is_some_and(|want| want.pressure);
        match sandbox.profile {
            Profile::Interactive if !pressed => self.0,
            _ => Duration::ZERO,
        }
    }
}

impl Governor {
    /// Which waits are left alone: none while the objective is met, up to `keep_if_expected_within` the
    /// more it is missed. Memory pressure goes before it.
    pub(super) fn spare(&self) -> Spare {
        let keep = self
            .config
            .time(self.config.schedule.keep_if_expected_within);
        Spare(keep.mul_f64(1.0 - self.scope))
    }

    /// Restores for this reason are wanted at all.
    pub(super) fn is_on(&self, trigger: Trigger) -> bool {
        let prefetch = &self.config.prefetch;
        let suits = match prefetch.mode {
            PrefetchMode::Auto | PrefetchMode::Plan => true,
            // Everything comes back when the LLM answers, and at no other time.
            PrefetchMode::All => trigger == Trigger::FirstToken,
            PrefetchMode::Off => false,
        };
        suits
            && match trigger {
                Trigger::FirstToken => prefetch.on_first_token,
                Trigger::Message => prefetch.on_message,
                Trigger::ToolStart => prefetch.on_tool_start,
                Trigger::MidWait => prefetch.before_expected_end,
                Trigger::Background => prefetch.background,
                Trigger::Demand | Trigger::Rest => true,
            }
    }

    /// What a hint says about what is near.
    pub(super) fn foresee(&mut self, id: Id, event: &Event, now: Time) {
        match event {
            Event::Hint(Hint::ToolStart { .. }) => {
                let out = |sandbox: &Sandbox| sandbox.needs > 0 || sandbox.taken > 0;
                if self.sandboxes.get(&id).is_some_and(out) {
                    self.want_restore(id, Trigger::ToolStart, now);
                }
            }
            Event::Hint(Hint::MessageNear { within }) => {
                let lead = self.config.time(self.config.prefetch.lead);
                let wait = within.unwrap_or_default().saturating_sub(lead);
                let waits = self
                    .sandboxes
                    .get(&id)
                    .is_some_and(|sandbox| sandbox.machine.state() == State::Compressed);
                if waits && self.is_on(Trigger::Message) {
                    self.ends
                        .insert(id, (now.saturating_add(wait), Trigger::Message));
                    self.see_ends(now);
                }
            }
            _ => {}
        }
    }

    /// A wait begins: if it is a long one it ends, as far as is known, at a time to be ready for.
    pub(super) fn expect_end(&mut self, id: Id) {
        self.ends.remove(&id);
        let Some(machine) = self.sandboxes.get(&id).map(|sandbox| sandbox.machine) else {
            return;
        };
        let lead = self.config.time(self.config.prefetch.lead);
        let residency = self.config.time(self.config.schedule.min_residency);
        let long = machine.since().saturating_add(residency + lead);
        if let Some(end) = machine.expected_end().filter(|end| *end >= long) {
            if self.is_on(Trigger::MidWait) {
                self.ends
                    .insert(id, (end.saturating_sub(lead), Trigger::MidWait));
            }
        }
    }

    /// When the first of them is about to end.
    pub(super) fn next_end(&self) -> Option<Time> {
        self.ends.values().map(|(at, _)| *at).min()
    }

    /// Restores those whose wait is about to end.
    pub(super) fn see_ends(&mut self, now: Time) {
        let due = self.ends.iter().filter(|(_, (at, _))| *at <= now);
        let due: Vec<(Id, Trigger)> = due.map(|(id, (_, trigger))| (*id, *trigger)).collect();
        for (id, trigger) in due {
            self.ends.remove(&id);
            self.restore_ahead(id, trigger, now);
        }
    }

    fn restore_ahead(&mut self, id: Id, trigger: Trigger, now: Time) {
        let short = self.watermark.is_short();
        let may = self.sandboxes.get(&id).is_some_and(|sandbox| {
            sandbox.machine.state() == State::Compressed
                && sandbox.restored.is_none()
                && !sandbox.quiesced
                && sandbox.turns.has_any(now)
        });
        if short || !may || !self.is_on(trigger) {
            return;
        }
        // What is taken now would have to come back at once.
        self.stop(id);
        if let Some(sandbox) = self.sandboxes.get_mut(&id) {
            sandbox.restored = Some(now);
        }
        self.want_restore(id, trigger, now);
    }

    /// Takes from those again that were restored for an end that did not come.
    pub(super) fn take_again(&mut self, now: Time) {
        let residency = self.config.time(self.config.schedule.min_residency);
        let over = self.sandboxes.iter().filter(|(id, sandbox)| {
            let since = sandbox.restored.map(|at| now.saturating_sub(at.min(now)));
            sandbox.machine.state() == State::Compressed
                && sandbox.want.is_none()
                && since.is_some_and(|since| (residency..residency * 2).contains(&since))
                && !self.restores.is_pending(**id)
        });
        let over: Vec<Id> = over.map(|(id, _)| *id).collect();
        for id in over {
            self.want(id, false);
        }
    }

    /// Restores one sandbox whose wait is nearly over while nothing else is to be done.
    pub(super) fn restore_in_background(&mut self, now: Time) {
        let quiet = self.jobs == 0 && !self.restores.are_pending() && self.budget.is_full();
        let low = self.memory.used() < self.config.schedule.hysteresis_low.part();
        if !self.is_on(Trigger::Background) || !quiet || !low {
            return;
        }
        let waiting = self.sandboxes.iter().filter(|(_, sandbox)| {
            sandbox.machine.state() == State::Compressed
                && sandbox.restored.is_none()
                && sandbox.want.is_none()
                && sandbox.taken > 0
        });
        let next = waiting.filter_map(|(id, sandbox)| Some((sandbox.machine.remaining(now)?, *id)));
        if let Some((_, id)) = next.min() {
            self.restore_ahead(id, Trigger::Background, now);
        }
    }
}
