// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What is refused, and queues nothing then.

use agentzip_uapi as uapi;
use anyhow::{ensure, Context, Result};

use super::super::fixture::module::{self, expect_errno};
use super::super::fixture::{host, Ctx};
use super::super::sys;
use super::{expect_grown, Scene};

pub fn hostile_arguments(ctx: &mut Ctx) -> Result<()> {
    let scene = Scene::start(ctx, 64)?;
    let before = scene.counters()?;
    let device = ctx.device();
    let good = scene.region.range();
    let (start, end) = (good.start, good.end);
    let range = |start, end| uapi::Range { start, end };
    let kernel = 0xffff_8880_0000_0000;
    let pages = uapi::MAX_PREFETCH_PAGES << 12;
    let cases: [(&str, &[uapi::Range], i32); 9] = [
        ("no range", &[], libc::EINVAL),
        ("empty", &[good, range(start, start)], libc::EINVAL),
        ("backwards", &[range(end, start)], libc::EINVAL),
        ("start not aligned", &[range(start + 1, end)], libc::EINVAL),
        (
            "end not aligned",
            &[good, range(start, end - 1)],
            libc::EINVAL,
        ),
        ("kernel", &[range(kernel, kernel + 4096)], libc::EINVAL),
        (
            "across the end",
            &[range((1 << 56) - 4096, 1 << 56)],
            libc::EINVAL,
        ),
        ("all", &[range(0, !0xfff)], libc::EINVAL),
        (
            "too many pages",
            &[range(start, start + pages), good],
            libc::E2BIG,
        ),
    ];
    for (what, ranges, errno) in cases {
        let result = device.prefetch(ranges, scene.request());
        expect_errno(what, result, &[errno])?;
    }
    let too_many = vec![good; uapi::MAX_PREFETCH_RANGES as usize + 1];
    let result = device.prefetch(&too_many, scene.request());
    expect_errno("too many ranges", result, &[libc::E2BIG])?;
    let request = scene.request();
    for (what, request) in [
        (
            "a flag",
            uapi::Prefetch {
                flags: 2,
                ..request
            },
        ),
        (
            "timeout",
            uapi::Prefetch {
                timeout_ms: uapi::MAX_PREFETCH_MS + 1,
                ..request
            },
        ),
        (
            "window",
            uapi::Prefetch {
                hit_window_ms: u32::MAX,
                ..request
            },
        ),
    ] {
        expect_errno(what, device.prefetch(&[good], request), &[libc::EINVAL])?;
    }
    let mut nowhere = uapi::Prefetch {
        ranges: 4096,
        nr_ranges: 1,
        ..request
    };
    let result = sys::ioctl(device.fd(), uapi::PREFETCH, &mut nowhere);
    expect_errno("ranges at a bad address", result, &[libc::EFAULT])?;

    let (id, pid) = (scene.world.sandbox.id, scene.puppet().pid);
    for (what, range, errno) in [
        ("states of no page", range(start, start), libc::EINVAL),
        ("states, not aligned", range(start, end + 1), libc::EINVAL),
        (
            "states of the kernel",
            range(kernel, kernel + 4096),
            libc::EINVAL,
        ),
    ] {
        expect_errno(what, device.page_states(id, pid, range, false), &[errno])?;
    }
    let mut states = uapi::PageStates {
        cgroup_id: id,
        start,
        end: start + pages + 4096,
        states: 4096,
        pid,
        flags: 0,
    };
    let result = sys::ioctl(device.fd(), uapi::PAGE_STATES, &mut states);
    expect_errno("states of too many pages", result, &[libc::E2BIG])?;
    states.end = end;
    let result = sys::ioctl(device.fd(), uapi::PAGE_STATES, &mut states);
    expect_errno("states to a bad address", result, &[libc::EFAULT])?;
    states.flags = 2;
    let result = sys::ioctl(device.fd(), uapi::PAGE_STATES, &mut states);
    expect_errno("states with a flag", result, &[libc::EINVAL])?;

    expect_grown(&before, &[("prefetch_pages", 0), ("prefetch_dropped", 0)])?;
    ensure!(
        scene.puppet().pages_out(&scene.region)? == 64,
        "something was restored"
    );
    // As many as there may be, over each other and in any order.
    let mut ranges = vec![good, range(start + 8192, end), range(0, 4096)];
    ranges.resize(1024, range(start, start + 4096));
    let pages = device.prefetch(&ranges, scene.request())?;
    super::wait_ended(&before, pages)?;
    expect_grown(&before, &[("prefetch_absent", 1), ("prefetch_dropped", 0)])?;
    // What two jobs restore at the same time both count.
    let restored = before.grown("prefetch_pages")?;
    ensure!(
        (64..=64 + 62).contains(&restored),
        "{restored} pages restored"
    );
    scene.puppet().check(&scene.region)
}

pub fn foreign_processes(ctx: &mut Ctx) -> Result<()> {
    let mut scene = Scene::start(ctx, 16)?;
    let range = scene.region.range();
    let dead = {
        let cgroup = scene.world.sandbox.cgroup.clone();
        let puppet = scene.world.template.spawn(&cgroup)?;
        let pid = puppet.pid;
        puppet.kill()?;
        pid
    };
    let beside = ctx.sandbox("beside", &scene.world.template.name)?;
    let own = scene.puppet().pid;
    let id = scene.world.sandbox.id;
    // Number 2 is kthreadd.
    for (what, id, pid, errno) in [
        ("dead", id, dead, libc::ESRCH),
        ("nobody", id, 0, libc::ESRCH),
        ("negative", id, -1, libc::ESRCH),
        ("a kernel thread", id, 2, libc::ESRCH),
        (
            "the zygote",
            id,
            scene.world.template.zygote.pid,
            libc::EPERM,
        ),
        ("us", id, std::process::id() as i32, libc::EPERM),
        ("of another sandbox", beside.id, own, libc::EPERM),
        ("no sandbox", 1, own, libc::ENOENT),
    ] {
        let request = uapi::Prefetch {
            cgroup_id: id,
            pid,
            ..scene.request()
        };
        expect_errno(what, ctx.device().prefetch(&[range], request), &[errno])?;
        let states = ctx.device().page_states(id, pid, range, true);
        expect_errno(what, states, &[errno])?;
    }
    // One that has left is not restored for, though its request was taken.
    let outside = ctx.cgroup("outside")?;
    outside.enter(own)?;
    let result = ctx.device().prefetch(&[range], scene.request());
    expect_errno("one that left", result, &[libc::EPERM])?;
    ensure!(scene.puppet().pages_out(&scene.region)? == 16, "restored");
    // A cgroup below belongs to it.
    scene.world.sandbox.cgroup.remove().ok();
    Ok(())
}

pub fn switched_off(ctx: &mut Ctx) -> Result<()> {
    let scene = Scene::start(ctx, 64)?;
    let before = scene.counters()?;
    host::write(module::sysfs("prefetch"), "0").context("switch off")?;
    let result = ctx
        .device()
        .prefetch(&[scene.region.range()], scene.request());
    expect_errno("switched off", result, &[libc::EOPNOTSUPP])?;
    for bad in ["2", "on"] {
        expect_errno(
            bad,
            std::fs::write(module::sysfs("prefetch"), bad),
            &[libc::EINVAL],
        )?;
    }
    host::write(module::sysfs("prefetch"), "1")?;
    expect_grown(&before, &[("prefetch_pages", 0)])?;
    scene.restore(ctx, &[&scene.region])?;
    expect_grown(&before, &[("prefetch_pages", 64)])
}
