// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Makes what lies in the cache folder, step by step.
//!
//! A step is a script in scripts/setup that fills a folder. The folder's name
//! ends with a hash of the recipe (the script and its inputs), so a changed
//! recipe makes a new folder and a finished one is never touched again. A step
//! works in a temporary folder that gets its name when all is well.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use clap::ValueEnum;
use rustix::fs::{flock, FlockOperation};

use crate::kernel::Kernel;
use crate::{paths, progress};

/// Options of `cargo xtask setup`.
#[derive(clap::Args)]
pub struct Args {
    /// Stop after this step.
    #[arg(value_enum)]
    upto: Option<Step>,
    /// Make this step again although it is there, and what depends on it if it came out different.
    #[arg(long, value_enum, value_name = "STEP")]
    again: Option<Step>,
    /// Make nothing; the exit code is 0 when this step's result is there, 1 when it is not.
    #[arg(long, value_enum, value_name = "STEP", conflicts_with_all = ["upto", "again"])]
    check: Option<Step>,
}

/// The steps, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Step {
    /// Debian 13 root with the kernel's own compilers
    Toolchain,
    /// Kernel packages and source
    Kernel,
    /// Kernel build tree with Rust metadata
    Buildtree,
    /// Root file system of the guest
    Guest,
    /// Initramfs and kernel image of the guest
    Initramfs,
    /// Debug kernel and its build tree (half an hour; only `test --debug` needs it)
    Debugkernel,
    /// Root file system of the processes whose pages `corpus` dumps (only that needs it)
    Corpusroot,
}

impl Step {
    /// All steps, in order.
    pub const ALL: [Step; 7] = [
        Step::Toolchain,
        Step::Kernel,
        Step::Buildtree,
        Step::Guest,
        Step::Initramfs,
        Step::Debugkernel,
        Step::Corpusroot,
    ];

    /// Name of the script, the folder and the log.
    pub fn name(self) -> &'static str {
        match self {
            Step::Toolchain => "toolchain",
            Step::Kernel => "kernel",
            Step::Buildtree => "buildtree",
            Step::Guest => "guest",
            Step::Initramfs => "initramfs",
            Step::Debugkernel => "debugkernel",
            Step::Corpusroot => "corpusroot",
        }
    }

    /// What it makes, for people.
    fn title(self) -> &'static str {
        match self {
            Step::Toolchain => "toolchain root",
            Step::Kernel => "kernel packages and source",
            Step::Buildtree => "build tree with Rust metadata",
            Step::Guest => "guest image",
            Step::Initramfs => "initramfs",
            Step::Debugkernel => "debug kernel",
            Step::Corpusroot => "root of the corpus",
        }
    }

    /// The steps that it takes to have this one's result, in order, itself the last.
    fn needed(self) -> Vec<Step> {
        match self {
            Step::Corpusroot => vec![Step::Toolchain, Step::Corpusroot],
            _ => Step::ALL.into_iter().filter(|step| *step <= self).collect(),
        }
    }
}

/// The finished folders of the steps.
#[derive(Default)]
pub struct Cache {
    /// Debian 13 root.
    pub toolchain: PathBuf,
    /// `release`, `root/`, `source/`.
    pub kernel: PathBuf,
    /// Kernel build tree (O=).
    pub buildtree: PathBuf,
    /// `root.ext4`.
    pub guest: PathBuf,
    /// `initramfs.gz`, `vmlinuz`.
    pub initramfs: PathBuf,
    /// Kernel build tree (O=) of the debug kernel, and its `vmlinuz`.
    pub debugkernel: PathBuf,
    /// Debian 13 root with what agents run.
    pub corpusroot: PathBuf,
}

impl Cache {
    /// `uname -r` of the guest's kernel.
    pub fn release(&self) -> Result<String> {
        let path = self.kernel.join("release");
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        Ok(text.trim().to_owned())
    }

    /// The folder of that kernel's headers package, whose `vmlinux` holds its BTF.
    pub fn headers(&self) -> Result<PathBuf> {
        let name = format!("linux-headers-{}", self.release()?);
        Ok(self.kernel.join("root/usr/src").join(name))
    }

    /// The folders as they are or will be; a step whose input does not exist yet has none.
    pub fn locate() -> Result<Self> {
        let mut cache = Self::default();
        for step in Step::ALL {
            match cache.folder(step) {
                Ok(folder) => *cache.slot(step) = folder,
                Err(_) if !cache.kernel.join("release").exists() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(cache)
    }

    /// The folder of a step, empty while unknown.
    pub fn get(&self, step: Step) -> &Path {
        match step {
            Step::Toolchain => &self.toolchain,
            Step::Kernel => &self.kernel,
            Step::Buildtree => &self.buildtree,
            Step::Guest => &self.guest,
            Step::Initramfs => &self.initramfs,
            Step::Debugkernel => &self.debugkernel,
            Step::Corpusroot => &self.corpusroot,
        }
    }

    fn slot(&mut self, step: Step) -> &mut PathBuf {
        match step {
            Step::Toolchain => &mut self.toolchain,
            Step::Kernel => &mut self.kernel,
            Step::Buildtree => &mut self.buildtree,
            Step::Guest => &mut self.guest,
            Step::Initramfs => &mut self.initramfs,
            Step::Debugkernel => &mut self.debugkernel,
            Step::Corpusroot => &mut self.corpusroot,
        }
    }

    /// Computes where a step's result goes. The inputs must be finished.
    fn folder(&self, step: Step) -> Result<PathBuf> {
        let mut recipe =
            fs::read(script(step)).with_context(|| format!("read {}", script(step).display()))?;
        let mut add = |text: &str| recipe.extend_from_slice(text.as_bytes());
        match step {
            // Nothing else: scripts/common.sh computes this key too.
            Step::Toolchain | Step::Corpusroot => {}
            Step::Kernel => {
                add(&name_of(&self.toolchain));
                add(&pin());
            }
            Step::Buildtree | Step::Guest | Step::Initramfs | Step::Debugkernel => {
                add(&name_of(&self.toolchain));
                add(&name_of(&self.kernel));
                // A repeated download may have brought a newer kernel.
                add(&self.release()?);
                match step {
                    Step::Initramfs => add(&fs::read_to_string(init())?),
                    Step::Debugkernel => add(&fs::read_to_string(debug_config())?),
                    _ => {}
                }
            }
        }
        Ok(paths::cache()?.join(format!("{}-{}", step.name(), hash(&recipe)?)))
    }
}

/// The kernel release that the user asks for, or nothing.
fn pin() -> String {
    std::env::var("AGENTZIP_KERNEL").unwrap_or_default()
}

fn script(step: Step) -> PathBuf {
    paths::in_repo(&format!("scripts/setup/{}.sh", step.name()))
}

fn init() -> PathBuf {
    paths::in_repo("qemu-test/initramfs/init")
}

fn debug_config() -> PathBuf {
    paths::in_repo("qemu-test/debug-kernel/debug.config")
}

fn name_of(path: &Path) -> String {
    path.file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

/// Log file of a step.
pub fn log(step: Step) -> Result<PathBuf> {
    Ok(paths::cache()?
        .join("log")
        .join(format!("{}.log", step.name())))
}

/// The first 12 digits of the SHA-256, as coreutils computes it.
pub fn hash(bytes: &[u8]) -> Result<String> {
    let mut child = Command::new("sha256sum")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("start sha256sum (package coreutils)")?;
    child
        .stdin
        .take()
        .context("sha256sum has no input")?
        .write_all(bytes)?;
    let output = child.wait_with_output()?;
    ensure!(
        output.status.success() && output.stdout.len() > 12,
        "sha256sum failed"
    );
    Ok(String::from_utf8_lossy(&output.stdout[..12]).into_owned())
}

/// `command` with root's rights: itself, or through sudo.
pub fn privileged(program: &str) -> Command {
    if paths::owner().0 == 0 {
        return Command::new(program);
    }
    let mut command = Command::new("sudo");
    command.arg("--preserve-env=http_proxy,https_proxy,no_proxy,HTTP_PROXY,HTTPS_PROXY,NO_PROXY");
    command.arg(program);
    command
}

/// Runs `cargo xtask setup`.
pub fn main(args: Args) -> Result<ExitCode> {
    let start = Instant::now();
    if let Some(step) = args.check {
        let there = Cache::locate()?.get(step).exists();
        println!(
            "{}: {}",
            step.title(),
            if there { "there" } else { "missing" }
        );
        return Ok(ExitCode::from(u8::from(!there)));
    }
    if let Some(step) = args.again {
        let cache = Cache::locate()?;
        let folder = cache.get(step);
        if folder.exists() {
            remove(folder)?;
        }
    }
    let cache = run(args.upto.unwrap_or(Step::Initramfs))?;
    println!(
        "set-up is complete: kernel {} in {} ({})",
        cache.release().unwrap_or_else(|_| "not yet fetched".into()),
        paths::cache()?.display(),
        progress::seconds(start.elapsed())
    );
    Ok(ExitCode::SUCCESS)
}

/// Makes every step that is missing and that the stock kernel needs. Returns where they are.
pub fn ensure_all() -> Result<Cache> {
    run(Step::Initramfs)
}

/// The same for the debug kernel when `debug` says so; also returns the kernel that is meant.
pub fn ensure_for(debug: bool) -> Result<(Cache, Kernel)> {
    if debug {
        Ok((run(Step::Debugkernel)?, Kernel::Debug))
    } else {
        Ok((run(Step::Initramfs)?, Kernel::Stock))
    }
}

/// Makes the toolchain root if it is missing: enough for cargo.
pub fn ensure_toolchain() -> Result<Cache> {
    run(Step::Toolchain)
}

/// Makes the toolchain root and the root of the corpus if they are missing.
pub fn ensure_corpusroot() -> Result<Cache> {
    run(Step::Corpusroot)
}

/// Waits until nobody else holds the cache's lock of this name, and holds it while the file is open.
pub fn lock(name: &str) -> Result<File> {
    let dir = paths::cache()?;
    fs::create_dir_all(&dir).with_context(|| format!("mkdir {}", dir.display()))?;
    let path = dir.join(name);
    let lock = File::create(&path).with_context(|| format!("create {}", path.display()))?;
    if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
        println!(
            "another command is at work in {}: waiting for it",
            dir.display()
        );
        flock(&lock, FlockOperation::LockExclusive)
            .with_context(|| format!("lock {}", path.display()))?;
    }
    Ok(lock)
}

fn run(upto: Step) -> Result<Cache> {
    let _lock = lock("lock")?;
    let mut cache = Cache::default();
    let steps = upto.needed();
    for (index, step) in steps.iter().copied().enumerate() {
        let folder = cache.folder(step)?;
        if !folder.exists() {
            let title = format!("[{}/{}] {}", index + 1, steps.len(), step.title());
            make(step, &title, &cache, &folder)?;
        }
        *cache.slot(step) = folder;
    }
    Ok(cache)
}

/// Runs one step into a temporary folder and gives that its name.
fn make(step: Step, title: &str, cache: &Cache, folder: &Path) -> Result<Duration> {
    let temporary = folder.with_extension("tmp");
    if temporary.exists() {
        remove(&temporary)?;
    }
    let log = log(step)?;
    let path = |p: &Path| p.as_os_str().to_owned();
    let mut command = privileged("env");
    for (key, value) in [
        ("OUT", path(&temporary)),
        ("TOOLCHAIN", path(&cache.toolchain)),
        ("KERNEL", path(&cache.kernel)),
        ("PIN", pin().into()),
        ("INIT", path(&init())),
        ("CONFIG", path(&debug_config())),
        ("SCRIPTS", path(&paths::in_repo("scripts"))),
    ] {
        let mut word = std::ffi::OsString::from(key);
        word.push("=");
        word.push(value);
        command.arg(word);
    }
    command
        .args(["sh", "-c", "mkdir -p \"$OUT\" && exec sh \"$0\""])
        .arg(script(step));
    let (status, elapsed) = progress::run(title, &mut command, &log)?;
    if !status.success() {
        for line in progress::tail(&log, 12) {
            eprintln!("    {line}");
        }
        bail!(
            "set-up step \"{}\" failed ({status})\n  its log: {}\n  to retry: cargo xtask setup {} \
             (finished steps are kept; `cargo xtask doctor` checks the prerequisites)",
            step.title(),
            log.display(),
            step.name()
        );
    }
    rename(&temporary, folder)?;
    Ok(elapsed)
}

/// Moves a folder, which may belong to root.
pub fn rename(from: &Path, to: &Path) -> Result<()> {
    let status = privileged("mv")
        .arg("-T")
        .arg(from)
        .arg(to)
        .status()
        .context("run mv")?;
    ensure!(
        status.success(),
        "cannot rename {} to {}",
        from.display(),
        to.display()
    );
    Ok(())
}

/// Removes a folder of the cache, which may belong to root.
pub fn remove(folder: &Path) -> Result<()> {
    ensure!(
        folder.starts_with(paths::cache()?) && folder != paths::cache()?,
        "{} is not inside the cache",
        folder.display()
    );
    let status = privileged("rm")
        .args(["-rf", "--one-file-system"])
        .arg(folder)
        .status()
        .context("run rm")?;
    ensure!(status.success(), "cannot remove {}", folder.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_is_sha256() {
        assert_eq!(hash(b"abc").unwrap(), "ba7816bf8f01");
    }

    /// Neither of the two long steps that few commands need is made for the other, or for the guest.
    #[test]
    fn only_what_is_needed() {
        assert_eq!(Step::Toolchain.needed(), [Step::Toolchain]);
        assert_eq!(
            Step::Corpusroot.needed(),
            [Step::Toolchain, Step::Corpusroot]
        );
        assert_eq!(Step::Initramfs.needed(), Step::ALL[..5]);
        assert_eq!(Step::Debugkernel.needed(), Step::ALL[..6]);
    }

    /// scripts/bootstrap.sh makes the toolchain root where this program looks for it.
    #[test]
    fn shell_and_xtask_agree_on_the_toolchain() {
        let scripts = paths::in_repo("scripts");
        let output = Command::new("sh")
            .args(["-euc", ". \"$0/common.sh\"; agentzip_toolchain \"$0\""])
            .arg(&scripts)
            .output()
            .unwrap();
        let cache = Cache::locate().unwrap();
        assert_eq!(
            String::from_utf8_lossy(&output.stdout).trim(),
            cache.toolchain.display().to_string()
        );
    }

    #[test]
    fn nothing_outside_the_cache_is_removed() {
        assert!(remove(Path::new("/usr/share")).is_err());
        assert!(remove(&paths::cache().unwrap()).is_err());
    }
}
