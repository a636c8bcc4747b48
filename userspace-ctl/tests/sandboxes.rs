// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `agentzip sandbox` on a fake machine: attaching, detaching and the list, beside that of templates.

mod common;

use agentzip_ctl::commands::{sandbox, template};
use common::{at, contains, machine, message, name, plain};

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
