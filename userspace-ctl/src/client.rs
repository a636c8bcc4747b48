// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A client of the daemon's socket, for agent runtimes and for the command line.
//!
//! ```no_run
//! use agentzip_ctl::client::Client;
//! use agentzip_ctl::Hint;
//!
//! # fn main() -> Result<(), agentzip_ctl::client::ClientError> {
//! let mut client = Client::connect(agentzip_ctl::socket::DEFAULT_PATH)?;
//! client.hint("/agents/sb1", &Hint::FirstToken)?;
//! # Ok(())
//! # }
//! ```

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

use crate::attributes::Attributes;
use crate::hint::Hint;
use crate::name::ObjectName;
use crate::protocol::{Admission, Answer, ErrorCode, Event, Request, VERSION};

/// How long a reply may take before it counts as lost.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Longest line that is taken from the daemon, in bytes.
const MAX_LINE: u64 = 64 << 20;

/// Events that are kept while a reply is waited for; older ones go first.
const MAX_EVENTS: usize = 4096;

/// What can go wrong.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No daemon listens there.
    #[error("no daemon listens on {}: {cause}; start it: agentzip daemon", path.display())]
    Absent {
        /// The socket.
        path: PathBuf,
        /// What the kernel said.
        cause: io::Error,
    },
    /// The socket may not be used, or broke.
    #[error("cannot {operation} {}: {cause}", path.display())]
    Io {
        /// What was done.
        operation: &'static str,
        /// The socket.
        path: PathBuf,
        /// Why it failed.
        cause: io::Error,
    },
    /// The daemon does not do it.
    #[error("{operation} {object}: {reason}")]
    Refused {
        /// The operation.
        operation: &'static str,
        /// What it was asked for.
        object: String,
        /// What kind of refusal.
        code: ErrorCode,
        /// Why.
        reason: String,
    },
    /// What it says is not the protocol.
    #[error("the daemon on {} answers in another way than expected: {problem}", path.display())]
    Protocol {
        /// The socket.
        path: PathBuf,
        /// What was expected.
        problem: String,
    },
}

/// A connection to the daemon. After an error other than [`ClientError::Refused`] it is of no more use.
#[derive(Debug)]
pub struct Client {
    path: PathBuf,
    stream: BufReader<UnixStream>,
    next: u64,
    events: VecDeque<Event>,
}

/// What the daemon sends.
#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    Event(Event),
    Answer(Answer),
}

impl Client {
    /// Connects and agrees on the version.
    ///
    /// # Errors
    ///
    /// When no daemon listens there, it may not be asked, or it speaks another version.
    pub fn connect(path: impl AsRef<Path>) -> Result<Client, ClientError> {
        let path = path.as_ref().to_owned();
        let stream = match UnixStream::connect(&path) {
            Ok(stream) => stream,
            Err(cause)
                if matches!(
                    cause.kind(),
                    ErrorKind::NotFound | ErrorKind::ConnectionRefused
                ) =>
            {
                return Err(ClientError::Absent { path, cause })
            }
            Err(cause) => {
                let operation = "connect to";
                return Err(ClientError::Io {
                    operation,
                    path,
                    cause,
                });
            }
        };
        let patience = stream
            .set_read_timeout(Some(PATIENCE))
            .and_then(|()| stream.set_write_timeout(Some(PATIENCE)));
        let mut client = Client {
            path,
            stream: BufReader::new(stream),
            next: 1,
            events: VecDeque::new(),
        };
        patience.map_err(|cause| client.io("set up", cause))?;
        client.request(&Request::Hello { version: VERSION })?;
        Ok(client)
    }

    /// Tells what the agent in a sandbox does.
    ///
    /// # Errors
    ///
    /// When it is none, or not ours.
    pub fn hint(&mut self, cgroup: impl AsRef<Path>, hint: &Hint) -> Result<(), ClientError> {
        let request = Request::Hint {
            cgroup: cgroup.as_ref().to_owned(),
            hint: hint.clone(),
        };
        self.request(&request).map(|_| ())
    }

    /// Makes a cgroup a sandbox. `attributes` name a template.
    ///
    /// # Errors
    ///
    /// When it may not or cannot be one.
    pub fn attach(
        &mut self,
        cgroup: impl AsRef<Path>,
        attributes: &Attributes,
    ) -> Result<Value, ClientError> {
        self.request(&Request::Attach {
            cgroup: cgroup.as_ref().to_owned(),
            attributes: attributes.clone(),
        })
    }

    /// Ends being a sandbox.
    ///
    /// # Errors
    ///
    /// When it is none, or not ours.
    pub fn detach(&mut self, cgroup: impl AsRef<Path>) -> Result<(), ClientError> {
        let cgroup = cgroup.as_ref().to_owned();
        self.request(&Request::Detach { cgroup }).map(|_| ())
    }

    /// How the daemon is, or one sandbox.
    ///
    /// # Errors
    ///
    /// When there is no such sandbox.
    pub fn status(&mut self, cgroup: Option<&Path>) -> Result<Value, ClientError> {
        let cgroup = cgroup.map(Path::to_owned);
        self.request(&Request::Status { cgroup })
    }

    /// All sandboxes.
    ///
    /// # Errors
    ///
    /// When the daemon does not answer.
    pub fn list(&mut self) -> Result<Value, ClientError> {
        self.request(&Request::List)
    }

    /// Is there room for one more sandbox?
    ///
    /// # Errors
    ///
    /// When we may not ask, or the answer is none.
    pub fn admit(
        &mut self,
        bytes: Option<u64>,
        template: Option<&ObjectName>,
    ) -> Result<Admission, ClientError> {
        let template = template.cloned();
        let answer = self.request(&Request::Admit { bytes, template })?;
        serde_json::from_value(answer).map_err(|error| self.protocol(error.to_string()))
    }

    /// Asks for events from now on; [`next_event`](Client::next_event) gives them.
    ///
    /// # Errors
    ///
    /// When we may not ask.
    pub fn subscribe(&mut self) -> Result<(), ClientError> {
        self.request(&Request::Subscribe).map(|_| ())
    }

    /// Waits for the next event, for as long as it takes. `None` when the daemon has closed the
    /// connection: it ended, or we were too slow.
    ///
    /// # Errors
    ///
    /// When the socket breaks.
    pub fn next_event(&mut self) -> Result<Option<Event>, ClientError> {
        if let Some(event) = self.events.pop_front() {
            return Ok(Some(event));
        }
        let endless = self.stream.get_ref().set_read_timeout(None);
        endless.map_err(|cause| self.io("set up", cause))?;
        let event = loop {
            match self.line()? {
                None => break None,
                Some(Line::Event(event)) => break Some(event),
                // Of a request that nobody waits for.
                Some(Line::Answer(_)) => {}
            }
        };
        let patience = self.stream.get_ref().set_read_timeout(Some(PATIENCE));
        patience.map_err(|cause| self.io("set up", cause))?;
        Ok(event)
    }

    /// Sends a request and waits for the reply.
    ///
    /// # Errors
    ///
    /// When it is refused, or no reply comes within [`PATIENCE`].
    pub fn request(&mut self, request: &Request) -> Result<Value, ClientError> {
        let id = self.next;
        self.next += 1;
        let sent = self.stream.get_mut().write_all(&request.to_line(Some(id)));
        // Who is turned away finds the reason, and the end.
        let broken = sent.err().map(|cause| self.io("write to", cause));
        loop {
            match (self.line(), broken.is_some()) {
                (Ok(Some(Line::Event(event))), _) => {
                    if self.events.len() >= MAX_EVENTS {
                        self.events.pop_front();
                    }
                    self.events.push_back(event);
                }
                (Ok(Some(Line::Answer(answer))), _) => {
                    if answer.id.is_none_or(|other| other == id) {
                        return self.outcome(request, answer);
                    }
                }
                (Ok(None) | Err(_), true) => break,
                (Ok(None), false) => {
                    let cause = io::Error::from(ErrorKind::UnexpectedEof);
                    return Err(self.io("read from", cause));
                }
                (Err(error), false) => return Err(error),
            }
        }
        let ended = || self.io("write to", io::Error::from(ErrorKind::BrokenPipe));
        Err(broken.unwrap_or_else(ended))
    }

    fn outcome(&self, request: &Request, answer: Answer) -> Result<Value, ClientError> {
        if answer.ok {
            return Ok(answer.result.unwrap_or(Value::Null));
        }
        let object = match request {
            Request::Hint { cgroup, .. }
            | Request::Attach { cgroup, .. }
            | Request::Detach { cgroup }
            | Request::Quiesce { cgroup }
            | Request::Release { cgroup }
            | Request::Status {
                cgroup: Some(cgroup),
            } => cgroup.display().to_string(),
            _ => self.path.display().to_string(),
        };
        Err(ClientError::Refused {
            operation: request.operation(),
            object,
            code: answer.error.unwrap_or(ErrorCode::Failed),
            reason: answer.reason.unwrap_or_default(),
        })
    }

    /// The next line that means something to us; `None` at the end.
    fn line(&mut self) -> Result<Option<Line>, ClientError> {
        loop {
            let mut line = Vec::new();
            let read = (&mut self.stream)
                .take(MAX_LINE)
                .read_until(b'\n', &mut line);
            read.map_err(|cause| self.io("read from", cause))?;
            if line.is_empty() {
                return Ok(None);
            }
            if line.last() != Some(&b'\n') {
                return Err(self.protocol("a line without end".to_owned()));
            }
            let value: Value = serde_json::from_slice(&line)
                .map_err(|error| self.protocol(format!("a line that is no JSON: {error}")))?;
            match Line::deserialize(&value) {
                Ok(line) => return Ok(Some(line)),
                // Of a daemon newer than we are.
                Err(_) if value.get("event").is_some() => {}
                Err(_) => {
                    let problem = "a line that is neither reply nor event";
                    return Err(self.protocol(problem.to_owned()));
                }
            }
        }
    }

    fn io(&self, operation: &'static str, cause: io::Error) -> ClientError {
        let path = self.path.clone();
        ClientError::Io {
            operation,
            path,
            cause,
        }
    }

    fn protocol(&self, problem: String) -> ClientError {
        let path = self.path.clone();
        ClientError::Protocol { path, problem }
    }
}
