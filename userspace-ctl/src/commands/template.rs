// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `agentzip template add`, `list` and `rm`.

use std::fmt;
use std::time::{Duration, Instant};

use agentzip_uapi::{Range, MAX_RANGES};
use serde::Serialize;

use super::explain::{known_templates, refused, Refusal};
use super::write_warnings;
use crate::cgroup::Cgroup;
use crate::device::{Failure, NewTemplate};
use crate::error::{Error, Result};
use crate::format::{count, Bytes, Table};
use crate::sysfs::Template;
use crate::{Context, ObjectName, PAGE_SIZE};

/// How long `template rm` waits for sandboxes that are on their way out.
const SETTLE: Duration = Duration::from_secs(5);

/// What `template add` did.
#[derive(Debug, Serialize)]
pub struct Added {
    /// Name of the template.
    pub name: String,
    /// Its domain.
    pub domain: String,
    /// The process that holds the pages.
    pub pid: i32,
    /// Address ranges taken.
    pub ranges: usize,
    /// Pages kept by reference: they cost nothing while the process holds them.
    pub pages_referenced: u64,
    /// Pages copied.
    pub pages_copied: u64,
    /// Pages left out: absent, swapped out, zero, or of a file.
    pub pages_skipped: u64,
    /// What makes the template worse than it could be.
    pub warnings: Vec<String>,
}

impl fmt::Display for Added {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "template {} (domain {}) from process {}, {}:",
            self.name,
            self.domain,
            self.pid,
            count(self.ranges as u64, "range"),
        )?;
        let mut table = Table::new(&["", ">PAGES", ">SIZE", ""]).indented(2);
        for (what, pages, remark) in [
            (
                "referenced",
                self.pages_referenced,
                "cost nothing while the process holds them",
            ),
            ("copied", self.pages_copied, ""),
            (
                "skipped",
                self.pages_skipped,
                "absent, swapped out, zero, or of a file",
            ),
        ] {
            let size = Bytes(pages * PAGE_SIZE).to_string();
            table.row([what.to_owned(), pages.to_string(), size, remark.to_owned()]);
        }
        write!(f, "{table}")?;
        write_warnings(f, &self.warnings)
    }
}

/// Registers the private memory of a process as a template.
///
/// # Errors
///
/// When the process cannot be inspected, holds nothing, or the module refuses.
pub fn add(
    context: &Context,
    pid: i32,
    name: &ObjectName,
    domain: Option<&ObjectName>,
) -> Result<Added> {
    let object = format!("{name} from process {pid}");
    let gone = || {
        refused(
            "template add",
            &object,
            libc::ESRCH,
            "there is no such process",
        )
    };
    let maps = context
        .procfs
        .maps(pid)
        .map_err(|error| match error.errno() {
            Some(libc::ENOENT | libc::ESRCH) => gone(),
            _ => error,
        })?;
    let ranges: Vec<Range> = maps
        .iter()
        .filter(|mapping| mapping.is_template_material())
        .map(|mapping| mapping.range)
        .collect();
    if ranges.is_empty() {
        return Err(Error::invalid(
            format!("process {pid}"),
            "has no private writable memory (a kernel thread, or exiting?)",
        ));
    }
    if ranges.len() > MAX_RANGES as usize {
        let problem = format!(
            "has {} private writable mappings; a template takes at most {MAX_RANGES}",
            ranges.len()
        );
        return Err(Error::invalid(format!("process {pid}"), problem));
    }
    let warnings = check_holder(context, pid);
    let count = ranges.len();
    let template = NewTemplate {
        pid,
        ranges,
        name: name.raw(),
        domain: ObjectName::raw_or_default(domain),
    };
    let pages = context.device.template_add(&template).map_err(|failure| {
        let refusal = Refusal {
            operation: "template add",
            object: object.clone(),
        };
        refusal.explain(failure, |errno, _| match errno {
            libc::EEXIST => Some(format!(
                "a template of this name exists; choose another name, or remove it: agentzip template rm {name}"
            )),
            libc::ESRCH => Some("there is no such process".to_owned()),
            libc::E2BIG => Some("its memory is larger than a template can be (64 GiB)".to_owned()),
            libc::ENODATA => Some("none of its pages can serve as a template".to_owned()),
            _ => None,
        })
    })?;
    Ok(Added {
        name: name.to_string(),
        domain: domain
            .map_or(agentzip_uapi::DEFAULT_DOMAIN, ObjectName::as_str)
            .to_owned(),
        pid,
        ranges: count,
        pages_referenced: pages.referenced,
        pages_copied: pages.copied,
        pages_skipped: pages.skipped,
        warnings,
    })
}

/// What a process that holds template pages should be like.
fn check_holder(context: &Context, pid: i32) -> Vec<String> {
    let mut warnings = Vec::new();
    match context.procfs.state(pid) {
        Ok('T' | 't') => {}
        Ok(state) => warnings.push(format!(
            "process {pid} is not stopped (state {state}): pages that it changes from now on are no longer \
             shared; fork a holder that stops, or: kill -STOP {pid}"
        )),
        Err(error) => warnings.push(error.to_string()),
    }
    let Some(cgroup) = holder_cgroup(context, pid) else {
        return warnings;
    };
    match context.sysfs.sandboxes() {
        Ok(sandboxes)
            if cgroup.ancestors().any(|path| {
                context.cgroups.open(path).is_ok_and(|c| {
                    sandboxes
                        .iter()
                        .any(|s| s.attached && s.cgroup_id == c.id())
                })
            }) =>
        {
            warnings.push(format!(
                "process {pid} lives in the sandbox {}: keep the holder outside",
                cgroup.name()
            ));
        }
        _ => {}
    }
    let limit = cgroup.swap_limit().ok().flatten();
    if limit.is_none_or(|(bytes, _)| bytes > 0) {
        warnings.push(format!(
            "process {pid} can be swapped out; keep it in a cgroup of its own with no swap: \
             echo 0 > {}/memory.swap.max",
            cgroup.path().display()
        ));
    }
    warnings
}

fn holder_cgroup(context: &Context, pid: i32) -> Option<Cgroup> {
    let name = context.procfs.cgroup(pid)?;
    let path = context.cgroups.root().join(name.trim_start_matches('/'));
    context.cgroups.open(&path).ok()
}

/// What `template list` shows.
#[derive(Debug, Serialize)]
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
            ">USERS",
            ">REFERENCED",
            ">COPIED",
            ">SKIPPED",
            ">INDEX",
            ">PAGES HELD",
        ]);
        for template in &self.0 {
            table.row([
                template.name.clone(),
                template.domain.clone(),
                template.users.to_string(),
                template.pages_referenced.to_string(),
                template.pages_copied.to_string(),
                template.pages_skipped.to_string(),
                Bytes(template.index_bytes).to_string(),
                Bytes(template.page_bytes).to_string(),
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
