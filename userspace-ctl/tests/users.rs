// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What the real daemon, on a fake machine, shows and grants to users who are not root. As root only: nobody else
//! can be another user.

mod common;

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

use agentzip_ctl::client::Client;
use common::daemon::{configure, status, Daemon};
use common::Trees;

/// Another user than root.
const USER: u32 = 123_456;

/// Trees whose daemon everybody may ask, with this configuration besides; `None` where we are not root, and so
/// cannot be another user.
fn open_to_users(more: &str) -> Option<Trees> {
    if !rustix::process::getuid().is_root() {
        eprintln!("not tested: we are not root");
        return None;
    }
    let trees = Trees::new();
    configure(&trees, more);
    let text = trees.read("agentzip.toml");
    let text = text.replace("[socket]\n", "[socket]\nmode = \"0666\"\n");
    trees.write("agentzip.toml", &text);
    std::fs::set_permissions(trees.path(""), Permissions::from_mode(0o755)).unwrap();
    Some(trees)
}

fn client_of(user: u32, daemon: &Daemon) -> Client {
    let socket = daemon.socket.clone();
    common::as_user(user, move || Client::connect(&socket).unwrap())
}

#[test]
fn users_see_their_own_sandboxes() {
    let Some(trees) = open_to_users("") else {
        return;
    };
    for name in ["agents/mine", "agents/other"] {
        let id = trees.cgroup(name, "");
        trees.sandbox(id, true, 5);
    }
    std::os::unix::fs::chown(trees.path("cgroup/agents/mine"), Some(USER), None).unwrap();
    let daemon = Daemon::start(&trees);
    let names = |client: &mut Client| -> Vec<String> {
        let list = client.list().unwrap();
        let mut names: Vec<String> = list
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["cgroup"].as_str().unwrap().to_owned())
            .collect();
        names.sort();
        names
    };
    daemon.until("both are known", |root| names(root).len() == 2);
    let mut user = client_of(USER, &daemon);
    assert_eq!(names(&mut user), ["/agents/mine"]);
    assert_eq!(status(&mut user, "/agents/mine")["cgroup"], "/agents/mine");
    let other = user.status(Some("/agents/other".as_ref())).unwrap_err();
    assert!(other.to_string().contains("belongs to uid 0"), "{other}");
    // A directory is given to another user, and its sandbox with it.
    let given = trees.path("cgroup/agents/other");
    std::os::unix::fs::chown(given, Some(USER), None).unwrap();
    assert_eq!(names(&mut user), ["/agents/mine", "/agents/other"]);
    // That of the host is for everyone.
    assert!(user.status(None).unwrap()["host"].is_object());
    assert_eq!(
        status(&mut daemon.client(), "/agents/mine")["cgroup"],
        "/agents/mine"
    );
    daemon.end();
}

/// What sandboxes of others need is not told by whether there is room for one more.
#[test]
fn users_are_admitted_by_what_their_own_need() {
    let more = format!("[[tenant]]\nuid = {USER}\ntree = \"/agents\"\ndomain = \"t\"\n");
    let Some(trees) = open_to_users(&more) else {
        return;
    };
    let id = trees.cgroup("agents/other", "");
    trees.sandbox(id, true, 5);
    trees.write("cgroup/agents/other/memory.current", "1500000000\n");
    trees.write(
        "proc/meminfo",
        "MemTotal: 2000000 kB\nMemAvailable: 1000000 kB\nSwapCached: 0 kB\nSwapFree: 0 kB\n",
    );
    let daemon = Daemon::start(&trees);
    let answer = |client: &mut Client| -> String {
        let answer = client.admit(None, None).unwrap();
        serde_json::to_value(answer).unwrap()["answer"].to_string()
    };
    daemon.until("its size is known", |root| answer(root) != "\"yes\"");
    assert_eq!(answer(&mut client_of(USER, &daemon)), "\"yes\"");
    daemon.end();
}
