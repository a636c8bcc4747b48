// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Templates from processes and files, ranges and signatures on a fake machine.

mod common;

use std::path::Path;

use agentzip_ctl::commands::{ranges, sandbox, status, template, template_add};
use agentzip_ctl::Signature;
use common::{add_process, at, contains, machine, message, name, plain};
use rustix::fs::{major, minor};

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
fn template_from_a_file() {
    let (trees, state, context) = machine();
    trees.write("snapshot", &"x".repeat(10_000));
    let path = trees.path("snapshot");
    let base = name("base");
    let request = template_add::Request {
        name: &base,
        domain: None,
        signature: None,
    };
    let part = template_add::Part {
        path: &path,
        offset: 0,
        length: 0,
    };
    let added = template_add::from_file(&context, &part, &request).unwrap();
    assert_eq!(state.calls(), ["template_add file of 10000 0+0 base -"]);
    assert_eq!(state.signature.get(), Some(added.signature));
    assert!(!added.signature.is_none());
    contains(
        &added.to_string(),
        &[
            "template base (domain default) from file",
            "cost nothing while the file holds them",
            "holes and zeros",
            &format!("signature {}", added.signature),
        ],
    );
    // A part of it is another template.
    let page = template_add::Part {
        offset: 4096,
        length: 4096,
        ..part
    };
    let other = template_add::from_file(&context, &page, &request).unwrap();
    assert_ne!(other.signature, added.signature);
    contains(&state.calls()[1], &["4096+4096"]);
    // A given signature is taken as it is.
    let request = template_add::Request {
        signature: Some(Signature::NONE),
        ..request
    };
    template_add::from_file(&context, &part, &request).unwrap();
    assert_eq!(state.signature.get(), Some(Signature::NONE));
}

#[test]
fn template_from_a_file_explains_refusals() {
    let (trees, state, context) = machine();
    trees.write("snapshot", "x");
    let path = trees.path("snapshot");
    let base = name("base");
    let request = template_add::Request {
        name: &base,
        domain: None,
        signature: None,
    };
    let add = |path: &Path, offset, length| {
        let part = template_add::Part {
            path,
            offset,
            length,
        };
        message(template_add::from_file(&context, &part, &request))
    };
    contains(&add(&path, 1, 0), &["snapshot", "multiples of 4096"]);
    contains(&add(&path, 0, 5), &["multiples of 4096"]);
    contains(
        &add(Path::new("/nonexistent/file"), 0, 0),
        &["cannot open /nonexistent/file"],
    );
    assert_eq!(state.calls(), [] as [&str; 0]);
    for (errno, advice) in [
        (libc::EEXIST, "a template of this name exists"),
        (libc::ENODATA, "only holes and zeros"),
        (libc::EINVAL, "no regular file"),
        (libc::E2BIG, "--offset, --length"),
    ] {
        state.errno.set(errno);
        let text = add(&path, 0, 0);
        contains(&text, &["template add base from file", advice]);
    }
}

#[test]
fn the_signature_of_a_process_is_that_of_its_binaries() {
    let (trees, state, context) = machine();
    let signature = |pid| {
        let added = add_process(&context, pid, None).unwrap();
        assert_eq!(state.signature.get(), Some(added.signature));
        assert!(!added.signature.is_none(), "{added}");
        added.signature
    };
    trees.process(77, 'T', &[]);
    trees.process(78, 'T', &[]);
    let original = signature(77);
    assert_eq!(signature(78), original);
    // Another binary of the same path, another path of the same binary, and one more.
    trees.write("proc/78/root/usr/bin/python3", "#! another\n");
    let maps = trees.read("proc/78/maps").replace("fe:01 5", "fe:01 6");
    trees.write("proc/78/maps", &maps);
    assert_ne!(signature(78), original);
    let maps = trees.read("proc/77/maps");
    trees.write("proc/77/root/usr/bin/python4", "#! python\n");
    trees.write("proc/77/maps", &maps.replace("python3", "python4"));
    assert_ne!(signature(77), original);
    trees.write("proc/77/root/lib/a.so", "library");
    let more = "00070000-00080000 r-xp 00000000 fe:01 9    /lib/a.so\n";
    trees.write("proc/77/maps", &format!("{maps}{more}"));
    assert_ne!(signature(77), original);
    // An upgrade replaces the binary; the process keeps the old one.
    trees.write(
        "proc/77/maps",
        &maps.replace("/python3", "/python3 (deleted)"),
    );
    trees.write("proc/77/map_files/30000-40000", "#! python\n");
    assert_eq!(signature(77), original);
    // Through the mapping itself, where that is allowed, although the path leads nowhere.
    trees.process(79, 'T', &[]);
    std::fs::remove_file(trees.path("proc/79/root/usr/bin/python3")).unwrap();
    trees.write("proc/79/map_files/30000-40000", "#! python\n");
    assert_eq!(signature(79), original);
}

/// Whoever owns a process chooses what it maps, and what is at that path afterwards.
#[test]
fn binaries_of_strangers_neither_hang_nor_lead_out() {
    use rustix::fs::{mknodat, FileType, Mode, CWD};
    let (trees, state, context) = machine();
    let path = "proc/77/root/usr/bin/python3";
    let refused = |reason: &str| {
        let added = add_process(&context, 77, None).unwrap();
        assert_eq!(state.signature.get(), Some(Signature::NONE));
        contains(&added.to_string(), &["are not compared", reason]);
    };
    trees.process(77, 'T', &[]);
    // Endless, for nothing.
    let file = std::fs::File::create(trees.path(path)).unwrap();
    file.set_len(1 << 40).unwrap();
    refused("too large, and has no build id");
    // Opening it would wait for somebody to write.
    std::fs::remove_file(trees.path(path)).unwrap();
    mknodat(CWD, trees.path(path), FileType::Fifo, Mode::RUSR, 0).unwrap();
    refused("no plain file");
    // A way into the host.
    std::fs::remove_file(trees.path(path)).unwrap();
    trees.write("secret", "of the host");
    std::os::unix::fs::symlink(trees.path("secret"), trees.path(path)).unwrap();
    refused("No such file");
    // Within the process's own root it is followed.
    std::fs::remove_file(trees.path(path)).unwrap();
    trees.write("proc/77/root/other/python3", "#! python\n");
    std::os::unix::fs::symlink("/other/python3", trees.path(path)).unwrap();
    assert!(!add_process(&context, 77, None).unwrap().signature.is_none());
}

#[test]
fn a_process_without_readable_binaries_gives_no_signature() {
    let (trees, state, context) = machine();
    trees.process(77, 'T', &[]);
    std::fs::remove_file(trees.path("proc/77/root/usr/bin/python3")).unwrap();
    let added = add_process(&context, 77, None).unwrap();
    assert_eq!(state.signature.get(), Some(Signature::NONE));
    contains(
        &added.to_string(),
        &["signature none", "root/usr/bin/python3", "are not compared"],
    );
}

#[test]
fn attach_compares_signatures() {
    let (trees, state, context) = machine();
    trees.process(77, 'T', &[]);
    let original = add_process(&context, 77, None).unwrap().signature;
    trees.template("base", "default");
    trees.cgroup("agents/sb1", "10\n");
    trees.process(10, 'S', &[]);
    let base = name("base");
    let request = plain("agents/sb1", &base);
    let sent = || {
        let attached = sandbox::attach(&context, &request).unwrap();
        assert_eq!(state.signature.get(), Some(attached.signature));
        attached.signature
    };
    // A template without a signature, one from a file: nothing to compare.
    assert_eq!(sent(), Signature::NONE);
    trees.write("sysfs/templates/base/signature", &format!("{original}\n"));
    trees.write("sysfs/templates/base/source", "file\n");
    assert_eq!(sent(), Signature::NONE);
    trees.write("sysfs/templates/base/source", "process\n");
    assert_eq!(sent(), original);
    // A tool runs there, too: the process that is like the template counts.
    trees.cgroup("agents/sb1", "9\n10\n");
    trees.process(9, 'S', &[]);
    let maps = trees.read("proc/9/maps").replace("fe:01 5", "fe:01 8");
    trees.write("proc/9/maps", &maps);
    trees.write("proc/9/root/usr/bin/python3", "another");
    assert_eq!(sent(), original);
    // Only the tool.
    trees.cgroup("agents/sb1", "9\n");
    let other = sent();
    assert!(other != original && !other.is_none());
    state.errno.set(libc::EKEYREJECTED);
    contains(
        &message(sandbox::attach(&context, &request)),
        &[
            "sandbox attach /agents/sb1",
            &format!("it has signature {other}, template base has {original}"),
            &format!("--signature {original}"),
        ],
    );
    // What is given is sent.
    state.errno.set(0);
    let request = sandbox::Request {
        signature: Some(original),
        ..request
    };
    sandbox::attach(&context, &request).unwrap();
    assert_eq!(state.signature.get(), Some(original));
    // Nobody there, or nobody readable: not compared.
    trees.cgroup("agents/sb1", "");
    assert_eq!(sent(), Signature::NONE);
    trees.cgroup("agents/sb1", "11\n");
    assert_eq!(sent(), Signature::NONE);
    let attached = sandbox::attach(&context, &plain("agents/sb1", &base)).unwrap();
    contains(&attached.to_string(), &["signature was not compared"]);
}

#[test]
fn attach_with_ranges() {
    let (trees, state, context) = machine();
    let id = trees.cgroup("sb", "");
    let base = name("base");
    let given = ["0x20000:8K:0x1000", "0x10000:4K:0"].map(|text| text.parse().unwrap());
    let request = sandbox::Request {
        ranges: ranges::Request {
            given: &given,
            mapped: &[],
        },
        ..plain("sb", &base)
    };
    let attached = sandbox::attach(&context, &request).unwrap();
    assert_eq!(attached.ranges, 2);
    let told = format!("sandbox_ranges {id} [10000-11000@0 20000-22000@1000]");
    assert_eq!(
        state.calls(),
        ["sandbox_attach base - -".to_owned(), told.clone()]
    );
    // Refused ranges leave nothing attached.
    state.ranges_errno.set(libc::E2BIG);
    contains(
        &message(sandbox::attach(&context, &request)),
        &["sandbox ranges /sb", "more than eight ranges"],
    );
    assert_eq!(
        state.calls()[2..],
        [
            "sandbox_attach base - -".to_owned(),
            told,
            format!("sandbox_detach {id}")
        ]
    );
}

#[test]
fn ranges_of_the_processes_that_map_a_file() {
    use std::os::unix::fs::MetadataExt;
    let (trees, state, context) = machine();
    let id = trees.cgroup("sb", "10\n11\n12\n");
    trees.write("snapshot", "x");
    let path = trees.path("snapshot");
    let status = path.metadata().unwrap();
    let device = (major(status.dev()), minor(status.dev()));
    let file = format!("{:02x}:{:02x} {}", device.0, device.1, status.ino());
    trees.process(10, 'S', &[]);
    trees.process(11, 'S', &[]);
    let mapping = |range: &str, rights: &str, offset: u64| {
        format!("{range} {rights} {offset:08x} {file} /vm/snapshot\n")
    };
    let maps = mapping("00100000-00104000", "rw-p", 0)
        + &mapping("00104000-00105000", "r--p", 0x4000)
        + &mapping("00200000-00204000", "rw-s", 0);
    trees.write("proc/10/maps", &maps);
    trees.write(
        "proc/11/maps",
        &mapping("00102000-00103000", "rw-p", 0x8000),
    );
    let request = |mapped| ranges::Request { given: &[], mapped };
    let files = [path];
    let report = ranges::replace(&context, &at("sb"), &request(&files)).unwrap();
    assert_eq!(
        state.calls(),
        [format!(
            "sandbox_ranges {id} [100000-105000@0 102000-103000@8000]"
        )]
    );
    contains(
        &report.to_string(),
        &["sandbox /sb", "2 ranges", "0x102000-0x103000 from 0x8000"],
    );
    // None any more.
    ranges::replace(&context, &at("sb"), &ranges::Request::default()).unwrap();
    assert_eq!(state.calls()[1], format!("sandbox_ranges {id} []"));

    trees.write("other", "x");
    let files = [trees.path("other")];
    contains(
        &message(ranges::replace(&context, &at("sb"), &request(&files))),
        &["other", "no process in /sb maps it privately"],
    );
    state.errno.set(libc::ENOENT);
    let none = ranges::Request::default();
    contains(
        &message(ranges::replace(&context, &at("sb"), &none)),
        &["sandbox ranges /sb", "not a sandbox"],
    );
    contains(
        &message(ranges::replace(&context, &at("id:99999999"), &none)),
        &["its cgroup is gone"],
    );
}

#[test]
fn status_gives_an_alarm_for_a_sandbox_without_its_template() {
    let (trees, _state, context) = machine();
    let mut ids = Vec::new();
    for (cgroup, stores, template_backed) in [
        ("good", 5000, 4000),
        ("fair", 5000, 2500),
        ("poor", 5000, 1000),
        ("new", 10, 0),
    ] {
        let id = trees.cgroup(cgroup, "");
        trees.sandbox(id, true, 0);
        let directory = format!("sysfs/sandboxes/{id}");
        trees.write(&format!("{directory}/stores"), &format!("{stores}\n"));
        let backed = format!("{template_backed}\n");
        trees.write(&format!("{directory}/template_backed"), &backed);
        ids.push(id);
    }
    let report = status::status(&context).unwrap();
    let text = report.to_string();
    let alarms: Vec<&str> = text.lines().filter(|l| l.starts_with("ALARM")).collect();
    assert_eq!(alarms.len(), 1, "{text}");
    contains(alarms[0], &["/poor", "20.0%", "50.0%", "template base"]);
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["alarms"][0]["cgroup_id"], ids[2]);
    assert_eq!(json["alarms"][0]["template_share"], 0.2);
    assert_eq!(json["alarms"][0]["group_median"], 0.5);
    assert_eq!(json["alarms"].as_array().unwrap().len(), 1);
}
