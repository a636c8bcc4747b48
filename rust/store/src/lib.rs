// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Store policy: everything about the compressed store that is not allocation or locking.
//!
//! * [`Descriptor`]: the 8 bytes that the slot table holds for a stored page;
//! * [`Leaf`] and [`locate`]: one 4 KiB leaf of the slot table, and where a swap slot lives in it;
//! * [`zsmalloc_cost`]: what a payload really occupies;
//! * [`template`]: the map from a page index to the template pages of that index.
//!
//! Kbuild compiles these files into the module, cargo compiles them into the `agentzip-store`
//! crate, where native tests drive them. No allocation, no unsafe code, no panics.

#![cfg_attr(not(CONFIG_RUST), no_std)]
#![forbid(unsafe_code)]

mod cost;
mod descriptor;
mod leaf;
pub mod template;

pub use self::cost::{zsmalloc_cost, HANDLE_BYTES, SLOT_BYTES};
pub use self::descriptor::{Descriptor, Entry, Owner, HANDLE_BITS, MAX_OWNERS, REF_CRC_BITS};
pub use self::leaf::{locate, Leaf, SlotAddress, MAX_SWAP_TYPES, SLOTS};
