// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `cargo xtask doctor`: checks every prerequisite and names the remedy.

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};

use crate::guest::accel;
use crate::setup::{self, Cache, Step};
use crate::{paths, progress};

/// Disk space for all results of set-up and a build, in MiB.
const DISK_MIB: u64 = 10 * 1024;
/// Memory that a guest and QEMU need, in MiB.
const MEMORY_MIB: u64 = 4 * 1024;

/// The outcome of one check.
enum Finding {
    /// Fine; what was found.
    Ok(String),
    /// Works, but slower or later than it could; why.
    Note(String),
    /// Does not work: what is wrong, and the remedy.
    Bad(String, String),
}

/// Runs `cargo xtask doctor`. The exit code is 1 when something must be remedied.
pub fn main() -> Result<ExitCode> {
    let cache = Cache::locate()?;
    let mut bad = 0;
    let mut say = |what: &str, finding: Finding| match finding {
        Finding::Ok(found) => println!("ok    {what}: {found}"),
        Finding::Note(why) => println!("note  {what}: {why}"),
        Finding::Bad(wrong, remedy) => {
            bad += 1;
            println!("BAD   {what}: {wrong}\n      remedy: {remedy}");
        }
    };
    say("system", system());
    say("root", root());
    for (program, package) in [
        ("qemu-system-x86_64", "qemu-system-x86"),
        ("mmdebstrap", "mmdebstrap"),
        ("mke2fs", "e2fsprogs"),
        ("unshare", "util-linux"),
        ("mount", "mount"),
        ("xz", "xz-utils"),
        ("tar", "tar"),
        ("objcopy", "binutils"),
        ("gcc", "gcc"),
        ("make", "make"),
        ("git", "git"),
    ] {
        say(program, installed(program, package));
    }
    say("Debian keys", keys());
    say("host cargo", cargo());
    say("disk space", disk()?);
    say("memory", memory());
    for step in Step::ALL {
        say(
            &format!("set-up: {}", step.name()),
            step_done(&cache, step)?,
        );
    }
    say("toolchain root's rustc", rustc(&cache));
    say("KVM", kvm(&cache));
    if bad == 0 {
        println!("nothing to remedy");
    } else {
        println!("{bad} to remedy");
    }
    Ok(ExitCode::from(u8::from(bad != 0)))
}

fn system() -> Finding {
    let text = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let value = |key: &str| {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        line.unwrap_or("").trim_matches('"').to_owned()
    };
    let name = value("PRETTY_NAME");
    match (
        value("ID").as_str(),
        value("VERSION_ID").as_str(),
        std::env::consts::ARCH,
    ) {
        ("debian", "12" | "13", "x86_64") => Finding::Ok(name),
        (_, _, "x86_64") => Finding::Note(format!("{name} is not tested; Debian 12 and 13 are")),
        (_, _, arch) => Finding::Bad(format!("{arch} machine"), "use an x86-64 machine".into()),
    }
}

fn root() -> Finding {
    if paths::owner().0 == 0 {
        return Finding::Ok("running as root".into());
    }
    if paths::find_program("sudo").is_none() {
        return Finding::Bad(
            "not root, and no sudo".into(),
            "run as root, or install sudo and allow this user to use it".into(),
        );
    }
    match Command::new("sudo").args(["-n", "true"]).output() {
        Ok(output) if output.status.success() => Finding::Ok("through sudo".into()),
        _ => Finding::Note("sudo will ask for a password".into()),
    }
}

fn installed(program: &str, package: &str) -> Finding {
    match paths::find_program(program) {
        Some(path) => Finding::Ok(path.display().to_string()),
        None => Finding::Bad(
            "not found".into(),
            format!("scripts/bootstrap.sh, or: apt-get install {package}"),
        ),
    }
}

fn keys() -> Finding {
    let path = "/usr/share/keyrings/debian-archive-keyring.gpg";
    if Path::new(path).exists() {
        Finding::Ok(path.into())
    } else {
        Finding::Bad(
            format!("no {path}"),
            "apt-get install debian-archive-keyring".into(),
        )
    }
}

fn cargo() -> Finding {
    let output = Command::new("cargo").arg("--version").output();
    let version = output
        .map(|o| String::from_utf8_lossy(&o.stdout).trim().to_owned())
        .unwrap_or_default();
    let minor = version
        .strip_prefix("cargo 1.")
        .and_then(|v| v.split('.').next()?.parse::<u32>().ok());
    match minor {
        Some(85..) => Finding::Ok(version),
        Some(_) => Finding::Note(format!(
            "{version} is older than 1.85: the toolchain root's is used"
        )),
        None => Finding::Note("none: the toolchain root's is used".into()),
    }
}

fn disk() -> Result<Finding> {
    let dir = paths::cache()?;
    // The nearest folder that exists.
    let existing = dir
        .ancestors()
        .find(|d| d.exists())
        .unwrap_or(Path::new("/"));
    let stat =
        rustix::fs::statvfs(existing).with_context(|| format!("statvfs {}", existing.display()))?;
    let free = (stat.f_bavail * stat.f_frsize) >> 20;
    let complete = Step::ALL
        .iter()
        .all(|step| Cache::locate().is_ok_and(|c| c.get(*step).exists()));
    let found = format!("{free} MiB free at {}", existing.display());
    Ok(if free >= DISK_MIB || (complete && free >= DISK_MIB / 5) {
        Finding::Ok(found)
    } else {
        Finding::Bad(
            format!("{found}, {DISK_MIB} MiB needed"),
            "`cargo xtask clean-cache`, or set AGENTZIP_CACHE to a folder on a larger disk".into(),
        )
    })
}

fn memory() -> Finding {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = text
        .lines()
        .find_map(|line| {
            line.strip_prefix("MemAvailable:")?
                .trim()
                .strip_suffix("kB")?
                .trim()
                .parse::<u64>()
                .ok()
        })
        .unwrap_or(0)
        >> 10;
    let found = format!("{available} MiB available");
    if available >= MEMORY_MIB {
        Finding::Ok(found)
    } else {
        Finding::Bad(
            format!("{found}, a guest needs {MEMORY_MIB} MiB"),
            "end other programs, or use a larger machine".into(),
        )
    }
}

fn step_done(cache: &Cache, step: Step) -> Result<Finding> {
    let folder = cache.get(step);
    if !folder.as_os_str().is_empty() && folder.exists() {
        return Ok(Finding::Ok(folder.display().to_string()));
    }
    let log = setup::log(step)?;
    let mut wrong = "not made yet".to_owned();
    if folder.with_extension("tmp").exists() {
        wrong = format!(
            "not finished (log {}): {}",
            log.display(),
            progress::tail(&log, 1).join("")
        );
    }
    if step == Step::Debugkernel {
        return Ok(Finding::Note(format!(
            "{wrong}; only `make test-debug` needs it and makes it"
        )));
    }
    Ok(Finding::Bad(
        wrong,
        format!("cargo xtask setup {}", step.name()),
    ))
}

fn rustc(cache: &Cache) -> Finding {
    let Ok(config) = fs::read_to_string(cache.buildtree.join(".config")) else {
        return Finding::Note("known when the build tree is there".into());
    };
    let text = config
        .lines()
        .find_map(|line| line.strip_prefix("CONFIG_RUSTC_VERSION_TEXT="));
    let wanted = text.unwrap_or("").trim_matches('"');
    let output = Command::new(paths::in_repo("scripts/enter.sh"))
        .arg(&cache.toolchain)
        .args(["--", "rustc", "--version"])
        .output();
    let found = output
        .map(|o| String::from_utf8_lossy(&o.stdout).trim().to_owned())
        .unwrap_or_default();
    if found == wanted {
        Finding::Ok(format!("{found}, as the kernel's"))
    } else {
        Finding::Bad(
            format!("\"{found}\", the kernel's build tree has \"{wanted}\""),
            "cargo xtask setup --again buildtree; if that does not help, --again toolchain".into(),
        )
    }
}

fn kvm(cache: &Cache) -> Finding {
    if cache.initramfs.as_os_str().is_empty() || !cache.initramfs.exists() {
        return Finding::Note("tried when the initramfs is there".into());
    }
    match accel::trial(cache) {
        Ok(()) => Finding::Ok("the trial boot worked".into()),
        Err(error) => Finding::Note(format!(
            "not usable ({error:#}): guests are emulated, 10 to 60 times slower"
        )),
    }
}
