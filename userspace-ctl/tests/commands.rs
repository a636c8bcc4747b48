// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The commands on a fake machine.

mod common;

use agentzip_ctl::commands::arm::KernelBtf;
use agentzip_ctl::commands::{arm, phase, restore, sandbox, status, template};
use agentzip_ctl::reclaim::{Options, Stop};
use agentzip_ctl::Context;
use agentzip_uapi::{Phase, ABI_VERSION};
use common::{add_process, at, contains, machine, message, name, plain, Trees, BTF, BTF_DIGEST};

#[test]
fn arm_sets_zswap_up_without_switching_it_on() {
    let (trees, state, context) = machine();
    let report = arm::arm(&context, false).unwrap();
    assert_eq!(state.calls(), ["arm"]);
    assert_eq!(report.warnings, Vec::<String>::new());
    assert_eq!(report.to_string(), "armed\n");
    // Written back (the newline shows it), never Y.
    assert_eq!(trees.read("zswap/enabled"), "N");
}

#[test]
fn arm_leaves_an_enabled_zswap_alone() {
    let (trees, _state, context) = machine();
    trees.write("zswap/enabled", "Y\n");
    arm::arm(&context, false).unwrap();
    assert_eq!(trees.read("zswap/enabled"), "Y\n");
}

#[test]
fn arm_twice_and_after_drain() {
    let (_trees, state, context) = machine();
    state.armed.set(true);
    assert_eq!(
        arm::arm(&context, false).unwrap().to_string(),
        "already armed\n"
    );
    assert_eq!(state.calls(), Vec::<String>::new());
    state.draining.set(true);
    // The module ends draining and says that it was armed.
    state.errno.set(libc::EALREADY);
    assert_eq!(arm::arm(&context, false).unwrap().to_string(), "armed\n");
    assert_eq!(state.calls(), ["arm"]);
}

#[test]
fn arm_warns() {
    let (trees, state, context) = machine();
    state.enabled.set(false);
    trees.write("proc/sys/vm/page-cluster", "3\n");
    trees.write("proc/swaps", "Filename Type Size Used Priority\n");
    std::fs::remove_file(trees.path("zswap/enabled")).unwrap();
    let text = arm::arm(&context, false).unwrap().to_string();
    contains(
        &text,
        &[
            "fix: sysctl vm.page-cluster=0",
            "no swap is in use",
            "large folios",
            "echo 1 > /sys/kernel/agentzip/enabled",
        ],
    );
}

#[test]
fn arm_and_disarm_explain_refusals() {
    let (trees, state, context) = machine();
    state.errno.set(libc::EBUSY);
    contains(
        &message(arm::arm(&context, false)),
        &["arm module", "live patch", "enabled_functions"],
    );
    state.armed.set(true);
    trees.write("sysfs/stats/entries", "7\n");
    contains(
        &message(arm::disarm(&context)),
        &["the store still holds 7 entries", "agentzip drain"],
    );
    state.errno.set(libc::EPERM);
    contains(&message(arm::disarm(&context)), &["run as root"]);
    state.abi_version.set(9);
    contains(
        &message(arm::arm(&context, false)),
        &["version 9", &format!("controller version {ABI_VERSION}")],
    );
}

/// SHA-256 of nothing.
const OTHER_DIGEST: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

#[test]
fn arm_compares_the_kernels() {
    let (trees, state, context) = machine();
    let report = arm::arm(&context, false).unwrap();
    assert_eq!(report.kernel_btf, Some(KernelBtf::Equal));
    assert_eq!(report.to_string(), "armed\n");
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["kernel_btf"], "equal");
    // An armed module is not looked at again, nor one that is to be disarmed.
    trees.write("btf", "");
    state.armed.set(true);
    for report in [arm::arm(&context, false), arm::disarm(&context)] {
        let json = serde_json::to_value(report.unwrap()).unwrap();
        assert_eq!(json["kernel_btf"], serde_json::Value::Null);
    }
    state.draining.set(true);
    let report = arm::arm(&context, false).unwrap();
    assert_eq!(report.kernel_btf, None);
}

#[test]
fn arm_refuses_a_module_for_another_kernel() {
    let (trees, state, context) = machine();
    trees.write("btf", "");
    contains(
        &message(arm::arm(&context, false)),
        &[
            "arm module: Exec format error",
            "built for another kernel",
            &format!("that one has SHA-256 {BTF_DIGEST}"),
            &format!("{} of this one {OTHER_DIGEST}", trees.path("btf").display()),
            "structures or functions",
            "make modules KDIR=",
            "agentzip arm --force",
        ],
    );
    // Nothing was touched.
    assert_eq!(state.calls(), Vec::<String>::new());
    assert_eq!(trees.read("zswap/enabled"), "N\n");

    let report = arm::arm(&context, true).unwrap();
    assert_eq!(state.calls(), ["arm"]);
    assert_eq!(report.kernel_btf, Some(KernelBtf::Different));
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["kernel_btf"], "different");
    contains(
        &report.to_string(),
        &[
            "armed\n",
            "warning: the module was built for another kernel",
            BTF_DIGEST,
            OTHER_DIGEST,
            "armed by force",
        ],
    );
}

#[test]
fn arm_says_when_kernels_cannot_be_compared() {
    let (trees, _state, context) = machine();
    let unknown = |why: &str| {
        let report = arm::arm(&context, false).unwrap();
        assert_eq!(report.kernel_btf, Some(KernelBtf::Unknown));
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["kernel_btf"], "unknown");
        contains(
            &report.to_string(),
            &["armed\n", "warning: nobody can tell", why],
        );
    };
    std::fs::remove_file(trees.path("btf")).unwrap();
    unknown("the kernel has no BTF");
    trees.write("sysfs/kernel_btf", "none\n");
    unknown("recorded no BTF");
    trees.write("btf", BTF);
    unknown("recorded no BTF");
    // An older module.
    std::fs::remove_file(trees.path("sysfs/kernel_btf")).unwrap();
    unknown("recorded no BTF");
    // What is no digest is not taken for a missing one.
    trees.write("sysfs/kernel_btf", "abc\n");
    contains(
        &message(arm::arm(&context, false)),
        &["cannot understand", "kernel_btf", "64 hexadecimal digits"],
    );
    // By force they are not compared.
    let report = arm::arm(&context, true).unwrap();
    assert_eq!(report.kernel_btf, Some(KernelBtf::Unknown));
    contains(
        &report.to_string(),
        &["armed\n", "64 hexadecimal digits", "armed by force"],
    );
}

#[test]
fn disarm_what_is_not_armed() {
    let (_trees, state, context) = machine();
    assert_eq!(
        arm::disarm(&context).unwrap().to_string(),
        "already disarmed\n"
    );
    assert_eq!(state.calls(), Vec::<String>::new());
}

#[test]
fn template_from_a_process() {
    let (trees, state, context) = machine();
    trees.process(77, 'T', &[]);
    trees.cgroup("holders", "77\n");
    trees.write("cgroup/holders/memory.swap.max", "0\n");
    trees.write("proc/77/cgroup", "0::/holders\n");
    let added = add_process(&context, 77, None).unwrap();
    assert_eq!(state.calls(), ["template_add 77 base -"]);
    let ranges: Vec<(u64, u64)> = state
        .ranges
        .borrow()
        .iter()
        .map(|r| (r.start, r.end))
        .collect();
    assert_eq!(ranges, [(0x10000, 0x30000), (0x40000, 0x48000)]);
    assert_eq!(added.warnings, Vec::<String>::new());
    contains(
        &added.to_string(),
        &[
            "template base (domain default) from process 77, 2 ranges",
            "referenced     30  120.0 KiB",
        ],
    );
}

#[test]
fn template_warns_of_a_bad_holder() {
    let (trees, state, context) = machine();
    trees.process(77, 'S', &[]);
    let id = trees.cgroup("sb", "77\n");
    trees.sandbox(id, true, 0);
    trees.write("proc/77/cgroup", "0::/sb\n");
    let added = add_process(&context, 77, Some("tenant")).unwrap();
    assert_eq!(state.calls(), ["template_add 77 base tenant"]);
    contains(
        &added.to_string(),
        &[
            "not stopped (state S)",
            "kill -STOP 77",
            "lives in the sandbox /sb",
            "/sb/memory.swap.max",
        ],
    );
}

#[test]
fn template_add_explains_refusals() {
    let (trees, state, context) = machine();
    contains(
        &message(add_process(&context, 5, None)),
        &[
            "template add base from process 5",
            "there is no such process",
        ],
    );
    trees.process(77, 'T', &[]);
    state.errno.set(libc::EEXIST);
    contains(
        &message(add_process(&context, 77, None)),
        &[
            "a template of this name exists",
            "agentzip template rm base",
        ],
    );
    trees.write("proc/78/maps", "");
    contains(
        &message(add_process(&context, 78, None)),
        &["process 78: has no private writable memory"],
    );
}

#[test]
fn template_rm_explains_refusals() {
    let (trees, state, context) = machine();
    state.errno.set(libc::ENOENT);
    contains(
        &message(template::remove(&context, &name("x"))),
        &["there are no templates yet"],
    );
    trees.template("base", "default");
    trees.template("other", "default");
    contains(
        &message(template::remove(&context, &name("x"))),
        &[
            "template rm x",
            "no such template; known templates: base, other",
        ],
    );
    trees.sandbox(412, true, 3);
    state.errno.set(libc::EBUSY);
    state.users.set(Some(1));
    contains(
        &message(template::remove(&context, &name("base"))),
        &["in use by 1 sandbox (id:412)", "agentzip sandbox detach"],
    );
}

#[test]
fn template_rm_waits_for_sandboxes_on_their_way_out() {
    let (trees, state, context) = machine();
    trees.sandbox(412, false, 0);
    state.errno.set(libc::EBUSY);
    state.failures.set(Some(2));
    template::remove(&context, &name("base")).unwrap();
    assert_eq!(state.calls().len(), 3);
}

#[test]
fn attach_a_sandbox() {
    let (trees, state, context) = machine();
    let id = trees.cgroup("agents/sb1", "");
    let base = name("base");
    let group = name("g");
    let request = sandbox::Request {
        group: Some(&group),
        ..plain("agents/sb1", &base)
    };
    let attached = sandbox::attach(&context, &request).unwrap();
    assert_eq!(state.calls(), ["sandbox_attach base g -"]);
    assert_eq!(attached.cgroup_id, id);
    assert_eq!(
        attached.to_string(),
        format!("sandbox /agents/sb1 (id {id}) attached, template base\n")
    );
}

#[test]
fn attach_a_sensitive_sandbox() {
    let (trees, state, context) = machine();
    let id = trees.cgroup("agents/sb1", "");
    let base = name("base");
    let request = sandbox::Request {
        sensitive: true,
        ..plain("agents/sb1", &base)
    };
    sandbox::attach(&context, &request).unwrap();
    assert_eq!(state.calls(), ["sandbox_attach base - - sensitive"]);
    let group = name("g");
    let request = sandbox::Request {
        group: Some(&group),
        ..request
    };
    contains(
        &message(sandbox::attach(&context, &request)),
        &["sandbox attach /agents/sb1", "is in no group"],
    );
    assert_eq!(state.calls().len(), 1, "the module was not asked");

    trees.sandbox(id, true, 7);
    let file = format!("sysfs/sandboxes/{id}/sensitive");
    let shown = || sandbox::list(&context).unwrap().to_string();
    assert!(!shown().contains("(sensitive)"), "{}", shown());
    trees.write(&file, "1\n");
    assert!(shown().contains("(sensitive)"), "{}", shown());
}

#[test]
fn attach_explains_refusals() {
    let (trees, state, context) = machine();
    let outer = trees.cgroup("agents", "");
    trees.cgroup("agents/sb1", "");
    trees.template("base", "tenant-7");
    let base = name("base");
    let request = plain("agents/sb1", &base);
    let refused = |errno| {
        state.errno.set(errno);
        message(sandbox::attach(&context, &request))
    };
    contains(
        &refused(libc::ENOENT),
        &["no template base; known templates: base"],
    );
    contains(
        &refused(libc::EPERM),
        &["template base belongs to domain tenant-7, not default"],
    );
    contains(&refused(libc::EBADF), &["is not a directory of cgroup v2"]);
    contains(&refused(libc::EEXIST), &["see: agentzip sandbox list"]);
    trees.sandbox(outer, true, 0);
    contains(
        &refused(libc::EEXIST),
        &["sandboxes do not nest, and /agents is one"],
    );
    contains(&refused(libc::ENOTTY), &["does not know this command"]);
    contains(
        &refused(libc::EOPNOTSUPP),
        &["agents/cgroup.subtree_control"],
    );
    contains(
        &refused(libc::EBUSY),
        &["another template, group or domain"],
    );
    assert_eq!(
        refused(libc::ENOSPC),
        "sandbox attach /agents/sb1: No space left on device (os error 28): \
         the module holds as many sandboxes as it can; detach some"
    );
}

#[test]
fn attach_warns_when_the_sandbox_may_not_swap() {
    let (trees, _state, context) = machine();
    trees.cgroup("agents/sb1", "");
    trees.write("cgroup/agents/memory.swap.max", "0\n");
    let base = name("base");
    let request = plain("agents/sb1", &base);
    let text = sandbox::attach(&context, &request).unwrap().to_string();
    contains(&text, &["may not swap", "agents/memory.swap.max"]);
}

#[test]
fn detach_by_path_and_by_id() {
    let (trees, state, context) = machine();
    let id = trees.cgroup("sb", "");
    state.entries.set(1);
    let report = sandbox::detach(&context, &at("sb")).unwrap();
    contains(
        &report.to_string(),
        &["sandbox /sb", "1 entry stay loadable"],
    );
    sandbox::detach(&context, &at("id:99999999")).unwrap();
    assert_eq!(
        state.calls(),
        [
            format!("sandbox_detach {id}"),
            "sandbox_detach 99999999".to_owned()
        ]
    );
    state.errno.set(libc::ENOENT);
    contains(
        &message(sandbox::detach(&context, &at("sb"))),
        &[
            "sandbox detach /sb",
            "not a sandbox; see: agentzip sandbox list",
        ],
    );
    trees.sandbox(id, false, 4);
    contains(
        &message(sandbox::detach(&context, &at("sb"))),
        &["detached before and only holds 4 entries"],
    );
}

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

#[test]
fn lists_show_paths_and_gone_cgroups() {
    let (trees, _state, context) = machine();
    assert_eq!(
        sandbox::list(&context).unwrap().to_string(),
        "no sandboxes\n"
    );
    assert_eq!(
        template::list(&context).unwrap().to_string(),
        "no templates\n"
    );
    let id = trees.cgroup("agents/sb1", "");
    trees.sandbox(id, true, 100);
    trees.sandbox(99_999_999, false, 5);
    trees.template("base", "default");
    let text = sandbox::list(&context).unwrap().to_string();
    contains(
        &text,
        &[
            "/agents/sb1",
            "running",
            "400.0 KiB",
            "10.0",
            "(gone)",
            "detached",
        ],
    );
    contains(
        &template::list(&context).unwrap().to_string(),
        &["base", "process", "300", "80.0 KiB", "none"],
    );
}

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
