// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What the xattrs of one cgroup say, and what of it is new.

use std::sync::Arc;

use super::node::{Key, Node, Seen};
use super::xattr::{self, PHASE};
use super::{Change, Pass, Removal, Watcher};
use crate::authority::{Authority, Uid};
use crate::directory::Directory;
use crate::hint::Hint;

impl Watcher {
    /// Looks at a cgroup that is known.
    pub(super) fn look_at(&mut self, key: Key, pass: &mut Pass<'_>) {
        let Some(node) = self.nodes.get(key) else {
            return;
        };
        let directory = match &node.sandbox {
            Some((directory, ..)) => directory.clone(),
            None => match self.mount.directory(&node.path) {
                // Else another has come in its place, and its parent says so.
                Ok(directory) if directory.id() == node.id => Arc::new(directory),
                _ => return,
            },
        };
        self.examine(key, &directory, pass);
    }

    /// Reads the xattrs of a cgroup, and tells what they say.
    pub(super) fn examine(&mut self, key: Key, directory: &Arc<Directory>, pass: &mut Pass<'_>) {
        pass.looked_at.insert(key);
        let Ok(ownership) = directory.ownership() else {
            return;
        };
        let phase = xattr::value(directory, PHASE);
        let seen = Seen {
            values: xattr::values(directory),
            ownership,
            listed: xattr::listed(directory),
        };
        let Some(node) = self.nodes.get_mut(key) else {
            return;
        };
        let changed = node.seen.as_ref() != Some(&seen);
        let before = node.seen.as_ref();
        let same = before.is_some_and(|before| before.says_the_same_as(&seen));
        let said_before = node.phase == phase;
        let verdict = match same && !pass.standing {
            true => Verdict::Same,
            false => node.verdict(directory, &seen.values, pass),
        };
        node.phase = phase;
        node.seen = Some(seen);
        match verdict {
            Verdict::Same => {}
            Verdict::Became => self.uproot(key, pass),
            // What is below may be sandboxes now.
            Verdict::Ceased => self.descend(key, directory, pass),
        }
        let Some(node) = self.nodes.get(key) else {
            return;
        };
        if said_before && (changed || pass.standing) {
            return;
        }
        match node.hint(directory) {
            None => {}
            Some(Ok((owner, hint))) => pass.changes.push(Change::Phase {
                cgroup: directory.clone(),
                owner,
                hint,
                standing: pass.standing,
            }),
            Some(Err(reason)) => pass.refuse(directory.inside(), Some(Uid(ownership.uid)), reason),
        }
    }
}

/// What the attributes made of a cgroup.
enum Verdict {
    /// A sandbox, or none, as before.
    Same,
    /// A sandbox.
    Became,
    /// None any more.
    Ceased,
}

impl Node {
    /// What the attributes make of it.
    fn verdict(
        &mut self,
        directory: &Arc<Directory>,
        values: &xattr::Values,
        pass: &mut Pass<'_>,
    ) -> Verdict {
        let asked = xattr::attributes(values).and_then(|asked| {
            let Some(asked) = asked else {
                return Ok(None);
            };
            let owner = Authority::speaker(directory).map_err(|denied| denied.to_string())?;
            let granted = pass.authority.attach(owner, directory, asked);
            granted
                .map(|granted| Some((owner, granted)))
                .map_err(|denied| denied.to_string())
        });
        let granted = asked.unwrap_or_else(|reason| {
            // Said once, and again when something has changed.
            let owner = directory
                .ownership()
                .ok()
                .map(|ownership| Uid(ownership.uid));
            pass.refuse(directory.inside(), owner, reason);
            None
        });
        let Some((owner, attributes)) = granted else {
            return match self.sandbox.take() {
                Some((cgroup, owner, _)) => {
                    let why = Removal::Untagged;
                    pass.changes.push(Change::Removed { cgroup, owner, why });
                    Verdict::Ceased
                }
                None => Verdict::Same,
            };
        };
        let cgroup = directory.clone();
        let new = Some((cgroup.clone(), owner, attributes.clone()));
        match std::mem::replace(&mut self.sandbox, new) {
            None => {
                pass.changes.push(Change::Appeared {
                    cgroup,
                    owner,
                    attributes,
                });
                Verdict::Became
            }
            Some((_, before, former)) => {
                if (before, &former) != (owner, &attributes) {
                    pass.changes.push(Change::Attributes {
                        cgroup,
                        owner,
                        attributes,
                    });
                }
                Verdict::Same
            }
        }
    }

    /// What the phase says, if there is one.
    fn hint(&self, directory: &Directory) -> Option<Result<(Uid, Hint), String>> {
        let bytes = match self.phase.as_ref()? {
            Ok(bytes) => bytes,
            Err(errno) => {
                return Some(Err(format!(
                    "user.agentzip.phase: {}",
                    xattr::unreadable(*errno)
                )))
            }
        };
        let hint = Hint::from_bytes(bytes).map_err(|error| format!("user.agentzip.phase: {error}"));
        Some(hint.and_then(|hint| match Authority::speaker(directory) {
            Ok(owner) => Ok((owner, hint)),
            Err(denied) => Err(denied.to_string()),
        }))
    }
}
