// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What an agent runtime says about its agent: one short text, the same in the xattr
//! `user.agentzip.phase`, on the socket and on the command line.
//!
//! The grammar: a word, then parameters of that word as `;name=value`.
//!
//! | text | meaning |
//! |---|---|
//! | `llm-wait[;expect=MS]` | the agent waits for the LLM, for about so many milliseconds |
//! | `message-near[;in=MS]` | a message will end the wait, in about so many milliseconds |
//! | `first-token` | the LLM answers: a tool call is near |
//! | `tool-start[;tool=NAME]` | a tool runs |
//! | `tool-end` | the tool ended |
//! | `idle` | nothing is known: observe the sandbox |
//! | `done` | the sandbox is finished |

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use agentzip_uapi::Phase;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Longest text of a hint, in bytes.
pub const MAX_HINT: usize = 256;

/// Longest name of a tool, in bytes.
pub const MAX_TOOL: usize = 63;

/// Longest wait that may be announced: a day.
pub const MAX_EXPECT: Duration = Duration::from_secs(24 * 60 * 60);

/// The wait that is assumed when `llm-wait` names none.
pub const DEFAULT_EXPECT: Duration = Duration::from_secs(10);

/// What the agent of a sandbox does from now on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hint {
    /// It waits for the LLM.
    LlmWait {
        /// How long, as far as the runtime can tell: whole milliseconds, at most [`MAX_EXPECT`].
        /// [`DEFAULT_EXPECT`] is assumed when `None`.
        expect: Option<Duration>,
    },
    /// A message that will end the wait is about to arrive. The wait goes on until then.
    MessageNear {
        /// In how long: whole milliseconds, at most [`MAX_EXPECT`]; at once when `None`.
        within: Option<Duration>,
    },
    /// The first token of the answer is there: a tool call is near.
    FirstToken,
    /// A tool runs.
    ToolStart {
        /// Which, if the runtime says so.
        tool: Option<ToolName>,
    },
    /// The tool ended; what follows is not known yet.
    ToolEnd,
    /// Nothing is known: the sandbox is to be observed.
    Idle,
    /// The sandbox is finished.
    Done,
}

/// Name of a tool: 1 to [`MAX_TOOL`] of ASCII letters, digits, and `.` `_` `-` `/` `:` `+` `@`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ToolName(Box<str>);

/// Why a text is no hint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadHint {
    /// The text is longer than [`MAX_HINT`].
    #[error("a hint has at most {MAX_HINT} bytes, not {0}")]
    Long(usize),
    /// The text is no UTF-8, or has a control character.
    #[error("a hint consists of printable ASCII characters")]
    Characters,
    /// The first word is none that we know.
    #[error(
        "unknown hint {0:?}; known are llm-wait, message-near, first-token, tool-start, tool-end, idle, done"
    )]
    Word(String),
    /// A parameter is not of the form `name=value`.
    #[error("{0:?} is no parameter: \"name=value\" is expected after each \";\"")]
    Form(String),
    /// The word has no such parameter.
    #[error("{word} has no parameter {name:?}; {}", known_parameters(word))]
    Parameter {
        /// The first word.
        word: &'static str,
        /// The parameter.
        name: String,
    },
    /// A parameter is there twice.
    #[error("parameter {0:?} is given twice")]
    Twice(&'static str),
    /// The value of `expect` or `in` is no number of milliseconds in the range.
    #[error(
        "{0}={1} is no wait: whole milliseconds from 0 to {max} are expected",
        max = MAX_EXPECT.as_millis()
    )]
    Expect(&'static str, String),
    /// The value of `tool` is no name of a tool.
    #[error(
        "tool={0} is no name: 1 to {MAX_TOOL} ASCII letters, digits, or . _ - / : + @ are expected"
    )]
    Tool(String),
}

fn known_parameters(word: &str) -> &'static str {
    match word {
        "llm-wait" => "it has expect",
        "message-near" => "it has in",
        "tool-start" => "it has tool",
        _ => "it has none",
    }
}

impl Hint {
    /// The first word.
    pub fn word(&self) -> &'static str {
        match self {
            Hint::LlmWait { .. } => "llm-wait",
            Hint::MessageNear { .. } => "message-near",
            Hint::FirstToken => "first-token",
            Hint::ToolStart { .. } => "tool-start",
            Hint::ToolEnd => "tool-end",
            Hint::Idle => "idle",
            Hint::Done => "done",
        }
    }

    /// The phase that the module is to be told at once; `None` where the hint alone changes nothing
    /// for it.
    pub fn kernel_phase(&self) -> Option<Phase> {
        match self {
            Hint::LlmWait { .. } => Some(Phase::Waiting),
            Hint::FirstToken => Some(Phase::Resuming),
            Hint::ToolStart { .. } => Some(Phase::Running),
            Hint::MessageNear { .. } | Hint::ToolEnd | Hint::Idle | Hint::Done => None,
        }
    }

    /// Reads a hint from bytes that anyone may have written. White space around it is ignored, and
    /// so is one NUL byte at the end, which some tools store.
    ///
    /// # Errors
    ///
    /// When it is no hint.
    pub fn from_bytes(bytes: &[u8]) -> Result<Hint, BadHint> {
        if bytes.len() > MAX_HINT {
            return Err(BadHint::Long(bytes.len()));
        }
        let bytes = bytes.strip_suffix(b"\0").unwrap_or(bytes).trim_ascii();
        match std::str::from_utf8(bytes) {
            Ok(text) => text.parse(),
            Err(_) => Err(BadHint::Characters),
        }
    }
}

impl FromStr for Hint {
    type Err = BadHint;

    fn from_str(text: &str) -> Result<Hint, BadHint> {
        if text.len() > MAX_HINT {
            return Err(BadHint::Long(text.len()));
        }
        let text = text.trim_ascii();
        if !text.bytes().all(|b| (0x20..0x7f).contains(&b)) {
            return Err(BadHint::Characters);
        }
        let mut parts = text.split(';');
        let (mut hint, takes) = match parts.next().unwrap_or("") {
            "llm-wait" => (Hint::LlmWait { expect: None }, Some("expect")),
            "message-near" => (Hint::MessageNear { within: None }, Some("in")),
            "first-token" => (Hint::FirstToken, None),
            "tool-start" => (Hint::ToolStart { tool: None }, Some("tool")),
            "tool-end" => (Hint::ToolEnd, None),
            "idle" => (Hint::Idle, None),
            "done" => (Hint::Done, None),
            word => return Err(BadHint::Word(word.to_owned())),
        };
        for part in parts {
            let (name, value) = part
                .split_once('=')
                .ok_or_else(|| BadHint::Form(part.to_owned()))?;
            match takes {
                Some(known) if known == name => hint.set(known, value)?,
                _ => {
                    let word = hint.word();
                    let name = name.to_owned();
                    return Err(BadHint::Parameter { word, name });
                }
            }
        }
        Ok(hint)
    }
}

impl Hint {
    /// Sets the one parameter of a word.
    fn set(&mut self, name: &'static str, value: &str) -> Result<(), BadHint> {
        let twice = match self {
            Hint::LlmWait { expect } => expect.replace(span(name, value)?).is_some(),
            Hint::MessageNear { within } => within.replace(span(name, value)?).is_some(),
            Hint::ToolStart { tool } => tool.replace(value.parse()?).is_some(),
            Hint::FirstToken | Hint::ToolEnd | Hint::Idle | Hint::Done => false,
        };
        match twice {
            true => Err(BadHint::Twice(name)),
            false => Ok(()),
        }
    }
}

/// A number of milliseconds.
fn span(name: &'static str, value: &str) -> Result<Duration, BadHint> {
    // `parse` takes a sign, too.
    let digits = value.bytes().all(|b| b.is_ascii_digit());
    let wait = value.parse().ok().filter(|_| digits);
    wait.map(Duration::from_millis)
        .filter(|wait| *wait <= MAX_EXPECT)
        .ok_or_else(|| BadHint::Expect(name, value.to_owned()))
}

impl fmt::Display for Hint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())?;
        match self {
            Hint::LlmWait { expect: Some(wait) } => write!(f, ";expect={}", wait.as_millis()),
            Hint::MessageNear { within: Some(wait) } => write!(f, ";in={}", wait.as_millis()),
            Hint::ToolStart { tool: Some(tool) } => write!(f, ";tool={tool}"),
            _ => Ok(()),
        }
    }
}

impl ToolName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ToolName {
    type Err = BadHint;

    fn from_str(text: &str) -> Result<ToolName, BadHint> {
        let legal = |b: u8| b.is_ascii_alphanumeric() || b"._-/:+@".contains(&b);
        match text.bytes().all(legal) && (1..=MAX_TOOL).contains(&text.len()) {
            true => Ok(ToolName(text.into())),
            false => Err(BadHint::Tool(text.to_owned())),
        }
    }
}

impl fmt::Display for ToolName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for Hint {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Hint {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Hint, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(from)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(name: &str) -> Option<ToolName> {
        Some(name.parse().unwrap())
    }

    #[test]
    fn every_hint_reads_back_what_it_writes() {
        let expect = |ms| Some(Duration::from_millis(ms));
        for (text, hint) in [
            ("llm-wait", Hint::LlmWait { expect: None }),
            (
                "llm-wait;expect=8000",
                Hint::LlmWait {
                    expect: expect(8000),
                },
            ),
            ("llm-wait;expect=0", Hint::LlmWait { expect: expect(0) }),
            (
                "llm-wait;expect=86400000",
                Hint::LlmWait {
                    expect: Some(MAX_EXPECT),
                },
            ),
            ("message-near", Hint::MessageNear { within: None }),
            (
                "message-near;in=800",
                Hint::MessageNear {
                    within: expect(800),
                },
            ),
            ("first-token", Hint::FirstToken),
            ("tool-start", Hint::ToolStart { tool: None }),
            (
                "tool-start;tool=pytest",
                Hint::ToolStart {
                    tool: tool("pytest"),
                },
            ),
            (
                "tool-start;tool=mcp/fs:read@v1+x",
                Hint::ToolStart {
                    tool: tool("mcp/fs:read@v1+x"),
                },
            ),
            ("tool-end", Hint::ToolEnd),
            ("idle", Hint::Idle),
            ("done", Hint::Done),
        ] {
            assert_eq!(text.parse(), Ok(hint.clone()));
            assert_eq!(hint.to_string(), text);
            let json = serde_json::to_string(&hint).unwrap();
            assert_eq!(json, format!("\"{text}\""));
            assert_eq!(serde_json::from_str::<Hint>(&json).unwrap(), hint);
            assert_eq!(
                Hint::from_bytes(format!(" {text}\n").as_bytes()),
                Ok(hint.clone())
            );
            assert_eq!(Hint::from_bytes(format!("{text}\0").as_bytes()), Ok(hint));
        }
    }

    #[test]
    fn refusals_say_why() {
        let long = format!("tool-start;tool={}", "x".repeat(MAX_TOOL + 1));
        for (text, reason) in [
            ("", "unknown hint \"\""),
            ("LLM-WAIT", "unknown hint \"LLM-WAIT\""),
            ("llm-wait;", "is no parameter"),
            ("llm-wait;expect", "is no parameter"),
            (
                "llm-wait;tool=x",
                "llm-wait has no parameter \"tool\"; it has expect",
            ),
            ("llm-wait;expect=1;expect=1", "given twice"),
            ("llm-wait;expect=", "whole milliseconds"),
            ("llm-wait;expect=+5", "whole milliseconds"),
            ("llm-wait;expect=-5", "whole milliseconds"),
            ("llm-wait;expect=8.5", "whole milliseconds"),
            ("llm-wait;expect=86400001", "from 0 to 86400000"),
            (
                "llm-wait;expect=99999999999999999999999",
                "whole milliseconds",
            ),
            (
                "message-near;in=soon",
                "in=soon is no wait: whole milliseconds",
            ),
            (
                "message-near;expect=1",
                "message-near has no parameter \"expect\"; it has in",
            ),
            ("tool-start;tool=", "is no name"),
            ("tool-start;tool=a b", "is no name"),
            (&long, "is no name"),
            ("tool-end;tool=x", "it has none"),
            ("idle;", "is no parameter"),
            ("done\u{7}", "printable"),
            ("dône", "printable"),
            (&"x".repeat(MAX_HINT + 1), "at most 256 bytes"),
        ] {
            let error = text.parse::<Hint>().unwrap_err().to_string();
            assert!(error.contains(reason), "{text:?}: {error}");
        }
        assert_eq!(Hint::from_bytes(b"\xff"), Err(BadHint::Characters));
        assert_eq!(Hint::from_bytes(&[b' '; 300]), Err(BadHint::Long(300)));
        let error = serde_json::from_str::<Hint>("\"nap\"").unwrap_err();
        assert!(
            error.to_string().contains("unknown hint \"nap\""),
            "{error}"
        );
    }

    /// Whatever the bytes are, it is a hint or an error, and a hint reads back.
    #[test]
    fn random_bytes() {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let words = [
            "llm-wait",
            "tool-start",
            ";",
            "=",
            "expect",
            "tool",
            "9",
            "idle",
            "\n",
        ];
        for _ in 0..20_000 {
            let mut bytes = Vec::new();
            for _ in 0..next() % 8 {
                match next() % 3 {
                    0 => bytes.push(next() as u8),
                    _ => bytes.extend(words[next() as usize % words.len()].bytes()),
                }
            }
            if let Ok(hint) = Hint::from_bytes(&bytes) {
                assert_eq!(hint.to_string().parse(), Ok(hint));
            }
        }
    }

    #[test]
    fn phases_of_the_module() {
        let phase = |text: &str| text.parse::<Hint>().unwrap().kernel_phase();
        assert_eq!(phase("llm-wait"), Some(Phase::Waiting));
        assert_eq!(phase("first-token"), Some(Phase::Resuming));
        assert_eq!(phase("tool-start"), Some(Phase::Running));
        for none in ["message-near", "tool-end", "idle", "done"] {
            assert_eq!(phase(none), None);
        }
    }
}
