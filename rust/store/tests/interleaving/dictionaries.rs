// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Dictionaries: made, renewed and ended against loads, frees, promotion, compaction and each other.

use super::scheduler::explore;
use super::world::{owner, slot, World};
use super::{changed, text, Body, BOUND};
use agentzip_codec::host::Dictionary;
use agentzip_codec::{Page, Representation};
use agentzip_store::engine::{self, Renewed};
use std::sync::{Arc, LazyLock};

/// A dictionary made for pages of [`words`].
fn dictionary() -> Arc<Dictionary> {
    static DICTIONARY: LazyLock<Arc<Dictionary>> = LazyLock::new(|| train(8 << 10, words));
    Arc::clone(&DICTIONARY)
}

fn train(bytes: usize, sample: fn(u64) -> Page) -> Arc<Dictionary> {
    let samples: Vec<Page> = (0..400).map(sample).collect();
    let content = zstd::dict::from_samples(&samples, bytes).unwrap();
    Dictionary::new(&content).unwrap()
}

/// Words of a vocabulary, in an order that repeats nothing at length.
fn words(seed: u64) -> Page {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut page = [b' '; agentzip_codec::PAGE_SIZE];
    for word in page.chunks_exact_mut(16) {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let name = format!("{:015}", (state >> 57).wrapping_mul(7_919_777_111));
        word[..15].copy_from_slice(name.as_bytes());
    }
    page
}

#[test]
fn a_dictionary_stays_for_as_long_as_payloads_need_it() {
    let world = World::with_second_look(Vec::new());
    let first = world.add_dictionary(dictionary());
    let page = partly(&words(1000), &text(0));
    world.store(0, 0, 100, &page).unwrap();
    let improved = world.improve(0).unwrap();
    assert_eq!(improved.representation, Representation::Dict);
    assert_eq!(world.dictionary_users(first), 1);
    // Its payload becomes a reference page, and another is based on that.
    world
        .store(1, 1, 100, &partly(&words(2000), &text(0)))
        .unwrap();
    let improved = world.improve(1).unwrap();
    assert_eq!(improved.representation, Representation::Prefix);
    assert_eq!(world.dictionary_users(first), 1);
    let second = world.add_dictionary(dictionary());
    assert_ne!(first, second);
    assert_eq!(world.drop_dictionaries(), 2);
    for n in 0..2 {
        world.check(n);
    }
    world.erase(0);
    assert_eq!(world.dictionary_users(first), 1, "of the base of the other");
    world.erase(1);
    assert_eq!(world.drop_dictionaries(), 1);
    world.finish();
}

/// The first three quarters of one page, the rest of another.
fn partly(page: &Page, other: &Page) -> Page {
    let mut new = *page;
    new[3072..].copy_from_slice(&other[3072..]);
    new
}

#[test]
fn second_look_against_the_end_of_its_dictionary() {
    let dictionary = dictionary();
    let runs = explore(BOUND, |run| {
        let world = World::with_second_look(Vec::new());
        world.add_dictionary(Arc::clone(&dictionary));
        world.store(0, 0, 100, &words(1000)).unwrap();
        let bodies: Vec<Body<'_>> = vec![
            Box::new(|| {
                world.improve(0);
                world.check(0);
            }),
            Box::new(|| {
                world.retire_dictionary();
                world.drop_dictionaries();
            }),
        ];
        run.threads(&world.scheduler, bodies);
        world.finish();
    });
    assert!(runs > 5, "{runs}");
}

/// An entry at slot 1 made with a dictionary that a better one has replaced, and one that no dictionary
/// helps.
fn with_dated(new: &Arc<Dictionary>) -> World {
    let world = World::with_second_look(Vec::new());
    world.store(0, 0, 100, &text(77)).unwrap();
    world.improve(0).unwrap();
    world.add_dictionary(poor_dictionary());
    world.store(1, 1, 200, &words(1001)).unwrap();
    let improved = world.improve(1).unwrap();
    assert_eq!(improved.representation, Representation::Dict);
    assert_eq!(world.renew(1), None, "it has the current one");
    world.add_dictionary(Arc::clone(new));
    world
}

/// A dictionary that knows few of the [`words`].
fn poor_dictionary() -> Arc<Dictionary> {
    static DICTIONARY: LazyLock<Arc<Dictionary>> =
        LazyLock::new(|| train(1 << 10, |n| partly(&text(n), &words(n))));
    Arc::clone(&DICTIONARY)
}

#[test]
fn entries_are_renewed_with_a_new_dictionary() {
    let world = with_dated(&dictionary());
    let Some(Renewed::Entry(renewed)) = world.renew(1) else {
        panic!("not renewed");
    };
    assert!(renewed.bytes < renewed.bytes_before, "{renewed:?}");
    assert_eq!(renewed.representation, Representation::Dict);
    assert_eq!(world.check(1), Representation::Dict);
    assert_eq!(world.renew(1), None, "renewed twice");
    assert_eq!(world.drop_dictionaries(), 1, "nobody needs the former one");
    world.finish();
}

#[test]
fn entries_without_a_dictionary_are_renewed() {
    let world = World::with_second_look(Vec::new());
    world.store(0, 0, 100, &words(1000)).unwrap();
    // Not while it is provisional, nor without a dictionary.
    world.add_dictionary(dictionary());
    assert_eq!(world.renew(0), None);
    world.retire_dictionary();
    let improved = world.improve(0).unwrap();
    assert_eq!(improved.representation, Representation::Zstd);
    assert_eq!(world.renew(0), None);
    world.add_dictionary(dictionary());
    let Some(Renewed::Entry(renewed)) = world.renew(0) else {
        panic!("not renewed");
    };
    assert_eq!(renewed.from, Representation::Zstd);
    assert_eq!(world.check(0), Representation::Dict);
    // One that equals a reference page has nothing to renew.
    world.store(2, 2, 300, &words(1000)).unwrap();
    world.improve(2).unwrap();
    assert_eq!(world.check(2), Representation::Ref);
    world.add_dictionary(dictionary());
    assert_eq!(world.renew(2), None);
    assert_eq!(world.renew(3), None, "nothing is there");
    world.finish();
}

/// A reference page of sandbox 0 that was made without a dictionary, and a page of sandbox 1 that is based
/// on it.
fn with_plain_reference() -> World {
    let world = World::with_second_look(Vec::new());
    world.store(0, 0, 100, &words(1000)).unwrap();
    let improved = world.improve(0).unwrap();
    assert_eq!(improved.representation, Representation::Zstd);
    let page = changed(&words(1000), 97, 1);
    world.store(1, 1, 100, &page).unwrap();
    let improved = world.improve(1).unwrap();
    assert!(improved.promoted.is_some(), "{improved:?}");
    assert_eq!(world.renew(0), None, "there is no dictionary");
    world
}

#[test]
fn reference_pages_get_a_dictionary_once() {
    for user in [0, 1] {
        let world = with_plain_reference();
        let first = world.add_dictionary(dictionary());
        let Some(Renewed::Reference {
            bytes_before,
            bytes,
        }) = world.renew(user)
        else {
            panic!("not renewed");
        };
        assert!(bytes < bytes_before, "{bytes} of {bytes_before}");
        assert_eq!(world.dictionary_users(first), 1);
        assert_eq!(world.check(0), Representation::Ref);
        world.check(1);
        for again in [0, 1] {
            assert_eq!(world.renew(again), None, "renewed twice");
        }
        // Not even for another dictionary: who decodes it has no use of the one that it has.
        world.add_dictionary(dictionary());
        for again in [0, 1] {
            assert_eq!(world.renew(again), None, "renewed again");
        }
        assert_eq!(world.drop_dictionaries(), 2);
        world.erase(0);
        assert_eq!(world.dictionary_users(first), 1, "its user lives");
        world.erase(1);
        assert_eq!(world.drop_dictionaries(), 1);
        world.finish();
    }
}

/// Whoever looks keeps one sandbox alone: an entry of another that is in the slot by then is left alone.
#[test]
fn entries_of_another_sandbox_are_left_alone() {
    let world = World::with_second_look(Vec::new());
    world.store(1, 0, 100, &words(1000)).unwrap();
    assert_eq!(world.improve_of(owner(0), 0), None);
    assert!(world.improve_of(owner(1), 0).is_some());
    world.add_dictionary(dictionary());
    assert_eq!(world.renew_of(owner(0), 0), None);
    assert!(world.renew_of(owner(1), 0).is_some());
    world.finish();

    // Nothing is tried for it, either: that would make the sibling's page a reference page.
    let world = World::with_second_look(Vec::new());
    world.store(0, 0, 100, &words(1000)).unwrap();
    world.improve(0).unwrap();
    let page = changed(&words(1000), 97, 1);
    world.store(1, 1, 100, &page).unwrap();
    assert_eq!(world.improve_of(owner(0), 1), None);
    assert_eq!(world.references(), 0);
    assert!(world.improve_of(owner(1), 1).is_some());
    assert_eq!(world.references(), 1);
    world.finish();

    let world = with_plain_reference();
    world.add_dictionary(dictionary());
    for (user, other) in [(0, 1), (1, 0)] {
        assert_eq!(world.renew_of(owner(other), user), None);
    }
    assert!(world.renew_of(owner(1), 1).is_some());
    world.finish();
}

#[test]
fn a_reference_page_that_a_dictionary_does_not_help_is_tried_once() {
    let world = World::with_second_look(Vec::new());
    world.store(0, 0, 100, &text(77)).unwrap();
    world.improve(0).unwrap();
    world.store(1, 1, 100, &changed(&text(77), 97, 1)).unwrap();
    assert!(world.improve(1).unwrap().promoted.is_some());
    world.add_dictionary(dictionary());
    assert_eq!(engine::dated(&world, slot(0)), Some(owner(0)));
    assert_eq!(world.renew(0), None);
    for user in [0, 1] {
        assert_eq!(engine::dated(&world, slot(user)), None, "{user}");
    }
    world.finish();
}

/// Renewal for a slot against each of the others.
fn renewal_against(others: &[fn(&World)], start: impl Fn() -> World, number: usize) {
    for (which, other) in others.iter().enumerate() {
        let runs = explore(2, |run| {
            let world = start();
            let bodies: Vec<Body<'_>> = vec![
                Box::new(|| {
                    world.renew(number);
                }),
                Box::new(|| other(&world)),
            ];
            run.threads(&world.scheduler, bodies);
            world.finish();
        });
        assert!(runs > 5, "{which}: {runs}");
    }
}

/// Renewal of a reference page against all that reads, moves, uses or ends it or its dictionary.
#[test]
fn renewal_of_a_reference_page_against_the_others() {
    let new = dictionary();
    let others: [fn(&World); 7] = [
        |world| {
            world.check(0);
            world.check(1);
        },
        |world| {
            world.erase(0);
            world.erase(1);
        },
        |world| {
            world.renew(1);
            world.check(1);
        },
        |world| {
            world.compact(0);
            world.check(1);
        },
        |world| {
            world.retire_dictionary();
            world.drop_dictionaries();
            world.check(0);
        },
        // One more user, and the number of the page that ends is given to another.
        |world| {
            let page = changed(&words(1000), 61, 1);
            world.store(2, 2, 100, &page).unwrap();
            world.improve(2);
            world.erase(0);
            world.check(2);
        },
        |world| {
            world.erase(1);
            world.erase(0);
            world.store(0, 0, 100, &words(3000)).unwrap();
            world.improve(0);
            let page = changed(&words(3000), 97, 1);
            world.store(1, 1, 100, &page).unwrap();
            world.improve(1);
        },
    ];
    let start = || {
        let world = with_plain_reference();
        world.add_dictionary(Arc::clone(&new));
        world
    };
    renewal_against(&others, start, 0);
}

#[test]
fn no_memory_for_the_renewal_of_a_reference_page() {
    let world = with_plain_reference();
    world.add_dictionary(dictionary());
    world.allow(Some(0));
    // There may be a hole for it.
    world.renew(0);
    world.allow(None);
    world.check(0);
    world.check(1);
    world.finish();
}

/// Renewal against everything that changes what is at its slot, or its dictionaries.
#[test]
fn renewal_against_the_others() {
    let new = dictionary();
    let others: [fn(&World); 6] = [
        |world| {
            world.check(1);
            world.erase(1);
        },
        |world| {
            world.store(1, 1, 200, &words(1001)).unwrap();
        },
        |world| {
            world.store(1, 1, 200, &text(9)).unwrap();
            world.improve(1);
        },
        |world| {
            world.retire_dictionary();
            world.drop_dictionaries();
        },
        |world| {
            world.renew(1);
            world.renew(0);
        },
        // It becomes a reference page.
        |world| {
            world
                .store(2, 2, 200, &changed(&words(1001), 97, 1))
                .unwrap();
            world.improve(2);
            world.compact(1);
        },
    ];
    renewal_against(&others, || with_dated(&new), 1);
}

/// The former dictionary goes as soon as nothing needs it: not the load that is under way either.
#[test]
fn load_against_renewal_and_the_end_of_the_former_dictionary() {
    let new = dictionary();
    let runs = explore(BOUND, |run| {
        let world = with_dated(&new);
        let bodies: Vec<Body<'_>> = vec![
            Box::new(|| {
                world.check(1);
            }),
            Box::new(|| {
                world.renew(1);
                world.drop_dictionaries();
            }),
        ];
        run.threads(&world.scheduler, bodies);
        world.finish();
    });
    assert!(runs > 5, "{runs}");
}

#[test]
fn no_memory_for_a_renewal() {
    let new = dictionary();
    let world = with_dated(&new);
    world.allow(Some(0));
    // There may be a hole for it.
    world.renew(0);
    world.renew(1);
    world.allow(None);
    world.finish();
}
