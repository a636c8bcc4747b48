// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `agentzip quiesce`.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::Value;

use crate::client::{Client, ClientError};
use crate::protocol::Request;

/// What was done.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The sandbox.
    pub cgroup: PathBuf,
    /// It is held still now.
    pub quiesced: bool,
    /// What came back, as `agentzip restore` tells it; null after a release.
    pub restored: Value,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cgroup = self.cgroup.display();
        if !self.quiesced {
            return writeln!(f, "sandbox {cgroup} released");
        }
        let number = |name: &str| self.restored.get(name).and_then(Value::as_u64);
        write!(f, "sandbox {cgroup} quiesced")?;
        if let Some(asked) = number("pages_asked") {
            write!(f, ", {asked} pages brought back")?;
        }
        writeln!(f)?;
        if let Some(left @ 1..) = number("pages_still_swapped") {
            writeln!(
                f,
                "warning: {left} pages are still swapped out; is it near a memory limit?"
            )?;
        }
        Ok(())
    }
}

/// Brings a sandbox back and holds it still, or releases it.
///
/// # Errors
///
/// When no daemon listens, or it refuses.
pub fn quiesce(socket: &Path, cgroup: &Path, release: bool) -> Result<Report, ClientError> {
    let mut client = Client::connect(socket)?;
    let cgroup = cgroup.to_owned();
    let request = match release {
        true => Request::Release {
            cgroup: cgroup.clone(),
        },
        false => Request::Quiesce {
            cgroup: cgroup.clone(),
        },
    };
    Ok(Report {
        restored: client.request(&request)?,
        quiesced: !release,
        cgroup,
    })
}
