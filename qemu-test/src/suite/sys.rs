// SPDX-License-Identifier: GPL-2.0 OR MIT

//! System calls that have no safe wrapper: with `bpf.rs` the only file of the suite with `unsafe`.
//!
//! Memory of a test child is reached by address. Such addresses lie in the *arena*, a stretch of
//! the address space that only [`map`] populates and that Rust's allocator and stack never use.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Error, Write};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;

/// Bytes of a page.
pub const PAGE_SIZE: usize = 4096;
/// Words of a page.
pub const PAGE_WORDS: usize = PAGE_SIZE / 8;
/// A page as the tests see it.
pub type Page = [u64; PAGE_WORDS];

/// First address of the arena.
pub const ARENA: usize = 0x10_0000_0000;
/// Address after the arena.
pub const ARENA_END: usize = 0x100_0000_0000;

fn check(ret: i64) -> io::Result<i64> {
    if ret < 0 {
        Err(Error::last_os_error())
    } else {
        Ok(ret)
    }
}

fn c_path(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_encoded_bytes())?)
}

fn in_arena(addr: usize, len: usize) {
    let end = addr.checked_add(len).expect("address overflow");
    assert!(
        addr >= ARENA && end <= ARENA_END,
        "address outside of the arena"
    );
}

/// Which side of [`fork`] we are on.
pub enum Forked {
    /// The new process.
    Child,
    /// The old process, with the pid of the new one.
    Parent(i32),
}

/// `fork(2)`. The caller must be single-threaded, as every process of the suite is.
pub fn fork() -> io::Result<Forked> {
    // SAFETY: the process has one thread (see above), so the child may go on using everything.
    match check(i64::from(unsafe { libc::fork() }))? {
        0 => Ok(Forked::Child),
        pid => Ok(Forked::Parent(pid as i32)),
    }
}

/// `_exit(2)`: ends the process without running exit handlers of the parent's copy.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: no memory is touched.
    unsafe { libc::_exit(code) }
}

/// Waits for a child without blocking: its wait status once it has ended.
pub fn try_wait(pid: i32) -> io::Result<Option<i32>> {
    let mut status = 0;
    // SAFETY: `status` outlives the call.
    match check(i64::from(unsafe {
        libc::waitpid(pid, &mut status, libc::WNOHANG)
    }))? {
        0 => Ok(None),
        _ => Ok(Some(status)),
    }
}

/// `kill(2)`; a negative pid means a process group.
pub fn kill(pid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: no memory is touched.
    check(i64::from(unsafe { libc::kill(pid, signal) })).map(drop)
}

/// Whether a process of this pid exists.
pub fn alive(pid: i32) -> bool {
    kill(pid, 0).is_ok()
}

/// Makes the caller the leader of a new process group.
pub fn new_process_group() -> io::Result<()> {
    // SAFETY: no memory is touched.
    check(i64::from(unsafe { libc::setpgid(0, 0) })).map(drop)
}

/// Ignores SIGCHLD, so that ended children leave no zombies.
pub fn ignore_sigchld() {
    // SAFETY: SIG_IGN is a valid disposition and no Rust code depends on SIGCHLD here.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
}

/// Lets SIGCHLD have its default action again, which `exec`ed programs expect.
pub fn default_sigchld() {
    // SAFETY: SIG_DFL is a valid disposition.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
}

/// Sets the name of the calling thread (15 bytes are kept).
pub fn set_comm(name: &str) -> io::Result<()> {
    let name = CString::new(name)?;
    // SAFETY: `name` is a NUL-terminated string that outlives the call.
    check(i64::from(unsafe {
        libc::prctl(libc::PR_SET_NAME, name.as_ptr())
    }))
    .map(drop)
}

/// The child dies with the process that forked it.
pub fn die_with_parent() -> io::Result<()> {
    // SAFETY: no memory is touched.
    check(i64::from(unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL)
    }))
    .map(drop)
}

/// A program that is started dies with the thread that starts it.
pub fn program_dies_with_us(command: &mut std::process::Command) {
    // SAFETY: between fork and exec only prctl(2) is called, which allocates nothing.
    unsafe {
        std::os::unix::process::CommandExt::pre_exec(command, die_with_parent);
    }
}

/// Closes all descriptors but these and the standard ones.
///
/// Only for a forked child that never returns to code that owns one of the others.
pub fn close_all_but(keep: &[RawFd]) {
    let mut keep = keep.to_vec();
    keep.sort_unstable();
    let mut first = 3;
    for end in keep.into_iter().chain([RawFd::MAX]) {
        if end > first {
            // SAFETY: the owners of these descriptors are never run again, see above.
            unsafe { libc::syscall(libc::SYS_close_range, first, end - 1, 0) };
        }
        first = end.saturating_add(1);
    }
}

/// Drops to an unprivileged user for good.
pub fn become_nobody() -> io::Result<()> {
    const NOBODY: u32 = 65_534;
    // SAFETY: no memory is touched.
    check(i64::from(unsafe { libc::setgroups(0, std::ptr::null()) }))?;
    // SAFETY: as above.
    check(i64::from(unsafe { libc::setgid(NOBODY) }))?;
    // SAFETY: as above.
    check(i64::from(unsafe { libc::setuid(NOBODY) })).map(drop)
}

/// A value that may be handed to the kernel as bytes and filled by it.
///
/// # Safety
///
/// The type has no padding, no pointers that Rust owns, and every bit pattern is a valid value.
pub unsafe trait Plain: Sized {}
// SAFETY: integers only, no padding (asserted in agentzip-uapi).
unsafe impl Plain for agentzip_uapi::Info {}
// SAFETY: as above.
unsafe impl Plain for agentzip_uapi::TemplateAdd {}
// SAFETY: as above.
unsafe impl Plain for agentzip_uapi::TemplateRemove {}
// SAFETY: as above.
unsafe impl Plain for agentzip_uapi::SandboxAttach {}
// SAFETY: as above.
unsafe impl Plain for agentzip_uapi::SandboxDetach {}
// SAFETY: as above.
unsafe impl Plain for agentzip_uapi::SandboxPhase {}
// SAFETY: as above.
unsafe impl Plain for agentzip_uapi::DictionaryAdd {}
// SAFETY: as above.
unsafe impl Plain for agentzip_uapi::DictionaryRetire {}
// SAFETY: as above.
unsafe impl Plain for agentzip_uapi::DictionarySamples {}
// SAFETY: as above.
unsafe impl Plain for agentzip_uapi::Prefetch {}
// SAFETY: as above.
unsafe impl Plain for agentzip_uapi::PageStates {}
// SAFETY: as above.
unsafe impl Plain for agentzip_uapi::SandboxRecord {}
// SAFETY: as above.
unsafe impl Plain for agentzip_uapi::FaultsRead {}
// SAFETY: as above.
unsafe impl Plain for agentzip_uapi::Stats {}
// SAFETY: as above.
unsafe impl Plain for agentzip_uapi::Drain {}

/// `ioctl(2)` with a structure; `request` must carry the size of `T`.
pub fn ioctl<T: Plain>(fd: BorrowedFd<'_>, request: u32, arg: &mut T) -> io::Result<()> {
    assert_eq!(((request >> 16) & 0x3fff) as usize, size_of::<T>());
    // SAFETY: the kernel accesses as many bytes as the request says, which is the size of `T`,
    // and `T: Plain` takes any of them.
    check(i64::from(unsafe {
        libc::ioctl(fd.as_raw_fd(), request.into(), std::ptr::from_mut(arg))
    }))
    .map(drop)
}

/// `ioctl(2)` with bytes, of which there must be as many as `request` says or more.
pub fn ioctl_bytes(fd: BorrowedFd<'_>, request: u32, arg: &mut [u8]) -> io::Result<()> {
    assert!(((request >> 16) & 0x3fff) as usize <= arg.len());
    // SAFETY: the kernel accesses no more bytes than the request says.
    check(i64::from(unsafe {
        libc::ioctl(fd.as_raw_fd(), request.into(), arg.as_mut_ptr())
    }))
    .map(drop)
}

/// `ioctl(2)` with an address of which nothing is known: 0 or one that is not mapped.
pub fn ioctl_address(fd: BorrowedFd<'_>, request: u32, address: usize) -> io::Result<()> {
    assert!(address < PAGE_SIZE, "an address that something may be at");
    // SAFETY: nothing is mapped in the first page, so the kernel can only fail to access it.
    check(i64::from(unsafe {
        libc::ioctl(fd.as_raw_fd(), request.into(), address)
    }))
    .map(drop)
}

/// `swapon(2)` with a priority.
pub fn swapon(device: &Path, priority: u16) -> io::Result<()> {
    const SWAP_FLAG_PREFER: i32 = 0x8000;
    let device = c_path(device)?;
    // SAFETY: `device` is a NUL-terminated string that outlives the call.
    check(i64::from(unsafe {
        libc::swapon(
            device.as_ptr(),
            SWAP_FLAG_PREFER | i32::from(priority & 0x7fff),
        )
    }))
    .map(drop)
}

/// `swapoff(2)`: brings every page back first.
pub fn swapoff(device: &Path) -> io::Result<()> {
    let device = c_path(device)?;
    // SAFETY: `device` is a NUL-terminated string that outlives the call.
    check(i64::from(unsafe { libc::swapoff(device.as_ptr()) })).map(drop)
}

/// `finit_module(2)`; a name that ends in `.xz` is decompressed by the kernel.
pub fn load_module(path: &Path, params: &str) -> io::Result<()> {
    const MODULE_INIT_COMPRESSED_FILE: i32 = 4;
    let file = File::open(path)?;
    let params = CString::new(params)?;
    let compressed = path.extension().is_some_and(|e| e == "xz");
    let flags = if compressed {
        MODULE_INIT_COMPRESSED_FILE
    } else {
        0
    };
    // SAFETY: the descriptor is open and `params` is a NUL-terminated string.
    check(unsafe {
        libc::syscall(
            libc::SYS_finit_module,
            file.as_raw_fd(),
            params.as_ptr(),
            flags,
        )
    })
    .map(drop)
}

/// `delete_module(2)`, without waiting.
pub fn unload_module(name: &str) -> io::Result<()> {
    let name = CString::new(name)?;
    // SAFETY: `name` is a NUL-terminated string that outlives the call.
    check(unsafe { libc::syscall(libc::SYS_delete_module, name.as_ptr(), libc::O_NONBLOCK) })
        .map(drop)
}

/// What [`map`] puts at an address.
#[derive(Clone, Copy)]
pub enum Backing {
    /// Private anonymous memory.
    Anonymous,
    /// Shared anonymous memory (shmem).
    Shared,
    /// A private mapping of a file, from a byte offset.
    PrivateFile(RawFd, u64),
}

/// Maps memory at a fixed place in the arena where nothing is mapped yet.
pub fn map(addr: usize, len: usize, backing: Backing) -> io::Result<()> {
    in_arena(addr, len);
    let (flags, fd, offset) = match backing {
        Backing::Anonymous => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0),
        Backing::Shared => (libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1, 0),
        Backing::PrivateFile(fd, offset) => (libc::MAP_PRIVATE, fd, offset as i64),
    };
    // SAFETY: MAP_FIXED_NOREPLACE cannot replace a mapping that something relies on.
    let at = unsafe {
        libc::mmap(
            addr as *mut libc::c_void,
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            flags | libc::MAP_FIXED_NOREPLACE,
            fd,
            offset,
        )
    };
    if at == libc::MAP_FAILED {
        return Err(Error::last_os_error());
    }
    assert_eq!(at as usize, addr);
    Ok(())
}

/// Unmaps a part of the arena.
pub fn unmap(addr: usize, len: usize) -> io::Result<()> {
    in_arena(addr, len);
    // SAFETY: no Rust object lives in the arena.
    check(i64::from(unsafe {
        libc::munmap(addr as *mut libc::c_void, len)
    }))
    .map(drop)
}

/// Moves a mapping within the arena.
pub fn remap(old: usize, len: usize, new: usize) -> io::Result<()> {
    in_arena(old, len);
    in_arena(new, len);
    // SAFETY: no Rust object lives in the arena, neither at the old place nor at the new one.
    let at = unsafe {
        libc::mremap(
            old as *mut libc::c_void,
            len,
            len,
            libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED,
            new as *mut libc::c_void,
        )
    };
    if at == libc::MAP_FAILED {
        return Err(Error::last_os_error());
    }
    Ok(())
}

/// `madvise(2)` on a part of the arena.
pub fn advise(addr: usize, len: usize, advice: i32) -> io::Result<()> {
    in_arena(addr, len);
    // SAFETY: no Rust object lives in the arena.
    check(i64::from(unsafe {
        libc::madvise(addr as *mut libc::c_void, len, advice)
    }))
    .map(drop)
}

/// `mlock(2)` or `munlock(2)` on a part of the arena.
pub fn lock(addr: usize, len: usize, locked: bool) -> io::Result<()> {
    in_arena(addr, len);
    let at = addr as *const libc::c_void;
    // SAFETY: no memory changes.
    check(i64::from(unsafe {
        match locked {
            true => libc::mlock(at, len),
            false => libc::munlock(at, len),
        }
    }))
    .map(drop)
}

/// Between a file and a part of the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the file into the arena.
    In,
    /// From the arena into the file.
    Out,
}

/// Moves bytes between the beginning of a file and a part of the arena. Of a file that is open with
/// `O_DIRECT` the device does so with the pages themselves.
pub fn transfer(file: &File, addr: usize, len: usize, direction: Direction) -> io::Result<()> {
    in_arena(addr, len);
    let (fd, at) = (file.as_raw_fd(), addr as *mut libc::c_void);
    // SAFETY: the memory is in the arena, where no Rust object lives; any bytes may be there.
    let done = check(unsafe {
        match direction {
            Direction::In => libc::pread(fd, at, len, 0),
            Direction::Out => libc::pwrite(fd, at, len, 0),
        }
    } as i64)?;
    if done as usize != len {
        return Err(Error::other("a part only was read or written"));
    }
    Ok(())
}

/// The same by `io_uring`, with the memory as a registered buffer: it is pinned for that long.
pub fn transfer_registered(
    file: &File,
    addr: usize,
    len: usize,
    direction: Direction,
) -> io::Result<()> {
    use io_uring::{opcode, types};
    in_arena(addr, len);
    let mut ring = io_uring::IoUring::new(2)?;
    let buffer = libc::iovec {
        iov_base: addr as *mut libc::c_void,
        iov_len: len,
    };
    // SAFETY: the memory is in the arena, where no Rust object lives, and stays mapped until the ring, and
    // with it the registration, is dropped below: the process does nothing else meanwhile.
    unsafe { ring.submitter().register_buffers(&[buffer])? };
    let fd = types::Fd(file.as_raw_fd());
    let entry = match direction {
        Direction::In => opcode::ReadFixed::new(fd, addr as *mut u8, len as u32, 0).build(),
        Direction::Out => opcode::WriteFixed::new(fd, addr as *const u8, len as u32, 0).build(),
    };
    // SAFETY: file and buffer outlive the operation, whose end is waited for.
    unsafe { ring.submission().push(&entry) }.map_err(Error::other)?;
    let done = loop {
        // Who is frozen meanwhile waits no longer, with EINTR or without an error.
        match ring.submit_and_wait(1) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            waited => {
                waited?;
            }
        }
        if let Some(entry) = ring.completion().next() {
            break entry.result();
        }
    };
    match usize::try_from(done) {
        Ok(done) if done == len => Ok(()),
        Ok(_) => Err(Error::other("a part only was read or written")),
        Err(_) => Err(Error::from_raw_os_error(-done)),
    }
}

/// Passes bytes through a cipher of the kernel that changes nothing (`AF_ALG`), page by page, into the arena:
/// the kernel writes the pages through its own mapping while they are pinned.
pub fn receive_from_cipher(bytes: &[u8], addr: usize) -> io::Result<()> {
    in_arena(addr, bytes.len());
    let owned = |fd: libc::c_int| -> io::Result<File> {
        check(i64::from(fd))?;
        // SAFETY: a descriptor that the kernel just made for us.
        Ok(unsafe { File::from_raw_fd(fd) })
    };
    // SAFETY: all of it is plain bytes, for which zeroes are valid.
    let mut name: libc::sockaddr_alg = unsafe { std::mem::zeroed() };
    name.salg_family = libc::AF_ALG as u16;
    name.salg_type[..8].copy_from_slice(b"skcipher");
    name.salg_name[..16].copy_from_slice(b"ecb(cipher_null)");
    // SAFETY: no memory is involved.
    let socket = owned(unsafe { libc::socket(libc::AF_ALG, libc::SOCK_SEQPACKET, 0) })?;
    let size = std::mem::size_of_val(&name) as libc::socklen_t;
    // SAFETY: `name` is of that size and outlives the call.
    check(i64::from(unsafe {
        libc::bind(socket.as_raw_fd(), (&raw const name).cast(), size)
    }))?;
    let none = std::ptr::null_mut();
    // SAFETY: nobody asks for the peer's address.
    let cipher = owned(unsafe { libc::accept(socket.as_raw_fd(), none, none.cast()) })?;
    for (i, page) in bytes.chunks(PAGE_SIZE).enumerate() {
        if (&cipher).write(page)? != page.len() {
            return Err(Error::other("a part only was taken"));
        }
        let at = (addr + i * PAGE_SIZE) as *mut libc::c_void;
        // SAFETY: the memory is in the arena, where no Rust object lives; any bytes may be there.
        let got = check(unsafe { libc::read(cipher.as_raw_fd(), at, page.len()) } as i64)?;
        if got as usize != page.len() {
            return Err(Error::other("a part only was given back"));
        }
    }
    Ok(())
}

/// Write-protects a part of the arena by a userfaultfd until the descriptor is closed. The kernel resolves
/// the faults itself (`UFFD_FEATURE_WP_ASYNC`), so nobody has to read it.
pub fn watch_writes(addr: usize, len: usize) -> io::Result<OwnedFd> {
    const API: u64 = 0xaa;
    const WP_ASYNC: u64 = 1 << 15;
    const MODE_WP: u64 = 2;
    const PROTECT: u64 = 1;
    /// UFFDIO_API, UFFDIO_REGISTER, UFFDIO_WRITEPROTECT.
    const REQUESTS: [u32; 3] = [0xc018_aa3f, 0xc020_aa00, 0xc018_aa06];
    in_arena(addr, len);
    // SAFETY: no memory is touched.
    let fd = check(unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) })?;
    // SAFETY: the kernel just made this descriptor for us.
    let fd = unsafe { OwnedFd::from_raw_fd(fd as RawFd) };
    let (addr, len) = (addr as u64, len as u64);
    let arguments = [
        [API, WP_ASYNC, 0, 0],
        [addr, len, MODE_WP, 0],
        [addr, len, PROTECT, 0],
    ];
    for (request, mut argument) in REQUESTS.into_iter().zip(arguments) {
        // SAFETY: each request reads and writes 32 bytes at most, as its number says.
        check(i64::from(unsafe {
            libc::ioctl(fd.as_raw_fd(), request.into(), argument.as_mut_ptr())
        }))?;
    }
    Ok(fd)
}

/// Writes a page of the arena, which must be mapped (else the process dies of SIGSEGV).
pub fn write_page(addr: usize, page: &Page) {
    in_arena(addr, PAGE_SIZE);
    // SAFETY: the arena holds no Rust objects and `addr` is page aligned by its callers.
    unsafe { std::ptr::copy_nonoverlapping(page.as_ptr(), addr as *mut u64, PAGE_WORDS) };
}

/// Reads a page of the arena, which must be mapped.
pub fn read_page(addr: usize, page: &mut Page) {
    in_arena(addr, PAGE_SIZE);
    // SAFETY: as in `write_page`; any bytes are valid words.
    unsafe { std::ptr::copy_nonoverlapping(addr as *const u64, page.as_mut_ptr(), PAGE_WORDS) };
}

/// Reads one word of the arena, so that its page is faulted in.
pub fn touch(addr: usize) {
    in_arena(addr, 8);
    // SAFETY: as in `read_page`.
    unsafe { std::ptr::read_volatile(addr as *const u64) };
}

/// Pins pages of the arena by splicing them into a pipe; the returned ends keep them pinned.
pub fn splice_into_pipe(addr: usize, len: usize) -> io::Result<(OwnedFd, OwnedFd)> {
    in_arena(addr, len);
    let mut fds = [0; 2];
    // SAFETY: `fds` has room for two descriptors.
    check(i64::from(unsafe {
        libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC)
    }))?;
    // SAFETY: the kernel just made this descriptor for us.
    let read = unsafe { OwnedFd::from_raw_fd(fds[0]) };
    // SAFETY: as above.
    let write = unsafe { OwnedFd::from_raw_fd(fds[1]) };
    let iov = libc::iovec {
        iov_base: addr as *mut libc::c_void,
        iov_len: len,
    };
    // SAFETY: `iov` outlives the call; the memory it names is in the arena.
    let done = check(unsafe { libc::vmsplice(write.as_raw_fd(), &iov, 1, 0) } as i64)?;
    if done as usize != len {
        return Err(Error::other("vmsplice took a part only"));
    }
    Ok((read, write))
}

/// Reads memory of another process; `EFAULT` where a fault there would raise SIGBUS.
pub fn read_process(pid: i32, addr: usize, page: &mut Page) -> io::Result<()> {
    let local = libc::iovec {
        iov_base: page.as_mut_ptr().cast(),
        iov_len: PAGE_SIZE,
    };
    let remote = libc::iovec {
        iov_base: addr as *mut libc::c_void,
        iov_len: PAGE_SIZE,
    };
    // SAFETY: `local` names `page`, which takes any bytes; `remote` is another process's memory.
    let done = check(unsafe { libc::process_vm_readv(pid, &local, 1, &remote, 1, 0) } as i64)?;
    if done as usize != PAGE_SIZE {
        return Err(Error::from_raw_os_error(libc::EFAULT));
    }
    Ok(())
}

/// Writes memory of another process with `process_vm_writev(2)`.
pub fn write_process(pid: i32, addr: usize, page: &Page) -> io::Result<()> {
    let local = libc::iovec {
        iov_base: page.as_ptr() as *mut libc::c_void,
        iov_len: PAGE_SIZE,
    };
    let remote = libc::iovec {
        iov_base: addr as *mut libc::c_void,
        iov_len: PAGE_SIZE,
    };
    // SAFETY: the kernel only reads `local`; `remote` is another process's memory.
    let done = check(unsafe { libc::process_vm_writev(pid, &local, 1, &remote, 1, 0) } as i64)?;
    if done as usize != PAGE_SIZE {
        return Err(Error::from_raw_os_error(libc::EFAULT));
    }
    Ok(())
}

/// `gettid(2)`.
pub fn thread_id() -> i32 {
    // SAFETY: no memory is touched.
    unsafe { libc::gettid() }
}

/// A new eventfd with the count 0; reading it does not wait.
pub fn eventfd() -> io::Result<File> {
    // SAFETY: no memory is touched.
    let fd = check(i64::from(unsafe {
        libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK)
    }))?;
    // SAFETY: the kernel just made this descriptor for us.
    Ok(unsafe { File::from_raw_fd(fd as RawFd) })
}

/// `CLOCK_MONOTONIC` in nanoseconds.
pub fn monotonic_ns() -> io::Result<u64> {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `now` outlives the call.
    check(i64::from(unsafe {
        libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now)
    }))?;
    Ok(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
}

/// Waits until the descriptor is readable; false after `timeout_ms`.
pub fn wait_readable(fd: BorrowedFd<'_>, timeout_ms: i32) -> io::Result<bool> {
    let mut poll = libc::pollfd {
        fd: fd.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one pollfd, which outlives the call.
    match check(i64::from(unsafe { libc::poll(&mut poll, 1, timeout_ms) })) {
        Ok(n) => Ok(n > 0),
        Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(false),
        Err(e) => Err(e),
    }
}
