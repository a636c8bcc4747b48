// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `agentzip template list` and `rm`.

use std::fmt;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::explain::{known_templates, Refusal};
use crate::device::Failure;
use crate::error::Result;
use crate::format::{Bytes, Table};
use crate::sysfs::Template;
use crate::{Context, ObjectName};

/// How long `template rm` waits for sandboxes that are on their way out.
const SETTLE: Duration = Duration::from_secs(5);

/// What `template list` shows.
#[derive(Debug, Default, Serialize)]
#[serde(transparent)]
pub struct List(pub Vec<Template>);

impl fmt::Display for List {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return writeln!(f, "no templates");
        }
        let mut table = Table::new(&[
            "TEMPLATE",
            "DOMAIN",
            "FROM",
            ">USERS",
            ">REFERENCED",
            ">COPIED",
            ">SKIPPED",
            ">INDEXED",
            ">INDEXES",
            ">PAGES HELD",
            "SIGNATURE",
        ]);
        for template in &self.0 {
            table.row([
                template.name.clone(),
                template.domain.clone(),
                template.source.clone(),
                template.users.to_string(),
                template.pages_referenced.to_string(),
                template.pages_copied.to_string(),
                template.pages_skipped.to_string(),
                template.pages_indexed.to_string(),
                Bytes(template.index_bytes + template.sketch_bytes).to_string(),
                Bytes(template.page_bytes).to_string(),
                template.signature.short(),
            ]);
        }
        table.fmt(f)
    }
}

/// Lists the templates.
///
/// # Errors
///
/// When the module is not loaded or its files cannot be read.
pub fn list(context: &Context) -> Result<List> {
    context.sysfs.module()?;
    context.sysfs.templates().map(List)
}

/// What `template rm` did.
#[derive(Debug, Serialize)]
pub struct Removed {
    /// Name of the template.
    pub name: String,
}

impl fmt::Display for Removed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "template {} removed", self.name)
    }
}

/// Removes a template that nobody uses.
///
/// # Errors
///
/// When it is unknown or in use.
pub fn remove(context: &Context, name: &ObjectName) -> Result<Removed> {
    let started = Instant::now();
    let removed = loop {
        match context.device.template_remove(&name.raw()) {
            Err(Failure::Refused { errno, .. })
                if errno.raw_os_error() == Some(libc::EBUSY)
                    && started.elapsed() < SETTLE
                    && users_are_leaving(context, name) =>
            {
                std::thread::sleep(Duration::from_millis(100));
            }
            other => break other,
        }
    };
    removed.map_err(|failure| {
        let refusal = Refusal {
            operation: "template rm",
            object: name.to_string(),
        };
        refusal.explain(failure, |errno, users| match errno {
            libc::ENOENT => Some(format!("no such template; {}", known_templates(context))),
            libc::EBUSY => Some(in_use(context, name, users)),
            _ => None,
        })
    })?;
    Ok(Removed {
        name: name.to_string(),
    })
}

/// Every sandbox that uses the template is detached and has no entries: the module forgets them
/// within about a second.
fn users_are_leaving(context: &Context, name: &ObjectName) -> bool {
    context.sysfs.sandboxes().is_ok_and(|sandboxes| {
        let mut users = sandboxes.iter().filter(|s| s.template == name.as_str());
        users.all(|sandbox| !sandbox.attached && sandbox.pages.entries == 0)
    })
}

fn in_use(context: &Context, name: &ObjectName, users: Option<u64>) -> String {
    let users = users.map_or("sandboxes".to_owned(), |users| match users {
        1 => "1 sandbox".to_owned(),
        users => format!("{users} sandboxes"),
    });
    let ids: Vec<String> = context
        .sysfs
        .sandboxes()
        .unwrap_or_default()
        .into_iter()
        .filter(|sandbox| sandbox.template == name.as_str())
        .map(|sandbox| format!("id:{}", sandbox.cgroup_id))
        .collect();
    let ids = if ids.is_empty() {
        String::new()
    } else {
        format!(" ({})", ids.join(", "))
    };
    format!(
        "in use by {users}{ids}; detach them (agentzip sandbox detach) and end their processes, \
         or: agentzip drain"
    )
}
