// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The module as a whole: what it says of itself, and the end of its stores.

/// Argument of `INFO`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Info {
    /// Out: [`ABI_VERSION`](super::ABI_VERSION) of the module.
    pub abi_version: u32,
    /// Out: 1 while the hooks are armed.
    pub armed: u32,
    /// Out: 1 while stores are accepted (the `enabled` file).
    pub enabled: u32,
    /// Out: 1 after `DRAIN`, until the next `ARM`.
    pub draining: u32,
}

/// Argument of `DRAIN`: stops new stores and waits for those under way.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Drain {
    /// Out: entries left; they go as their slots are freed (swapoff frees all).
    pub entries: u64,
}

const _: () = {
    assert!(size_of::<Info>() == 16);
    assert!(size_of::<Drain>() == 8);
};
