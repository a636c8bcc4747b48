// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Compaction: giving back pages that hold little.
//!
//! An arena marks its emptiest pages; then every payload in a marked page is moved to a hole
//! elsewhere, as a walk over the descriptors meets it. So no payload needs to know who names it.

use super::super::{Descriptor, Entry, Owner, Released, Slot};
use super::release::free_all;
use super::Platform;

/// Moves the payload of a slot's entry if its page is to be given back.
pub fn compact_entry<P: Platform>(platform: &P, slot: Slot) {
    let mut released = Released::new();
    platform.entry(slot, |descriptor| {
        let Entry::Payload {
            owner,
            place,
            provisional,
        } = descriptor.unpack()
        else {
            return;
        };
        if !platform.is_compacting(owner) {
            return;
        }
        let moved = platform.arena(owner, |arenas| {
            arenas.of(provisional).relocate(place, &mut released)
        });
        if let Some(place) = moved.flatten() {
            // A place always fits: cannot fail.
            if let Some(new) = Descriptor::pack(Entry::Payload {
                owner,
                place,
                provisional,
            }) {
                *descriptor = new;
            }
        }
    });
    free_all(platform, &released);
}

/// Moves the payloads of the next `count` reference pages from number `first` on. Returns the number
/// to go on with, `None` at the end.
pub fn compact_group<P: Platform>(
    platform: &P,
    owner: Owner,
    first: u32,
    count: u32,
) -> Option<u32> {
    let mut next = first;
    for _ in 0..count {
        let mut released = Released::new();
        let id = platform.group(owner, |group| {
            let (id, reference) = group.references.next_live(next)?;
            if let Some(place) = group.arena.relocate(reference.place, &mut released) {
                group.references.set_place(id, place);
            }
            Some(id)
        });
        free_all(platform, &released);
        next = id.flatten()?.saturating_add(1);
    }
    Some(next)
}
