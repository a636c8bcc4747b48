// SPDX-License-Identifier: GPL-2.0 OR MIT
//! QEMU's command line.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};

use super::accel::Accel;
use super::console::Console;
use super::payload::Disks;
use crate::kernel::Kernel;
use crate::setup::Cache;

/// Processors of the guest.
const CPUS: &str = "2";

/// Everything but the serial ports.
pub fn command(
    cache: &Cache,
    kernel: Kernel,
    memory_mib: u32,
    accel: Accel,
    disks: &Disks,
    cmdline: &str,
) -> Command {
    let mut command = Command::new("qemu-system-x86_64");
    command
        .args(["-M", "q35", "-smp", CPUS])
        .args(["-m".to_owned(), format!("{memory_mib}M")])
        .args([
            "-nodefaults",
            "-no-user-config",
            "-display",
            "none",
            "-no-reboot",
        ])
        .args(accel.options())
        .arg("-kernel")
        .arg(kernel.image(cache))
        .arg("-initrd")
        .arg(cache.initramfs.join("initramfs.gz"))
        .args(["-append", cmdline]);
    // The root image is shared by all runs: writes go to a temporary file.
    disk(
        &mut command,
        "root",
        &cache.guest.join("root.ext4"),
        "snapshot=on",
    );
    disk(&mut command, "payload", &disks.payload, "readonly=on");
    disk(
        &mut command,
        "swap",
        &disks.swap,
        "cache=unsafe,discard=unmap",
    );
    disk(&mut command, "report", &disks.report, "cache=unsafe");
    command
}

/// Adds a disk that the guest finds by its serial number.
fn disk(command: &mut Command, serial: &str, file: &Path, options: &str) {
    // QEMU's option syntax: a comma in a value is doubled.
    let file = file.display().to_string().replace(',', ",,");
    command.arg("-drive").arg(format!(
        "if=none,id={serial},format=raw,{options},file={file}"
    ));
    command
        .arg("-device")
        .arg(format!("virtio-blk-pci,drive={serial},serial={serial}"));
}

/// Sends the serial ports to the files that `console` follows.
pub fn serial_files(command: &mut Command, console: &Console) {
    for (id, file) in [
        ("kernel", console.kernel_file()),
        ("user", console.user_file()),
    ] {
        file_port(command, id, file);
    }
}

/// The kernel's port to a file, the user's to the terminal.
pub fn serial_terminal(command: &mut Command, kernel_log: &Path) {
    file_port(command, "kernel", kernel_log);
    command.args([
        "-chardev",
        "stdio,id=user,mux=on,signal=off",
        "-serial",
        "chardev:user",
        "-mon",
        "chardev=user",
    ]);
}

fn file_port(command: &mut Command, id: &str, file: &Path) {
    let file = file.display().to_string().replace(',', ",,");
    command
        .arg("-chardev")
        .arg(format!("file,id={id},path={file}"));
    command.arg("-serial").arg(format!("chardev:{id}"));
}

/// Starts QEMU; what it says itself goes beside the log.
pub fn spawn(mut command: Command, log: &Path) -> Result<Child> {
    let own = log.with_extension("qemu");
    let file = File::create(&own).with_context(|| format!("create {}", own.display()))?;
    command
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file)
        .spawn()
        .context("start qemu-system-x86_64 (package qemu-system-x86)")
}
