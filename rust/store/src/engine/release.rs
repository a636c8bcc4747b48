// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The end of entries and of reference pages.
//!
//! Runs in the invalidate handler: no allocation, no sleep, and all loops bounded.

use super::super::codec::{self, BaseId};
use super::super::{AfterRelease, Arena, Descriptor, Entry, Owner, Pages, Place, Released, Slot};
use super::{Platform, Representation, MAX_DEPTH};

/// An entry that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Erased {
    /// Sandbox that had stored it.
    pub owner: Owner,
    /// How it was encoded. `None` when its header is damaged. Then the reference page that it may
    /// have named keeps this use for as long as the group lives; damage to the number alone takes a
    /// use from another one, whose users then fail their checks.
    pub representation: Option<Representation>,
    /// Bytes that its payload took in the sandbox's arena.
    pub bytes: usize,
    /// Whether it was waiting for a second look.
    pub provisional: bool,
}

/// Ends the entry of a slot, if it has one.
pub fn erase<P: Platform>(platform: &P, slot: Slot) -> Option<Erased> {
    platform
        .take(slot)
        .map(|descriptor| release(platform, descriptor))
}

/// Ends an entry whose descriptor is in the table no more.
pub fn release<P: Platform>(platform: &P, descriptor: Descriptor) -> Erased {
    let owner = descriptor.owner();
    let mut dictionary = None;
    let mut waiting = false;
    let (representation, base, bytes) = match descriptor.unpack() {
        Entry::Fill { .. } => (Some(Representation::Fill), None, 0),
        Entry::Ref { base, .. } => (Some(Representation::Ref), Some(base), 0),
        Entry::Payload {
            place, provisional, ..
        } => {
            waiting = provisional;
            let mut released = Released::new();
            let (header, bytes) = platform
                .arena(owner, |arenas| {
                    remove(arenas.of(provisional), place, &mut released)
                })
                .unwrap_or((None, 0));
            free_all(platform, &released);
            dictionary = header.and_then(|header| header.dictionary);
            (
                header.map(|header| header.representation),
                header.and_then(|header| header.base),
                bytes,
            )
        }
    };
    if let Some(BaseId::Reference(id)) = base {
        release_reference(platform, owner, id);
    }
    if let Some(number) = dictionary {
        release_dictionary(platform, owner, number);
    }
    Erased {
        owner,
        representation,
        bytes,
        provisional: waiting,
    }
}

/// Removes a payload from an arena; its header, if it is sound, and the bytes it took.
pub(super) fn remove<A: Pages>(
    arena: &mut Arena<A>,
    place: Place,
    released: &mut Released,
) -> (Option<codec::Header>, usize) {
    let mut start = [0; codec::UNIT];
    let header = arena
        .read_start(place, &mut start)
        .and_then(|len| codec::header(start.get(..len)?).ok());
    (header, arena.remove(place, released))
}

/// Gives up one use of a reference page, and of what it is based on when it was the last.
pub(super) fn release_reference<P: Platform>(platform: &P, owner: Owner, id: u32) {
    let mut next = Some(id);
    // A reference page of depth 2 is never made, so there are at most MAX_DEPTH in a row.
    for _ in 0..MAX_DEPTH {
        let Some(id) = next else { return };
        let mut released = Released::new();
        next = platform
            .group(owner, |group| {
                let AfterRelease::Gone(place) = group.references.release(id)? else {
                    return None;
                };
                let (header, _) = remove(&mut group.arena, place, &mut released);
                group.references.shrink(&mut released);
                let header = header?;
                if let Some(number) = header.dictionary {
                    group.dictionaries.release(number);
                }
                match header.base {
                    Some(BaseId::Reference(id)) => Some(id),
                    _ => None,
                }
            })
            .flatten();
        free_all(platform, &released);
    }
}

/// Gives up one use of a dictionary.
pub(super) fn release_dictionary<P: Platform>(platform: &P, owner: Owner, number: u8) {
    platform.group(owner, |group| group.dictionaries.release(number));
}

/// Frees the pages that an arena let go.
pub(super) fn free_all<P: Platform>(platform: &P, released: &Released) {
    for page in released.iter() {
        platform.free(page);
    }
}
