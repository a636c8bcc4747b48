// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Storing a page: the candidates in the order of their cost, then the entry.

use super::super::codec::{self, Base, BaseId, Encoder, Sketch, Tried, Words};
use super::super::{group::feature_keys, Ranking, REF_CRC_BITS};
use super::super::{Descriptor, Entry, InsertError, Owner, Place, Released, Slot, Wanted, Where};
use super::release::{free_all, release, release_reference, remove, Erased};
use super::siblings::{adopt, discard, fetch, Adopted, Candidate};
use super::{Account, Backend, Page, Platform, Policy, Representation, Work, MAX_DEPTH};

/// A page that was stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// How it is encoded.
    pub representation: Representation,
    /// Bytes of its payload in the sandbox's arena; 0 when the entry is all in the table.
    pub bytes: usize,
    /// Whether the template has a page of its index.
    pub template_backed: bool,
    /// What the slot held before.
    pub replaced: Option<Erased>,
    /// A sibling's entry whose payload became a reference page.
    pub promoted: Option<Promoted>,
}

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

/// Why a page was not stored. Nothing of it is left in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No representation pays.
    Incompressible,
    /// No page for the payload or for the table.
    NoMemory,
}

/// The best encoding so far. Its payload, if it has one, is in [`Work::best`].
struct Choice<'a> {
    encoder: Encoder<'a>,
    /// The base that the page equals.
    equal: Option<BaseId>,
    /// The reference page that it is based on or equals, of which we have a use.
    used: Option<u32>,
    promoted: Option<Promoted>,
    /// Whether everything was tried that needs no sibling.
    settled: bool,
    /// Reference pages that have to be decoded before it.
    depth: u8,
}

/// Stores a page of the sandbox `me` with this page index in a slot.
///
/// The page must not change during the call. The caller makes sure that nobody loads, frees or stores the slot meanwhile.
///
/// # Errors
///
/// A [`Refusal`]; the slot then keeps the entry that it may have had.
#[expect(
    clippy::too_many_arguments,
    reason = "what is stored, where, and with what"
)]
pub fn store<P: Platform, B: Backend>(
    platform: &P,
    policy: &Policy,
    me: Owner,
    slot: Slot,
    index: u64,
    page: &Page,
    work: &mut Work,
    backend: &mut B,
) -> Result<Stored, Refusal> {
    let limits = policy.limits;
    let mut choice = Choice {
        encoder: Encoder::new(page, limits, backend),
        equal: None,
        used: None,
        promoted: None,
        settled: false,
        depth: 0,
    };
    if let Some(word) = choice.encoder.fill() {
        let mut stored = store_fill(platform, me, slot, word, choice.encoder, work)?;
        stored.template_backed = platform.template_bases(me, index, |bases| !bases.is_empty());
        return Ok(stored);
    }
    let mut template_backed = false;
    if policy.template {
        template_backed = try_template(platform, me, index, &mut choice, work, backend);
    }
    let mut sketch = None;
    if !choice.is_final() {
        let found = codec::sketch(page);
        try_siblings(
            platform,
            policy,
            me,
            index,
            &found,
            &mut choice,
            work,
            backend,
        );
        try_without_siblings(platform, policy, me, &found, &mut choice, work, backend);
        sketch = Some(found);
    }

    let promoted = choice.promoted;
    let entered = enter(platform, me, &mut choice, work);
    let result = entered.and_then(|(descriptor, representation, bytes)| {
        let replaced = put(platform, me, slot, descriptor)?;
        choice.used = None;
        Ok(Stored {
            representation,
            bytes,
            template_backed,
            replaced,
            promoted,
        })
    });
    drop_use(platform, me, &mut choice);
    if let (Ok(stored), Some(sketch)) = (&result, sketch) {
        // At the greatest depth it can be nobody's base.
        if stored.bytes > policy.index_from && choice.depth < MAX_DEPTH {
            remember(platform, policy, me, index, &sketch, slot);
        }
    }
    result
}

impl Choice<'_> {
    fn is_final(&self) -> bool {
        self.equal.is_some() || self.encoder.is_final()
    }
}

/// Gives up the use of a reference page that turned out not to be needed.
fn drop_use<P: Platform>(platform: &P, me: Owner, choice: &mut Choice<'_>) {
    if let Some(id) = choice.used.take() {
        release_reference(platform, me, id);
    }
}

/// Template pages of the same index. Returns whether there are any.
fn try_template<P: Platform, B: Backend>(
    platform: &P,
    me: Owner,
    index: u64,
    choice: &mut Choice<'_>,
    work: &mut Work,
    backend: &mut B,
) -> bool {
    let Work { best, codec, .. } = work;
    platform.template_bases(me, index, |bases| {
        if let Tried::Equal(base) = choice.encoder.try_bases(bases, codec, backend, best) {
            choice.equal = Some(base);
        }
        !bases.is_empty()
    })
}

/// What is left to try that needs no sibling: the most similar template page, and the page by
/// itself. Later calls for the same page do nothing.
fn try_without_siblings<P: Platform, B: Backend>(
    platform: &P,
    policy: &Policy,
    me: Owner,
    sketch: &Sketch,
    choice: &mut Choice<'_>,
    work: &mut Work,
    backend: &mut B,
) {
    if core::mem::replace(&mut choice.settled, true) || choice.is_final() {
        return;
    }
    if policy.template_sketch {
        try_similar_template(platform, me, sketch, choice, work, backend);
    }
    if !choice.is_final() {
        let Work { best, codec, .. } = work;
        choice.encoder.try_zstd(codec, backend, best);
    }
}

/// Pages of siblings: of the same index, and of similar content.
#[expect(
    clippy::too_many_arguments,
    reason = "one call site, all of them plain"
)]
fn try_siblings<P: Platform, B: Backend>(
    platform: &P,
    policy: &Policy,
    me: Owner,
    index: u64,
    sketch: &Sketch,
    choice: &mut Choice<'_>,
    work: &mut Work,
    backend: &mut B,
) {
    let wanted = wanted(policy);
    let Some(ranking) = platform.group(me, |group| group.rank(index, sketch, wanted)) else {
        return;
    };
    let Some((at, candidate)) = nearest(platform, policy, me, &ranking, choice, work, backend)
    else {
        return;
    };
    if !choice.encoder.equals(&work.base) {
        // What a base saves is known only beside what there is without it.
        try_without_siblings(platform, policy, me, sketch, choice, work, backend);
        if choice.is_final() {
            discard(platform, me, candidate);
            return;
        }
    }
    let Work {
        base, trial, codec, ..
    } = &mut *work;
    let mut encoder = choice.encoder;
    // Its number is known once it is adopted.
    let base = Base {
        id: BaseId::Reference(0),
        page: base,
    };
    let equal = match encoder.try_similar(&base, codec, backend, trial) {
        Tried::Equal(_) => true,
        Tried::Improved(saved) if saved >= policy.least_gain(&candidate) => false,
        Tried::Improved(_) | Tried::No => {
            discard(platform, me, candidate);
            return;
        }
    };
    let depth = candidate.depth();
    let Some(Adopted { id, promoted }) = adopt(platform, me, candidate, work) else {
        return;
    };
    choice.used = Some(id);
    choice.depth = depth.saturating_add(1);
    let reference = BaseId::Reference(id);
    if equal {
        choice.equal = Some(reference);
    } else {
        encoder.rename_base(reference, &mut work.trial);
        choice.encoder = encoder;
        core::mem::swap(&mut work.best, &mut work.trial);
    }
    if let Some(promoted) = promoted {
        platform.promoted(&promoted);
        choice.promoted = Some(promoted);
        platform.group(me, |group| {
            group.redirect(index, sketch, at, Where::Reference(id));
        });
    }
}

/// Of the pages that hints lead to the one that has the most words in common with ours, or one that
/// equals it. It is left in [`Work::base`], its payload in [`Work::candidate`].
fn nearest<P: Platform, B: Backend>(
    platform: &P,
    policy: &Policy,
    me: Owner,
    ranking: &Ranking,
    choice: &Choice<'_>,
    work: &mut Work,
    backend: &mut B,
) -> Option<(Where, Candidate)> {
    let mut best: Option<(Where, Candidate, u32)> = None;
    let mut words = None;
    for at in ranking.iter().take(policy.tries) {
        let Some(candidate) = fetch(platform, me, at, work, backend) else {
            continue;
        };
        if choice.encoder.equals(&work.base) {
            if let Some((_, other, _)) = best {
                discard(platform, me, other);
            }
            return Some((at, candidate));
        }
        let words = words.get_or_insert_with(|| Words::of(choice.encoder.page()));
        let common = words.in_common(&work.base);
        let least = best
            .as_ref()
            .map_or(policy.least_common, |&(_, _, most)| most + 1);
        let worse = match common >= least {
            true => {
                core::mem::swap(&mut work.base, &mut work.kept_base);
                core::mem::swap(&mut work.candidate, &mut work.kept_candidate);
                best.replace((at, candidate, common))
                    .map(|(_, other, _)| other)
            }
            false => Some(candidate),
        };
        if let Some(worse) = worse {
            discard(platform, me, worse);
        }
    }
    let (at, candidate, _) = best?;
    core::mem::swap(&mut work.base, &mut work.kept_base);
    core::mem::swap(&mut work.candidate, &mut work.kept_candidate);
    Some((at, candidate))
}

/// The template page of the most similar content.
fn try_similar_template<P: Platform, B: Backend>(
    platform: &P,
    me: Owner,
    sketch: &Sketch,
    choice: &mut Choice<'_>,
    work: &mut Work,
    backend: &mut B,
) {
    let found = platform.template_index(me, |index| {
        feature_keys(sketch).find_map(|key| match index.lookup(key) {
            Some(Where::Template(ordinal)) => Some(ordinal),
            _ => None,
        })
    });
    let Some(ordinal) = found.flatten() else {
        return;
    };
    let Work { trial, codec, .. } = &mut *work;
    let mut encoder = choice.encoder;
    let tried = platform.template_page(me, ordinal, |page| {
        let base = Base {
            id: BaseId::Template(ordinal),
            page,
        };
        encoder.try_similar(&base, codec, backend, trial)
    });
    match tried {
        Some(Tried::Equal(base)) => choice.equal = Some(base),
        Some(Tried::Improved(_)) => {
            choice.encoder = encoder;
            core::mem::swap(&mut work.best, &mut work.trial);
        }
        _ => return,
    }
    drop_use(platform, me, choice);
}

/// Makes a descriptor of what was chosen, with its payload in the sandbox's arena.
fn enter<P: Platform>(
    platform: &P,
    me: Owner,
    choice: &mut Choice<'_>,
    work: &mut Work,
) -> Result<(Descriptor, Representation, usize), Refusal> {
    if let Some(base) = choice.equal {
        let crc = choice.encoder.crc() & ((1 << REF_CRC_BITS) - 1);
        let entry = Entry::Ref {
            owner: me,
            base,
            crc,
        };
        let descriptor = Descriptor::pack(entry).ok_or(Refusal::Incompressible)?;
        return Ok((descriptor, Representation::Ref, 0));
    }
    let encoder = &choice.encoder;
    let representation = encoder.representation().ok_or(Refusal::Incompressible)?;
    let bytes = encoder
        .finish(&mut work.best)
        .ok_or(Refusal::Incompressible)?;
    let payload = work.best.get(..bytes).ok_or(Refusal::Incompressible)?;
    let place = insert(platform, me, payload)?;
    match Descriptor::pack(Entry::Payload { owner: me, place }) {
        Some(descriptor) => Ok((descriptor, representation, bytes)),
        None => {
            withdraw(platform, me, place);
            Err(Refusal::NoMemory)
        }
    }
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
            let place = insert(platform, me, payload)?;
            match Descriptor::pack(Entry::Payload { owner: me, place }) {
                Some(descriptor) => (descriptor, bytes),
                None => {
                    withdraw(platform, me, place);
                    return Err(Refusal::NoMemory);
                }
            }
        }
    };
    Ok(Stored {
        representation: Representation::Fill,
        bytes,
        template_backed: false,
        replaced: put(platform, me, slot, descriptor)?,
        promoted: None,
    })
}

/// Puts a payload into the sandbox's arena.
fn insert<P: Platform>(platform: &P, me: Owner, payload: &[u8]) -> Result<Place, Refusal> {
    let mut spare = None;
    let result = loop {
        match platform.arena(me, |arena| arena.insert(payload, &mut spare)) {
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
fn withdraw<P: Platform>(platform: &P, me: Owner, place: Place) {
    let mut released = Released::new();
    platform.arena(me, |arena| remove(arena, place, &mut released));
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
            if let Entry::Payload { place, .. } = descriptor.unpack() {
                withdraw(platform, me, place);
            }
            Err(Refusal::NoMemory)
        }
    }
}

fn wanted(policy: &Policy) -> Wanted {
    Wanted {
        index: policy.sibling_index,
        sketch: policy.sibling_sketch,
    }
}

/// Enters a page that siblings may resemble in the group's index.
fn remember<P: Platform>(
    platform: &P,
    policy: &Policy,
    me: Owner,
    index: u64,
    sketch: &Sketch,
    slot: Slot,
) {
    let wanted = wanted(policy);
    // The first page of all serves the index itself: then it wants another.
    for _ in 0..2 {
        if platform.group(me, |group| group.index.wants_page()) != Some(true) {
            break;
        }
        let Some(page) = platform.allocate(me, Account::Group) else {
            break;
        };
        if platform.group(me, |group| group.index.add_page(page)) != Some(true) {
            platform.free(page);
        }
    }
    platform.group(me, |group| group.remember(index, sketch, wanted, slot));
}
