// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Restores: by the [`crate::restorer`]'s plans where the module can carry them out, else everything by
//! the clerk.
//!
//! A reclaim job of a wait that begins is held back until the restorer has read which pages were accessed,
//! for as long as that may take at most: reclaim would change the answer.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use tracing::{info, warn};

use super::entry::{Attachment, Entry};
use super::Daemon;
use crate::authority::Uid;
use crate::config::PrefetchMode;
use crate::governor::{Done, Id, Input};
use crate::hint::Hint;
use crate::hot::process::Live;
use crate::lifecycle::Time;
use crate::predict::{Cause, Change, Trigger};
use crate::protocol::{ErrorCode, Happening, Response, Word};
use crate::restorer::plans::Plans;
use crate::restorer::settings::Settings;
use crate::restorer::shown::{Board, Shown};
use crate::restorer::{states, Depth, Order, Report, Restorer};
use crate::socket::Token;
use crate::worker;

/// What a held job may wait longer than the restorer may look, as others may be before it.
const SLACK: u32 = 3;

/// What the daemon holds of all this.
#[derive(Default)]
pub(super) struct Restoring {
    /// Only while the module is there, and plans are wanted.
    restorer: Option<Restorer>,
    /// Its figures, as of when they were last asked for.
    board: Board,
    /// Sandboxes whose pages are being looked at, and until when that is waited for.
    looked_at: std::collections::BTreeMap<Id, Time>,
    /// Jobs that wait for that.
    held: std::collections::BTreeMap<Id, worker::Order>,
}

impl Restoring {
    /// The thread, if there is one.
    pub fn restorer(&self) -> Option<&Restorer> {
        self.restorer.as_ref()
    }

    /// When the first held job begins though nothing was heard.
    pub fn next(&self) -> Option<Time> {
        let waits = |id| self.looked_at.get(id).copied().unwrap_or_default();
        self.held.keys().map(waits).min()
    }

    fn order(&self, order: Order) {
        if let Some(restorer) = &self.restorer {
            restorer.order(order);
        }
    }
}

impl Daemon {
    /// Begins or ends to plan, as the configuration and the module say.
    pub(super) fn set_restorer(&mut self) {
        let config = self.governor.config();
        let settings = Settings::from(config);
        let plans = settings.plans && self.module;
        match (plans, &self.restoring.restorer) {
            (true, Some(restorer)) => restorer.order(Order::Settings(Box::new(settings))),
            (true, None) => {
                let processes = Live::new(self.options.paths.proc.clone(), self.hierarchy.clone());
                match Restorer::start(&self.options.paths, Arc::new(processes), settings) {
                    Ok(restorer) => self.restoring.restorer = Some(restorer),
                    Err(error) => return warn!("cannot start the restorer: {error}"),
                }
                let ids: Vec<Id> = self.entries.keys().copied().collect();
                ids.into_iter().for_each(|id| self.record(id));
            }
            (false, Some(restorer)) => {
                // What runs for the governor ends, and rings are given back.
                let off = Settings {
                    plans: false,
                    ..settings
                };
                restorer.order(Order::Settings(Box::new(off)));
                self.restoring.restorer = None;
                let ids: Vec<Id> = self.entries.keys().copied().collect();
                for id in ids {
                    self.looked(id);
                    self.feed(Input::Restored(id, Duration::ZERO));
                }
            }
            (false, None) => {}
        }
    }

    /// The daemon ends.
    pub(super) fn end_restorer(&mut self) {
        let settings = Settings::from(self.governor.config());
        if let Some(restorer) = self.restoring.restorer.take() {
            restorer.finish(settings);
        }
    }

    /// The module has a sandbox: its faults are recorded from now on, unless it is sensitive. What siblings do is
    /// not for such a one, nor what it does for them.
    pub(super) fn record(&self, id: Id) {
        let Some(entry) = self.entries.get(&id) else {
            return;
        };
        if entry.attributes.sensitive {
            // It may have been something else before.
            return self.restoring.order(Order::Detach(id));
        }
        let template = entry.attributes.template.clone();
        if let (Attachment::Done, Some(template), Some(target)) =
            (&entry.attachment, template, self.target(id))
        {
            self.restoring.order(Order::Attach(target, template));
        }
    }

    /// It is no sandbox any more.
    pub(super) fn unrecord(&mut self, id: Id) {
        self.restoring.order(Order::Detach(id));
        self.restoring.looked_at.remove(&id);
        self.restoring.held.remove(&id);
    }

    /// A hint came: before the governor hears of it, so that the restorer is not behind.
    pub(super) fn tell_restorer(&mut self, id: Id, hint: &Hint) {
        let recorded = self.entries.get(&id).is_some_and(Entry::is_recorded);
        if self.restoring.restorer.is_none() || !recorded {
            return;
        }
        if let Hint::LlmWait { .. } = hint {
            let patience = states::patience(self.governor.config().time_scale) * SLACK;
            self.restoring
                .looked_at
                .insert(id, self.now().saturating_add(patience));
        }
        self.restoring.order(Order::Hint(id, hint.clone()));
    }

    /// Whether a job has to wait until the pages were looked at; if so it is kept.
    pub(super) fn hold_job(&mut self, id: Id, order: worker::Order) -> bool {
        let looks = self.restoring.looked_at.contains_key(&id);
        if looks {
            self.restoring.held.insert(id, order);
        }
        looks
    }

    /// A job that was held back is not wanted any more. False when none was.
    pub(super) fn drop_held(&mut self, id: Id) -> bool {
        let held = self.restoring.held.remove(&id).is_some();
        if held {
            let done = Done {
                stopped: true,
                ..Done::default()
            };
            self.inbox.push_back(Input::JobDone(id, done));
        }
        held
    }

    /// Pages of a sandbox are being taken out: what was back is so no more.
    pub(super) fn taken(&self, id: Id) {
        self.restoring.order(Order::Taken(id));
    }

    /// The pages of a sandbox were looked at.
    fn looked(&mut self, id: Id) {
        self.restoring.looked_at.remove(&id);
        if let Some(order) = self.restoring.held.remove(&id) {
            self.start_job(id, order);
        }
    }

    /// Starts jobs that have waited for long enough.
    pub(super) fn start_held(&mut self) {
        let now = self.now();
        let over = self
            .restoring
            .looked_at
            .iter()
            .filter(|(_, at)| **at <= now);
        let over: Vec<Id> = over.map(|(id, _)| *id).collect();
        for id in over {
            self.looked(id);
        }
    }

    /// Pages are to come back ahead of need.
    pub(super) fn start_restore(&mut self, id: Id, trigger: Trigger) {
        let mode = self.governor.config().prefetch.mode;
        let recorded = self.entries.get(&id).is_some_and(Entry::is_recorded);
        match mode {
            PrefetchMode::Auto | PrefetchMode::Plan
                if recorded && self.restoring.restorer.is_some() =>
            {
                let rest = mode == PrefetchMode::Auto && trigger == Trigger::FirstToken;
                let depth = match rest && self.governor.has_room() {
                    true => Depth::Everything,
                    false => Depth::Plan,
                };
                self.restoring.order(Order::Restore(id, trigger, depth));
            }
            _ => self.restore_all(id, trigger),
        }
    }

    /// There is no plan: everything comes back instead, if that is wanted. Only when the LLM answers: at other
    /// times it is too much.
    fn restore_all(&mut self, id: Id, trigger: Trigger) {
        let mode = self.governor.config().prefetch.mode;
        let wanted = matches!(mode, PrefetchMode::Auto | PrefetchMode::All);
        match trigger {
            Trigger::FirstToken if wanted => self.start_return(id),
            _ => self.inbox.push_back(Input::Restored(id, Duration::ZERO)),
        }
    }

    /// All pages of a sandbox are to come back.
    pub(super) fn start_return(&mut self, id: Id) {
        let started = match self.entries.get(&id) {
            Some(entry) => {
                let path = self.path(entry.directory.inside());
                let wanted = Arc::new(AtomicBool::new(true));
                self.restores.insert(id, wanted.clone());
                self.clerk.restore(id, path, wanted)
            }
            None => Err(std::io::ErrorKind::NotFound.into()),
        };
        if let Err(error) = started {
            let problem = format!("cannot start a restore: {error}");
            self.warn("restore", &problem);
            self.answer_quiesce(id, &Response::error(ErrorCode::Failed, problem));
            self.inbox.push_back(Input::Restored(id, Duration::ZERO));
        }
    }

    /// What is being restored of a sandbox is not wanted any more.
    pub(super) fn end_restore(&mut self, id: Id) {
        if let Some(wanted) = self.restores.get(&id) {
            wanted.store(false, Ordering::Relaxed);
        }
        self.restoring.order(Order::End(id));
    }

    /// Takes what the restorer has done.
    pub(super) fn take_restores(&mut self) {
        let reports = self.restoring.restorer.as_ref().map(Restorer::reports);
        for report in reports.unwrap_or_default() {
            match report {
                Report::Restored(id) => {
                    self.totals.restore(Duration::ZERO);
                    self.feed(Input::Restored(id, Duration::ZERO));
                }
                Report::Unable(id, trigger) => {
                    self.restore_all(id, trigger);
                    self.feed(Input::Clock);
                }
                Report::Looked(id) => {
                    self.looked(id);
                    self.feed(Input::Clock);
                }
                Report::Spent(cpu) => {
                    self.totals.spent(cpu);
                    self.feed(Input::Prefetched(cpu));
                }
                Report::Scope(scope) => self.feed(Input::Scope(scope)),
                Report::Alarm(change) => self.alarm(change),
                Report::Answer(token, response) => self.server.reply(token, response),
            }
        }
    }

    /// What was learned is asked for, or given; the answer comes later.
    pub(super) fn plans(&self, token: Token, plans: Plans) -> Result<(), Response> {
        match &self.restoring.restorer {
            Some(restorer) => {
                restorer.order(Order::Plans(token, plans));
                Ok(())
            }
            None => Err(Response::error(
                ErrorCode::Failed,
                "no plans are made: the module is not loaded, or prefetch.mode is neither auto nor plan",
            )),
        }
    }

    fn alarm(&mut self, change: Change) {
        let (raised, cause) = match change {
            Change::Raised(cause) => (true, cause),
            Change::Cleared(cause) => (false, cause),
        };
        let text = match cause {
            Cause::HitRatio { usual, now } => format!(
                "of the pages restored ahead of need {:.0}% are accessed in time; usual are {:.0}%",
                now * 100.0,
                usual * 100.0
            ),
            Cause::Latency { objective, now } => format!(
                "the first tool of a turn waits up to {} us for its pages; slo.first_tool_p99 is {} us",
                now.as_micros(),
                objective.as_micros()
            ),
        };
        match raised {
            true => self.warn("prefetch", &format!("prefetch has become worse: {text}")),
            false => info!("prefetch is well again: {text}"),
        }
        let about = match cause {
            Cause::HitRatio { .. } => "hit-ratio",
            Cause::Latency { .. } => "first-tool",
        };
        let happening = Happening::Alarm {
            about: Word::Borrowed(about),
            raised,
            reason: text,
        };
        self.publish(Uid::ROOT, happening);
    }

    /// What there is to show of prefetch.
    pub(super) fn board(&mut self) -> &Board {
        if let Some(restorer) = &self.restoring.restorer {
            self.restoring.board = restorer.board();
        } else {
            self.restoring.board.able = false;
        }
        &self.restoring.board
    }

    /// The same of one sandbox, as of the last call of that.
    pub(super) fn shown(&self, id: Id) -> Option<Shown> {
        self.restoring.board.sandboxes.get(&id).cloned()
    }
}
