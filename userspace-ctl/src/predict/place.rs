// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Places: pages as the predictors name them, so that what one sandbox taught serves its siblings.

use std::collections::BTreeMap;
use std::time::Duration;

/// Longest command name that tells roles apart, in bytes: the kernel's own limit.
pub const MAX_COMMAND: usize = 15;

/// Most roles that are known at a time.
pub const MAX_ROLES: usize = 8191;

/// Bits of a page number that a [`Place`] may have: with five levels of page tables it has 45.
pub(super) const PAGE_BITS: u32 = 46;

/// A role that no process has.
pub(super) const NO_ROLE: u16 = 8191;

/// Which process of a sandbox: the same number for the same process of every sibling. See [`Roles`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Role(pub(super) u16);

/// A page of a process of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The process.
    pub role: Role,
    /// Its address, divided by the size of a page.
    pub page: u64,
}

impl Place {
    /// As one number of 59 bits, in the order of role and page; `None` for a page number that no address has.
    pub(super) fn key(self) -> Option<u64> {
        match self.page >> PAGE_BITS {
            0 => Some((u64::from(self.role.0) << PAGE_BITS) | self.page),
            _ => None,
        }
    }

    /// What [`Self::key`] was made of.
    pub(super) fn from_key(key: u64) -> Place {
        Place {
            role: Role((key >> PAGE_BITS) as u16),
            page: key & ((1 << PAGE_BITS) - 1),
        }
    }
}

/// What was seen of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A thread touched it while it was out, and waited.
    Demand,
    /// It was restored ahead of need, and touched within the hit window.
    Hit,
    /// It was restored ahead of need, and not touched within the hit window.
    Miss,
}

/// One record of a sandbox's ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// When, on the clock of all other times given to the learner.
    pub at: Duration,
    /// Which page.
    pub place: Place,
    /// The thread that touched it; 0 where none waited.
    pub thread: i32,
    /// The access was a write.
    pub write: bool,
    /// What it was.
    pub what: What,
    /// Nanoseconds that decoding took, and that the thread waited for if it was a [`What::Demand`].
    pub stall_ns: u32,
}

/// Names of roles: command and ordinal among the sandbox's processes of that command, by their start.
#[derive(Clone, Debug, Default)]
pub struct Roles {
    by_name: BTreeMap<(Box<str>, u16), Role>,
    by_number: Vec<Option<(Box<str>, u16)>>,
}

impl Roles {
    /// The role of a process, which gets a number if it has none. Of the command the first
    /// [`MAX_COMMAND`] bytes count. `None`: [`MAX_ROLES`] are in use.
    pub fn get(&mut self, command: &str, ordinal: u16) -> Option<Role> {
        let mut end = command.len().min(MAX_COMMAND);
        while !command.is_char_boundary(end) {
            end -= 1;
        }
        let name = (Box::from(&command[..end]), ordinal);
        if let Some(&role) = self.by_name.get(&name) {
            return Some(role);
        }
        let free = self.by_number.iter().position(Option::is_none);
        let number = match free {
            Some(number) => number,
            None if self.by_number.len() < MAX_ROLES => {
                self.by_number.push(None);
                self.by_number.len() - 1
            }
            None => return None,
        };
        let role = Role(number as u16);
        self.by_number[number] = Some(name.clone());
        self.by_name.insert(name, role);
        Some(role)
    }

    /// Command and ordinal of a role.
    pub fn name(&self, role: Role) -> Option<(&str, u16)> {
        let (command, ordinal) = self.by_number.get(usize::from(role.0))?.as_ref()?;
        Some((command, *ordinal))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    /// There are none.
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// Forgets all roles but those that `used` says yes to. Their numbers are given anew.
    pub(super) fn retain(&mut self, used: impl Fn(Role) -> bool) {
        self.by_name.retain(|_, role| used(*role));
        for (number, slot) in self.by_number.iter_mut().enumerate() {
            if !used(Role(number as u16)) {
                *slot = None;
            }
        }
    }
}
