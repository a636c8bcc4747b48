// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Measures how long a hint takes by socket and by xattr, next to a ping-pong on a Unix socket, which
//! is what two processes need at least to say something to each other.
//!
//! ```text
//! cargo run --release -p agentzip-ctl --example hint_latency -- [DIRECTORY [ROUNDS]]
//! cargo run --release -p agentzip-ctl --example hint_latency -- --daemon SOCKET SANDBOX [ROUNDS]
//! ```
//!
//! The second form asks a daemon that runs, about a sandbox: the path of its cgroup's directory. The time of
//! a hint by xattr then ends when a subscriber has the event of it.
//!
//! In the first form, DIRECTORY is on a file system with user xattrs, best of cgroup v2; a folder is made in it, and removed.
//! One thread is the daemon: it waits in `poll` for server and watcher, as the real one does. The time of a
//! hint by socket ends when the client has the reply, which comes after the daemon has checked who asks for
//! what. The time of a hint by xattr ends when the client was told, by a byte on a socket, that the daemon
//! has the hint. Each figure is a median of ROUNDS; the three kinds take turns, round by round, so that
//! what else the machine does is in all of them.

use std::error::Error;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use agentzip_ctl::authority::Authority;
use agentzip_ctl::client::Client;
use agentzip_ctl::directory::Mount;
use agentzip_ctl::protocol::{Happening, Request, Response, Source};
use agentzip_ctl::socket::{Server, Settings};
use agentzip_ctl::watch::{Change, WatchSettings, Watcher, PHASE};
use rustix::event::{poll, PollFd, PollFlags};
use rustix::fs::{setxattr, XattrFlags};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Length of a request with its reply, so that both sides move as many bytes.
const PING: usize = 74;

fn main() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1).peekable();
    let whole = arguments
        .next_if(|argument| argument == "--daemon")
        .is_some();
    let socket = arguments.next_if(|_| whole).map(PathBuf::from);
    let base = arguments
        .next()
        .map_or_else(|| PathBuf::from("."), PathBuf::from);
    let rounds: usize = arguments.next().map_or(Ok(5000), |text| text.parse())?;
    let outcome = match socket {
        Some(socket) => against_daemon(&socket, &base.canonicalize()?, rounds),
        None => {
            let name = format!("hint_latency.{}", std::process::id());
            let base = base.canonicalize()?.join(name);
            std::fs::create_dir(&base)?;
            let outcome = measure(&base, rounds);
            for name in ["tree/sb", "tree", ""] {
                let _ = std::fs::remove_dir(base.join(name));
            }
            outcome
        }
    };
    let [ping, socket, xattr] = outcome?;
    println!("median of {rounds} rounds, one after the other");
    println!("ping-pong   {:8.1} us", micros(ping));
    for (name, time) in [("socket hint", socket), ("xattr hint", xattr)] {
        let times = time.as_secs_f64() / ping.as_secs_f64();
        println!(
            "{name:11} {:8.1} us  {times:.2} times a ping-pong",
            micros(time)
        );
    }
    Ok(())
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

fn measure(base: &Path, rounds: usize) -> Outcome<[Duration; 3]> {
    let sandbox = base.join("tree/sb");
    std::fs::create_dir_all(&sandbox)?;
    let path = std::env::temp_dir().join(format!("hint_latency.{}.sock", std::process::id()));
    let server = Server::new(&Settings {
        path: path.clone(),
        ..Settings::default()
    })?;
    let watch = WatchSettings {
        trees: vec!["/tree".into()],
        ..WatchSettings::default()
    };
    let mount = Arc::new(Mount::open(base)?);
    let mut watcher = Watcher::new(mount.clone(), &watch)?;
    let authority = Authority::default();
    watcher.rescan(&authority);
    let (mut told, tell) = UnixStream::pair()?;
    let daemon = std::thread::spawn(move || daemon(server, watcher, &mount, &authority, tell));

    let times = take_turns(rounds, &path, Path::new("/tree/sb"), &sandbox, |_| {
        Ok(told.read_exact(&mut [0; 1])?)
    });
    // The daemon ends with the client.
    drop(told);
    let joined = daemon.join().map_err(|_| "the daemon's thread failed")?;
    joined?;
    times
}

/// The daemon as a whole, as it runs.
fn against_daemon(path: &Path, sandbox: &Path, rounds: usize) -> Outcome<[Duration; 3]> {
    let mut events = Client::connect(path)?;
    events.subscribe()?;
    take_turns(rounds, path, sandbox, sandbox, |text| loop {
        let event = events.next_event()?.ok_or("the daemon ended")?;
        if let Happening::Hint {
            hint,
            source: Source::Xattr,
            ..
        } = event.happening
        {
            if hint.to_string() == text {
                return Ok(());
            }
        }
    })
}

/// Measures the three kinds in turn. `cgroup` is the sandbox as requests name it, `directory` its
/// directory; `heard` waits until a hint by xattr has come to the daemon.
fn take_turns(
    rounds: usize,
    path: &Path,
    cgroup: &Path,
    directory: &Path,
    mut heard: impl FnMut(&str) -> Outcome<()>,
) -> Outcome<[Duration; 3]> {
    let (mut near, mut far) = UnixStream::pair()?;
    let echo = std::thread::spawn(move || {
        let mut bytes = [0; PING];
        while far.read_exact(&mut bytes).is_ok() && far.write_all(&bytes).is_ok() {}
    });
    let mut client = UnixStream::connect(path)?;
    let mut ping = Vec::new();
    let mut socket = Vec::new();
    let mut xattr = Vec::new();
    let mut buffer = [0; 4096];
    for round in 0..rounds {
        let started = Instant::now();
        near.write_all(&[0; PING])?;
        near.read_exact(&mut [0; PING])?;
        ping.push(started.elapsed());

        // Hints that make no work: what is measured is how they come in.
        let text = ["tool-start", "tool-end"][round % 2];
        let hint = text.parse()?;
        let cgroup = cgroup.to_owned();
        let request = Request::Hint { cgroup, hint }.to_line(None);
        let started = Instant::now();
        client.write_all(&request)?;
        let length = client.read(&mut buffer)?;
        socket.push(started.elapsed());
        if buffer.get(..length) != Some(b"{\"ok\":true}\n") {
            return Err(String::from_utf8_lossy(&buffer[..length]).into());
        }

        let started = Instant::now();
        setxattr(directory, PHASE, text.as_bytes(), XattrFlags::empty())?;
        heard(text)?;
        xattr.push(started.elapsed());
    }
    drop((near, client));
    echo.join().map_err(|_| "the echo's thread failed")?;
    Ok([median(ping), median(socket), median(xattr)])
}

fn daemon(
    mut server: Server,
    mut watcher: Watcher,
    mount: &Mount,
    authority: &Authority,
    mut tell: UnixStream,
) -> Outcome<()> {
    let mut begun = false;
    loop {
        let (by_socket, by_xattr) = {
            let mut fds = [
                PollFd::new(&server, PollFlags::IN),
                PollFd::new(&watcher, PollFlags::IN),
            ];
            poll(&mut fds, None)?;
            let [server, watcher] = &fds;
            (!server.revents().is_empty(), !watcher.revents().is_empty())
        };
        if by_socket {
            for incoming in server.turn()? {
                let Request::Hint { cgroup, .. } = &incoming.request else {
                    continue;
                };
                let response = match mount.directory(cgroup) {
                    Ok(directory) => match authority.hint(incoming.uid, &directory) {
                        Ok(()) => Response::Done,
                        Err(denied) => denied.into(),
                    },
                    Err(error) => error.into(),
                };
                server.reply(incoming.token, response);
            }
            let clients = server.counters().clients;
            if begun && clients == 0 {
                return Ok(());
            }
            begun |= clients > 0;
        }
        if by_xattr {
            for change in watcher.read(authority)? {
                if let Change::Phase { .. } = change {
                    tell.write_all(&[0])?;
                }
            }
        }
    }
}
