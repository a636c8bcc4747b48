// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `agentzip arm` and `agentzip disarm` on a fake machine.

mod common;

use agentzip_ctl::commands::arm;
use agentzip_ctl::commands::arm::KernelBtf;
use agentzip_uapi::ABI_VERSION;
use common::{contains, machine, message, BTF, BTF_DIGEST};

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
