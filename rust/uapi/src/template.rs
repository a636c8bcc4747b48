// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Templates: registered from the memory of a process, or from a file.

use super::{Name, Signature, NAME_LEN, SIGNATURE_LEN};

/// A half-open range of user addresses, page aligned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Range {
    /// First byte.
    pub start: u64,
    /// Byte after the last; greater than `start`.
    pub end: u64,
}

/// Most address ranges in one [`TemplateAdd`].
pub const MAX_RANGES: u32 = 65_536;

/// Argument of `TEMPLATE_ADD`: registers pages of a live process.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct TemplateAdd {
    /// Process that holds the pages (in the caller's pid namespace); it should be stopped.
    pub pid: i32,
    /// Must be 0.
    pub flags: u32,
    /// User address of an array of [`Range`], sorted, not overlapping.
    pub ranges: u64,
    /// Length of that array, 1 to [`MAX_RANGES`].
    pub nr_ranges: u32,
    /// Must be 0.
    pub reserved: u32,
    /// Name, unique among templates.
    pub name: Name,
    /// Trust domain; all zero means [`DEFAULT_DOMAIN`](super::DEFAULT_DOMAIN).
    pub domain: Name,
    /// Out: pages kept by reference, which cost nothing while the process lives.
    pub pages_referenced: u64,
    /// Out: pages that had to be copied.
    pub pages_copied: u64,
    /// Out: pages in the ranges that were skipped: absent, swapped out, zero, file-backed, shared,
    /// KSM, hugetlb or device pages, and those beyond the eighth of one page index.
    pub pages_skipped: u64,
}

/// Argument of `TEMPLATE_ADD`, second version.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct TemplateAddSigned {
    /// The first version.
    pub add: TemplateAdd,
    /// Fingerprint of the process; all zero: none.
    pub signature: Signature,
}

/// Argument of `TEMPLATE_ADD_FILE`: registers pages of a regular file. The page index of a template
/// page is its number in the file.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct TemplateAddFile {
    /// File descriptor, open for reading.
    pub fd: i32,
    /// Must be 0.
    pub flags: u32,
    /// First byte, page aligned.
    pub offset: u64,
    /// Number of bytes, page aligned; 0, or more than there are: to the end of the file.
    pub length: u64,
    /// Name, unique among templates.
    pub name: Name,
    /// Trust domain; all zero means [`DEFAULT_DOMAIN`](super::DEFAULT_DOMAIN).
    pub domain: Name,
    /// Fingerprint of the contents; all zero: none.
    pub signature: Signature,
    /// Out: pages kept by reference, which cost nothing while the file lives: those of a memfd that
    /// nobody can write or truncate any more.
    pub pages_referenced: u64,
    /// Out: pages that had to be copied.
    pub pages_copied: u64,
    /// Out: pages that were skipped: holes, and pages of zeros only.
    pub pages_skipped: u64,
}

/// Argument of `TEMPLATE_REMOVE`. `EBUSY` while sandboxes or entries use it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct TemplateRemove {
    /// Which.
    pub name: Name,
    /// Out, on `EBUSY`: sandboxes (attached, or detached with entries) that use it.
    pub users: u64,
}

const _: () = {
    assert!(size_of::<Range>() == 16);
    assert!(size_of::<TemplateAdd>() == 24 + 2 * NAME_LEN + 24);
    assert!(size_of::<TemplateAddSigned>() == size_of::<TemplateAdd>() + SIGNATURE_LEN);
    assert!(size_of::<TemplateAddFile>() == 24 + 2 * NAME_LEN + SIGNATURE_LEN + 24);
    assert!(size_of::<TemplateRemove>() == NAME_LEN + 8);
};
