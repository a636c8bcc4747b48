// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Requests: one line of a client, checked.

use std::borrow::Cow;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{ErrorCode, VERSION};
use crate::attributes::Attributes;
use crate::hint::{BadHint, Hint, ToolName};
use crate::name::ObjectName;

/// Names of all operations.
pub const OPERATIONS: [&str; 14] = [
    "hello",
    "hint",
    "attach",
    "detach",
    "quiesce",
    "release",
    "status",
    "list",
    "admit",
    "subscribe",
    "config",
    "plan-list",
    "plan-export",
    "plan-import",
];

/// What a client wants. Cgroups are paths in any form that
/// [`Mount::inside`](crate::directory::Mount::inside) takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Agrees on the version. Who says no hello speaks version 1.
    Hello {
        /// The version that the client speaks.
        version: u32,
    },
    /// Tells what the agent in a sandbox does.
    Hint {
        /// The sandbox.
        cgroup: PathBuf,
        /// What it does.
        hint: Hint,
    },
    /// Makes a cgroup a sandbox.
    Attach {
        /// The cgroup.
        cgroup: PathBuf,
        /// What it shall be; it names a template.
        attributes: Attributes,
    },
    /// Ends being a sandbox.
    Detach {
        /// The sandbox.
        cgroup: PathBuf,
    },
    /// Brings all pages of a sandbox back, and does nothing to it until it is released. The reply
    /// comes when the pages are there.
    Quiesce {
        /// The sandbox.
        cgroup: PathBuf,
    },
    /// Ends that.
    Release {
        /// The sandbox.
        cgroup: PathBuf,
    },
    /// Asks how a sandbox is, or the daemon and the host.
    Status {
        /// The sandbox; the daemon when `None`.
        cgroup: Option<PathBuf>,
    },
    /// Asks for all sandboxes.
    List,
    /// Asks whether there is room for one more sandbox.
    Admit {
        /// Memory that it is going to need, in bytes; what its siblings need when `None`.
        bytes: Option<u64>,
        /// The template that it is going to be cloned from.
        template: Option<ObjectName>,
    },
    /// Asks for events from now on.
    Subscribe,
    /// Asks for the configuration in effect.
    Config,
    /// Asks of which templates and tools something was learned.
    PlanList,
    /// Has what was learned written to a file.
    PlanExport {
        /// The template.
        template: ObjectName,
        /// The tool; what every turn touches when `None`.
        tool: Option<ToolName>,
        /// The file, which must not be there. Absolute.
        path: PathBuf,
    },
    /// Has such a file read.
    PlanImport {
        /// The file. Absolute.
        path: PathBuf,
    },
}

/// A request with what the client called it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parsed {
    /// The number that the reply carries, too.
    pub id: Option<u64>,
    /// The request.
    pub request: Request,
}

/// A line that is no request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// Its `id`, if that could be read.
    pub id: Option<u64>,
    /// What kind of mistake.
    pub code: ErrorCode,
    /// Which.
    pub reason: String,
}

/// Every field of every request. A request is one of these with its own fields only.
#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Line<'a> {
    #[serde(borrow)]
    op: Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<u32>,
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    cgroup: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<Hint>,
    #[serde(skip_serializing_if = "Option::is_none")]
    template: Option<ObjectName>,
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<ObjectName>,
    #[serde(skip_serializing_if = "Option::is_none")]
    domain: Option<ObjectName>,
    #[serde(skip_serializing_if = "Option::is_none")]
    profile: Option<ObjectName>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sensitive: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    tool: Option<Cow<'a, str>>,
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    path: Option<Cow<'a, str>>,
}

impl Request {
    /// Its name.
    pub fn operation(&self) -> &'static str {
        match self {
            Request::Hello { .. } => "hello",
            Request::Hint { .. } => "hint",
            Request::Attach { .. } => "attach",
            Request::Detach { .. } => "detach",
            Request::Quiesce { .. } => "quiesce",
            Request::Release { .. } => "release",
            Request::Status { .. } => "status",
            Request::List => "list",
            Request::Admit { .. } => "admit",
            Request::Subscribe => "subscribe",
            Request::Config => "config",
            Request::PlanList => "plan-list",
            Request::PlanExport { .. } => "plan-export",
            Request::PlanImport { .. } => "plan-import",
        }
    }

    /// Its reply can be long.
    pub fn is_bulky(&self) -> bool {
        matches!(
            self,
            Request::Status { .. } | Request::List | Request::Config | Request::PlanList
        )
    }

    /// Reads a line, without its end.
    ///
    /// # Errors
    ///
    /// When it is no request, what is wrong with it.
    pub fn parse(line: &[u8]) -> Result<Parsed, Malformed> {
        let line: Line<'_> = serde_json::from_slice(line).map_err(|error| Malformed {
            id: id_of(line),
            code: ErrorCode::Malformed,
            reason: match error.classify() {
                serde_json::error::Category::Data => error.to_string(),
                _ => format!("no JSON object: {error}"),
            },
        })?;
        let id = line.id;
        let wrong = |code, reason| Malformed { id, code, reason };
        let Some(operation) = OPERATIONS.into_iter().find(|known| *known == line.op) else {
            let known = OPERATIONS.join(", ");
            return Err(match line.op.as_ref() {
                "" => wrong(
                    ErrorCode::Malformed,
                    format!("field \"op\" is missing; it is one of {known}"),
                ),
                other => wrong(
                    ErrorCode::Unknown,
                    format!("unknown op {other:?}; known are {known}"),
                ),
            });
        };
        line.request(operation)
            .map(|request| Parsed { id, request })
            .map_err(|reason| wrong(ErrorCode::Malformed, reason))
    }

    /// Writes it as a line, with its end.
    pub fn to_line(&self, id: Option<u64>) -> Vec<u8> {
        let text = |path: &'_ PathBuf| Some(Cow::Owned(path.to_string_lossy().into_owned()));
        let mut line = Line {
            op: Cow::Borrowed(self.operation()),
            id,
            ..Line::default()
        };
        match self {
            Request::Hello { version } => line.version = Some(*version),
            Request::Hint { cgroup, hint } => {
                line.cgroup = text(cgroup);
                line.hint = Some(hint.clone());
            }
            Request::Attach { cgroup, attributes } => {
                line.cgroup = text(cgroup);
                let Attributes {
                    template,
                    group,
                    domain,
                    profile,
                    sensitive,
                } = attributes.clone();
                line.template = template;
                line.group = group;
                line.domain = domain;
                line.profile = profile;
                line.sensitive = sensitive.then_some(true);
            }
            Request::Detach { cgroup }
            | Request::Quiesce { cgroup }
            | Request::Release { cgroup } => line.cgroup = text(cgroup),
            Request::Status { cgroup } => line.cgroup = cgroup.as_ref().and_then(text),
            Request::Admit { bytes, template } => {
                line.bytes = *bytes;
                line.template = template.clone();
            }
            Request::PlanExport {
                template,
                tool,
                path,
            } => {
                line.template = Some(template.clone());
                line.tool = tool.as_ref().map(|tool| Cow::Owned(tool.to_string()));
                line.path = text(path);
            }
            Request::PlanImport { path } => line.path = text(path),
            Request::List | Request::Subscribe | Request::Config | Request::PlanList => {}
        }
        // Strings, numbers and no maps: nothing here can fail.
        let mut bytes = serde_json::to_vec(&line).unwrap_or_default();
        bytes.push(b'\n');
        bytes
    }
}

impl Line<'_> {
    fn request(mut self, operation: &'static str) -> Result<Request, String> {
        let missing = |field: &str| format!("{operation} needs field {field:?}");
        let request = match operation {
            "hello" => {
                let version = self.version.take().ok_or_else(|| missing("version"))?;
                Request::Hello { version }
            }
            "hint" => Request::Hint {
                cgroup: self.cgroup().ok_or_else(|| missing("cgroup"))?,
                hint: self.hint.take().ok_or_else(|| missing("hint"))?,
            },
            "attach" => {
                let cgroup = self.cgroup().ok_or_else(|| missing("cgroup"))?;
                let attributes = Attributes {
                    template: Some(self.template.take().ok_or_else(|| missing("template"))?),
                    group: self.group.take(),
                    domain: self.domain.take(),
                    profile: self.profile.take(),
                    sensitive: self.sensitive.take().unwrap_or(false),
                };
                Request::Attach { cgroup, attributes }
            }
            "detach" => Request::Detach {
                cgroup: self.cgroup().ok_or_else(|| missing("cgroup"))?,
            },
            "quiesce" => Request::Quiesce {
                cgroup: self.cgroup().ok_or_else(|| missing("cgroup"))?,
            },
            "release" => Request::Release {
                cgroup: self.cgroup().ok_or_else(|| missing("cgroup"))?,
            },
            "status" => Request::Status {
                cgroup: self.cgroup(),
            },
            "admit" => Request::Admit {
                bytes: self.bytes.take(),
                template: self.template.take(),
            },
            "list" => Request::List,
            "subscribe" => Request::Subscribe,
            "plan-list" => Request::PlanList,
            "plan-export" => Request::PlanExport {
                template: self.template.take().ok_or_else(|| missing("template"))?,
                tool: match self.tool.take() {
                    Some(tool) => Some(tool.parse().map_err(|bad: BadHint| bad.to_string())?),
                    None => None,
                },
                path: self.path().ok_or_else(|| missing("path"))?,
            },
            "plan-import" => Request::PlanImport {
                path: self.path().ok_or_else(|| missing("path"))?,
            },
            _ => Request::Config,
        };
        match self.left() {
            Some(field) => Err(format!("{operation} has no field {field:?}")),
            None => Ok(request),
        }
    }

    fn cgroup(&mut self) -> Option<PathBuf> {
        let text = self.cgroup.take()?;
        Some(text.into_owned().into())
    }

    fn path(&mut self) -> Option<PathBuf> {
        let text = self.path.take()?;
        Some(text.into_owned().into())
    }

    /// A field that the request did not take.
    fn left(&self) -> Option<&'static str> {
        [
            ("version", self.version.is_some()),
            ("cgroup", self.cgroup.is_some()),
            ("hint", self.hint.is_some()),
            ("template", self.template.is_some()),
            ("group", self.group.is_some()),
            ("domain", self.domain.is_some()),
            ("profile", self.profile.is_some()),
            ("sensitive", self.sensitive.is_some()),
            ("bytes", self.bytes.is_some()),
            ("tool", self.tool.is_some()),
            ("path", self.path.is_some()),
        ]
        .into_iter()
        .find_map(|(field, there)| there.then_some(field))
    }
}

/// The `id` of an object that has something else wrong.
fn id_of(line: &[u8]) -> Option<u64> {
    #[derive(Deserialize)]
    struct Only {
        id: Option<u64>,
    }
    serde_json::from_slice::<Only>(line).ok()?.id
}

/// Checks the version of a hello.
///
/// # Errors
///
/// The reason, when we do not speak it.
pub fn check_version(version: u32) -> Result<(), String> {
    match version {
        VERSION => Ok(()),
        other => Err(format!(
            "version {other} is not spoken here; spoken is {VERSION}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Parsed, Malformed> {
        Request::parse(line.as_bytes())
    }

    #[test]
    fn every_request_reads_back_what_it_writes() {
        let cgroup = PathBuf::from("/agents/sb \"1\"");
        let requests = [
            Request::Hello { version: 1 },
            Request::Hint {
                cgroup: cgroup.clone(),
                hint: "llm-wait;expect=5".parse().unwrap(),
            },
            Request::Attach {
                cgroup: cgroup.clone(),
                attributes: Attributes {
                    template: Some("t".parse().unwrap()),
                    domain: Some("d".parse().unwrap()),
                    sensitive: true,
                    ..Attributes::default()
                },
            },
            Request::Detach {
                cgroup: cgroup.clone(),
            },
            Request::Quiesce {
                cgroup: cgroup.clone(),
            },
            Request::Release {
                cgroup: cgroup.clone(),
            },
            Request::Status { cgroup: None },
            Request::Status {
                cgroup: Some(cgroup),
            },
            Request::List,
            Request::Admit {
                bytes: Some(1 << 30),
                template: Some("t".parse().unwrap()),
            },
            Request::Admit {
                bytes: None,
                template: None,
            },
            Request::Subscribe,
            Request::Config,
            Request::PlanList,
            Request::PlanExport {
                template: "t".parse().unwrap(),
                tool: Some("pytest".parse().unwrap()),
                path: "/a".into(),
            },
            Request::PlanExport {
                template: "t".parse().unwrap(),
                tool: None,
                path: "/a".into(),
            },
            Request::PlanImport { path: "/a".into() },
        ];
        for operation in OPERATIONS {
            assert!(
                requests.iter().any(|r| r.operation() == operation),
                "{operation}"
            );
        }
        for request in requests {
            assert!(OPERATIONS.contains(&request.operation()));
            for id in [None, Some(7)] {
                let line = request.to_line(id);
                let line = line.strip_suffix(b"\n").unwrap();
                assert!(!line.contains(&b'\n'));
                let parsed = Request::parse(line).unwrap();
                assert_eq!(
                    parsed,
                    Parsed {
                        id,
                        request: request.clone()
                    }
                );
            }
        }
    }

    #[test]
    fn mistakes_are_named() {
        use ErrorCode::{Malformed as M, Unknown as U};
        for (line, code, reason) in [
            ("", M, "no JSON object: EOF"),
            ("hello", M, "no JSON object"),
            ("[1]", M, "invalid"),
            ("{}", M, "\"op\" is missing"),
            (
                "{\"op\":\"fly\",\"id\":3}",
                U,
                "unknown op \"fly\"; known are hello",
            ),
            (
                "{\"op\":\"hint\",\"id\":3}",
                M,
                "hint needs field \"cgroup\"",
            ),
            (
                "{\"op\":\"hint\",\"cgroup\":\"a\"}",
                M,
                "hint needs field \"hint\"",
            ),
            (
                "{\"op\":\"hint\",\"cgroup\":\"a\",\"hint\":\"nap\"}",
                M,
                "unknown hint \"nap\"",
            ),
            (
                "{\"op\":\"attach\",\"cgroup\":\"a\"}",
                M,
                "attach needs field \"template\"",
            ),
            (
                "{\"op\":\"attach\",\"cgroup\":\"a\",\"template\":\"../x\"}",
                M,
                "a name has",
            ),
            (
                "{\"op\":\"list\",\"cgroup\":\"a\"}",
                M,
                "list has no field \"cgroup\"",
            ),
            (
                "{\"op\":\"list\",\"colour\":1}",
                M,
                "unknown field `colour`",
            ),
            ("{\"op\":\"list\",\"op\":\"list\"}", M, "duplicate field"),
            (
                "{\"op\":\"plan-export\",\"template\":\"t\"}",
                M,
                "plan-export needs field \"path\"",
            ),
            (
                "{\"op\":\"plan-export\",\"template\":\"t\",\"path\":\"/a\",\"tool\":\"a b\"}",
                M,
                "is no name",
            ),
            (
                "{\"op\":\"plan-list\",\"path\":\"/a\"}",
                M,
                "plan-list has no field \"path\"",
            ),
            ("{\"op\":\"admit\",\"bytes\":-1}", M, "invalid value"),
            ("{\"op\":\"list\"} {}", M, "trailing characters"),
        ] {
            let wrong = parse(line).unwrap_err();
            assert_eq!(wrong.code, code, "{line}");
            assert!(wrong.reason.contains(reason), "{line}: {}", wrong.reason);
        }
        assert_eq!(parse("{\"op\":\"fly\",\"id\":3}").unwrap_err().id, Some(3));
        assert_eq!(
            parse("{\"op\":\"list\",\"id\":3,\"x\":1}").unwrap_err().id,
            Some(3)
        );
        assert!(check_version(1).is_ok());
        assert!(check_version(2).unwrap_err().contains("spoken is 1"));
    }

    #[test]
    fn deep_nesting_and_random_bytes_are_errors() {
        assert!(Request::parse(&[b'['; super::super::MAX_LINE]).is_err());
        assert!(Request::parse(b"{\"op\":\"\xff\"}").is_err());
        let mut state = 1_u64;
        for length in 0..2000 {
            let bytes: Vec<u8> = (0..length % 60)
                .map(|_| {
                    state = state
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1);
                    (state >> 56) as u8
                })
                .collect();
            assert!(Request::parse(&bytes).is_err());
        }
    }
}
