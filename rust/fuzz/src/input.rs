// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Values out of an input. Numbers are little endian; what an input lacks is zero.

use agentzip_codec::{Page, PAGE_SIZE};

/// Bytes of a word of a page.
const WORD: usize = 8;

/// What is left of an input.
pub(crate) struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    pub(crate) fn new(data: &'a [u8]) -> Self {
        Self(data)
    }

    /// Nothing is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All that is left.
    pub(crate) fn rest(self) -> &'a [u8] {
        self.0
    }

    /// So many bytes; fewer at the end.
    pub(crate) fn bytes(&mut self, length: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(length.min(self.0.len()));
        self.0 = rest;
        taken
    }

    pub(crate) fn array<const N: usize>(&mut self) -> [u8; N] {
        let bytes = self.bytes(N);
        let mut array = [0; N];
        array[..bytes.len()].copy_from_slice(bytes);
        array
    }

    pub(crate) fn u8(&mut self) -> u8 {
        u8::from_le_bytes(self.array())
    }

    pub(crate) fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    pub(crate) fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    pub(crate) fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    /// A page of one of the textures that memory has: a byte says which, then comes a length (1 byte) with
    /// bytes that fill the page over and over again, or the seed (2 bytes) of something random.
    pub(crate) fn page(&mut self) -> Box<Page> {
        let texture = self.u8() % 4;
        if texture == 0 {
            let length = self.u8().into();
            let mut bytes = self.bytes(length).iter().cycle();
            let mut page = Box::new([0; PAGE_SIZE]);
            page.fill_with(|| bytes.next().copied().unwrap_or(0));
            return page;
        }
        let mut next = random(self.u16());
        match texture {
            // Pointers.
            1 => from_words(|| 0x7f00_0000_0000 | next() & 0x0fff_ffff),
            // Small numbers.
            2 => from_words(|| next() & 0xff),
            // Noise.
            _ => from_words(next),
        }
    }

    /// A page that resembles another: turned by a number of bytes (2 bytes), with so many words changed at
    /// random (2 bytes, and 2 bytes of seed), and so many bytes (1 byte) by what is given (3 bytes each).
    pub(crate) fn changed(&mut self, page: &Page) -> Box<Page> {
        let mut page = Box::new(*page);
        page.rotate_left(usize::from(self.u16()) % PAGE_SIZE);
        let words = self.u16() % 512;
        let mut next = random(self.u16());
        for _ in 0..words {
            let at = next() as usize % (PAGE_SIZE / WORD) * WORD;
            let bits = next() >> (next() % 8 * 8);
            for (place, bits) in page[at..at + WORD].iter_mut().zip(bits.to_le_bytes()) {
                *place ^= bits;
            }
        }
        for _ in 0..self.u8() {
            let at = usize::from(self.u16()) % PAGE_SIZE;
            page[at] ^= self.u8();
        }
        page
    }
}

/// A page of words.
fn from_words(mut word: impl FnMut() -> u64) -> Box<Page> {
    let mut page = Box::new([0; PAGE_SIZE]);
    for place in page.chunks_exact_mut(WORD) {
        place.copy_from_slice(&word().to_le_bytes());
    }
    page
}

/// SplitMix64: cheap and good enough.
fn random(seed: u16) -> impl FnMut() -> u64 {
    let mut state = u64::from(seed);
    move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}
