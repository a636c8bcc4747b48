// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Which cgroups are sandboxes: those with xattrs, those that were attached by the socket or by command,
//! and those that the module had before.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use agentzip_uapi::Phase;
use tracing::{debug, info};

use super::clerk::Order;
use super::entry::{Attachment, Entry};
use super::{holders, mark, Daemon};
use crate::attributes::Attributes;
use crate::authority::Uid;
use crate::directory::{Directory, Mount};
use crate::error::{Error, Result};
use crate::governor::{Id, Input};
use crate::hint::Hint;
use crate::lifecycle::State;
use crate::protocol::{Happening, Response, Source, Word};
use crate::socket::Token;
use crate::sysfs::Told;
use crate::watch::{Change, Removal};

/// How long what is nowhere in the tree is not looked for again: that is a walk through all of it.
const STRAY: Duration = Duration::from_secs(60);

impl Daemon {
    /// Takes over what the module has and we do not know of, and sees what it has no more.
    pub(super) fn adopt_all(&mut self) {
        if !self.module {
            return;
        }
        let ids = match self.sysfs.sandbox_ids() {
            Ok(ids) => ids,
            Err(error) => return self.warn("module", &error.to_string()),
        };
        let ids: BTreeSet<Id> = ids.into_iter().collect();
        self.see_lost(&ids);
        let now = self.now();
        self.strays
            .retain(|id, since| ids.contains(id) && now.saturating_sub(*since) < STRAY);
        let new = ids.into_iter().filter(|id| {
            !self.entries.contains_key(id)
                && !self.leaving.contains_key(id)
                && !self.strays.contains_key(id)
        });
        let told: Vec<(Id, Told)> = new
            .filter_map(|id| Some((id, self.sysfs.told(id).ok().flatten()?)))
            .filter(|(_, told)| told.attached)
            .collect();
        if told.is_empty() {
            return;
        }
        let Ok(cgroups) = self.hierarchy.by_id() else {
            return;
        };
        for (id, told) in told {
            match cgroups.get(&id) {
                Some(cgroup) => self.adopt(id, cgroup.path(), &told),
                // There is nothing to do: the module ends it by itself.
                None => {
                    self.strays.insert(id, now);
                }
            }
        }
    }

    /// Takes over one sandbox, if the module has it and we do not know of it.
    pub(super) fn adopt_one(&mut self, directory: &Directory) {
        let id = directory.id();
        if !self.module || self.entries.contains_key(&id) || self.leaving.contains_key(&id) {
            return;
        }
        let told = self.sysfs.told(id).ok().flatten();
        if let Some(told) = told.filter(|told| told.attached) {
            self.adopt(id, directory.inside(), &told);
        }
    }

    /// What was detached by command: one that we adopted is none any more, one that someone told us to
    /// attach is attached again.
    fn see_lost(&mut self, ids: &BTreeSet<Id>) {
        let lost: Vec<(Id, Source)> = self
            .entries
            .iter()
            .filter(|(id, entry)| entry.attachment == Attachment::Done && !ids.contains(id))
            .map(|(id, entry)| (*id, entry.source))
            .collect();
        for (id, source) in lost {
            match source {
                Source::Module => self.drop_entry(id, "detached", false),
                _ => self.lost_by_module(id),
            }
        }
    }

    /// Who owns a directory may see its sandbox, and a directory may be given to another user.
    pub(super) fn refresh_owners(&mut self) {
        for entry in self.entries.values_mut() {
            if let Ok(ownership) = entry.directory.ownership() {
                entry.owner = Uid(ownership.uid);
            }
        }
    }

    fn adopt(&mut self, id: Id, path: &Path, told: &Told) {
        let Ok(directory) = self.mount.directory(path) else {
            return;
        };
        if directory.id() != id {
            return;
        }
        let owner = directory.ownership().map_or(Uid::ROOT, |o| Uid(o.uid));
        let attributes = Attributes {
            template: told.template.parse().ok(),
            // A sensitive one has a group of its own, which nobody may name.
            group: told.group.parse().ok().filter(|_| !told.sensitive),
            domain: told.domain.parse().ok(),
            profile: None,
            sensitive: told.sensitive,
        };
        let mut entry = Entry::new(Arc::new(directory), owner, attributes, Source::Module);
        entry.attachment = Attachment::Done;
        let (profile, _) = entry.profile();
        debug!(cgroup = entry.name(), phase = told.phase, "adopted");
        self.entries.insert(id, entry);
        let known = Phase::from_name(&told.phase).or(Some(Phase::Running));
        self.feed(Input::Appeared { id, profile, known });
        self.record(id);
        self.was_taken(id);
        self.still_quiesced(id);
    }

    /// What was taken from a sandbox before we came is what it needs when it wakes.
    fn was_taken(&mut self, id: Id) {
        let swapped = self.entries.get(&id).and_then(|entry| {
            let text = entry.directory.read("memory.swap.current").ok()?;
            text.trim().parse().ok()
        });
        if let Some(bytes) = swapped {
            self.feed(Input::Taken(id, bytes));
        }
    }

    /// A sandbox that was held still when a daemon was killed stays so.
    fn still_quiesced(&mut self, id: Id) {
        let directory = self.entries.get(&id).map(|entry| entry.directory.clone());
        if directory.is_some_and(|directory| mark::read(&directory, mark::QUIESCED).is_some()) {
            self.feed(Input::Quiesce(id));
        }
    }

    /// Undoes what a daemon that was killed left behind, wherever it is in the tree: what it froze goes
    /// on, and holders that are none any more get their swap back.
    pub(super) fn free_what_was_left(&mut self) {
        for (id, cgroup) in self.hierarchy.by_id().unwrap_or_default() {
            if !mark::is_any(cgroup.path()) {
                continue;
            }
            let Ok(directory) = self.mount.directory(cgroup.path()) else {
                continue;
            };
            if mark::read(&directory, mark::HELD).is_some() {
                info!(
                    cgroup = cgroup.name(),
                    "was held by a daemon that is gone: goes on"
                );
                self.thaw_directory(id, &directory);
            }
            let holders = &self.governor.config().holders;
            if !holders.iter().any(|holder| holder == cgroup.path()) {
                if let Some(problem) = holders::free_left(&directory) {
                    self.warn("holder", &problem);
                }
            }
        }
    }

    /// Looks at the trees again. Returns what appeared.
    pub(super) fn look_at_trees(&mut self) -> BTreeSet<Id> {
        let changes = self.watcher.rescan(&self.authority);
        let appeared = changes.iter().filter_map(|change| match change {
            Change::Appeared { cgroup, .. } => Some(cgroup.id()),
            _ => None,
        });
        let appeared = appeared.collect();
        self.take_changes(changes);
        appeared
    }

    /// Other trees are watched now: of sandboxes by xattr that are in none of them nobody would hear any
    /// more.
    pub(super) fn drop_unseen(&mut self, seen: &BTreeSet<Id>) {
        let unseen: Vec<Id> = self
            .entries
            .iter()
            .filter(|(id, entry)| entry.source == Source::Xattr && !seen.contains(id))
            .map(|(id, _)| *id)
            .collect();
        for id in unseen {
            self.drop_entry(id, "unwatched", true);
        }
    }

    pub(super) fn read_changes(&mut self) {
        match self.watcher.read(&self.authority) {
            Ok(changes) => self.take_changes(changes),
            Err(error) => self.warn("watch", &error.to_string()),
        }
    }

    pub(super) fn take_changes(&mut self, changes: Vec<Change>) {
        for change in changes {
            match change {
                Change::Appeared {
                    cgroup,
                    owner,
                    attributes,
                }
                | Change::Attributes {
                    cgroup,
                    owner,
                    attributes,
                } => self.shall_be(cgroup, owner, attributes, Source::Xattr, None),
                Change::Phase {
                    cgroup,
                    hint,
                    standing,
                    ..
                } => {
                    if !self.entries.contains_key(&cgroup.id()) {
                        self.adopt_one(&cgroup);
                    }
                    self.hint_by_xattr(cgroup.id(), hint, standing);
                }
                Change::Removed { cgroup, why, .. } => {
                    let (reason, detach) = match why {
                        Removal::Gone => ("removed", false),
                        Removal::Untagged => ("untagged", true),
                        Removal::Swallowed => ("swallowed", true),
                    };
                    self.drop_entry(cgroup.id(), reason, detach);
                }
                Change::Refused {
                    cgroup,
                    owner,
                    reason,
                } => {
                    self.warn("refused", &format!("{cgroup}: {reason}"));
                    let owner = owner.unwrap_or(Uid::ROOT);
                    self.publish(owner, Happening::Refused { cgroup, reason });
                }
            }
        }
    }

    /// A hint by xattr. One that stood there before we began counts, as it may have been set while no
    /// daemon was there, unless it was noted that a hint by another way came after it.
    fn hint_by_xattr(&mut self, id: Id, hint: Hint, standing: bool) {
        let now = self.now();
        let Some(entry) = self.entries.get_mut(&id) else {
            return debug!(id, %hint, "a hint for a cgroup that is no sandbox");
        };
        let echo = !standing && entry.is_echo(&hint, now);
        entry.by_xattr = Some(hint.clone());
        if echo {
            return;
        }
        let noted = standing
            .then(|| mark::read(&entry.directory, mark::OUTDATED))
            .flatten();
        if noted.is_some_and(|text| text == hint.to_string()) {
            entry.outdated = true;
            return debug!(cgroup = entry.name(), %hint, "an outdated hint: not taken");
        }
        if entry.outdated || standing {
            entry.outdated = false;
            mark::remove(&entry.directory, mark::OUTDATED);
        }
        self.hint(id, hint, Source::Xattr);
    }

    /// A hint came by another way: the xattr, if there is one, is older, and the next daemon has to
    /// know.
    pub(super) fn outdate_xattr(&mut self, id: Id) {
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        if let (Some(hint), false) = (&entry.by_xattr, entry.outdated) {
            entry.outdated = true;
            // No echo to wait for: the watcher sees that the names of the attributes have changed.
            mark::write(&entry.directory, mark::OUTDATED, &hint.to_string());
        }
    }

    /// A cgroup shall be a sandbox with these attributes, whether it is one already or not.
    pub(super) fn shall_be(
        &mut self,
        directory: Arc<Directory>,
        owner: Uid,
        attributes: Attributes,
        source: Source,
        token: Option<Token>,
    ) {
        let id = directory.id();
        let there = self.entries.contains_key(&id);
        let view = self.governor.view(id, self.now());
        // One that was finished begins anew.
        let over = view.is_some_and(|view| view.state == State::Terminated);
        if over {
            self.feed(Input::Gone(id));
        }
        let known = there && !over;
        if !there {
            let entry = Entry::new(directory, owner, attributes.clone(), source);
            self.entries.insert(id, entry);
        }
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        entry.owner = owner;
        entry.source = source;
        entry.attributes = attributes;
        entry.attaching.extend(token);
        let (profile, problem) = entry.profile();
        let name = entry.name();
        if let Some(problem) = problem {
            self.warn(
                "profile",
                &format!("{name}: {problem}; taken for interactive"),
            );
        }
        match known {
            false => {
                self.feed(Input::Appeared {
                    id,
                    profile,
                    known: None,
                });
                self.was_taken(id);
                self.still_quiesced(id);
            }
            true => self.feed(Input::Profile(id, profile)),
        }
        self.attach(id);
    }

    /// Orders the attachment to the module, unless it has the sandbox as it shall be.
    pub(super) fn attach(&mut self, id: Id) {
        if !self.module {
            return self.answer_attach(id, &Ok(()));
        }
        let told = self
            .sysfs
            .told(id)
            .ok()
            .flatten()
            // One that is about to be detached is attached after that.
            .filter(|told| told.attached && !self.leaving.contains_key(&id));
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        if told.as_ref().is_some_and(|told| entry.is_as(told)) {
            entry.attachment = Attachment::Done;
            // It may have been told before, which does no harm.
            self.record(id);
            self.feed(Input::Attached(id));
            return self.answer_attach(id, &Ok(()));
        }
        if entry.attachment == Attachment::Asked {
            // One order at a time: nobody fills the queue that all have.
            entry.changed = true;
            return;
        }
        let order = Order::Attach {
            id,
            path: self.mount.path().join(entry.directory.inside()),
            attributes: entry.attributes.clone(),
            again: told.is_some(),
        };
        let before = std::mem::replace(&mut entry.attachment, Attachment::Asked);
        if let Attachment::Failed { .. } = before {
            entry.failed = Some(before);
        }
        if !self.clerk.order(order) {
            let problem = Error::invalid("attach", "too many orders at once; it is tried again");
            self.attached(id, Err(problem));
        }
    }

    /// What came of an attachment.
    pub(super) fn attached(&mut self, id: Id, result: Result<Vec<String>>) {
        let now = self.now();
        let Some(entry) = self.entries.get_mut(&id) else {
            // Removed or untagged meanwhile.
            if result.is_ok() {
                self.order_detach(id);
            }
            return;
        };
        let name = entry.name();
        let changed = std::mem::take(&mut entry.changed);
        match &result {
            Ok(warnings) => {
                entry.attachment = Attachment::Done;
                entry.failed = None;
                let (owner, source) = (entry.owner, entry.source);
                let attributes = entry.attributes.clone();
                let template = attributes.template.as_ref().map(ToString::to_string);
                for warning in warnings {
                    self.warn("attach", &format!("{name}: {warning}"));
                }
                if self.log.allow("attached", now).is_some() {
                    info!(cgroup = name, template, "attached");
                }
                let happening = Happening::Attached {
                    cgroup: name,
                    cgroup_id: id,
                    attributes,
                    source,
                };
                self.publish(owner, happening);
                self.record(id);
                self.feed(Input::Attached(id));
            }
            Err(error) => {
                let mut attachment = entry.failed.take().unwrap_or(Attachment::Asked);
                let new = attachment.fail(error.to_string(), now);
                entry.attachment = attachment;
                if new {
                    self.warn("attach", &format!("{error}; it is tried again"));
                }
            }
        }
        match changed {
            // It shall be something else since; who waits, waits for that.
            true => self.attach(id),
            false => self.answer_attach(id, &result.map(|_| ())),
        }
    }

    /// Orders to detach a sandbox. False when there are too many orders.
    fn order_detach(&mut self, id: Id) -> bool {
        let ordered = self.clerk.order(Order::Detach(id));
        if ordered {
            *self.leaving.entry(id).or_default() += 1;
        }
        ordered
    }

    /// Such an order was carried out.
    pub(super) fn detached(&mut self, id: Id) {
        if let Some(orders) = self.leaving.get_mut(&id) {
            *orders -= 1;
            if *orders == 0 {
                self.leaving.remove(&id);
            }
        }
    }

    fn answer_attach(&mut self, id: Id, result: &Result<()>) {
        let waiting = match self.entries.get_mut(&id) {
            Some(entry) => std::mem::take(&mut entry.attaching),
            None => return,
        };
        for token in waiting {
            let response = match result {
                Ok(()) => Response::result(&serde_json::json!({
                    "cgroup_id": id,
                    "module": self.module,
                })),
                Err(error) => {
                    Response::error(crate::protocol::ErrorCode::Failed, error.to_string())
                }
            };
            self.server.reply(token, response);
        }
    }

    /// The module knows the sandbox no more: it was unloaded, or someone detached it.
    pub(super) fn lost_by_module(&mut self, id: Id) {
        let now = self.now();
        if let Some(entry) = self.entries.get_mut(&id) {
            if entry.attachment == Attachment::Done {
                entry
                    .attachment
                    .fail("the module knows it no more".to_owned(), now);
            }
        }
    }

    /// A cgroup is no sandbox any more.
    pub(super) fn drop_entry(&mut self, id: Id, reason: &'static str, detach: bool) {
        self.thaw(id);
        let Some(entry) = self.entries.remove(&id) else {
            return;
        };
        let gone = Error::invalid(entry.name(), "no such sandbox any more");
        for token in entry.attaching.iter().chain(&entry.quiescing) {
            let response = Response::error(crate::protocol::ErrorCode::NotFound, gone.to_string());
            self.server.reply(*token, response);
        }
        self.unrecord(id);
        self.feed(Input::Gone(id));
        if detach && self.module && !self.order_detach(id) {
            self.warn(
                "detach",
                &format!("{}: too many orders; detach it by hand", entry.name()),
            );
        }
        if self.log.allow("detached", self.now()).is_some() {
            info!(cgroup = entry.name(), reason, "no sandbox any more");
        }
        let happening = Happening::Detached {
            cgroup: entry.name(),
            cgroup_id: id,
            reason: Word::Borrowed(reason),
        };
        self.publish(entry.owner, happening);
    }

    /// What is done once in each period.
    pub(super) fn round(&mut self) {
        self.read_memory();
        self.look_for_module();
        self.refresh_owners();
        if self.watcher.misses_trees() {
            let changes = self.watcher.seek_trees(&self.authority);
            self.take_changes(changes);
        }
        let holders = &self.governor.config().holders;
        for problem in self.holders.set(&self.mount, holders) {
            self.warn("holder", &problem);
        }
        self.adopt_all();
        let now = self.now();
        let due: Vec<Id> = self
            .entries
            .iter()
            .filter(|(_, entry)| entry.attachment.is_due(now))
            .map(|(id, _)| *id)
            .collect();
        for id in due {
            self.attach(id);
        }
        let frozen: Vec<Id> = self
            .entries
            .iter()
            .filter(|(id, entry)| entry.frozen && !self.governor.holds(**id))
            .map(|(id, _)| *id)
            .collect();
        for id in frozen {
            self.thaw(id);
        }
        let mut gone = Vec::new();
        let mut samples = Vec::with_capacity(self.entries.len());
        for (id, entry) in &mut self.entries {
            match entry
                .files
                .sample(&entry.directory, self.governor.needs(*id))
            {
                // Without a file nothing of the cgroup tells that it is gone.
                Ok(_) if !entry.files.are_open() && is_gone(&self.mount, &entry.directory) => {
                    gone.push(*id);
                }
                Ok(sample) => samples.push(Input::Sample(*id, sample)),
                Err(_) => gone.push(*id),
            }
        }
        for id in gone {
            self.drop_entry(id, "removed", false);
        }
        for sample in samples {
            self.feed(sample);
        }
        self.feed(Input::Sampled);
        self.report_status();
    }

    /// The module may come and go.
    fn look_for_module(&mut self) {
        let there = self.sysfs.is_there();
        if there == std::mem::replace(&mut self.module, there) {
            return;
        }
        info!(loaded = there, "the module");
        if there {
            self.second_look = self.sysfs.second_look_percent().ok();
            self.governor.tell_again();
            self.apply_settings();
            self.report_module();
        } else {
            self.set_restorer();
        }
        let ids: Vec<Id> = self.entries.keys().copied().collect();
        for id in ids {
            if there {
                self.attach(id);
            } else if let Some(entry) = self.entries.get_mut(&id) {
                entry.attachment = Attachment::None;
            }
        }
    }
}

/// Another cgroup, or none, is where this one was.
fn is_gone(mount: &Mount, directory: &Directory) -> bool {
    match mount.directory(directory.inside()) {
        Ok(now) => now.id() != directory.id(),
        // Else it cannot be told now.
        Err(error) => matches!(error, Error::Invalid { .. }),
    }
}
