// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The packed arena against a list of payloads: contents, accounting, density, bounds of the work,
//! and pages that somebody else wrote to.

mod checked_arena;

use agentzip_store::{
    InsertError, Place, Released, MAX_PACKED, MAX_PAGE_NUMBER, NO_PAGE, PAGE_BYTES, PLACE_BITS,
    UNIT_BYTES,
};
use checked_arena::{padded, Checked, Random};
use proptest::prelude::*;
use std::cell::Cell;

fn bits(page: u32, offset: u64, units: u64) -> u64 {
    u64::from(page) | (offset << 31) | (units << 40)
}

#[test]
fn places_are_50_bits() {
    assert_eq!(PLACE_BITS, 50);
    assert_eq!((NO_PAGE, MAX_PAGE_NUMBER), ((1 << 31) - 1, (1 << 31) - 2));
    let all = Place::from_bits(u64::MAX);
    assert_eq!(all.to_bits(), (1 << 50) - 1);
    assert_eq!((all.page(), all.continued()), (NO_PAGE, true));
    assert_eq!((all.offset(), all.units()), (511, 511));
    let none = Place::from_bits(!0 << 50);
    assert_eq!(
        (none.to_bits(), none.page(), none.continued()),
        (0, 0, false)
    );
    let one = Place::from_bits(bits(5, 7, 9));
    assert_eq!((one.page(), one.offset(), one.units()), (5, 7, 9));
}

#[test]
fn every_length() {
    for len in 1..=MAX_PACKED {
        let mut checked = Checked::new(1);
        let payload = Random(len as u64).bytes(len);
        checked.insert(&payload);
        checked.check_contents();
        checked.check_accounts();
        let place = checked.live[0].0;
        assert!(checked.arena.matches(place, &payload));
        assert!(!checked.arena.matches(place, &payload[1..]));
        let mut other = payload.clone();
        other[len - 1] ^= 1;
        assert!(!checked.arena.matches(place, &other));
        other.resize(len + UNIT_BYTES, 0);
        assert!(!checked.arena.matches(place, &other));
        let mut short = vec![0; padded(&payload).len() - 1];
        assert_eq!(checked.arena.read(place, &mut short), None);
        let mut start = [0; 8];
        assert_eq!(checked.arena.read_start(place, &mut start), Some(8));
        assert_eq!(start, padded(&payload)[..8]);
        checked.finish();
    }
}

#[test]
fn what_it_refuses() {
    let mut arena = Checked::new(1).arena;
    for len in [0, MAX_PACKED + 1, PAGE_BYTES] {
        let mut spare = Some(0);
        let refused = arena.insert(&vec![1; len], &mut spare);
        assert_eq!((refused, spare), (Err(InsertError::Invalid), Some(0)));
    }
    let mut spare = Some(NO_PAGE);
    let refused = arena.insert(&[1], &mut spare);
    assert_eq!((refused, spare), (Err(InsertError::Invalid), Some(NO_PAGE)));
    assert_eq!(arena.insert(&[1], &mut None), Err(InsertError::NeedPage));
    assert_eq!((arena.pages(), arena.payload_bytes()), (0, 0));
}

/// A page is asked for only when holes do not do, and asking changes nothing.
#[test]
fn asking_for_a_page_changes_nothing() {
    let mut checked = Checked::new(2);
    for len in [3000, 1080, 3000, 1080] {
        checked.insert(&Random(len as u64).bytes(len));
    }
    checked.remove(3);
    checked.remove(1);
    // Two holes of 1080 bytes: a split payload loses 8 to the link.
    checked.check_accounts();
    let before = checked.shared.copies.borrow().clone();
    let payload = Random(0).bytes(2160);
    let refused = checked.arena.insert(&payload, &mut None);
    assert_eq!(refused, Err(InsertError::NeedPage));
    checked.check_accounts();
    assert!(*checked.shared.copies.borrow() == before);

    checked.insert(&payload[..2152]);
    let (place, _) = checked.live[2];
    assert!(place.continued());
    assert_eq!((checked.arena.pages(), checked.arena.free_bytes()), (2, 0));
    checked.check_contents();
    checked.check_accounts();
    assert!(checked.arena.matches(place, &payload[..2152]));
    let mut start = [0; 2000];
    assert_eq!(checked.arena.read_start(place, &mut start), Some(2000));
    assert_eq!(start, payload[..2000]);
    checked.finish();
}

/// A split payload can take its last part out of a new page.
#[test]
fn holes_are_used_up_before_a_new_page() {
    let mut checked = Checked::new(2);
    checked.insert(&[1; 3000]);
    checked.insert(&Random(1).bytes(4000));
    assert_eq!(checked.arena.pages(), 2);
    assert!(checked.live[1].0.continued());
    checked.check_contents();
    checked.check_accounts();
    checked.finish();
}

/// Removing what is not there does nothing.
#[test]
fn stale_places_free_nothing() {
    let mut checked = Checked::new(2);
    checked.insert(&[1; 800]);
    checked.insert(&[2; 800]);
    checked.insert(&[3; 800]);
    let (gone, _) = checked.live[1];
    checked.remove(1);
    let mut released = Released::new();
    assert_eq!(checked.arena.remove(gone, &mut released), 0);
    let page = gone.page();
    // The header; past the end; no units; a link that is none.
    for bits in [
        bits(page, 0, 1),
        bits(page, 511, 2),
        bits(page, 8, 0),
        bits(page, 8, 1) | (1 << 49),
    ] {
        let wrong = Place::from_bits(bits);
        assert_eq!(checked.arena.remove(wrong, &mut released), 0, "{wrong:?}");
        assert_eq!(checked.arena.read(wrong, &mut [0; PAGE_BYTES]), None);
        assert_eq!(checked.arena.read_start(wrong, &mut [0; 8]), None);
        assert_eq!(checked.arena.relocate(wrong, &mut released), None);
    }
    assert_eq!(released.iter().count(), 0);
    checked.check_accounts();
    // One in the middle of what is a hole now.
    let last = checked.live.iter().position(|(_, payload)| payload[0] == 1);
    let (gone, _) = checked.live[last.unwrap()];
    checked.remove(last.unwrap());
    assert_eq!(checked.arena.remove(gone, &mut released), 0);
    checked.check_contents();
    checked.check_accounts();
    checked.finish();
}

/// A page that was given back knows no payloads.
#[test]
fn stale_places_lead_to_no_page_that_left() {
    let mut checked = Checked::new(1);
    checked.insert(&[1; 4000]);
    checked.insert(&[2; MAX_PACKED - 4000]);
    let (last, _) = checked.live[1];
    checked.remove(0);
    checked.remove(0);
    assert_eq!(checked.arena.pages(), 0);
    checked.shared.owned.borrow_mut()[0] = true;
    let mut released = Released::new();
    assert_eq!(checked.arena.remove(last, &mut released), 0);
    assert_eq!(released.iter().count(), 0);
    assert_eq!(checked.arena.pages(), 0);
}

/// Pages that find no room in `released` stay, and take payloads again.
#[test]
fn empty_pages_without_room_to_leave_stay() {
    let mut checked = Checked::new(2);
    checked.insert(&[1; 100]);
    let (place, _) = checked.live.remove(0);
    let mut full = Released::new();
    while full.push(NO_PAGE) {}
    assert_eq!(checked.arena.remove(place, &mut full), 104);
    assert_eq!(checked.arena.pages(), 1);
    assert_eq!(checked.arena.free_bytes(), MAX_PACKED as u64);
    checked.insert(&[2; MAX_PACKED]);
    assert_eq!(checked.arena.pages(), 1);
    checked.check_contents();
    checked.finish();
}

#[derive(Clone, Debug)]
enum Step {
    Insert(usize, u64),
    Remove(prop::sample::Index),
    RemoveHalf,
    Begin,
    Relocate(prop::sample::Index),
    End,
    Compact,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let len = prop_oneof![1..=64usize, 65..=600usize, 601..=MAX_PACKED];
    let step = prop_oneof![
        12 => (len, any::<u64>()).prop_map(|(len, seed)| Step::Insert(len, seed)),
        8 => any::<prop::sample::Index>().prop_map(Step::Remove),
        1 => Just(Step::RemoveHalf),
        1 => Just(Step::Begin),
        4 => any::<prop::sample::Index>().prop_map(Step::Relocate),
        1 => Just(Step::End),
        1 => Just(Step::Compact),
    ];
    prop::collection::vec(step, 1..300)
}

proptest! {
    #[test]
    fn like_a_list_of_payloads(steps in steps()) {
        let mut checked = Checked::new(300);
        for (number, step) in steps.into_iter().enumerate() {
            let live = checked.live.len();
            match step {
                Step::Insert(len, seed) => checked.insert(&Random(seed).bytes(len)),
                Step::Remove(index) if live > 0 => checked.remove(index.index(live)),
                Step::RemoveHalf => (0..live / 2).for_each(|index| checked.remove(index)),
                Step::Begin => while checked.arena.begin_compaction() {},
                Step::Relocate(index) if live > 0 => {
                    checked.relocate(index.index(live));
                }
                Step::End => while checked.arena.end_compaction() {},
                Step::Compact => {
                    checked.compact();
                }
                Step::Remove(_) | Step::Relocate(_) => {}
            }
            if number % 8 == 0 {
                checked.check_accounts();
            }
        }
        while checked.arena.end_compaction() {}
        checked.fill_holes();
        checked.check_contents();
        checked.check_accounts();
        checked.finish();
    }
}

/// While payloads come and go and become more, little room is lost whenever a page is asked for.
#[test]
fn dense_under_a_mixed_load() {
    const FEW: u64 = 128;
    let mut random = Random(1);
    let mut checked = Checked::new(3000);
    let (mut split, mut inserted, mut samples) = (0, 0, 0);
    while checked.arena.pages() < 1500 {
        for _ in 0..5 {
            let payload = vec![inserted as u8; random.len()];
            let before = checked.arena.pages();
            let (free, overhead) = (checked.arena.free_bytes(), checked.arena.overhead_bytes());
            let (free, overhead) = (checked.share(free), checked.share(overhead));
            checked.insert(&payload);
            if before >= FEW && checked.arena.pages() > before {
                assert!(free < 0.03, "{before} pages, {free} free");
                assert!(
                    free + overhead < 0.04,
                    "{before} pages, {free} + {overhead}"
                );
                samples += 1;
            }
            inserted += 1;
            split += u32::from(checked.live[checked.live.len() - 1].0.continued());
        }
        for _ in 0..4 {
            let index = random.below(checked.live.len());
            checked.remove(index);
        }
    }
    assert!(samples > 1000, "{samples}");
    // Splitting is what makes it dense, but most payloads are whole.
    assert!(
        split > inserted / 100 && split < inserted / 2,
        "{split} of {inserted}"
    );
    checked.check_contents();
    checked.check_accounts();
    checked.finish();
}

#[test]
fn compaction_gives_back_what_was_freed() {
    let mut random = Random(2);
    let mut checked = Checked::new(2000);
    for _ in 0..5000 {
        let len = random.len();
        let payload = random.bytes(len);
        checked.insert(&payload);
    }
    assert!(!checked.arena.is_sparse());
    for _ in 0..3000 {
        let index = random.below(checked.live.len());
        checked.remove(index);
    }
    assert!(checked.arena.is_sparse());
    let mut rounds = 0;
    // The last round may find that nothing more pays.
    let mut more = true;
    while checked.arena.is_sparse() {
        assert!(more, "sparse after round {rounds}, which gave nothing back");
        more = checked.compact() > 0;
        rounds += 1;
    }
    let holes = checked.share(checked.arena.free_bytes());
    println!("{rounds} rounds, {:.2}% in holes", holes * 100.0);
    assert!(rounds <= 5, "{rounds}");
    assert!(holes < 0.03);
    checked.check_contents();
    checked.check_accounts();
    checked.finish();
}

/// Nothing goes into marked pages, and the ones that are left serve again afterwards.
#[test]
fn marked_pages_take_nothing() {
    let mut checked = Checked::new(40);
    for index in 0..64 {
        checked.insert(&[index; 1000]);
    }
    assert!(!checked.arena.begin_compaction(), "full pages were marked");
    // One of four payloads is left in each page but the last.
    for index in (0..60).rev().filter(|index| index % 4 != 0) {
        let at = checked
            .live
            .iter()
            .position(|(_, p)| p[0] == index)
            .unwrap();
        checked.remove(at);
    }
    let sparse = checked.arena.pages();
    assert!(checked.arena.begin_compaction());
    while checked.arena.begin_compaction() {}
    // Room of the marked pages is out of reach.
    while let Ok(place) = checked.arena.insert(&[99; 1000], &mut None) {
        checked.live.push((place, vec![99; 1000]));
    }
    assert!(checked.arena.free_bytes() > 10 * 2000);
    assert_eq!(checked.arena.pages(), sparse);
    // Where all others are full, nothing moves.
    assert!((0..checked.live.len()).all(|index| !checked.relocate(index)));
    while checked.arena.end_compaction() {}
    checked.check_accounts();
    let place = checked.arena.insert(&[98; 1000], &mut None);
    checked.live.push((place.unwrap(), vec![98; 1000]));
    assert!((0..checked.live.len()).all(|index| !checked.relocate(index)));
    checked.check_contents();
    checked.check_accounts();
    checked.finish();
}

/// The work of a step does not grow with the arena.
#[test]
fn steps_are_bounded() {
    // Many pages of one class, none of them with the hole that is looked for.
    const HOLE: usize = 33 * UNIT_BYTES;
    let mut checked = Checked::new(400);
    for _ in 0..300 {
        checked.insert(&[1; MAX_PACKED - HOLE]);
        checked.insert(&[2; HOLE]);
    }
    for index in (0..600).rev().filter(|index| index % 2 == 1) {
        checked.remove(index);
    }
    checked.shared.accesses.take();
    checked.insert(&[3; HOLE + 2 * UNIT_BYTES]);
    assert!(checked.shared.accesses.take() < 100);
    checked.finish();

    let mut random = Random(3);
    let mut checked = Checked::new(4000);
    let shared = checked.shared.clone();
    let mut most = 0;
    let mut count = |accesses: &Cell<usize>| {
        most = most.max(accesses.take());
    };
    shared.accesses.take();
    for _ in 0..10_000 {
        let payload = vec![7; random.len()];
        checked.insert(&payload);
        count(&shared.accesses);
    }
    for _ in 0..20_000 {
        let index = random.below(checked.live.len());
        checked.remove(index);
        count(&shared.accesses);
        if random.below(4) == 0 {
            let payload = vec![7; random.len()];
            checked.insert(&payload);
            count(&shared.accesses);
        }
        if checked.live.len() < 3000 {
            break;
        }
    }
    let mut marked = 0;
    loop {
        shared.accesses.take();
        let more = checked.arena.begin_compaction();
        assert!(shared.accesses.take() < 1500);
        if !more {
            break;
        }
        marked += 1;
    }
    assert!(marked > 3, "{marked}");
    for index in 0..checked.live.len() / 2 {
        shared.accesses.take();
        checked.relocate(index);
        count(&shared.accesses);
    }
    while checked.arena.end_compaction() {
        assert!(shared.accesses.take() < 1500);
    }
    // An insertion that fails is tried again, and each takes up to six fragments.
    assert!((20..150).contains(&most), "{most}");
    checked.finish();
}

/// A page with a broken hole is left alone; the others serve on.
#[test]
fn broken_holes_are_left_alone() {
    let mut checked = Checked::new(2);
    let payload = Random(8).bytes(3000);
    checked.insert(&payload);
    let (place, _) = checked.live[0];
    // The hole is in front of the payload; it starts with its description.
    let flips = (16..24).map(|byte| (place.page(), byte, 0xff));
    checked.shared.flips.borrow_mut().extend(flips);
    let refused = checked.arena.insert(&[1; 100], &mut None);
    assert_eq!(refused, Err(InsertError::NeedPage));
    checked.insert(&[1; 100]);
    assert_eq!(checked.arena.pages(), 2);
    let place = checked.arena.insert(&[2; 100], &mut None);
    checked.live.push((place.unwrap(), vec![2; 100]));
    checked.check_contents();
}

/// Does everything that an arena can do, whatever is in its pages.
fn exercise(checked: &mut Checked, random: &mut Random) {
    let mut out = [0; PAGE_BYTES];
    for _ in 0..20 {
        let len = random.len();
        let payload = random.bytes(len);
        checked.insert(&payload);
        let index = random.below(checked.live.len());
        let (place, payload) = &checked.live[index];
        let _ = checked.arena.matches(*place, payload);
        let _ = checked.arena.read(*place, &mut out);
        let _ = checked.arena.read_start(*place, &mut out[..8]);
    }
    while checked.arena.begin_compaction() {}
    for index in 0..checked.live.len() {
        checked.relocate(index);
    }
    while checked.arena.end_compaction() {}
    while let Some((place, _)) = checked.live.pop() {
        let mut released = Released::new();
        checked.arena.remove(place, &mut released);
        checked.take_back(&released);
    }
}

fn filled(random: &mut Random) -> Checked {
    let mut checked = Checked::new(64);
    for _ in 0..60 {
        let payload = vec![0x33; random.len()];
        checked.insert(&payload);
        if random.below(3) == 0 {
            let index = random.below(checked.live.len());
            checked.remove(index);
        }
    }
    checked
}

/// One flipped byte anywhere leads to no panic, no endless loop and no page of somebody else.
#[test]
fn a_flipped_byte_leads_nowhere() {
    let mut random = Random(4);
    let pages = filled(&mut Random(5)).arena.pages() as usize;
    assert!(pages > 5, "{pages}");
    for byte in 0..PAGE_BYTES {
        let mut checked = filled(&mut Random(5));
        let owned = checked.shared.owned.borrow().clone();
        let page = (0..owned.len())
            .filter(|page| owned[*page])
            .nth(byte % pages)
            .unwrap();
        let bits = 1 + random.below(255) as u8;
        checked
            .shared
            .flips
            .borrow_mut()
            .push((page as u32, byte, bits));
        exercise(&mut checked, &mut random);
        // A link's check would let one in 16384 through; the numbers here are always the same.
        assert_eq!(checked.shared.strays.get(), 0, "page {page}, byte {byte}");
    }
}

/// All pages overwritten with anything: headers, the beginnings of pages, or everything.
#[test]
fn overwritten_pages_lead_to_no_panic() {
    let mut random = Random(6);
    for case in 0..2000 {
        let mut checked = filled(&mut Random(7));
        let owned = checked.shared.owned.borrow().clone();
        for page in (0..owned.len()).filter(|page| owned[*page]) {
            let len = match case % 4 {
                0 => 16,
                1 => 64,
                2 => 1024,
                _ => PAGE_BYTES,
            };
            let flips = (0..len).map(|byte| (page as u32, byte, random.next() as u8));
            checked.shared.flips.borrow_mut().extend(flips);
        }
        exercise(&mut checked, &mut random);
    }
}

/// What is freed is overwritten at once, wherever it lay and whether its page is kept, and what is not freed is
/// not. An arena that does not wipe leaves it there.
#[test]
fn a_wiping_arena_leaves_nothing_behind() {
    const MARK: [u8; UNIT_BYTES] = [0xc3; UNIT_BYTES];
    for wiping in [true, false] {
        let mut checked = match wiping {
            true => Checked::wiping(64),
            false => Checked::new(64),
        };
        let mut random = Random(11);
        let mut left_over = 0;
        for step in 0..3000 {
            match (random.below(8), checked.live.len()) {
                (0..=3, live) if live < 60 => {
                    let len = match random.below(3) {
                        0 => 2040,
                        _ => random.len().next_multiple_of(UNIT_BYTES),
                    };
                    checked.insert(&vec![MARK[0]; len]);
                }
                (4..=6, live @ 1..) => checked.remove(random.below(live)),
                (7, _) if step % 50 == 0 => {
                    checked.compact();
                }
                _ => {}
            }
            let live: usize = checked.live.iter().map(|(_, payload)| payload.len()).sum();
            let found = checked.units_that_are(MARK) * UNIT_BYTES;
            if wiping {
                assert_eq!(found, live, "step {step}");
            }
            left_over += found.saturating_sub(live);
        }
        checked.check_contents();
        checked.shared.strays.set(0);
        checked.check_accounts();
        assert_eq!(left_over == 0, wiping);
        checked.shared.strays.set(0);
        checked.finish();
    }
}

/// Padded payloads are half of what a page takes: none is split, and so many pages hold so many of them.
#[test]
fn two_padded_payloads_fill_a_page() {
    let mut checked = Checked::wiping(40);
    let mut random = Random(12);
    for count in 1..=60u64 {
        checked.insert(&random.bytes(MAX_PACKED / 2));
        assert_eq!(checked.arena.pages(), count.div_ceil(2));
    }
    assert_eq!(MAX_PACKED / 2, agentzip_codec::PADDED_LEN);
    assert_eq!(checked.arena.free_bytes(), 0);
    assert!(checked.live.iter().all(|(place, _)| !place.continued()));
    checked.finish();
}
