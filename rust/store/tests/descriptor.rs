// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Descriptors and the leaves that hold them.

use agentzip_codec::BaseId;
use agentzip_store::{
    locate, Descriptor, Entry, Leaf, Owner, Place, Slot, SlotAddress, MAX_OWNERS, MAX_SWAP_TYPES,
    PLACE_BITS, REF_CRC_BITS, SLOTS,
};
use proptest::prelude::*;
use std::collections::{HashMap, HashSet};

fn owner(index: u16) -> Owner {
    Owner::new(index).unwrap()
}

/// Packs, checks that what comes out is what went in, and returns whether it fitted.
fn fits(entry: Entry) -> bool {
    let Some(descriptor) = Descriptor::pack(entry) else {
        return false;
    };
    assert_eq!(descriptor.unpack(), entry);
    assert_eq!(descriptor.owner(), entry.owner());
    true
}

#[test]
fn owners() {
    assert_eq!(MAX_OWNERS, 4096);
    for index in 0..=u16::MAX {
        let owner = Owner::new(index);
        assert_eq!(owner.is_some(), usize::from(index) < MAX_OWNERS);
        if let Some(owner) = owner {
            assert_eq!(owner.index(), usize::from(index));
            for provisional in [false, true] {
                assert!(fits(Entry::Payload {
                    owner,
                    place: Place::from_bits(1),
                    provisional,
                }));
            }
            assert!(fits(Entry::Fill { owner, word: 0 }));
            for base in [BaseId::Template(0), BaseId::Reference(0)] {
                assert!(fits(Entry::Ref {
                    owner,
                    base,
                    crc: 0
                }));
            }
        }
    }
}

/// Every value with one or two bits set or cleared, and the limits of every field.
#[test]
fn edges() {
    assert_eq!((PLACE_BITS, REF_CRC_BITS), (50, 25));
    for owner in [0, 1, 2048, 4095].map(owner) {
        for a in 0..64 {
            for b in 0..64 {
                for word in [(1 << a) | (1u64 << b), !((1 << a) | (1u64 << b))] {
                    fits(Entry::Fill { owner, word });
                    let place = Place::from_bits(word);
                    assert!(fits(Entry::Payload {
                        owner,
                        place,
                        provisional: false
                    }));
                    let (number, crc) = (word as u32, (word >> 32) as u32);
                    let expected = number >> 24 == 0 && crc >> REF_CRC_BITS == 0;
                    for base in [BaseId::Template(number), BaseId::Reference(number)] {
                        assert_eq!(fits(Entry::Ref { owner, base, crc }), expected);
                    }
                }
            }
        }
    }
}

#[test]
fn common_fill_words_fit() {
    let owner = owner(4095);
    let words = [
        0,
        1,
        u64::MAX,
        -2i64 as u64,
        0x7fff_ffff_ffff,
        0x7f12_3456_7890,
        0xffff_8881_2345_6000,
        0x0101_0101_0101_0101,
        0xcdcd_cdcd_cdcd_cdcd,
        0x0000_0001_0000_0001,
        1.0f64.to_bits(),
        (-2.5f64).to_bits(),
        f64::NAN.to_bits(),
    ];
    for word in words {
        assert!(fits(Entry::Fill { owner, word }), "{word:#x}");
    }
    for word in [0x0123_4567_89ab_cdef, std::f64::consts::PI.to_bits()] {
        assert!(!fits(Entry::Fill { owner, word }), "{word:#x}");
    }
}

proptest! {
    #[test]
    fn any_entry_comes_back(index in 0..4096u16, kind in 0..5, a: u64, b: u32) {
        let owner = owner(index);
        let entry = match kind {
            0 => Entry::Fill { owner, word: a >> (b % 64) },
            1 => Entry::Ref { owner, base: BaseId::Template(a as u32 >> 8), crc: b >> 7 },
            2 => Entry::Ref { owner, base: BaseId::Reference(a as u32 >> 8), crc: b >> 7 },
            3 => Entry::Payload { owner, place: Place::from_bits(a), provisional: false },
            _ => Entry::Payload { owner, place: Place::from_bits(a | 1), provisional: true },
        };
        prop_assert!(fits(entry) || kind == 0);
    }

    #[test]
    fn different_entries_differ(index in 0..4096u16, word: u64, bits in 0..1u64 << 50) {
        let owner = owner(index);
        let (number, crc) = (bits as u32 >> 8, (bits >> 25) as u32);
        let all = [
            Entry::Fill { owner, word },
            Entry::Ref { owner, base: BaseId::Template(number), crc },
            Entry::Ref { owner, base: BaseId::Reference(number), crc },
            Entry::Payload { owner, place: Place::from_bits(bits), provisional: false },
        ];
        let packed: Vec<_> = all.into_iter().filter_map(Descriptor::pack).collect();
        for (n, one) in packed.iter().enumerate() {
            prop_assert!(!packed[..n].contains(one));
        }
    }

    /// A leaf behaves like a map.
    #[test]
    fn leaf(steps in prop::collection::vec((0..SLOTS + 2, any::<Option<u32>>()), 0..400)) {
        let mut leaf = Leaf::new();
        let mut map = HashMap::new();
        for (index, value) in steps {
            let new = value.map(|bits| {
                let (owner, place) = (owner(7), Place::from_bits(bits.into()));
                Descriptor::pack(Entry::Payload { owner, place, provisional: false }).unwrap()
            });
            let old = match (index < SLOTS, new) {
                (false, _) => None,
                (true, Some(new)) => map.insert(index, new),
                (true, None) => map.remove(&index),
            };
            prop_assert_eq!(leaf.replace(index, new), old);
            prop_assert_eq!(leaf.get(index), map.get(&index).copied());
            prop_assert_eq!(leaf.used(), map.len());
            prop_assert_eq!(leaf.is_empty(), map.is_empty());
        }
        for index in 0..SLOTS {
            prop_assert_eq!(leaf.get(index), map.get(&index).copied());
        }
    }

    #[test]
    fn far_slots_do_not_collide(
        a in (0..MAX_SWAP_TYPES, 0..1u64 << 50),
        b in (0..MAX_SWAP_TYPES, 0..1u64 << 50),
    ) {
        let same = locate(a.0, a.1) == locate(b.0, b.1);
        prop_assert_eq!(same, a == b);
    }
}

#[test]
fn a_leaf_is_a_page() {
    assert_eq!(size_of::<Leaf>(), 4096);
    let leaf = Leaf::default();
    assert!(leaf.is_empty());
    assert_eq!(leaf.get(SLOTS), None);
    assert_eq!(leaf.get(usize::MAX), None);
}

#[test]
fn neighbouring_slots_share_leaves() {
    let mut seen = HashSet::new();
    for swap_type in [0, 1, 2, 30, 31] {
        for offset in 0..5 * SLOTS as u64 {
            let SlotAddress { leaf, index } = locate(swap_type, offset);
            assert!(index < SLOTS);
            assert_eq!(index as u64, offset % SLOTS as u64);
            assert!(seen.insert((leaf, index)));
        }
    }
    // Five leaves for each type, none shared.
    let leaves: HashSet<_> = seen.iter().map(|(leaf, _)| leaf).collect();
    assert_eq!(leaves.len(), 25);
    // The first swap device of 4 TiB keeps the numbers, and so the radix tree, small.
    assert!(locate(0, 1 << 30).leaf < 1 << 22);
}

#[test]
fn slots() {
    for (swap_type, offset) in [
        (0, 0),
        (31, 0),
        (0, (1 << 34) - 1),
        (31, (1 << 34) - 1),
        (3, 77),
    ] {
        let slot = Slot::new(swap_type, offset).unwrap();
        assert_eq!((slot.swap_type(), slot.offset()), (swap_type, offset));
        assert!(slot.to_bits() >> Slot::BITS == 0);
        assert_eq!(Slot::from_bits(slot.to_bits()), slot);
    }
    assert_eq!(Slot::new(32, 0), None);
    assert_eq!(Slot::new(0, 1 << 34), None);
    assert_eq!(Slot::new(5, 8).unwrap().offset_by(3), Slot::new(5, 11));
    assert_eq!(Slot::new(5, (1 << 34) - 1).unwrap().offset_by(1), None);
}
