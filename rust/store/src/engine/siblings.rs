// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Pages of siblings as bases: looking at one, and making it a reference page.

use super::super::codec::{self, BaseId};
use super::super::{
    CreateError, Descriptor, Entry, InsertError, Owner, Place, Released, Slot, Where, REF_CRC_BITS,
};
use super::load::{decode_plain, decode_reference, Check};
use super::release::{free_all, release_reference};
use super::{Account, Backend, LoadError, Page, Platform, Representation, Work, MAX_DEPTH};

/// An entry that is a reference to its former payload now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promoted {
    /// Its sandbox.
    pub owner: Owner,
    /// How it was encoded before; now it is a [`Representation::Ref`].
    pub from: Representation,
    /// Bytes that its payload took in the sandbox's arena.
    pub bytes: usize,
}

/// A sibling's page, decoded into [`Work::base`].
pub(super) struct Candidate {
    /// Where it is.
    origin: Origin,
    /// Reference pages that it is based on, itself not counted.
    depth: u8,
    /// Bytes of its payload.
    bytes: usize,
}

impl Candidate {
    /// Reference pages that it is based on, itself not counted.
    pub(super) fn depth(&self) -> u8 {
        self.depth
    }

    /// Bytes of its payload, and whether it would become a reference page now.
    pub(super) fn cost(&self) -> (usize, bool) {
        (self.bytes, matches!(self.origin, Origin::Entry { .. }))
    }
}

enum Origin {
    /// A reference page, of which we have a use.
    Reference(u32),
    /// An entry, whose payload is in the first `bytes` bytes of [`Work::candidate`]. When it is based on
    /// a reference page we have a use of that one.
    Entry {
        slot: Slot,
        bytes: usize,
        crc: u32,
        base: Option<u32>,
    },
}

/// What is at a slot that a hint names.
enum Found {
    Reference(u32),
    Payload { bytes: usize, header: codec::Header },
}

/// Takes a use of a reference page that another page may be based on.
fn acquire<P: Platform>(platform: &P, me: Owner, id: u32, max_depth: u8) -> Option<u8> {
    platform
        .group(me, |group| {
            let depth = group.references.get(id)?.depth;
            if depth > max_depth {
                return None;
            }
            group.references.acquire(id)?;
            Some(depth)
        })
        .flatten()
}

/// Decodes the page that a hint leads to. `None` when there is none that may be a base.
pub(super) fn fetch<P: Platform, B: Backend<Dictionary = P::Dictionary>>(
    platform: &P,
    me: Owner,
    at: Where,
    work: &mut Work,
    backend: &mut B,
) -> Option<Candidate> {
    const { assert!(MAX_DEPTH == 2) };
    match at {
        Where::Reference(id) => {
            let depth = acquire(platform, me, id, MAX_DEPTH - 1)?;
            fetch_reference(platform, me, id, depth, work, backend)
        }
        Where::Slot(bits) => {
            let slot = Slot::from_bits(bits);
            let buffer = &mut work.candidate;
            let found = platform
                .entry(slot, |descriptor| look(platform, me, *descriptor, buffer))
                .flatten()?;
            match found {
                Found::Reference(id) => {
                    let depth = platform
                        .group(me, |group| group.references.get(id).map(|r| r.depth))
                        .flatten();
                    match depth {
                        Some(depth) if depth < MAX_DEPTH => {
                            fetch_reference(platform, me, id, depth, work, backend)
                        }
                        _ => {
                            release_reference(platform, me, id);
                            None
                        }
                    }
                }
                Found::Payload { bytes, header } => {
                    fetch_payload(platform, me, slot, bytes, header, work, backend)
                }
            }
        }
        Where::Template(_) => None,
    }
}

/// Looks at a descriptor under the lock of its slot: copies the payload, takes a use of a reference page.
fn look<P: Platform>(
    platform: &P,
    me: Owner,
    descriptor: Descriptor,
    buffer: &mut [u8],
) -> Option<Found> {
    if !platform.same_group(descriptor.owner(), me) {
        return None;
    }
    match descriptor.unpack() {
        // A provisional one is about to become another.
        Entry::Payload {
            provisional: true, ..
        } => None,
        Entry::Payload { owner, place, .. } => {
            let bytes = platform
                .arena(owner, |arenas| arenas.of(false).read(place, buffer))
                .flatten()?;
            let header = codec::header(buffer.get(..bytes)?).ok()?;
            if header.representation == Representation::Padded {
                // It shares nothing, not even with what its own sandbox stored.
                return None;
            }
            if let Some(BaseId::Reference(id)) = header.base {
                acquire(platform, me, id, 0)?;
            }
            Some(Found::Payload { bytes, header })
        }
        Entry::Ref {
            base: BaseId::Reference(id),
            ..
        } => {
            acquire(platform, me, id, MAX_DEPTH)?;
            Some(Found::Reference(id))
        }
        Entry::Ref { .. } | Entry::Fill { .. } => None,
    }
}

/// Decodes a reference page of which we have a use, and gives the use up when that fails.
fn fetch_reference<P: Platform, B: Backend<Dictionary = P::Dictionary>>(
    platform: &P,
    me: Owner,
    id: u32,
    depth: u8,
    work: &mut Work,
    backend: &mut B,
) -> Option<Candidate> {
    let Work {
        payload,
        base,
        inner,
        codec,
        ..
    } = work;
    let check = Check::Now;
    match decode_reference(
        platform, me, id, check, payload, base, inner, codec, backend,
    ) {
        Ok(reference) => Some(Candidate {
            origin: Origin::Reference(id),
            depth,
            bytes: reference.bytes,
        }),
        Err(_) => {
            release_reference(platform, me, id);
            None
        }
    }
}

/// Decodes an entry's payload in [`Work::candidate`].
fn fetch_payload<P: Platform, B: Backend<Dictionary = P::Dictionary>>(
    platform: &P,
    me: Owner,
    slot: Slot,
    bytes: usize,
    header: codec::Header,
    work: &mut Work,
    backend: &mut B,
) -> Option<Candidate> {
    let Work {
        candidate,
        payload,
        base,
        inner,
        codec,
        ..
    } = work;
    let mine = candidate.get(..bytes)?;
    let (depth, used) = match header.base {
        Some(BaseId::Reference(id)) => (1, Some(id)),
        _ => (0, None),
    };
    let decoded = decode_entry(
        platform, me, mine, header, payload, base, inner, codec, backend,
    );
    if decoded.is_err() {
        if let Some(id) = used {
            release_reference(platform, me, id);
        }
        return None;
    }
    Some(Candidate {
        origin: Origin::Entry {
            slot,
            bytes,
            crc: header.crc,
            base: used,
        },
        depth,
        bytes,
    })
}

/// Decodes the payload `mine` of a sibling's entry, based on a reference page of depth 0 if on one,
/// into `base`.
#[expect(
    clippy::too_many_arguments,
    reason = "the buffers of one Work, borrowed apart"
)]
fn decode_entry<P: Platform, B: Backend<Dictionary = P::Dictionary>>(
    platform: &P,
    me: Owner,
    mine: &[u8],
    header: codec::Header,
    payload: &mut [u8],
    base: &mut Page,
    inner: &mut Page,
    codec: &mut codec::Scratch,
    backend: &mut B,
) -> Result<(), LoadError> {
    let Some(BaseId::Reference(id)) = header.base else {
        let check = Check::Now;
        decode_plain(platform, me, header, mine, check, codec, backend, base)?;
        return Ok(());
    };
    // `base` is only lent as a second buffer.
    let check = Check::ByWhatIsBasedOnIt;
    decode_reference(
        platform, me, id, check, payload, inner, base, codec, backend,
    )?;
    codec::decode(mine, Some(inner), codec, backend, base)?;
    Ok(())
}

/// Gives up a candidate.
pub(super) fn discard<P: Platform>(platform: &P, me: Owner, candidate: Candidate) {
    let used = match candidate.origin {
        Origin::Reference(id) => Some(id),
        Origin::Entry { base, .. } => base,
    };
    if let Some(id) = used {
        release_reference(platform, me, id);
    }
}

/// A reference page, of which the caller has a use now.
pub(super) struct Adopted {
    pub(super) id: u32,
    /// What an entry became, when there was none.
    pub(super) promoted: Option<Promoted>,
}

/// Makes a candidate a reference page, if it is none yet. `None`, and the candidate is given up, when
/// its entry is gone or there is no room.
pub(super) fn adopt<P: Platform>(
    platform: &P,
    me: Owner,
    candidate: Candidate,
    work: &Work,
) -> Option<Adopted> {
    let (slot, bytes, crc, base) = match candidate.origin {
        Origin::Reference(id) => {
            return Some(Adopted { id, promoted: None });
        }
        Origin::Entry {
            slot,
            bytes,
            crc,
            base,
        } => (slot, bytes, crc, base),
    };
    let adopted = work
        .candidate
        .get(..bytes)
        .and_then(|payload| promote(platform, me, slot, payload, candidate.depth, crc));
    if let Some(base) = base {
        // From here on the reference page's own use keeps it, or nothing of ours needs it.
        release_reference(platform, me, base);
    }
    adopted
}

/// Why a promotion stopped.
enum Stop {
    /// The entry is gone, or the budget is used up.
    Never,
    /// A page is needed for payloads, or for the table of reference pages.
    Page,
    TablePage,
}

/// Moves the payload of the entry at `slot` to a new reference page with two uses: the entry's and
/// the caller's.
fn promote<P: Platform>(
    platform: &P,
    me: Owner,
    slot: Slot,
    payload: &[u8],
    depth: u8,
    crc: u32,
) -> Option<Adopted> {
    let mut page = None;
    let mut table_page = None;
    let mut result = None;
    // At most two pages for the table and one for payloads are needed.
    for _ in 0..4 {
        let mut released = Released::new();
        let tried = platform.entry(slot, |descriptor| {
            try_promote(
                platform,
                me,
                descriptor,
                payload,
                (depth, crc),
                (&mut page, &mut table_page),
                &mut released,
            )
        });
        free_all(platform, &released);
        match tried {
            Some(Ok(adopted)) => {
                result = Some(adopted);
                break;
            }
            Some(Err(Stop::Page)) if page.is_none() => {
                page = platform.allocate(me, Account::Group);
                if page.is_none() {
                    break;
                }
            }
            Some(Err(Stop::TablePage)) if table_page.is_none() => {
                table_page = platform.allocate(me, Account::Group);
                if table_page.is_none() {
                    break;
                }
            }
            _ => break,
        }
    }
    for page in [page, table_page].into_iter().flatten() {
        platform.free(page);
    }
    if result.is_none() {
        // What the attempts added to the table.
        let mut released = Released::new();
        platform.group(me, |group| group.references.shrink(&mut released));
        free_all(platform, &released);
    }
    result
}

fn try_promote<P: Platform>(
    platform: &P,
    me: Owner,
    descriptor: &mut Descriptor,
    payload: &[u8],
    (depth, crc): (u8, u32),
    (page, table_page): (&mut Option<u32>, &mut Option<u32>),
    released: &mut Released,
) -> Result<Adopted, Stop> {
    let Entry::Payload {
        owner,
        place,
        provisional: false,
    } = descriptor.unpack()
    else {
        return Err(Stop::Never);
    };
    if !platform.same_group(owner, me) {
        return Err(Stop::Never);
    }
    // The slot may have been freed and filled anew since we looked.
    let unchanged = platform.arena(owner, |arenas| arenas.of(false).matches(place, payload));
    if unchanged != Some(true) {
        return Err(Stop::Never);
    }
    let (id, new) = platform
        .group(me, |group| {
            if group.is_full() {
                return Err(Stop::Never);
            }
            // The number first: what an attempt adds to the table stays for the next one.
            let nowhere = Place::from_bits(0);
            let created = group.references.create(nowhere, 2, depth, table_page);
            let id = created.map_err(|why| match why {
                CreateError::NeedPage => Stop::TablePage,
                CreateError::Full => Stop::Never,
            })?;
            let entry = Entry::Ref {
                owner,
                base: BaseId::Reference(id),
                crc: crc & ((1 << REF_CRC_BITS) - 1),
            };
            // Numbers are below 2^24: it always fits.
            let new = Descriptor::pack(entry).ok_or(Stop::Never);
            let moved = new.and_then(|new| {
                let place = group.arena.insert(payload, page).map_err(|why| match why {
                    InsertError::NeedPage => Stop::Page,
                    InsertError::Invalid => Stop::Never,
                })?;
                group.references.set_place(id, place);
                Ok((id, new))
            });
            if moved.is_err() {
                group.references.release(id);
                group.references.release(id);
            }
            moved
        })
        .unwrap_or(Err(Stop::Never))?;
    let representation = codec::header(payload).ok().map(|h| h.representation);
    let bytes = platform
        .arena(owner, |arenas| arenas.of(false).remove(place, released))
        .unwrap_or(0);
    *descriptor = new;
    Ok(Adopted {
        id,
        promoted: representation.map(|from| Promoted { owner, from, bytes }),
    })
}
