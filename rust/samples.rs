// SPDX-License-Identifier: GPL-2.0

//! Samples of what a group has stored, for who trains a dictionary.

use kernel::alloc::flags::{GFP_KERNEL, __GFP_ZERO};
use kernel::prelude::*;
use kernel::uaccess::UserSliceWriter;

use crate::codec::{Page, MAX_PAYLOAD, PAGE_SIZE};
use crate::group::Group;
use crate::pages;
use crate::state::State;
use crate::store;
use crate::store_policy::{MAX_SWAP_TYPES, SLOTS};
use crate::uapi::SAMPLES_END;

/// Leaves of the slot table that a call walks at most.
const MAX_LEAVES: usize = 128;

/// Buffers of a call. Plain bytes: all zero is a valid value.
pub(crate) struct Buffers {
    pub(crate) page: Page,
    pub(crate) payload: [u8; MAX_PAYLOAD],
}

impl Drop for Buffers {
    fn drop(&mut self) {
        pages::zero(&mut self.page);
        pages::zero(&mut self.payload);
    }
}

/// Where a walk over the slot table is.
struct Cursor {
    swap_type: u32,
    offset: u64,
}

impl Cursor {
    const OFFSET_BITS: u32 = 56;

    fn from_bits(bits: u64) -> Self {
        Self {
            swap_type: (bits >> Self::OFFSET_BITS) as u32,
            offset: bits & ((1 << Self::OFFSET_BITS) - 1),
        }
    }

    fn to_bits(&self) -> u64 {
        (u64::from(self.swap_type) << Self::OFFSET_BITS) | self.offset
    }
}

/// Writes pages of a group's entries whose payloads are at least `least` bytes long, from a cursor on, 0
/// for the first call. Returns how many there are, and the cursor to go on with, [`SAMPLES_END`] after
/// the last. May sleep, and may fault the caller's pages in: under no lock.
pub(crate) fn write(
    state: &State,
    group: &Group,
    least: usize,
    cursor: u64,
    writer: &mut UserSliceWriter,
) -> Result<(u32, u64)> {
    let buffers = KVBox::<Buffers>::new_uninit(GFP_KERNEL | __GFP_ZERO)?;
    // SAFETY: All bytes zero is a valid value: arrays of bytes.
    let mut buffers = unsafe { buffers.assume_init() };
    let mut at = Cursor::from_bits(cursor);
    let mut pages = 0;
    for _ in 0..MAX_LEAVES {
        if at.swap_type >= MAX_SWAP_TYPES {
            return Ok((pages, SAMPLES_END));
        }
        let first = at.offset;
        let mut end = Ok(None);
        // A leaf at a time, from its first slot on.
        let leaf = first - first % SLOTS as u64;
        let next = state.table.walk(at.swap_type, leaf, |slot| {
            if slot.offset() < first || end != Ok(None) {
                return;
            }
            if writer.len() < PAGE_SIZE {
                end = Ok(Some(slot.offset()));
            } else if store::sample(state, group, slot, least, &mut buffers) {
                match writer.write_slice(&buffers.page) {
                    Ok(()) => pages += 1,
                    Err(error) => end = Err(error),
                }
            }
        });
        if let Some(offset) = end? {
            at.offset = offset;
            return Ok((pages, at.to_bits()));
        }
        at = match next {
            Some(offset) => Cursor { offset, ..at },
            None => Cursor {
                swap_type: at.swap_type.saturating_add(1),
                offset: 0,
            },
        };
    }
    Ok((pages, at.to_bits()))
}
