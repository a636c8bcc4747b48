// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `/proc/PID/maps`.

use std::str::FromStr;

use agentzip_uapi::Range;

/// One mapping of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Its addresses.
    pub range: Range,
    /// It can be written.
    pub writable: bool,
    /// It can be executed.
    pub executable: bool,
    /// Writes stay in the process (copy on write).
    pub private: bool,
    /// A file lies below it.
    pub file: bool,
    /// Where in the file it begins.
    pub offset: u64,
    /// Device of the file: major and minor number.
    pub device: (u32, u32),
    /// Inode of the file.
    pub inode: u64,
    /// File, or a name like `[heap]`; empty for nameless anonymous memory.
    pub name: String,
}

impl Mapping {
    /// Its swapped-out pages are the process's own (anonymous) ones.
    pub fn holds_anonymous_pages(&self) -> bool {
        self.private && !self.is_special()
    }

    /// A template takes its pages: private memory that the process can write. Of files mapped so,
    /// the pages that were written are anonymous; the module leaves the others out.
    pub fn is_template_material(&self) -> bool {
        self.holds_anonymous_pages() && self.writable
    }

    /// Path of its file, as the process sees it; also when the file was removed.
    pub fn path(&self) -> &str {
        self.name.strip_suffix(" (deleted)").unwrap_or(&self.name)
    }

    /// Nothing that reclaim could take: made by the kernel, huge pages, memory of a device.
    fn is_special(&self) -> bool {
        const KERNEL: [&str; 4] = ["[vdso]", "[vvar]", "[vvar_vclock]", "[vsyscall]"];
        let device = self.name.starts_with("/dev/")
            && !self.name.starts_with("/dev/zero")
            && !self.name.starts_with("/dev/shm/");
        KERNEL.contains(&self.name.as_str()) || self.name.starts_with("/anon_hugepage") || device
    }
}

impl FromStr for Mapping {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        parse(line).ok_or_else(|| format!("not a mapping: {line:?}"))
    }
}

fn parse(line: &str) -> Option<Mapping> {
    let mut rest = line;
    let mut field = || {
        rest = rest.trim_start_matches(' ');
        let (field, tail) = rest.split_once(' ').unwrap_or((rest, ""));
        rest = tail;
        field
    };
    let (start, end) = field().split_once('-')?;
    let start = u64::from_str_radix(start, 16).ok()?;
    let end = u64::from_str_radix(end, 16).ok()?;
    let permissions = field().as_bytes();
    let offset = u64::from_str_radix(field(), 16).ok()?;
    let (major, minor) = field().split_once(':')?;
    let device = (
        u32::from_str_radix(major, 16).ok()?,
        u32::from_str_radix(minor, 16).ok()?,
    );
    let inode: u64 = field().parse().ok()?;
    let [_, write, execute, share] = *permissions else {
        return None;
    };
    if start >= end {
        return None;
    }
    Some(Mapping {
        range: Range { start, end },
        writable: write == b'w',
        executable: execute == b'x',
        private: share == b'p',
        file: inode != 0,
        offset,
        device,
        inode,
        name: rest.trim_start_matches(' ').to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn material(line: &str) -> bool {
        line.parse::<Mapping>().unwrap().is_template_material()
    }

    #[test]
    fn one_line() {
        let mapping: Mapping =
            "7f0000000000-7f0000021000 rw-p 00001000 fe:01 1234                       /usr/lib/a b.so"
                .parse()
                .unwrap();
        assert_eq!(mapping.range.start, 0x7f00_0000_0000);
        assert_eq!(mapping.range.end, 0x7f00_0002_1000);
        assert!(mapping.writable && mapping.private && mapping.file && !mapping.executable);
        assert_eq!(mapping.offset, 0x1000);
        assert_eq!((mapping.device, mapping.inode), ((0xfe, 1), 1234));
        assert_eq!(mapping.name, "/usr/lib/a b.so");
        let mapping: Mapping = "1000-2000 r-xp 00000000 fe:01 5 /usr/lib/old.so (deleted)"
            .parse()
            .unwrap();
        assert!(mapping.executable);
        assert_eq!(mapping.path(), "/usr/lib/old.so");
    }

    #[test]
    fn what_a_template_takes() {
        assert!(material("10000-20000 rw-p 00000000 00:00 0 "));
        assert!(material("10000-20000 rw-p 00000000 00:00 0"));
        assert!(material("10000-20000 rw-p 00000000 00:00 0    [heap]"));
        assert!(material("10000-20000 rw-p 00000000 00:00 0    [stack]"));
        assert!(material(
            "10000-20000 rw-p 00000000 00:00 0    [anon:python]"
        ));
        assert!(material(
            "10000-20000 rw-p 00000000 fe:01 12   /usr/lib/libc.so.6"
        ));
        assert!(material(
            "10000-20000 rw-p 00000000 00:01 12   /dev/zero (deleted)"
        ));
        assert!(!material(
            "10000-20000 rw-s 00000000 00:01 12  /dev/zero (deleted)"
        ));
        assert!(!material(
            "10000-20000 r--p 00000000 fe:01 12  /usr/lib/libc.so.6"
        ));
        assert!(!material(
            "10000-20000 rw-p 00000000 00:0f 12  /anon_hugepage (deleted)"
        ));
        assert!(!material("10000-20000 rw-p 00000000 00:06 12  /dev/mem"));
        assert!(!material("10000-20000 rw-p 00000000 00:00 0   [vvar]"));
        assert!(!material("10000-20000 r-xp 00000000 00:00 0   [vdso]"));
    }

    #[test]
    fn read_only_private_memory_can_hold_swapped_pages() {
        let mapping: Mapping = "10000-20000 r--p 00000000 fe:01 12  /usr/lib/libc.so.6"
            .parse()
            .unwrap();
        assert!(mapping.holds_anonymous_pages());
    }

    #[test]
    fn nonsense_is_refused() {
        for line in [
            "",
            "10000",
            "10000-20000",
            "20000-10000 rw-p 0 00:00 0",
            "10000-zzz rw-p 0 00:00 0",
            "10000-20000 rw 0 00:00 0",
            "10000-20000 rw-p 0 00:00 x",
            "10000-20000 rw-p x 00:00 0",
            "10000-20000 rw-p 0 00 0",
        ] {
            assert!(line.parse::<Mapping>().is_err(), "{line:?}");
        }
    }
}
