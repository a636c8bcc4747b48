// SPDX-License-Identifier: GPL-2.0 OR MIT

//! One client: what it sent that is no whole line yet, and what it has not taken yet. Both bounded.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{self, RecvFlags, SendFlags};

use crate::authority::Uid;
use crate::protocol::MAX_LINE;

/// Bytes that are read from a client in one turn.
const READ: usize = 4096;

/// Bytes that a client may leave untaken and still be read from.
const OUTPUT_SOFT: usize = 64 << 10;

/// Bytes that a subscriber may leave untaken and still be kept.
pub(super) const OUTPUT_HARD: usize = 256 << 10;

/// Requests without a reply that a client may have.
const MAX_OWED: u32 = 256;

/// Malformed lines in a row that are borne.
const MAX_MALFORMED: u32 = 64;

/// Buffers larger than this are given back when empty.
const KEEP: usize = 16 << 10;

pub(super) struct Connection {
    fd: OwnedFd,
    pub(super) uid: Uid,
    pub(super) pid: i32,
    input: Vec<u8>,
    /// Bytes of `input` that were lines already.
    taken: usize,
    /// Bytes of `input` that have no line end, behind `taken`.
    searched: usize,
    /// In a line that was too long.
    skipping: bool,
    output: Vec<u8>,
    sent: usize,
    /// It sends nothing more.
    ended: bool,
    /// It takes nothing more, either.
    hung_up: bool,
    /// To be closed whatever is left.
    pub(super) doomed: bool,
    pub(super) subscriber: bool,
    /// Requests without a reply.
    pub(super) owed: u32,
    malformed: u32,
    /// It is in the server's list of clients with lines left.
    pub(super) listed: bool,
    /// What epoll was told.
    pub(super) interest: EventFlags,
}

/// A line, or why there is none.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Taken<'a> {
    /// A line without its end.
    Line(&'a [u8]),
    /// It is longer than [`MAX_LINE`]; what is left of it is skipped.
    TooLong,
    /// The client ended within it.
    Cut,
}

impl Connection {
    pub(super) fn new(fd: OwnedFd, uid: Uid, pid: i32) -> Connection {
        Connection {
            fd,
            uid,
            pid,
            input: Vec::new(),
            taken: 0,
            searched: 0,
            skipping: false,
            output: Vec::new(),
            sent: 0,
            ended: false,
            hung_up: false,
            doomed: false,
            subscriber: false,
            owed: 0,
            malformed: 0,
            listed: false,
            interest: EventFlags::IN,
        }
    }

    /// Reads once.
    pub(super) fn receive(&mut self) {
        let mut buffer = [0; READ];
        match net::recv(&self.fd, &mut buffer, RecvFlags::DONTWAIT) {
            Ok((_, 0)) => self.ended = true,
            Ok((_, length)) => {
                self.compact();
                self.input.extend(buffer.iter().take(length));
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => {
                self.ended = true;
                self.hang_up();
            }
        }
    }

    /// The client closed its socket: it reads nothing more, but what it sent counts.
    pub(super) fn hang_up(&mut self) {
        self.hung_up = true;
        self.output = Vec::new();
        self.sent = 0;
    }

    fn compact(&mut self) {
        if self.taken > 0 {
            self.input.drain(..self.taken);
            self.searched -= self.taken;
            self.taken = 0;
        }
        if self.input.is_empty() && self.input.capacity() > KEEP {
            self.input = Vec::new();
        }
    }

    /// Position of the next line end.
    fn line_end(&mut self) -> Option<usize> {
        let rest = self.input.get(self.searched..).unwrap_or(&[]);
        match rest.iter().position(|b| *b == b'\n') {
            Some(at) => Some(self.searched + at),
            None => {
                self.searched = self.input.len();
                None
            }
        }
    }

    /// There is something for [`take`](Connection::take).
    pub(super) fn has_line(&mut self) -> bool {
        let left = self.input.len() > self.taken;
        left && (self.line_end().is_some()
            || self.ended
            || self.skipping
            || self.input.len() - self.taken > MAX_LINE)
    }

    /// Takes the next line.
    pub(super) fn take(&mut self) -> Option<Taken<'_>> {
        let start = self.taken;
        let Some(end) = self.line_end() else {
            let length = self.input.len() - start;
            let cut = self.ended && length > 0 && !self.skipping;
            if self.skipping || cut || length > MAX_LINE {
                let long = length > MAX_LINE && !self.skipping;
                self.skipping = !self.ended;
                self.taken = self.input.len();
                self.compact();
                return match (long, cut) {
                    (true, _) => Some(Taken::TooLong),
                    (false, true) => Some(Taken::Cut),
                    (false, false) => None,
                };
            }
            return None;
        };
        self.taken = end + 1;
        self.searched = self.taken;
        if std::mem::take(&mut self.skipping) {
            return Some(Taken::Line(&[]));
        }
        let line = self.input.get(start..end).unwrap_or(&[]);
        match line.len() > MAX_LINE {
            true => Some(Taken::TooLong),
            false => Some(Taken::Line(line)),
        }
    }

    /// Appends something to be sent, and sends what can be sent.
    pub(super) fn write(&mut self, line: &[u8]) {
        if self.hung_up || self.doomed {
            return;
        }
        if self.unsent() > 0 {
            self.output.extend(line);
            return;
        }
        // The usual case: it is sent without having been copied.
        let sent = self.send(line);
        self.output.clear();
        self.sent = 0;
        if !self.hung_up {
            self.output.extend(line.get(sent..).unwrap_or(&[]));
        }
    }

    /// Sends what can be sent.
    pub(super) fn flush(&mut self) {
        let output = std::mem::take(&mut self.output);
        self.sent += self.send(output.get(self.sent..).unwrap_or(&[]));
        if self.sent < output.len() && !self.hung_up {
            self.output = output;
            return;
        }
        self.sent = 0;
        if output.capacity() <= KEEP && !self.hung_up {
            self.output = output;
            self.output.clear();
        }
    }

    fn send(&mut self, bytes: &[u8]) -> usize {
        if bytes.is_empty() {
            return 0;
        }
        match net::send(&self.fd, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(sent) => sent,
            Err(Errno::AGAIN | Errno::INTR) => 0,
            Err(_) => {
                self.hang_up();
                0
            }
        }
    }

    /// Bytes that it has not taken.
    pub(super) fn unsent(&self) -> usize {
        self.output.len() - self.sent
    }

    /// It must take something, or get replies, before it is served again.
    pub(super) fn is_paused(&self) -> bool {
        !self.hung_up && (self.unsent() > OUTPUT_SOFT || self.owed >= MAX_OWED)
    }

    /// Counts malformed lines in a row.
    pub(super) fn judge(&mut self, well_formed: bool) {
        self.malformed = if well_formed { 0 } else { self.malformed + 1 };
        if self.malformed > MAX_MALFORMED {
            self.doomed = true;
        }
    }

    /// What epoll should wait for.
    pub(super) fn wants(&self) -> EventFlags {
        let mut wants = EventFlags::empty();
        wants.set(EventFlags::IN, !self.ended && !self.is_paused());
        wants.set(EventFlags::OUT, self.unsent() > 0);
        wants
    }

    /// Nothing is left to do for it.
    pub(super) fn is_over(&mut self) -> bool {
        self.doomed
            || (self.ended
                && !self.has_line()
                && (self.hung_up || (self.owed == 0 && self.unsent() == 0)))
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    fn pair() -> (UnixStream, Connection) {
        let (far, near) = UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        (far, Connection::new(near.into(), Uid::ROOT, 1))
    }

    fn lines(connection: &mut Connection) -> Vec<String> {
        let mut lines = Vec::new();
        while connection.has_line() {
            lines.push(match connection.take() {
                Some(Taken::Line(line)) => String::from_utf8(line.to_vec()).unwrap(),
                Some(other) => format!("{other:?}"),
                None => continue,
            });
        }
        lines
    }

    #[test]
    fn lines_come_whole() {
        let (mut far, mut connection) = pair();
        for (sent, expected) in [
            ("a", vec![]),
            ("b\nc\n\nd", vec!["ab", "c", ""]),
            ("\n", vec!["d"]),
        ] {
            far.write_all(sent.as_bytes()).unwrap();
            connection.receive();
            assert_eq!(lines(&mut connection), expected);
        }
        far.write_all(b"half").unwrap();
        drop(far);
        connection.receive();
        connection.receive();
        assert_eq!(lines(&mut connection), ["Cut"]);
        assert!(connection.is_over());
    }

    /// A giant line is refused once, in bounded memory, and the next one counts.
    #[test]
    fn giant_lines() {
        let (mut far, mut connection) = pair();
        let mut found = Vec::new();
        for _ in 0..256 {
            far.write_all(&[b'x'; READ]).unwrap();
            connection.receive();
            found.extend(lines(&mut connection));
            assert!(connection.input.len() <= MAX_LINE + READ);
        }
        far.write_all(b"\nnext\n").unwrap();
        connection.receive();
        found.extend(lines(&mut connection));
        assert_eq!(found, ["TooLong", "", "next"]);
        let exact = "y".repeat(MAX_LINE);
        let sender = std::thread::spawn(move || {
            far.write_all(format!("{exact}\n{exact}y\nz\n").as_bytes())
                .unwrap();
        });
        let mut found = Vec::new();
        while found.last().is_none_or(|line: &String| line != "z") {
            connection.receive();
            found.extend(
                lines(&mut connection)
                    .into_iter()
                    .filter(|line| !line.is_empty()),
            );
        }
        sender.join().unwrap();
        assert_eq!(found.len(), 3);
        assert_eq!((found[0].len(), found[1].as_str()), (MAX_LINE, "TooLong"));
    }

    #[test]
    fn what_is_not_taken_waits_in_order() {
        let (mut far, mut connection) = pair();
        let mut expected = Vec::new();
        for number in 0..5000_u32 {
            let line = format!("{number:0100}\n");
            connection.write(line.as_bytes());
            expected.extend(line.bytes());
        }
        assert!(connection.is_paused());
        assert_eq!(connection.wants(), EventFlags::OUT);
        let mut got = vec![0; expected.len()];
        let mut at = 0;
        while at < got.len() {
            at += far.read(&mut got[at..]).unwrap();
            connection.flush();
        }
        assert_eq!(got, expected);
        assert_eq!(
            (connection.unsent(), connection.wants()),
            (0, EventFlags::IN)
        );
        assert!(connection.output.capacity() <= KEEP);
    }

    #[test]
    fn what_a_client_sent_before_it_closed_counts() {
        let (mut far, mut connection) = pair();
        far.write_all(b"last words\n").unwrap();
        drop(far);
        connection.hang_up();
        connection.write(b"unheard");
        assert!(!connection.is_over());
        connection.receive();
        assert_eq!(lines(&mut connection), ["last words"]);
        connection.receive();
        assert!(connection.is_over());
    }
}
