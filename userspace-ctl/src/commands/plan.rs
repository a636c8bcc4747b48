// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `agentzip plan`: what the daemon has learned about templates and tools.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::Value;

use crate::client::{Client, ClientError};
use crate::format::Table;
use crate::protocol::Request;
use crate::{ObjectName, ToolName};

/// Of what something is known.
#[derive(Debug, Serialize)]
pub struct Known {
    /// Templates and tools, with their pages.
    pub plans: Vec<Value>,
}

impl fmt::Display for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.plans.is_empty() {
            return writeln!(f, "nothing has been learned yet");
        }
        let mut table = Table::new(&["TEMPLATE", "TOOL", ">PAGES"]);
        for plan in &self.plans {
            let text = |field: &str| plan[field].as_str().map(str::to_owned);
            table.row([
                text("template").unwrap_or_default(),
                text("tool").unwrap_or_else(|| "(every turn)".to_owned()),
                plan["pages"].as_u64().unwrap_or(0).to_string(),
            ]);
        }
        write!(f, "{table}")
    }
}

/// What was written or read.
#[derive(Debug, Serialize)]
pub struct Moved {
    /// The file.
    pub file: PathBuf,
    /// It was read.
    pub imported: bool,
    /// Its pages, in the words of the daemon.
    #[serde(flatten)]
    pub result: Value,
}

impl fmt::Display for Moved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pages = self.result["pages"].as_u64().unwrap_or(0);
        let file = self.file.display();
        match self.imported {
            false => writeln!(f, "{pages} pages written to {file}"),
            true => {
                let text = |field: &str| self.result[field].as_str();
                let template = text("template").unwrap_or_default();
                let tool =
                    text("tool").map_or("every turn".to_owned(), |tool| format!("tool {tool}"));
                writeln!(
                    f,
                    "{pages} pages of template {template}, {tool}, taken from {file}"
                )
            }
        }
    }
}

/// Lists what is known, of all templates or of one.
///
/// # Errors
///
/// When no daemon listens, or it refuses.
pub fn show(socket: &Path, template: Option<&ObjectName>) -> Result<Known, ClientError> {
    let all = Client::connect(socket)?.request(&Request::PlanList)?;
    let Value::Array(mut plans) = all else {
        return Ok(Known { plans: Vec::new() });
    };
    plans.retain(|plan| template.is_none_or(|name| plan["template"] == name.as_str()));
    Ok(Known { plans })
}

/// Writes what is known about a template and a tool to a file.
///
/// # Errors
///
/// As [`show`], and when nothing is known or the file cannot be written.
pub fn export(
    socket: &Path,
    template: &ObjectName,
    tool: Option<&ToolName>,
    file: &Path,
) -> Result<Moved, ClientError> {
    let request = Request::PlanExport {
        template: template.clone(),
        tool: tool.cloned(),
        path: absolute(file),
    };
    Ok(Moved {
        file: file.to_owned(),
        imported: false,
        result: Client::connect(socket)?.request(&request)?,
    })
}

/// Has the daemon take what a file says.
///
/// # Errors
///
/// As [`show`], and when it is no such file.
pub fn import(socket: &Path, file: &Path) -> Result<Moved, ClientError> {
    let path = absolute(file);
    Ok(Moved {
        file: file.to_owned(),
        imported: true,
        result: Client::connect(socket)?.request(&Request::PlanImport { path })?,
    })
}

/// The daemon has another working directory.
fn absolute(file: &Path) -> PathBuf {
    std::path::absolute(file).unwrap_or_else(|_| file.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn text() {
        let known = Known {
            plans: vec![
                json!({"template": "python", "tool": null, "pages": 12}),
                json!({"template": "python", "tool": "pytest", "pages": 345}),
            ],
        };
        let text = known.to_string();
        for part in ["TEMPLATE", "(every turn)", "pytest", "345"] {
            assert!(text.contains(part), "{part:?} is not in {text}");
        }
        assert!(Known { plans: vec![] }.to_string().contains("nothing"));
        let moved = Moved {
            file: "a".into(),
            imported: true,
            result: json!({"template": "python", "tool": "pytest", "pages": 7}),
        };
        assert_eq!(
            moved.to_string(),
            "7 pages of template python, tool pytest, taken from a\n"
        );
        let out = Moved {
            imported: false,
            ..moved
        };
        assert_eq!(out.to_string(), "7 pages written to a\n");
    }
}
