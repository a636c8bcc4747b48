// SPDX-License-Identifier: GPL-2.0 OR MIT

//! BPF programs on functions of the kernel. They do nothing; the kernel counts how often they run.
//!
//! With `sys.rs` the only file of the suite with `unsafe`.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::OnceLock;

use anyhow::{ensure, Context, Result};

use super::fixture::{fault, host};

const BTF: &str = "/sys/kernel/btf/vmlinux";
/// `r0 = 0; exit`.
const PROGRAM: [u64; 2] = [0xb7, 0x95];

/// Whether this kernel has BPF, and must have what is here: the stock kernel. The debug kernel is built without.
pub fn available() -> bool {
    !fault::available()
}

/// How a program is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// By a trampoline (an ftrace direct call) before the function.
    Fentry,
    /// By a trampoline that calls the function itself, after it.
    Fexit,
    /// By an fprobe before the function.
    Kprobe,
    /// By an fprobe after the function.
    Kretprobe,
}

impl Place {
    /// All of them.
    pub const ALL: [Place; 4] = [Place::Fentry, Place::Fexit, Place::Kprobe, Place::Kretprobe];

    /// Program type and attach type.
    fn kind(self) -> (u32, u32) {
        const KPROBE: u32 = 2;
        const TRACING: u32 = 26;
        match self {
            Place::Fentry => (TRACING, 24),
            Place::Fexit => (TRACING, 25),
            Place::Kprobe | Place::Kretprobe => (KPROBE, 42),
        }
    }
}

/// A program that is attached to a function while this lives.
pub struct Program {
    /// Where.
    pub place: Place,
    /// To which function.
    pub function: &'static str,
    // Before the program: what is attached goes first.
    _link: OwnedFd,
    program: OwnedFd,
    /// Runs are counted while there is one.
    _counted: OwnedFd,
}

impl Program {
    /// Attaches one. The error carries the errno.
    pub fn attach(place: Place, function: &'static str) -> Result<Program> {
        let counted = count_runs().context("count runs of BPF programs")?;
        let what = || format!("{place:?} on {function}");
        let program =
            load(place, function).with_context(|| format!("load a BPF program for {}", what()))?;
        let link = link(place, function, &program)
            .with_context(|| format!("attach a BPF program: {}", what()))?;
        Ok(Program {
            place,
            function,
            _link: link,
            program,
            _counted: counted,
        })
    }

    /// How often it has run.
    pub fn runs(&self) -> Result<u64> {
        let text = host::read(format!("/proc/self/fdinfo/{}", self.program.as_raw_fd()))?;
        let count = text.lines().find_map(|line| line.strip_prefix("run_cnt:"));
        let count = count.context("the kernel does not count runs of BPF programs")?;
        Ok(count.trim().parse()?)
    }
}

/// `bpf(2)` with a command that makes a descriptor.
fn bpf(command: u32, attr: &[u32]) -> io::Result<OwnedFd> {
    // SAFETY: the kernel reads as many bytes as it is told. What addresses in them name it only reads, and the
    // callers below keep that for as long.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            attr.as_ptr(),
            size_of_val(attr) as u32,
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// The two words of an address, the lower one first.
fn words<T>(pointer: *const T) -> [u32; 2] {
    let address = pointer as u64;
    [address as u32, (address >> 32) as u32]
}

fn count_runs() -> io::Result<OwnedFd> {
    const ENABLE_STATS: u32 = 32;
    const RUN_TIME: u32 = 0;
    bpf(ENABLE_STATS, &[RUN_TIME])
}

fn load(place: Place, function: &str) -> Result<OwnedFd> {
    const PROG_LOAD: u32 = 5;
    let license = c"GPL";
    let (kind, attached) = place.kind();
    // Words of `union bpf_attr`.
    let mut attr = [0; 30];
    attr[0] = kind;
    attr[1] = PROGRAM.len() as u32;
    attr[2..4].copy_from_slice(&words(PROGRAM.as_ptr()));
    attr[4..6].copy_from_slice(&words(license.as_ptr()));
    attr[17] = attached;
    if matches!(place, Place::Fentry | Place::Fexit) {
        attr[27] = function_id(function)?;
    }
    Ok(bpf(PROG_LOAD, &attr)?)
}

fn link(place: Place, function: &str, program: &OwnedFd) -> Result<OwnedFd> {
    const LINK_CREATE: u32 = 28;
    const RETURN: u32 = 1;
    let name = CString::new(function)?;
    let names = [name.as_ptr()];
    let mut attr = [0; 12];
    attr[0] = program.as_raw_fd() as u32;
    attr[2] = place.kind().1;
    if matches!(place, Place::Kprobe | Place::Kretprobe) {
        attr[4] = if place == Place::Kretprobe { RETURN } else { 0 };
        attr[5] = names.len() as u32;
        attr[6..8].copy_from_slice(&words(names.as_ptr()));
    }
    Ok(bpf(LINK_CREATE, &attr)?)
}

/// The id of a function in the BTF of the kernel that runs.
fn function_id(function: &str) -> Result<u32> {
    static TEXT: OnceLock<Vec<u8>> = OnceLock::new();
    let btf = match TEXT.get() {
        Some(btf) => btf,
        None => {
            let btf = fs::read(BTF).with_context(|| format!("read {BTF}"))?;
            TEXT.get_or_init(|| btf)
        }
    };
    find_function(btf, function)?.with_context(|| format!("{BTF} has no function {function}"))
}

/// Looks a function up in BTF. See Documentation/bpf/btf.rst in the kernel.
fn find_function(btf: &[u8], function: &str) -> Result<Option<u32>> {
    const MAGIC: u32 = 0xeb9f;
    const FUNC: u32 = 12;
    let word = |at: usize| -> Result<u32> {
        let bytes = btf.get(at..at + 4).context("BTF ends too early")?;
        Ok(u32::from_ne_bytes(bytes.try_into()?))
    };
    ensure!(word(0)? & 0xffff == MAGIC, "no BTF of this machine");
    let header = word(4)? as usize;
    let mut at = header + word(8)? as usize;
    let end = at + word(12)? as usize;
    let strings = header + word(16)? as usize;
    let mut id = 0;
    while at < end {
        id += 1;
        let (name, info) = (strings + word(at)? as usize, word(at + 4)?);
        let (kind, members) = ((info >> 24) & 0x7f, (info & 0xff_ffff) as usize);
        if kind == FUNC {
            let name = btf.get(name..).context("BTF ends too early")?;
            let rest = name.strip_prefix(function.as_bytes());
            if rest.is_some_and(|rest| rest.first() == Some(&0)) {
                return Ok(Some(id));
            }
        }
        at += 12
            + match kind {
                1 | 14 | 17 => 4,
                3 => 12,
                4 | 5 | 15 | 19 => 12 * members,
                6 | 13 => 8 * members,
                _ => 0,
            };
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_found_behind_other_types() {
        const INT: u32 = 1 << 24;
        const PROTO: u32 = (13 << 24) | 1;
        const FUNC: u32 = 12 << 24;
        // Each type: name, info, size or type, what follows it.
        let types = [
            vec![1, INT, 4, 32],
            vec![0, PROTO, 1, 0, 1],
            vec![5, FUNC, 2],
            vec![9, FUNC, 2],
        ]
        .concat();
        let strings = b"\0int\0far\0fa\0";
        let mut btf = Vec::new();
        let length = (types.len() * 4) as u32;
        let header = [0x1_eb9f, 24, 0, length, length, strings.len() as u32];
        for word in header.iter().chain(&types) {
            btf.extend(word.to_ne_bytes());
        }
        btf.extend(strings);
        assert_eq!(find_function(&btf, "far").unwrap(), Some(3));
        assert_eq!(find_function(&btf, "fa").unwrap(), Some(4));
        assert_eq!(find_function(&btf, "int").unwrap(), None);
        assert!(find_function(&btf[..40], "far").is_err());
        assert!(find_function(&types[0].to_ne_bytes(), "far").is_err());
    }
}
