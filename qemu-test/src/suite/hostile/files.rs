// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The files of the sysfs tree, written and read at random, and as somebody who is not root.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use agentzip_uapi as uapi;
use anyhow::{ensure, Context, Result};

use super::super::fixture::page::Rng;
use super::super::fixture::{host, module, Ctx};
use super::super::sys;
use super::{LONGEST, THREADS, TIME};

/// All files below a directory of the module.
fn files(directory: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => files(&entry.path(), found)?,
            false => found.push(entry.path()),
        }
    }
    Ok(())
}

/// Writes what comes to mind to every file that takes something, and reads all of them in pieces, while
/// sandboxes come and go.
pub fn files_written_and_read(ctx: &mut Ctx) -> Result<()> {
    let mut world = ctx.world(64)?;
    world.store_mixed(5)?;
    let mut all = Vec::new();
    files(&module::sysfs(""), &mut all)?;
    ensure!(all.len() > 20, "only {} files", all.len());
    let settings: Vec<(&PathBuf, String)> = all
        .iter()
        .filter(|path| path.parent() == module::sysfs("x").parent())
        .filter(|path| is_writable(path))
        .map(|path| host::read(path).map(|value| (path, value)))
        .collect::<Result<_>>()?;
    let end = Instant::now() + TIME;
    let stop = AtomicBool::new(false);
    let hammer = |thread: u64| -> Result<u64> {
        let mut rng = Rng::new(thread);
        let mut written = 0;
        while Instant::now() < end && !stop.load(Ordering::Relaxed) {
            let path = &all[rng.next() as usize % all.len()];
            if is_writable(path) && rng.next() % 2 == 0 {
                let text = strange_text(&mut rng);
                let began = Instant::now();
                // Most of it is refused, and files of a sandbox go with it.
                let _ = fs::write(path, &text);
                written += 1;
                let took = began.elapsed();
                ensure!(
                    took < host::patience(LONGEST),
                    "write to {} took {took:?}",
                    path.display()
                );
            } else if let Ok(file) = File::open(path) {
                let mut bytes = vec![0; 1 + rng.next() as usize % 5000];
                // As above.
                let _ = file.read_at(&mut bytes, rng.next() % 5000);
            }
        }
        Ok(written)
    };
    let (mut written, id) = (0, world.sandbox.id);
    std::thread::scope(|scope| -> Result<()> {
        let threads: Vec<_> = (0..THREADS as u64)
            .map(|thread| scope.spawn(move || hammer(thread)))
            .collect();
        while Instant::now() < end {
            world.sandbox.cgroup.reclaim(1 << 20)?;
            world.check()?;
            // Files of the sandbox go and come back.
            match ctx.device().detach(id) {
                Ok(_) => {}
                Err(error) => ensure!(error.raw_os_error() == Some(libc::ENOENT), "{error}"),
            }
            let template = &world.template.name;
            match ctx.device().attach(world.sandbox.cgroup.path(), template) {
                Ok(_) => {}
                // What was written to the bound of the store leaves no room for it.
                Err(error) => ensure!(error.raw_os_error() == Some(libc::ENOMEM), "{error}"),
            }
        }
        stop.store(true, Ordering::Relaxed);
        for thread in threads {
            written += thread.join().ok().context("a thread panicked")??;
        }
        Ok(())
    })?;
    ensure!(written > 0, "nothing was written");
    println!("# {written} writes to {} files", all.len());
    for (path, value) in settings {
        host::write(path, &value)?;
    }
    world.check()
}

/// Whether root can write to a file; not when it is gone.
fn is_writable(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|meta| meta.permissions().mode() & 0o200 != 0)
}

/// A number, a word, or neither.
fn strange_text(rng: &mut Rng) -> Vec<u8> {
    const TEXTS: [&str; 14] = [
        "",
        "0",
        "1",
        "max",
        "-1",
        "18446744073709551616",
        "9223372036854775808",
        "4096",
        "running",
        "waiting",
        " 1",
        "1\n1",
        "0x10",
        "%s%n",
    ];
    match rng.next() % 4 {
        0 => (0..rng.next() % 5000).map(|_| rng.next() as u8).collect(),
        _ => TEXTS[rng.next() as usize % TEXTS.len()].into(),
    }
}

/// Whoever is not root can read what everybody may, but nothing of a single sandbox or template, and change
/// nothing.
pub fn files_as_anybody(ctx: &mut Ctx) -> Result<()> {
    let mut world = ctx.world(16)?;
    world.store_mixed(1)?;
    let mut all = Vec::new();
    files(&module::sysfs(""), &mut all)?;
    let (report, answer) = UnixStream::pair()?;
    let writable = |path: &Path| File::options().write(true).open(path).is_ok();
    let of_one = ["sandboxes", "templates"].map(module::sysfs);
    let shown = |path: &&PathBuf| !of_one.iter().any(|one| path.starts_with(one));
    let (everybodys, tenants): (Vec<_>, Vec<_>) = all.iter().partition(shown);
    ensure!(
        everybodys.len() > 20 && tenants.len() > 20,
        "{} files of all, {} of single ones",
        everybodys.len(),
        tenants.len()
    );
    match sys::fork()? {
        sys::Forked::Child => {
            let device = Path::new(uapi::DEVICE_PATH);
            let refused = sys::become_nobody().is_ok()
                && File::open(device).is_err()
                && !writable(device)
                && !all.iter().any(|path| writable(path))
                && everybodys.iter().all(|path| File::open(path).is_ok())
                && !tenants.iter().any(|path| File::open(path).is_ok());
            // The parent reads end of file when this fails.
            let _ = (&answer).write_all(&[u8::from(refused)]);
            sys::exit_now(0)
        }
        sys::Forked::Parent(_) => {
            drop(answer);
            let mut refused = [0];
            (&report).read_exact(&mut refused)?;
            ensure!(
                refused == [1],
                "somebody who is not root opens the device, a file for writing or one of a sandbox, or \
                 cannot read what everybody may"
            );
        }
    }
    world.check()
}
