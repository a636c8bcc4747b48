// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `agentzip restore`.

use std::fmt;

use agentzip_uapi::Phase;
use serde::Serialize;

use super::explain::Refusal;
use super::sandbox::not_attached;
use super::{sandbox_name, select, write_warnings};
use crate::cgroup::Selector;
use crate::error::{Error, Result};
use crate::format::{count, Bytes, Elapsed};
use crate::restore;
use crate::{Context, PAGE_SIZE};

/// What `restore` did.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The sandbox, for people.
    #[serde(skip)]
    name: String,
    /// Its id.
    pub cgroup_id: u64,
    /// What came back.
    #[serde(flatten)]
    pub pages: restore::Report,
    /// What is not as it should be.
    pub warnings: Vec<String>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pages = &self.pages;
        writeln!(
            f,
            "sandbox {}: {} of {} back ({}) in {}, {} still swapped out",
            self.name,
            pages.pages_asked.saturating_sub(pages.pages_still_swapped),
            count(pages.pages_asked, "page"),
            Bytes(pages.pages_asked * PAGE_SIZE),
            Elapsed(pages.elapsed),
            pages.pages_still_swapped,
        )?;
        writeln!(
            f,
            "  {}, {} of them exited meanwhile",
            count(pages.processes as u64, "process"),
            pages.exited
        )?;
        write_warnings(f, &self.warnings)
    }
}

/// Sets the phase to resuming and brings the swapped-out pages of a sandbox back.
///
/// # Errors
///
/// When it is no sandbox, or its processes cannot be inspected.
pub fn restore(context: &Context, selector: &Selector) -> Result<Report> {
    let (cgroup_id, cgroup) = select(context, selector)?;
    let name = sandbox_name(cgroup_id, cgroup.as_ref());
    let mut warnings = Vec::new();
    match context.device.sandbox_phase(cgroup_id, Phase::Resuming) {
        Ok(()) => {}
        Err(failure) => {
            let refusal = Refusal {
                operation: "restore",
                object: name.clone(),
            };
            let error =
                refusal.explain(failure, |errno, _| not_attached(context, errno, cgroup_id));
            // A detached sandbox has no phase, but may have pages.
            match context.sysfs.sandbox(cgroup_id) {
                Ok(Some(sandbox)) if !sandbox.attached => warnings.push(error.to_string()),
                _ => return Err(error),
            }
        }
    }
    let Some(cgroup) = cgroup else {
        return Err(Error::invalid(
            name,
            "its cgroup is gone: there are no processes",
        ));
    };
    let pages = restore::restore(&context.procfs, context.host.as_ref(), &cgroup)?;
    warnings.extend(warnings_of(&pages));
    Ok(Report {
        name,
        cgroup_id,
        pages,
        warnings,
    })
}

/// What a restore left undone, in words.
pub(super) fn warnings_of(pages: &restore::Report) -> Vec<String> {
    let mut warnings = Vec::new();
    if pages.stopped_at_limit {
        warnings.push(
            "stopped early: the cgroup or one above it is near memory.high or memory.max; \
             raise the limit to restore the rest"
                .to_owned(),
        );
    }
    if pages.pages_failed > 0 {
        warnings.push(format!(
            "{} could not be read; look for load_errors in: agentzip status",
            count(pages.pages_failed, "page")
        ));
    }
    if pages.foreign > 0 {
        warnings.push(format!(
            "{} of another pid namespace left alone; run on the host",
            count(pages.foreign as u64, "process")
        ));
    }
    warnings
}
