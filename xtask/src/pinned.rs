// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Commands of the Debian 13 toolchain root: its cargo and the kernel's build.
//!
//! All Rust code except xtask itself is built with this compiler, so that lints,
//! tests and binaries are the same on every machine.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::kernel::Kernel;
use crate::paths;
use crate::setup::Cache;

/// `cargo` of the toolchain root, on this repository.
pub fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new(paths::in_repo("scripts/cargo.sh"));
    command.args(args).current_dir(paths::repo());
    command
}

/// Where `cargo()` puts its binaries of `profile` (`debug`, `release` or `laboratory`).
pub fn binaries(profile: &str) -> PathBuf {
    paths::target().join("pinned").join(profile)
}

/// A program that `cargo()` made, run on this machine: in the toolchain root, whose libraries it has.
pub fn program(cache: &Cache, program: &Path, args: &[&str]) -> Result<Command> {
    let (uid, gid) = paths::owner();
    let inside = Path::new("/agentzip/repo").join(program.strip_prefix(paths::repo())?);
    let mut command = Command::new(paths::in_repo("scripts/enter.sh"));
    command
        .arg(&cache.toolchain)
        .args([
            "--bind",
            &format!("{}:/agentzip/repo", paths::repo().display()),
        ])
        .args(["--user", &format!("{uid}:{gid}"), "--"])
        .arg(inside)
        .args(args);
    Ok(command)
}

/// A shell script run in the toolchain root as the present user, with the kernel's
/// source, the build tree of one kernel, the sources of the module and the staged copy of the module mounted.
pub fn kernel_script(
    cache: &Cache,
    kernel: Kernel,
    repo: &Path,
    stage: &Path,
    script: &str,
) -> Result<Command> {
    let (uid, gid) = paths::owner();
    let bind = |from: PathBuf, to: &str| format!("{}:/agentzip/{to}", from.display());
    let mut command = Command::new(paths::in_repo("scripts/enter.sh"));
    command
        .arg(&cache.toolchain)
        .args(["--bind", &bind(cache.kernel.join("source"), "source")])
        .args(["--bind", &bind(kernel.buildtree(cache), "build")])
        .args(["--bind", &bind(repo.to_path_buf(), "repo")])
        .args(["--bind", &bind(stage.to_path_buf(), "module")])
        .args([
            "--user",
            &format!("{uid}:{gid}"),
            "--",
            "sh",
            "-euc",
            script,
        ]);
    Ok(command)
}
