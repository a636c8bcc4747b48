// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `agentzip limit` and `agentzip sandbox limit`.

use std::fmt;
use std::io;

use serde::Serialize;

use super::explain::Refusal;
use super::{sandbox_name, select};
use crate::cgroup::Selector;
use crate::error::{Error, Result};
use crate::format::Bytes;
use crate::{Context, Limit};

/// What a `limit` command did.
#[derive(Debug, Serialize)]
pub struct Report {
    /// What is bounded, for people.
    #[serde(skip)]
    name: String,
    /// Id of the sandbox; `None` for the store.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cgroup_id: Option<u64>,
    /// The bound.
    pub max_bytes: Limit,
    /// What counts against it, in bytes.
    pub used_bytes: u64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: at most {}, {} in use",
            self.name,
            self.max_bytes,
            Bytes(self.used_bytes)
        )?;
        if is_near(self.used_bytes, self.max_bytes) {
            write!(f, "; what does not fit goes to the swap device")?;
        }
        writeln!(f)
    }
}

/// Whether nine tenths of a bound are used up.
pub(super) fn is_near(used: u64, limit: Limit) -> bool {
    limit.0.is_some_and(|max| used >= max - max / 10)
}

/// Bounds the whole store.
///
/// # Errors
///
/// When the module is not loaded, or the caller may not set it.
pub fn store(context: &Context, limit: Limit) -> Result<Report> {
    context.sysfs.module()?;
    let name = "store".to_owned();
    let set = context.sysfs.set_store_limit(limit);
    set.map_err(|error| explain("limit", &name, error, None))?;
    Ok(Report {
        name,
        cgroup_id: None,
        max_bytes: limit,
        used_bytes: context.sysfs.memory()?.bounded(),
    })
}

/// Bounds one sandbox, attached or not.
///
/// # Errors
///
/// When it is no sandbox, or the caller may not set it.
pub fn sandbox(context: &Context, selector: &Selector, limit: Limit) -> Result<Report> {
    context.sysfs.module()?;
    let (cgroup_id, cgroup) = select(context, selector)?;
    let name = format!("sandbox {}", sandbox_name(cgroup_id, cgroup.as_ref()));
    let advice = "not a sandbox; see: agentzip sandbox list";
    let refused = |error| explain("sandbox limit", &name, error, Some(advice));
    let set = context.sysfs.set_sandbox_limit(cgroup_id, limit);
    set.map_err(refused)?;
    let sandbox = context.sysfs.sandbox(cgroup_id)?;
    Ok(Report {
        name,
        cgroup_id: Some(cgroup_id),
        max_bytes: limit,
        // It may have gone since.
        used_bytes: sandbox.map_or(0, |sandbox| sandbox.arena_bytes),
    })
}

/// Says what it means that a bound could not be set; `gone`, that there is nothing to bound.
pub(super) fn explain(
    operation: &'static str,
    object: &str,
    error: Error,
    gone: Option<&str>,
) -> Error {
    let Some(errno) = error.errno() else {
        return error;
    };
    let refusal = Refusal {
        operation,
        object: object.to_owned(),
    };
    let failure = io::Error::from_raw_os_error(errno).into();
    refusal.explain(failure, |errno, _| match errno {
        libc::ENOENT | libc::ENODEV => gone.map(str::to_owned),
        _ => None,
    })
}
