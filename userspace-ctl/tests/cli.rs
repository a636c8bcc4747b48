// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The binary as a user meets it: messages, exit codes, help.

mod common;

use std::process::{Command, Output};

use common::Trees;

fn agentzip(trees: &Trees, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_agentzip"))
        .args(arguments)
        .env("AGENTZIP_DEV", trees.path("dev/agentzip"))
        .env("AGENTZIP_SYSFS", trees.path("sysfs"))
        .env("AGENTZIP_CGROUP_ROOT", trees.path("cgroup"))
        .env("AGENTZIP_PROC", trees.path("proc"))
        .env("AGENTZIP_ZSWAP", trees.path("zswap"))
        .env("AGENTZIP_BTF", trees.path("btf"))
        .env("AGENTZIP_SOCKET", trees.path("socket"))
        .output()
        .unwrap()
}

#[track_caller]
fn fails(trees: &Trees, arguments: &[&str], code: i32, parts: &[&str]) {
    let output = agentzip(trees, arguments);
    let text = String::from_utf8(output.stderr).unwrap();
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
    assert_eq!(output.status.code(), Some(code), "{text}");
    assert!(
        text.matches("os error").count() <= 1,
        "twice the same: {text}"
    );
    assert!(output.stdout.is_empty());
}

#[track_caller]
fn prints(trees: &Trees, arguments: &[&str]) -> String {
    let output = agentzip(trees, arguments);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{errors}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn bad_usage() {
    let trees = Trees::new();
    fails(&trees, &[], 2, &["Usage: agentzip"]);
    fails(&trees, &["fly"], 2, &["unrecognized subcommand 'fly'"]);
    fails(
        &trees,
        &["phase", "sb", "sleeping"],
        2,
        &["invalid value 'sleeping'", "running, waiting, resuming"],
    );
    fails(
        &trees,
        &["template", "add", "--pid", "1", "--name", "a/b"],
        2,
        &["invalid value 'a/b'", "a name has 1 to 47 ASCII letters"],
    );
    fails(
        &trees,
        &["template", "add", "--pid", "0", "--name", "a"],
        2,
        &["invalid value '0' for '--pid <PID>'"],
    );
    let add = ["template", "add", "--name", "a"];
    fails(&trees, &add, 2, &["--pid <PID>"]);
    let with = |more: &[&'static str]| [&add[..], more].concat();
    fails(
        &trees,
        &with(&["--pid", "1", "--file", "f"]),
        2,
        &["'--file <FILE>'", "cannot be used with"],
    );
    fails(
        &trees,
        &with(&["--pid", "1", "--offset", "4K"]),
        2,
        &["cannot be used with '--offset <BYTES>'"],
    );
    fails(
        &trees,
        &with(&["--file", "f", "--length", "many"]),
        2,
        &["a number of bytes is"],
    );
    fails(
        &trees,
        &with(&["--pid", "1", "--signature", "12"]),
        2,
        &["64 hexadecimal digits"],
    );
    for (range, problem) in [
        ("1:2", "ADDRESS:LENGTH:OFFSET"),
        ("1:4K:0", "multiples of 4096"),
        ("0:0:0", "empty or too long"),
    ] {
        fails(
            &trees,
            &["sandbox", "ranges", "sb", "--range", range],
            2,
            &[problem],
        );
    }
    fails(
        &trees,
        &["sandbox", "attach", "sb"],
        2,
        &["required", "--template <TEMPLATE>"],
    );
    fails(
        &trees,
        &["limit", "1.5G"],
        2,
        &["invalid value '1.5G'", "a bound is a number of bytes"],
    );
    fails(&trees, &["restore", "id:x"], 2, &["\"x\" is no cgroup id"]);
    fails(&trees, &["restore", ""], 2, &["the path is empty"]);
}

#[test]
fn module_not_loaded() {
    let trees = Trees::new();
    trees.cgroup("sb", "");
    for arguments in [
        &["arm"][..],
        &["disarm"],
        &["drain"],
        &["phase", "sb", "waiting"],
        &["restore", "sb"],
    ] {
        fails(
            &trees,
            arguments,
            1,
            &[
                "cannot open",
                "dev/agentzip",
                "load the module: insmod agentzip.ko",
            ],
        );
    }
    std::fs::remove_dir_all(trees.path("sysfs")).unwrap();
    for arguments in [
        &["status"][..],
        &["sandbox", "list"],
        &["sandbox", "limit", "sb", "1M"],
        &["template", "list"],
        &["dict", "list"],
        &["dict", "show", "--sandbox", "sb"],
        &["limit", "max"],
    ] {
        fails(
            &trees,
            arguments,
            1,
            &["sysfs", "load the module: insmod agentzip.ko"],
        );
    }
}

#[test]
fn a_device_that_is_none() {
    let trees = Trees::new();
    trees.write("dev/agentzip", "");
    fails(
        &trees,
        &["arm"],
        1,
        &["arm module", "does not know this command"],
    );
}

#[test]
fn no_such_cgroup() {
    let trees = Trees::new();
    fails(
        &trees,
        &["sandbox", "attach", "nowhere", "--template", "base"],
        1,
        &["nowhere: no such cgroup", "give a path below"],
    );
    std::fs::create_dir(trees.path("cgroup/plain")).unwrap();
    fails(
        &trees,
        &["phase", "plain", "waiting"],
        1,
        &["plain: not a cgroup v2 directory", "no file cgroup.procs"],
    );
}

#[test]
fn no_such_process() {
    let trees = Trees::new();
    fails(
        &trees,
        &["template", "add", "--pid", "999", "--name", "base"],
        1,
        &[
            "template add base from process 999",
            "there is no such process",
        ],
    );
}

#[test]
fn status_needs_no_device() {
    let trees = Trees::new();
    assert!(prints(&trees, &["status"]).starts_with("AgentZip: armed, stores on; ABI 3"));
    let json: serde_json::Value =
        serde_json::from_str(&prints(&trees, &["status", "--json"])).unwrap();
    assert_eq!(json["module"]["abi_version"], 3);
    assert_eq!(json["sandboxes"], serde_json::json!([]));
    assert_eq!(prints(&trees, &["--json", "template", "list"]), "[]\n");
}

#[test]
fn limits_need_no_device_either() {
    let trees = Trees::new();
    let id = trees.cgroup("sb", "");
    trees.sandbox(id, true, 1);
    assert_eq!(
        prints(&trees, &["limit", "2G"]),
        "store: at most 2.0 GiB, 0 B in use\n"
    );
    let json: serde_json::Value = serde_json::from_str(&prints(
        &trees,
        &["--json", "sandbox", "limit", "sb", "max"],
    ))
    .unwrap();
    assert_eq!(
        json,
        serde_json::json!({"cgroup_id": id, "max_bytes": null, "used_bytes": 4096})
    );
}

#[test]
fn help_has_examples() {
    let trees = Trees::new();
    for (arguments, part) in [
        (
            &["--help"][..],
            "agentzip sandbox attach agents/sb1 --template python",
        ),
        (
            &["phase", "--help"],
            "agentzip phase agents/sb1 waiting --no-reclaim",
        ),
        (
            &["template", "add", "--help"],
            "agentzip template add --pid 1234 --name python",
        ),
        (
            &["template", "add", "--help"],
            "agentzip template add --file /var/lib/vm/snapshot.mem",
        ),
        (&["sandbox", "attach", "--help"], "--group task-9"),
        (
            &["sandbox", "ranges", "--help"],
            "--range 0x7f2300000000:512M:0",
        ),
        (
            &["sandbox", "detach", "--help"],
            "agentzip sandbox detach id:412",
        ),
        (
            &["sandbox", "limit", "--help"],
            "agentzip sandbox limit agents/sb1 64M",
        ),
        (&["arm", "--help"], "--force"),
        (&["arm", "--help"], "jq .kernel_btf"),
        (&["limit", "--help"], "agentzip limit 2G"),
        (&["hint", "--help"], "agentzip hint agents/sb1 first-token"),
        (&["events", "--help"], "agentzip events --json | jq"),
        (&["admit", "--help"], "agentzip admit --bytes 300M"),
        (&["restore", "--help"], "agentzip restore agents/sb1"),
        (&["status", "--help"], "jq .memory.total"),
        (&["drain", "--help"], "agentzip drain --no-swapoff"),
    ] {
        let text = prints(&trees, arguments);
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
    assert!(prints(&trees, &["--version"]).starts_with("agentzip "));
}

#[test]
fn config_check_and_show() {
    let trees = Trees::new();
    let path = trees.path("a.toml");
    let file = path.to_str().unwrap();
    trees.write("a.toml", "[schedule]\nperiod = \"2s\"\n");
    assert_eq!(
        prints(&trees, &["config", "check", "--file", file]),
        format!("{file}: good\n")
    );
    let shown = prints(&trees, &["config", "show", "--file", file]);
    assert!(shown.contains("period = \"2s\""), "{shown}");
    assert!(shown.contains("[profile.interactive]"), "{shown}");
    let json = prints(&trees, &["config", "show", "--file", file, "--json"]);
    assert!(json.contains("\"period\": \"2s\""), "{json}");
    trees.write("a.toml", "[schedule]\n\nperiod = 2\n");
    let expected = format!("{file}:3: schedule.period: invalid type");
    fails(
        &trees,
        &["config", "check", "--file", file],
        1,
        &[&expected],
    );
    fails(&trees, &["config", "show", "--file", file], 1, &[&expected]);
}

#[test]
fn hints_without_a_daemon_reach_the_module() {
    let trees = Trees::new();
    let id = trees.cgroup("agents/sb", "");
    fails(
        &trees,
        &["hint", "agents/sb", "nap"],
        2,
        &["unknown hint \"nap\""],
    );
    fails(
        &trees,
        &["hint", "agents/sb", "first-token"],
        1,
        &[
            "hint /agents/sb",
            "not a sandbox; see: agentzip sandbox list",
        ],
    );
    trees.sandbox(id, true, 0);
    let text = prints(&trees, &["hint", "agents/sb", "llm-wait;expect=9"]);
    assert!(
        text.contains("llm-wait;expect=9, told to the module"),
        "{text}"
    );
    assert!(text.contains("warning: no daemon listens on"), "{text}");
    assert_eq!(
        trees.read(&format!("sysfs/sandboxes/{id}/phase")),
        "waiting"
    );
    let text = prints(&trees, &["hint", &format!("id:{id}"), "idle", "--json"]);
    assert!(text.contains("\"told\": \"nobody\""), "{text}");
    assert_eq!(
        trees.read(&format!("sysfs/sandboxes/{id}/phase")),
        "waiting"
    );
    for command in ["events", "admit"] {
        fails(
            &trees,
            &[command],
            1,
            &["no daemon listens on", "agentzip daemon"],
        );
    }
}
