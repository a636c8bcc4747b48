// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Golden vectors: pages made by fixed rules, and the bytes that they must become.
//!
//! Both builds check them, cargo's in its tests and the module's at load, so that a payload means
//! the same to both. What the encoder writes for zstd forms depends on the version of zstd; there
//! the fixed bytes must decode, and what is encoded now must come back.

use super::words::{load, store, WORD, WORDS};
use super::{
    decode, decode_fill, decode_ref, encode, encode_fill, Backend, Base, DecodeError, Encoded,
    Page, Representation, Scratch, HEADER_LEN, MAX_PAYLOAD, PAGE_SIZE,
};

mod vectors;

use self::vectors::{DELTAS, DELTA_ZSTD, FILL, FILL_WORD, REF_CRC, ZSTD, ZSTD_FRAME};

/// Ordinal of the base of all vectors; all three bytes of it differ.
const ORDINAL: u32 = 0x01_0203;

/// Ordinal of another base, which resembles no vector.
const OTHER: u32 = 7;

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

/// A delta vector: words of the base with the bits of them that flip, and the payload that results.
struct DeltaVector {
    changes: &'static [(usize, u64)],
    payload: &'static [u8],
}

/// Checks this build of the codec against the golden vectors. Returns how many there are.
///
/// # Errors
///
/// The first check that fails.
pub fn check<B: Backend>(
    backend: &mut B,
    scratch: &mut Scratch,
    buffers: &mut Buffers,
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
    let mut checked = 0usize;
    run.checksum()?;
    run.fill()?;
    run.reference()?;
    checked = checked.wrapping_add(3);
    for (number, vector) in DELTAS.iter().enumerate() {
        run.vector = number;
        run.delta(vector)?;
        checked = checked.wrapping_add(1);
    }
    run.vector = 0;
    run.b.page = run.b.base;
    scatter(&mut run.b.page);
    run.compressed("delta_zstd", DELTA_ZSTD, Representation::DeltaZstd)?;
    make_text(&mut run.b.page);
    run.compressed("zstd", ZSTD, Representation::Zstd)?;
    run.vector = 1;
    run.compressed("zstd", ZSTD_FRAME, Representation::Zstd)?;
    Ok(checked.wrapping_add(3))
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

/// Changes every third word to one of five values.
fn scatter(page: &mut Page) {
    for word in (0..WORDS).step_by(3) {
        store(
            page,
            word.wrapping_mul(WORD),
            0x55aa_0000_1000 | (word % 5) as u64,
        );
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

    fn encode(&mut self) -> Option<Encoded> {
        let b = &mut *self.b;
        let bases = [
            Base {
                ordinal: OTHER,
                page: &b.other,
            },
            Base {
                ordinal: ORDINAL,
                page: &b.base,
            },
        ];
        let (scratch, backend) = (&mut *self.scratch, &mut *self.backend);
        let cost = |len| len;
        encode(
            &b.page,
            &bases,
            &cost,
            MAX_PAYLOAD,
            scratch,
            backend,
            &mut b.payload,
        )
    }

    fn decode(&mut self, len: usize) -> Result<Representation, DecodeError> {
        let b = &mut *self.b;
        let (base, other) = (&b.base, &b.other);
        let find = |ordinal| match ordinal {
            ORDINAL => Some(base),
            OTHER => Some(other),
            _ => None,
        };
        let payload = b.payload.get(..len).unwrap_or_default();
        decode(payload, find, self.scratch, self.backend, &mut b.out)
    }

    fn checksum(&mut self) -> Result<(), GoldenError> {
        let good = self.backend.crc32c(b"123456789") == 0xe306_9283;
        self.ensure(good, "crc32c")
    }

    fn fill(&mut self) -> Result<(), GoldenError> {
        decode_fill(FILL_WORD, &mut self.b.page);
        let good = self.encode() == Some(Encoded::Fill(FILL_WORD));
        self.ensure(good, "fill: encode")?;
        let len = encode_fill(&self.b.page, self.backend, &mut self.b.payload);
        let good = len.and_then(|len| self.b.payload.get(..len)) == Some(FILL);
        self.ensure(good, "fill: payload")?;
        self.comes_back(FILL.len(), Representation::Fill, "fill: decode")
    }

    fn reference(&mut self) -> Result<(), GoldenError> {
        self.b.page = self.b.base;
        let expected = Encoded::Ref {
            ordinal: ORDINAL,
            crc: REF_CRC,
        };
        let good = self.encode() == Some(expected);
        self.ensure(good, "ref: encode")?;
        let b = &mut *self.b;
        let good = decode_ref(&b.base, REF_CRC, 32, self.backend, &mut b.out).is_ok()
            && b.out == b.page
            && decode_ref(&b.base, REF_CRC & 0x3ff_ffff, 26, self.backend, &mut b.out).is_ok()
            && decode_ref(&b.base, REF_CRC ^ 1, 26, self.backend, &mut b.out).is_err()
            && decode_ref(&b.other, REF_CRC, 26, self.backend, &mut b.out).is_err();
        self.ensure(good, "ref: decode")
    }

    fn delta(&mut self, vector: &DeltaVector) -> Result<(), GoldenError> {
        self.b.page = self.b.base;
        apply(&mut self.b.page, vector.changes);
        let expected = Encoded::Payload {
            representation: Representation::Delta,
            len: vector.payload.len(),
        };
        let good = self.encode() == Some(expected);
        self.ensure(good, "delta: encode")?;
        let written = self.b.payload.get(..vector.payload.len());
        let good = written == Some(vector.payload);
        self.ensure(good, "delta: payload")?;
        self.comes_back(vector.payload.len(), Representation::Delta, "delta: decode")
    }

    /// The page comes back from what is encoded now and from the fixed payload.
    fn compressed(
        &mut self,
        what: &'static str,
        payload: &[u8],
        representation: Representation,
    ) -> Result<(), GoldenError> {
        let len = match self.encode() {
            Some(Encoded::Payload {
                representation: chosen,
                len,
            }) if chosen == representation => len,
            _ => return self.ensure(false, what),
        };
        self.comes_back(len, representation, what)?;
        match self.b.payload.get_mut(..payload.len()) {
            Some(place) => place.copy_from_slice(payload),
            None => return self.ensure(false, what),
        }
        self.comes_back(payload.len(), representation, what)
    }

    /// The payload decodes to the page, and damaged forms of it to nothing else.
    fn comes_back(
        &mut self,
        len: usize,
        representation: Representation,
        what: &'static str,
    ) -> Result<(), GoldenError> {
        let good = self.decode(len) == Ok(representation) && self.b.out == self.b.page;
        self.ensure(good, what)?;
        for short in [
            0,
            HEADER_LEN.wrapping_sub(1),
            HEADER_LEN,
            len.wrapping_sub(1),
        ] {
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
    use crate::host::Host;
    use std::boxed::Box;
    use std::println;

    fn print(run: &mut Run<'_, Host>, name: &str) {
        match run.encode() {
            Some(Encoded::Payload { len, .. }) => {
                println!("{name} {len}: {:#04x?}", &run.b.payload[..len]);
            }
            other => println!("{name}: {other:#x?}"),
        }
    }

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
        decode_fill(FILL_WORD, &mut run.b.page);
        let len = encode_fill(&run.b.page, run.backend, &mut run.b.payload).unwrap();
        println!("fill: {:#04x?}", &run.b.payload[..len]);
        run.b.page = run.b.base;
        print(&mut run, "ref");
        for vector in DELTAS {
            run.b.page = run.b.base;
            apply(&mut run.b.page, vector.changes);
            print(&mut run, "delta");
        }
        run.b.page = run.b.base;
        scatter(&mut run.b.page);
        print(&mut run, "delta_zstd");
        make_text(&mut run.b.page);
        print(&mut run, "zstd");
    }
}
