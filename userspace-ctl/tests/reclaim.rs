// SPDX-License-Identifier: GPL-2.0 OR MIT

//! When the real daemon, on a fake machine, takes memory out, what it leaves alone, and what it says where nothing
//! can be taken.

mod common;

use common::daemon::{configure, no_module, python, status, Daemon};
use common::Trees;

/// A sandbox with memory that the fake `memory.reclaim` does not take.
fn with_memory(trees: &Trees, cgroup: &str) {
    trees.cgroup(cgroup, "");
    trees.write(
        &format!("cgroup/{cgroup}/memory.stat"),
        "anon 104857600\nshmem 0\nswapcached 0\ninactive_anon 104857600\nactive_anon 0\n\
         unevictable 0\npgsteal_proactive 0\nswpout_zero 0\n",
    );
    trees.write(&format!("cgroup/{cgroup}/memory.current"), "104857600\n");
}

/// A wait of which too little is left is used once it is late enough, not only with the next round.
#[test]
fn what_waits_for_the_clock_only_does_not_wait_for_a_round() {
    let trees = Trees::new();
    no_module(&trees);
    configure(&trees, "[schedule]\nperiod = \"24h\"\n");
    trees.cgroup("agents/sb1", "");
    let daemon = Daemon::start(&trees);
    let mut client = daemon.client();
    client.attach("/agents/sb1", &python()).unwrap();
    client
        .hint("/agents/sb1", &"llm-wait;expect=1".parse().unwrap())
        .unwrap();
    daemon.until("reclaimed", |_| {
        trees
            .read("cgroup/agents/sb1/memory.reclaim")
            .contains("swappiness=max")
    });
}

#[test]
fn where_nothing_helps_the_file_to_change_is_named() {
    let trees = Trees::new();
    no_module(&trees);
    configure(&trees, "");
    with_memory(&trees, "agents/sb1");
    trees.write("cgroup/agents/memory.swap.max", "0\n");
    trees.write("cgroup/agents/memory.swap.current", "0\n");
    let daemon = Daemon::start(&trees);
    let mut client = daemon.client();
    client.attach("/agents/sb1", &python()).unwrap();
    client
        .hint("/agents/sb1", &"llm-wait;expect=60000".parse().unwrap())
        .unwrap();
    daemon.until("helpless", |client| {
        let view = status(client, "/agents/sb1");
        view["reason"] == "swap_max" && view["queued"] == false
    });
    assert!(daemon
        .log()
        .contains("nothing can be taken from /agents/sb1: memory.swap.max"));
    // Locked memory, when swap is not the reason.
    trees.write("cgroup/agents/memory.swap.max", "max\n");
    client
        .hint("/agents/sb1", &"tool-start".parse().unwrap())
        .unwrap();
    client
        .hint("/agents/sb1", &"llm-wait;expect=60000".parse().unwrap())
        .unwrap();
    daemon.until("helpless", |client| {
        status(client, "/agents/sb1")["reason"] == "unevictable"
    });
}

#[test]
fn under_pressure_tools_are_left_alone() {
    let trees = Trees::new();
    no_module(&trees);
    configure(
        &trees,
        "[schedule]\nperiod = \"50ms\"\nmin_residency = \"1ms\"\n",
    );
    trees.write(
        "proc/meminfo",
        "MemTotal: 2000000 kB\nMemAvailable: 200000 kB\nSwapCached: 0 kB\nSwapFree: 9000000 kB\n",
    );
    for number in 1..=2 {
        with_memory(&trees, &format!("agents/sb{number}"));
    }
    let daemon = Daemon::start(&trees);
    let mut client = daemon.client();
    let attributes = agentzip_ctl::Attributes {
        template: Some("python".parse().unwrap()),
        profile: Some("batch".parse().unwrap()),
        ..Default::default()
    };
    for number in 1..=2 {
        let cgroup = format!("/agents/sb{number}");
        client.attach(&cgroup, &attributes).unwrap();
        client
            .hint(&cgroup, &"tool-start;tool=pytest".parse().unwrap())
            .unwrap();
    }
    client
        .hint("/agents/sb2", &"tool-end".parse().unwrap())
        .unwrap();
    daemon.until("short", |client| {
        client.status(None).unwrap()["host"]["short"] == true
    });
    daemon.until("taken", |_| {
        !trees.read("cgroup/agents/sb2/memory.reclaim").is_empty()
    });
    assert_eq!(trees.read("cgroup/agents/sb1/memory.reclaim"), "");
    trees.write(
        "proc/meminfo",
        "MemTotal: 2000000 kB\nMemAvailable: 1900000 kB\nSwapCached: 0 kB\nSwapFree: 9000000 kB\n",
    );
    daemon.until("enough", |client| {
        client.status(None).unwrap()["host"]["short"] == false
    });
    assert_eq!(trees.read("cgroup/agents/sb1/memory.reclaim"), "");
}

#[test]
fn without_soft_dirty_bits_hot_pages_are_compressed() {
    let trees = Trees::new();
    no_module(&trees);
    configure(
        &trees,
        "[encode]\nhot_skip = true\n[schedule]\nsample_period = \"100ms\"\n",
    );
    with_memory(&trees, "agents/sb1");
    // The fake procfs has no pagemap.
    let daemon = Daemon::start(&trees);
    let mut client = daemon.client();
    client.attach("/agents/sb1", &python()).unwrap();
    assert!(daemon.log().contains("self/pagemap"), "{}", daemon.log());
    client
        .hint("/agents/sb1", &"llm-wait;expect=60000".parse().unwrap())
        .unwrap();
    daemon.until("taken", |_| {
        !trees.read("cgroup/agents/sb1/memory.reclaim").is_empty()
    });
    assert_eq!(status(&mut client, "/agents/sb1")["hot_bytes"], 0);
    daemon.end();
}
