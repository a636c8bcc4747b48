// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Calls and files in the hands of whoever means no good, or has a bug: calls that are right but for
//! something, from several threads at once; descriptors of every kind; every file of the sysfs tree, written
//! and read at random. Whatever comes of it, sandboxes keep what they hold.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use agentzip_uapi as uapi;
use anyhow::{ensure, Context, Result};

use super::dictionary;
use super::fixture::module::{self, name};
use super::fixture::page::Rng;
use super::fixture::puppet::Region;
use super::fixture::{host, Ctx};
use super::runner::Test;
use super::sys::{self, Backing, PAGE_SIZE};

macro_rules! test {
    ($f:ident) => {
        Test {
            name: concat!("hostile.", stringify!($f)),
            timeout_s: 120,
            run: $f,
        }
    };
}

/// The tests of this file.
pub const TESTS: &[Test] = &[
    test!(mutated_calls),
    test!(descriptors_of_every_kind),
    test!(files_written_and_read),
    test!(files_as_anybody),
];

/// How long calls are made.
const TIME: Duration = Duration::from_secs(15);
/// Threads that make them.
const THREADS: usize = 4;
/// Longest that one call may take.
const LONGEST: Duration = Duration::from_secs(10);

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

/// A field of an argument.
#[derive(Clone, Copy)]
enum Field {
    /// A number or flags of so many bytes.
    Number(usize),
    /// An address. Only some others are tried: with any other one the kernel might write to our own memory.
    Address,
    /// A name.
    Name,
    /// A signature.
    Signature,
}

use Field::{Address, Name, Number, Signature};

impl Field {
    fn size(self) -> usize {
        match self {
            Number(bytes) => bytes,
            Address => 8,
            Name => uapi::NAME_LEN,
            Signature => size_of::<uapi::Signature>(),
        }
    }
}

/// A call that is right.
struct Call {
    command: u32,
    fields: &'static [Field],
    bytes: Vec<u8>,
}

/// Puts an argument together, field by field.
struct Argument(Vec<u8>);

impl Argument {
    fn new() -> Argument {
        Argument(Vec::new())
    }

    fn u32(mut self, value: u32) -> Argument {
        self.0.extend(value.to_ne_bytes());
        self
    }

    fn u64(mut self, value: u64) -> Argument {
        self.0.extend(value.to_ne_bytes());
        self
    }

    fn name(mut self, text: &str) -> Argument {
        self.0.extend(name(text));
        self
    }

    fn zeros(mut self, bytes: usize) -> Argument {
        self.0.resize(self.0.len() + bytes, 0);
        self
    }
}

/// What the calls are about.
struct Scene<'a> {
    sandbox: u64,
    template: &'a str,
    pid: i32,
    region: &'a Region,
    cgroup: &'a File,
    /// A range of addresses, and in the next page a dictionary.
    input: u64,
    /// Memory to write to, with nothing mapped behind it.
    buffer: u64,
}

/// Bytes of [`Scene::buffer`].
const BUFFER: usize = 64 * PAGE_SIZE;

impl Scene<'_> {
    /// Calls that are right, of every kind but those that arm, disarm and drain.
    fn calls(&self) -> Vec<Call> {
        let range = self.region.range();
        let (id, ranges) = (self.sandbox, self.input);
        let dictionary = self.input + PAGE_SIZE as u64;
        let call = |command, fields, argument: Argument| Call {
            command,
            fields,
            bytes: argument.0,
        };
        let add = || {
            Argument::new()
                .u32(self.pid as u32)
                .u32(0)
                .u64(ranges)
                .u32(1)
                .u32(0)
                .name("other")
                .zeros(uapi::NAME_LEN + 24)
        };
        let attach = || {
            Argument::new()
                .u32(self.cgroup.as_raw_fd() as u32)
                .u32(0)
                .name(self.template)
                .zeros(2 * uapi::NAME_LEN + 8)
        };
        let signature = size_of::<uapi::Signature>();
        vec![
            call(
                uapi::TEMPLATE_ADD,
                &[
                    Number(4),
                    Number(4),
                    Address,
                    Number(4),
                    Number(4),
                    Name,
                    Name,
                ],
                add(),
            ),
            call(
                uapi::TEMPLATE_ADD_SIGNED,
                &[
                    Number(4),
                    Number(4),
                    Address,
                    Number(4),
                    Number(4),
                    Name,
                    Name,
                    Number(24),
                    Signature,
                ],
                add().zeros(signature),
            ),
            call(
                uapi::TEMPLATE_ADD_FILE,
                &[
                    Number(4),
                    Number(4),
                    Number(8),
                    Number(8),
                    Name,
                    Name,
                    Signature,
                ],
                Argument::new()
                    .u32(self.cgroup.as_raw_fd() as u32)
                    .u32(0)
                    .u64(0)
                    .u64(4096)
                    .name("file")
                    .zeros(uapi::NAME_LEN + signature + 24),
            ),
            call(
                uapi::TEMPLATE_REMOVE,
                &[Name],
                Argument::new().name("other").u64(0),
            ),
            call(
                uapi::SANDBOX_ATTACH,
                &[Number(4), Number(4), Name, Name, Name],
                attach(),
            ),
            call(
                uapi::SANDBOX_ATTACH_SIGNED,
                &[Number(4), Number(4), Name, Name, Name, Number(8), Signature],
                attach().zeros(signature),
            ),
            call(
                uapi::SANDBOX_RANGES,
                &[Number(8), Address, Number(4), Number(4)],
                Argument::new().u64(id).u64(ranges).u32(0).u32(0),
            ),
            call(
                uapi::SANDBOX_DETACH,
                &[Number(8)],
                Argument::new().u64(id + 1).u64(0),
            ),
            call(
                uapi::SANDBOX_PHASE,
                &[Number(8), Number(4), Number(4)],
                Argument::new().u64(id).u32(1).u32(0),
            ),
            call(
                uapi::DICTIONARY_ADD,
                &[Number(8), Address, Number(4)],
                Argument::new()
                    .u64(id)
                    .u64(dictionary)
                    .u32(PAGE_SIZE as u32)
                    .u32(0),
            ),
            call(
                uapi::DICTIONARY_RETIRE,
                &[Number(8), Number(4), Number(4)],
                Argument::new().u64(id).u32(0).u32(0),
            ),
            call(
                uapi::DICTIONARY_SAMPLES,
                &[
                    Number(8),
                    Address,
                    Number(4),
                    Number(4),
                    Number(8),
                    Number(4),
                    Number(4),
                ],
                Argument::new()
                    .u64(id)
                    .u64(self.buffer)
                    .u32(8)
                    .u32(1)
                    .u64(0)
                    .u64(0),
            ),
            call(
                uapi::SANDBOX_RECORD,
                &[Number(8), Number(4), Number(4)],
                Argument::new().u64(id).u32(64).u32(-1i32 as u32),
            ),
            call(
                uapi::FAULTS_READ,
                &[Number(8), Address, Number(4)],
                Argument::new()
                    .u64(id)
                    .u64(self.buffer)
                    .u32(64)
                    .u32(0)
                    .u64(0),
            ),
            call(
                uapi::PREFETCH,
                &[
                    Number(8),
                    Address,
                    Number(4),
                    Number(4),
                    Number(4),
                    Number(4),
                    Number(4),
                    Number(4),
                ],
                Argument::new()
                    .u64(id)
                    .u64(ranges)
                    .u32(1)
                    .u32(self.pid as u32)
                    .zeros(24),
            ),
            call(
                uapi::PAGE_STATES,
                &[
                    Number(8),
                    Number(8),
                    Number(8),
                    Address,
                    Number(4),
                    Number(4),
                ],
                Argument::new()
                    .u64(id)
                    .u64(range.start)
                    .u64(range.end)
                    .u64(self.buffer)
                    .u32(self.pid as u32)
                    .u32(0),
            ),
            call(uapi::STATS, &[Number(8)], {
                let rest = size_of::<uapi::Stats>() - 8;
                Argument::new().u64(id).zeros(rest)
            }),
        ]
    }
}

impl Call {
    /// The same with a field that is another one, and now and then a second one.
    fn mutated(&self, rng: &mut Rng) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        for _ in 0..1 + rng.next() % 2 {
            let which = rng.next() as usize % self.fields.len();
            let at: usize = self.fields[..which].iter().map(|field| field.size()).sum();
            let field = self.fields[which];
            let end = (at + field.size()).min(bytes.len());
            mutate(field, &mut bytes[at..end], rng);
        }
        bytes
    }
}

fn mutate(field: Field, bytes: &mut [u8], rng: &mut Rng) {
    const NUMBERS: [u64; 12] = [
        0,
        1,
        2,
        4095,
        4096,
        0x7fff_ffff,
        0x8000_0000,
        0xffff_ffff,
        1 << 47,
        i64::MAX as u64,
        u64::MAX - 4095,
        u64::MAX,
    ];
    // Null, the end of a page that nobody maps, the kernel's, no address at all.
    const ADDRESSES: [u64; 6] = [
        0,
        1,
        sys::ARENA_END as u64 - 8,
        0xffff_8880_0000_0000,
        1 << 47,
        u64::MAX,
    ];
    match field {
        Address => {
            let address = ADDRESSES[rng.next() as usize % ADDRESSES.len()];
            bytes.copy_from_slice(&address.to_ne_bytes());
        }
        Number(_) if rng.next() % 2 == 0 => {
            let number = NUMBERS[rng.next() as usize % NUMBERS.len()].to_ne_bytes();
            for (byte, new) in bytes.iter_mut().zip(number) {
                *byte = new;
            }
        }
        Number(_) | Name | Signature => {
            let at = rng.next() as usize % bytes.len();
            bytes[at] ^= 1 << (rng.next() % 8);
        }
    }
}

/// The same command with another size of its argument.
fn resized(command: u32, size: usize) -> u32 {
    (command & !(0x3fff << 16)) | ((size as u32) << 16)
}

/// Calls that are right but for one field, for two, or for their size, from several threads at once, while
/// the sandbox's pages go out and come back.
fn mutated_calls(ctx: &mut Ctx) -> Result<()> {
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
fn descriptors_of_every_kind(ctx: &mut Ctx) -> Result<()> {
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
fn files_written_and_read(ctx: &mut Ctx) -> Result<()> {
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
fn files_as_anybody(ctx: &mut Ctx) -> Result<()> {
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
