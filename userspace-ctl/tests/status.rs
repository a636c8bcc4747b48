// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `agentzip status` on a fake machine, for root and for others.

mod common;

use agentzip_ctl::commands::status;
use agentzip_ctl::Context;
use common::{contains, machine, message, Trees};

#[test]
fn status_as_text_and_as_json() {
    let (trees, _state, context) = machine();
    let id = trees.cgroup("agents/sb1", "");
    trees.sandbox(id, true, 100);
    trees.template("base", "default");
    trees.counters("sysfs/stats", 100);
    trees.write("sysfs/stats/memory_arenas", "4096\n");
    trees.write("sysfs/stats/memory_total", "8192\n");
    let report = status::status(&context).unwrap();
    contains(
        &report.to_string(),
        &[
            "AgentZip: armed, stores on; ABI 3",
            "Store: 100 entries (400.0 KiB) in 8.0 KiB, ratio 50.0",
            "arenas            4.0 KiB   50.0%",
            "4.0 KiB of at most max in the first three",
            "delta         100  100.0%  1000 B  100.0%    10.0",
            "/agents/sb1",
            "base   default  base              1           7  12.0 KiB  8.0 KiB",
        ],
    );
    assert_eq!(report.warnings, Vec::<String>::new());
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["module"]["armed"], true);
    assert_eq!(json["memory"]["total"], 8192);
    assert_eq!(json["store"]["representations"][2]["name"], "delta");
    assert_eq!(json["store"]["representations"][2]["pages"], 100);
    assert_eq!(json["sandboxes"][0]["cgroup"], "/agents/sb1");
    assert_eq!(json["sandboxes"][0]["cgroup_id"], id);
    assert_eq!(json["sandboxes"][0]["pages"]["entries"], 100);
    assert_eq!(json["sandboxes"][0]["arena_bytes"], 4096);
    assert_eq!(json["sandboxes"][0]["max_bytes"], serde_json::Value::Null);
    assert_eq!(json["templates"][0]["pages_referenced"], 300);
    assert_eq!(json["templates"][0]["pages_indexed"], 320);
    assert_eq!(json["groups"][0]["references"], 7);
    assert_eq!(json["groups"][0]["sandboxes"], 1);
}

#[test]
fn status_counts_what_a_group_shares_once() {
    let (trees, _state, context) = machine();
    for (id, template) in [(1001, "base"), (1002, "base"), (1003, "other")] {
        trees.sandbox(id, true, 1);
        let file = format!("sysfs/sandboxes/{id}/template");
        trees.write(&file, &format!("{template}\n"));
    }
    let groups = status::status(&context).unwrap().groups;
    let found: Vec<_> = groups
        .iter()
        .map(|g| (g.template.as_str(), g.sandboxes, g.references))
        .collect();
    assert_eq!(found, [("base", 2, 7), ("other", 1, 7)]);
}

#[test]
fn status_says_which_file_is_wrong() {
    let (trees, _state, context) = machine();
    trees.write("sysfs/stats/loads", "many\n");
    contains(
        &message(status::status(&context)),
        &["sysfs/stats/loads: expected one number, found \"many\""],
    );
    trees.write("sysfs/max_bytes", "much\n");
    contains(
        &message(status::status(&context)),
        &["sysfs/max_bytes: expected a number or \"max\", found \"much\""],
    );
    std::fs::remove_dir_all(trees.path("sysfs")).unwrap();
    contains(
        &message(status::status(&context)),
        &["load the module: insmod agentzip.ko"],
    );
}

/// Needs root, to be another user.
#[test]
fn others_than_root_see_the_sums_only() {
    use std::os::unix::fs::PermissionsExt;
    const USER: u32 = 123_456;
    if !rustix::process::getuid().is_root() {
        eprintln!("not tested: we are not root");
        return;
    }
    let trees = Trees::new();
    trees.template("python", "default");
    let id = trees.cgroup("sb", "");
    trees.sandbox(id, true, 5);
    let allow = |path: std::path::PathBuf, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    allow(trees.path(""), 0o755);
    let seen = |trees: &Trees| {
        let paths = trees.paths();
        common::as_user(USER, move || {
            let report = status::status(&Context::new(&paths)).unwrap();
            (
                report.sandboxes.0.len(),
                report.templates.0.len(),
                report.hidden,
                report.to_string(),
            )
        })
    };
    let (sandboxes, templates, hidden, text) = seen(&trees);
    assert_eq!((sandboxes, templates, hidden), (1, 1, false), "{text}");
    for directory in [
        format!("sysfs/sandboxes/{id}"),
        "sysfs/templates/python".to_owned(),
    ] {
        for entry in std::fs::read_dir(trees.path(&directory)).unwrap() {
            allow(entry.unwrap().path(), 0o640);
        }
    }
    let (sandboxes, templates, hidden, text) = seen(&trees);
    assert_eq!((sandboxes, templates, hidden), (0, 0, true), "{text}");
    assert!(text.contains("shown to root only"), "{text}");
    assert!(text.contains("Store: "), "{text}");
}
