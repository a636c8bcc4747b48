// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The control interface of `/dev/agentzip`, defined once for the module and for the controller.
//!
//! Kbuild compiles these files into the module, cargo compiles them into the `agentzip-uapi` crate.
//! The C view of the same interface is `Documentation/ABI/agentzip.h`.
//!
//! Every argument structure starts with nothing but fixed-size fields and has explicit padding.
//! Its size is part of the ioctl number and versions it: the kernel dispatches on the ioctl's
//! *number* only, accepts a longer structure when the bytes it does not know are zero (else
//! `E2BIG`), takes what an earlier version lacks as zero, and refuses a size that no version had
//! (`EINVAL`). A later version is a structure of its own that begins with the earlier one. Reserved
//! fields must be zero.
//!
//! Each file asserts the sizes of its structures: no implicit padding anywhere, so that no kernel byte
//! leaks and both sides agree.

#![cfg_attr(not(CONFIG_RUST), no_std)]
#![forbid(unsafe_code)]

mod commands;
mod dictionary;
mod faults;
mod module;
mod names;
mod restore;
mod sandbox;
mod stats;
mod template;

// All that is public in them belongs to the interface.
pub use self::commands::*;
pub use self::dictionary::*;
pub use self::faults::*;
pub use self::module::*;
pub use self::names::*;
pub use self::restore::*;
pub use self::sandbox::*;
pub use self::stats::*;
pub use self::template::*;

/// Version of this interface, reported by [`Info::abi_version`].
pub const ABI_VERSION: u32 = 5;

/// Path of the control device.
pub const DEVICE_PATH: &str = "/dev/agentzip";

/// Root of the module's sysfs tree.
pub const SYSFS_PATH: &str = "/sys/kernel/agentzip";
