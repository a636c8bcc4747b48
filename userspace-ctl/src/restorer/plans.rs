// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What was learned, as files: for `agentzip plan`. They are read and written here and not by the client, as
//! a plan is longer than a line of the socket; only root may ask for it.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{openat, FileType, Mode, OFlags, CWD};
use serde_json::json;

use crate::error::{Error, Result};
use crate::predict::{Learner, PlanFile, MAX_FILE};
use crate::protocol::{ErrorCode, Response};
use crate::{ObjectName, ToolName};

/// What is asked.
#[derive(Clone, Debug, PartialEq)]
pub enum Plans {
    /// Of which templates and tools something is known.
    List,
    /// Write what is known about a template and a tool to a file.
    Export {
        /// The template.
        template: ObjectName,
        /// The tool; `None`: what every turn touches.
        tool: Option<ToolName>,
        /// The file, which must not be there.
        path: PathBuf,
    },
    /// Take what such a file says. A file that is none changes nothing.
    Import {
        /// The file.
        path: PathBuf,
    },
}

/// Does it.
pub fn answer(learner: &mut Learner, plans: &Plans) -> Response {
    match plans {
        Plans::List => {
            let known = learner.known().map(|(template, tool, pages)| {
                json!({
                    "template": template.as_str(),
                    "tool": tool.map(ToolName::as_str),
                    "pages": pages,
                })
            });
            Response::result(&known.collect::<Vec<_>>())
        }
        Plans::Export {
            template,
            tool,
            path,
        } => match learner.export(template, tool.as_ref()) {
            Some(file) => {
                let pages: u64 = file.runs.iter().map(|run| run.pages).sum();
                write(path, &file.to_text()).map_or_else(Response::from, |()| {
                    Response::result(&json!({ "pages": pages, "turns": file.turns }))
                })
            }
            None => {
                let of = tool.as_ref().map(|tool| format!(" and tool {tool}"));
                let reason = format!(
                    "nothing was learned of template {template}{}; agentzip plan show lists what is known",
                    of.unwrap_or_default()
                );
                Response::error(ErrorCode::NotFound, reason)
            }
        },
        Plans::Import { path } => match read(path) {
            Ok(file) => {
                let taken = learner.import(&file);
                Response::result(&json!({
                    "template": file.template.as_str(),
                    "tool": file.tool.as_ref().map(ToolName::as_str),
                    "pages": taken,
                }))
            }
            Err(error) => Response::error(ErrorCode::Failed, error.to_string()),
        },
    }
}

fn write(path: &Path, text: &str) -> Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file = openat(CWD, path, flags, Mode::from_raw_mode(0o644));
    let mut file = File::from(file.map_err(|errno| Error::io("create", path)(errno.into()))?);
    file.write_all(text.as_bytes())
        .map_err(Error::io("write", path))
}

fn read(path: &Path) -> Result<PlanFile> {
    let failed = |cause: io::Error| Error::io("read", path)(cause);
    // A fifo would keep the thread waiting.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = openat(CWD, path, flags, Mode::empty()).map_err(|errno| failed(errno.into()))?;
    let stat = rustix::fs::fstat(&file).map_err(|errno| failed(errno.into()))?;
    let object = || path.display().to_string();
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(Error::invalid(object(), "is no regular file"));
    }
    let mut text = String::new();
    File::from(file)
        .take(MAX_FILE as u64 + 1)
        .read_to_string(&mut text)
        .map_err(failed)?;
    PlanFile::parse(&text).map_err(|problem| Error::invalid(object(), problem.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::predict::Settings;

    const PLAN: &str = r#"{"format":"agentzip-plan","version":1,"template":"python","tool":"pytest",
        "turns":3.0,"roles":[{"command":"python3","ordinal":0}],
        "runs":[{"role":0,"address":"0x7f0000000000","pages":40,"touched":1.0}]}"#;

    fn reason(response: Response) -> String {
        match response {
            Response::Error { reason, .. } => reason,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn files_go_in_and_out_and_bad_ones_change_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let mut learner = Learner::new(Settings::default());
        let list = |learner: &mut Learner| answer(learner, &Plans::List);
        assert_eq!(list(&mut learner), Response::Result(json!([])));
        let import = |learner: &mut Learner, name: &str| {
            answer(learner, &Plans::Import { path: path(name) })
        };
        std::fs::write(path("bad"), PLAN.replace("\"pages\":40", "\"pages\":0")).unwrap();
        std::fs::write(path("binary"), b"\xff\xfe").unwrap();
        std::fs::write(path("large"), vec![b' '; MAX_FILE + 2]).unwrap();
        std::fs::create_dir(path("folder")).unwrap();
        for (name, part) in [
            ("none", "none: No such file"),
            ("bad", "bad: runs[0]: 0 pages"),
            ("binary", "UTF-8"),
            ("large", "at most 4194304 bytes"),
            ("folder", "is no regular file"),
        ] {
            let reason = reason(import(&mut learner, name));
            assert!(reason.contains(part), "{name}: {reason}");
        }
        assert_eq!(list(&mut learner), Response::Result(json!([])));
        std::fs::write(path("good"), PLAN).unwrap();
        let taken = json!({"template": "python", "tool": "pytest", "pages": 40});
        assert_eq!(import(&mut learner, "good"), Response::Result(taken));
        let known = json!([{"template": "python", "tool": "pytest", "pages": 40}]);
        assert_eq!(list(&mut learner), Response::Result(known));
        let export = |tool: &str, name: &str| Plans::Export {
            template: "python".parse().unwrap(),
            tool: Some(tool.parse().unwrap()),
            path: path(name),
        };
        let out = answer(&mut learner, &export("pytest", "out"));
        assert!(
            matches!(&out, Response::Result(value) if value["pages"] == 40),
            "{out:?}"
        );
        PlanFile::parse(&std::fs::read_to_string(path("out")).unwrap()).unwrap();
        let again = reason(answer(&mut learner, &export("pytest", "out")));
        assert!(again.contains("File exists"), "{again}");
        let unknown = reason(answer(&mut learner, &export("ls", "ls")));
        assert!(unknown.contains("nothing was learned of template python and tool ls"));
        assert!(!path("ls").exists());
    }
}
