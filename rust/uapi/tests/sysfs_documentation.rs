// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Every sysfs attribute of the module is in `Documentation/ABI`, and nothing else is.

use std::collections::BTreeSet;

use agentzip_uapi::{Representation, SYSFS_PATH};

const ATTRIBUTES: &str = include_str!("../../ffi/agentzip_ffi.h");
const DOCUMENTATION: &str =
    include_str!("../../../Documentation/ABI/testing/sysfs-kernel-agentzip");

/// Names in the `AGENTZIP_ATTRS` table of the module.
fn attributes() -> BTreeSet<String> {
    let (_, table) = ATTRIBUTES.split_once("#define AGENTZIP_ATTRS(X)").unwrap();
    let names = table
        .lines()
        .skip(1)
        .take_while(|line| line.starts_with('\t'))
        .filter_map(|line| line.trim().strip_prefix("X(")?.split_once(','));
    names.map(|(name, _)| name.to_owned()).collect()
}

/// Names that the documentation describes.
fn documented() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for line in DOCUMENTATION.lines() {
        let Some(path) = line
            .strip_prefix("What:")
            .and_then(|what| what.trim().strip_prefix(SYSFS_PATH))
        else {
            continue;
        };
        // A directory has an empty last part.
        let name = path.rsplit('/').next().unwrap();
        match name.strip_suffix("<representation>") {
            Some(prefix) => {
                names.extend(Representation::ALL.map(|r| format!("{prefix}{}", r.name())))
            }
            None if name.is_empty() => {}
            None => drop(names.insert(name.to_owned())),
        }
    }
    names
}

#[test]
fn attributes_are_documented() {
    let attributes = attributes();
    assert!(attributes.len() > 40, "the table was not found");
    assert_eq!(attributes, documented());
}
