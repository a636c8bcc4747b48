// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What is refused, and changes nothing.

use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use agentzip_uapi as uapi;
use anyhow::{ensure, Context, Result};
use rustix::fs::{fcntl_add_seals, ftruncate, memfd_create, MemfdFlags};

use super::super::fixture::module::{self, expect_errno, name, Counters};
use super::super::fixture::page::Rng;
use super::super::fixture::{host, Ctx};
use super::super::sys::{self, PAGE_SIZE};
use super::calls::{add_file, add_part, call, set_ranges, set_ranges_at, Bytes, NONE};
use super::restored::{
    disk_file, memfd, original, path_of, sealed_memfd, write_page, Restored, SEALED,
};

/// What is no file, what is not open, parts that there are not.
pub fn hostile_files(ctx: &mut Ctx) -> Result<()> {
    let device = ctx.device();
    let file = sealed_memfd(16)?;
    let fd = file.as_raw_fd();
    let open = |path: &str| File::open(path).with_context(|| format!("open {path}"));
    let write_only = OpenOptions::new().write(true).open(path_of(&file))?;
    let (pipe, _end) = rustix::pipe::pipe()?;
    let (path, empty) = disk_file(0)?;
    let hugetlb: Option<OwnedFd> =
        memfd_create("agentzip-suite", MemfdFlags::HUGETLB | MemfdFlags::CLOEXEC).ok();
    let o_path = rustix::fs::open(&path, rustix::fs::OFlags::PATH, rustix::fs::Mode::empty())?;
    let directory = open("/")?;
    let proc = open("/proc/self/maps")?;
    let zero = open("/dev/zero")?;
    let disk = File::open(host::swap_disk()?)?;
    let device_file = device.fd();
    let cases: [(&str, BorrowedFd<'_>, i32); 9] = [
        ("a directory", directory.as_fd(), libc::EINVAL),
        ("a file of procfs", proc.as_fd(), libc::EINVAL),
        ("/dev/zero", zero.as_fd(), libc::EINVAL),
        ("a disk", disk.as_fd(), libc::EINVAL),
        ("a pipe", pipe.as_fd(), libc::EINVAL),
        ("the device", device_file, libc::EINVAL),
        ("write only", write_only.as_fd(), libc::EBADF),
        ("O_PATH", o_path.as_fd(), libc::EBADF),
        ("an empty file", empty.as_fd(), libc::ENODATA),
    ];
    for (what, fd, errno) in cases {
        let result = add_part(device, "bad", fd.as_raw_fd(), 0, 0, NONE);
        expect_errno(what, result, &[errno])?;
    }
    if let Some(hugetlb) = hugetlb {
        let result = add_part(device, "bad", hugetlb.as_raw_fd(), 0, 0, NONE);
        expect_errno("an empty hugetlb memfd", result, &[libc::ENODATA])?;
    }
    for fd in [-1, i32::MAX, i32::MIN, 4000] {
        let result = add_part(device, "bad", fd, 0, 0, NONE);
        expect_errno(&format!("descriptor {fd}"), result, &[libc::EBADF])?;
    }
    let page = PAGE_SIZE as u64;
    for (offset, length, errno) in [
        (1, 0, libc::EINVAL),
        (0, 1, libc::EINVAL),
        (page, page + 8, libc::EINVAL),
        (u64::MAX, 0, libc::EINVAL),
        (u64::MAX - page + 1, u64::MAX - page + 1, libc::ENODATA),
        (1 << 63, 0, libc::ENODATA),
        (1 << 63, 1 << 63, libc::ENODATA),
        (16 * page, 0, libc::ENODATA),
    ] {
        let what = format!("{length:#x} bytes from {offset:#x}");
        expect_errno(
            &what,
            add_part(device, "bad", fd, offset, length, NONE),
            &[errno],
        )?;
    }
    // A sparse file as large as there can be.
    let huge = memfd(1)?;
    ftruncate(&huge, (1 << 62) + 4096)?;
    write_page(&huge, 1 << 40, original(1))?;
    fcntl_add_seals(&huge, SEALED)?;
    let taken = add_part(device, "huge", huge.as_raw_fd(), 0, 0, NONE)?;
    ensure!(taken.referenced == 2, "{taken:?}");

    let mut flags = Bytes::default()
        .with(fd.to_ne_bytes())
        .with(1u32.to_ne_bytes())
        .with([0; 16])
        .with(name("bad"))
        .with([0; uapi::NAME_LEN + uapi::SIGNATURE_LEN + 24]);
    let result = call(device, uapi::TEMPLATE_ADD_FILE, &mut flags);
    expect_errno("a flag", result, &[libc::EINVAL])?;
    let result = add_part(device, "huge", fd, 0, 0, NONE);
    expect_errno("a name that is taken", result, &[libc::EEXIST])?;
    let left = module::list("templates")?;
    ensure!(left == ["huge"], "templates are {left:?}");
    // Our descriptor has not moved.
    let position = rustix::fs::tell(&huge)?;
    ensure!(position == 0, "the file's position is {position}");
    Ok(std::fs::remove_file(path)?)
}

/// Ranges that are refused leave the former ones.
pub fn hostile_ranges(ctx: &mut Ctx) -> Result<()> {
    let file = sealed_memfd(16)?;
    add_file(ctx, "t", &file)?;
    let sandbox = ctx.sandbox("box", "t")?;
    let id = sandbox.id;
    let range = |start: u64, end: u64, offset: u64| uapi::SandboxRange { start, end, offset };
    let good = [range(0x1000, 0x3000, 0), range(0x2000, 0x4000, 0x1000)];
    set_ranges(ctx, id, &good)?;
    let deep: Vec<_> = (0..9).map(|n| range(n << 12, 1 << 20, n << 12)).collect();
    let many = vec![range(0x1000, 0x2000, 0); uapi::MAX_SANDBOX_RANGES as usize + 1];
    let cases: [(&str, &[uapi::SandboxRange], i32); 10] = [
        ("empty", &[range(0x1000, 0x1000, 0)], libc::EINVAL),
        ("backwards", &[range(0x2000, 0x1000, 0)], libc::EINVAL),
        ("start not aligned", &[range(1, 0x1000, 0)], libc::EINVAL),
        ("end not aligned", &[range(0, 0x1001, 0)], libc::EINVAL),
        ("offset not aligned", &[range(0, 0x1000, 8)], libc::EINVAL),
        (
            "not sorted",
            &[range(0x2000, 0x3000, 0), range(0x1000, 0x2000, 0)],
            libc::EINVAL,
        ),
        ("nine over each other", &deep, libc::E2BIG),
        ("too many", &many, libc::E2BIG),
        ("the same eight hundred times", &many[..800], libc::E2BIG),
        (
            "the whole address space",
            &[range(0, u64::MAX, 0)],
            libc::EINVAL,
        ),
    ];
    for (what, ranges, errno) in cases {
        expect_errno(what, set_ranges(ctx, id, ranges), &[errno])?;
    }
    for (address, count, errno) in [
        (8, 1, libc::EFAULT),
        (1 << 63, 1, libc::EFAULT),
        (u64::MAX, 1, libc::EFAULT),
        (good.as_ptr() as u64, u32::MAX, libc::E2BIG),
    ] {
        let what = format!("{count} ranges at {address:#x}");
        expect_errno(&what, set_ranges_at(ctx, id, address, count), &[errno])?;
    }
    for id in [0, 1, u64::MAX] {
        expect_errno("no sandbox", set_ranges(ctx, id, &good), &[libc::ENOENT])?;
    }
    let mut reserved = Bytes::default()
        .with(id.to_ne_bytes())
        .with([0; 12])
        .with(1u32.to_ne_bytes());
    let result = call(ctx.device(), uapi::SANDBOX_RANGES, &mut reserved);
    expect_errno("reserved bits", result, &[libc::EINVAL])?;
    // None of it changed anything, and the extremes are fine.
    let count = || module::value(&format!("sandboxes/{id}/ranges"));
    ensure!(count()? == 2, "{} ranges", count()?);
    let extremes = [range(0, 1 << 63, 0), range(1 << 63, u64::MAX << 12, 0)];
    set_ranges(ctx, id, &extremes)?;
    set_ranges(ctx, id, &deep[1..])?;
    ensure!(count()? == 8, "{} ranges", count()?);
    let most: Vec<_> = (0..u64::from(uapi::MAX_SANDBOX_RANGES))
        .map(|n| range(n << 13, (n << 13) + 0x1000, n << 12))
        .collect();
    let before = Counters::global()?.get("memory_objects")?;
    set_ranges(ctx, id, &most)?;
    let grown = Counters::global()?.get("memory_objects")? - before;
    ensure!(grown >= 1000 * 24, "{grown} bytes counted for 1024 ranges");
    Ok(())
}

/// Noise in the new commands: nothing may come of it.
pub fn noise(ctx: &mut Ctx) -> Result<()> {
    ctx.swap()?;
    let file = sealed_memfd(64)?;
    add_file(ctx, "t", &file)?;
    let restored = Restored::start(ctx, "t", 0, 64)?;
    let mut rng = Rng::new(4);
    for _ in 0..3000 {
        let (command, full) = match rng.next() % 2 {
            0 => (uapi::TEMPLATE_ADD_FILE, size_of::<uapi::TemplateAddFile>()),
            _ => (uapi::SANDBOX_RANGES, size_of::<uapi::SandboxRanges>()),
        };
        let size = match rng.next() % 4 {
            0 => rng.next() as usize % 512,
            _ => full,
        };
        let mut bytes = vec![0u8; size.max(full)];
        for byte in &mut bytes {
            let r = rng.next();
            *byte = if r & 0x300 == 0 { r as u8 } else { 0 };
        }
        // Half of the calls get a good start: our file, our sandbox.
        if rng.next() % 2 == 0 {
            let (good, at) = match command {
                uapi::TEMPLATE_ADD_FILE => (file.as_raw_fd() as u64, 0),
                _ => (restored.sandbox.id, 0),
            };
            bytes[at..at + 8].copy_from_slice(&good.to_ne_bytes());
        }
        let command = (command & !(0x3fff << 16)) | ((size as u32) << 16);
        let result = sys::ioctl_bytes(ctx.device().fd(), command, &mut bytes);
        // Ranges without any are legal; everything else must fail, in whatever way.
        let emptied = size >= full && bytes[16..24].iter().all(|&b| b == 0);
        ensure!(
            result.is_err() || emptied,
            "command {command:#x} accepted noise"
        );
    }
    restored.check()?;
    let templates = module::list("templates")?;
    ensure!(templates == ["t"], "{templates:?}");
    Ok(())
}
