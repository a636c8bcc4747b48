// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Builds what goes into a guest: module, test modules, controller, guest program.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{bail, ensure, Context, Result};
use clap::ValueEnum;

use crate::kernel::Kernel;
use crate::setup::{self, Cache};
use crate::{paths, pinned, progress};

/// Files for the payload disk.
pub struct Artifacts {
    /// Each lands in /opt/agentzip under its own name.
    pub files: Vec<PathBuf>,
}

/// Copies the sources to the staging folder and runs Kbuild on the copy: neither
/// Kbuild's `clean` nor its objects ever meet the repository. What a build made
/// stays, so that the next one is incremental.
const MODULE_SCRIPT: &str = r#"
umask 022
: "${clippy:=}" "${kernel_btf:=}"
mkdir -p /agentzip/module/testmod
stage() {
    rsync -a --delete --exclude='*.o' --exclude='*.ko' --exclude='*.mod' --exclude='*.mod.c' \
        --exclude='.*.cmd' --exclude='.*.d' --exclude='*.rmeta' --exclude='*.a' --exclude='*generated*' \
        --exclude=modules.order --exclude=Module.symvers --exclude=/target --exclude=/testmod "$@"
}
stage /agentzip/repo/Kbuild /agentzip/repo/rust /agentzip/module/
release=$(cat /agentzip/build/include/config/kernel.release)
# A module is built by the compiler that built its kernel.
llvm=
if grep -q '^CONFIG_CC_IS_CLANG=y' /agentzip/build/.config; then
    llvm=LLVM=1
fi
kbuild() {
    make -C /agentzip/build -j"$(nproc)" "LOCALVERSION=+${release#*+}" $llvm "M=$1" \
        KCFLAGS=-Werror KRUSTFLAGS=-Dwarnings "KERNEL_BTF=$kernel_btf" ${clippy:+CLIPPY=1} modules
}
kbuild /agentzip/module
if [ -e /agentzip/repo/qemu-test/testmod/Kbuild ] || [ -e /agentzip/repo/qemu-test/testmod/Makefile ]; then
    stage /agentzip/repo/qemu-test/testmod/ /agentzip/module/testmod/
    kbuild /agentzip/module/testmod
fi
"#;

/// Options of `cargo xtask build`.
#[derive(clap::Args)]
pub struct Args {
    /// Only this part.
    #[arg(value_enum)]
    part: Option<Part>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// agentzip.ko and the test modules
    Modules,
    /// Controller and guest program
    Programs,
}

/// Runs `cargo xtask build`.
pub fn main(args: Args) -> Result<ExitCode> {
    let cache = setup::ensure_all()?;
    let mut files = Vec::new();
    if args.part != Some(Part::Programs) {
        files.extend(modules(&cache, Kernel::Stock)?);
    }
    if args.part != Some(Part::Modules) {
        files.extend(programs()?);
    }
    for file in files {
        println!("{}", file.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// Builds everything for a guest.
pub fn all(cache: &Cache, kernel: Kernel) -> Result<Artifacts> {
    let mut files = modules(cache, kernel)?;
    files.extend(programs()?);
    Ok(Artifacts { files })
}

/// What earlier builds made, whatever is there.
pub fn as_built(kernel: Kernel) -> Artifacts {
    let (stage, release) = (kernel.stage(), pinned::binaries("release"));
    let mut files = vec![
        stage.join("agentzip.ko"),
        release.join("agentzip"),
        release.join("agentzip-guest"),
    ];
    files.extend(test_modules(&stage));
    files.retain(|file| file.exists());
    Artifacts { files }
}

/// The test modules that were built.
fn test_modules(stage: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(stage.join("testmod")) else {
        return Vec::new();
    };
    let files = entries.filter_map(|entry| Some(entry.ok()?.path()));
    files
        .filter(|path| path.extension().is_some_and(|e| e == "ko"))
        .collect()
}

/// Puts the sources of zstd's library where Kbuild looks for them.
fn zstd_sources(stage: &Path) -> Result<()> {
    let mut command = Command::new(paths::in_repo("scripts/zstd-sources.sh"));
    command
        .arg(stage.join("zstd"))
        .arg(paths::in_repo("scripts/cargo.sh"));
    logged("zstd-sources", "sources of zstd", &mut command)
}

/// The digest of the BTF that the kernel of this folder's `vmlinux` has, in hexadecimal digits; nothing
/// where there is none.
fn btf_digest(folder: &Path) -> Result<String> {
    let output = Command::new(paths::in_repo("scripts/btf-digest.sh"))
        .arg(folder)
        .stderr(Stdio::inherit())
        .output()
        .context("run scripts/btf-digest.sh")?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let good = text.is_empty() || text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit());
    ensure!(
        output.status.success() && good,
        "scripts/btf-digest.sh {} ended with {} and said \"{text}\"",
        folder.display(),
        output.status
    );
    Ok(text)
}

/// The same of the kernel that modules are built for. The debug kernel has no BTF.
fn kernel_btf(cache: &Cache, kernel: Kernel) -> Result<String> {
    match kernel {
        Kernel::Stock => btf_digest(&cache.headers()?),
        Kernel::Debug => Ok(String::new()),
    }
}

/// Builds agentzip.ko and the test modules.
pub fn modules(cache: &Cache, kernel: Kernel) -> Result<Vec<PathBuf>> {
    let log = kernel.label("module");
    modules_of(cache, kernel, &paths::repo(), &kernel.stage(), &log)
}

/// The same for the sources in `repo`, with a staging folder and a log of its own.
pub fn modules_of(
    cache: &Cache,
    kernel: Kernel,
    repo: &Path,
    stage: &Path,
    log: &str,
) -> Result<Vec<PathBuf>> {
    ensure!(
        repo.join("Kbuild").exists(),
        "{}/Kbuild does not exist: there is no module to build",
        repo.display()
    );
    fs::create_dir_all(stage).with_context(|| format!("mkdir {}", stage.display()))?;
    zstd_sources(stage)?;
    let script = format!("kernel_btf={}\n{MODULE_SCRIPT}", kernel_btf(cache, kernel)?);
    logged(
        log,
        &format!("build {log}"),
        &mut pinned::kernel_script(cache, kernel, repo, stage, &script)?,
    )?;
    let mut files = vec![stage.join("agentzip.ko")];
    files.extend(test_modules(stage));
    for file in &files {
        ensure!(
            file.exists(),
            "the build of the module made no {}",
            file.display()
        );
    }
    Ok(files)
}

/// Checks the module's Rust with rustfmt and, by a build of its own, with the kernel's clippy.
pub fn module_lints(cache: &Cache) -> Result<()> {
    let stage = paths::target().join("kmod-clippy");
    fs::create_dir_all(&stage).with_context(|| format!("mkdir {}", stage.display()))?;
    zstd_sources(&stage)?;
    // From standard input rustfmt looks at one file and follows no `mod`; its --check then says
    // nothing in the exit status.
    let script = format!(
        "for file in /agentzip/repo/rust/*.rs /agentzip/repo/rust/control/*.rs; do\n\
         rustfmt --edition 2021 <\"$file\" | diff -u \"$file\" -\ndone\n\
         clippy=1\n{MODULE_SCRIPT}"
    );
    logged(
        "module-lints",
        "lints of the module",
        &mut pinned::kernel_script(cache, Kernel::Stock, &paths::repo(), &stage, &script)?,
    )
}

/// Builds controller and guest program.
pub fn programs() -> Result<Vec<PathBuf>> {
    logged(
        "programs",
        "build programs",
        &mut pinned::cargo(&[
            "build",
            "--release",
            "--locked",
            "--package",
            "agentzip-ctl",
            "--package",
            "agentzip-guest",
        ]),
    )?;
    let dir = pinned::binaries("release");
    Ok(vec![dir.join("agentzip"), dir.join("agentzip-guest")])
}

/// Runs a command with the log `target/log/<name>.log`, shows its progress under
/// `title`, and the log's end when it fails.
pub fn logged(name: &str, title: &str, command: &mut Command) -> Result<()> {
    let log = paths::target().join("log").join(format!("{name}.log"));
    let (status, _) = progress::run(title, command, &log)?;
    if !status.success() {
        for line in progress::tail(&log, 40) {
            eprintln!("    {line}");
        }
        bail!("{title} failed ({status}), log: {}", log.display());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_of_btf() {
        let dir = std::env::temp_dir().join(format!("agentzip-btf-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        assert_eq!(btf_digest(&dir).unwrap(), "");
        let vmlinux = dir.join("vmlinux");
        fs::write(&vmlinux, "no ELF file").unwrap();
        assert_eq!(btf_digest(&dir).unwrap(), "");
        fs::write(dir.join("abc"), "abc").unwrap();
        let made = Command::new("objcopy")
            .args(["-I", "binary", "-O", "elf64-x86-64"])
            .args(["--rename-section", ".data=.BTF"])
            .args([dir.join("abc"), vmlinux])
            .status()
            .unwrap();
        assert!(made.success());
        assert_eq!(
            btf_digest(&dir).unwrap(),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        fs::remove_dir_all(&dir).unwrap();
    }
}
