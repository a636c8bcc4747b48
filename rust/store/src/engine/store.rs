// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Storing a page.

use super::super::codec::{Encoder, Level, Limits};
use super::super::{
    Descriptor, Entry, InsertError, Owner, Place, Released, Slot, REF_CRC_BITS, UNIT_BYTES,
};
use super::choose::{choose, remember, try_template, Choice};
use super::release::{free_all, release, remove, Erased};
use super::{Account, Backend, Page, Platform, Policy, Promoted, Representation, Work};

/// A page that was stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// How it is encoded.
    pub representation: Representation,
    /// Bytes of its payload in the sandbox's arena; 0 when the entry is all in the table.
    pub bytes: usize,
    /// Whether it waits for a second look.
    pub provisional: bool,
    /// Whether the template has a page of its index.
    pub template_backed: bool,
    /// What the slot held before.
    pub replaced: Option<Erased>,
    /// A sibling's entry whose payload became a reference page.
    pub promoted: Option<Promoted>,
}

/// Why a page was not stored. Nothing of it is left in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No representation pays.
    Incompressible,
    /// No page for the payload or for the table.
    NoMemory,
}

/// Stores a page of the sandbox `me` with this page index in a slot.
///
/// Without a [second look](Policy::second_look) everything is tried. With one only what is cheap; unless
/// that is good enough the entry is [provisional](Entry::Payload), and [`improve`](super::improve) is
/// to make it better.
///
/// The page must not change during the call. The caller makes sure that nobody loads, frees or stores
/// the slot meanwhile.
///
/// # Errors
///
/// A [`Refusal`]; the slot then keeps the entry that it may have had.
#[expect(
    clippy::too_many_arguments,
    reason = "what is stored, where, and with what"
)]
pub fn store<P: Platform, B: Backend<Dictionary = P::Dictionary>>(
    platform: &P,
    policy: &Policy,
    me: Owner,
    slot: Slot,
    index: u64,
    page: &Page,
    work: &mut Work,
    backend: &mut B,
) -> Result<Stored, Refusal> {
    if policy.padded {
        return store_padded(platform, me, slot, page, work, backend);
    }
    let limits = match policy.second_look {
        true => policy.cheap,
        false => policy.limits,
    };
    let mut choice = Choice::new(Encoder::new(page, limits, backend), None);
    let template_backed = platform.template_bases(me, index, |bases| !bases.is_empty());
    if let Some(word) = choice.encoder.fill() {
        let mut stored = store_fill(platform, me, slot, word, choice.encoder, work)?;
        stored.template_backed = template_backed;
        return Ok(stored);
    }
    let mut provisional = None;
    if policy.second_look {
        if policy.template {
            try_template(platform, me, index, &mut choice, work, backend);
        }
        if !choice.is_final() {
            let Work { best, codec, .. } = &mut *work;
            choice.encoder.try_zstd(codec, backend, best);
            if choice.encoder.is_empty() {
                // Rare: what only entropy coding makes small.
                choice.encoder.set_level(Level::Fast);
                choice.encoder.try_zstd(codec, backend, best);
            }
            provisional = Some(index);
        }
    } else {
        choose(platform, policy, me, index, &mut choice, work, backend);
    }

    let promoted = choice.promoted;
    let stored = enter(platform, me, &choice, provisional, work).and_then(|entered| {
        let replaced = put(platform, me, slot, entered.descriptor)?;
        Ok(Stored {
            representation: entered.representation,
            bytes: entered.bytes,
            provisional: provisional.is_some(),
            template_backed,
            replaced,
            promoted,
        })
    });
    if let (Ok(stored), None) = (&stored, provisional) {
        remember(platform, policy, me, index, &choice, slot, stored.bytes);
    }
    match stored {
        Ok(_) => choice.publish(platform, me),
        Err(_) => choice.give_up(platform, me),
    }
    stored
}

/// Stores a page that shares nothing with another one, in a payload of always the same length. Neither bases
/// nor dictionaries nor the index are looked at, and nothing leads to the entry but its slot.
fn store_padded<P: Platform, B: Backend<Dictionary = P::Dictionary>>(
    platform: &P,
    me: Owner,
    slot: Slot,
    page: &Page,
    work: &mut Work,
    backend: &mut B,
) -> Result<Stored, Refusal> {
    // The length is always the same: the limits do not count.
    let mut encoder = Encoder::new(page, Limits::at(Level::Fast), backend);
    let Work { best, codec, .. } = &mut *work;
    encoder.try_padded(codec, backend, best);
    let representation = encoder.representation().ok_or(Refusal::Incompressible)?;
    let bytes = encoder.finish(best).ok_or(Refusal::Incompressible)?;
    let payload = best.get(..bytes).ok_or(Refusal::Incompressible)?;
    let descriptor = insert_entry(platform, me, payload, false)?;
    Ok(Stored {
        representation,
        bytes,
        provisional: false,
        template_backed: false,
        replaced: put(platform, me, slot, descriptor)?,
        promoted: None,
    })
}

/// An entry that is not in the table yet.
pub(super) struct Entered {
    pub(super) descriptor: Descriptor,
    pub(super) representation: Representation,
    /// Bytes of its payload.
    pub(super) bytes: usize,
}

/// Makes a descriptor of what was chosen, with its payload in the sandbox's arena; a provisional one if
/// the page's index is given.
pub(super) fn enter<P: Platform>(
    platform: &P,
    me: Owner,
    choice: &Choice<'_>,
    provisional: Option<u64>,
    work: &mut Work,
) -> Result<Entered, Refusal> {
    if let Some(base) = choice.equal {
        let crc = choice.encoder.crc() & ((1 << REF_CRC_BITS) - 1);
        let entry = Entry::Ref {
            owner: me,
            base,
            crc,
        };
        let descriptor = Descriptor::pack(entry).ok_or(Refusal::Incompressible)?;
        return Ok(Entered {
            descriptor,
            representation: Representation::Ref,
            bytes: 0,
        });
    }
    let encoder = &choice.encoder;
    let representation = encoder.representation().ok_or(Refusal::Incompressible)?;
    let mut bytes = encoder
        .finish(&mut work.best)
        .ok_or(Refusal::Incompressible)?;
    if let Some(index) = provisional {
        let trailer = work
            .best
            .get_mut(bytes..)
            .and_then(|rest| rest.first_chunk_mut());
        *trailer.ok_or(Refusal::Incompressible)? = index.to_le_bytes();
        bytes = bytes.saturating_add(UNIT_BYTES);
    }
    let payload = work.best.get(..bytes).ok_or(Refusal::Incompressible)?;
    let descriptor = insert_entry(platform, me, payload, provisional.is_some())?;
    Ok(Entered {
        descriptor,
        representation,
        bytes,
    })
}

/// Puts a payload into the sandbox's arena and makes a descriptor of its place.
pub(super) fn insert_entry<P: Platform>(
    platform: &P,
    me: Owner,
    payload: &[u8],
    provisional: bool,
) -> Result<Descriptor, Refusal> {
    let place = insert(platform, me, payload, provisional)?;
    let entry = Entry::Payload {
        owner: me,
        place,
        provisional,
    };
    Descriptor::pack(entry).ok_or_else(|| {
        withdraw(platform, me, place, provisional);
        Refusal::NoMemory
    })
}

/// A page that repeats a word: in the table if the word fits there.
fn store_fill<P: Platform>(
    platform: &P,
    me: Owner,
    slot: Slot,
    word: u64,
    mut encoder: Encoder<'_>,
    work: &mut Work,
) -> Result<Stored, Refusal> {
    let (descriptor, bytes) = match Descriptor::pack(Entry::Fill { owner: me, word }) {
        Some(descriptor) => (descriptor, 0),
        None => {
            encoder.try_fill(&mut work.best);
            let bytes = encoder
                .finish(&mut work.best)
                .ok_or(Refusal::Incompressible)?;
            let payload = work.best.get(..bytes).ok_or(Refusal::Incompressible)?;
            (insert_entry(platform, me, payload, false)?, bytes)
        }
    };
    Ok(Stored {
        representation: Representation::Fill,
        bytes,
        provisional: false,
        template_backed: false,
        replaced: put(platform, me, slot, descriptor)?,
        promoted: None,
    })
}

/// Puts a payload into the sandbox's arena.
fn insert<P: Platform>(
    platform: &P,
    me: Owner,
    payload: &[u8],
    provisional: bool,
) -> Result<Place, Refusal> {
    let mut spare = None;
    let result = loop {
        match platform.arena(me, |arenas| {
            arenas.of(provisional).insert(payload, &mut spare)
        }) {
            Some(Ok(place)) => break Ok(place),
            Some(Err(InsertError::NeedPage)) if spare.is_none() => {
                spare = platform.allocate(me, Account::Sandbox);
                if spare.is_none() {
                    break Err(Refusal::NoMemory);
                }
            }
            _ => break Err(Refusal::NoMemory),
        }
    };
    if let Some(page) = spare {
        platform.free(page);
    }
    result
}

/// Takes a payload back that no descriptor in the table names.
pub(super) fn withdraw<P: Platform>(platform: &P, me: Owner, place: Place, provisional: bool) {
    let mut released = Released::new();
    platform.arena(me, |arenas| {
        remove(arenas.of(provisional), place, &mut released)
    });
    free_all(platform, &released);
}

/// Publishes a descriptor; ends what the slot held before.
fn put<P: Platform>(
    platform: &P,
    me: Owner,
    slot: Slot,
    descriptor: Descriptor,
) -> Result<Option<Erased>, Refusal> {
    match platform.put(slot, descriptor) {
        Ok(old) => Ok(old.map(|old| release(platform, old))),
        Err(_) => {
            // The use of a reference page stays with our caller.
            if let Entry::Payload {
                place, provisional, ..
            } = descriptor.unpack()
            {
                withdraw(platform, me, place, provisional);
            }
            Err(Refusal::NoMemory)
        }
    }
}
