// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Bounds on memory: setting them, and being warned of them, on a fake machine.

mod common;

use agentzip_ctl::commands::{limit, sandbox, status};
use agentzip_ctl::{Error, Limit};
use common::{machine, plain};

fn message<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    result.unwrap_err().to_string()
}

#[track_caller]
fn contains(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
}

#[test]
fn status_warns_of_a_large_store_and_of_bounds_that_are_near() {
    let (trees, _state, context) = machine();
    let id = trees.cgroup("agents/sb1", "");
    trees.sandbox(id, true, 100);
    trees.sandbox(99_999_999, false, 5);
    let warnings = |context| status::status(context).unwrap().warnings;
    // Of 2000000 kB of memory, 5% are 102400000 bytes.
    trees.write("sysfs/stats/memory_total", "102400000\n");
    trees.write("sysfs/stats/memory_arenas", "4000\n");
    trees.write("sysfs/stats/memory_references", "3000\n");
    trees.write("sysfs/stats/memory_sketches", "1999\n");
    trees.write("sysfs/max_bytes", "10000\n");
    assert_eq!(warnings(&context), Vec::<String>::new());
    trees.write("sysfs/stats/memory_total", "102400001\n");
    trees.write("sysfs/stats/memory_sketches", "2000\n");
    trees.write(&format!("sysfs/sandboxes/{id}/max_bytes"), "4096\n");
    trees.write("sysfs/sandboxes/99999999/max_bytes", "0\n");
    let found = warnings(&context);
    assert_eq!(found.len(), 4, "{found:?}");
    contains(&found[0], &["97.7 MiB", "more than 5.0%", "agentzip limit"]);
    contains(
        &found[1],
        &["the store has 8.8 KiB of at most 9.8 KiB", "agentzip limit"],
    );
    contains(
        &found[2],
        &[
            "sandbox /agents/sb1 has",
            "agentzip sandbox limit /agents/sb1 SIZE",
        ],
    );
    contains(&found[3], &["agentzip sandbox limit id:99999999 SIZE"]);
    contains(
        &status::status(&context).unwrap().to_string(),
        &["warning: the store has"],
    );
}

#[test]
fn a_bound_for_the_store() {
    let (trees, _state, context) = machine();
    trees.write("sysfs/stats/memory_arenas", "4096\n");
    let report = limit::store(&context, Limit(Some(8192))).unwrap();
    assert_eq!(trees.read("sysfs/max_bytes"), "8192");
    assert_eq!(
        report.to_string(),
        "store: at most 8.0 KiB, 4.0 KiB in use\n"
    );
    let report = limit::store(&context, Limit(Some(4096))).unwrap();
    contains(&report.to_string(), &["goes to the swap device"]);
    limit::store(&context, Limit::NONE).unwrap();
    assert_eq!(trees.read("sysfs/max_bytes"), "max");
}

#[test]
fn a_bound_for_a_sandbox() {
    let (trees, _state, context) = machine();
    let id = trees.cgroup("agents/sb1", "");
    let refused = limit::sandbox(
        &context,
        &"agents/sb1".parse().unwrap(),
        Limit(Some(1 << 20)),
    );
    contains(
        &message(refused),
        &["sandbox limit sandbox /agents/sb1", "not a sandbox"],
    );
    trees.sandbox(id, true, 1);
    let report = limit::sandbox(
        &context,
        &"agents/sb1".parse().unwrap(),
        Limit(Some(1 << 20)),
    )
    .unwrap();
    let file = format!("sysfs/sandboxes/{id}/max_bytes");
    assert_eq!(trees.read(&file), "1048576");
    assert_eq!(
        report.to_string(),
        format!("sandbox /agents/sb1 (id {id}): at most 1.0 MiB, 4.0 KiB in use\n")
    );
    // A detached one still has its entries, and its directory may be gone.
    trees.sandbox(99_999_999, false, 5);
    limit::sandbox(&context, &"id:99999999".parse().unwrap(), Limit::NONE).unwrap();
    assert_eq!(trees.read("sysfs/sandboxes/99999999/max_bytes"), "max");
}

#[test]
fn attach_with_a_bound() {
    let (trees, state, context) = machine();
    let id = trees.cgroup("sb", "");
    let base = "base".parse().unwrap();
    let request = sandbox::Request {
        max_bytes: Some(Limit(Some(4 << 20))),
        ..plain("sb", &base)
    };
    // The fake device makes no directory.
    contains(
        &message(sandbox::attach(&context, &request)),
        &["sandbox attach /sb", "it is attached, without the bound"],
    );
    trees.sandbox(id, true, 0);
    sandbox::attach(&context, &request).unwrap();
    assert_eq!(state.calls().len(), 2);
    let file = format!("sysfs/sandboxes/{id}/max_bytes");
    assert_eq!(trees.read(&file), "4194304");
}
