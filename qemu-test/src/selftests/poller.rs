// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Attaches cgroups that a program makes right below the root.
//!
//! Those below them need nothing: a page belongs to the nearest attached cgroup above it. Some time
//! passes from a cgroup's creation to its attachment; what it stores meanwhile goes to the host.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::suite::fixture::cgroup::CGROUP_ROOT;
use crate::suite::fixture::module::Device;

/// Pause between two looks.
const PAUSE: Duration = Duration::from_millis(3);

/// Names of the cgroups right below the root.
pub fn children() -> Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(CGROUP_ROOT).context("list the cgroups")? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            names.insert(entry.file_name().to_string_lossy().into_owned());
        }
    }
    Ok(names)
}

/// Attaches every cgroup that is not among `old` until `end` is set. Returns the names of those that were
/// attached, and how often one could not be: mostly it was gone again.
pub fn run(
    device: &Device,
    template: &str,
    old: &BTreeSet<String>,
    end: &AtomicBool,
) -> Result<(BTreeSet<String>, u32)> {
    let mut attached = BTreeSet::new();
    let mut missed = 0;
    while !end.load(Ordering::Relaxed) {
        let seen: BTreeSet<String> = children()?.difference(old).cloned().collect();
        for name in seen {
            match device.attach(&Path::new(CGROUP_ROOT).join(&name), template) {
                Ok(_) => {
                    attached.insert(name);
                }
                // It is attached already. A name that has come again is another cgroup.
                Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {}
                Err(_) => missed += 1,
            }
        }
        std::thread::sleep(PAUSE);
    }
    Ok((attached, missed))
}
