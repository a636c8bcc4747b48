// SPDX-License-Identifier: GPL-2.0 OR MIT

//! One function for each command. It takes the [`Context`](crate::Context) and its arguments, and
//! returns a report that prints itself (`Display`) and serializes itself (`--json`).

pub mod alarm;
pub mod arm;
pub mod config;
pub mod daemon_status;
pub mod dictionary;
pub mod drain;
mod explain;
pub mod hint;
pub mod limit;
pub mod phase;
pub mod plan;
pub mod quiesce;
pub mod ranges;
pub mod restore;
pub mod sandbox;
pub mod status;
pub mod template;
pub mod template_add;

use std::fmt;

use crate::cgroup::{Cgroup, Selector};
use crate::error::Result;
use crate::Context;

/// Writes each warning on a line of its own.
fn write_warnings(f: &mut fmt::Formatter<'_>, warnings: &[String]) -> fmt::Result {
    warnings
        .iter()
        .try_for_each(|warning| writeln!(f, "warning: {warning}"))
}

/// The id of the cgroup that is meant, and the cgroup unless its directory is gone.
fn select(context: &Context, selector: &Selector) -> Result<(u64, Option<Cgroup>)> {
    match selector {
        Selector::Path(path) => {
            let cgroup = context.cgroups.open(path)?;
            Ok((cgroup.id(), Some(cgroup)))
        }
        Selector::Id(id) => Ok((*id, context.cgroups.by_id()?.remove(id))),
    }
}

/// How a sandbox is called in messages: `/agents/sb3 (id 412)`.
fn sandbox_name(id: u64, cgroup: Option<&Cgroup>) -> String {
    match cgroup {
        Some(cgroup) => format!("{} (id {id})", cgroup.name()),
        None => format!("id {id}"),
    }
}
