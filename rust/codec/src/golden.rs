// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Golden vectors: pages made by fixed rules, and the bytes that they must become.
//!
//! Both builds check them, cargo's in its tests and the module's at load, so that both write the
//! same bytes and read them alike. Where zstd takes part this holds for one version of zstd: another
//! one may need new vectors.

use super::words::{load, store, WORD, WORDS};
use super::{
    decode, decode_fill, decode_ref, encode, header, sketch, Backend, Base, BaseId, DecodeError,
    Encoded, Encoder, Level, Limits, Literals, Page, Representation, Scratch, MAX_PAYLOAD,
    PADDED_LEN, PAGE_SIZE, UNIT,
};

mod vectors;

use self::vectors::{
    BLOCKS, DICTIONARY_HEAD, FILL, FILL_WORD, LETTERS, REF_CRC, SKETCHES, VECTORS,
};

/// Number of the base of all vectors; all three bytes of it differ.
const NUMBER: u32 = 0x01_0203;

/// Number of another base, which resembles no vector.
const OTHER: u32 = 7;

/// The first bytes of zstd's own dictionaries, little endian.
const DICTIONARY_MAGIC: u32 = 0xec30_a437;

/// A check that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GoldenError {
    /// What was checked.
    pub what: &'static str,
    /// Number of the vector among those of its kind.
    pub vector: usize,
}

/// Pages for [`check`], which are too large for a kernel stack. All zero is a valid value.
pub struct Buffers {
    base: Page,
    other: Page,
    page: Page,
    out: Page,
    payload: [u8; MAX_PAYLOAD],
}

impl Buffers {
    /// Buffers ready for use.
    pub const fn new() -> Self {
        Self {
            base: [0; PAGE_SIZE],
            other: [0; PAGE_SIZE],
            page: [0; PAGE_SIZE],
            out: [0; PAGE_SIZE],
            payload: [0; MAX_PAYLOAD],
        }
    }
}

impl Default for Buffers {
    fn default() -> Self {
        Self::new()
    }
}

/// How the page of a vector comes from the base.
enum Make {
    /// Bits of words flip.
    Flip(&'static [(usize, u64)]),
    /// Every third word becomes one of five values.
    Scatter,
    /// All words but those of the first KiB move by 3.
    Shift,
    /// The base does not matter: text.
    Text,
}

/// A page, the kind of base that it has, and the payload that results.
struct Vector {
    make: Make,
    reference: bool,
    representation: Representation,
    payload: &'static [u8],
}

/// A zstd block: how it is made, and what results.
struct BlockVector {
    level: Level,
    literals: Literals,
    before: Before,
    len: usize,
    crc: u32,
}

/// What comes before a block.
#[derive(Clone, Copy, Debug)]
enum Before {
    Nothing,
    /// The base, as prefix.
    Base,
    /// The base after the bytes with which zstd's own dictionaries begin, as prefix.
    Magic,
    /// A dictionary, at its own level, with the base in it.
    Dictionary,
}

/// Checks this build of the codec against the golden vectors. Returns how many there are. The backend must
/// be able to compress with dictionaries, which `dictionary` makes.
///
/// # Errors
///
/// The first check that fails.
pub fn check<B: Backend>(
    backend: &mut B,
    scratch: &mut Scratch,
    buffers: &mut Buffers,
    dictionary: impl FnOnce(&[u8]) -> Option<B::Dictionary>,
) -> Result<usize, GoldenError> {
    let mut run = Run {
        backend,
        scratch,
        b: buffers,
        vector: 0,
    };
    make_base(&mut run.b.base);
    run.b.other = run.b.base;
    run.b.other.reverse();
    run.checksum()?;
    run.fill()?;
    run.padded()?;
    run.reference()?;
    let mut checked = 4usize;
    for (number, vector) in VECTORS.iter().enumerate() {
        run.vector = number;
        run.payload(vector)?;
        checked = checked.wrapping_add(1);
    }
    for (number, (make, expected)) in SKETCHES.iter().enumerate() {
        run.vector = number;
        run.make(make);
        run.ensure(sketch(&run.b.page) == *expected, "sketch")?;
        checked = checked.wrapping_add(1);
    }
    // From here on `other` is room for what comes before.
    let dictionary = run.dictionary(dictionary)?;
    rearrange(&run.b.base, &mut run.b.page);
    for (number, vector) in BLOCKS.iter().enumerate() {
        run.vector = number;
        run.block(vector, &dictionary)?;
        checked = checked.wrapping_add(1);
    }
    letters(&run.b.base, &mut run.b.page);
    for (number, vector) in LETTERS.iter().enumerate() {
        run.vector = number.wrapping_add(BLOCKS.len());
        run.block(vector, &dictionary)?;
        checked = checked.wrapping_add(1);
    }
    Ok(checked)
}

/// Makes a dictionary that zstd takes, also for other tests: its head, and the base of the vectors, as
/// much of it as fits.
pub fn dictionary(content: &mut Page) {
    make_base(content);
    let head = DICTIONARY_HEAD.len();
    content.copy_within(..PAGE_SIZE.saturating_sub(head), head);
    for (place, byte) in content.iter_mut().zip(DICTIONARY_HEAD) {
        *place = *byte;
    }
}

/// Pseudo-random words (xorshift64), of the shape of pointers.
fn make_base(page: &mut Page) {
    let mut state = 0x0123_4567_89ab_cdef_u64;
    for at in (0..PAGE_SIZE).step_by(WORD) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        store(page, at, 0x7f00_0000_0000 | state & 0x0fff_ffff);
    }
}

/// Flips bits of words.
fn apply(page: &mut Page, changes: &[(usize, u64)]) {
    for &(word, bits) in changes {
        let at = word.wrapping_mul(WORD);
        let value = load(page, at) ^ bits;
        store(page, at, value);
    }
}

fn scatter(page: &mut Page) {
    for word in (0..WORDS).step_by(3) {
        store(
            page,
            word.wrapping_mul(WORD),
            0x55aa_0000_1000 | (word % 5) as u64,
        );
    }
}

/// Takes runs of words from elsewhere in the base, and changes some words.
fn rearrange(base: &Page, page: &mut Page) {
    for word in 0..WORDS {
        let from = word.wrapping_add((word / 9).wrapping_mul(31)) % WORDS;
        let bits = if word % 11 == 0 { 0x0f00 } else { 0 };
        let value = load(base, from.wrapping_mul(WORD)) ^ bits;
        store(page, word.wrapping_mul(WORD), value);
    }
}

/// Half a page of sixteen letters in no order, which only codes make shorter, twice.
fn letters(base: &Page, page: &mut Page) {
    for (at, place) in page.iter_mut().enumerate() {
        let letter = at % (PAGE_SIZE / 2);
        let word = load(base, (letter / 4).wrapping_mul(WORD));
        *place = b'`' | ((word >> (4 * (letter % 4))) & 0xf) as u8;
    }
}

/// Something like text, with a few repetitions.
fn make_text(page: &mut Page) {
    let phrase = b"golden agents zip small pages. ";
    let mut at = 0u32;
    for (place, byte) in page.iter_mut().zip(phrase.iter().cycle()) {
        *place = byte ^ (at >> 11) as u8;
        at = at.wrapping_add(1);
    }
}

/// The prefix of a block.
fn prefix<'a>(before: Before, base: &'a Page, room: &'a mut Page) -> &'a [u8] {
    match before {
        Before::Base => base,
        Before::Magic => {
            *room = *base;
            let magic = u64::from(DICTIONARY_MAGIC) | (load(base, 0) << 32);
            store(room, 0, magic);
            room
        }
        Before::Nothing | Before::Dictionary => &[],
    }
}

struct Run<'a, B> {
    backend: &'a mut B,
    scratch: &'a mut Scratch,
    b: &'a mut Buffers,
    vector: usize,
}

impl<B: Backend> Run<'_, B> {
    fn ensure(&self, good: bool, what: &'static str) -> Result<(), GoldenError> {
        if good {
            Ok(())
        } else {
            Err(GoldenError {
                what,
                vector: self.vector,
            })
        }
    }

    /// Makes the page of a vector.
    fn make(&mut self, make: &Make) {
        self.b.page = self.b.base;
        let page = &mut self.b.page;
        match make {
            Make::Flip(changes) => apply(page, changes),
            Make::Scatter => scatter(page),
            Make::Shift => {
                if let Some(rest) = page.get_mut(1024..) {
                    rest.rotate_left(3 * WORD);
                }
            }
            Make::Text => make_text(page),
        }
    }

    /// Encodes the page with the base and another as pages of one kind.
    fn encode(&mut self, id: fn(u32) -> BaseId) -> Option<Encoded> {
        let b = &mut *self.b;
        let bases = [
            Base {
                id: id(OTHER),
                page: &b.other,
            },
            Base {
                id: id(NUMBER),
                page: &b.base,
            },
        ];
        encode(
            &b.page,
            &bases,
            Limits::at(Level::Fast),
            self.scratch,
            self.backend,
            &mut b.payload,
        )
    }

    fn decode(&mut self, len: usize) -> Result<Representation, DecodeError> {
        let b = &mut *self.b;
        let payload = b.payload.get(..len).unwrap_or_default();
        let base = match header(payload)?.base.map(BaseId::number) {
            Some(NUMBER) => Some(&b.base),
            Some(OTHER) => Some(&b.other),
            _ => None,
        };
        decode(payload, base, self.scratch, self.backend, &mut b.out)
    }

    fn checksum(&mut self) -> Result<(), GoldenError> {
        let good = self.backend.crc32c(b"123456789") == 0xe306_9283;
        self.ensure(good, "crc32c")
    }

    /// Text and zeros take the same room.
    fn padded(&mut self) -> Result<(), GoldenError> {
        for make in [make_text, |page: &mut Page| page.fill(0)] {
            let b = &mut *self.b;
            make(&mut b.page);
            let mut encoder = Encoder::new(&b.page, Limits::at(Level::Fast), self.backend);
            encoder.try_padded(self.scratch, self.backend, &mut b.payload);
            let len = encoder.finish(&mut b.payload);
            self.ensure(len == Some(PADDED_LEN), "padded: length")?;
            self.comes_back(PADDED_LEN, Representation::Padded)?;
        }
        Ok(())
    }

    fn fill(&mut self) -> Result<(), GoldenError> {
        decode_fill(FILL_WORD, &mut self.b.page);
        let good = self.encode(BaseId::Template) == Some(Encoded::Fill(FILL_WORD));
        self.ensure(good, "fill: encode")?;
        let b = &mut *self.b;
        let mut encoder = Encoder::new(&b.page, Limits::at(Level::Fast), self.backend);
        encoder.try_fill(&mut b.payload);
        let len = encoder.finish(&mut b.payload);
        let good = len.and_then(|len| b.payload.get(..len)) == Some(FILL);
        self.ensure(good, "fill: payload")?;
        self.comes_back(FILL.len(), Representation::Fill)
    }

    fn reference(&mut self) -> Result<(), GoldenError> {
        self.b.page = self.b.base;
        let expected = Encoded::Ref {
            base: BaseId::Reference(NUMBER),
            crc: REF_CRC,
        };
        let good = self.encode(BaseId::Reference) == Some(expected);
        self.ensure(good, "ref: encode")?;
        let b = &mut *self.b;
        let good = decode_ref(&b.base, REF_CRC, 32, self.backend, &mut b.out).is_ok()
            && b.out == b.page
            && decode_ref(&b.base, REF_CRC & 0x3ff_ffff, 26, self.backend, &mut b.out).is_ok()
            && decode_ref(&b.base, REF_CRC ^ 1, 26, self.backend, &mut b.out).is_err()
            && decode_ref(&b.other, REF_CRC, 26, self.backend, &mut b.out).is_err();
        self.ensure(good, "ref: decode")
    }

    fn payload(&mut self, vector: &Vector) -> Result<(), GoldenError> {
        self.make(&vector.make);
        let id = match vector.reference {
            false => BaseId::Template,
            true => BaseId::Reference,
        };
        let expected = Encoded::Payload {
            representation: vector.representation,
            len: vector.payload.len(),
        };
        let good = self.encode(id) == Some(expected);
        self.ensure(good, "encode")?;
        let written = self.b.payload.get(..vector.payload.len());
        self.ensure(written == Some(vector.payload), "payload")?;
        let base = match vector.representation {
            Representation::Zstd => None,
            _ => Some(id(NUMBER)),
        };
        let good = header(vector.payload).is_ok_and(|header| {
            header.base == base && header.representation == vector.representation
        });
        self.ensure(good, "header")?;
        self.comes_back(vector.payload.len(), vector.representation)
    }

    /// Makes the dictionary.
    fn dictionary(
        &mut self,
        make: impl FnOnce(&[u8]) -> Option<B::Dictionary>,
    ) -> Result<B::Dictionary, GoldenError> {
        dictionary(&mut self.b.other);
        make(&self.b.other).ok_or(GoldenError {
            what: "dictionary",
            vector: 0,
        })
    }

    fn block(
        &mut self,
        vector: &BlockVector,
        dictionary: &B::Dictionary,
    ) -> Result<(), GoldenError> {
        let block = self.compress(vector.level, vector.literals, vector.before, dictionary);
        let good = block == Some((vector.len, vector.crc));
        self.ensure(good, "block: compress")?;
        let good = self.decompress(vector.before, vector.len, dictionary) == Some(PAGE_SIZE)
            && self.b.out == self.b.page;
        self.ensure(good, "block: decompress")
    }

    /// Compresses the page into a block. Returns its length in bytes and its CRC-32C.
    fn compress(
        &mut self,
        level: Level,
        literals: Literals,
        before: Before,
        dictionary: &B::Dictionary,
    ) -> Option<(usize, u32)> {
        let b = &mut *self.b;
        let len = match before {
            Before::Dictionary => {
                self.backend
                    .compress_with(dictionary, literals, &b.page, &mut b.payload)?
            }
            Before::Nothing | Before::Base | Before::Magic => {
                let prefix = prefix(before, &b.base, &mut b.other);
                self.backend
                    .compress(level, literals, prefix, &b.page, &mut b.payload)?
            }
        };
        Some((len, self.backend.crc32c(b.payload.get(..len)?)))
    }

    /// Decompresses the block of `len` bytes into `out`. Returns the length of its content.
    fn decompress(
        &mut self,
        before: Before,
        len: usize,
        dictionary: &B::Dictionary,
    ) -> Option<usize> {
        let b = &mut *self.b;
        let block = b.payload.get(..len)?;
        match before {
            Before::Dictionary => self.backend.decompress_with(dictionary, block, &mut b.out),
            Before::Nothing | Before::Base | Before::Magic => {
                let prefix = prefix(before, &b.base, &mut b.other);
                self.backend.decompress(prefix, block, &mut b.out)
            }
        }
    }

    /// The payload decodes to the page, and damaged forms of it to nothing else.
    fn comes_back(
        &mut self,
        len: usize,
        representation: Representation,
    ) -> Result<(), GoldenError> {
        let good = self.decode(len) == Ok(representation) && self.b.out == self.b.page;
        self.ensure(good, "decode")?;
        for short in [0, UNIT.wrapping_sub(1)] {
            let good = self.decode(short) == Err(DecodeError::Truncated);
            self.ensure(good, "truncated payload")?;
        }
        for bit in 0..len.wrapping_mul(8) {
            self.flip(bit);
            let good = self.decode(len).is_err() || self.b.out == self.b.page;
            self.ensure(good, "damaged payload")?;
            self.flip(bit);
        }
        Ok(())
    }

    fn flip(&mut self, bit: usize) {
        if let Some(byte) = self.b.payload.get_mut(bit / 8) {
            *byte ^= 1 << (bit % 8);
        }
    }
}

#[cfg(test)]
mod tests {
    //! Prints what the vectors' payloads are, for when a new format needs new ones:
    //! `cargo test -p agentzip-codec --features host print_vectors -- --ignored --nocapture`

    extern crate std;

    use super::*;
    use crate::host::{Dictionary, Host};
    use std::boxed::Box;
    use std::println;

    #[test]
    #[ignore = "prints, checks nothing"]
    fn print_vectors() {
        let mut run = Run {
            backend: &mut Host::new(),
            scratch: &mut Box::new(Scratch::new()),
            b: &mut Box::new(Buffers::new()),
            vector: 0,
        };
        make_base(&mut run.b.base);
        run.b.other = run.b.base;
        run.b.other.reverse();
        decode_fill(FILL_WORD, &mut run.b.page);
        let b = &mut *run.b;
        let mut encoder = Encoder::new(&b.page, Limits::at(Level::Fast), run.backend);
        encoder.try_fill(&mut b.payload);
        let len = encoder.finish(&mut b.payload).unwrap();
        println!("fill: {:#04x?}", &b.payload[..len]);
        println!("ref: {:#x}", run.backend.crc32c(&run.b.base));
        for vector in VECTORS {
            run.make(&vector.make);
            match run.encode(match vector.reference {
                false => BaseId::Template,
                true => BaseId::Reference,
            }) {
                Some(Encoded::Payload {
                    representation,
                    len,
                }) => println!("{representation:?} {len}: {:#04x?}", &run.b.payload[..len]),
                other => println!("{other:x?}"),
            }
        }
        for (make, _) in SKETCHES {
            run.make(make);
            println!("sketch: {:#x?}", sketch(&run.b.page));
        }
        let Ok(dictionary) = run.dictionary(Dictionary::new) else {
            panic!("zstd refuses the dictionary");
        };
        rearrange(&run.b.base, &mut run.b.page);
        let print = |run: &mut Run<'_, Host>, level, before| {
            for literals in Literals::ALL {
                let block = run.compress(level, literals, before, &dictionary);
                println!("block {level:?} {literals:?} {before:?} {block:#x?}");
            }
        };
        for level in Level::ALL {
            for before in [Before::Nothing, Before::Base, Before::Magic] {
                print(&mut run, level, before);
            }
        }
        print(&mut run, Level::Best, Before::Dictionary);
        letters(&run.b.base, &mut run.b.page);
        for level in Level::ALL {
            print(&mut run, level, Before::Nothing);
        }
        print(&mut run, Level::Best, Before::Dictionary);
    }
}
