// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Bringing pages back. Allocates nothing.

use super::super::codec::{self, BaseId};
use super::super::{Entry, Owner, Place, Slot, REF_CRC_BITS, UNIT_BYTES};
use super::release::release_dictionary;
use super::{Backend, DecodeError, Page, Platform, Representation, Work, MAX_DEPTH};
use core::fmt;

/// A page that was brought back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// Sandbox that had stored it.
    pub owner: Owner,
    /// How it was encoded.
    pub representation: Representation,
    /// Bytes of its payload; 0 when the entry is all in the table.
    pub bytes: usize,
}

/// Why a page cannot be brought back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadError {
    /// The slot has no entry.
    Empty,
    /// The payload, its sandbox or a reference page that it needs is not there.
    Missing,
    /// It cannot be decoded.
    Decode(DecodeError),
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("its entry vanished"),
            Self::Missing => f.write_str("its payload or a page it is based on vanished"),
            Self::Decode(error) => fmt::Display::fmt(error, f),
        }
    }
}

impl From<DecodeError> for LoadError {
    fn from(error: DecodeError) -> Self {
        Self::Decode(error)
    }
}

/// Decodes the entry of a slot into `out`. The entry stays.
///
/// The caller makes sure that the slot is neither freed nor stored meanwhile.
///
/// # Errors
///
/// Any [`LoadError`]; `out` then holds arbitrary bytes that nobody may see.
pub fn load<P: Platform, B: Backend<Dictionary = P::Dictionary>>(
    platform: &P,
    slot: Slot,
    work: &mut Work,
    backend: &mut B,
    out: &mut Page,
) -> Result<Loaded, LoadError> {
    load_entry(platform, slot, Keep::Dictionary, work, backend, out)
}

/// Decodes the entry of a slot as [`load`] does, for who keeps neither the slot nor its sandbox: it may
/// fail though the entry is there.
///
/// # Errors
///
/// As for [`load`].
pub fn peek<P: Platform, B: Backend<Dictionary = P::Dictionary>>(
    platform: &P,
    slot: Slot,
    work: &mut Work,
    backend: &mut B,
    out: &mut Page,
) -> Result<Loaded, LoadError> {
    load_entry(platform, slot, Keep::Nothing, work, backend, out)
}

/// When the checksum of a page is checked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Check {
    /// Once it is decoded.
    Now,
    /// Never: the page is the base of another one, whose own checksum is checked and tells of it.
    ByWhatIsBasedOnIt,
}

/// What a load takes a use of while it decodes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Keep {
    /// The dictionary that the payload needs, which the caller makes sure is given up in the same group:
    /// the sandbox stays as long as the slot's entry.
    Dictionary,
    Nothing,
}

fn load_entry<P: Platform, B: Backend<Dictionary = P::Dictionary>>(
    platform: &P,
    slot: Slot,
    keep: Keep,
    work: &mut Work,
    backend: &mut B,
    out: &mut Page,
) -> Result<Loaded, LoadError> {
    // In one hold of the slot's lock: promotion and compaction move payloads under it.
    let payload = &mut work.payload;
    let (entry, bytes) = platform
        .entry(slot, |descriptor| {
            let entry = descriptor.unpack();
            let bytes = match entry {
                Entry::Payload {
                    owner,
                    place,
                    provisional,
                } => read(platform, owner, (place, provisional), keep, payload),
                _ => Some(0),
            };
            bytes.map(|bytes| (entry, bytes))
        })
        .ok_or(LoadError::Empty)?
        .ok_or(LoadError::Missing)?;
    let used = match entry {
        Entry::Payload { .. } if keep == Keep::Dictionary => dictionary(work.payload.get(..bytes)),
        _ => None,
    };
    let loaded = decode(platform, entry, bytes, work, backend, out);
    if let Some(number) = used {
        release_dictionary(platform, entry.owner(), number);
    }
    loaded
}

/// Copies the payload of an entry out, without what follows a provisional one, and takes a use of what is
/// to be kept. The dictionary that it needs is there now, as the entry is, but the entry may be
/// [renewed](super::renew) before the payload is decoded. Runs under the lock of the slot.
fn read<P: Platform>(
    platform: &P,
    owner: Owner,
    (place, provisional): (Place, bool),
    keep: Keep,
    out: &mut [u8],
) -> Option<usize> {
    let bytes = platform
        .arena(owner, |arenas| arenas.of(provisional).read(place, out))
        .flatten()?
        .checked_sub(trailer(provisional))?;
    let needed = dictionary(out.get(..bytes)).filter(|_| keep == Keep::Dictionary);
    if let Some(number) = needed {
        platform
            .group(owner, |group| group.dictionaries.acquire(number))
            .flatten()?;
    }
    Some(bytes)
}

/// The dictionary that a payload needs.
fn dictionary(payload: Option<&[u8]>) -> Option<u8> {
    codec::header(payload?).ok()?.dictionary
}

/// Decodes an entry whose payload, if it has one, is the first `bytes` bytes of [`Work::payload`].
fn decode<P: Platform, B: Backend<Dictionary = P::Dictionary>>(
    platform: &P,
    entry: Entry,
    bytes: usize,
    work: &mut Work,
    backend: &mut B,
    out: &mut Page,
) -> Result<Loaded, LoadError> {
    let Work {
        candidate,
        payload,
        base,
        inner,
        codec,
        ..
    } = work;
    let owner = entry.owner();
    let representation = match entry {
        Entry::Fill { word, .. } => {
            codec::decode_fill(word, out);
            Representation::Fill
        }
        Entry::Ref {
            base: BaseId::Template(ordinal),
            crc,
            ..
        } => {
            platform
                .template_page(owner, ordinal, |page| {
                    codec::decode_ref(page, crc, REF_CRC_BITS, backend, out)
                })
                .ok_or(DecodeError::NoBase)??;
            Representation::Ref
        }
        Entry::Ref {
            base: BaseId::Reference(id),
            crc,
            ..
        } => {
            let reference = decode_reference(
                platform,
                owner,
                id,
                Check::Now,
                payload,
                out,
                inner,
                codec,
                backend,
            )?;
            // That it has this checksum has just been checked.
            codec::check_ref(reference.crc, crc, REF_CRC_BITS)?;
            Representation::Ref
        }
        Entry::Payload { .. } => {
            let header = codec::header(payload.get(..bytes).ok_or(LoadError::Missing)?)?;
            if let Some(BaseId::Reference(id)) = header.base {
                // The payload buffer is needed for the reference page's own: keep ours apart.
                let mine = candidate.get_mut(..bytes).ok_or(LoadError::Missing)?;
                mine.copy_from_slice(payload.get(..bytes).ok_or(LoadError::Missing)?);
                let check = Check::ByWhatIsBasedOnIt;
                if changes_words(header.representation) {
                    // They are changed where the base is decoded.
                    decode_reference(
                        platform, owner, id, check, payload, out, inner, codec, backend,
                    )?;
                    codec::decode_onto(mine, codec, backend, out)?
                } else {
                    decode_reference(
                        platform, owner, id, check, payload, base, inner, codec, backend,
                    )?;
                    codec::decode(mine, Some(base), codec, backend, out)?
                }
            } else {
                let payload = payload.get(..bytes).ok_or(LoadError::Missing)?;
                let check = Check::Now;
                decode_plain(platform, owner, header, payload, check, codec, backend, out)?;
                header.representation
            }
        }
    };
    Ok(Loaded {
        owner,
        representation,
        bytes,
    })
}

/// Bytes after a payload that say the page's index.
pub(super) const fn trailer(provisional: bool) -> usize {
    match provisional {
        true => UNIT_BYTES,
        false => 0,
    }
}

/// Whether a payload says which words of its base change, and to what.
const fn changes_words(representation: Representation) -> bool {
    matches!(
        representation,
        Representation::Delta | Representation::DeltaZstd
    )
}

/// Decodes a payload that is based on nothing, on a dictionary or on a template page.
#[expect(
    clippy::too_many_arguments,
    reason = "the buffers of one Work, borrowed apart"
)]
pub(super) fn decode_plain<P: Platform, B: Backend<Dictionary = P::Dictionary>>(
    platform: &P,
    owner: Owner,
    header: codec::Header,
    payload: &[u8],
    check: Check,
    scratch: &mut codec::Scratch,
    backend: &mut B,
    out: &mut Page,
) -> Result<(), LoadError> {
    match (header.base, header.dictionary) {
        (None, None) => alone(payload, None, check, scratch, backend, out)?,
        (None, Some(number)) => {
            // It may be the last handle that is dropped here: under no lock.
            let dictionary = platform
                .dictionary(owner, number)
                .ok_or(DecodeError::NoDictionary)?;
            match check {
                Check::Now => {
                    codec::decode_dictionary(payload, &dictionary, backend, out)?;
                }
                Check::ByWhatIsBasedOnIt => {
                    codec::decode_dictionary_unchecked(payload, &dictionary, backend, out)?;
                }
            }
        }
        (Some(BaseId::Template(ordinal)), _) => {
            platform
                .template_page(owner, ordinal, |page| {
                    alone(payload, Some(page), check, scratch, backend, out)
                })
                .ok_or(DecodeError::NoBase)??;
        }
        (Some(BaseId::Reference(_)), _) => return Err(LoadError::Missing),
    }
    Ok(())
}

/// Decodes a payload without a dictionary.
fn alone<B: Backend>(
    payload: &[u8],
    base: Option<&Page>,
    check: Check,
    scratch: &mut codec::Scratch,
    backend: &mut B,
    out: &mut Page,
) -> Result<(), DecodeError> {
    match check {
        Check::Now => codec::decode(payload, base, scratch, backend, out).map(drop),
        Check::ByWhatIsBasedOnIt => {
            codec::decode_unchecked(payload, base, scratch, backend, out).map(drop)
        }
    }
}

/// A reference page that was decoded.
pub(super) struct Reference {
    /// Bytes of its payload.
    pub(super) bytes: usize,
    /// Its CRC-32C.
    pub(super) crc: u32,
}

/// Decodes a reference page that the caller has a use of into `out`; `inner` holds what it is based on.
#[expect(
    clippy::too_many_arguments,
    reason = "the buffers of one Work, borrowed apart"
)]
pub(super) fn decode_reference<P: Platform, B: Backend<Dictionary = P::Dictionary>>(
    platform: &P,
    owner: Owner,
    id: u32,
    check: Check,
    payload: &mut [u8],
    out: &mut Page,
    inner: &mut Page,
    scratch: &mut codec::Scratch,
    backend: &mut B,
) -> Result<Reference, LoadError> {
    let (bytes, header) = read_reference(platform, owner, id, payload)?;
    let Some(BaseId::Reference(below)) = header.base else {
        let payload = payload.get(..bytes).ok_or(LoadError::Missing)?;
        decode_plain(
            platform, owner, header, payload, check, scratch, backend, out,
        )?;
        return Ok(Reference {
            bytes,
            crc: header.crc,
        });
    };
    // First what it is based on, which its own payload keeps alive; then itself, read again.
    const { assert!(MAX_DEPTH == 2) };
    let (bytes, first) = read_reference(platform, owner, below, payload)?;
    let payload_below = payload.get(..bytes).ok_or(LoadError::Missing)?;
    decode_plain(
        platform,
        owner,
        first,
        payload_below,
        Check::ByWhatIsBasedOnIt,
        scratch,
        backend,
        inner,
    )?;
    let (bytes, header) = read_reference(platform, owner, id, payload)?;
    let second = payload.get(..bytes).ok_or(LoadError::Missing)?;
    alone(second, Some(inner), check, scratch, backend, out)?;
    Ok(Reference {
        bytes,
        crc: header.crc,
    })
}

/// Copies the payload of a reference page out.
fn read_reference<P: Platform>(
    platform: &P,
    owner: Owner,
    id: u32,
    payload: &mut [u8],
) -> Result<(usize, codec::Header), LoadError> {
    let bytes = platform
        .group(owner, |group| {
            let reference = group.references.get(id)?;
            group.arena.read(reference.place, payload)
        })
        .flatten()
        .ok_or(LoadError::Missing)?;
    let header = codec::header(payload.get(..bytes).ok_or(LoadError::Missing)?)?;
    Ok((bytes, header))
}
