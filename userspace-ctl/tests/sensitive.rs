// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Sensitive sandboxes beside others, and a module that knows none, on a fake machine.

mod common;

use agentzip_ctl::commands::{dictionary, sandbox, status};
use common::{at, contains, machine, message};

/// The module gives a sensitive sandbox the name of the open group, of which it is not.
#[test]
fn they_are_in_no_group() {
    let (trees, _state, context) = machine();
    let ids = ["a-sensitive", "open"].map(|name| trees.cgroup(name, ""));
    for id in ids {
        trees.sandbox(id, true, 5);
    }
    for (file, value) in [
        ("sensitive", "1"),
        ("group_references", "0"),
        ("group_dictionaries", "0"),
        ("group_dictionary_bytes", "0"),
    ] {
        let file = format!("sysfs/sandboxes/{}/{file}", ids[0]);
        trees.write(&file, &format!("{value}\n"));
    }
    let groups = status::status(&context).unwrap().groups;
    assert_eq!(groups.len(), 1);
    assert_eq!((groups[0].sandboxes, groups[0].references), (1, 7));
    let with_dictionaries = dictionary::list(&context).unwrap().0;
    assert_eq!(with_dictionaries.len(), 1);
    assert_eq!(with_dictionaries[0].dictionaries, 2);
    let error = message(dictionary::show(&context, &at("a-sensitive")));
    contains(
        &error,
        &["/a-sensitive", "sensitive", "without a dictionary"],
    );
}

/// A module of before has no file that says so, and no such payloads.
#[test]
fn an_older_module_has_none() {
    let (trees, _state, context) = machine();
    let id = trees.cgroup("sb", "");
    trees.sandbox(id, true, 5);
    for file in ["sensitive", "pages_padded", "bytes_padded"] {
        let path = format!("sysfs/sandboxes/{id}/{file}");
        std::fs::remove_file(trees.path(&path)).unwrap();
    }
    let listed = sandbox::list(&context).unwrap().to_string();
    contains(&listed, &["/sb"]);
    assert!(!listed.contains("sensitive"), "{listed}");
    let told = context.sysfs.told(id).unwrap().unwrap();
    assert!(!told.sensitive && told.attached);
    // One that is gone is not taken for such a one.
    assert!(context.sysfs.told(id + 1).unwrap().is_none());
}
