// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Replies: what comes of a request.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::authority::Denied;
use crate::error::Error;

/// What kind of refusal: for programs. People read the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ErrorCode {
    /// The line is no request.
    Malformed,
    /// There is no such operation.
    Unknown,
    /// The line is longer than [`MAX_LINE`](super::MAX_LINE).
    TooLong,
    /// That version is not spoken.
    Version,
    /// The client may not do that.
    Denied,
    /// There is no such cgroup, sandbox or template.
    NotFound,
    /// Too many clients or requests; later it may work.
    Busy,
    /// It was tried and failed.
    Failed,
}

impl ErrorCode {
    /// All of them.
    pub const ALL: [ErrorCode; 8] = [
        ErrorCode::Malformed,
        ErrorCode::Unknown,
        ErrorCode::TooLong,
        ErrorCode::Version,
        ErrorCode::Denied,
        ErrorCode::NotFound,
        ErrorCode::Busy,
        ErrorCode::Failed,
    ];

    /// As it stands in replies.
    pub fn name(self) -> &'static str {
        match self {
            ErrorCode::Malformed => "malformed",
            ErrorCode::Unknown => "unknown",
            ErrorCode::TooLong => "too-long",
            ErrorCode::Version => "version",
            ErrorCode::Denied => "denied",
            ErrorCode::NotFound => "not-found",
            ErrorCode::Busy => "busy",
            ErrorCode::Failed => "failed",
        }
    }
}

/// What the server answers.
#[derive(Clone, Debug, PartialEq)]
pub enum Response {
    /// Done; nothing to tell.
    Done,
    /// Done, with this result.
    Result(Value),
    /// Not done.
    Error {
        /// What kind of refusal.
        code: ErrorCode,
        /// Why, and what to do about it.
        reason: String,
    },
}

/// A reply as a client sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// It was done.
    pub ok: bool,
    /// The `id` of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
    /// What came of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
    /// What kind of refusal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorCode>,
    /// Why it was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The result of `admit`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Admission {
    /// Whether one more sandbox may be spawned.
    pub answer: Admitted,
    /// Why not, or not yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// With `wait`: when to ask again, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_ms: Option<u64>,
}

/// Whether one more sandbox may be spawned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Admitted {
    /// There is room.
    Yes,
    /// Not yet.
    Wait,
    /// Not as long as nobody ends.
    No,
}

impl Response {
    /// A refusal.
    pub fn error(code: ErrorCode, reason: impl Into<String>) -> Response {
        Response::Error {
            code,
            reason: reason.into(),
        }
    }

    /// A result. What cannot be written as JSON is an error.
    pub fn result(result: &impl Serialize) -> Response {
        match serde_json::to_value(result) {
            Ok(value) => Response::Result(value),
            Err(error) => Response::error(ErrorCode::Failed, format!("no result: {error}")),
        }
    }

    /// Appends it to `to` as a line, with its end.
    pub fn write_line(self, id: Option<u64>, to: &mut Vec<u8>) {
        let mut answer = Answer {
            ok: true,
            id,
            result: None,
            error: None,
            reason: None,
        };
        match self {
            Response::Done => {}
            Response::Result(value) => answer.result = Some(value),
            Response::Error { code, reason } => {
                answer.ok = false;
                answer.error = Some(code);
                answer.reason = Some(reason);
            }
        }
        // A `Value` and strings, written to memory: nothing here can fail.
        let written = serde_json::to_writer(&mut *to, &answer);
        debug_assert!(written.is_ok());
        to.push(b'\n');
    }
}

impl From<Denied> for Response {
    fn from(denied: Denied) -> Response {
        Response::error(ErrorCode::Denied, denied.to_string())
    }
}

impl From<Error> for Response {
    fn from(error: Error) -> Response {
        let code = match (&error, error.errno()) {
            (_, Some(libc::ENOENT)) => ErrorCode::NotFound,
            (Error::Invalid { problem, .. }, _) if problem.starts_with("no such") => {
                ErrorCode::NotFound
            }
            _ => ErrorCode::Failed,
        };
        Response::error(code, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_as_lines() {
        let line = |response: Response, id| {
            let mut to = Vec::new();
            response.write_line(id, &mut to);
            String::from_utf8(to).unwrap()
        };
        assert_eq!(line(Response::Done, None), "{\"ok\":true}\n");
        assert_eq!(
            line(Response::result(&[1, 2]), Some(4)),
            "{\"ok\":true,\"id\":4,\"result\":[1,2]}\n"
        );
        for code in ErrorCode::ALL {
            let text = line(Response::error(code, "a\nb"), Some(1));
            let expected = format!(
                "{{\"ok\":false,\"id\":1,\"error\":\"{}\",\"reason\":\"a\\nb\"}}\n",
                code.name()
            );
            assert_eq!(text, expected);
            let answer: Answer = serde_json::from_str(&text).unwrap();
            assert_eq!(answer.error, Some(code));
        }
    }

    #[test]
    fn errors_become_codes() {
        let code = |error: Error| match Response::from(error) {
            Response::Error { code, .. } => code,
            other => panic!("{other:?}"),
        };
        assert_eq!(
            code(Error::invalid("x", "no such cgroup below /y")),
            ErrorCode::NotFound
        );
        assert_eq!(code(Error::invalid("x", "odd")), ErrorCode::Failed);
        let gone = std::io::Error::from_raw_os_error(libc::ENOENT);
        assert_eq!(code(Error::io("read", "x")(gone)), ErrorCode::NotFound);
    }
}
