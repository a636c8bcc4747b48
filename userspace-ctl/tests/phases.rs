// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `agentzip phase`, which takes memory out, and `agentzip restore`, which brings it back, on a fake machine.

mod common;

use agentzip_ctl::commands::{phase, restore};
use agentzip_ctl::reclaim::{Options, Stop};
use agentzip_uapi::Phase;
use common::{at, contains, machine, message};

#[test]
fn waiting_reclaims() {
    let (trees, state, context) = machine();
    let id = trees.cgroup("sb", "");
    trees.sandbox(id, true, 0);
    let report = phase::phase(
        &context,
        &at("sb"),
        Phase::Waiting,
        Some(&Options::default()),
    )
    .unwrap();
    assert_eq!(state.calls(), [format!("sandbox_phase {id} waiting")]);
    contains(&trees.read("cgroup/sb/memory.reclaim"), &["swappiness=max"]);
    let reclaimed = report.reclaimed.as_ref().unwrap();
    assert_eq!(reclaimed.memory.stop, Stop::Empty);
    assert_eq!(reclaimed.pages_stored, Some(0));
    assert_eq!(reclaimed.pages_kept, Some(0));
    contains(
        &report.to_string(),
        &["phase waiting", "in swap", "nothing left to take"],
    );
}

#[test]
fn other_phases_and_no_reclaim_leave_memory_alone() {
    let (trees, state, context) = machine();
    let id = trees.cgroup("sb", "");
    phase::phase(&context, &at("sb"), Phase::Waiting, None).unwrap();
    phase::phase(
        &context,
        &at("sb"),
        Phase::Running,
        Some(&Options::default()),
    )
    .unwrap();
    assert_eq!(trees.read("cgroup/sb/memory.reclaim"), "");
    assert_eq!(
        state.calls(),
        [
            format!("sandbox_phase {id} waiting"),
            format!("sandbox_phase {id} running")
        ]
    );
}

#[test]
fn memory_that_would_not_go_is_reported_with_its_cause() {
    let (trees, _state, context) = machine();
    trees.cgroup("sb", "");
    trees.write("cgroup/sb/memory.swap.max", "0\n");
    trees.write(
        "cgroup/sb/memory.stat",
        "anon 9000000\nshmem 0\nswapcached 0\ninactive_anon 9000000\nactive_anon 0\nunevictable 0\n",
    );
    let report = phase::phase(
        &context,
        &at("sb"),
        Phase::Waiting,
        Some(&Options::default()),
    )
    .unwrap();
    contains(
        &report.to_string(),
        &["8.6 MiB would not go", "may not swap"],
    );
}

#[test]
fn a_refused_phase_reclaims_nothing() {
    let (trees, state, context) = machine();
    trees.cgroup("sb", "");
    state.errno.set(libc::ENOENT);
    let result = phase::phase(
        &context,
        &at("sb"),
        Phase::Waiting,
        Some(&Options::default()),
    );
    contains(&message(result), &["phase /sb", "not a sandbox"]);
    assert_eq!(trees.read("cgroup/sb/memory.reclaim"), "");
}

#[test]
fn restore_finds_the_swapped_pages_of_the_subtree() {
    let (trees, state, context) = machine();
    let id = trees.cgroup("sb", "10\n");
    trees.cgroup("sb/in", "11\n");
    // Pages 0x10..0x30 are the heap, 0x40..0x48 a file; 0x50 is shared and left alone.
    trees.process(10, 'S', &[0x10, 0x11, 0x20, 0x50]);
    trees.process(11, 'S', &[0x41]);
    let report = restore::restore(&context, &at("sb")).unwrap();
    assert_eq!(
        state.calls(),
        [
            format!("sandbox_phase {id} resuming"),
            "will_need 10 10000-12000 20000-21000".to_owned()
        ]
    );
    assert_eq!((report.pages.processes, report.pages.exited), (2, 0));
    assert_eq!(report.pages.pages_asked, 4);
    // Of the file page only /proc/PID/mem was read, which changes nothing in the fake pagemap.
    assert_eq!(
        (report.pages.pages_still_swapped, report.pages.pages_failed),
        (1, 0)
    );
    contains(
        &report.to_string(),
        &["3 of 4 pages back (16.0 KiB)", "1 still swapped out"],
    );
}

#[test]
fn restore_survives_processes_that_exit() {
    let (trees, state, context) = machine();
    trees.cgroup("sb", "10\n11\n12\n0\n");
    trees.process(10, 'S', &[0x10]);
    trees.process(12, 'S', &[0x10]);
    state.exited.set(12);
    // 11 has no files any more.
    let report = restore::restore(&context, &at("sb")).unwrap();
    assert_eq!((report.pages.processes, report.pages.exited), (3, 2));
    contains(&report.to_string(), &["1 process of another pid namespace"]);
    state.will_need_errno.set(libc::ESRCH);
    trees.process(10, 'S', &[0x10]);
    let report = restore::restore(&context, &at("sb")).unwrap();
    assert_eq!(report.pages.exited, 3);
}

#[test]
fn restore_stops_at_a_memory_limit() {
    let (trees, state, context) = machine();
    trees.cgroup("sb", "10\n");
    trees.process(10, 'S', &[0x10]);
    trees.write("cgroup/sb/memory.max", "1000000\n");
    let report = restore::restore(&context, &at("sb")).unwrap();
    assert!(report.pages.stopped_at_limit);
    assert_eq!(report.pages.pages_still_swapped, 1);
    assert_eq!(state.calls().len(), 1);
    contains(&report.to_string(), &["raise the limit"]);
}

#[test]
fn restore_needs_privilege() {
    let (trees, state, context) = machine();
    trees.cgroup("sb", "10\n");
    trees.process(10, 'S', &[0x10]);
    state.will_need_errno.set(libc::EPERM);
    contains(
        &message(restore::restore(&context, &at("sb"))),
        &["run as root"],
    );
}

#[test]
fn restore_of_a_detached_sandbox_goes_on() {
    let (trees, state, context) = machine();
    let id = trees.cgroup("sb", "");
    state.errno.set(libc::ENOENT);
    contains(
        &message(restore::restore(&context, &at("sb"))),
        &["not a sandbox"],
    );
    trees.sandbox(id, false, 4);
    let report = restore::restore(&context, &at("sb")).unwrap();
    contains(&report.to_string(), &["warning:", "detached before"]);
}
