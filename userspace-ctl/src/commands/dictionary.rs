// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `agentzip dict`: dictionaries of groups.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::explain::Refusal;
use super::{sandbox_name, select};
use crate::cgroup::Selector;
use crate::error::{Error, Result};
use crate::format::{count, Bytes, Table};
use crate::sysfs::Sandbox;
use crate::Context;

mod train;

pub use train::{train, Candidate, Request, Trained};

/// The dictionaries of a group.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Group {
    /// Its name.
    pub name: String,
    /// Its domain.
    pub domain: String,
    /// Its template.
    pub template: String,
    /// How many dictionaries it has: the current one, and retired ones in use.
    pub dictionaries: u64,
    /// Bytes of those, with zstd's tables.
    pub bytes: u64,
    /// Payloads that need the current one.
    pub users: u64,
    /// Mean bytes of the first payloads made with the current one; 0 while there are few.
    pub first_bytes: u64,
    /// The same of the last ones.
    pub recent_bytes: u64,
    /// Entries that need any of them, and bytes of their payloads.
    pub pages: u64,
    /// See there.
    pub payload_bytes: u64,
}

/// What `dict list` and `dict show` tell.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub struct List(pub Vec<Group>);

impl fmt::Display for List {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return writeln!(f, "no dictionaries");
        }
        let mut table = Table::new(&[
            "GROUP",
            "DOMAIN",
            "TEMPLATE",
            ">DICTIONARIES",
            ">BYTES",
            ">USERS",
            ">AT FIRST",
            ">OF LATE",
            ">PAGES",
            ">PAYLOADS",
        ]);
        for group in &self.0 {
            table.row([
                group.name.clone(),
                group.domain.clone(),
                group.template.clone(),
                group.dictionaries.to_string(),
                Bytes(group.bytes).to_string(),
                group.users.to_string(),
                mean(group.first_bytes),
                mean(group.recent_bytes),
                group.pages.to_string(),
                Bytes(group.payload_bytes).to_string(),
            ]);
        }
        table.fmt(f)
    }
}

/// A mean of payloads; none while there are too few.
fn mean(bytes: u64) -> String {
    match bytes {
        0 => "-".to_owned(),
        bytes => format!("{bytes} B"),
    }
}

fn groups(context: &Context) -> Result<BTreeMap<[String; 3], Group>> {
    let mut groups = BTreeMap::new();
    context.sysfs.module()?;
    let sandboxes = context.sysfs.sandboxes()?;
    // A sensitive one is in none of them.
    for sandbox in sandboxes.iter().filter(|sandbox| !sandbox.sensitive) {
        let group = groups.entry(key(sandbox)).or_insert_with(|| Group {
            name: sandbox.group.clone(),
            domain: sandbox.domain.clone(),
            template: sandbox.template.clone(),
            dictionaries: sandbox.group_dictionaries,
            bytes: sandbox.group_dictionary_bytes,
            users: sandbox.group_dictionary_users,
            first_bytes: sandbox.group_dictionary_first,
            recent_bytes: sandbox.group_dictionary_recent,
            pages: 0,
            payload_bytes: 0,
        });
        let name = agentzip_uapi::Representation::Dict.name();
        let representations = &sandbox.pages.representations;
        for dict in representations.iter().filter(|r| r.name == name) {
            group.pages += dict.pages;
            group.payload_bytes += dict.bytes;
        }
    }
    Ok(groups)
}

fn key(sandbox: &Sandbox) -> [String; 3] {
    [&sandbox.domain, &sandbox.group, &sandbox.template].map(String::clone)
}

/// The groups that have dictionaries.
///
/// # Errors
///
/// When the module is not loaded or its files cannot be read.
pub fn list(context: &Context) -> Result<List> {
    let groups = groups(context)?.into_values();
    Ok(List(
        groups.filter(|group| group.dictionaries != 0).collect(),
    ))
}

/// The group of a sandbox.
///
/// # Errors
///
/// When it is no sandbox, or a sensitive one, or the module's files cannot be read.
pub fn show(context: &Context, selector: &Selector) -> Result<List> {
    context.sysfs.module()?;
    let (cgroup_id, cgroup) = select(context, selector)?;
    let sandbox = context.sysfs.sandbox(cgroup_id)?.ok_or_else(|| {
        Error::invalid(
            sandbox_name(cgroup_id, cgroup.as_ref()),
            "not a sandbox; see: agentzip sandbox list",
        )
    })?;
    if sandbox.sensitive {
        return Err(Error::invalid(
            sandbox_name(cgroup_id, cgroup.as_ref()),
            "it is sensitive: in no group, and without a dictionary",
        ));
    }
    let group = groups(context)?.remove(&key(&sandbox));
    Ok(List(group.into_iter().collect()))
}

/// What `dict rm` did.
#[derive(Debug, Serialize)]
pub struct Retired {
    /// The sandbox, for people.
    #[serde(skip)]
    name: String,
    /// Its id.
    pub cgroup_id: u64,
    /// Number of the dictionary.
    pub number: u32,
    /// Payloads that needed it.
    pub users: u64,
}

impl fmt::Display for Retired {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, number, .. } = self;
        write!(f, "group of {name}: dictionary {number} retired")?;
        match self.users {
            0 => writeln!(f),
            users => writeln!(f, "; it goes with {}", count(users, "payload")),
        }
    }
}

/// Retires the current dictionary of a sandbox's group.
///
/// # Errors
///
/// When it is no sandbox, its group has no current dictionary, or the module refuses.
pub fn remove(context: &Context, selector: &Selector) -> Result<Retired> {
    let (cgroup_id, cgroup) = select(context, selector)?;
    let name = sandbox_name(cgroup_id, cgroup.as_ref());
    let known = context.sysfs.sandbox(cgroup_id)?;
    let retired = context.device.dictionary_retire(cgroup_id);
    let number = retired.map_err(|failure| {
        let refusal = Refusal {
            operation: "dict rm",
            object: name.clone(),
        };
        refusal.explain(failure, |errno, _| match (errno, &known) {
            (libc::ENOENT, Some(_)) => {
                Some("its group has no current dictionary; see: agentzip dict list".to_owned())
            }
            _ => no_sandbox(errno),
        })
    })?;
    Ok(Retired {
        name,
        cgroup_id,
        number,
        users: known.map_or(0, |sandbox| sandbox.group_dictionary_users),
    })
}

/// What `ENOENT` means; these commands take detached sandboxes, too.
fn no_sandbox(errno: i32) -> Option<String> {
    (errno == libc::ENOENT).then(|| "not a sandbox; see: agentzip sandbox list".to_owned())
}
