// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The disks made for one guest: payload, swap, report.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::{check, sparse};
use crate::build::Artifacts;
use crate::paths;

/// As large as all anonymous memory can become, resident and swapped.
const SWAP_BYTES: u64 = 4 << 30;
/// Most that a guest can hand out.
const REPORT_BYTES: u64 = 256 << 20;
/// Size of the payload disk; it is sparse.
const PAYLOAD_BYTES: u64 = 256 << 20;

/// Image files of one guest.
pub struct Disks {
    /// ext4, mounted at /opt/agentzip.
    pub payload: PathBuf,
    /// Raw, swap space.
    pub swap: PathBuf,
    /// Raw, the guest writes a tar archive to it.
    pub report: PathBuf,
}

/// Makes the disks in `dir`.
pub fn make(dir: &Path, artifacts: &Artifacts, command: Option<&str>) -> Result<Disks> {
    let tree = dir.join("payload");
    fs::create_dir_all(&tree).with_context(|| format!("mkdir {}", tree.display()))?;
    for file in &artifacts.files {
        let name = file.file_name().context("artifact without a name")?;
        fs::copy(file, tree.join(name)).with_context(|| format!("copy {}", file.display()))?;
    }
    copy_tree(
        &paths::in_repo("qemu-test/workload"),
        &tree.join("workload"),
    )?;
    if let Some(command) = command {
        fs::write(tree.join("command"), command)?;
    }
    let disks = Disks {
        payload: dir.join("payload.ext4"),
        swap: dir.join("swap.raw"),
        report: dir.join("report.raw"),
    };
    sparse(&disks.payload, PAYLOAD_BYTES)?;
    let mke2fs = paths::find_program("mke2fs").context("mke2fs is missing (package e2fsprogs)")?;
    check(
        Command::new(mke2fs)
            .args(["-q", "-F", "-t", "ext4", "-O", "^has_journal", "-d"])
            .arg(&tree)
            .arg(&disks.payload),
    )?;
    sparse(&disks.swap, SWAP_BYTES)?;
    sparse(&disks.report, REPORT_BYTES)?;
    Ok(disks)
}

/// Copies a folder; one that does not exist is an empty one.
fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    if !from.exists() {
        return Ok(());
    }
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from).with_context(|| format!("read {}", from.display()))? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_tree(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), &target)
                .with_context(|| format!("copy {}", entry.path().display()))?;
        }
    }
    Ok(())
}

/// Unpacks what the guest handed out and removes the disks. Returns the folder.
pub fn unpack_report(disks: &Disks, dir: &Path) -> Result<PathBuf> {
    let report = dir.with_extension("report");
    if report.exists() {
        fs::remove_dir_all(&report)?;
    }
    fs::create_dir_all(&report)?;
    check(
        Command::new("tar")
            .arg("-C")
            .arg(&report)
            .args(["--no-same-owner", "-xf"])
            .arg(&disks.report),
    )?;
    for disk in [&disks.payload, &disks.swap, &disks.report] {
        fs::remove_file(disk).with_context(|| format!("remove {}", disk.display()))?;
    }
    Ok(report)
}
