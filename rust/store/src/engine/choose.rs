// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Choosing how a page is encoded: the candidates in the order of their cost.

use super::super::codec::{self, Base, BaseId, Encoder, Sketch, Tried, Words};
use super::super::{group::feature_keys, Owner, Ranking, Slot, Wanted, Where};
use super::release::{release_dictionary, release_reference};
use super::siblings::{adopt, discard, fetch, Adopted, Candidate};
use super::{Account, Backend, Platform, Policy, Promoted, Work, MAX_DEPTH};

/// The best encoding so far. Its payload, if it has one, is in [`Work::best`].
pub(super) struct Choice<'a> {
    pub(super) encoder: Encoder<'a>,
    /// The base that the page equals.
    pub(super) equal: Option<BaseId>,
    /// The reference page that it is based on or equals, of which we have a use.
    used: Option<u32>,
    /// The dictionary that was tried, of which we have a use.
    pub(super) dictionary: Option<u8>,
    /// A sibling's entry that became a reference.
    pub(super) promoted: Option<Promoted>,
    /// What the page resembles, once that was asked.
    sketch: Option<Sketch>,
    /// Whether what needs no sibling was tried, or need not be.
    settled: bool,
    /// Bytes that the page takes about without a sibling, where that is known before it is tried.
    expected: Option<usize>,
    /// Reference pages that have to be decoded before it.
    depth: u8,
}

impl<'a> Choice<'a> {
    /// Nothing is tried yet. `stored` is the length of the payload that is to be replaced, if one is.
    pub(super) fn new(encoder: Encoder<'a>, stored: Option<usize>) -> Self {
        Self {
            encoder,
            expected: stored.map(|len| len.wrapping_sub(len / 5)),
            equal: None,
            used: None,
            dictionary: None,
            promoted: None,
            sketch: None,
            settled: false,
            depth: 0,
        }
    }

    /// Whether nothing else is worth trying.
    pub(super) fn is_final(&self) -> bool {
        self.equal.is_some() || self.encoder.is_final()
    }

    /// The entry is published: what it uses stays used. What was only tried does not.
    pub(super) fn publish<P: Platform>(mut self, platform: &P, me: Owner) {
        self.used = None;
        if self.equal.is_none() && self.encoder.dictionary() == self.dictionary {
            self.dictionary = None;
        }
        self.give_up(platform, me);
    }

    /// Gives up all that is used.
    pub(super) fn give_up<P: Platform>(mut self, platform: &P, me: Owner) {
        drop_use(platform, me, &mut self);
        if let Some(number) = self.dictionary.take() {
            release_dictionary(platform, me, number);
        }
    }
}

/// Everything there is to try for a page that repeats no word.
pub(super) fn choose<P: Platform, B: Backend<Dictionary = P::Dictionary>>(
    platform: &P,
    policy: &Policy,
    me: Owner,
    index: u64,
    choice: &mut Choice<'_>,
    work: &mut Work,
    backend: &mut B,
) {
    if policy.template {
        try_template(platform, me, index, choice, work, backend);
    }
    if choice.is_final() {
        return;
    }
    let sketch = codec::sketch(choice.encoder.page());
    choice.sketch = Some(sketch);
    let words = Words::of(choice.encoder.page());
    try_siblings(
        platform, policy, me, index, &sketch, &words, choice, work, backend,
    );
    try_without_siblings(platform, policy, me, &sketch, &words, choice, work, backend);
}

/// Gives up the use of a reference page that turned out not to be needed.
fn drop_use<P: Platform>(platform: &P, me: Owner, choice: &mut Choice<'_>) {
    if let Some(id) = choice.used.take() {
        release_reference(platform, me, id);
    }
}

/// Template pages of the same index.
pub(super) fn try_template<P: Platform, B: Backend>(
    platform: &P,
    me: Owner,
    index: u64,
    choice: &mut Choice<'_>,
    work: &mut Work,
    backend: &mut B,
) {
    let Work { best, codec, .. } = work;
    platform.template_bases(me, index, |bases| {
        if let Tried::Equal(base) = choice.encoder.try_bases(bases, codec, backend, best) {
            choice.equal = Some(base);
        }
    });
}

/// What is left to try that needs no sibling: the most similar template page, and the page by
/// itself. Later calls for the same page do nothing.
#[expect(
    clippy::too_many_arguments,
    reason = "two call sites, all of them plain"
)]
fn try_without_siblings<P: Platform, B: Backend<Dictionary = P::Dictionary>>(
    platform: &P,
    policy: &Policy,
    me: Owner,
    sketch: &Sketch,
    words: &Words,
    choice: &mut Choice<'_>,
    work: &mut Work,
    backend: &mut B,
) {
    if core::mem::replace(&mut choice.settled, true) || choice.is_final() {
        return;
    }
    if policy.template_sketch {
        try_similar_template(platform, policy, me, sketch, words, choice, work, backend);
    }
    if choice.is_final() {
        return;
    }
    try_alone(platform, policy, me, choice, work, backend);
}

/// The page by itself: with the group's dictionary, or without one if there is none.
pub(super) fn try_alone<P: Platform, B: Backend<Dictionary = P::Dictionary>>(
    platform: &P,
    policy: &Policy,
    me: Owner,
    choice: &mut Choice<'_>,
    work: &mut Work,
    backend: &mut B,
) {
    let Work { best, codec, .. } = work;
    if policy.dictionary {
        if let Some((number, dictionary)) = current_dictionary(platform, me) {
            choice.dictionary = Some(number);
            // It may be the last handle that is dropped here: under no lock.
            choice
                .encoder
                .try_dictionary(number, &dictionary, codec, backend, best);
        }
    }
    if choice.dictionary.is_none() {
        choice.encoder.try_zstd(codec, backend, best);
    }
}

/// The dictionary that new payloads are made with, of which the caller has a use now.
fn current_dictionary<P: Platform>(platform: &P, me: Owner) -> Option<(u8, P::Dictionary)> {
    let number = platform
        .group(me, |group| group.dictionaries.acquire_current())
        .flatten()?;
    match platform.dictionary(me, number) {
        Some(dictionary) => Some((number, dictionary)),
        None => {
            release_dictionary(platform, me, number);
            None
        }
    }
}

/// Pages of siblings: of the same index, and of similar content.
#[expect(
    clippy::too_many_arguments,
    reason = "one call site, all of them plain"
)]
fn try_siblings<P: Platform, B: Backend<Dictionary = P::Dictionary>>(
    platform: &P,
    policy: &Policy,
    me: Owner,
    index: u64,
    sketch: &Sketch,
    words: &Words,
    choice: &mut Choice<'_>,
    work: &mut Work,
    backend: &mut B,
) {
    let wanted = wanted(policy);
    let Some(ranking) = platform.group(me, |group| group.rank(index, sketch, wanted)) else {
        return;
    };
    let near = nearest(platform, policy, me, &ranking, words, choice, work, backend);
    let Some(Near {
        at,
        candidate,
        common,
    }) = near
    else {
        return;
    };
    // What a base saves is known only beside what there is without it. Where much is in common that is
    // not worth the time.
    let much = common >= policy.much_common && choice.expected.is_some();
    if !much && !choice.encoder.equals(&work.base) {
        try_without_siblings(platform, policy, me, sketch, words, choice, work, backend);
        if choice.is_final() {
            discard(platform, me, candidate);
            return;
        }
    }
    let expected = choice.expected.filter(|_| choice.encoder.is_empty());
    let alone = choice.encoder.len().or(expected).unwrap_or(0);
    let (encoder, tried) = try_sibling(choice, work, backend);
    let saved = match (tried, expected, encoder.len()) {
        (Tried::Improved(_), Some(expected), Some(len)) => expected.saturating_sub(len),
        (Tried::Improved(saved), _, _) => saved,
        (Tried::Equal(_) | Tried::No, _, _) => 0,
    };
    let equal = matches!(tried, Tried::Equal(_));
    if !equal && saved < policy.least_gain(&candidate, alone) {
        discard(platform, me, candidate);
        return;
    }
    let depth = candidate.depth();
    let Some(Adopted { id, promoted }) = adopt(platform, me, candidate, work) else {
        return;
    };
    choice.used = Some(id);
    choice.settled = true;
    choice.depth = depth.saturating_add(1);
    let reference = BaseId::Reference(id);
    if equal {
        choice.equal = Some(reference);
    } else {
        choice.encoder = encoder;
        choice.encoder.rename_base(reference, &mut work.trial);
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

/// Tries the candidate in [`Work::base`]; the payload, if any, is in [`Work::trial`]. The number of its
/// base is known once the candidate is adopted.
fn try_sibling<'a, B: Backend>(
    choice: &Choice<'a>,
    work: &mut Work,
    backend: &mut B,
) -> (Encoder<'a>, Tried) {
    let Work {
        base, trial, codec, ..
    } = work;
    let base = Base {
        id: BaseId::Reference(0),
        page: base,
    };
    let mut encoder = choice.encoder;
    let tried = encoder.try_similar(&base, codec, backend, trial);
    (encoder, tried)
}

/// A sibling's page that is worth a try.
struct Near {
    /// The hint that led to it.
    at: Where,
    candidate: Candidate,
    /// Words that it has in common with the page; [`u32::MAX`] when it equals it.
    common: u32,
}

/// Of the pages that hints lead to the one that has the most words in common with ours, or one that
/// equals it. It is left in [`Work::base`], its payload in [`Work::candidate`].
#[expect(
    clippy::too_many_arguments,
    reason = "one call site, all of them plain"
)]
fn nearest<P: Platform, B: Backend<Dictionary = P::Dictionary>>(
    platform: &P,
    policy: &Policy,
    me: Owner,
    ranking: &Ranking,
    words: &Words,
    choice: &Choice<'_>,
    work: &mut Work,
    backend: &mut B,
) -> Option<Near> {
    let mut best: Option<Near> = None;
    for at in ranking.iter().take(policy.tries) {
        let Some(candidate) = fetch(platform, me, at, work, backend) else {
            continue;
        };
        if choice.encoder.equals(&work.base) {
            if let Some(other) = best {
                discard(platform, me, other.candidate);
            }
            return Some(Near {
                at,
                candidate,
                common: u32::MAX,
            });
        }
        let common = words.in_common(&work.base);
        let least = best
            .as_ref()
            .map_or(policy.least_common, |best| best.common + 1);
        let worse = match common >= least {
            true => {
                core::mem::swap(&mut work.base, &mut work.kept_base);
                core::mem::swap(&mut work.candidate, &mut work.kept_candidate);
                let near = Near {
                    at,
                    candidate,
                    common,
                };
                best.replace(near).map(|other| other.candidate)
            }
            false => Some(candidate),
        };
        if let Some(worse) = worse {
            discard(platform, me, worse);
        }
    }
    if best.is_some() {
        core::mem::swap(&mut work.base, &mut work.kept_base);
        core::mem::swap(&mut work.candidate, &mut work.kept_candidate);
    }
    best
}

/// The template page of the most similar content.
#[expect(
    clippy::too_many_arguments,
    reason = "one call site, all of them plain"
)]
fn try_similar_template<P: Platform, B: Backend<Dictionary = P::Dictionary>>(
    platform: &P,
    policy: &Policy,
    me: Owner,
    sketch: &Sketch,
    words: &Words,
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
        if words.in_common(page) < policy.least_common {
            return Tried::No;
        }
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

fn wanted(policy: &Policy) -> Wanted {
    Wanted {
        index: policy.sibling_index,
        sketch: policy.sibling_sketch,
    }
}

/// Enters a page that was stored with a payload of `bytes` bytes in the group's index, if siblings may
/// resemble it.
pub(super) fn remember<P: Platform>(
    platform: &P,
    policy: &Policy,
    me: Owner,
    index: u64,
    choice: &Choice<'_>,
    slot: Slot,
    bytes: usize,
) {
    let Some(sketch) = &choice.sketch else { return };
    // At the greatest depth it can be nobody's base.
    if bytes <= policy.index_from || choice.depth >= MAX_DEPTH {
        return;
    }
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
