// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Choosing the representation of a page.

use super::delta::MIN_CHANGE;
use super::diff::Changed;
use super::payload::{padded, write_header, write_padded, Format, Representation};
use super::payload::{BASE_LEN, DICTIONARY_LEN, HEADER_LEN, MAX_PAYLOAD, UNIT};
use super::payload::{PADDED_LEN, PADDED_ROOM};
use super::{
    delta, literals, words, Backend, Base, BaseId, Level, Literals, Page, Scratch, MAX_BASES,
};

/// Bytes of a payload with a base before what its format adds.
const BASE_END: usize = HEADER_LEN + BASE_LEN;

/// With more changed words than this a block with the base as prefix is shorter than a compressed
/// delta.
const MAX_DELTA_ZSTD: u32 = 256;

/// With more changed words than this a base of the same place is of as little use as prefix as none.
const MAX_PREFIX: u32 = 448;

/// A delta of at most so many bytes is hardly ever longer than the page by itself.
const ZSTD_ABOVE: usize = 512;

/// How much effort an [`Encoder`] makes, and what is worth having.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// zstd's effort.
    pub level: Level,
    /// What becomes of literals. [`Level::Best`] tries others where that promises much.
    pub literals: Literals,
    /// Longest payload worth having, in bytes with padding; above [`MAX_PAYLOAD`] means that.
    pub max_payload: usize,
    /// Longest payload worth having that needs a base, in bytes with padding: what a page may differ
    /// from its base by.
    pub max_distance: usize,
    /// A plain delta of at most so many bytes (header included, padding not) is final.
    pub delta_final: usize,
    /// A compressed delta of at most so many bytes is not compared with a block whose prefix is the
    /// base.
    pub delta_zstd_final: usize,
    /// Whether a delta that is not final is compressed.
    pub delta_zstd: bool,
    /// Whether a base is tried as prefix.
    pub prefix: bool,
}

impl Limits {
    /// Everything is tried, with zstd at `level`, until it is short enough.
    pub const fn at(level: Level) -> Self {
        Self {
            level,
            literals: level.literals(),
            max_payload: MAX_PAYLOAD,
            max_distance: MAX_PAYLOAD,
            delta_final: 256,
            delta_zstd_final: 512,
            delta_zstd: true,
            prefix: true,
        }
    }
}

/// What [`Encoder::try_bases`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tried {
    /// The page equals this base.
    Equal(BaseId),
    /// The payload is so many bytes shorter now, padding included; [`usize::MAX`] when there was
    /// none before.
    Improved(usize),
    /// Nothing better than before.
    No,
}

/// The payload under construction.
#[derive(Clone, Copy, Debug)]
struct Best {
    format: Format,
    needs: Needs,
    /// Bytes, header included, padding not.
    len: usize,
}

/// What a payload cannot be decoded without.
#[derive(Clone, Copy, Debug)]
enum Needs {
    Nothing,
    Base(BaseId),
    Dictionary(u8),
}

impl Needs {
    /// Bytes of a payload before what encodes the page.
    fn start(self) -> usize {
        match self {
            Self::Nothing => HEADER_LEN,
            Self::Base(_) => BASE_END,
            Self::Dictionary(_) => HEADER_LEN + DICTIONARY_LEN,
        }
    }

    /// Writes what the payload needs after its header.
    fn write(self, out: &mut [u8; MAX_PAYLOAD]) {
        let [b0, b1, b2, _] = match self {
            Self::Nothing => return,
            Self::Base(id) => id.number().to_le_bytes(),
            Self::Dictionary(number) => [number, 0, 0, 0],
        };
        if let Some(place) = out.get_mut(HEADER_LEN..self.start()) {
            for (place, byte) in place.iter_mut().zip([b0, b1, b2]) {
                *place = byte;
            }
        }
    }
}

/// The steps of encoding one page.
///
/// Each step tries something and keeps it, in the caller's `out`, if it makes a shorter payload
/// (padding included) than what is there. So all steps of an encoder need the same `out`; to try
/// something aside, copy the encoder and give the copy another one.
///
/// The page must not change meanwhile: copy it first.
#[derive(Clone, Copy, Debug)]
pub struct Encoder<'a> {
    page: &'a Page,
    crc: u32,
    limits: Limits,
    best: Option<Best>,
}

impl<'a> Encoder<'a> {
    /// Begins: nothing is tried yet.
    pub fn new<B: Backend>(page: &'a Page, limits: Limits, backend: &mut B) -> Self {
        Self {
            page,
            crc: backend.crc32c(page),
            limits,
            best: None,
        }
    }

    /// Makes another effort from here on, with the level's own literals.
    pub fn set_level(&mut self, level: Level) {
        self.limits.level = level;
        self.limits.literals = level.literals();
    }

    /// The page's CRC-32C.
    pub fn crc(&self) -> u32 {
        self.crc
    }

    /// The page.
    pub fn page(&self) -> &'a Page {
        self.page
    }

    /// Whether the page equals another.
    pub fn equals(&self, other: &Page) -> bool {
        self.page == other
    }

    /// The word that the page repeats, if it does.
    pub fn fill(&self) -> Option<u64> {
        words::repeated(self.page)
    }

    /// Makes a payload of the word that the page repeats, for where the word itself cannot be kept.
    /// False when it repeats none.
    pub fn try_fill(&mut self, out: &mut [u8; MAX_PAYLOAD]) -> bool {
        match self.fill() {
            Some(word) => self.keep(
                Format::Fill,
                Needs::Nothing,
                &word.to_le_bytes(),
                self.room(Needs::Nothing),
                out,
            ),
            None => false,
        }
    }

    /// Tries the base from which the fewest words differ. The bases are pages of the same place,
    /// such as those of the page's index: they resemble the page at the same offsets or not at all.
    /// Those whose number is not below [`MAX_BASES`] are ignored.
    ///
    /// First a delta; when that is not final, the delta compressed; when that is not short enough,
    /// a block with the base as prefix. A page that equals the base becomes an empty delta, for
    /// callers that cannot store a mere reference.
    pub fn try_bases<B: Backend>(
        &mut self,
        bases: &[Base<'_>],
        scratch: &mut Scratch,
        backend: &mut B,
        out: &mut [u8; MAX_PAYLOAD],
    ) -> Tried {
        match nearest(self.page, bases) {
            Some((base, changed)) => {
                let prefix = changed.count() <= MAX_PREFIX;
                self.try_one(base, &changed, prefix, scratch, backend, out)
            }
            None => Tried::No,
        }
    }

    /// Tries a base that resembles the page wherever that may be in it, such as one that a sketch
    /// found: as [`Encoder::try_bases`] does, and as prefix even when no word is at its offset.
    pub fn try_similar<B: Backend>(
        &mut self,
        base: &Base<'_>,
        scratch: &mut Scratch,
        backend: &mut B,
        out: &mut [u8; MAX_PAYLOAD],
    ) -> Tried {
        match nearest(self.page, core::slice::from_ref(base)) {
            Some((base, changed)) => self.try_one(base, &changed, true, scratch, backend, out),
            None => Tried::No,
        }
    }

    /// Tries the page by itself, compressed with zstd.
    pub fn try_zstd<B: Backend>(
        &mut self,
        scratch: &mut Scratch,
        backend: &mut B,
        out: &mut [u8; MAX_PAYLOAD],
    ) -> Tried {
        let before = self.best;
        let len = self.compress(&mut scratch.block, |literals, level, block| {
            backend.compress(level, literals, &[], self.page, block)
        });
        self.keep_block(Format::Zstd, Needs::Nothing, len, scratch, out);
        self.since(before)
    }

    /// Tries the page by itself, compressed with a dictionary.
    pub fn try_dictionary<B: Backend>(
        &mut self,
        number: u8,
        dictionary: &B::Dictionary,
        scratch: &mut Scratch,
        backend: &mut B,
        out: &mut [u8; MAX_PAYLOAD],
    ) -> Tried {
        let before = self.best;
        let len = self.compress(&mut scratch.block, |literals, _, block| {
            backend.compress_with(dictionary, literals, self.page, block)
        });
        let needs = Needs::Dictionary(number);
        self.keep_block(Format::Dict, needs, len, scratch, out);
        self.since(before)
    }

    /// Makes the page by itself a payload of [`PADDED_LEN`] bytes, whatever it holds and whatever the
    /// limits say: compressed with zstd, and filled up. Nothing else is to be tried before or after.
    /// [`Tried::No`] when zstd does not make it short enough.
    pub fn try_padded<B: Backend>(
        &mut self,
        scratch: &mut Scratch,
        backend: &mut B,
        out: &mut [u8; MAX_PAYLOAD],
    ) -> Tried {
        let room = scratch.block.get_mut(..PADDED_ROOM).unwrap_or_default();
        // The cheap one does for most pages, and nobody looks at this one again.
        let len = [Level::Cheap, Level::Fast]
            .into_iter()
            .find_map(|level| backend.compress(level, level.literals(), &[], self.page, room));
        let block = len.and_then(|len| scratch.block.get(..len));
        if !block.is_some_and(|block| write_padded(out, block)) {
            return Tried::No;
        }
        self.best = Some(Best {
            format: Format::Padded,
            needs: Needs::Nothing,
            len: PADDED_LEN,
        });
        Tried::Improved(usize::MAX)
    }

    /// Length of the payload in bytes, header included, padding not; `None` while there is none.
    pub fn len(&self) -> Option<usize> {
        self.best.map(|best| best.len)
    }

    /// Whether there is no payload yet.
    pub fn is_empty(&self) -> bool {
        self.best.is_none()
    }

    /// How the payload encodes the page.
    pub fn representation(&self) -> Option<Representation> {
        self.best.map(|best| best.format.representation())
    }

    /// The base that the payload needs.
    pub fn base(&self) -> Option<BaseId> {
        match self.best?.needs {
            Needs::Base(id) => Some(id),
            Needs::Nothing | Needs::Dictionary(_) => None,
        }
    }

    /// The dictionary that the payload needs.
    pub fn dictionary(&self) -> Option<u8> {
        match self.best?.needs {
            Needs::Dictionary(number) => Some(number),
            Needs::Nothing | Needs::Base(_) => None,
        }
    }

    /// Whether the payload is a delta, or a fill, so short that nothing else is worth trying.
    pub fn is_final(&self) -> bool {
        self.best.is_some_and(|best| match best.format {
            Format::Fill => true,
            Format::DeltaTemplate | Format::DeltaReference => best.len <= self.limits.delta_final,
            _ => false,
        })
    }

    /// Gives the base of the payload another number, of the same kind: for a base that gets its own
    /// only when it is known to be worth one.
    pub fn rename_base(&mut self, id: BaseId, out: &mut [u8; MAX_PAYLOAD]) {
        if let Some(best) = &mut self.best {
            best.needs = Needs::Base(id);
            best.needs.write(out);
        }
    }

    /// Writes header and padding of the payload. Returns its length with padding, a multiple of
    /// [`UNIT`]; `None` when no representation is within the limits.
    pub fn finish(&self, out: &mut [u8; MAX_PAYLOAD]) -> Option<usize> {
        let best = self.best?;
        write_header(out, self.crc, best.format, best.len)
    }

    #[inline]
    fn try_one<B: Backend>(
        &mut self,
        base: &Base<'_>,
        changed: &Changed,
        prefix: bool,
        scratch: &mut Scratch,
        backend: &mut B,
        out: &mut [u8; MAX_PAYLOAD],
    ) -> Tried {
        let before = self.best;
        self.try_delta(base, changed, scratch, out);
        if changed.count() == 0 {
            return Tried::Equal(base.id);
        }
        if !self.is_final() {
            let compressed = self.try_delta_zstd(base, changed, scratch, backend, out);
            let long = compressed.is_none_or(|len| len > self.limits.delta_zstd_final);
            if long && prefix && self.limits.prefix {
                self.try_prefix(base, scratch, backend, out);
            }
        }
        self.since(before)
    }

    #[inline]
    fn try_delta(
        &mut self,
        base: &Base<'_>,
        changed: &Changed,
        scratch: &mut Scratch,
        out: &mut [u8; MAX_PAYLOAD],
    ) {
        let needs = Needs::Base(base.id);
        let room = self.room(needs);
        let least = MIN_CHANGE.wrapping_mul(changed.count() as usize);
        if BASE_END.wrapping_add(least) > room {
            return;
        }
        // The header and the base's number have as many bytes as the encoder needs to spare: with a
        // buffer as long as the payload may be it gives up where that would be too long.
        const { assert!(BASE_END == words::WORD) };
        let stream = scratch.stream.get_mut(..room).and_then(|buffer| {
            let len = delta::encode_joined(self.page, base.page, changed, buffer)?;
            buffer.get(..len)
        });
        if let Some(stream) = stream {
            self.keep(Format::delta(base.id), needs, stream, room, out);
        }
    }

    /// Returns the length of the payload, better or not; `None` when there is none.
    #[inline(never)]
    fn try_delta_zstd<B: Backend>(
        &mut self,
        base: &Base<'_>,
        changed: &Changed,
        scratch: &mut Scratch,
        backend: &mut B,
        out: &mut [u8; MAX_PAYLOAD],
    ) -> Option<usize> {
        if !self.limits.delta_zstd || changed.count() > MAX_DELTA_ZSTD {
            return None;
        }
        let len = delta::encode_split(self.page, base.page, changed, &mut scratch.stream)?;
        let stream = scratch.stream.get(..len)?;
        let Limits {
            level, literals, ..
        } = self.limits;
        let len = backend.compress(level, literals, &[], stream, &mut scratch.block)?;
        let block = scratch.block.get(..len)?;
        self.keep(
            Format::delta_zstd(base.id),
            Needs::Base(base.id),
            block,
            self.room(Needs::Base(base.id)),
            out,
        );
        Some(BASE_END.wrapping_add(len))
    }

    /// The page as a block with the base as prefix.
    #[inline(never)]
    fn try_prefix<B: Backend>(
        &mut self,
        base: &Base<'_>,
        scratch: &mut Scratch,
        backend: &mut B,
        out: &mut [u8; MAX_PAYLOAD],
    ) {
        let len = self.compress(&mut scratch.block, |literals, level, block| {
            backend.compress(level, literals, base.page, self.page, block)
        });
        let needs = Needs::Base(base.id);
        self.keep_block(Format::prefix(base.id), needs, len, scratch, out);
    }

    /// Makes a block, with literals as wanted, and where there is time for it with plain ones unless codes
    /// pay. Returns its length.
    fn compress(
        &self,
        block: &mut [u8],
        mut make: impl FnMut(Literals, Level, &mut [u8]) -> Option<usize>,
    ) -> Option<usize> {
        let level = self.limits.level;
        let mut with = |literals, block: &mut [u8]| make(literals, level, block);
        match level {
            Level::Cheap | Level::Fast => with(self.limits.literals, block),
            Level::Best => {
                let plain = with(Literals::Plain, block);
                let made = plain.and_then(|len| block.get(..len));
                if made.is_some_and(|block| !literals::worth_compressing(block)) {
                    return plain;
                }
                let compressed = with(Literals::Compressed, block);
                match (plain, compressed) {
                    (Some(plain), Some(compressed)) if compressed < plain => Some(compressed),
                    // The estimate was wrong: as before.
                    (Some(_), _) => with(Literals::Plain, block),
                    (None, compressed) => compressed,
                }
            }
        }
    }

    /// Keeps the block of this length in the scratch, if there is one and it makes a better payload.
    fn keep_block(
        &mut self,
        format: Format,
        needs: Needs,
        len: Option<usize>,
        scratch: &Scratch,
        out: &mut [u8; MAX_PAYLOAD],
    ) {
        if let Some(block) = len.and_then(|len| scratch.block.get(..len)) {
            self.keep(format, needs, block, self.room(needs), out);
        }
    }

    /// Longest payload, with padding, that is better than what there is.
    fn room(&self, needs: Needs) -> usize {
        let room = match self.best {
            Some(best) => padded(best.len).saturating_sub(UNIT),
            None => self.limits.max_payload.min(MAX_PAYLOAD),
        };
        match needs {
            Needs::Base(_) => room.min(self.limits.max_distance),
            Needs::Nothing | Needs::Dictionary(_) => room,
        }
    }

    /// Makes this the payload if with padding it is no longer than `room`. Returns whether it is.
    fn keep(
        &mut self,
        format: Format,
        needs: Needs,
        rest: &[u8],
        room: usize,
        out: &mut [u8; MAX_PAYLOAD],
    ) -> bool {
        let start = needs.start();
        let len = start.wrapping_add(rest.len());
        if padded(len) > room {
            return false;
        }
        let Some(place) = out.get_mut(start..len) else {
            return false;
        };
        place.copy_from_slice(rest);
        needs.write(out);
        self.best = Some(Best { format, needs, len });
        true
    }

    /// What the steps since `before` have gained.
    fn since(&self, before: Option<Best>) -> Tried {
        match (before, self.best) {
            (None, Some(_)) => Tried::Improved(usize::MAX),
            (Some(before), Some(now)) if padded(now.len) < padded(before.len) => {
                Tried::Improved(padded(before.len).wrapping_sub(padded(now.len)))
            }
            _ => Tried::No,
        }
    }
}

/// The base from which the fewest words differ.
#[inline]
fn nearest<'b, 'a>(page: &Page, bases: &'b [Base<'a>]) -> Option<(&'b Base<'a>, Changed)> {
    let mut best: Option<(&Base<'_>, Changed)> = None;
    for base in bases.iter().filter(|base| base.id.number() < MAX_BASES) {
        let changed = Changed::between(page, base.page);
        if best
            .as_ref()
            .is_none_or(|(_, least)| changed.count() < least.count())
        {
            let done = changed.count() == 0;
            best = Some((base, changed));
            if done {
                break;
            }
        }
    }
    best
}

/// What [`encode`] made of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoded {
    /// The page repeats this word; nothing was written.
    Fill(u64),
    /// The page equals a base; what was written does not matter.
    Ref {
        /// The base.
        base: BaseId,
        /// CRC-32C of the page.
        crc: u32,
    },
    /// A payload was written to the start of the output.
    Payload {
        /// How the page is encoded.
        representation: Representation,
        /// Length of the payload in bytes, a multiple of [`UNIT`], at most [`MAX_PAYLOAD`].
        len: usize,
    },
}

/// Encodes a page against the nearest of `bases`, or by itself, whichever is shorter.
///
/// Returns `None` when no representation is within `limits`.
pub fn encode<B: Backend>(
    page: &Page,
    bases: &[Base<'_>],
    limits: Limits,
    scratch: &mut Scratch,
    backend: &mut B,
    out: &mut [u8; MAX_PAYLOAD],
) -> Option<Encoded> {
    if let Some(word) = words::repeated(page) {
        return Some(Encoded::Fill(word));
    }
    let mut encoder = Encoder::new(page, limits, backend);
    if let Tried::Equal(base) = encoder.try_bases(bases, scratch, backend, out) {
        let crc = encoder.crc();
        return Some(Encoded::Ref { base, crc });
    }
    let worth_it = match encoder.representation() {
        Some(Representation::Delta) => encoder.len().is_some_and(|len| len > ZSTD_ABOVE),
        Some(_) => false,
        None => true,
    };
    if worth_it {
        encoder.try_zstd(scratch, backend, out);
    }
    let len = encoder.finish(out)?;
    let representation = encoder.representation()?;
    Some(Encoded::Payload {
        representation,
        len,
    })
}
