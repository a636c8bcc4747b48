// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Calls with arguments and descriptors that are wrong in some way.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use agentzip_uapi as uapi;
use anyhow::{ensure, Context, Result};

use super::super::abi::resized;
use super::super::dictionary;
use super::super::fixture::module;
use super::super::fixture::page::Rng;
use super::super::fixture::puppet::Region;
use super::super::fixture::{host, Ctx};
use super::super::sys::{self, Backing, PAGE_SIZE};
use super::call::{Scene, BUFFER};
use super::{LONGEST, THREADS, TIME};

/// What a call may say that is wrong in some way.
const ERRORS: &[i32] = &[
    libc::E2BIG,
    libc::EAGAIN,
    libc::EALREADY,
    libc::EBADF,
    libc::EBUSY,
    libc::EEXIST,
    libc::EFAULT,
    libc::EINVAL,
    libc::EKEYREJECTED,
    libc::ENODATA,
    libc::ENOENT,
    libc::ENOMEM,
    libc::ENOSPC,
    libc::ENOTTY,
    libc::EOPNOTSUPP,
    libc::EPERM,
    libc::ESRCH,
];

/// Calls that are right but for one field, for two, or for their size, from several threads at once, while
/// the sandbox's pages go out and come back.
pub fn mutated_calls(ctx: &mut Ctx) -> Result<()> {
    let mut world = ctx.world(64)?;
    world.store_mixed(3)?;
    let room = Region::new(20, BUFFER / PAGE_SIZE);
    sys::map(room.addr, BUFFER, Backing::Anonymous)?;
    let input = Region::new(21, 2);
    sys::map(input.addr, input.bytes(), Backing::Anonymous)?;
    let mut page = [0; sys::PAGE_WORDS];
    let range = world.region.range();
    page[..2].copy_from_slice(&[range.start, range.end]);
    sys::write_page(input.at(0), &page);
    for (word, bytes) in page
        .iter_mut()
        .zip(dictionary::dictionary().chunks_exact(8))
    {
        *word = u64::from_ne_bytes(bytes.try_into()?);
    }
    sys::write_page(input.at(1), &page);
    let other = ctx.cgroup("other")?;
    let cgroup = File::open(other.path())?;
    let calls = Scene {
        sandbox: world.sandbox.id,
        template: &world.template.name,
        pid: world.puppet.pid,
        region: &world.region,
        cgroup: &cgroup,
        input: input.addr as u64,
        buffer: room.addr as u64,
    }
    .calls();
    for call in &calls {
        let size = ((call.command >> 16) & 0x3fff) as usize;
        ensure!(
            call.bytes.len() == size,
            "{:#x}: {} bytes here, {size} in its number",
            call.command,
            call.bytes.len()
        );
    }
    let (done, refused) = (AtomicU64::new(0), AtomicU64::new(0));
    let end = Instant::now() + TIME;
    let device = ctx.device();
    let hammer = |thread: usize| -> Result<()> {
        let mut rng = Rng::new(100 + thread as u64);
        while Instant::now() < end {
            let call = &calls[rng.next() as usize % calls.len()];
            let mut bytes = call.mutated(&mut rng);
            let size = match rng.next() % 8 {
                0 => rng.next() as usize % 1024,
                1 => bytes.len() + rng.next() as usize % 64,
                _ => bytes.len(),
            };
            bytes.resize(size.max(bytes.len()), 0);
            let began = Instant::now();
            let result = sys::ioctl_bytes(device.fd(), resized(call.command, size), &mut bytes);
            let took = began.elapsed();
            ensure!(
                took < host::patience(LONGEST),
                "{:#x} took {took:?}: {bytes:?}",
                call.command
            );
            match result {
                Ok(()) => done.fetch_add(1, Ordering::Relaxed),
                Err(error) => {
                    let errno = error.raw_os_error().unwrap_or(0);
                    ensure!(
                        ERRORS.contains(&errno),
                        "{:#x}: {error}: {bytes:?}",
                        call.command
                    );
                    refused.fetch_add(1, Ordering::Relaxed)
                }
            };
        }
        Ok(())
    };
    std::thread::scope(|scope| -> Result<()> {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| scope.spawn(move || hammer(thread)))
            .collect();
        while Instant::now() < end {
            world.sandbox.cgroup.reclaim(1 << 20)?;
            world.check()?;
        }
        for thread in threads {
            thread.join().ok().context("a thread panicked")??;
        }
        Ok(())
    })?;
    let (done, refused) = (done.into_inner(), refused.into_inner());
    println!("# {done} calls succeeded, {refused} were refused");
    ensure!(
        done > 0 && refused > done / 10,
        "{done} calls succeeded, {refused} were refused"
    );
    world.check()
}

/// A descriptor of each kind is no cgroup, no file for a template, and no device of ours.
pub fn descriptors_of_every_kind(ctx: &mut Ctx) -> Result<()> {
    let template = ctx.template(16)?;
    let descriptors: Vec<(&str, OwnedFd)> = vec![
        ("a directory", File::open("/")?.into()),
        ("a file of proc", File::open("/proc/self/maps")?.into()),
        (
            "a file of sysfs",
            File::open(module::sysfs("armed"))?.into(),
        ),
        (
            "a file of a cgroup",
            File::open(ctx.root.path().join("cgroup.procs"))?.into(),
        ),
        ("an eventfd", sys::eventfd()?.into()),
        ("a socket", UnixStream::pair()?.0.into()),
        ("a pipe", rustix::pipe::pipe()?.0),
        ("a terminal", File::open("/dev/ptmx")?.into()),
        ("a character device", File::open("/dev/zero")?.into()),
        ("the device itself", module::Device::open()?.into_fd()),
    ];
    for (what, fd) in &descriptors {
        let attached = ctx.device().attach_fd(fd.as_raw_fd(), &template.name, None);
        let errno = attached.err().and_then(|error| error.raw_os_error());
        ensure!(
            errno.is_some_and(|errno| ERRORS.contains(&errno)),
            "attach {what}: {errno:?}"
        );
        for call in [uapi::INFO, uapi::STATS, uapi::ARM] {
            if *what == "the device itself" {
                continue;
            }
            let mut bytes = vec![0; size_of::<uapi::Stats>()];
            let called = sys::ioctl_bytes(fd.as_fd(), call, &mut bytes);
            ensure!(called.is_err(), "{what} takes our calls");
        }
    }
    let sandboxes = module::list("sandboxes")?;
    ensure!(sandboxes.is_empty(), "{sandboxes:?} attached");
    Ok(())
}
