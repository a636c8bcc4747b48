// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Dictionaries: any bytes are refused, or make one with which pages come back and with which any block
//! gives the same wherever it is decompressed to.
//!
//! An input is a dictionary, a page and a block.

use std::cell::RefCell;
use std::sync::Arc;

use agentzip_codec::host::{Dictionary, Host};
use agentzip_codec::{
    decode_dictionary, golden, header, Backend, Encoder, Level, Limits, Page, Representation,
    Scratch, MAX_PAYLOAD, PAGE_SIZE,
};

use crate::guarded::Guarded;
use crate::input::Input;

/// Number of the dictionary in payloads.
const NUMBER: u8 = 5;

thread_local! {
    static BENCH: RefCell<Bench> = RefCell::new(Bench::new());
}

/// The target.
pub fn target(data: &[u8]) {
    BENCH.with_borrow_mut(|bench| {
        let mut input = Input::new(data);
        let Some(dictionary) = Dictionary::new(&content(&mut input)) else {
            return;
        };
        bench.round_trip(&dictionary, &input.page());
        bench.decompress_any(&dictionary, input.rest());
        assert_eq!(Arc::strong_count(&dictionary), 1, "a handle was kept");
    });
}

/// The bytes of a dictionary: after an even byte, a length (2 bytes) and what they are; after an odd one,
/// how much is left (2 bytes) of one that is good, and what is changed in it: a number (1 byte), and so
/// many times where (2 bytes) and how (1 byte).
fn content(input: &mut Input<'_>) -> Vec<u8> {
    let kind = input.u8();
    let length = usize::from(input.u16());
    if kind % 2 == 0 {
        return input.bytes(length).to_vec();
    }
    let mut good = Box::new([0; PAGE_SIZE]);
    golden::dictionary(&mut good);
    let mut content = good[..length.min(PAGE_SIZE)].to_vec();
    for _ in 0..input.u8() {
        let at = usize::from(input.u16());
        let bits = input.u8();
        if let Some(place) = content.get_mut(at) {
            *place ^= bits;
        }
    }
    content
}

/// The codec with its buffers.
struct Bench {
    host: Host,
    scratch: Box<Scratch>,
    out: Box<[u8; MAX_PAYLOAD]>,
    block: Guarded,
    page: Guarded,
    /// Too long for the room behind a dictionary.
    long: Guarded,
}

impl Bench {
    fn new() -> Self {
        Self {
            host: Host::new(),
            scratch: Box::new(Scratch::new()),
            out: Box::new([0; MAX_PAYLOAD]),
            block: Guarded::new(1),
            page: Guarded::new(1),
            long: Guarded::new(2),
        }
    }

    fn round_trip(&mut self, dictionary: &Arc<Dictionary>, original: &Page) {
        let Self {
            host,
            scratch,
            out,
            block,
            page,
            ..
        } = self;
        let mut encoder = Encoder::new(original, Limits::at(Level::Best), host);
        encoder.try_dictionary(NUMBER, dictionary, scratch, host, out);
        let Some(length) = encoder.finish(out) else {
            return;
        };
        let payload = block.hold(&out[..length]);
        let head = header(payload).expect("a payload begins with a header");
        assert_eq!(head.dictionary, Some(NUMBER));
        let page = page.page();
        let decoded = decode_dictionary(payload, dictionary, host, page);
        assert_eq!(decoded, Ok(Representation::Dict));
        assert!(*page == *original, "another page came back");
    }

    /// Decompresses bytes that may be no block: behind the dictionary, and elsewhere.
    fn decompress_any(&mut self, dictionary: &Arc<Dictionary>, bytes: &[u8]) {
        let Self {
            host,
            block,
            page,
            long,
            ..
        } = self;
        let block: &[u8] = block.hold(bytes);
        let page = page.page();
        let long = long.last(2 * PAGE_SIZE);
        let behind = host.decompress_with(dictionary, block, page);
        let elsewhere = host.decompress_with(dictionary, block, long);
        let elsewhere = elsewhere.filter(|length| *length <= PAGE_SIZE);
        assert_eq!(behind, elsewhere);
        if let Some(length) = behind {
            assert!(page[..length] == long[..length], "two contents of a block");
        }
        if let Ok(representation) = decode_dictionary(block, dictionary, host, page) {
            assert_eq!(representation, Representation::Dict);
            let head = header(block).expect("a payload begins with a header");
            assert_eq!(head.crc, host.crc32c(&page[..]));
        }
    }
}
