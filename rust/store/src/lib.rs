// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Store policy: everything about the compressed store that is not allocation or locking.
//!
//! * [`Descriptor`]: the 8 bytes that the slot table holds for a stored page;
//! * [`Leaf`] and [`locate`]: one 4 KiB leaf of the slot table, and where a swap slot lives in it;
//! * [`zsmalloc_cost`]: what a payload really occupies;
//! * [`Pages`]: the pages that the structures below live in, handed in from outside;
//! * [`Arena`]: payloads packed into pages, each at a [`Place`];
//! * [`Arenas`]: those of a sandbox;
//! * [`References`]: the reference pages of a group, counted;
//! * [`Dictionaries`]: the dictionaries of a group, and how many payloads need them;
//! * [`Index`]: hints where a page may be found that resembles the one at hand;
//! * [`template`]: the map from a page index to the template pages of that index;
//! * [`ranges`]: where the memory of a sandbox lies in its template.
//!
//! Kbuild compiles these files into the module, cargo compiles them into the `agentzip-store`
//! crate, where native tests drive them. No allocation, no unsafe code, no panics.

#![cfg_attr(not(CONFIG_RUST), no_std)]
#![forbid(unsafe_code)]

mod arena;
mod arenas;
mod descriptor;
mod dictionaries;
mod directory;
pub mod engine;
mod group;
mod index;
mod leaf;
mod pages;
mod place;
pub mod ranges;
mod references;
mod slot;
pub mod template;

#[cfg(CONFIG_RUST)]
use crate::codec;
#[cfg(not(CONFIG_RUST))]
use agentzip_codec as codec;

pub use self::arena::{Arena, InsertError, MAX_FRAGMENTS, MAX_PACKED};
pub use self::arenas::Arenas;
pub use self::descriptor::{Descriptor, Entry, Owner, MAX_OWNERS, REF_CRC_BITS};
pub use self::dictionaries::{Dictionaries, Service, MAX_DICTIONARIES, SERVED};
pub use self::group::{feature_keys, Group, Ranking, Wanted};
pub use self::index::{key_of_feature, key_of_index, mix, Index, Where, MAX_SLOTS};
pub use self::leaf::{locate, Leaf, SlotAddress, MAX_SWAP_TYPES, SLOTS};
pub use self::pages::{Pages, Released, PAGE_BYTES};
pub use self::place::{Place, MAX_PAGE_NUMBER, NO_PAGE, PLACE_BITS, UNIT_BYTES};
pub use self::references::{AfterRelease, CreateError, Reference, References, MAX_REFERENCES};
pub use self::slot::Slot;
