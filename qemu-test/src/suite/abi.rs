// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The control interface: what it reports, and what it refuses without changing anything.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use agentzip_ctl::btf::Btf;
use agentzip_uapi as uapi;
use anyhow::{ensure, Context, Result};

use super::fixture::module::{self, expect_errno, name, Counters, Device};
use super::fixture::page::Rng;
use super::fixture::puppet::Region;
use super::fixture::{controller, fault, host, Ctx};
use super::runner::Test;
use super::sys::{self, Forked};

macro_rules! test {
    ($f:ident) => {
        Test {
            name: concat!("abi.", stringify!($f)),
            timeout_s: 20,
            run: $f,
        }
    };
}

/// The tests of this file.
pub const TESTS: &[Test] = &[
    test!(info),
    test!(kernel_btf),
    test!(sysfs_tree),
    test!(max_bytes),
    test!(unprivileged_open),
    test!(unknown_command),
    test!(short_argument),
    test!(long_argument),
    test!(bad_address),
    test!(reserved_fields),
    test!(bad_names),
    test!(bad_ranges),
    test!(arm_twice),
    test!(random_calls),
];

/// The same command with another argument size.
pub fn resized(command: u32, size: usize) -> u32 {
    (command & !(0x3fff << 16)) | ((size as u32) << 16)
}

fn size_of_command(command: u32) -> usize {
    ((command >> 16) & 0x3fff) as usize
}

fn nothing_registered() -> Result<()> {
    for directory in ["templates", "sandboxes"] {
        let left = module::list(directory)?;
        ensure!(left.is_empty(), "{directory} has {}", left.join(" "));
    }
    Ok(())
}

fn info(ctx: &mut Ctx) -> Result<()> {
    let info = ctx.device().info()?;
    ensure!(info.abi_version == uapi::ABI_VERSION, "{info:?}");
    ensure!(
        (info.armed, info.enabled, info.draining) == (1, 1, 0),
        "{info:?}"
    );
    for (file, expected) in [
        ("abi_version", uapi::ABI_VERSION.into()),
        ("armed", 1),
        ("enabled", 1),
        ("draining", 0),
        ("prefetch", 1),
        ("keep_on_load", 1),
        ("recorder", 1),
    ] {
        let found = module::value(file)?;
        ensure!(found == expected, "{file} is {found}");
    }
    Ok(())
}

/// The module says which kernel it was built for, which is this one, and the controller arms it on no other.
fn kernel_btf(ctx: &mut Ctx) -> Result<()> {
    const BTF: &str = "/sys/kernel/btf/vmlinux";
    let recorded = host::read(module::sysfs("kernel_btf"))?;
    let running = Btf::new(BTF.into()).digest()?;
    // Only the debug kernel is built without.
    ensure!(
        running.is_some() != fault::available(),
        "the digest of {BTF} is {running:?}"
    );
    ensure!(
        recorded == running.as_deref().unwrap_or("none"),
        "kernel_btf is {recorded}, the digest of {BTF} {running:?}"
    );
    ctx.device().disarm().context("disarm")?;
    let expected = match running {
        Some(_) => "equal",
        None => "unknown",
    };
    let report = controller::run(&["arm", "--json"])?;
    let outcome: serde_json::Value = serde_json::from_str(&report).context("arm --json")?;
    ensure!(outcome["kernel_btf"] == expected, "arm: {report}");
    ensure!(module::value("armed")? == 1, "arm: {report}");
    if running.is_none() {
        return Ok(());
    }
    // Another kernel, as far as the controller can see.
    ctx.device().disarm().context("disarm")?;
    let program = controller::program().display().to_string();
    let env = [
        "AGENTZIP_BTF=/proc/version",
        program.as_str(),
        "arm",
        "--force",
    ];
    let refused = controller::output_of(Path::new("env"), &env[..3])?;
    let why = String::from_utf8_lossy(&refused.stderr);
    ensure!(
        refused.status.code() == Some(1) && why.contains("built for another kernel"),
        "arm: {why}"
    );
    ensure!(
        module::value("armed")? == 0,
        "armed for another kernel: {why}"
    );
    let forced = controller::output_of(Path::new("env"), &env)?;
    ensure!(
        forced.status.success() && module::value("armed")? == 1,
        "arm --force: {}",
        String::from_utf8_lossy(&forced.stderr)
    );
    Ok(())
}

fn sysfs_tree(ctx: &mut Ctx) -> Result<()> {
    let mut world = ctx.world(64)?;
    world.store_mixed(1)?;
    let global = Counters::global()?;
    let own = world.sandbox.counters()?;
    for field in [
        "stores",
        "loads",
        "erased",
        "declined_incompressible",
        "declined_nomem",
        "declined_full",
        "declined_detached",
        "load_errors",
        "template_backed",
        "promoted",
        "dropped",
        "encode_ns",
        "decode_ns",
        "prefetch_pages",
        "prefetch_present",
        "prefetch_absent",
        "prefetch_dropped",
        "prefetch_hits",
        "prefetch_misses",
        "prefetch_untested",
        "prefetch_ns",
        "faults",
        "faults_lost",
        "entries",
    ] {
        global.get(field)?;
        own.get(field)?;
    }
    for r in uapi::Representation::ALL {
        for kind in ["pages", "bytes"] {
            global.get(&format!("{kind}_{}", r.name()))?;
            own.get(&format!("{kind}_{}", r.name()))?;
        }
    }
    let entries = global.get("entries")?;
    let pages = global.sum("pages_");
    ensure!(entries == pages, "{entries} entries but {pages} pages");
    ensure!(global.get("encode_ns")? > 0, "encoding took no time");
    for field in [
        "arenas",
        "sketches",
        "table",
        "template_index",
        "scratch",
        "objects",
    ] {
        let bytes = global.get(&format!("memory_{field}"))?;
        ensure!(bytes > 0, "memory_{field} is 0 with entries in the store");
    }
    for (field, own) in [
        ("arenas", own.get("arena_bytes")?),
        ("references", own.get("group_reference_bytes")?),
    ] {
        let all = global.get(&format!("memory_{field}"))?;
        ensure!(
            all == own,
            "memory_{field} is {all}, the only sandbox's part {own}"
        );
    }
    // The worker may add to an index or compact between two readings.
    host::wait_until(
        "memory_total, its parts and STATS agree",
        Duration::from_secs(10),
        || {
            let global = Counters::global()?;
            let total = global.get("memory_total")?;
            let stats = ctx.device().stats(0)?;
            Ok(global.sum("memory_") - total == total && stats.memory.total() == total)
        },
    )?;

    let stats = ctx.device().stats(0)?;
    ensure!(stats.page.stores == global.get("stores")?, "STATS: stores");
    let stats = ctx.device().stats(world.sandbox.id)?;
    ensure!(
        stats.page.pages.iter().sum::<u64>() == own.get("entries")?,
        "STATS: entries"
    );
    ensure!(
        stats.memory.total() == 0,
        "memory is given for the whole store only"
    );

    let dir = module::sysfs(&format!("sandboxes/{}", world.sandbox.id));
    for (file, expected) in [
        ("template", world.template.name.as_str()),
        ("group", world.template.name.as_str()),
        ("domain", uapi::DEFAULT_DOMAIN),
        ("attached", "1"),
        ("max_bytes", "max"),
        ("level", "6"),
    ] {
        let found = host::read(dir.join(file))?;
        ensure!(found == expected, "{file} is {found:?}");
    }
    let added = &world.template.added;
    for (file, expected) in [
        ("pages_referenced", added.pages_referenced),
        ("pages_copied", added.pages_copied),
        ("pages_skipped", added.pages_skipped),
        ("users", 1),
    ] {
        let found = module::value(&format!("templates/{}/{file}", world.template.name))?;
        ensure!(
            found == expected,
            "template: {file} is {found}, not {expected}"
        );
    }
    modes(&module::sysfs(""))
}

/// Bounds take a number or "max", as the files of memory cgroups do; anything else changes nothing.
fn max_bytes(ctx: &mut Ctx) -> Result<()> {
    ctx.device().disarm().context("disarm")?;
    ctx.close_device();
    module::unload().context("unload")?;
    module::load("").context("load")?;
    ctx.open_device()?;
    ctx.device().arm().context("arm")?;
    let template = ctx.template(16)?;
    let sandbox = ctx.sandbox("box", &template.name)?;
    let store = module::sysfs("max_bytes");
    let own = module::sysfs(&format!("sandboxes/{}/max_bytes", sandbox.id));
    let first = host::number(&store)?;
    let ram = host::meminfo("MemTotal")?;
    ensure!(
        first == ram / 5,
        "max_bytes is {first} at first, with {ram} bytes of memory"
    );
    for file in [&store, &own] {
        for (text, expected) in [
            ("4096", "4096"),
            ("0\n", "0"),
            ("max\n", "max"),
            ("512", "512"),
        ] {
            host::write(file, text)?;
            let found = host::read(file)?;
            ensure!(found == expected, "{text:?} written, {found} read");
        }
        for bad in ["-1", "1K", "maximum", "0x10", "99999999999999999999"] {
            expect_errno(bad, fs::write(file, bad), &[libc::EINVAL])?;
        }
        let left = host::read(file)?;
        ensure!(left == "512", "refused values changed it to {left}");
    }
    host::write(&store, &first.to_string())
}

/// Sums are for everybody, what is about single sandboxes and templates for root and its group, switches for
/// root.
fn modes(dir: &Path) -> Result<()> {
    let of_one = ["sandboxes", "templates"].map(module::sysfs);
    let readers = match of_one.iter().any(|one| dir.starts_with(one)) {
        true => 0o440,
        false => 0o444,
    };
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            modes(&entry.path())?;
            continue;
        }
        let mode = entry.metadata()?.permissions().mode();
        let path = entry.path();
        ensure!(mode & 0o444 == readers, "{} is {mode:o}", path.display());
        ensure!(mode & 0o022 == 0, "{} is {mode:o}", path.display());
    }
    Ok(())
}

fn unprivileged_open(_ctx: &mut Ctx) -> Result<()> {
    let mode = fs::metadata(uapi::DEVICE_PATH)?.permissions().mode();
    ensure!(mode & 0o777 == 0o600, "{} is {mode:o}", uapi::DEVICE_PATH);
    let (report, answer) = std::os::unix::net::UnixStream::pair()?;
    match sys::fork()? {
        Forked::Child => {
            let refused = sys::become_nobody().is_ok()
                && Device::open().is_err_and(|e| e.raw_os_error() == Some(libc::EACCES));
            // The parent reads end of file when this fails.
            let _ = io::Write::write_all(&mut &answer, &[u8::from(refused)]);
            sys::exit_now(0)
        }
        Forked::Parent(_) => {
            drop(answer);
            let mut refused = [0];
            io::Read::read_exact(&mut &report, &mut refused)?;
            ensure!(refused == [1], "nobody can open the device");
            Ok(())
        }
    }
}

fn unknown_command(ctx: &mut Ctx) -> Result<()> {
    let mut bytes = [0u8; 64];
    for command in [
        resized((uapi::IOC_MAGIC << 8) | 0x7f, 16),
        resized((uapi::IOC_MAGIC << 8) | 0xff, 0),
        // Our number, another driver's type.
        uapi::INFO ^ 0x100,
        0,
    ] {
        let result = sys::ioctl_bytes(ctx.device().fd(), command, &mut bytes);
        expect_errno(&format!("command {command:#x}"), result, &[libc::ENOTTY])?;
    }
    Ok(())
}

/// Commands that take a structure.
const WITH_ARGUMENT: [u32; 15] = [
    uapi::INFO,
    uapi::TEMPLATE_ADD,
    uapi::TEMPLATE_REMOVE,
    uapi::SANDBOX_ATTACH,
    uapi::SANDBOX_DETACH,
    uapi::SANDBOX_PHASE,
    uapi::DICTIONARY_ADD,
    uapi::DICTIONARY_RETIRE,
    uapi::DICTIONARY_SAMPLES,
    uapi::PREFETCH,
    uapi::PAGE_STATES,
    uapi::SANDBOX_RECORD,
    uapi::FAULTS_READ,
    uapi::STATS,
    uapi::DRAIN,
];

fn short_argument(ctx: &mut Ctx) -> Result<()> {
    for command in WITH_ARGUMENT {
        let full = size_of_command(command);
        for size in [0, 1, full / 2, full - 1] {
            let mut bytes = vec![0u8; full];
            let result = sys::ioctl_bytes(ctx.device().fd(), resized(command, size), &mut bytes);
            expect_errno(
                &format!("command {command:#x} with {size} bytes"),
                result,
                &[libc::EINVAL],
            )?;
        }
    }
    ensure!(
        ctx.device().info()?.draining == 0,
        "a refused DRAIN drained"
    );
    nothing_registered()
}

fn long_argument(ctx: &mut Ctx) -> Result<()> {
    for (command, errno) in [
        (uapi::TEMPLATE_REMOVE, libc::EINVAL),
        (uapi::SANDBOX_PHASE, libc::ENOENT),
        (uapi::SANDBOX_DETACH, libc::ENOENT),
    ] {
        let full = size_of_command(command);
        let longer = resized(command, full + 24);
        let mut bytes = vec![0u8; full + 24];
        bytes[0] = u8::from(errno == libc::ENOENT);
        let zero_tail = sys::ioctl_bytes(ctx.device().fd(), longer, &mut bytes);
        expect_errno(&format!("{command:#x}, zero tail"), zero_tail, &[errno])?;
        bytes[full + 23] = 1;
        let tail = sys::ioctl_bytes(ctx.device().fd(), longer, &mut bytes);
        expect_errno(
            &format!("{command:#x}, tail not zero"),
            tail,
            &[libc::E2BIG],
        )?;
    }
    let mut bytes = vec![0u8; size_of::<uapi::Info>() + 8];
    let command = resized(uapi::INFO, bytes.len());
    sys::ioctl_bytes(ctx.device().fd(), command, &mut bytes).context("longer INFO")?;
    ensure!(
        bytes[0] == uapi::ABI_VERSION as u8,
        "longer INFO gives {bytes:?}"
    );
    Ok(())
}

fn bad_address(ctx: &mut Ctx) -> Result<()> {
    for command in WITH_ARGUMENT {
        let result = sys::ioctl_address(ctx.device().fd(), command, 0);
        expect_errno(&format!("{command:#x} at 0"), result, &[libc::EFAULT])?;
    }
    // A DRAIN whose result could not be written may have begun.
    if ctx.device().info()?.draining == 1 {
        ctx.device().disarm()?;
        ctx.device().arm()?;
    }
    Ok(())
}

fn reserved_fields(ctx: &mut Ctx) -> Result<()> {
    let template = ctx.template(16)?;
    let cgroup = ctx.cgroup("box")?;
    let dir = File::open(cgroup.path())?;
    let mut attach = uapi::SandboxAttach {
        cgroup_fd: dir.as_raw_fd(),
        flags: uapi::SANDBOX_SENSITIVE << 1,
        template: name(&template.name),
        group: [0; uapi::NAME_LEN],
        domain: [0; uapi::NAME_LEN],
        cgroup_id: 0,
    };
    let fd = ctx.device().fd();
    let result = sys::ioctl(fd, uapi::SANDBOX_ATTACH, &mut attach);
    expect_errno("attach with a flag", result, &[libc::EINVAL])?;

    let range = template.region.range();
    for (flags, reserved) in [(1, 0), (0, 1)] {
        let mut add = uapi::TemplateAdd {
            pid: template.holder.pid,
            flags,
            ranges: std::ptr::from_ref(&range) as u64,
            nr_ranges: 1,
            reserved,
            name: name("other"),
            domain: [0; uapi::NAME_LEN],
            pages_referenced: 0,
            pages_copied: 0,
            pages_skipped: 0,
        };
        let result = sys::ioctl(fd, uapi::TEMPLATE_ADD, &mut add);
        expect_errno("template with reserved bits", result, &[libc::EINVAL])?;
    }
    let sandbox = ctx.sandbox("box2", &template.name)?;
    let mut phase = uapi::SandboxPhase {
        cgroup_id: sandbox.id,
        phase: 0,
        reserved: 1,
    };
    let result = sys::ioctl(fd, uapi::SANDBOX_PHASE, &mut phase);
    expect_errno("phase with reserved bits", result, &[libc::EINVAL])
}

fn bad_names(ctx: &mut Ctx) -> Result<()> {
    let template = ctx.template(16)?;
    let field = |text: &[u8]| {
        let mut field = [0u8; uapi::NAME_LEN];
        field[..text.len()].copy_from_slice(text);
        field
    };
    let range = template.region.range();
    for bad in [
        field(b""),
        field(b".hidden"),
        field(b"a/b"),
        field(b"two words"),
        field(b"a\0b"),
        field("\u{e4}".as_bytes()),
        [b'x'; uapi::NAME_LEN],
    ] {
        let mut add = uapi::TemplateAdd {
            pid: template.holder.pid,
            flags: 0,
            ranges: std::ptr::from_ref(&range) as u64,
            nr_ranges: 1,
            reserved: 0,
            name: bad,
            domain: [0; uapi::NAME_LEN],
            pages_referenced: 0,
            pages_copied: 0,
            pages_skipped: 0,
        };
        let result = sys::ioctl(ctx.device().fd(), uapi::TEMPLATE_ADD, &mut add);
        expect_errno(&format!("name {bad:?}"), result, &[libc::EINVAL])?;
        if bad[0] != 0 {
            add.name = name("other");
            add.domain = bad;
            let result = sys::ioctl(ctx.device().fd(), uapi::TEMPLATE_ADD, &mut add);
            expect_errno(&format!("domain {bad:?}"), result, &[libc::EINVAL])?;
        }
    }
    let left = module::list("templates")?;
    ensure!(left == [template.name], "templates are {left:?}");
    Ok(())
}

fn bad_ranges(ctx: &mut Ctx) -> Result<()> {
    let cgroup = ctx.cgroup("hold")?;
    let (_family, zygote, region) = ctx.zygote(16, &cgroup)?;
    let (start, end) = (region.range().start, region.range().end);
    let range = |start, end| uapi::Range { start, end };
    let cases: [(&str, &[uapi::Range]); 8] = [
        ("no range", &[]),
        ("empty", &[range(start, start)]),
        ("backwards", &[range(end, start)]),
        ("start not aligned", &[range(start + 1, end)]),
        ("end not aligned", &[range(start, end - 1)]),
        ("overlap", &[range(start, end), range(end - 4096, end)]),
        ("not sorted", &[range(end, end + 4096), range(start, end)]),
        ("kernel addresses", &[range(1 << 63, (1 << 63) + 4096)]),
    ];
    for (what, ranges) in cases {
        let result = ctx.device().template_add("bad", zygote.pid, ranges);
        expect_errno(what, result, &[libc::EINVAL, libc::EFAULT, libc::ENODATA])?;
    }
    let good = [region.range()];
    let result = ctx.device().template_add("bad", i32::MAX, &good);
    expect_errno("no such process", result, &[libc::ESRCH])?;
    let result = ctx.device().template_add("bad", 0, &good);
    expect_errno("pid 0", result, &[libc::ESRCH, libc::EINVAL])?;
    let result = ctx.device().template_add("bad", -1, &good);
    expect_errno("pid -1", result, &[libc::ESRCH, libc::EINVAL])?;
    for (ranges, nr_ranges, errnos) in [
        (8, 1, [libc::EFAULT, libc::EFAULT]),
        (1 << 63, 1, [libc::EFAULT, libc::EFAULT]),
        (
            good.as_ptr() as u64,
            uapi::MAX_RANGES + 1,
            [libc::EINVAL, libc::E2BIG],
        ),
        (good.as_ptr() as u64, u32::MAX, [libc::EINVAL, libc::E2BIG]),
    ] {
        let mut add = uapi::TemplateAdd {
            pid: zygote.pid,
            flags: 0,
            ranges,
            nr_ranges,
            reserved: 0,
            name: name("bad"),
            domain: [0; uapi::NAME_LEN],
            pages_referenced: 0,
            pages_copied: 0,
            pages_skipped: 0,
        };
        let result = sys::ioctl(ctx.device().fd(), uapi::TEMPLATE_ADD, &mut add);
        expect_errno(
            &format!("{nr_ranges} ranges at {ranges:#x}"),
            result,
            &errnos,
        )?;
    }
    nothing_registered()?;
    // A hole is no error: there is just nothing in it.
    let hole = Region::new(9, 4).range();
    let added = ctx
        .device()
        .template_add("hole", zygote.pid, &[good[0], hole])?;
    let taken = added.pages_referenced + added.pages_copied;
    ensure!(taken == 16, "{taken} pages taken of 16 and a hole");
    Ok(())
}

fn arm_twice(ctx: &mut Ctx) -> Result<()> {
    let device = ctx.device();
    // Arming what is armed and disarming what is not may be refused, and change nothing.
    if let Err(e) = device.arm() {
        let errno = e.raw_os_error().unwrap_or(0);
        ensure!(
            [libc::EBUSY, libc::EALREADY, libc::EEXIST].contains(&errno),
            "arm twice: {e}"
        );
    }
    ensure!(device.info()?.armed == 1, "not armed after arming twice");
    device.disarm()?;
    for file in ["armed", "recorder"] {
        ensure!(module::value(file)? == 0, "{file} is not 0 after disarm");
    }
    if let Err(e) = device.disarm() {
        let errno = e.raw_os_error().unwrap_or(0);
        ensure!(
            [libc::EINVAL, libc::EALREADY, libc::ENODEV].contains(&errno),
            "disarm twice: {e}"
        );
    }
    let claimed = super::fixture::trace::claimed()?;
    ensure!(claimed.is_empty(), "still hooked: {claimed:?}");
    device.arm()?;
    ensure!(module::value("recorder")? == 1, "no recorder after arming");
    let claimed = super::fixture::trace::claimed()?;
    ensure!(claimed.len() == 3, "hooked after arming: {claimed:?}");
    Ok(())
}

/// Noise in every argument: nothing may come of it, least of all a crash.
fn random_calls(ctx: &mut Ctx) -> Result<()> {
    let mut world = ctx.world(64)?;
    world.store_mixed(3)?;
    let mut rng = Rng::new(2);
    // ARM, DISARM and DRAIN take no argument that could be wrong, so they are left out.
    let commands = [
        uapi::TEMPLATE_ADD,
        uapi::TEMPLATE_REMOVE,
        uapi::SANDBOX_ATTACH,
        uapi::SANDBOX_DETACH,
        uapi::SANDBOX_PHASE,
        uapi::DICTIONARY_ADD,
        uapi::DICTIONARY_RETIRE,
        uapi::DICTIONARY_SAMPLES,
        uapi::PREFETCH,
        uapi::PAGE_STATES,
        uapi::SANDBOX_RECORD,
        uapi::FAULTS_READ,
        uapi::STATS,
    ];
    for _ in 0..3000 {
        let command = commands[rng.next() as usize % commands.len()];
        let full = size_of_command(command);
        let size = match rng.next() % 4 {
            0 => rng.next() as usize % 1024,
            1 => full + rng.next() as usize % 64,
            _ => full,
        };
        let mut bytes = vec![0u8; size.max(full)];
        for byte in &mut bytes {
            let r = rng.next();
            *byte = if r & 0x300 == 0 { r as u8 } else { 0 };
        }
        if rng.next() % 2 == 0 && full > 56 {
            bytes[24..32].copy_from_slice(b"template");
        }
        // A STATS of id 0 may succeed; everything else must fail, in whatever way.
        let known = command == uapi::STATS;
        let result = sys::ioctl_bytes(ctx.device().fd(), resized(command, size), &mut bytes);
        ensure!(
            result.is_err() || known,
            "command {command:#x} accepted noise"
        );
    }
    world.check()?;
    let templates = module::list("templates")?;
    ensure!(templates == [world.template.name.as_str()], "{templates:?}");
    Ok(())
}
