// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The choice of QEMU's accelerator: KVM where a trial boot shows that it works.

use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::{bail, Result};

use crate::setup::Cache;

/// How QEMU runs the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accel {
    /// Hardware virtualisation.
    Kvm,
    /// Emulation, 10 to 60 times slower than the machine itself.
    Tcg,
}

impl Accel {
    /// `kvm` or `tcg`.
    pub fn name(self) -> &'static str {
        match self {
            Accel::Kvm => "kvm",
            Accel::Tcg => "tcg",
        }
    }

    /// QEMU's options.
    pub fn options(self) -> &'static [&'static str] {
        match self {
            Accel::Kvm => &["-accel", "kvm", "-cpu", "host"],
            Accel::Tcg => &["-accel", "tcg,thread=multi,tb-size=512", "-cpu", "max"],
        }
    }
}

/// How long the trial boot may take; a working KVM needs a second or two.
const TRIAL: Duration = Duration::from_secs(20);

/// The accelerator for all guests of this run.
pub fn choose(cache: &Cache) -> Result<Accel> {
    static CHOICE: OnceLock<Accel> = OnceLock::new();
    match std::env::var("AGENTZIP_ACCEL").as_deref() {
        Ok("kvm") => return Ok(Accel::Kvm),
        Ok("tcg") => return Ok(Accel::Tcg),
        Ok("") | Err(_) => {}
        Ok(other) => bail!("AGENTZIP_ACCEL={other}: must be kvm or tcg"),
    }
    let accel = CHOICE.get_or_init(|| {
        let (accel, why) = match trial(cache) {
            Ok(()) => (Accel::Kvm, "the trial boot worked".to_owned()),
            Err(error) => (Accel::Tcg, format!("KVM is not usable: {error:#}")),
        };
        println!("accelerator: {} ({why})", accel.name());
        accel
    });
    Ok(*accel)
}

/// Boots the kernel under KVM as far as the initramfs.
pub fn trial(cache: &Cache) -> Result<()> {
    if !std::path::Path::new("/dev/kvm").exists() {
        bail!("no /dev/kvm");
    }
    let mut child = Command::new("qemu-system-x86_64")
        .args(["-M", "q35", "-smp", "2", "-m", "512M"])
        .args([
            "-nodefaults",
            "-no-user-config",
            "-display",
            "none",
            "-no-reboot",
        ])
        .args(Accel::Kvm.options())
        .arg("-kernel")
        .arg(cache.initramfs.join("vmlinuz"))
        .arg("-initrd")
        .arg(cache.initramfs.join("initramfs.gz"))
        .args(["-append", "quiet panic=-1 agentzip.probe"])
        .args(["-serial", "null", "-serial", "stdio"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let start = Instant::now();
    let ended = loop {
        if child.try_wait()?.is_some() {
            break true;
        }
        if start.elapsed() > TRIAL {
            break false;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    // Errors: it has ended already.
    let _ = child.kill();
    let output = child.wait_with_output()?;
    if String::from_utf8_lossy(&output.stdout).contains("@@ probe ok") {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    match stderr.lines().next() {
        Some(line) => bail!("{line}"),
        None if ended => bail!("the trial guest ended with {}", output.status),
        None => bail!("the trial guest did not boot within {} s", TRIAL.as_secs()),
    }
}
