// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Dictionaries: pages come back with the right one and with no other, and what is no dictionary, or too
//! long, is refused.

mod common;

use std::sync::Arc;

use agentzip_codec::host::{Dictionary, Host};
use agentzip_codec::zstd::{MAX_DICTIONARY, MAX_WITH_DICTIONARY};
use agentzip_codec::{
    decode, decode_dictionary, header, Backend, DecodeError, Encoder, Level, Limits, Literals,
    Page, Representation, Scratch, MAX_PAYLOAD, PAGE_SIZE,
};
use common::pages::random;
use zstd_safe::train_from_buffer;

const NUMBER: u8 = 5;

/// Text of few words, which has much in common with any other such text.
fn text(seed: u64) -> Box<Page> {
    const WORDS: [&str; 9] = [
        "def main(",
        "import ",
        "return self",
        "agent",
        "page = ",
        "\n    ",
        "swap[",
        "]: ",
        "None",
    ];
    let mut next = random(seed);
    let text: String = (0..PAGE_SIZE)
        .map(|_| match next() % 4 {
            0 => format!("{:x}", next() & 0xffff),
            _ => WORDS[next() as usize % WORDS.len()].to_owned(),
        })
        .collect();
    Box::new(*text.as_bytes().first_chunk().unwrap())
}

/// A dictionary for such text.
fn trained(seed: u64) -> Vec<u8> {
    let samples: Vec<u8> = (0..100).flat_map(|n| *text(seed + n)).collect();
    let mut dictionary = Vec::with_capacity(16 << 10);
    train_from_buffer(&mut dictionary, &samples, &[PAGE_SIZE; 100]).unwrap();
    dictionary
}

/// The codec with its buffers.
struct Bench {
    host: Host,
    scratch: Box<Scratch>,
    out: Box<[u8; MAX_PAYLOAD]>,
    page: Box<Page>,
}

impl Bench {
    fn new() -> Self {
        Self {
            host: Host::new(),
            scratch: Box::new(Scratch::new()),
            out: Box::new([0; MAX_PAYLOAD]),
            page: Box::new([0; PAGE_SIZE]),
        }
    }

    fn payload(&mut self, page: &Page, dictionary: &Arc<Dictionary>) -> Vec<u8> {
        let mut encoder = Encoder::new(page, Limits::at(Level::Best), &mut self.host);
        encoder.try_dictionary(
            NUMBER,
            dictionary,
            &mut self.scratch,
            &mut self.host,
            &mut self.out,
        );
        assert_eq!(encoder.dictionary(), Some(NUMBER));
        let len = encoder.finish(&mut self.out).unwrap();
        self.out[..len].to_vec()
    }
}

#[test]
fn pages_come_back() {
    let dictionary = Dictionary::new(&trained(1000)).unwrap();
    let mut bench = Bench::new();
    let mut alone = 0;
    let mut with = 0;
    for seed in 0..50 {
        let page = text(seed);
        let payload = bench.payload(&page, &dictionary);
        let head = header(&payload).unwrap();
        assert_eq!(head.representation, Representation::Dict);
        assert_eq!((head.dictionary, head.base), (Some(NUMBER), None));
        let Bench {
            host,
            scratch,
            page: out,
            ..
        } = &mut bench;
        let result = decode_dictionary(&payload, &dictionary, host, out);
        assert_eq!(result, Ok(Representation::Dict));
        assert_eq!(*out, page);
        // Who does not look at the header.
        let result = decode(&payload, None, scratch, host, out);
        assert_eq!(result, Err(DecodeError::NoDictionary));
        let mut block = [0; PAGE_SIZE];
        let len = host.compress(Level::Best, Literals::Plain, &[], &page[..], &mut block);
        alone += len.unwrap();
        with += payload.len();
    }
    assert!(with < alone, "{with} of {alone}");
}

#[test]
fn blocks_depend_on_page_and_dictionary_alone() {
    let content = trained(1000);
    let wanted = Bench::new().payload(&text(7), &Dictionary::new(&content).unwrap());
    let mut bench = Bench::new();
    for seed in 0..3 {
        let other = Dictionary::new(&trained(2000 + seed)).unwrap();
        bench.payload(&text(seed), &other);
    }
    let again = Dictionary::new(&content).unwrap();
    assert_eq!(bench.payload(&text(7), &again), wanted);
}

/// No handle stays with the backend: whoever has the last one decides where it is dropped.
#[test]
fn the_backend_keeps_no_handle() {
    let dictionary = Dictionary::new(&trained(1000)).unwrap();
    let mut bench = Bench::new();
    let payload = bench.payload(&text(1), &dictionary);
    decode_dictionary(&payload, &dictionary, &mut bench.host, &mut bench.page).unwrap();
    assert_eq!(Arc::strong_count(&dictionary), 1);
    // Nor is the dictionary looked at by what comes next.
    drop(dictionary);
    let mut encoder = Encoder::new(&bench.page, Limits::at(Level::Best), &mut bench.host);
    encoder.try_zstd(&mut bench.scratch, &mut bench.host, &mut bench.out);
    let len = encoder.finish(&mut bench.out).unwrap();
    let mut out = Box::new([0; PAGE_SIZE]);
    let Bench {
        host,
        scratch,
        out: block,
        ..
    } = &mut bench;
    let payload = &block[..len];
    decode(payload, None, scratch, host, &mut out).unwrap();
    assert_eq!(out, text(1));
}

#[test]
fn what_is_too_long_is_refused() {
    let dictionary = Dictionary::new(&trained(1000)).unwrap();
    let mut host = Host::new();
    let long = [0; MAX_WITH_DICTIONARY + 1];
    let mut block = [0; MAX_WITH_DICTIONARY];
    let mut compress =
        |src: &[u8]| host.compress_with(&dictionary, Literals::Plain, src, &mut block);
    assert!(compress(&long[1..]).is_some());
    assert_eq!(compress(&long), None);
}

#[test]
fn another_dictionary_is_noticed() {
    let dictionary = Dictionary::new(&trained(1000)).unwrap();
    let other = Dictionary::new(&trained(5000)).unwrap();
    let mut bench = Bench::new();
    let page = text(7);
    let payload = bench.payload(&page, &dictionary);
    let result = decode_dictionary(&payload, &other, &mut bench.host, &mut bench.page);
    assert!(result.is_err() || bench.page == page);
    for at in 0..payload.len() {
        let mut bad = payload.clone();
        bad[at] ^= 0x41;
        let result = decode_dictionary(&bad, &dictionary, &mut bench.host, &mut bench.page);
        assert!(result.is_err() || bench.page == page, "{at}");
    }
}

/// Several at once: one has the room behind the dictionary, the others do without.
#[test]
fn many_decompress_at_once() {
    let dictionary = Dictionary::new(&trained(1000)).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let dictionary = &dictionary;
            scope.spawn(move || {
                let mut bench = Bench::new();
                for seed in 0..50 {
                    let page = text(thread * 1000 + seed);
                    let payload = bench.payload(&page, dictionary);
                    for _ in 0..20 {
                        let Bench {
                            host, page: out, ..
                        } = &mut bench;
                        decode_dictionary(&payload, dictionary, host, out).unwrap();
                        assert_eq!(*out, page);
                    }
                }
            });
        }
    });
}

#[test]
fn what_is_no_dictionary_is_refused() {
    let good = trained(1000);
    for len in [0, 4, 8, 20, 60] {
        assert!(Dictionary::new(&good[..len]).is_none(), "{len}");
    }
    let mut next = random(3);
    let noise: Vec<u8> = (0..4096).map(|_| next() as u8).collect();
    assert!(Dictionary::new(&noise).is_none());
    let magic = [&good[..8], &noise[8..]].concat();
    assert!(Dictionary::new(&magic).is_none());
    let mut long = good.clone();
    long.resize(MAX_DICTIONARY, 0x5a);
    assert!(Dictionary::new(&long).is_some());
    long.push(0x5a);
    assert!(Dictionary::new(&long).is_none());
}
