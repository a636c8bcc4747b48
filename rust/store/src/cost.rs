// SPDX-License-Identifier: GPL-2.0 OR MIT

//! True cost of a payload in the kernel's zsmalloc: what its pool, its handle and its slot occupy.
//!
//! zsmalloc adds an 8-byte handle to the object, rounds up to a size class in steps of 16 bytes,
//! and cuts the objects of a class out of chains of 1 to 8 pages. Neighbouring classes that get as
//! many objects from a chain of the same length are merged. The cost of an object is therefore its
//! share of the chain. The 64 bytes of `struct zspage` that a chain has are left out: they matter
//! only for payloads of about a page, which are near the limit anyway.

const PAGE: usize = 4096;
/// `ZS_MIN_ALLOC_SIZE`.
const MIN_CLASS: usize = 32;
/// `ZS_SIZE_CLASS_DELTA`.
const CLASS_STEP: usize = 16;
/// `ZS_HANDLE_SIZE`: the back-reference inside the object.
const IN_OBJECT_HANDLE: usize = 8;
/// `CONFIG_ZSMALLOC_CHAIN_SIZE`.
const MAX_CHAIN: usize = 8;

const CLASSES: usize = (PAGE - MIN_CLASS) / CLASS_STEP + 1;

/// Bytes of the slab object that zsmalloc makes for each handle.
pub const HANDLE_BYTES: usize = 8;

/// Bytes of the slot table that each entry takes.
pub const SLOT_BYTES: usize = 8;

/// `calculate_zspage_chain_size`.
const fn chain_pages(class_size: usize) -> usize {
    if class_size.is_power_of_two() {
        return 1;
    }
    let mut best = 1;
    let mut least_waste = usize::MAX;
    let mut pages = 1;
    while pages <= MAX_CHAIN {
        let waste = pages * PAGE % class_size;
        if waste < least_waste {
            least_waste = waste;
            best = pages;
        }
        pages += 1;
    }
    best
}

/// Bytes of pool that one object takes, by class, rounded up.
///
/// Merging needs no case of its own: merged classes have the same chain and the same number of
/// objects, hence the same share.
const OBJECT_COST: [u16; CLASSES] = {
    let mut cost = [0; CLASSES];
    let mut class = 0;
    while class < CLASSES {
        let size = MIN_CLASS + class * CLASS_STEP;
        let bytes = chain_pages(size) * PAGE;
        cost[class] = bytes.div_ceil(bytes / size) as u16;
        class += 1;
    }
    cost
};

/// True cost in bytes of a payload of `payload_len` bytes: its share of the zsmalloc pool, its
/// handle and its slot.
///
/// More than a page for payloads that zsmalloc gives a page of their own; `usize::MAX` for more
/// than a page, which it refuses.
pub const fn zsmalloc_cost(payload_len: usize) -> usize {
    if payload_len > PAGE {
        return usize::MAX;
    }
    let size = payload_len + IN_OBJECT_HANDLE;
    let class = size.saturating_sub(MIN_CLASS).div_ceil(CLASS_STEP);
    // The last class takes the longest payloads too: a page of its own has no handle inside.
    let class = if class < CLASSES { class } else { CLASSES - 1 };
    OBJECT_COST[class] as usize + HANDLE_BYTES + SLOT_BYTES
}
