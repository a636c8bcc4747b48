// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Clients of the socket: the Rust module, the Python file and the command line, against the server with a
//! daemon's worth of answers behind it.

mod common;

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use agentzip_ctl::attributes::Attributes;
use agentzip_ctl::authority::Uid;
use agentzip_ctl::client::{Client, ClientError};
use agentzip_ctl::protocol::{
    Admission, Admitted, ErrorCode, Event, Happening, Request, Response, Source,
};
use agentzip_ctl::socket::{Server, Settings};
use agentzip_ctl::Hint;
use common::Trees;
use rustix::event::{poll, PollFd, PollFlags, Timespec};

/// Answers everything, notes what was asked for, and tells of hints. Whatever is about `/no` is refused.
struct Daemon {
    trees: Trees,
    seen: Arc<Mutex<Vec<String>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Daemon {
    fn start() -> Daemon {
        let trees = Trees::new();
        let settings = Settings {
            path: trees.path("socket"),
            ..Settings::default()
        };
        let mut server = Server::new(&settings).unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let stop = Arc::new(AtomicBool::new(false));
        let (notes, flag) = (seen.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            let timeout = Timespec {
                tv_sec: 0,
                tv_nsec: 10_000_000,
            };
            while !flag.load(Ordering::Relaxed) {
                poll(&mut [PollFd::new(&server, PollFlags::IN)], Some(&timeout)).unwrap();
                for incoming in server.turn().unwrap() {
                    let line = String::from_utf8(incoming.request.to_line(None)).unwrap();
                    notes.lock().unwrap().push(line.trim_end().to_owned());
                    let (response, happening) = answer(&incoming.request);
                    if incoming.request == Request::Subscribe {
                        server.subscribe(incoming.token.client);
                    }
                    // An event before the reply: a client must bear that.
                    if let Some(happening) = happening {
                        server.publish(&Event::now(Uid::ROOT, happening));
                    }
                    server.reply(incoming.token, response);
                }
            }
        });
        Daemon {
            trees,
            seen,
            stop,
            thread: Some(thread),
        }
    }

    fn path(&self) -> PathBuf {
        self.trees.path("socket")
    }

    fn seen(&self) -> Vec<String> {
        std::mem::take(&mut self.seen.lock().unwrap())
    }

    fn agentzip(&self, arguments: &[&str]) -> (i32, String, String) {
        let output = Command::new(env!("CARGO_BIN_EXE_agentzip"))
            .args(arguments)
            .env("AGENTZIP_CGROUP_ROOT", self.trees.path("cgroup"))
            .env("AGENTZIP_SYSFS", self.trees.path("sysfs"))
            .env("AGENTZIP_SOCKET", self.path())
            .output()
            .unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (
            output.status.code().unwrap(),
            text(output.stdout),
            text(output.stderr),
        )
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

fn answer(request: &Request) -> (Response, Option<Happening>) {
    match request {
        Request::Hint { cgroup, .. } | Request::Detach { cgroup } if cgroup.starts_with("/no") => {
            (Response::error(ErrorCode::Denied, "/no is not yours"), None)
        }
        Request::Hint { cgroup, hint } => {
            let happening = Happening::Hint {
                cgroup: cgroup.display().to_string(),
                cgroup_id: 7,
                hint: hint.clone(),
                source: Source::Socket,
            };
            (Response::Done, Some(happening))
        }
        Request::Admit { bytes, .. } => {
            let admission = Admission {
                answer: if bytes.is_some() {
                    Admitted::Wait
                } else {
                    Admitted::Yes
                },
                reason: bytes.map(|_| "memory is short".to_owned()),
                retry_ms: bytes.map(|_| 1500),
            };
            (Response::result(&admission), None)
        }
        Request::List => (Response::result(&["/a"]), None),
        _ => (Response::Done, None),
    }
}

#[test]
fn the_rust_client() {
    let daemon = Daemon::start();
    let mut client = Client::connect(daemon.path()).unwrap();
    client.subscribe().unwrap();
    let hint: Hint = "tool-start;tool=pytest".parse().unwrap();
    client.hint("/a", &hint).unwrap();
    let attributes = Attributes {
        template: Some("t".parse().unwrap()),
        ..Attributes::default()
    };
    client.attach("/a", &attributes).unwrap();
    assert_eq!(client.list().unwrap(), serde_json::json!(["/a"]));
    client.status(None).unwrap();
    let admission = client.admit(Some(5), None).unwrap();
    assert_eq!(
        (admission.answer, admission.retry_ms),
        (Admitted::Wait, Some(1500))
    );
    client.detach("/a").unwrap();
    let refused = client.detach("/no").unwrap_err();
    assert_eq!(refused.to_string(), "detach /no: /no is not yours");
    assert!(matches!(
        refused,
        ClientError::Refused {
            code: ErrorCode::Denied,
            ..
        }
    ));
    let event = client.next_event().unwrap().unwrap();
    assert!(matches!(event.happening, Happening::Hint { hint: told, .. } if told == hint));
    let path = daemon.path();
    drop(daemon);
    assert!(client.next_event().unwrap().is_none());
    assert!(client.list().is_err());
    let absent = Client::connect(&path).unwrap_err();
    assert!(matches!(absent, ClientError::Absent { .. }), "{absent}");
}

/// Servers that answer nonsense, or nothing.
#[test]
fn the_rust_client_bears_any_daemon() {
    use std::io::{Read, Write};
    let dir = tempfile::tempdir().unwrap();
    for (number, (answer, problem)) in [
        ("", "cannot read from"),
        ("no json\n", "no JSON"),
        ("[]\n", "neither reply nor event"),
        ("{\"ok\":true", "without end"),
        (
            "{\"ok\":false,\"error\":\"version\",\"reason\":\"old\"}\n",
            "old",
        ),
        ("{\"ok\":true,\"id\":99}\n", "cannot read from"),
        (
            "{\"event\":\"of the future\",\"time_ms\":1}\n",
            "cannot read from",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let path = dir.path().join(number.to_string());
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let thread = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            let _ = stream.read_to_end(&mut Vec::new());
        });
        let error = Client::connect(&path).unwrap_err().to_string();
        assert!(error.contains(problem), "{answer:?}: {error}");
        thread.join().unwrap();
    }
}

#[test]
fn the_command_line() {
    let daemon = Daemon::start();
    let id = daemon.trees.cgroup("agents/sb", "");
    let (code, text, _) = daemon.agentzip(&["hint", "agents/sb", "first-token"]);
    assert_eq!(
        (code, text),
        (
            0,
            format!("/agents/sb (id {id}): first-token, told to the daemon\n")
        )
    );
    let cgroup = daemon.trees.path("cgroup/agents/sb");
    let expected = format!(
        "{{\"op\":\"hint\",\"cgroup\":\"{}\",\"hint\":\"first-token\"}}",
        cgroup.display()
    );
    assert_eq!(daemon.seen(), [expected]);
    let (code, text, _) = daemon.agentzip(&["admit"]);
    assert_eq!((code, text.as_str()), (0, "yes\n"));
    let (code, text, _) = daemon.agentzip(&["admit", "--bytes", "1G", "--template", "t"]);
    assert_eq!(
        (code, text.as_str()),
        (1, "wait: memory is short; ask again in 1500 ms\n")
    );
    assert!(daemon
        .seen()
        .iter()
        .any(|line| line.contains("\"bytes\":1073741824")));
    let events = std::thread::scope(|scope| {
        let thread = scope.spawn(|| daemon.agentzip(&["events", "--json", "--count", "1"]));
        while !thread.is_finished() {
            let mut client = Client::connect(daemon.path()).unwrap();
            client.hint("/a", &Hint::Done).unwrap();
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        thread.join().unwrap()
    });
    assert!(
        events.1.contains("\"event\":\"hint\"") && events.1.contains("\"hint\":\"done\""),
        "{events:?}"
    );
}

/// The Python file, by both ways in. A machine without python3 leaves this out, and says so.
#[test]
fn the_python_client() {
    if Command::new("python3").arg("--version").output().is_err() {
        eprintln!("not tested: there is no python3");
        return;
    }
    let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../Documentation/examples");
    let text = std::fs::read_to_string(format!("{examples}/agentzip_client.py")).unwrap();
    assert!(text.lines().count() < 150);
    let daemon = Daemon::start();
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let script = "
import os, sys
from agentzip_client import AgentZipError, Socket, Xattr
path, directory = sys.argv[1:]
def life(sandbox):
    sandbox.attach('t', group='g')
    sandbox.llm_wait(8.0)
    sandbox.llm_wait()
    sandbox.first_token()
    sandbox.tool_start('pytest')
    sandbox.tool_end()
    sandbox.idle()
    sandbox.done()
    sandbox.detach()
with Socket('/a', path) as sandbox:
    life(sandbox)
    assert sandbox.list() == ['/a'], sandbox.list()
    assert sandbox.status() is None
    assert sandbox.admit() == {'answer': 'yes'}
    assert sandbox.admit(bytes=5)['retry_ms'] == 1500
    events = sandbox.events()
    other = Socket('/a', path)
    other.hint('idle')
    event = next(events)
    assert (event['event'], event['hint']) == ('hint', 'idle'), event
    try:
        Socket('/no', path).done()
    except AgentZipError as error:
        assert (error.code, str(error)) == ('denied', '/no is not yours')
    else:
        raise AssertionError
said = []
os.setxattr, set = lambda *a: (said.append(a[1:]), set(*a)), os.setxattr
life(Xattr(directory))
assert said[:3] == [('user.agentzip.group', b'g'), ('user.agentzip.template', b't'),
                    ('user.agentzip.phase', b'llm-wait;expect=8000')], said
assert os.getxattr(directory, 'user.agentzip.phase') == b'done'
assert 'user.agentzip.template' not in os.listxattr(directory)
";
    let output = Command::new("python3")
        .args(["-c", script])
        .arg(daemon.path())
        .arg(dir.path())
        .env("PYTHONPATH", examples)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let seen = daemon.seen();
    assert_eq!(
        seen[0],
        "{\"op\":\"attach\",\"cgroup\":\"/a\",\"template\":\"t\",\"group\":\"g\"}"
    );
    assert!(seen[1].contains("llm-wait;expect=8000"), "{seen:?}");
}
