// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Does what the governor says, and tells it what came of that.

use tracing::{debug, info, warn};

use super::clerk::Report;
use super::totals::micros;
use super::{mark, Daemon};
use crate::authority::Uid;
use crate::directory::Directory;
use crate::error::{read_text, Error};
use crate::governor::{Done, Effect, Id, Input, Note, Reason};
use crate::lifecycle::State;
use crate::protocol::{ErrorCode, Happening, Response, Source, Word};
use crate::worker::{Job, Order, Outcome};

/// Less than this is no reason to look for a reason.
const LITTLE: u64 = 4 << 20;

const FREEZE: &str = "cgroup.freeze";

/// The cgroup is gone.
pub(super) fn is_gone(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV))
}

/// Names of cgroups are chosen by their owners, and a log may be read on a terminal.
fn printable(text: &str) -> String {
    let shown = |c: char| match c.is_control() {
        true => c.escape_default().to_string(),
        false => c.to_string(),
    };
    text.chars().map(shown).collect()
}

impl Daemon {
    pub(super) fn obey(&mut self, effect: Effect) {
        match effect {
            Effect::Phase(id, phase) => {
                let told = self.sysfs.set_phase(id, phase);
                self.module_refused(id, told.err());
            }
            Effect::Level(id, level) => {
                let told = self.sysfs.set_level(id, level);
                self.module_refused(id, told.err());
            }
            Effect::Start {
                id,
                bytes,
                file_first,
            } => {
                let order = Order { bytes, file_first };
                if !self.hold_job(id, order) {
                    self.start_job(id, order);
                }
            }
            Effect::Stop(id) => {
                if self.drop_held(id) {
                } else if let Some(job) = self.jobs.get(&id) {
                    job.stop();
                }
            }
            Effect::Restore(id, trigger) => self.start_restore(id, trigger),
            Effect::Return(id) => self.start_return(id),
            Effect::EndRestore(id) => self.end_restore(id),
            Effect::Freeze(id) => self.freeze(id),
            Effect::Thaw(id) => self.thaw(id),
            Effect::SecondLook(percent) => {
                if self.module {
                    if let Err(error) = self.sysfs.set_second_look_percent(percent) {
                        debug!("{error}");
                    }
                }
            }
            Effect::Note(note) => self.note(note),
        }
    }

    /// The module did not take something. When it has lost the sandbox, that is attached anew.
    fn module_refused(&mut self, id: Id, error: Option<Error>) {
        let Some(error) = error else {
            return;
        };
        let lost = || !matches!(self.sysfs.told(id), Ok(Some(told)) if told.attached);
        if matches!(error.errno(), Some(libc::ENOENT | libc::ENODEV)) && lost() {
            self.lost_by_module(id);
        } else {
            self.warn("module", &error.to_string());
        }
    }

    /// Logs, unless there was too much of this kind already.
    pub(super) fn warn(&mut self, kind: &'static str, text: &str) {
        match self.log.allow(kind, self.began.elapsed()) {
            None => {}
            Some(0) => warn!("{}", printable(text)),
            Some(left_out) => warn!(left_out, "{}", printable(text)),
        }
    }

    fn inform(&mut self, kind: &'static str, text: &str) {
        match self.log.allow(kind, self.began.elapsed()) {
            None => {}
            Some(0) => info!("{}", printable(text)),
            Some(left_out) => info!(left_out, "{}", printable(text)),
        }
    }

    pub(super) fn start_job(&mut self, id: Id, order: Order) {
        let started = match self.entries.get(&id) {
            Some(entry) => match self.spare(id) {
                Some(spare) => Job::sparing(&entry.directory, order, spare),
                None => Job::start(&entry.directory, order),
            },
            None => Err(Error::invalid(format!("id {id}"), "no such sandbox")),
        };
        match started {
            Ok(job) => {
                self.taken(id);
                self.jobs.insert(id, job);
            }
            Err(error) => {
                self.warn("job", &error.to_string());
                self.inbox.push_back(Input::JobDone(
                    id,
                    Done {
                        reason: Some(Reason::Files),
                        ..Done::default()
                    },
                ));
            }
        }
    }

    /// A job's file descriptor is readable.
    pub(super) fn job_ended(&mut self, id: Id) {
        let Some(job) = self.jobs.remove(&id) else {
            return;
        };
        let done = match job.finish() {
            Ok(outcome) => {
                self.totals.job(&outcome);
                self.publish_outcome(id, &outcome);
                Done {
                    reclaimed: outcome.reclaimed_bytes,
                    cpu: outcome.cpu,
                    elapsed: outcome.elapsed,
                    stopped: outcome.stopped,
                    reason: self.reason(id, &outcome),
                }
            }
            Err(error) => {
                // A sandbox that has ended in the meantime is no news.
                let gone = matches!(error.errno(), Some(libc::ENODEV | libc::ENOENT));
                if !gone {
                    self.warn("job", &error.to_string());
                }
                // Without the choice of pages it may work.
                let another_way = self.forget_hot(id);
                Done {
                    reason: (!gone && !another_way).then_some(Reason::Files),
                    ..Done::default()
                }
            }
        };
        self.feed(Input::JobDone(id, done));
    }

    fn publish_outcome(&mut self, id: Id, outcome: &Outcome) {
        let Some(entry) = self.entries.get(&id) else {
            return;
        };
        let (owner, cgroup) = (entry.owner, entry.name());
        debug!(
            cgroup,
            asked = outcome.asked_bytes,
            reclaimed = outcome.reclaimed_bytes,
            spared = outcome.spared_bytes,
            stopped = outcome.stopped,
            in_aging = outcome.in_aging(),
            stop_us = micros(outcome.stop_latency),
            "job ended"
        );
        self.publish(
            owner,
            Happening::Reclaimed {
                cgroup,
                cgroup_id: id,
                asked_bytes: outcome.asked_bytes,
                reclaimed_bytes: outcome.reclaimed_bytes,
                cpu_us: micros(outcome.cpu),
                stop_us: outcome.stopped.then(|| micros(outcome.stop_latency)),
            },
        );
    }

    /// Why a job came to little, when there is more than a little left.
    fn reason(&self, id: Id, outcome: &Outcome) -> Option<Reason> {
        if outcome.stopped || outcome.reclaimed_bytes >= outcome.asked_bytes / 2 {
            return None;
        }
        let entry = self.entries.get(&id)?;
        let path = self.path(entry.directory.inside());
        let cgroup = self.hierarchy.open(&path).ok()?;
        let stat = cgroup.memory_stat().ok()?;
        let left = stat.reclaimable.saturating_add(stat.unevictable);
        if left.saturating_sub(outcome.spared_bytes) < LITTLE {
            return None;
        }
        if self.governor.overview().memory.swap_free < LITTLE {
            return Some(Reason::NoSwap);
        }
        if let Ok(Some((limit, file))) = cgroup.swap_limit() {
            let current = read_text(&file.with_file_name("memory.swap.current")).ok()?;
            let current: u64 = current.trim().parse().ok()?;
            if limit.saturating_sub(current) < LITTLE {
                return Some(Reason::SwapMax);
            }
        }
        // One that spares hot pages cannot take what several processes have mapped, either.
        (outcome.reclaimed_bytes < LITTLE && outcome.spared_bytes == 0)
            .then_some(Reason::Unevictable)
    }

    /// Takes what the clerk has done.
    pub(super) fn take_reports(&mut self) {
        for report in self.clerk.reports() {
            match report {
                Report::Attached(id, result) => self.attached(id, result),
                Report::Detached(id, result) => {
                    self.detached(id);
                    if let Err(error) = result {
                        debug!(id, "{error}");
                    }
                }
                Report::Restored(id, cpu, result) => {
                    self.restores.remove(&id);
                    self.totals.restore(cpu);
                    if let Err(error) = &result {
                        self.warn("restore", &error.to_string());
                    }
                    let response = match &result {
                        Ok(report) => Response::result(report),
                        Err(error) => Response::error(ErrorCode::Failed, error.to_string()),
                    };
                    // One that was begun before it was asked for may have missed something.
                    if !self.governor.is_to_come_back(id) {
                        self.answer_quiesce(id, &response);
                    }
                    self.feed(Input::Restored(id, cpu));
                }
            }
        }
    }

    /// Answers those who wait for all pages of a sandbox to be back.
    pub(super) fn answer_quiesce(&mut self, id: Id, response: &Response) {
        let waiting = self
            .entries
            .get_mut(&id)
            .map(|entry| std::mem::take(&mut entry.quiescing))
            .unwrap_or_default();
        for token in waiting {
            self.server.reply(token, response.clone());
        }
    }

    /// Holds the processes of a sandbox, unless someone else does.
    fn freeze(&mut self, id: Id) {
        let now = self.now();
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        let frozen = entry.directory.read(FREEZE).map(|text| text.trim() != "0");
        if frozen.unwrap_or(true) {
            return;
        }
        entry.noted = Some(now);
        // First the note: whoever comes after us then knows.
        mark::write(&entry.directory, mark::HELD, "1");
        match entry.directory.write(FREEZE, "1") {
            Ok(()) => entry.frozen = true,
            Err(error) => {
                mark::remove(&entry.directory, mark::HELD);
                let problem = format!("cannot freeze {}: {error}", entry.name());
                self.warn("freeze", &problem);
            }
        }
    }

    /// Lets the processes of a sandbox go on that we hold.
    pub(super) fn thaw(&mut self, id: Id) {
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        if !std::mem::replace(&mut entry.frozen, false) {
            return;
        }
        let directory = entry.directory.clone();
        if !self.thaw_directory(id, &directory) {
            // With the next round again.
            if let Some(entry) = self.entries.get_mut(&id) {
                entry.frozen = true;
            }
        }
    }

    /// Lets the processes of a cgroup go on that was held by us, or by a daemon that was killed. When that
    /// fails, the note stays.
    pub(super) fn thaw_directory(&mut self, id: Id, directory: &Directory) -> bool {
        self.will_note(id);
        match directory.write(FREEZE, "0") {
            Err(error) if !is_gone(&error) => {
                let problem = format!("cannot let {} go on: {error}", directory.name());
                self.warn("freeze", &problem);
                false
            }
            _ => {
                mark::remove(directory, mark::HELD);
                true
            }
        }
    }

    /// A note is about to be written or taken away on the directory of a sandbox.
    pub(super) fn will_note(&mut self, id: Id) {
        let now = self.now();
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.noted = Some(now);
        }
    }

    fn note(&mut self, note: Note) {
        match note {
            Note::Short(short, used) => {
                let what = if short { "is short" } else { "suffices again" };
                self.inform("memory", &format!("memory {what}: {used}% used"));
                let level = Word::Borrowed(if short { "high" } else { "low" });
                let used_percent = f64::from(used);
                self.publish(
                    Uid::ROOT,
                    Happening::Pressure {
                        level,
                        used_percent,
                    },
                );
            }
            Note::Held(id, need) => {
                let text = format!(
                    "{} held: needs {need} bytes that are not free",
                    self.name(id)
                );
                self.inform("held", &text);
            }
            Note::Freed(id, late) => {
                let why = if late {
                    "held for as long as it may be"
                } else {
                    "there is room"
                };
                let text = format!("{} goes on: {why}", self.name(id));
                self.inform("held", &text);
            }
            Note::Helpless(id, reason) => {
                let text = format!("nothing can be taken from {}: {reason}", self.name(id));
                self.warn("helpless", &text);
            }
            Note::State(id, from, to) => self.publish_state(id, from, to),
        }
    }

    fn publish_state(&mut self, id: Id, from: State, to: State) {
        let Some(entry) = self.entries.get(&id) else {
            return;
        };
        let (owner, cgroup) = (entry.owner, entry.name());
        debug!(cgroup, from = from.name(), to = to.name(), "state");
        self.publish(
            owner,
            Happening::State {
                cgroup,
                cgroup_id: id,
                from: Word::Borrowed(from.name()),
                to: Word::Borrowed(to.name()),
            },
        );
    }

    /// How a sandbox is called in the log.
    pub(super) fn name(&self, id: Id) -> String {
        match self.entries.get(&id) {
            Some(entry) => entry.name(),
            None => format!("id {id}"),
        }
    }

    /// A hint came in by some way.
    pub(super) fn hint(&mut self, id: Id, hint: crate::hint::Hint, source: Source) {
        self.totals.hints += 1;
        self.tell_restorer(id, &hint);
        self.refresh_memory();
        self.feed(Input::Hint(id, hint.clone()));
        if let Some(entry) = self.entries.get(&id) {
            let (owner, cgroup) = (entry.owner, entry.name());
            self.publish(
                owner,
                Happening::Hint {
                    cgroup,
                    cgroup_id: id,
                    hint,
                    source,
                },
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_steer_a_terminal() {
        assert_eq!(
            printable("/a/\u{1b}]0;x\u{7}\r/ö"),
            "/a/\\u{1b}]0;x\\u{7}\\r/ö"
        );
    }
}
