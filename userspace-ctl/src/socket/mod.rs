// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The server of the Unix socket. It never blocks, and it bounds everything that a client can make it
//! hold: lines, replies that are not taken, clients in all and for each user.
//!
//! One epoll instance holds all of it, so a daemon waits for one file descriptor. [`Server::turn`]
//! reads at most 4 KiB and takes at most 16 requests from each client, in the order in which the kernel
//! found them ready, so nobody can keep the others waiting. Who does not take its replies is not
//! read from; a subscriber that does not take its events is closed, and counted.
//!
//! For a quick answer, reply before acting: a reply is one system call and no copy.

mod connection;
mod listener;

use std::collections::{HashMap, VecDeque};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{eventfd, EventfdFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{self, SendFlags, SocketFlags};
use rustix::time::{
    timerfd_create, timerfd_settime, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags,
};
use serde::Serialize;

use self::connection::{Connection, Taken, OUTPUT_HARD};
use self::listener::Listener;
pub use self::listener::{Settings, DEFAULT_PATH};
use crate::authority::{Authority, Uid};
use crate::error::{Error, Result};
use crate::protocol::{check_version, ErrorCode, Event, Request, Response, MAX_LINE, VERSION};
use crate::sys;

/// Clients that are looked at in one turn.
const CLIENTS_PER_TURN: usize = 64;

/// Clients that are accepted in one turn.
const ACCEPTS_PER_TURN: usize = 16;

/// Requests of one client in one turn.
const REQUESTS_PER_TURN: usize = 16;

/// Keys of epoll that are no clients.
const LISTENER: u64 = 0;
const WAKE: u64 = 1;
const REST: u64 = 2;

/// How long nobody is accepted after the kernel could not give us a client.
const PAUSE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};

/// To whom a reply goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    /// The client: a number that is never used again.
    pub client: u64,
    /// What it called its request.
    pub id: Option<u64>,
}

/// A request that came in. It wants exactly one [`Server::reply`], now or later.
#[derive(Clone, Debug)]
pub struct Incoming {
    /// Where the reply goes.
    pub token: Token,
    /// Whose process it was that connected.
    pub uid: Uid,
    /// That process; 0 when it has no number here.
    pub pid: i32,
    /// What it wants.
    pub request: Request,
}

/// What the server did, since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Clients now.
    pub clients: u64,
    /// Subscribers now.
    pub subscribers: u64,
    /// Clients that were accepted.
    pub accepted: u64,
    /// Clients that were turned away, as there were too many.
    pub turned_away: u64,
    /// Requests.
    pub requests: u64,
    /// Lines that were no requests.
    pub malformed: u64,
    /// Clients that were closed for sending nothing but such lines.
    pub hopeless: u64,
    /// Subscribers that were closed for not taking their events.
    pub slow_subscribers: u64,
    /// Events, each counted once for each subscriber that it was sent to.
    pub events: u64,
}

/// The server.
pub struct Server {
    epoll: OwnedFd,
    listener: Listener,
    /// Makes `epoll` ready while clients have lines left.
    wake: OwnedFd,
    awake: bool,
    /// Ends a pause in accepting.
    rest: OwnedFd,
    /// Is closed to accept, and turn away, a client when file descriptors have run out.
    spare: Option<OwnedFd>,
    max_clients: usize,
    clients: HashMap<u64, Connection>,
    next: u64,
    /// Clients that have lines left.
    left: VecDeque<u64>,
    subscribers: Vec<u64>,
    counters: Counters,
}

impl Server {
    /// Makes the socket and listens.
    ///
    /// # Errors
    ///
    /// When the settings make no sense, something else is at the path or listens there, or the kernel
    /// refuses.
    pub fn new(settings: &Settings) -> Result<Server> {
        let failed =
            |operation| move |errno: Errno| Error::io(operation, &settings.path)(errno.into());
        let listener = Listener::bind(settings)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed("make epoll for"))?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wake = eventfd(0, flags).map_err(failed("make eventfd for"))?;
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let rest =
            timerfd_create(TimerfdClockId::Monotonic, flags).map_err(failed("make timer for"))?;
        for (fd, key) in [
            (listener.as_fd(), LISTENER),
            (wake.as_fd(), WAKE),
            (rest.as_fd(), REST),
        ] {
            epoll::add(&epoll, fd, EventData::new_u64(key), EventFlags::IN)
                .map_err(failed("wait for"))?;
        }
        Ok(Server {
            epoll,
            listener,
            wake,
            awake: false,
            rest,
            spare: spare(),
            max_clients: settings.max_clients,
            clients: HashMap::new(),
            next: REST + 1,
            left: VecDeque::new(),
            subscribers: Vec::new(),
            counters: Counters::default(),
        })
    }

    /// What it did.
    pub fn counters(&self) -> Counters {
        Counters {
            clients: self.clients.len() as u64,
            subscribers: self.subscribers.len() as u64,
            ..self.counters
        }
    }

    /// Does what can be done without waiting, and returns the requests that came in. To be called when
    /// the file descriptor is readable.
    ///
    /// # Errors
    ///
    /// When the kernel refuses to tell who is ready.
    pub fn turn(&mut self) -> Result<Vec<Incoming>> {
        let mut room = [MaybeUninit::uninit(); CLIENTS_PER_TURN];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let events: &[epoll::Event] = match epoll::wait(&self.epoll, &mut room, Some(&now)) {
            Ok((events, _)) => events,
            Err(Errno::INTR) => &[],
            Err(errno) => {
                let what = Path::new("the clients of the socket");
                return Err(Error::io("wait for", what)(errno.into()));
            }
        };
        let mut incoming = Vec::new();
        // Those that came before first, each once.
        for _ in 0..self.left.len() {
            if let Some(key) = self.left.pop_front() {
                if let Some(client) = self.clients.get_mut(&key) {
                    client.listed = false;
                    self.serve(key, &mut incoming);
                }
            }
        }
        for event in events {
            match event.data.u64() {
                LISTENER => self.accept(),
                WAKE => self.sleep(),
                REST => self.rested(),
                key => {
                    self.ready(key, event.flags);
                    self.serve(key, &mut incoming);
                }
            }
        }
        self.stay_awake();
        Ok(incoming)
    }

    /// Answers a request. Nothing happens when the client is gone.
    pub fn reply(&mut self, to: Token, response: Response) {
        let Some(client) = self.clients.get_mut(&to.client) else {
            return;
        };
        let was_paused = client.is_paused();
        client.owed = client.owed.saturating_sub(1);
        let mut line = Vec::with_capacity(128);
        response.write_line(to.id, &mut line);
        client.write(&line);
        if was_paused && !client.is_paused() {
            self.list(to.client);
            self.stay_awake();
        }
        self.settle(to.client);
    }

    /// Makes a client a subscriber. False when it is gone.
    pub fn subscribe(&mut self, client: u64) -> bool {
        let Some(connection) = self.clients.get_mut(&client) else {
            return false;
        };
        if !std::mem::replace(&mut connection.subscriber, true) {
            self.subscribers.push(client);
        }
        true
    }

    /// Sends an event to all subscribers that may see it.
    pub fn publish(&mut self, event: &Event) {
        if self.subscribers.is_empty() {
            return;
        }
        let line = event.to_line();
        for key in self.subscribers.clone() {
            let Some(client) = self.clients.get_mut(&key) else {
                continue;
            };
            if !Authority::sees(client.uid, event.owner) {
                continue;
            }
            if client.unsent() + line.len() > OUTPUT_HARD {
                self.counters.slow_subscribers += 1;
                client.doomed = true;
            } else {
                self.counters.events += 1;
                client.write(&line);
            }
            self.settle(key);
        }
    }

    /// Accepts those who wait.
    fn accept(&mut self) {
        for _ in 0..ACCEPTS_PER_TURN {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match net::accept_with(&self.listener, flags) {
                Ok(fd) => self.admit(fd),
                // It went away.
                Err(Errno::CONNABORTED | Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(Errno::MFILE | Errno::NFILE) if self.spare.take().is_some() => {
                    if let Ok(fd) = net::accept_with(&self.listener, flags) {
                        self.turn_away(&fd, "the daemon is out of file descriptors");
                    }
                    self.spare = spare();
                }
                // Else the listener would stay ready, and we in a busy loop.
                Err(_) => return self.rest(),
            }
        }
    }

    /// Accepts nobody for a while.
    fn rest(&mut self) {
        let data = EventData::new_u64(LISTENER);
        let nothing = EventFlags::empty();
        let time = Itimerspec {
            it_interval: Timespec::default(),
            it_value: PAUSE,
        };
        // Without the timer we would never accept again.
        if timerfd_settime(&self.rest, TimerfdTimerFlags::empty(), &time).is_ok() {
            let _ = epoll::modify(&self.epoll, &self.listener, data, nothing);
        }
    }

    /// Accepts again.
    fn rested(&mut self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.rest, &mut count);
        let data = EventData::new_u64(LISTENER);
        let _ = epoll::modify(&self.epoll, &self.listener, data, EventFlags::IN);
        if self.spare.is_none() {
            self.spare = spare();
        }
    }

    fn admit(&mut self, fd: OwnedFd) {
        let Ok((uid, pid)) = sys::peer_credentials(fd.as_fd()) else {
            return;
        };
        let uid = Uid(uid);
        let same = self.clients.values().filter(|client| client.uid == uid);
        if self.clients.len() >= self.max_clients {
            return self.turn_away(&fd, "too many clients; the configuration bounds them");
        }
        if !uid.is_root() && same.count() >= self.max_clients.div_ceil(4) {
            return self.turn_away(&fd, "too many clients of this user");
        }
        let key = self.next;
        let data = EventData::new_u64(key);
        if epoll::add(&self.epoll, &fd, data, EventFlags::IN).is_err() {
            return self.turn_away(&fd, "the kernel takes no more clients");
        }
        self.next += 1;
        self.counters.accepted += 1;
        self.clients.insert(key, Connection::new(fd, uid, pid));
    }

    fn turn_away(&mut self, fd: &OwnedFd, reason: &str) {
        self.counters.turned_away += 1;
        let mut line = Vec::new();
        Response::error(ErrorCode::Busy, reason).write_line(None, &mut line);
        // One that does not get it sees the end anyway.
        let _ = net::send(fd, &line, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    /// Moves bytes of one client.
    fn ready(&mut self, key: u64, flags: EventFlags) {
        let Some(client) = self.clients.get_mut(&key) else {
            return;
        };
        if flags.intersects(EventFlags::HUP | EventFlags::ERR) {
            client.hang_up();
        }
        if flags.contains(EventFlags::OUT) {
            client.flush();
        }
        if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
            client.receive();
        }
    }

    /// Takes requests of one client.
    fn serve(&mut self, key: u64, incoming: &mut Vec<Incoming>) {
        let Some(client) = self.clients.get_mut(&key) else {
            return;
        };
        let mut taken = 0;
        while taken < REQUESTS_PER_TURN && !client.is_paused() && !client.doomed {
            let (uid, pid) = (client.uid, client.pid);
            let wrong = match client.take() {
                None => break,
                Some(Taken::Line(line)) if line.trim_ascii().is_empty() => {
                    taken += 1;
                    continue;
                }
                Some(Taken::Line(line)) => Request::parse(line)
                    .map_err(|wrong| (wrong.id, Response::error(wrong.code, wrong.reason))),
                Some(Taken::TooLong) => {
                    let reason = format!("the line is longer than {MAX_LINE} bytes; skipped");
                    Err((None, Response::error(ErrorCode::TooLong, reason)))
                }
                Some(Taken::Cut) => {
                    let reason = "the line has no end";
                    Err((None, Response::error(ErrorCode::Malformed, reason)))
                }
            };
            taken += 1;
            client.judge(wrong.is_ok());
            let (id, response) = match wrong {
                Ok(parsed) => {
                    self.counters.requests += 1;
                    match parsed.request {
                        Request::Hello { version } => (parsed.id, hello(version)),
                        request => {
                            if request.is_bulky() {
                                taken = REQUESTS_PER_TURN;
                            }
                            client.owed += 1;
                            let token = Token {
                                client: key,
                                id: parsed.id,
                            };
                            incoming.push(Incoming {
                                token,
                                uid,
                                pid,
                                request,
                            });
                            continue;
                        }
                    }
                }
                Err((id, response)) => {
                    self.counters.malformed += 1;
                    self.counters.hopeless += u64::from(client.doomed);
                    (id, response)
                }
            };
            let mut line = Vec::new();
            response.write_line(id, &mut line);
            let doomed = std::mem::take(&mut client.doomed);
            client.write(&line);
            client.doomed = doomed;
        }
        if client.has_line() && !client.is_paused() {
            self.list(key);
        }
        self.settle(key);
    }

    fn list(&mut self, key: u64) {
        if let Some(client) = self.clients.get_mut(&key) {
            if !std::mem::replace(&mut client.listed, true) {
                self.left.push_back(key);
            }
        }
    }

    /// Tells epoll what a client waits for now, or forgets the client.
    fn settle(&mut self, key: u64) {
        let Some(client) = self.clients.get_mut(&key) else {
            return;
        };
        let wants = client.wants();
        let mut over = client.is_over();
        if !over && wants != client.interest {
            let data = EventData::new_u64(key);
            over = epoll::modify(&self.epoll, &*client, data, wants).is_err();
            client.interest = wants;
        }
        if over {
            // Closing takes it out of epoll.
            self.clients.remove(&key);
            self.subscribers.retain(|subscriber| *subscriber != key);
        }
    }

    /// Makes the file descriptor readable while clients have lines left.
    fn stay_awake(&mut self) {
        if !self.left.is_empty() && !self.awake {
            self.awake = rustix::io::write(&self.wake, &1_u64.to_ne_bytes()).is_ok();
        }
    }

    fn sleep(&mut self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.wake, &mut count);
        self.awake = false;
    }
}

impl AsFd for Server {
    /// Readable when [`Server::turn`] has something to do.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

fn spare() -> Option<OwnedFd> {
    std::fs::File::open("/dev/null").ok().map(OwnedFd::from)
}

/// The answer to a hello.
fn hello(version: u32) -> Response {
    #[derive(Serialize)]
    struct Hello {
        version: u32,
        server: &'static str,
    }
    match check_version(version) {
        Ok(()) => Response::result(&Hello {
            version: VERSION,
            server: concat!("agentzip ", env!("CARGO_PKG_VERSION")),
        }),
        Err(reason) => Response::error(ErrorCode::Version, reason),
    }
}
