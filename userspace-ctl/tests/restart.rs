// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The real daemon on a fake machine, ended, killed and started again: what is found then, what is given back, and
//! what was said meanwhile.

mod common;

use std::time::Duration;

use common::daemon::{configure, no_module, status, tag, xattrs, Daemon};
use common::Trees;
use rustix::fs::{setxattr, XattrFlags};

#[test]
fn what_a_killed_daemon_held_is_given_back() {
    let trees = Trees::new();
    let id = trees.cgroup("agents/sb1", "");
    trees.sandbox(id, true, 5);
    trees.write(&format!("sysfs/sandboxes/{id}/phase"), "waiting\n");
    trees.cgroup("holder", "");
    trees.write("cgroup/holder/memory.swap.max", "12345\n");
    trees.write("cgroup/agents/sb1/cgroup.freeze", "1\n");
    // Nobody knows this one any more.
    trees.cgroup("elsewhere/sb2", "");
    trees.write("cgroup/elsewhere/sb2/cgroup.freeze", "1\n");
    trees.write("cgroup/elsewhere/sb2/memory.swap.max", "0\n");
    let holder = trees.path("cgroup/holder");
    configure(&trees, "");
    let text = trees.read("agentzip.toml");
    trees.write("agentzip.toml", &format!("holders = [{holder:?}]\n{text}"));
    let sandbox = trees.path("cgroup/agents/sb1");
    // Where notes cannot be written, none is lost either.
    let noted = setxattr(sandbox, c"trusted.agentzip.held", b"1", XattrFlags::empty()).is_ok();
    let other = trees.path("cgroup/elsewhere/sb2");
    if noted {
        setxattr(&other, c"trusted.agentzip.held", b"1", XattrFlags::empty()).unwrap();
        setxattr(
            &other,
            c"trusted.agentzip.swap_max",
            b"777",
            XattrFlags::empty(),
        )
        .unwrap();
    }
    let daemon = Daemon::start(&trees);
    assert_eq!(trees.read("cgroup/holder/memory.swap.max"), "0");
    daemon.until_state("/agents/sb1", "compressed");
    if noted {
        assert_eq!(trees.read("cgroup/agents/sb1/cgroup.freeze"), "0");
        assert_eq!(trees.read("cgroup/elsewhere/sb2/cgroup.freeze"), "0");
        assert_eq!(trees.read("cgroup/elsewhere/sb2/memory.swap.max"), "777");
    }
    daemon.kill();
    let daemon = Daemon::start(&trees);
    daemon.until_state("/agents/sb1", "compressed");
    daemon.end();
    if noted {
        assert_eq!(trees.read("cgroup/holder/memory.swap.max"), "12345");
    }
}

/// What was taken before it began counts when a sandbox wakes: a storm after a restart is one, too. And what
/// it froze goes on, if not at the first attempt.
#[test]
fn a_storm_after_a_restart_is_held_back() {
    let trees = Trees::new();
    let id = trees.cgroup("agents/sb1", "");
    trees.sandbox(id, true, 5);
    trees.write(&format!("sysfs/sandboxes/{id}/phase"), "waiting\n");
    trees.write("cgroup/agents/sb1/cgroup.freeze", "0\n");
    trees.write("cgroup/agents/sb1/memory.swap.current", "1000000000\n");
    let memory = |available: u64| {
        let text = format!(
            "MemTotal: 2000000 kB\nMemAvailable: {available} kB\nSwapCached: 0 kB\nSwapFree: 9000000 kB\n"
        );
        trees.write("proc/meminfo", &text);
    };
    memory(300_000);
    configure(
        &trees,
        "[schedule]\nperiod = \"50ms\"\nhold_interactive = \"24h\"\n",
    );
    let daemon = Daemon::start(&trees);
    let mut client = daemon.client();
    let freeze = "cgroup/agents/sb1/cgroup.freeze";
    client
        .hint("/agents/sb1", &"first-token".parse().unwrap())
        .unwrap();
    daemon.until("held", |_| trees.read(freeze) == "1");
    assert_eq!(status(&mut client, "/agents/sb1")["held"], true);
    // A file that cannot be written.
    std::fs::remove_file(trees.path(freeze)).unwrap();
    std::fs::create_dir(trees.path(freeze)).unwrap();
    memory(1_900_000);
    daemon.until("let go on", |client| {
        status(client, "/agents/sb1")["held"] == false
    });
    daemon.until("failed", |_| {
        daemon.log().contains("cannot let /agents/sb1")
    });
    std::fs::remove_dir(trees.path(freeze)).unwrap();
    trees.write(freeze, "1\n");
    daemon.until("let go on after all", |_| trees.read(freeze) == "0");
}

#[test]
fn killed_again_and_again_under_load() {
    const SANDBOXES: usize = 40;
    let trees = Trees::new();
    if !xattrs(&trees) {
        return;
    }
    no_module(&trees);
    configure(&trees, "");
    for number in 0..SANDBOXES {
        let name = format!("agents/sb{number}");
        trees.cgroup(&name, "");
        tag(&trees, &name, "template", "base");
    }
    let hints = [
        ("llm-wait;expect=9000", "compressed"),
        ("first-token", "resuming"),
        ("tool-start;tool=x", "running"),
        ("done", "terminated"),
    ];
    for round in 0..20 {
        let daemon = Daemon::start(&trees);
        for number in 0..SANDBOXES {
            let (hint, _) = hints[(number * 7 + round) % hints.len()];
            tag(&trees, &format!("agents/sb{number}"), "phase", hint);
        }
        // In the middle of it.
        std::thread::sleep(Duration::from_millis(round as u64 % 10));
        daemon.kill();
        let daemon = Daemon::start(&trees);
        let list = daemon.client().list().unwrap();
        for number in 0..SANDBOXES {
            let name = format!("/agents/sb{number}");
            let (_, state) = hints[(number * 7 + round) % hints.len()];
            let listed = list
                .as_array()
                .unwrap()
                .iter()
                .find(|one| one["cgroup"] == name.as_str());
            assert_eq!(listed.unwrap()["state"], state, "{name}: {}", daemon.log());
        }
    }
}

/// Told while no daemon was there, and heard before anything is taken by the phase of before.
#[test]
fn a_tool_that_began_meanwhile_is_left_alone() {
    let trees = Trees::new();
    if !xattrs(&trees) {
        return;
    }
    configure(&trees, "");
    for number in 0..20 {
        let cgroup = format!("agents/sb{number}");
        let id = trees.cgroup(&cgroup, "");
        trees.sandbox(id, true, 5);
        trees.write(&format!("sysfs/sandboxes/{id}/phase"), "waiting\n");
        tag(&trees, &cgroup, "template", "python");
        tag(&trees, &cgroup, "phase", "tool-start;tool=make");
    }
    let daemon = Daemon::start(&trees);
    for number in 0..20 {
        daemon.until_state(&format!("/agents/sb{number}"), "running");
    }
    let work = daemon.client().status(None).unwrap()["work"].clone();
    daemon.end();
    assert_eq!(work["jobs"], 0, "{work}");
    for number in 0..20 {
        let taken = trees.read(&format!("cgroup/agents/sb{number}/memory.reclaim"));
        assert_eq!(taken.trim(), "", "sb{number}");
    }
}

#[test]
fn hints_while_no_daemon_is_there_count_and_old_ones_do_not() {
    let trees = Trees::new();
    if !xattrs(&trees) {
        return;
    }
    configure(&trees, "");
    let mut ids = Vec::new();
    for number in 1..=2 {
        let name = format!("agents/sb{number}");
        let id = trees.cgroup(&name, "");
        trees.sandbox(id, true, 5);
        tag(&trees, &name, "template", "base");
        tag(&trees, &name, "phase", "llm-wait;expect=60000");
        ids.push(id);
    }
    let phase = |number: usize| trees.read(&format!("sysfs/sandboxes/{}/phase", ids[number - 1]));
    let daemon = Daemon::start(&trees);
    daemon.until_state("/agents/sb1", "compressed");
    daemon.until_state("/agents/sb2", "compressed");
    // The second goes on by the socket.
    daemon
        .client()
        .hint("/agents/sb2", &"tool-start".parse().unwrap())
        .unwrap();
    daemon.until_state("/agents/sb2", "running");
    daemon.kill();
    tag(&trees, "agents/sb1", "phase", "tool-start;tool=x");
    let noted = {
        let path = trees.path("cgroup/agents/sb2");
        rustix::fs::getxattr(path, c"trusted.agentzip.outdated", &mut [0; 99]).is_ok()
    };
    let daemon = Daemon::start(&trees);
    daemon.until_state("/agents/sb1", "running");
    assert_eq!(phase(1).trim(), "running");
    if noted {
        assert_eq!(phase(2).trim(), "running");
        assert_eq!(
            status(&mut daemon.client(), "/agents/sb2")["state"],
            "running"
        );
    }
    // The same text, set again, is news.
    tag(&trees, "agents/sb2", "phase", "llm-wait;expect=60000");
    daemon.until_state("/agents/sb2", "compressed");
}
