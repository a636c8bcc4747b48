// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `agentzip hint`, `agentzip admit` and `agentzip events`: what goes through the daemon.

use std::fmt;
use std::io::{self, Write};
use std::path::Path;

use serde::Serialize;

use super::{limit, sandbox_name, select};
use crate::cgroup::Selector;
use crate::client::{Client, ClientError};
use crate::error::Error;
use crate::hint::Hint;
use crate::name::ObjectName;
use crate::protocol::{Admission, Admitted, Event, Happening};
use crate::Context;

/// What can go wrong in these commands.
#[derive(Debug, thiserror::Error)]
pub enum HintError {
    /// With the daemon.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// Without it.
    #[error(transparent)]
    Direct(#[from] Error),
    /// The report cannot be written.
    #[error("cannot write an event: {0}")]
    Output(io::Error),
}

/// What `hint` did.
#[derive(Debug, Serialize)]
pub struct Hinted {
    /// The sandbox, for people.
    #[serde(skip)]
    name: String,
    /// What was told.
    pub hint: Hint,
    /// To whom: `daemon`, `module`, or `nobody`, as the module has no phase for it.
    pub told: &'static str,
    /// What is missing without the daemon.
    pub warnings: Vec<String>,
}

impl fmt::Display for Hinted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Hinted {
            name,
            hint,
            told,
            warnings,
        } = self;
        writeln!(f, "{name}: {hint}, told to the {told}")?;
        super::write_warnings(f, warnings)
    }
}

/// Tells the daemon what the agent in a sandbox does; the module alone when there is no daemon on
/// `socket`.
///
/// # Errors
///
/// When it is no sandbox, or not ours.
pub fn hint(
    context: &Context,
    socket: &Path,
    selector: &Selector,
    hint: &Hint,
) -> Result<Hinted, HintError> {
    let (id, cgroup) = select(context, selector)?;
    let mut report = Hinted {
        name: sandbox_name(id, cgroup.as_ref()),
        hint: hint.clone(),
        told: "daemon",
        warnings: Vec::new(),
    };
    match Client::connect(socket) {
        Ok(mut client) => {
            let Some(cgroup) = cgroup else {
                let problem = "its cgroup is gone; the daemon knows that";
                return Err(Error::invalid(report.name, problem).into());
            };
            client.hint(cgroup.path(), hint)?;
            return Ok(report);
        }
        Err(ClientError::Absent { .. }) => {}
        Err(other) => return Err(other.into()),
    }
    let what = match hint.kernel_phase() {
        Some(phase) => {
            context.sysfs.module()?;
            let set = context.sysfs.set_phase(id, phase);
            let advice = "not a sandbox; see: agentzip sandbox list";
            set.map_err(|error| limit::explain("hint", &report.name, error, Some(advice)))?;
            report.told = "module";
            "nothing was reclaimed or restored"
        }
        None => {
            report.told = "nobody";
            "the module alone has no use for this hint"
        }
    };
    let warning = format!("no daemon listens on {}: {what}", socket.display());
    report.warnings.push(warning);
    Ok(report)
}

/// What the daemon thinks of one more sandbox.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub struct Admitting(pub Admission);

impl Admitting {
    /// There is room.
    pub fn yes(&self) -> bool {
        self.0.answer == Admitted::Yes
    }
}

impl fmt::Display for Admitting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Admission {
            answer,
            reason,
            retry_ms,
        } = &self.0;
        f.write_str(match answer {
            Admitted::Yes => "yes",
            Admitted::Wait => "wait",
            Admitted::No => "no",
        })?;
        if let Some(reason) = reason {
            write!(f, ": {reason}")?;
        }
        if let Some(retry) = retry_ms {
            write!(f, "; ask again in {retry} ms")?;
        }
        writeln!(f)
    }
}

/// Asks whether there is room for one more sandbox.
///
/// # Errors
///
/// When there is no daemon, or we may not ask.
pub fn admit(
    socket: &Path,
    bytes: Option<u64>,
    template: Option<&ObjectName>,
) -> Result<Admitting, HintError> {
    Ok(Admitting(Client::connect(socket)?.admit(bytes, template)?))
}

/// Writes events as they come, a line each, until the daemon ends or the reader has had enough; at most
/// `most`.
///
/// # Errors
///
/// When there is no daemon, we may not ask, or `to` cannot be written to.
pub fn events(
    socket: &Path,
    json: bool,
    most: Option<u64>,
    to: &mut impl Write,
) -> Result<(), HintError> {
    let mut client = Client::connect(socket)?;
    client.subscribe()?;
    let mut left = most.unwrap_or(u64::MAX);
    while left > 0 {
        let Some(event) = client.next_event()? else {
            break;
        };
        left -= 1;
        let line = match json {
            true => event.to_line(),
            false => describe(&event).into_bytes(),
        };
        match to.write_all(&line).and_then(|()| to.flush()) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => break,
            other => other.map_err(HintError::Output)?,
        }
    }
    Ok(())
}

/// An event as a line for people.
fn describe(event: &Event) -> String {
    let word = |source| match serde_json::to_value(source) {
        Ok(serde_json::Value::String(word)) => word,
        _ => String::new(),
    };
    let what = match &event.happening {
        Happening::Attached {
            cgroup,
            attributes,
            source,
            ..
        } => {
            let template = attributes
                .template
                .as_ref()
                .map_or("none", ObjectName::as_str);
            format!(
                "{cgroup} attached, template {template}, by {}",
                word(source)
            )
        }
        Happening::Detached { cgroup, reason, .. } => format!("{cgroup} detached: {reason}"),
        Happening::Hint {
            cgroup,
            hint,
            source,
            ..
        } => {
            format!("{cgroup} {hint}, by {}", word(source))
        }
        Happening::State {
            cgroup, from, to, ..
        } => format!("{cgroup} {from} -> {to}"),
        Happening::Reclaimed {
            cgroup,
            asked_bytes,
            reclaimed_bytes,
            cpu_us,
            stop_us,
            ..
        } => {
            let stopped =
                stop_us.map_or_else(String::new, |us| format!(", stopped within {us} us"));
            format!("{cgroup} reclaimed {reclaimed_bytes} of {asked_bytes} bytes, {cpu_us} us of CPU{stopped}")
        }
        Happening::Refused { cgroup, reason } => format!("{cgroup} refused: {reason}"),
        Happening::Pressure {
            level,
            used_percent,
        } => {
            format!("memory: {used_percent:.1}% used, watermark {level}")
        }
        Happening::Alarm { raised, reason, .. } => match raised {
            true => format!("prefetch has become worse: {reason}"),
            false => format!("prefetch is well again: {reason}"),
        },
        Happening::Reloaded { error: None } => "configuration read again".to_owned(),
        Happening::Reloaded { error: Some(error) } => format!("configuration kept: {error}"),
    };
    format!(
        "{}.{:03} {what}\n",
        event.time_ms / 1000,
        event.time_ms % 1000
    )
}
