// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The second look: encoding again, with everything there is, what was stored in a hurry; and with a new
//! dictionary what was encoded without it, entries and reference pages.

use super::super::codec::{self, BaseId, Encoder};
use super::super::{
    Descriptor, Entry, Group, InsertError, Owner, Pages, Place, Released, Slot, UNIT_BYTES,
};
use super::choose::{choose, remember, try_alone, Choice};
use super::load::{decode_plain, Check};
use super::release::{free_all, release_dictionary, release_reference};
use super::siblings::Promoted;
use super::store::{enter, insert_entry, withdraw, Entered};
use super::{Account, Backend, Page, Platform, Policy, Representation, Work};

/// An entry that was looked at again. It is provisional no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Improved {
    /// Its sandbox.
    pub owner: Owner,
    /// How it was encoded before.
    pub from: Representation,
    /// Bytes that its payload took in the sandbox's arena before.
    pub bytes_before: usize,
    /// How it is encoded now.
    pub representation: Representation,
    /// Bytes that its payload takes now; 0 when the entry is all in the table.
    pub bytes: usize,
    /// A sibling's entry whose payload became a reference page.
    pub promoted: Option<Promoted>,
}

/// The owner of a slot's entry if that is provisional: whether [`improve`] has something to do.
pub fn provisional<P: Platform>(platform: &P, slot: Slot) -> Option<Owner> {
    platform
        .entry(slot, |descriptor| match descriptor.unpack() {
            Entry::Payload {
                owner,
                provisional: true,
                ..
            } => Some(owner),
            _ => None,
        })
        .flatten()
}

/// Encodes the page of a slot again if its entry is provisional and of the sandbox `me`. `page` is a
/// buffer for it.
///
/// Nobody needs to be kept from loading, freeing or storing the slot meanwhile: the entry is
/// replaced only if it is still there, bytes and all. The caller keeps the sandbox alone, so an entry of
/// another one, which may be in the slot by now, is left alone. Returns `None`, and has changed nothing,
/// when there is no such entry (any more), no memory for its new payload, or it cannot be decoded.
pub fn improve<P: Platform, B: Backend<Dictionary = P::Dictionary>>(
    platform: &P,
    policy: &Policy,
    me: Owner,
    slot: Slot,
    page: &mut Page,
    work: &mut Work,
    backend: &mut B,
) -> Option<Improved> {
    let before = read(platform, me, slot, true, &mut work.looked_at)?;
    let payload_len = before.checked_sub(UNIT_BYTES)?;
    let (payload, trailer) = work
        .looked_at
        .get(..before)?
        .split_at_checked(payload_len)?;
    let index = u64::from_le_bytes(*trailer.first_chunk()?);
    let header = codec::header(payload).ok()?;
    let codec = &mut work.codec;
    let check = Check::Now;
    decode_plain(platform, me, header, payload, check, codec, backend, page).ok()?;

    let mut choice = Choice::new(
        Encoder::new(page, policy.limits, backend),
        Some(payload_len),
    );
    choose(platform, policy, me, index, &mut choice, work, backend);
    // No encoding within the limits, or none that is shorter: the first one, without the index.
    let entered = match is_shorter(&choice, payload_len) {
        true => enter(platform, me, &choice, None, work).ok(),
        false => None,
    };
    let (entered, chosen) = match entered {
        Some(entered) => (entered, true),
        None => {
            let payload = work.looked_at.get(..payload_len)?;
            match insert_entry(platform, me, payload, false) {
                Ok(descriptor) => {
                    let entered = Entered {
                        descriptor,
                        representation: header.representation,
                        bytes: payload_len,
                    };
                    (entered, false)
                }
                Err(_) => {
                    choice.give_up(platform, me);
                    return None;
                }
            }
        }
    };
    let promoted = choice.promoted;
    if !exchange(platform, slot, me, true, before, &entered, work) {
        choice.give_up(platform, me);
        return None;
    }
    remember(platform, policy, me, index, &choice, slot, entered.bytes);
    if let (Representation::Dict | Representation::Zstd, Some(number)) =
        (entered.representation, choice.dictionary)
    {
        // Whether or not the dictionary helped: where it does not it serves badly.
        platform.group(me, |group| group.dictionaries.note(number, entered.bytes));
    }
    match chosen {
        true => choice.publish(platform, me),
        false => choice.give_up(platform, me),
    }
    Some(Improved {
        owner: me,
        from: header.representation,
        bytes_before: before,
        representation: entered.representation,
        bytes: entered.bytes,
        promoted,
    })
}

fn is_shorter(choice: &Choice<'_>, than: usize) -> bool {
    choice.equal.is_some() || choice.encoder.len().is_some_and(|len| len < than)
}

/// The owner of a slot's entry if that, or the reference page that it names, could be made with the
/// current dictionary of its group and is not: whether [`renew`] has something to try.
pub fn dated<P: Platform>(platform: &P, slot: Slot) -> Option<Owner> {
    platform
        .entry(slot, |descriptor| {
            let owner = descriptor.owner();
            find_dated(platform, *descriptor).map(|_| owner)
        })
        .flatten()
}

/// What could be made with a new dictionary.
enum Dated {
    Entry,
    /// A reference page.
    Reference(u32),
}

/// Runs under the lock of the descriptor's slot.
fn find_dated<P: Platform>(platform: &P, descriptor: Descriptor) -> Option<Dated> {
    let owner = descriptor.owner();
    let base = match descriptor.unpack() {
        Entry::Payload {
            place,
            provisional: false,
            ..
        } => {
            let mut start = [0; codec::UNIT];
            let header = platform.arena(owner, |arenas| {
                let len = arenas.of(false).read_start(place, &mut start)?;
                codec::header(start.get(..len)?).ok()
            });
            let header = header.flatten()?;
            if is_dated(platform, owner, &header) {
                return Some(Dated::Entry);
            }
            header.base?
        }
        Entry::Ref { base, .. } => base,
        Entry::Payload { .. } | Entry::Fill { .. } => return None,
    };
    match base {
        BaseId::Reference(id) => platform
            .group(owner, |group| is_reference_dated(group, id))?
            .then_some(Dated::Reference(id)),
        BaseId::Template(_) => None,
    }
}

fn is_dated<P: Platform>(platform: &P, owner: Owner, header: &codec::Header) -> bool {
    let current = || platform.group(owner, |group| group.dictionaries.current());
    match header.representation {
        Representation::Zstd | Representation::Dict => current()
            .flatten()
            .is_some_and(|current| header.dictionary != Some(current)),
        _ => false,
    }
}

/// A dictionary must make a reference page's payload shorter by one in so many of its bytes: it stays as
/// long as the page does.
const REFERENCE_PART: usize = 16;

/// Whether a reference page was made without any dictionary, none was tried for it, and there is one. One
/// that was made with a former dictionary stays as it is: who decodes a reference page has a use of that
/// page alone, so it may get a dictionary, but not another one.
fn is_reference_dated<P: Pages>(group: &Group<P>, id: u32) -> bool {
    let header = || {
        let mut start = [0; codec::UNIT];
        let reference = group.references.get(id).filter(|r| !r.settled)?;
        let len = group.arena.read_start(reference.place, &mut start)?;
        codec::header(start.get(..len)?).ok()
    };
    group.dictionaries.current().is_some()
        && header().is_some_and(|header| header.representation == Representation::Zstd)
}

/// What [`renew`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewed {
    /// The slot's entry has the current dictionary now.
    Entry(Improved),
    /// The reference page that the slot's entry names has: bytes of its payload before and now.
    Reference {
        /// Before.
        bytes_before: usize,
        /// Now.
        bytes: usize,
    },
}

/// Encodes the page of a slot with the current dictionary if its entry, which is of the sandbox `me`, or
/// the reference page that this names, is one that could be and is [not](dated). `page` is a buffer for it.
///
/// The rules are those of [`improve`]. Returns `None` when there is no such entry, it would not be shorter
/// (or, with a former dictionary, would be longer; a reference page must be shorter by a sixteenth, and is
/// not tried again), there is no memory, or it cannot be decoded. No payload has changed then.
pub fn renew<P: Platform, B: Backend<Dictionary = P::Dictionary>>(
    platform: &P,
    policy: &Policy,
    me: Owner,
    slot: Slot,
    page: &mut Page,
    work: &mut Work,
    backend: &mut B,
) -> Option<Renewed> {
    if let Some(id) = pin_dated_reference(platform, me, slot) {
        let renewed = renew_reference(platform, policy, me, id, page, work, backend);
        release_reference(platform, me, id);
        return renewed;
    }
    let before = read(platform, me, slot, false, &mut work.looked_at)?;
    let header = codec::header(work.looked_at.get(..before)?).ok()?;
    let renewed = match is_dated(platform, me, &header) {
        true => renew_read(
            platform, policy, slot, me, header, before, page, work, backend,
        ),
        false => None,
    };
    if let Some(number) = header.dictionary {
        // Ours, and when the payload is gone, its.
        release_dictionary(platform, me, number);
        if renewed.is_some() {
            release_dictionary(platform, me, number);
        }
    }
    renewed.map(Renewed::Entry)
}

/// Takes a use of the reference page that the slot's entry, one of `me`, names if that page is dated.
fn pin_dated_reference<P: Platform>(platform: &P, me: Owner, slot: Slot) -> Option<u32> {
    platform
        .entry(slot, |descriptor| {
            if descriptor.owner() != me {
                return None;
            }
            let Some(Dated::Reference(id)) = find_dated(platform, *descriptor) else {
                return None;
            };
            // As the entry is there, so is the page.
            platform
                .group(me, |group| group.references.acquire(id))
                .flatten()?;
            Some(id)
        })
        .flatten()
}

/// Encodes a reference page, of which the caller has a use, with the current dictionary.
fn renew_reference<P: Platform, B: Backend<Dictionary = P::Dictionary>>(
    platform: &P,
    policy: &Policy,
    me: Owner,
    id: u32,
    page: &mut Page,
    work: &mut Work,
    backend: &mut B,
) -> Option<Renewed> {
    let out = &mut work.looked_at;
    let (before, header) = read_dated_reference(platform, me, id, out)?;
    let codec = &mut work.codec;
    let payload = work.looked_at.get(..before)?;
    let check = Check::Now;
    decode_plain(platform, me, header, payload, check, codec, backend, page).ok()?;

    let mut choice = Choice::new(Encoder::new(page, policy.limits, backend), None);
    try_alone(platform, policy, me, &mut choice, work, backend);
    let most = before.saturating_sub(before / REFERENCE_PART);
    let made = match choice.encoder.dictionary() {
        Some(_) => choice.encoder.finish(&mut work.best),
        None => None,
    };
    let made = made.filter(|&bytes| bytes < most);
    if made.is_none() && choice.dictionary.is_some() {
        platform.group(me, |group| group.references.settle(id));
    }
    let old = work.looked_at.get(..before).unwrap_or_default();
    let replaced = made
        .and_then(|bytes| work.best.get(..bytes))
        .filter(|new| replace_reference(platform, me, id, old, new))
        .map(<[u8]>::len);
    match replaced {
        Some(_) => choice.publish(platform, me),
        None => choice.give_up(platform, me),
    }
    Some(Renewed::Reference {
        bytes_before: before,
        bytes: replaced?,
    })
}

/// Copies out the payload of a reference page if that was made without a dictionary.
fn read_dated_reference<P: Platform>(
    platform: &P,
    me: Owner,
    id: u32,
    out: &mut [u8],
) -> Option<(usize, codec::Header)> {
    platform
        .group(me, |group| {
            if !is_reference_dated(group, id) {
                return None;
            }
            let bytes = group.arena.read(group.references.get(id)?.place, out)?;
            Some((bytes, codec::header(out.get(..bytes)?).ok()?))
        })
        .flatten()
}

/// Puts a new payload in the place of a reference page's, if that is still `old`, and frees that one.
/// False, and nothing has changed, when it is not or there is no room. The caller has a use of the page.
fn replace_reference<P: Platform>(
    platform: &P,
    me: Owner,
    id: u32,
    old: &[u8],
    new: &[u8],
) -> bool {
    let mut spare = None;
    let mut replaced = false;
    // Without a page, then with one.
    for _ in 0..2 {
        let mut released = Released::new();
        let tried = platform.group(me, |group| {
            let place = group.references.get(id)?.place;
            if !group.arena.matches(place, old) {
                return None;
            }
            let inserted = group.arena.insert(new, &mut spare);
            if let Ok(now) = inserted {
                group.references.set_place(id, now);
                group.arena.remove(place, &mut released);
            }
            Some(inserted)
        });
        free_all(platform, &released);
        match tried.flatten() {
            Some(Err(InsertError::NeedPage)) if spare.is_none() => {
                spare = platform.allocate(me, Account::Group);
                if spare.is_none() {
                    break;
                }
            }
            Some(Ok(_)) => {
                replaced = true;
                break;
            }
            _ => break,
        }
    }
    if let Some(page) = spare {
        platform.free(page);
    }
    replaced
}

/// Encodes the page of the payload in the first `before` bytes of [`Work::looked_at`], whose header is
/// this, with the current dictionary. The caller has a use of the one that it needs.
#[expect(
    clippy::too_many_arguments,
    reason = "one call site, all of them plain"
)]
fn renew_read<P: Platform, B: Backend<Dictionary = P::Dictionary>>(
    platform: &P,
    policy: &Policy,
    slot: Slot,
    me: Owner,
    header: codec::Header,
    before: usize,
    page: &mut Page,
    work: &mut Work,
    backend: &mut B,
) -> Option<Improved> {
    let payload = work.looked_at.get(..before)?;
    decode_plain(
        platform,
        me,
        header,
        payload,
        Check::Now,
        &mut work.codec,
        backend,
        page,
    )
    .ok()?;

    let mut choice = Choice::new(Encoder::new(page, policy.limits, backend), None);
    try_alone(platform, policy, me, &mut choice, work, backend);
    // One that has a former dictionary need not get shorter: else that would stay for its sake.
    let most = match header.dictionary {
        Some(_) => before,
        None => before.saturating_sub(1),
    };
    let fits = choice
        .encoder
        .len()
        .is_some_and(|len| len.next_multiple_of(codec::UNIT) <= most);
    let entered = match choice.encoder.dictionary() {
        Some(_) if fits => enter(platform, me, &choice, None, work).ok(),
        _ => None,
    };
    let Some(entered) = entered else {
        choice.give_up(platform, me);
        return None;
    };
    if !exchange(platform, slot, me, false, before, &entered, work) {
        choice.give_up(platform, me);
        return None;
    }
    choice.publish(platform, me);
    Some(Improved {
        owner: me,
        from: header.representation,
        bytes_before: before,
        representation: entered.representation,
        bytes: entered.bytes,
        promoted: None,
    })
}

/// Copies the payload of an entry of `me` out: of a provisional one with what follows it; of another one,
/// taking a use of the dictionary that it needs. Returns its length.
fn read<P: Platform>(
    platform: &P,
    me: Owner,
    slot: Slot,
    wanted: bool,
    out: &mut [u8],
) -> Option<usize> {
    platform
        .entry(slot, |descriptor| {
            let Entry::Payload {
                owner,
                place,
                provisional,
            } = descriptor.unpack()
            else {
                return None;
            };
            if provisional != wanted || owner != me {
                return None;
            }
            let bytes = platform
                .arena(me, |arenas| arenas.of(provisional).read(place, out))
                .flatten()?;
            if !provisional {
                let header = codec::header(out.get(..bytes)?).ok()?;
                if let Some(number) = header.dictionary {
                    // As the entry is there, so is its dictionary, and keeps its number from now on.
                    platform
                        .group(me, |group| group.dictionaries.acquire(number))
                        .flatten()?;
                }
            }
            Some(bytes)
        })
        .flatten()
}

/// Puts what was entered in the place of the payload in the first `before` bytes of [`Work::looked_at`],
/// or takes it back when that is there no more. Returns whether it is in place.
fn exchange<P: Platform>(
    platform: &P,
    slot: Slot,
    me: Owner,
    provisional: bool,
    before: usize,
    entered: &Entered,
    work: &Work,
) -> bool {
    let old = work.looked_at.get(..before);
    let new = entered.descriptor;
    let replaced = old.is_some_and(|old| replace(platform, slot, me, provisional, old, new));
    if !replaced {
        if let Entry::Payload { place, .. } = new.unpack() {
            withdraw(platform, me, place, false);
        }
    }
    replaced
}

/// Puts a new descriptor in the place of one whose payload is still `old`, and frees that.
///
/// The slot may have been freed and filled anew since we looked. If it has the very same bytes again,
/// it is the same page. The base of a provisional payload, if there is one, is a template page, and those
/// do not change. One that is looked at for its dictionary has no base, and we have a use of that
/// dictionary: its number names no other.
fn replace<P: Platform>(
    platform: &P,
    slot: Slot,
    me: Owner,
    provisional: bool,
    old: &[u8],
    new: Descriptor,
) -> bool {
    let mut released = Released::new();
    let replaced = platform.entry(slot, |descriptor| {
        let Some(place) = place_of(*descriptor, me, provisional) else {
            return false;
        };
        let unchanged = platform.arena(me, |arenas| {
            let arena = arenas.of(provisional);
            let unchanged = arena.matches(place, old);
            if unchanged {
                arena.remove(place, &mut released);
            }
            unchanged
        });
        if unchanged == Some(true) {
            *descriptor = new;
            return true;
        }
        false
    });
    free_all(platform, &released);
    replaced == Some(true)
}

fn place_of(descriptor: Descriptor, me: Owner, wanted: bool) -> Option<Place> {
    match descriptor.unpack() {
        Entry::Payload {
            owner,
            place,
            provisional,
        } if owner == me && provisional == wanted => Some(place),
        _ => None,
    }
}
