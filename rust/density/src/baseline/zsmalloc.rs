// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What an object occupies in the kernel's zsmalloc.
//!
//! zsmalloc adds an 8-byte handle to the object, rounds up to a size class in steps of 16 bytes,
//! and cuts the objects of a class out of chains of 1 to 8 pages. Neighbouring classes that get as
//! many objects from a chain of the same length are merged. The cost of an object is therefore its
//! share of a full chain. Chains that are not full and the 64 bytes of `struct zspage` that each
//! has are left out, in favour of those who use zsmalloc.

use agentzip_codec::PAGE_SIZE;

/// `ZS_MIN_ALLOC_SIZE`.
const MIN_CLASS: usize = 32;
/// `ZS_SIZE_CLASS_DELTA`.
const CLASS_STEP: usize = 16;
/// `ZS_HANDLE_SIZE`: the back-reference inside the object.
const IN_OBJECT_HANDLE: usize = 8;
/// `CONFIG_ZSMALLOC_CHAIN_SIZE`.
const MAX_CHAIN: usize = 8;
/// The slab object that each handle is.
const HANDLE: usize = 8;

const CLASSES: usize = (PAGE_SIZE - MIN_CLASS) / CLASS_STEP + 1;

/// `calculate_zspage_chain_size`.
const fn chain_pages(class_size: usize) -> usize {
    if class_size.is_power_of_two() {
        return 1;
    }
    let mut best = 1;
    let mut least_waste = usize::MAX;
    let mut pages = 1;
    while pages <= MAX_CHAIN {
        let waste = pages * PAGE_SIZE % class_size;
        if waste < least_waste {
            least_waste = waste;
            best = pages;
        }
        pages += 1;
    }
    best
}

/// Thousandths of bytes of pool that one object takes, by class.
///
/// Merging needs no case of its own: merged classes have the same chain and the same number of
/// objects, hence the same share.
const OBJECT_COST: [u32; CLASSES] = {
    let mut cost = [0; CLASSES];
    let mut class = 0;
    while class < CLASSES {
        let size = MIN_CLASS + class * CLASS_STEP;
        let bytes = chain_pages(size) * PAGE_SIZE;
        cost[class] = (bytes * 1000 / (bytes / size)) as u32;
        class += 1;
    }
    cost
};

/// Objects of at least so many bytes get a page of their own.
pub const HUGE: usize = {
    // The smallest class of which a chain holds no more objects than it has pages, and all larger.
    let mut class = CLASSES - 1;
    while class > 0 {
        let size = MIN_CLASS + (class - 1) * CLASS_STEP;
        let pages = chain_pages(size);
        if pages * PAGE_SIZE / size > pages {
            break;
        }
        class -= 1;
    }
    // One more than the longest object of the class before.
    MIN_CLASS + (class - 1) * CLASS_STEP - IN_OBJECT_HANDLE + 1
};

/// Bytes of an object of `len` bytes, at most a page: its share of a chain, and its handle.
pub fn cost(len: usize) -> f64 {
    let class = (len + IN_OBJECT_HANDLE)
        .saturating_sub(MIN_CLASS)
        .div_ceil(CLASS_STEP);
    // The last class takes the longest objects too: a page of its own has no handle inside.
    f64::from(OBJECT_COST[class.min(CLASSES - 1)]) / 1000.0 + HANDLE as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_chains() {
        // Up to 24 bytes and their handle fit the smallest class; 128 objects in one page.
        assert_eq!(cost(1), 32.0 + 8.0);
        assert_eq!(cost(24), 32.0 + 8.0);
        // Class 48: chains of 3 pages, 256 objects.
        assert_eq!(cost(25), 48.0 + 8.0);
        assert_eq!(cost(40), 48.0 + 8.0);
        // Class 2048: two in a page.
        assert_eq!(cost(2040), 2048.0 + 8.0);
        // Class 3264: five in four pages.
        assert_eq!(cost(3256), 4.0 * 4096.0 / 5.0 + 8.0);
        // Class 3632, the last with a chain: nine in eight pages.
        assert_eq!(cost(3624), 3640.888 + 8.0);
        // Longer ones get a page each.
        assert_eq!(cost(3625), 4096.0 + 8.0);
        assert_eq!(cost(PAGE_SIZE), 4096.0 + 8.0);
    }

    #[test]
    fn cost_rises_with_length_and_is_never_below_it() {
        for len in 1..PAGE_SIZE {
            assert!(cost(len) <= cost(len + 1) + 1e-9, "{len}");
            assert!(cost(len) >= len as f64, "{len}");
        }
    }

    #[test]
    fn huge_objects_have_their_own_page() {
        assert_eq!(HUGE, 3625);
        assert_eq!(cost(HUGE), 4096.0 + 8.0);
    }
}
