// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Notes on cgroups that outlive the daemon: xattrs in the `trusted` namespace, which only root reads and
//! writes, so that the owner of a directory cannot forge them.

use std::ffi::CStr;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{fgetxattr, fremovexattr, fsetxattr, lgetxattr, XattrFlags};
use rustix::io::Errno;

/// The daemon froze this cgroup, and has to let it go on.
pub const HELD: &CStr = c"trusted.agentzip.held";
/// A tool reads the memory of this cgroup: nothing is to be done to it.
pub const QUIESCED: &CStr = c"trusted.agentzip.quiesced";
/// The phase xattr of this cgroup, when a hint by another way came after it.
pub const OUTDATED: &CStr = c"trusted.agentzip.outdated";
/// What `memory.swap.max` of this cgroup was before the daemon set it to 0.
pub const SWAP_MAX: &CStr = c"trusted.agentzip.swap_max";

/// Longest value.
const LONGEST: usize = 128;

/// Whether the directory at a path has a note of a daemon that may be gone.
pub fn is_any(path: &Path) -> bool {
    [HELD, SWAP_MAX]
        .into_iter()
        .any(|name| lgetxattr(path, name, &mut [0; LONGEST]).is_ok())
}

/// Reads a note; `None` when there is none.
pub fn read(directory: impl AsFd, name: &CStr) -> Option<String> {
    let mut buffer = [0; LONGEST];
    let length = fgetxattr(directory, name, &mut buffer).ok()?;
    String::from_utf8(buffer.get(..length)?.to_vec()).ok()
}

/// Writes a note. False: the file system has no such xattrs, or we are not root; then it is lost
/// when the daemon is killed.
pub fn write(directory: impl AsFd, name: &CStr, value: &str) -> bool {
    fsetxattr(directory, name, value.as_bytes(), XattrFlags::empty()).is_ok()
}

/// Takes a note away. True when there is none now.
pub fn remove(directory: impl AsFd, name: &CStr) -> bool {
    matches!(fremovexattr(directory, name), Ok(()) | Err(Errno::NODATA))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_kept_until_it_is_taken_away() {
        let dir = tempfile::tempdir().unwrap();
        let file = std::fs::File::open(dir.path()).unwrap();
        assert_eq!(read(&file, HELD), None);
        // Not everybody may write notes.
        if write(&file, HELD, "1") {
            assert_eq!(read(&file, HELD).as_deref(), Some("1"));
            assert!(!write(&file, SWAP_MAX, &"x".repeat(100_000)));
        }
        assert!(remove(&file, HELD) || read(&file, HELD).is_none());
        assert_eq!(read(&file, HELD), None);
    }
}
