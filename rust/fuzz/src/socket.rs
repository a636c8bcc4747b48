// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The server of the socket: whatever a client sends, and however it comes in pieces, the server says
//! nothing but lines of JSON, and has forgotten the client when that has ended.
//!
//! An input is what a client sends, but for three bytes: at 1 the server has its turn, and the client
//! reads; 2 stands for 4 KiB of letters; at 0 the client ends, with replies unread.

use std::cell::RefCell;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use agentzip_ctl::protocol::{Event, Happening, Request, Response};
use agentzip_ctl::socket::{Server, Settings};
use rustix::io::Errno;
use rustix::net::{recv, send, RecvFlags, SendFlags};
use serde_json::Value;
use tempfile::TempDir;

/// Bytes that stand for something else.
const END: u8 = 0;
const TURN: u8 = 1;
const LETTERS: u8 = 2;

/// Most of those 4 KiB of letters in an input: more than twice the longest line.
const MOST_LETTERS: usize = 40;

/// Turns in which a client must have been served. A turn takes at least a line, or 4 KiB.
const TURNS: usize = 10_000;

thread_local! {
    static DAEMON: RefCell<Daemon> = RefCell::new(Daemon::new());
}

/// The target.
pub fn target(data: &[u8]) {
    DAEMON.with_borrow_mut(|daemon| daemon.session(data));
}

/// A server, with a folder that its socket is in.
struct Daemon {
    server: Server,
    path: PathBuf,
    _dir: TempDir,
}

/// The client's end.
struct Client {
    stream: UnixStream,
    heard: Vec<u8>,
    /// The server has closed its end.
    closed: bool,
}

impl Daemon {
    fn new() -> Self {
        let dir = TempDir::new().expect("a folder for temporary files");
        let path = dir.path().join("socket");
        let settings = Settings {
            path: path.clone(),
            mode: 0o600,
            ..Settings::default()
        };
        let server = Server::new(&settings).expect("a socket in our own folder");
        Self {
            server,
            path,
            _dir: dir,
        }
    }

    fn session(&mut self, data: &[u8]) {
        let stream = UnixStream::connect(&self.path).expect("the server listens");
        let mut client = Client {
            stream,
            heard: Vec::new(),
            closed: false,
        };
        let letters = [b'x'; 4096];
        let mut left = MOST_LETTERS;
        let mut reads = true;
        let is_text = |byte: &u8| ![END, TURN, LETTERS].contains(byte);
        for part in data.chunk_by(|a, b| is_text(a) && is_text(b)) {
            match part {
                [END] => {
                    reads = false;
                    break;
                }
                [TURN] => self.turn(&mut client),
                [LETTERS] if left > 0 => {
                    left -= 1;
                    self.send(&mut client, &letters);
                }
                [LETTERS] => {}
                text => self.send(&mut client, text),
            }
        }
        if reads {
            // Nothing is left to end when the server was first.
            let _ = client.stream.shutdown(Shutdown::Write);
            let served = (0..TURNS).any(|_| {
                self.turn(&mut client);
                client.closed
            });
            assert!(served, "the client ended, and is not done with");
        }
        check_lines(&client.heard);
        drop(client);
        let forgotten = (0..TURNS).any(|_| {
            self.serve();
            self.server.counters().clients == 0
        });
        assert!(forgotten, "the client is gone, and is still known");
    }

    /// Sends bytes; the server has its turn when they do not fit.
    fn send(&mut self, client: &mut Client, mut bytes: &[u8]) {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        while !bytes.is_empty() && !client.closed {
            match send(&client.stream, bytes, flags) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(Errno::AGAIN) => self.turn(client),
                Err(_) => client.closed = true,
            }
        }
    }

    /// The server does what there is to do, and the client reads.
    fn turn(&mut self, client: &mut Client) {
        self.serve();
        let mut buffer = [0; 4096];
        while !client.closed {
            match recv(&client.stream, &mut buffer, RecvFlags::DONTWAIT) {
                Ok((_, 0)) => client.closed = true,
                Ok((_, length)) => client.heard.extend(&buffer[..length]),
                Err(Errno::AGAIN) => return,
                Err(_) => client.closed = true,
            }
        }
    }

    fn serve(&mut self) {
        let incoming = self.server.turn().expect("the kernel says who is ready");
        for request in incoming {
            let token = request.token;
            let event = match request.request {
                Request::Subscribe => {
                    self.server.subscribe(token.client);
                    None
                }
                Request::Hint { .. } => {
                    let happening = Happening::Reloaded { error: None };
                    Some(Event::now(request.uid, happening))
                }
                _ => None,
            };
            self.server.reply(token, Response::Done);
            if let Some(event) = event {
                self.server.publish(&event);
            }
        }
    }
}

/// Every line is an object; the last may have been cut off.
fn check_lines(heard: &[u8]) {
    for line in heard.split_inclusive(|byte| *byte == b'\n') {
        if line.ends_with(b"\n") {
            let value = serde_json::from_slice::<Value>(line);
            assert!(value.is_ok_and(|value| value.is_object()));
        }
    }
}
