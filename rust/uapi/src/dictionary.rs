// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Dictionaries of groups, and samples of pages to train them with.

/// Least and most bytes of a dictionary in [`DictionaryAdd`].
pub const MIN_DICTIONARY: u32 = 256;

/// See [`MIN_DICTIONARY`].
pub const MAX_DICTIONARY: u32 = 1 << 20;

/// Argument of `DICTIONARY_ADD`: the pages that the group of a sandbox stores from now on may be
/// compressed with this dictionary. The former one stays as long as payloads need it.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct DictionaryAdd {
    /// Any sandbox of the group.
    pub cgroup_id: u64,
    /// User address of the dictionary, in zstd's format; it is copied.
    pub content: u64,
    /// Its length, [`MIN_DICTIONARY`] to [`MAX_DICTIONARY`].
    pub length: u32,
    /// Out: its number in the group, which is given anew when the dictionary is gone.
    pub number: u32,
}

/// Argument of `DICTIONARY_RETIRE`: new payloads of the group are made without a dictionary.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct DictionaryRetire {
    /// Any sandbox of the group.
    pub cgroup_id: u64,
    /// Out: number of the dictionary that was the current one.
    pub number: u32,
    /// Must be 0.
    pub reserved: u32,
}

/// Most pages in one [`DictionarySamples`].
pub const MAX_SAMPLES: u32 = 16_384;

/// [`DictionarySamples::cursor`] after the last page.
pub const SAMPLES_END: u64 = u64::MAX;

/// Argument of `DICTIONARY_SAMPLES`: pages that a group has stored, to train a dictionary with.
///
/// A call takes limited time: it may return fewer pages than there is room for, even none, before the
/// last.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct DictionarySamples {
    /// Any sandbox of the group.
    pub cgroup_id: u64,
    /// User address of room for the pages.
    pub buffer: u64,
    /// How many fit there, 1 to [`MAX_SAMPLES`].
    pub capacity: u32,
    /// Least bytes of the payload of a page.
    pub least: u32,
    /// In: 0, or what the call before returned. Out: where to go on, [`SAMPLES_END`] after the last page.
    pub cursor: u64,
    /// Out: pages written.
    pub pages: u32,
    /// Must be 0.
    pub reserved: u32,
}

const _: () = {
    assert!(size_of::<DictionaryAdd>() == 24);
    assert!(size_of::<DictionaryRetire>() == 16);
    assert!(size_of::<DictionarySamples>() == 40);
};
