// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The true cost of payloads.

use agentzip_store::{zsmalloc_cost, HANDLE_BYTES, SLOT_BYTES};

const METADATA: usize = HANDLE_BYTES + SLOT_BYTES;

#[test]
fn known_classes() {
    // Up to 24 bytes and their handle fit the smallest class; 128 objects in one page.
    for len in 1..=24 {
        assert_eq!(zsmalloc_cost(len), 32 + METADATA);
    }
    // Class 48: chains of 3 pages, 256 objects.
    assert_eq!(zsmalloc_cost(25), 48 + METADATA);
    assert_eq!(zsmalloc_cost(40), 48 + METADATA);
    // Class 80: 5 pages hold 256.
    assert_eq!(zsmalloc_cost(72), 80 + METADATA);
    // Class 2048: two in a page.
    assert_eq!(zsmalloc_cost(2040), 2048 + METADATA);
    // Class 3264: five in four pages.
    assert_eq!(zsmalloc_cost(3256), (4 * 4096usize).div_ceil(5) + METADATA);
    // Class 3632, the last with a chain: nine in eight pages.
    assert_eq!(zsmalloc_cost(3624), (8 * 4096usize).div_ceil(9) + METADATA);
    // Longer ones get a page each.
    assert_eq!(zsmalloc_cost(3625), 4096 + METADATA);
    assert_eq!(zsmalloc_cost(4096), 4096 + METADATA);
    assert_eq!(zsmalloc_cost(4097), usize::MAX);
}

#[test]
fn cost_never_decreases_and_covers_the_payload() {
    let costs: Vec<usize> = (0..=4096).map(zsmalloc_cost).collect();
    assert!(costs.windows(2).all(|pair| pair[0] <= pair[1]));
    for (len, &cost) in costs.iter().enumerate() {
        assert!(cost >= len + METADATA);
        // Rounding and chain ends waste less than 24 bytes up to a tenth of a page.
        if (24..=400).contains(&len) {
            assert!(cost - METADATA - len < 8 + 16 + 8, "{len}: {cost}");
        }
    }
}
