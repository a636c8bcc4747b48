// SPDX-License-Identifier: GPL-2.0 OR MIT

//! References against a plain map.

mod owned_pages;

use agentzip_store::{
    AfterRelease, CreateError, Place, Reference, References, Released, MAX_PAGE_NUMBER,
    MAX_REFERENCES,
};
use owned_pages::{owned_pages, OwnedPages, Owner};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// References, and what should be in them.
struct Checked {
    references: References<OwnedPages>,
    owner: Owner,
    model: BTreeMap<u32, Reference>,
}

fn place(seed: u64) -> Place {
    Place::from_bits(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

impl Checked {
    fn new(pages: usize) -> Self {
        let (pages, owner) = owned_pages(pages);
        Self {
            references: References::new(pages),
            owner,
            model: BTreeMap::new(),
        }
    }

    fn create(&mut self, reference: Reference) -> u32 {
        let Reference {
            place,
            count,
            depth,
            settled,
        } = reference;
        assert!(!settled, "nobody has said so");
        let mut spare = None;
        let id = loop {
            match self.references.create(place, count, depth, &mut spare) {
                Ok(id) => break id,
                Err(CreateError::NeedPage) => {
                    assert_eq!(spare, None);
                    spare = Some(self.owner.take());
                }
                Err(CreateError::Full) => panic!("full at {}", self.model.len()),
            }
        };
        assert_eq!(spare, None, "a page was asked for and left");
        assert!(id < MAX_REFERENCES);
        assert_eq!(self.model.insert(id, reference), None, "{id} lives already");
        id
    }

    fn release(&mut self, id: u32) {
        let Some(known) = self.model.get_mut(&id) else {
            assert_eq!(self.references.release(id), None);
            return;
        };
        known.count -= 1;
        if known.count > 0 {
            let count = known.count;
            assert_eq!(
                self.references.release(id),
                Some(AfterRelease::Shared(count))
            );
        } else {
            let place = known.place;
            self.model.remove(&id);
            assert_eq!(self.references.release(id), Some(AfterRelease::Gone(place)));
            assert_eq!(self.references.get(id), None);
        }
    }

    /// Takes back all pages that are not needed.
    fn shrink(&mut self) {
        loop {
            let mut released = Released::new();
            self.references.shrink(&mut released);
            released.iter().for_each(|page| self.owner.give_back(page));
            if !released.is_full() {
                break;
            }
        }
    }

    fn check(&self) {
        assert_eq!(self.references.live() as usize, self.model.len());
        assert_eq!(self.references.pages(), self.owner.given());
        for (&id, &reference) in &self.model {
            assert_eq!(self.references.get(id), Some(reference));
        }
        let mut walked = BTreeMap::new();
        let mut from = 0;
        while let Some((id, reference)) = self.references.next_live(from) {
            assert!(id >= from);
            walked.insert(id, reference);
            from = id + 1;
        }
        assert_eq!(walked, self.model);
    }
}

fn reference(seed: u64, count: u32) -> Reference {
    Reference {
        place: place(seed),
        count,
        depth: seed as u8,
        settled: false,
    }
}

#[test]
fn settled_until_it_ends() {
    let mut checked = Checked::new(2);
    let id = checked.create(reference(!0, 1));
    assert_eq!(checked.references.settle(id), Some(()));
    checked.references.acquire(id);
    checked.references.set_place(id, place(7));
    let now = checked.references.get(id).unwrap();
    assert!(now.settled, "{now:?}");
    assert_eq!((now.place, now.depth, now.count), (place(7), !0, 2));
    checked.references.release(id);
    checked.references.release(id);
    assert_eq!(checked.references.settle(id), None);
    checked.model.clear();
    assert_eq!(checked.create(reference(1, 1)), id);
    assert_eq!(checked.references.get(id), Some(reference(1, 1)));
}

#[test]
fn lives_until_the_last_release() {
    let mut checked = Checked::new(2);
    let id = checked.create(reference(!0, 1));
    assert_eq!(id, 0);
    assert_eq!(checked.references.acquire(id), Some(()));
    assert_eq!(checked.references.get(id), Some(reference(!0, 2)));
    assert_eq!(checked.references.set_place(id, place(7)), Some(()));
    assert_eq!(
        checked.references.release(id),
        Some(AfterRelease::Shared(1))
    );
    assert_eq!(
        checked.references.release(id),
        Some(AfterRelease::Gone(place(7)))
    );

    // Nothing can be done to one that is gone, nor to one that never was.
    for id in [
        0,
        1,
        254,
        255,
        MAX_REFERENCES - 1,
        MAX_REFERENCES,
        1 << 24,
        u32::MAX,
    ] {
        assert_eq!(checked.references.get(id), None);
        assert_eq!(checked.references.acquire(id), None);
        assert_eq!(checked.references.release(id), None);
        assert_eq!(checked.references.set_place(id, place(1)), None);
        assert_eq!(checked.references.next_live(id), None);
    }
    assert_eq!(checked.references.live(), 0);
    checked.model.clear();
    checked.shrink();
    checked.check();
    assert_eq!(checked.owner.given(), 0);
}

#[test]
fn a_count_stops_at_its_limit() {
    let mut checked = Checked::new(2);
    let id = checked.create(reference(1, u32::MAX - 1));
    assert_eq!(checked.references.acquire(id), Some(()));
    assert_eq!(checked.references.acquire(id), None);
    assert_eq!(checked.references.get(id), Some(reference(1, u32::MAX)));
    assert_eq!(
        checked.references.release(id),
        Some(AfterRelease::Shared(u32::MAX - 1))
    );
    assert_eq!(checked.references.acquire(id), Some(()));
}

#[test]
fn a_count_of_zero_is_one() {
    let mut checked = Checked::new(2);
    let mut spare = Some(checked.owner.take());
    let create = |checked: &mut Checked, spare: &mut Option<u32>| {
        checked.references.create(place(1), 0, 0, spare)
    };
    assert_eq!(create(&mut checked, &mut spare), Err(CreateError::NeedPage));
    spare = Some(checked.owner.take());
    let id = create(&mut checked, &mut spare).unwrap();
    assert_eq!(
        checked.references.release(id),
        Some(AfterRelease::Gone(place(1)))
    );
}

#[test]
fn no_page_no_reference() {
    let mut checked = Checked::new(3);
    let mut spare = None;
    let refused = checked.references.create(place(1), 1, 0, &mut spare);
    assert_eq!(refused, Err(CreateError::NeedPage));
    assert_eq!(checked.references.pages(), 0);
    let per_page = (0..)
        .take_while(|&n| {
            checked.create(reference(n, 1));
            checked.owner.given() == 2
        })
        .count();
    // The last one created took the third page.
    assert_eq!(checked.model.len(), per_page + 1);
    for id in 0..per_page as u32 {
        checked.release(id);
    }
    checked.shrink();
    checked.check();
    assert_eq!(checked.owner.given(), 2);
    // The lowest id is used next, although its page is gone, once the other page is full.
    for n in 1..per_page as u64 {
        assert!(checked.create(reference(n, 1)) > per_page as u32);
    }
    let refused = checked.references.create(place(1), 1, 0, &mut spare);
    assert_eq!(refused, Err(CreateError::NeedPage));
    checked.check();
    assert_eq!(checked.create(reference(9, 1)), 0);
    checked.check();
}

#[test]
fn a_spare_page_stays_where_it_is_not_needed() {
    let mut checked = Checked::new(3);
    checked.create(reference(1, 1));
    let page = checked.owner.take();
    let mut spare = Some(page);
    assert_eq!(checked.references.create(place(2), 1, 0, &mut spare), Ok(1));
    assert_eq!(spare, Some(page));

    let mut checked = Checked::new(1);
    let mut spare = Some(MAX_PAGE_NUMBER + 1);
    let refused = checked.references.create(place(1), 1, 0, &mut spare);
    assert_eq!(refused, Err(CreateError::Full));
    assert_eq!(spare, Some(MAX_PAGE_NUMBER + 1));
}

#[test]
fn fills_up_and_empties() {
    let mut checked = Checked::new(513);
    for n in 0..MAX_REFERENCES {
        assert_eq!(checked.create(reference(n.into(), 1)), n, "ids are dense");
    }
    assert_eq!(checked.owner.given(), 513);
    let mut spare = Some(12345);
    let refused = checked.references.create(place(0), 1, 0, &mut spare);
    assert_eq!((refused, spare), (Err(CreateError::Full), Some(12345)));
    checked.check();

    // Ids that became free are used again, the lowest page first.
    for id in [MAX_REFERENCES - 1, 1000, 70_000] {
        checked.release(id);
    }
    checked.check();
    for id in [1000, 70_000, MAX_REFERENCES - 1] {
        assert_eq!(checked.create(reference(id.into(), 3)), id);
    }
    let mut spare = None;
    let refused = checked.references.create(place(0), 1, 0, &mut spare);
    assert_eq!(refused, Err(CreateError::Full));

    // A page in the middle goes as soon as nothing lives in it.
    let middle: Vec<u32> = (20_000..21_000)
        .filter(|id| ![1000, 70_000].contains(id))
        .collect();
    middle.iter().for_each(|&id| checked.release(id));
    checked.shrink();
    checked.check();
    assert!(checked.owner.given() < 513);

    let left: Vec<(u32, u32)> = checked.model.iter().map(|(&id, r)| (id, r.count)).collect();
    for (id, count) in left {
        (0..count).for_each(|_| checked.release(id));
    }
    assert_eq!(checked.references.next_live(0), None);
    checked.shrink();
    checked.check();
    assert_eq!(checked.owner.given(), 0);
    // And it can be used again.
    assert_eq!(checked.create(reference(5, 1)), 0);
    checked.check();
}

#[test]
fn work_is_bounded() {
    let mut checked = Checked::new(513);
    for n in 0..MAX_REFERENCES {
        checked.create(reference(n.into(), 1));
        // A table of the directory, a page of records.
        assert!(checked.owner.touched() <= 2);
    }
    for id in (0..MAX_REFERENCES).filter(|id| id % 255 != 254) {
        checked.release(id);
        assert!(checked.owner.touched() <= 2);
    }
    for from in (0..MAX_REFERENCES).step_by(100) {
        assert_eq!(checked.references.next_live(from).unwrap().0 % 255, 254);
        assert!(checked.owner.touched() <= 3);
    }
    for id in (0..MAX_REFERENCES).filter(|id| id % 255 == 254) {
        checked.release(id);
    }
    checked.owner.touched();
    let mut released = Released::new();
    checked.references.shrink(&mut released);
    assert_eq!(released.iter().count(), Released::CAPACITY);
    assert_eq!(checked.owner.touched(), 1);
}

#[derive(Clone, Debug)]
enum Step {
    Create(u64, u32),
    Acquire(usize),
    Release(usize),
    SetPlace(usize, u64),
    ReleaseAll(usize),
    Shrink,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (any::<u64>(), 1..4u32).prop_map(|(seed, count)| Step::Create(seed, count)),
        4 => any::<usize>().prop_map(Step::Acquire),
        6 => any::<usize>().prop_map(Step::Release),
        2 => (any::<usize>(), any::<u64>()).prop_map(|(which, seed)| Step::SetPlace(which, seed)),
        1 => (0..4usize).prop_map(Step::ReleaseAll),
        1 => Just(Step::Shrink),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn agrees_with_a_map(steps in prop::collection::vec(step(), 0..2000)) {
        let mut checked = Checked::new(12);
        for step in steps {
            // Live ones mostly; ids that do not live too.
            let pick = |checked: &Checked, which: usize| {
                let ids: Vec<u32> = checked.model.keys().copied().collect();
                ids.get(which % (ids.len() + 1)).copied().unwrap_or(which as u32 % 2000)
            };
            match step {
                Step::Create(seed, count) => {
                    checked.create(reference(seed, count));
                }
                Step::Acquire(which) => {
                    let id = pick(&checked, which);
                    let known = checked.model.get_mut(&id).map(|known| known.count += 1);
                    prop_assert_eq!(checked.references.acquire(id), known);
                }
                Step::Release(which) => {
                    let id = pick(&checked, which);
                    checked.release(id);
                }
                Step::SetPlace(which, seed) => {
                    let id = pick(&checked, which);
                    let known = checked.model.get_mut(&id).map(|known| known.place = place(seed));
                    prop_assert_eq!(checked.references.set_place(id, place(seed)), known);
                }
                // All of a page but the first few, or the whole page.
                Step::ReleaseAll(from) => {
                    let ids: Vec<u32> = checked.model.keys().copied().skip(from * 100).collect();
                    for id in ids {
                        while checked.model.contains_key(&id) {
                            checked.release(id);
                        }
                    }
                }
                Step::Shrink => checked.shrink(),
            }
            prop_assert_eq!(checked.references.pages(), checked.owner.given());
        }
        checked.check();
        checked.shrink();
        checked.check();
        let ids: Vec<u32> = checked.model.keys().copied().collect();
        for id in ids {
            while checked.model.contains_key(&id) {
                checked.release(id);
            }
        }
        checked.shrink();
        prop_assert_eq!(checked.owner.given(), 0);
    }
}
