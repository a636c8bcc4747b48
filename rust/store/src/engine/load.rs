// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Bringing pages back. Allocates nothing.

use super::super::codec::{self, BaseId};
use super::super::{Entry, Owner, Slot, REF_CRC_BITS};
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
pub fn load<P: Platform, B: Backend>(
    platform: &P,
    slot: Slot,
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
    // In one hold of the slot's lock: promotion and compaction move payloads under it.
    let (entry, bytes) = platform
        .entry(slot, |descriptor| {
            let entry = descriptor.unpack();
            let bytes = match entry {
                Entry::Payload { owner, place } => platform
                    .arena(owner, |arena| arena.read(place, payload))
                    .flatten(),
                _ => Some(0),
            };
            bytes.map(|bytes| (entry, bytes))
        })
        .ok_or(LoadError::Empty)?
        .ok_or(LoadError::Missing)?;
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
            decode_reference(platform, owner, id, payload, base, inner, codec, backend)?;
            codec::decode_ref(base, crc, REF_CRC_BITS, backend, out)?;
            Representation::Ref
        }
        Entry::Payload { .. } => {
            let header = codec::header(payload.get(..bytes).ok_or(LoadError::Missing)?)?;
            if let Some(BaseId::Reference(id)) = header.base {
                // The payload buffer is needed for the reference page's own: keep ours apart.
                let mine = candidate.get_mut(..bytes).ok_or(LoadError::Missing)?;
                mine.copy_from_slice(payload.get(..bytes).ok_or(LoadError::Missing)?);
                decode_reference(platform, owner, id, payload, base, inner, codec, backend)?;
                codec::decode(mine, Some(base), codec, backend, out)?
            } else {
                let payload = payload.get(..bytes).ok_or(LoadError::Missing)?;
                decode_plain(platform, owner, header.base, payload, codec, backend, out)?
            }
        }
    };
    Ok(Loaded {
        owner,
        representation,
        bytes,
    })
}

/// Decodes a payload that is based on nothing or on a template page.
pub(super) fn decode_plain<P: Platform, B: Backend>(
    platform: &P,
    owner: Owner,
    base: Option<BaseId>,
    payload: &[u8],
    scratch: &mut codec::Scratch,
    backend: &mut B,
    out: &mut Page,
) -> Result<Representation, LoadError> {
    match base {
        None => Ok(codec::decode(payload, None, scratch, backend, out)?),
        Some(BaseId::Template(ordinal)) => Ok(platform
            .template_page(owner, ordinal, |page| {
                codec::decode(payload, Some(page), scratch, backend, out)
            })
            .ok_or(DecodeError::NoBase)??),
        Some(BaseId::Reference(_)) => Err(LoadError::Missing),
    }
}

/// Decodes a reference page that the caller has a use of into `out`; `inner` holds what it is based
/// on. Returns its depth: the number of reference pages that it is itself based on.
#[expect(
    clippy::too_many_arguments,
    reason = "the buffers of one Work, borrowed apart"
)]
pub(super) fn decode_reference<P: Platform, B: Backend>(
    platform: &P,
    owner: Owner,
    id: u32,
    payload: &mut [u8],
    out: &mut Page,
    inner: &mut Page,
    scratch: &mut codec::Scratch,
    backend: &mut B,
) -> Result<usize, LoadError> {
    let (bytes, header) = read_reference(platform, owner, id, payload)?;
    let Some(BaseId::Reference(below)) = header.base else {
        let payload = payload.get(..bytes).ok_or(LoadError::Missing)?;
        decode_plain(platform, owner, header.base, payload, scratch, backend, out)?;
        return Ok(bytes);
    };
    // First what it is based on, which its own payload keeps alive; then itself, read again.
    const { assert!(MAX_DEPTH == 2) };
    let (bytes, header) = read_reference(platform, owner, below, payload)?;
    let first = payload.get(..bytes).ok_or(LoadError::Missing)?;
    decode_plain(platform, owner, header.base, first, scratch, backend, inner)?;
    let (bytes, _) = read_reference(platform, owner, id, payload)?;
    let second = payload.get(..bytes).ok_or(LoadError::Missing)?;
    codec::decode(second, Some(inner), scratch, backend, out)?;
    Ok(bytes)
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
