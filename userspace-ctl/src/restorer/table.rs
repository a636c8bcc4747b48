// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The processes of a sandbox: which number has which role.
//!
//! A role is the same for the same process of every sibling: its command, and which of the processes of
//! that command it is. A process keeps its role for as long as it lives; when it is gone the next one of
//! that command takes the place, so that the child which a tool runs in has the same role each time.

use std::collections::{BTreeMap, BTreeSet};

use tracing::debug;

use crate::hot::process::{Most, Processes, Subject};
use crate::hot::{Identity, Target};
use crate::predict::{Learner, Role};

/// How far a sandbox is looked through.
const MOST: Most = Most {
    cgroups: 64,
    processes: 256,
};

/// A process that is, or was, in the sandbox.
struct Member {
    identity: Identity,
    role: Role,
    command: String,
    ordinal: u16,
    /// Held from a trigger to the end of the next look at its pages.
    subject: Option<Box<dyn Subject>>,
    /// It was not there any more at the last look.
    gone: bool,
}

/// All of them, by number.
#[derive(Default)]
pub struct Table(BTreeMap<i32, Member>);

impl Table {
    /// Looks who is there, and takes hold of all of them.
    pub fn look(&mut self, processes: &dyn Processes, target: &Target, learner: &mut Learner) {
        let pids = match processes.list(target, MOST) {
            Ok(pids) => pids,
            Err(error) => {
                debug!("{error}");
                Vec::new()
            }
        };
        let mut new = Vec::new();
        let mut there = BTreeSet::new();
        for pid in pids {
            // One that is gone, or may not be held, has no pages to bring back.
            let Ok(Some(subject)) = processes.open(target, pid) else {
                continue;
            };
            there.insert(pid);
            let identity = subject.identity();
            match self
                .0
                .get_mut(&pid)
                .filter(|member| member.identity == identity)
            {
                Some(member) => {
                    member.subject = Some(subject);
                    member.gone = false;
                }
                None => new.push((identity, subject)),
            }
        }
        for (pid, member) in &mut self.0 {
            if !there.contains(pid) {
                member.gone = true;
                member.subject = None;
            }
        }
        // In the order of their start.
        new.sort_by_key(|(identity, _)| (identity.started, identity.pid));
        for (identity, subject) in new {
            let Ok(command) = subject.command() else {
                continue;
            };
            // What it was before an exec, or another one of its number, is over.
            self.0.remove(&identity.pid);
            let ordinal = self.free_ordinal(&command);
            if let Some(role) = learner.role(target.id, &command, ordinal) {
                let member = Member {
                    identity,
                    role,
                    command,
                    ordinal,
                    subject: Some(subject),
                    gone: false,
                };
                self.0.insert(identity.pid, member);
            }
        }
    }

    /// The least number that no living process of that command has.
    fn free_ordinal(&self, command: &str) -> u16 {
        let alike = self.0.values().filter(|member| member.command == command);
        let taken: BTreeSet<u16> = alike
            .filter(|member| !member.gone)
            .map(|member| member.ordinal)
            .collect();
        (0..=u16::MAX)
            .find(|ordinal| !taken.contains(ordinal))
            .unwrap_or(u16::MAX)
    }

    /// The role of a process, also of one that has ended since.
    pub fn role(&self, pid: i32) -> Option<Role> {
        self.0.get(&pid).map(|member| member.role)
    }

    /// The living process of a role.
    pub fn process(&self, role: Role) -> Option<i32> {
        let held = |member: &&Member| member.role == role && !member.gone;
        self.0.values().find(held).map(|member| member.identity.pid)
    }

    /// The process of this number is still the one that it was when it was looked at.
    pub fn is_alive(&self, pid: i32) -> bool {
        let subject = self.0.get(&pid).and_then(|member| member.subject.as_ref());
        subject.is_some_and(|subject| subject.is_alive())
    }

    /// Those that are held.
    pub fn held(&self) -> impl Iterator<Item = (i32, Role, &dyn Subject)> {
        self.0.iter().filter_map(|(pid, member)| {
            let subject = member.subject.as_deref()?;
            Some((*pid, member.role, subject))
        })
    }

    /// Lets all of them go, and forgets those that are gone.
    pub fn let_go(&mut self) {
        self.0.retain(|_, member| !member.gone);
        for member in self.0.values_mut() {
            member.subject = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hot::fake::Fake;
    use crate::predict::Settings;

    #[test]
    fn a_role_goes_to_the_next_process_of_that_command() {
        let fake = Fake::default();
        let target = Fake::target(1);
        let mut learner = Learner::new(Settings::default());
        for id in [1, 2, 3] {
            learner.attach(id, &"python".parse().unwrap());
        }
        let mut table = Table::default();
        for (pid, command) in [(10, "agent"), (11, "pytest"), (12, "pytest")] {
            fake.start(1, pid, 0..4);
            fake.call(pid, command);
        }
        fake.start(2, 99, 0..4);
        table.look(&fake, &target, &mut learner);
        let roles = [10, 11, 12].map(|pid| table.role(pid).unwrap());
        assert!(roles[0] != roles[1] && roles[1] != roles[2]);
        assert_eq!(table.role(99), None, "it is in another sandbox");
        assert_eq!(learner.role_name(roles[2]), Some(("pytest", 1)));
        // The first one ends; what it did is still told apart, and its successor has its role.
        fake.vanish(11);
        assert!(!table.is_alive(11) && table.is_alive(12));
        table.look(&fake, &target, &mut learner);
        assert_eq!(table.role(11), Some(roles[1]));
        assert_eq!(table.process(roles[1]), None);
        fake.start(1, 13, 0..4);
        fake.call(13, "pytest");
        table.look(&fake, &target, &mut learner);
        assert_eq!(table.role(13), Some(roles[1]));
        assert_eq!(table.process(roles[1]), Some(13));
        assert_eq!(table.held().count(), 3);
        // Another program in a process is another process.
        fake.exec(13);
        fake.call(13, "ls");
        table.look(&fake, &target, &mut learner);
        assert_ne!(table.role(13), Some(roles[1]));
        table.let_go();
        assert_eq!(table.held().count(), 0);
        assert_eq!(table.role(11), None);
        assert_eq!(table.role(12), Some(roles[2]));
        assert!(!table.is_alive(12), "nobody holds it, so nobody knows");
        // A sibling's have the same ones.
        fake.start(3, 50, 0..4);
        fake.call(50, "agent");
        let mut sibling = Table::default();
        sibling.look(&fake, &Fake::target(3), &mut learner);
        assert_eq!(sibling.role(50), Some(roles[0]));
    }
}
