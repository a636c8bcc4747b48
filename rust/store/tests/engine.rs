// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The engine without concurrency: what becomes a reference page and what does not, and that
//! refused stores and failed promotions leave nothing behind.

#[allow(dead_code, reason = "as above")]
mod owned_pages;
#[path = "interleaving/scheduler.rs"]
#[allow(
    dead_code,
    reason = "shared with the interleavings, which use all of it"
)]
mod scheduler;
#[path = "interleaving/world.rs"]
#[allow(dead_code, reason = "as above")]
mod world;

use agentzip_codec::host::Dictionary;
use agentzip_codec::{golden, header, BaseId, DecodeError, Page, Representation, PADDED_LEN};
use agentzip_store::engine::{LoadError, Refusal};
use agentzip_store::{Arena, Released, UNIT_BYTES};
use std::sync::atomic::Ordering::Relaxed;
use world::World;

fn text(seed: u64) -> Page {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    std::array::from_fn(|_| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        b'!' + ((state >> 57) as u8 & 0x3f)
    })
}

fn changed(page: &Page, every: usize, by: u8) -> Page {
    let mut page = *page;
    for byte in page.iter_mut().step_by(every) {
        *byte = byte.wrapping_add(by);
    }
    page
}

/// Counts entries by representation as the module does, over a store that makes a reference page and is
/// then refused.
#[test]
fn a_refused_store_does_not_promote_unseen() {
    let page = text(1);
    let world = World::new(Vec::new());
    let how = world.store(0, 0, 100, &page).unwrap();
    let mut counted = std::collections::BTreeMap::<Representation, i64>::new();
    *counted.entry(how).or_default() += 1;

    world.sandbox_full.store(true, Relaxed);
    let refused = world.store(1, 1, 100, &changed(&page, 97, 1));
    assert!(refused.is_err());

    for from in world.promotions.lock().unwrap().iter() {
        *counted.entry(*from).or_default() -= 1;
        *counted.entry(Representation::Ref).or_default() += 1;
    }
    let erased = world.erase(0).unwrap();
    *counted.entry(erased.representation.unwrap()).or_default() -= 1;
    assert!(counted.values().all(|&n| n == 0), "drift: {counted:?}");
    world.finish();
}

/// Ending a compaction that was never begun says nothing about the holes of an arena.
#[test]
fn an_arena_that_others_are_compacted_beside_becomes_sparse() {
    let (pages, owner) = owned_pages::owned_pages(400);
    let mut arena = Arena::new(pages);
    let mut places = Vec::new();
    for _ in 0..300 * 16 {
        let mut spare = None;
        let place = loop {
            match arena.insert(&[7; 248], &mut spare) {
                Ok(place) => break place,
                Err(_) => spare = Some(owner.take()),
            }
        };
        places.push(place);
    }
    // Every second: some payloads go, and the worker compacts another sandbox.
    let mut seed = 1u64;
    let mut seen = false;
    let mut most = 0;
    while places.len() > 1000 {
        for _ in 0..40 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let place = places.swap_remove((seed >> 33) as usize % places.len());
            let mut released = Released::new();
            arena.remove(place, &mut released);
            released.iter().for_each(|page| owner.give_back(page));
        }
        seen |= arena.is_sparse();
        most = most.max(arena.free_bytes() * 100 / (arena.pages() * 4096));
        let _ = arena.end_compaction();
    }
    assert!(
        seen,
        "up to {most}% of the arena in holes, never sparse; {} pages",
        arena.pages()
    );
}

/// A promotion that fails for lack of a page for the payload gives the table's pages back.
#[test]
fn a_failed_promotion_leaves_no_table_page() {
    for allowed in 0..6 {
        let page = text(1);
        let world = World::new(Vec::new());
        world.store(0, 0, 100, &page).unwrap();
        world.allow(Some(allowed));
        let _ = world.store(1, 1, 100, &changed(&page, 97, 1));
        world.allow(None);
        if world.references() == 0 {
            assert_eq!(world.reference_pages(), 0, "allowed {allowed}");
        }
    }
}

/// What a sibling saves counts against the page by itself.
#[test]
fn an_unrelated_sibling_is_not_promoted() {
    let world = World::new(Vec::new());
    world.store(0, 0, 100, &text(1)).unwrap();
    let how = world.store(1, 1, 100, &text(9)).unwrap();
    let maker = world.check(0);
    assert_eq!(
        world.references(),
        0,
        "stored as {how:?}, the maker is {maker:?} now"
    );
}

/// The page equals a template page of another index, and has a sibling of its own.
#[test]
fn a_page_of_the_template_uses_no_sibling() {
    let template = text(5);
    let world = World::new(vec![(7, template)]);
    // Of the same index as the page to come, not of the template's.
    world.store(0, 0, 100, &changed(&text(1), 97, 1)).unwrap();
    let how = world.store(1, 1, 100, &template).unwrap();
    assert_eq!(how, Representation::Ref);
    world.finish();
}

/// The same, and the sibling is worth it beside the page by itself.
#[test]
fn a_page_of_the_template_uses_no_similar_sibling() {
    let template = text(5);
    let world = World::new(vec![(7, template)]);
    let mut half = text(1);
    half[..2048].copy_from_slice(&template[..2048]);
    world.store(0, 0, 100, &half).unwrap();
    let how = world.store(1, 1, 100, &template).unwrap();
    assert_eq!(how, Representation::Ref);
    world.finish();
}

/// Whatever byte of a reference page changes, what is based on it comes back right or not at all, though
/// no load of that looks at the reference page's own checksum.
#[test]
fn a_damaged_reference_page_never_gives_a_wrong_page() {
    let world = World::new(Vec::new());
    damage_reference_pages(world, Representation::Zstd);
    let world = World::with_second_look(Vec::new());
    let mut content = [0; 4096];
    golden::dictionary(&mut content);
    world.add_dictionary(Dictionary::new(&content).unwrap());
    damage_reference_pages(world, Representation::Dict);
}

/// The first of two reference pages is to be stored like this, the second to be based on it.
fn damage_reference_pages(world: World, as_what: Representation) {
    let first = text(1);
    // Few changed words, moved bytes, few changed words in a page that has moved bytes itself, and other
    // moved bytes.
    let second = changed(&first, 97, 1);
    let moved = |by, every, change| {
        let mut page = first;
        page.rotate_right(by);
        changed(&page, every, change)
    };
    let third = moved(104, 15, 1);
    let fifth = moved(208, 15, 2);
    let pages = [first, second, third, changed(&third, 101, 1), fifth];
    // Pages that resemble one that becomes a base, and an entry that has one.
    let late = [(5, changed(&third, 89, 1)), (6, changed(&fifth, 89, 1))];
    let store = |number: usize, page: &Page| {
        let index = [100, 100, 200, 200, 100, 200, 100][number];
        world.store(number as u16 % 4, number, index, page).unwrap();
        world.improve(number);
    };
    for (number, page) in pages.iter().enumerate() {
        store(number, page);
    }
    let how: Vec<_> = (0..5).map(|number| world.check(number)).collect();
    use Representation::{Delta, Prefix, Ref};
    assert_eq!(how, [Ref, Delta, Ref, Delta, Prefix]);
    let references = [0, 1].map(|id| world.reference(id).unwrap());
    let [base, based] = references.each_ref().map(|r| header(r).unwrap());
    assert_eq!(base.representation, as_what);
    assert_eq!(based.base, Some(BaseId::Reference(0)));
    assert_eq!(based.representation, Prefix);

    let mut checksums = [0; 5];
    for (id, payload) in references.iter().enumerate() {
        for (n, unit) in payload.chunks_exact(UNIT_BYTES).enumerate() {
            let unit: [u8; UNIT_BYTES] = unit.try_into().unwrap();
            let at = n % UNIT_BYTES;
            let mut bad = unit;
            bad[at] ^= 0x24;
            assert_ne!(world.memory.damage(&unit, at, 0x24), 0, "{id} {n}");
            for (number, expected) in pages.iter().enumerate() {
                match world.try_load(number) {
                    Ok(page) => assert!(page == *expected, "slot {number}: a wrong page"),
                    Err(LoadError::Decode(DecodeError::Checksum)) => checksums[number] += 1,
                    Err(_) => {}
                }
            }
            // Nor is what is wrong a base of other pages.
            for (number, page) in &late {
                store(*number, page);
            }
            let now = late.map(|(number, _)| world.try_load(number));
            assert_ne!(world.memory.damage(&bad, at, 0x24), 0, "{id} {n}");
            for ((number, page), now) in late.iter().zip(now) {
                assert!(now == Ok(*page), "{id} {n}: slot {number}");
                world.check(*number);
                world.erase(*number);
            }
            // The damage may have been one that does not matter: then it is a reference page now.
            store(4, &fifth);
            assert_eq!(world.check(4), Prefix, "{id} {n}");
        }
    }
    assert!(checksums.iter().all(|&n| n > 0), "{checksums:?}");
    world.finish();
}

/// A page of six letters in no order: zstd makes it a third as long.
fn letters(seed: u64) -> Page {
    text(seed).map(|byte| b'a' + byte % 6)
}

/// A page that is nobody's base, needs none and is found by nobody, though a template page, a sibling's and a
/// hint in the index are all equal to it.
#[test]
fn a_padded_page_shares_nothing() {
    let page = letters(1);
    for second_look in [false, true] {
        let template = vec![(100, page)];
        let world = match second_look {
            true => World::with_second_look(template),
            false => World::new(template),
        };
        // Controls: the same without.
        assert_eq!(world.store(0, 0, 100, &page), Ok(Representation::Ref));
        assert_eq!(
            world.store_padded(1, 1, 100, &page),
            Ok(Representation::Padded)
        );
        assert_eq!(world.check(1), Representation::Padded);
        for page in [[0; 4096], [7; 4096]] {
            assert_eq!(world.store(0, 2, 5, &page), Ok(Representation::Fill));
            let padded = world.store_padded(1, 3, 5, &page);
            assert_eq!(padded, Ok(Representation::Padded));
        }
        assert!(world.improve(1).is_none() && world.references() == 0);
        world.compact(1);
        assert_eq!(world.check(1), Representation::Padded);
        let erased = world.erase(1).unwrap();
        assert_eq!(erased.representation, Some(Representation::Padded));
        assert_eq!((erased.bytes, erased.provisional), (PADDED_LEN, false));
        world.finish();
    }
}

/// A slot that the index names has passed to a sensitive sandbox: the hint leads nowhere, even in one group.
#[test]
fn a_stale_hint_does_not_find_a_padded_page() {
    let page = letters(2);
    for padded in [false, true] {
        let world = World::new(Vec::new());
        // It is entered in the index.
        world.store(0, 0, 100, &page).unwrap();
        let how = match padded {
            true => world.store_padded(1, 0, 100, &page),
            false => world.store(1, 0, 100, &page),
        };
        assert_eq!(how.unwrap() == Representation::Padded, padded);
        let sibling = world.store(2, 1, 100, &page).unwrap();
        assert_eq!(sibling == Representation::Ref, !padded, "{sibling:?}");
        assert_eq!(world.references() == 0, padded);
        world.finish();
    }
}

/// A dictionary that the group gets is not for it, neither when it is stored nor later.
#[test]
fn a_padded_page_needs_no_dictionary() {
    let mut content = [0; 4096];
    golden::dictionary(&mut content);
    let world = World::with_second_look(Vec::new());
    world.store_padded(1, 0, 100, &letters(3)).unwrap();
    let number = world.add_dictionary(Dictionary::new(&content).unwrap());
    world.store_padded(1, 1, 101, &letters(4)).unwrap();
    for slot in [0, 1] {
        assert!(world.renew(slot).is_none() && world.improve(slot).is_none());
        assert_eq!(world.check(slot), Representation::Padded);
    }
    assert_eq!(world.dictionary_users(number), 0);
    world.finish();
}

/// What does not fit is declined, and nothing of it stays; what a slot held before is kept.
#[test]
fn noise_of_a_sensitive_sandbox_is_declined() {
    let mut state = 9u64;
    let noise = std::array::from_fn(|_| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 56) as u8
    });
    let world = World::new(Vec::new());
    let refused = world.store_padded(0, 0, 1, &noise);
    assert_eq!(refused, Err(Refusal::Incompressible));
    assert_eq!(world.memory.in_use(), 0);
    world.sandbox_full.store(true, Relaxed);
    let refused = world.store_padded(0, 0, 1, &letters(5));
    assert_eq!(refused, Err(Refusal::NoMemory));
    assert_eq!(world.memory.in_use(), 0);
    world.finish();
}
