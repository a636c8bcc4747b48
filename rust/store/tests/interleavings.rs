// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The engine in every order of its steps that matters: stores, loads, frees, promotion and
//! compaction of entries and reference pages against each other.
//!
//! Each scenario ends with every page compared, all entries freed, and no page or reference left.

#[path = "interleaving/dictionaries.rs"]
mod dictionaries;
#[path = "interleaving/scheduler.rs"]
mod scheduler;
#[path = "interleaving/world.rs"]
#[expect(dead_code, reason = "shared with the tests without concurrency")]
mod world;

use agentzip_codec::{Page, Representation};
use scheduler::explore;
use world::World;

/// Text-like bytes without repetition, so that only a base makes them small.
fn text(seed: u64) -> Page {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    std::array::from_fn(|_| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        b'!' + ((state >> 57) as u8 & 0x3f)
    })
}

/// The page with every so many-th byte changed.
fn changed(page: &Page, every: usize, by: u8) -> Page {
    let mut page = *page;
    for byte in page.iter_mut().step_by(every) {
        *byte = byte.wrapping_add(by);
    }
    page
}

/// Every order with at most so many preemptions. Faults that were put in on purpose show with two.
const BOUND: usize = 3;

type Body<'a> = Box<dyn FnOnce() + Send + 'a>;

/// A world with the page of a maker in slot 0.
fn with_maker() -> (World, Page) {
    let page = text(1);
    let world = World::new(Vec::new());
    world.store(0, 0, 100, &page).unwrap();
    (world, page)
}

#[test]
fn without_concurrency_a_sibling_is_based_on_a_promoted_page() {
    let (world, page) = with_maker();
    let similar = changed(&page, 97, 1);
    let how = world.store(1, 1, 100, &similar).unwrap();
    assert!(matches!(
        how,
        Representation::Delta | Representation::Prefix | Representation::DeltaZstd
    ));
    assert_eq!(world.check(0), Representation::Ref);
    assert_eq!(world.store(2, 2, 7, &page), Ok(Representation::Ref));
    assert_eq!(world.references(), 1);
    // The maker goes; its page stays for the others.
    world.erase(0);
    assert_eq!(world.references(), 1);
    world.finish();
}

#[test]
fn promotion_against_free_of_the_maker() {
    let runs = explore(BOUND, |run| {
        let (world, page) = with_maker();
        let similar = changed(&page, 97, 1);
        let bodies: Vec<Body<'_>> = vec![
            Box::new(|| {
                world.store(1, 1, 100, &similar).unwrap();
            }),
            Box::new(|| {
                world.erase(0);
            }),
        ];
        run.threads(&world.scheduler, bodies);
        world.finish();
    });
    assert!(runs > 40, "{runs}");
}

#[test]
fn promotion_against_promotion() {
    let runs = explore(BOUND, |run| {
        let (world, page) = with_maker();
        let (one, two) = (changed(&page, 97, 1), changed(&page, 101, 2));
        let bodies: Vec<Body<'_>> = vec![
            Box::new(|| {
                world.store(1, 1, 100, &one).unwrap();
            }),
            Box::new(|| {
                world.store(2, 2, 100, &two).unwrap();
            }),
        ];
        run.threads(&world.scheduler, bodies);
        world.finish();
    });
    assert!(runs > 40, "{runs}");
}

/// The slot is freed and filled anew, with a payload of the same length at the same place: once with
/// another page, once with the same one.
#[test]
fn promotion_against_a_new_store_of_the_slot() {
    for new in [text(9), text(1)] {
        let runs = explore(BOUND, |run| {
            let (world, page) = with_maker();
            let similar = changed(&page, 97, 1);
            let bodies: Vec<Body<'_>> = vec![
                Box::new(|| {
                    world.store(1, 1, 100, &similar).unwrap();
                }),
                Box::new(|| {
                    world.store(0, 0, 100, &new).unwrap();
                }),
            ];
            run.threads(&world.scheduler, bodies);
            world.finish();
        });
        assert!(runs > 40, "{runs}");
    }
}

#[test]
fn load_against_promotion_and_compaction() {
    let runs = explore(2, |run| {
        let (world, page) = with_maker();
        world.store(0, 3, 200, &text(2)).unwrap();
        let similar = changed(&page, 97, 1);
        let bodies: Vec<Body<'_>> = vec![
            Box::new(|| {
                world.check(0);
            }),
            Box::new(|| {
                world.store(1, 1, 100, &similar).unwrap();
            }),
            Box::new(|| world.compact(0)),
        ];
        run.threads(&world.scheduler, bodies);
        world.finish();
    });
    assert!(runs > 40, "{runs}");
}

/// The last users of a reference page go while somebody is about to use it.
#[test]
fn use_against_the_last_release() {
    let runs = explore(BOUND, |run| {
        let (world, page) = with_maker();
        world.store(1, 1, 100, &changed(&page, 97, 1)).unwrap();
        assert_eq!(world.references(), 1);
        let third = changed(&page, 103, 3);
        let bodies: Vec<Body<'_>> = vec![
            Box::new(|| {
                world.store(2, 2, 100, &third).unwrap();
            }),
            Box::new(|| {
                world.erase(0);
                world.erase(1);
            }),
        ];
        run.threads(&world.scheduler, bodies);
        world.finish();
    });
    assert!(runs > 40, "{runs}");
}

/// A page whose last quarter is new.
fn partly_new(page: &Page, seed: u64) -> Page {
    let mut new = *page;
    new[3072..].copy_from_slice(&text(seed)[3072..]);
    new
}

#[test]
fn reference_pages_are_based_on_reference_pages_but_no_deeper() {
    let (world, page) = with_maker();
    let second = partly_new(&page, 5);
    assert_eq!(world.store(1, 1, 100, &second), Ok(Representation::Prefix));
    world.store(2, 2, 100, &changed(&second, 97, 1)).unwrap();
    assert_eq!(world.references(), 2);
    // The entry in slot 2 is two levels deep: nobody may be based on it.
    let fourth = partly_new(&changed(&second, 97, 1), 6);
    world.store(3, 3, 100, &fourth).unwrap();
    assert_ne!(world.check(2), Representation::Ref);
    world.erase(0);
    world.erase(1);
    assert_eq!(world.references(), 2);
    world.finish();
}

/// An entry that is itself based on a reference page is promoted while both go.
#[test]
fn a_second_level_against_release_of_the_first() {
    let runs = explore(BOUND, |run| {
        let (world, page) = with_maker();
        // Far enough from the first to be worth its own reference page.
        let second = partly_new(&page, 5);
        world.store(1, 1, 100, &second).unwrap();
        let third = changed(&second, 97, 1);
        let bodies: Vec<Body<'_>> = vec![
            Box::new(|| {
                world.store(2, 2, 100, &third).unwrap();
            }),
            Box::new(|| {
                world.erase(0);
                world.erase(1);
            }),
        ];
        run.threads(&world.scheduler, bodies);
        world.finish();
    });
    assert!(runs > 40, "{runs}");
}

/// A reference page of which a load is in progress is moved by compaction and loses its maker.
#[test]
fn load_against_compaction_of_the_group_and_free_of_the_maker() {
    let runs = explore(BOUND, |run| {
        let (world, page) = with_maker();
        world.store(1, 1, 100, &changed(&page, 97, 1)).unwrap();
        world.store(0, 3, 200, &text(3)).unwrap();
        world.store(1, 4, 200, &changed(&text(3), 97, 1)).unwrap();
        let bodies: Vec<Body<'_>> = vec![
            Box::new(|| {
                world.check(1);
            }),
            Box::new(|| {
                world.erase(0);
                world.compact(1);
            }),
        ];
        run.threads(&world.scheduler, bodies);
        world.finish();
    });
    assert!(runs > 40, "{runs}");
}

/// No memory at each allocation in turn: what was stored before stays right, nothing is lost.
#[test]
fn no_memory_at_each_allocation() {
    let mut failures = 0;
    for allowed in 0.. {
        let (world, page) = with_maker();
        world.allow(Some(allowed));
        let pages = [
            changed(&page, 97, 1),
            page,
            text(6),
            changed(&text(6), 97, 1),
            text(7),
        ];
        let mut refused = 0;
        for (n, page) in pages.iter().enumerate() {
            let me = 1 + n as u16 % 3;
            refused += usize::from(world.store(me, n + 1, 100 + n as u64 / 2, page).is_err());
        }
        world.check(0);
        world.allow(None);
        world.finish();
        failures += refused;
        if refused == 0 && allowed > 20 {
            break;
        }
    }
    assert!(failures > 3, "{failures}");
}

/// A world with the page of a maker in slot 0, final, and a page like it in slot 1, provisional.
fn with_provisional() -> (World, Page) {
    let page = text(1);
    let world = World::with_second_look(Vec::new());
    world.store(0, 0, 100, &page).unwrap();
    world.improve(0).unwrap();
    world.store(1, 1, 100, &changed(&page, 97, 1)).unwrap();
    (world, page)
}

#[test]
fn a_second_look_finds_the_sibling() {
    let (world, page) = with_provisional();
    assert_eq!(world.check(1), Representation::Zstd);
    assert_eq!(world.references(), 0);
    let improved = world.improve(1).unwrap();
    assert!(improved.bytes < improved.bytes_before / 4, "{improved:?}");
    assert_eq!(world.references(), 1);
    assert_eq!(world.improve(1), None, "looked at twice");
    assert_eq!(world.improve(0), None, "looked at twice");
    world.store(2, 2, 7, &page).unwrap();
    assert_eq!(
        world.improve(2).unwrap().representation,
        Representation::Ref
    );
    world.finish();
}

/// A short delta against the template is as good as it gets.
#[test]
fn a_short_delta_is_not_looked_at_again() {
    let page = text(1);
    let world = World::with_second_look(vec![(100, page)]);
    world.store(0, 0, 100, &changed(&page, 512, 1)).unwrap();
    assert_eq!(world.check(0), Representation::Delta);
    assert_eq!(world.improve(0), None);
    world.finish();
}

#[test]
fn second_look_against_load_and_free() {
    let runs = explore(2, |run| {
        let (world, _) = with_provisional();
        let bodies: Vec<Body<'_>> = vec![
            Box::new(|| {
                world.improve(1);
            }),
            Box::new(|| {
                world.check(1);
                world.erase(1);
            }),
            Box::new(|| {
                world.erase(0);
            }),
        ];
        run.threads(&world.scheduler, bodies);
        world.finish();
    });
    assert!(runs > 40, "{runs}");
}

/// The slot is freed and filled anew, at the same place: with another page, and with the same one.
#[test]
fn second_look_against_a_new_store_of_the_slot() {
    for same in [false, true] {
        let runs = explore(BOUND, |run| {
            let (world, page) = with_provisional();
            let new = match same {
                true => changed(&page, 97, 1),
                false => text(9),
            };
            let bodies: Vec<Body<'_>> = vec![
                Box::new(|| {
                    world.improve(1);
                }),
                Box::new(|| {
                    world.store(1, 1, 100, &new).unwrap();
                }),
            ];
            run.threads(&world.scheduler, bodies);
            world.finish();
        });
        assert!(runs > 40, "{runs}");
    }
}

#[test]
fn second_look_against_compaction() {
    let runs = explore(BOUND, |run| {
        let (world, _) = with_provisional();
        world.store(1, 3, 300, &text(3)).unwrap();
        let bodies: Vec<Body<'_>> = vec![
            Box::new(|| {
                world.improve(1);
            }),
            Box::new(|| {
                world.compact(1);
                world.check(1);
            }),
        ];
        run.threads(&world.scheduler, bodies);
        world.finish();
    });
    assert!(runs > 40, "{runs}");
}

/// Two workers at the same entry, and one at another that resembles it.
#[test]
fn second_look_against_second_look() {
    let runs = explore(2, |run| {
        let (world, page) = with_provisional();
        world.store(2, 2, 100, &changed(&page, 101, 2)).unwrap();
        let bodies: Vec<Body<'_>> = vec![
            Box::new(|| {
                world.improve(1);
            }),
            Box::new(|| {
                world.improve(1);
                world.improve(2);
            }),
        ];
        run.threads(&world.scheduler, bodies);
        world.finish();
    });
    assert!(runs > 40, "{runs}");
}

#[test]
fn no_memory_in_the_second_look() {
    let mut failures = 0;
    for allowed in 0.. {
        let (world, page) = with_provisional();
        world.store(2, 2, 101, &text(6)).unwrap();
        world.store(0, 3, 102, &page).unwrap();
        world.allow(Some(allowed));
        let failed = (1..4).filter(|&n| world.improve(n).is_none()).count();
        for n in 0..4 {
            world.check(n);
        }
        world.allow(None);
        for n in 1..4 {
            world.improve(n);
        }
        world.finish();
        failures += failed;
        if failed == 0 && allowed > 8 {
            break;
        }
    }
    assert!(failures > 0);
}
