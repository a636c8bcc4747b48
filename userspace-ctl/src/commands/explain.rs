// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Says what an errno of the module means for the command at hand, and what to do about it.

use std::io;

use crate::device::Failure;
use crate::error::Error;
use crate::Context;

/// A refused command, before it is explained.
pub(super) struct Refusal {
    /// As on the command line.
    pub(super) operation: &'static str,
    /// What the command was about.
    pub(super) object: String,
}

impl Refusal {
    /// Explains a failure. `advice` knows what the errnos mean to this command; the others mean
    /// the same everywhere.
    pub(super) fn explain(
        self,
        failure: Failure,
        advice: impl FnOnce(i32, Option<u64>) -> Option<String>,
    ) -> Error {
        let (cause, users) = match failure {
            Failure::Open(error) => return error,
            Failure::Refused { errno, users } => (errno, users),
        };
        let errno = cause.raw_os_error().unwrap_or(0);
        let advice = advice(errno, users).unwrap_or_else(|| self.general(errno));
        Error::Refused {
            operation: self.operation,
            object: self.object,
            cause,
            advice,
        }
    }

    fn general(&self, errno: i32) -> String {
        let text = match errno {
            libc::EPERM | libc::EACCES => "run as root",
            libc::ENOTTY => "the loaded module does not know this command; load the module that belongs to this controller",
            libc::E2BIG | libc::EINVAL => "the loaded module does not accept this request; load the module that belongs to this controller",
            libc::ENOMEM => "the kernel has no memory for it; free some and try again",
            libc::EINTR => "interrupted; try again",
            libc::ENODEV => "the module is being unloaded",
            _ => "see the kernel log: dmesg | tail",
        };
        text.to_owned()
    }
}

/// `; known templates: a, b`, from sysfs; says so when there are none.
pub(super) fn known_templates(context: &Context) -> String {
    match context.sysfs.templates() {
        Err(_) => "see: agentzip template list".to_owned(),
        Ok(templates) if templates.is_empty() => {
            "there are no templates yet; make one: agentzip template add --pid PID --name NAME (or --file FILE)"
                .to_owned()
        }
        Ok(templates) => {
            let names: Vec<String> = templates.into_iter().map(|t| t.name).collect();
            format!("known templates: {}", names.join(", "))
        }
    }
}

/// The error of a command that the module was never asked for.
pub(super) fn refused(
    operation: &'static str,
    object: impl Into<String>,
    errno: i32,
    advice: impl Into<String>,
) -> Error {
    Error::Refused {
        operation,
        object: object.into(),
        cause: io::Error::from_raw_os_error(errno),
        advice: advice.into(),
    }
}
