// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The server of the socket, with clients that behave and clients that do not.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use agentzip_ctl::authority::Uid;
use agentzip_ctl::protocol::{Event, Happening, Request, Response, MAX_LINE};
use agentzip_ctl::socket::{Counters, Server, Settings};
use rustix::event::{poll, PollFd, PollFlags, Timespec};

/// A server in a thread: answers everything, `list` with a long text, and publishes an event for
/// each hint. `detach` is answered by the second one that comes, for both.
struct Running {
    dir: tempfile::TempDir,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Counters>,
    /// Number of that thread.
    task: i32,
}

fn wait(server: &Server) -> bool {
    let timeout = Timespec {
        tv_sec: 0,
        tv_nsec: 20_000_000,
    };
    let mut fds = [PollFd::new(server, PollFlags::IN)];
    poll(&mut fds, Some(&timeout)).unwrap() > 0
}

impl Running {
    fn start(max_clients: usize) -> Running {
        Running::with_mode(max_clients, 0o600)
    }

    fn with_mode(max_clients: usize, mode: u32) -> Running {
        let dir = tempfile::tempdir().unwrap();
        let all = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(dir.path(), all).unwrap();
        let settings = Settings {
            path: dir.path().join("socket"),
            mode,
            group: None,
            max_clients,
        };
        let mut server = Server::new(&settings).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let seen = stop.clone();
        let (tell, task) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            // SAFETY: It takes nothing and cannot fail.
            tell.send(unsafe { libc::gettid() }).unwrap();
            let long = "x".repeat(100_000);
            let mut deferred = None;
            loop {
                // What came before it is to stop counts.
                let last = seen.load(Ordering::Relaxed);
                if !wait(&server) {
                    match last {
                        true => break,
                        false => continue,
                    }
                }
                for incoming in server.turn().unwrap() {
                    let token = incoming.token;
                    match incoming.request {
                        Request::List => server.reply(token, Response::result(&long)),
                        Request::Subscribe => {
                            assert!(server.subscribe(token.client));
                            server.reply(token, Response::Done);
                        }
                        Request::Hint { cgroup, hint } => {
                            server.reply(token, Response::Done);
                            let happening = Happening::Hint {
                                cgroup: cgroup.display().to_string(),
                                cgroup_id: 1,
                                hint,
                                source: agentzip_ctl::protocol::Source::Socket,
                            };
                            // Events of a stranger are for root only.
                            let owner = Uid(if cgroup.starts_with("/strange") {
                                4_000_000
                            } else {
                                incoming.uid.0
                            });
                            server.publish(&Event::now(owner, happening));
                        }
                        Request::Detach { .. } => match deferred.take() {
                            None => deferred = Some(token),
                            Some(first) => {
                                server.reply(token, Response::result(&"second"));
                                server.reply(first, Response::result(&"first"));
                            }
                        },
                        _ => server.reply(token, Response::Done),
                    }
                }
            }
            server.counters()
        });
        Running {
            dir,
            stop,
            thread,
            task: task.recv().unwrap(),
        }
    }

    fn connect(&self) -> Peer {
        let stream = UnixStream::connect(self.dir.path().join("socket")).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        Peer(BufReader::new(stream))
    }

    /// CPU time of the server's thread.
    fn cpu(&self) -> Duration {
        let path = format!("/proc/self/task/{}/schedstat", self.task);
        let text = std::fs::read_to_string(path).unwrap();
        Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
    }

    fn stop(self) -> Counters {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

struct Peer(BufReader<UnixStream>);

impl Peer {
    fn send(&mut self, text: &str) {
        self.0.get_mut().write_all(text.as_bytes()).unwrap();
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn ask(&mut self, text: &str) -> String {
        self.send(&format!("{text}\n"));
        self.line()
    }

    fn end(&mut self) {
        self.0
            .get_mut()
            .shutdown(std::net::Shutdown::Write)
            .unwrap();
    }

    fn rest(&mut self) -> String {
        let mut rest = String::new();
        self.0.read_to_string(&mut rest).unwrap();
        rest
    }
}

const HINT: &str = "{\"op\":\"hint\",\"cgroup\":\"/a\",\"hint\":\"idle\"}";

#[test]
fn requests_and_replies() {
    let server = Running::start(8);
    let mut peer = server.connect();
    let hello = peer.ask("{\"op\":\"hello\",\"version\":1,\"id\":1}");
    assert!(
        hello.starts_with("{\"ok\":true,\"id\":1,") && hello.contains("\"version\":1"),
        "{hello}"
    );
    let other = peer.ask("{\"op\":\"hello\",\"version\":9}");
    assert!(other.contains("\"error\":\"version\""), "{other}");
    assert_eq!(peer.ask(HINT), "{\"ok\":true}");
    // In pieces, and several at once.
    for byte in HINT.split_inclusive(':') {
        peer.send(byte);
        std::thread::sleep(Duration::from_millis(2));
    }
    peer.send("\n\n  \n{\"op\":\"config\",\"id\":2}\n{\"op\":\"admit\",\"id\":3}\n");
    assert_eq!(peer.line(), "{\"ok\":true}");
    assert_eq!(peer.line(), "{\"ok\":true,\"id\":2}");
    assert_eq!(peer.line(), "{\"ok\":true,\"id\":3}");
    // A reply may come later than that of the next request; who ended its side gets it all the same.
    let mut second = server.connect();
    peer.send("{\"op\":\"detach\",\"cgroup\":\"a\",\"id\":4}\n");
    peer.end();
    std::thread::sleep(Duration::from_millis(50));
    let reply = second.ask("{\"op\":\"detach\",\"cgroup\":\"a\"}");
    assert_eq!(reply, "{\"ok\":true,\"result\":\"second\"}");
    assert_eq!(peer.rest(), "{\"ok\":true,\"id\":4,\"result\":\"first\"}\n");
    let counters = server.stop();
    assert_eq!((counters.requests, counters.malformed), (8, 0));
}

#[test]
fn malformed_lines_get_a_reason_and_the_connection_stays() {
    let server = Running::start(8);
    let mut peer = server.connect();
    let long = format!("{{\"op\":\"{}\"}}", "x".repeat(MAX_LINE));
    for (line, code) in [
        ("what", "malformed"),
        ("{\"op\":\"fly\"}", "unknown"),
        ("\u{0}\u{1}", "malformed"),
        (&long, "too-long"),
    ] {
        let reply = peer.ask(line);
        assert!(
            reply.contains(&format!("\"error\":\"{code}\",\"reason\":\"")),
            "{reply}"
        );
        assert_eq!(peer.ask(HINT), "{\"ok\":true}");
    }
    // A line without end is no request, even if it would be one.
    peer.send(HINT);
    peer.end();
    assert!(peer.rest().contains("the line has no end"));
    // Nothing but rubbish: hopeless.
    let mut hopeless = server.connect();
    let sender = hopeless.0.get_ref().try_clone().unwrap();
    let thread = std::thread::spawn(move || while (&sender).write_all(b"rubbish\n").is_ok() {});
    let mut replies = Vec::new();
    let _ = hopeless.0.read_to_end(&mut replies);
    thread.join().unwrap();
    assert_eq!(peer_works(&server), "{\"ok\":true}");
    let counters = server.stop();
    assert_eq!(counters.hopeless, 1);
    assert_eq!(counters.malformed, 4 + 1 + 65);
}

fn peer_works(server: &Running) -> String {
    server.connect().ask(HINT)
}

#[test]
fn random_bytes_harm_nobody() {
    let server = Running::start(64);
    let mut state = 7_u64;
    for _ in 0..50 {
        let mut peer = server.connect();
        let bytes: Vec<u8> = (0..3000)
            .map(|_| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                (state >> 56) as u8
            })
            .collect();
        let _ = peer.0.get_mut().write_all(&bytes);
        if state % 2 == 0 {
            let _ = peer.0.get_mut().shutdown(std::net::Shutdown::Write);
            let _ = peer.0.read_to_end(&mut Vec::new());
        }
    }
    assert_eq!(peer_works(&server), "{\"ok\":true}");
    server.stop();
}

#[test]
fn hints_of_a_client_that_left_at_once_count() {
    let server = Running::start(64);
    for _ in 0..20 {
        let mut peer = server.connect();
        peer.send(&format!("{HINT}\n").repeat(40));
    }
    // Its turn comes after all those.
    let mut peer = server.connect();
    assert_eq!(peer.ask(HINT), "{\"ok\":true}");
    drop(peer);
    let counters = server.stop();
    assert!(counters.requests >= 800, "{counters:?}");
    assert_eq!(counters.clients, 0);
}

#[test]
fn who_floods_does_not_starve_the_others() {
    let server = Running::start(8);
    let stop = Arc::new(AtomicBool::new(false));
    let mut flooders = Vec::new();
    for _ in 0..3 {
        let peer = server.connect();
        let stop = stop.clone();
        let writer = peer.0.get_ref().try_clone().unwrap();
        flooders.push(std::thread::spawn(move || {
            let block = format!("{HINT}\n").repeat(500);
            while !stop.load(Ordering::Relaxed) && (&writer).write_all(block.as_bytes()).is_ok() {}
            let _ = writer.shutdown(std::net::Shutdown::Both);
        }));
        // It takes its replies, or it would be paused.
        let mut reader = peer;
        flooders.push(std::thread::spawn(move || {
            let _ = std::io::copy(&mut reader.0, &mut std::io::sink());
        }));
    }
    let mut peer = server.connect();
    let started = Instant::now();
    for _ in 0..50 {
        assert_eq!(peer.ask(HINT), "{\"ok\":true}");
    }
    // Between two of ours there are at most 16 of each other.
    let flooded = started.elapsed();
    stop.store(true, Ordering::Relaxed);
    for thread in flooders {
        thread.join().unwrap();
    }
    let counters = server.stop();
    assert!(counters.requests > 50, "{counters:?}");
    assert!(flooded < Duration::from_secs(10), "{flooded:?}");
}

#[test]
fn who_takes_no_replies_is_not_served_and_loses_nothing() {
    let server = Running::start(8);
    let mut peer = server.connect();
    let mut sender = peer.0.get_ref().try_clone().unwrap();
    let thread = std::thread::spawn(move || {
        sender
            .write_all("{\"op\":\"list\"}\n".repeat(200).as_bytes())
            .unwrap();
        sender.shutdown(std::net::Shutdown::Write).unwrap();
    });
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(peer_works(&server), "{\"ok\":true}");
    let replies = peer.rest();
    thread.join().unwrap();
    assert_eq!(replies.lines().count(), 200);
    assert!(replies.lines().all(|line| line.len() > 100_000));
    server.stop();
}

#[test]
fn subscribers() {
    let server = Running::start(8);
    let mut quick = server.connect();
    assert_eq!(quick.ask("{\"op\":\"subscribe\"}"), "{\"ok\":true}");
    let mut slow = server.connect();
    assert_eq!(slow.ask("{\"op\":\"subscribe\"}"), "{\"ok\":true}");
    let mut peer = server.connect();
    let name = "n".repeat(3000);
    let hint = HINT.replace("/a", &name);
    let mut events = 0;
    // The slow one's socket buffer, then its 256 KiB here, fill.
    for _ in 0..400 {
        assert_eq!(peer.ask(&hint), "{\"ok\":true}");
        let event = quick.line();
        assert!(
            event.contains("\"event\":\"hint\"") && event.contains(&name),
            "{event}"
        );
        events += 1;
    }
    // It gets what was on its way, then the end.
    let got = slow.rest();
    assert!(got.lines().count() < events);
    assert_eq!(
        peer.ask("{\"op\":\"hint\",\"cgroup\":\"/strange\",\"hint\":\"done\"}"),
        "{\"ok\":true}"
    );
    let is_root = peer.ask("{\"op\":\"subscribe\"}");
    assert_eq!(is_root, "{\"ok\":true}");
    drop((quick, slow, peer));
    let counters = server.stop();
    assert_eq!((counters.slow_subscribers, counters.subscribers), (1, 0));
}

#[test]
fn the_number_of_clients_is_bounded() {
    let server = Running::start(16);
    let own = own_uid(&server);
    let most = if own == 0 { 16 } else { 4 };
    let mut peers: Vec<Peer> = (0..most).map(|_| server.connect()).collect();
    for peer in &mut peers {
        assert_eq!(peer.ask(HINT), "{\"ok\":true}");
    }
    for _ in 0..5 {
        let refusal = server.connect().rest();
        assert!(refusal.contains("\"error\":\"busy\""), "{refusal}");
    }
    peers.truncate(most - 1);
    // Once the server knows.
    let begun = Instant::now();
    while server.connect().ask(HINT) != "{\"ok\":true}" {
        assert!(begun.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(5));
    }
    let counters = server.stop();
    assert!(counters.turned_away >= 5, "{counters:?}");
}

/// Clients that stay connected and say nothing, half a line, or hang up on us cost no CPU time.
#[test]
fn idle_clients_cost_nothing() {
    let server = Running::start(64);
    let mut peers: Vec<Peer> = (0..10).map(|_| server.connect()).collect();
    for (number, peer) in peers.iter_mut().enumerate() {
        match number % 4 {
            0 => {}
            1 => peer.send("{\"op\":"),
            // Its reply is never read.
            2 => peer.send(
                "{\"op\":\"list\"}\n{\"op\":\"list\"}\n{\"op\":\"list\"}\n{\"op\":\"list\"}\n",
            ),
            // Its reply never comes.
            _ => {
                peer.send("{\"op\":\"detach\",\"cgroup\":\"a\"}\n");
                peer.end();
            }
        }
    }
    std::thread::sleep(Duration::from_millis(300));
    let before = server.cpu();
    std::thread::sleep(Duration::from_millis(1000));
    let used = server.cpu() - before;
    drop(peers);
    server.stop();
    assert!(used < Duration::from_millis(200), "{used:?}");
}

/// The kernel says who connects. Needs root, to be several users; as another user it shows the bound for one only, in
/// `the_number_of_clients_is_bounded`.
#[test]
fn users_are_told_apart() {
    const USER: u32 = 123_456;
    let server = Running::with_mode(16, 0o666);
    if own_uid(&server) != 0 {
        eprintln!("not tested: we are not root");
        return;
    }
    let path = server.dir.path().join("socket");
    let mut root = server.connect();
    assert_eq!(root.ask("{\"op\":\"subscribe\"}"), "{\"ok\":true}");
    let connect = path.clone();
    let streams = common::as_user(USER, move || {
        let streams: Vec<UnixStream> = (0..5)
            .map(|_| UnixStream::connect(&connect).unwrap())
            .collect();
        streams
    });
    let mut users: Vec<Peer> = streams
        .into_iter()
        .map(|s| Peer(BufReader::new(s)))
        .collect();
    // A quarter of the clients for one user.
    assert!(users
        .pop()
        .unwrap()
        .rest()
        .contains("too many clients of this user"));
    // Who connected counts, not who writes.
    let user = &mut users[0];
    assert_eq!(user.ask("{\"op\":\"subscribe\"}"), "{\"ok\":true}");
    assert_eq!(root.ask(HINT), "{\"ok\":true}");
    assert!(
        root.line().contains("\"cgroup\":\"/a\""),
        "root sees its own"
    );
    assert_eq!(user.ask(&HINT.replace("/a", "/user")), "{\"ok\":true}");
    assert!(
        root.line().contains("\"cgroup\":\"/user\""),
        "root sees others'"
    );
    // The first event that it sees is its own: root's was not for it.
    assert!(user.line().contains("\"cgroup\":\"/user\""));
    server.stop();
    let server = Running::start(16);
    let path = server.dir.path().join("socket");
    let refused = common::as_user(USER, move || UnixStream::connect(path).unwrap_err().kind());
    assert_eq!(refused, std::io::ErrorKind::PermissionDenied);
    server.stop();
    // Users that work together do not lock root out.
    let server = Running::with_mode(8, 0o666);
    let path = server.dir.path().join("socket");
    let crowd: Vec<UnixStream> = (0..4)
        .flat_map(|number| {
            let path = path.clone();
            common::as_user(USER + number, move || {
                let two = [0, 1].map(|_| UnixStream::connect(&path).unwrap());
                Vec::from(two)
            })
        })
        .collect();
    let mut root = server.connect();
    assert_eq!(root.ask("{\"op\":\"subscribe\"}"), "{\"ok\":true}");
    assert_eq!(crowd.len(), 8);
    server.stop();
}

fn own_uid(server: &Running) -> u32 {
    std::os::unix::fs::MetadataExt::uid(&server.dir.path().metadata().unwrap())
}

/// The part of `out_of_file_descriptors` that runs in a process of its own, for it sets a limit.
#[test]
fn part_that_runs_out() {
    use rustix::process::{getrlimit, setrlimit, Resource, Rlimit};
    let Ok(dir) = std::env::var("AGENTZIP_TEST_RUNS_OUT") else {
        return;
    };
    let settings = Settings {
        path: std::path::Path::new(&dir).join("socket"),
        ..Settings::default()
    };
    let mut server = Server::new(&settings).unwrap();
    let address = rustix::net::SocketAddrUnix::new(&settings.path).unwrap();
    let connect = |peer: &std::os::fd::OwnedFd| rustix::net::connect(peer, &address).unwrap();
    let socket = || {
        use rustix::net::{socket, AddressFamily, SocketType};
        socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap()
    };
    let peers = [socket(), socket()];
    let before = getrlimit(Resource::Nofile);
    // Every number below is in use from here on.
    let next = std::os::fd::AsRawFd::as_raw_fd(&std::fs::File::open("/dev/null").unwrap());
    let limit = |most: u64| {
        setrlimit(
            Resource::Nofile,
            Rlimit {
                current: Some(most),
                ..before
            },
        )
        .unwrap();
    };
    limit(next as u64);
    connect(&peers[0]);
    assert!(wait(&server));
    server.turn().unwrap();
    assert_eq!(
        (server.counters().turned_away, server.counters().accepted),
        (1, 0)
    );
    // Not even the spare one: there is a pause, not a loop, and then all is well.
    limit(3);
    connect(&peers[1]);
    assert!(wait(&server));
    server.turn().unwrap();
    assert!(!wait(&server));
    limit(before.current.unwrap_or(1024));
    while server.counters().accepted == 0 {
        if wait(&server) {
            server.turn().unwrap();
        }
    }
    assert_eq!(server.counters().turned_away, 1);
    println!("\nall is well");
}

#[test]
fn out_of_file_descriptors() {
    let dir = tempfile::tempdir().unwrap();
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args([
            "part_that_runs_out",
            "--exact",
            "--nocapture",
            "--test-threads=1",
        ])
        .env("AGENTZIP_TEST_RUNS_OUT", dir.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("all is well"), "{text}{errors}");
}
