// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `agentzip dict` on a fake machine.

mod common;

use std::rc::Rc;

use agentzip_codec::host::Dictionary;
use agentzip_ctl::commands::dictionary::{list, remove, show, train, Request};
use agentzip_ctl::Context;
use common::{at, contains, machine, message, State, Trees};

const PAGE: usize = 4096;

/// xorshift64.
fn random(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state >> 16
    }
}

/// Noise, of pieces that many pages have; only a dictionary makes it smaller.
fn pieces(pages: usize) -> Vec<Box<[u8; PAGE]>> {
    const PIECE: usize = 1024;
    let mut next = random(1);
    let pool: Vec<u8> = (0..40 * PIECE).map(|_| next() as u8).collect();
    let page = |_| {
        let page: Vec<u8> = (0..PAGE / PIECE)
            .flat_map(|_| {
                let at = next() as usize % 40 * PIECE;
                pool[at..at + PIECE].to_vec()
            })
            .collect();
        Box::new(*page.first_chunk().unwrap())
    };
    (0..pages).map(page).collect()
}

/// Noise that has nothing in common.
fn noise(pages: usize) -> Vec<Box<[u8; PAGE]>> {
    let mut next = random(2);
    let page = |_| Box::new(std::array::from_fn(|_| next() as u8));
    (0..pages).map(page).collect()
}

/// A machine with a sandbox whose group has stored these pages.
fn with_samples(samples: Vec<Box<[u8; PAGE]>>) -> (Trees, Rc<State>, Context, u64) {
    let (trees, state, context) = machine();
    let id = trees.cgroup("sb", "");
    trees.sandbox(id, true, 0);
    *state.samples.borrow_mut() = samples;
    (trees, state, context, id)
}

#[test]
fn a_dictionary_that_pays_is_loaded() {
    let (_trees, state, context, id) = with_samples(pieces(260));
    let trained = train(&context, &at("sb"), &Request::default()).unwrap();
    assert_eq!((trained.samples, trained.held_out), (260, 52));
    let best = trained.best.unwrap();
    assert_eq!(trained.candidates, [best]);
    assert!(best.size <= 64 << 10 && best.cost > best.size);
    assert!(best.with < trained.without / 10);
    let saved = (trained.without - best.with) * 260 / 52;
    assert_eq!(best.gain, saved as i64 - best.cost as i64);
    assert_eq!(trained.number, Some(3));
    contains(
        &trained.to_string(),
        &[
            "260 samples",
            "tried on 52 pages",
            "dictionary 3 of",
            "loaded",
        ],
    );
    let calls = state.calls();
    assert_eq!(calls[0], format!("dictionary_samples {id} 600"));
    assert_eq!(calls.len(), 4, "{calls:?}");
    assert_eq!(calls[3], format!("dictionary_add {id}"));
    let content = state.dictionary.borrow().clone();
    assert_eq!(content.len() as u64, best.size);
    assert!(Dictionary::new(&content).is_some());
}

#[test]
fn a_dry_run_loads_nothing() {
    let (_trees, state, context, _) = with_samples(pieces(260));
    let request = Request {
        size: Some(50_000),
        dry_run: true,
    };
    let trained = train(&context, &at("sb"), &request).unwrap();
    assert!(trained.best.is_some_and(|best| best.size <= 50_000));
    contains(&trained.to_string(), &["pays", "not loaded (--dry-run)"]);
    assert!(!state.calls().iter().any(|call| call.contains("add")));
}

#[test]
fn a_dictionary_that_does_not_pay_is_not_loaded() {
    let (_trees, state, context, _) = with_samples(noise(200));
    let trained = train(&context, &at("sb"), &Request::default()).unwrap();
    assert_eq!((trained.best, trained.number), (None, None));
    assert!(trained.candidates.iter().all(|tried| tried.gain < 0));
    contains(&trained.to_string(), &["does not pay: nothing loaded"]);
    assert!(!state.calls().iter().any(|call| call.contains("add")));
}

#[test]
fn few_samples() {
    let (_trees, _state, context, _) = with_samples(pieces(40));
    let trained = train(&context, &at("sb"), &Request::default()).unwrap();
    assert!(trained.candidates.is_empty());
    contains(
        &trained.to_string(),
        &[
            "40 samples",
            "too few for a dictionary of 64.0 KiB: nothing loaded",
        ],
    );
    let request = |size| Request {
        size: Some(size),
        dry_run: false,
    };
    let error = message(train(&context, &at("sb"), &request(64 << 10)));
    contains(&error, &["/sb", "128.0 KiB of samples", "at most 16.0 KiB"]);
    for size in [0, 255, (1 << 20) + 1] {
        let error = message(train(&context, &at("sb"), &request(size)));
        contains(&error, &["/sb", "256 B to 1.0 MiB"]);
    }
}

#[test]
fn nothing_is_stored() {
    let (_trees, _state, context, _) = with_samples(Vec::new());
    let trained = train(&context, &at("sb"), &Request::default()).unwrap();
    contains(&trained.to_string(), &["0 samples", "nothing loaded"]);
}

#[test]
fn refusals() {
    let (_trees, state, context, id) = with_samples(pieces(260));
    for (errno, parts) in [
        (libc::ENOENT, ["not a sandbox", "agentzip sandbox list"]),
        (libc::EPERM, ["run as root", "dict train"]),
    ] {
        state.errno.set(errno);
        let error = message(train(&context, &at("sb"), &Request::default()));
        contains(&error, &parts);
        contains(&error, &["dict train", &format!("/sb (id {id})")]);
    }
    state.errno.set(libc::ENOENT);
    let error = message(remove(&context, &at("sb")));
    contains(&error, &["dict rm /sb", "no current dictionary"]);
    let error = message(remove(&context, &at("id:7777")));
    contains(&error, &["dict rm id 7777", "not a sandbox"]);
}

#[test]
fn remove_tells_what_is_left() {
    let (_trees, state, context, id) = with_samples(Vec::new());
    let retired = remove(&context, &at("sb")).unwrap();
    assert_eq!(state.calls(), [format!("dictionary_retire {id}")]);
    assert_eq!(
        retired.to_string(),
        format!("group of /sb (id {id}): dictionary 3 retired; it goes with 40 payloads\n")
    );
}

#[test]
fn groups_with_dictionaries() {
    let (trees, _state, context, id) = with_samples(Vec::new());
    let other = trees.cgroup("other", "");
    trees.sandbox(other, true, 0);
    for id in [id, other] {
        trees.write(&format!("sysfs/sandboxes/{id}/pages_dict"), "30\n");
        trees.write(&format!("sysfs/sandboxes/{id}/bytes_dict"), "9000\n");
    }
    let without = trees.cgroup("without", "");
    trees.sandbox(without, true, 0);
    for (file, text) in [("group", "none\n"), ("group_dictionaries", "0\n")] {
        trees.write(&format!("sysfs/sandboxes/{without}/{file}"), text);
    }
    let groups = list(&context).unwrap();
    assert_eq!(groups.0.len(), 1);
    let group = &groups.0[0];
    assert_eq!((group.dictionaries, group.users), (2, 40));
    assert_eq!((group.pages, group.payload_bytes), (60, 18_000));
    contains(&groups.to_string(), &["base", "293.0 KiB", "60"]);
    assert_eq!(show(&context, &at("sb")).unwrap().0[0], *group);
    assert_eq!(show(&context, &at("without")).unwrap().0[0].dictionaries, 0);
    let error = message(show(&context, &at("id:7777")));
    contains(&error, &["id 7777", "not a sandbox"]);
}

/// Samples that zstd's trainer can make nothing of: it may refuse them or what it makes does not pay.
#[test]
fn hostile_samples() {
    let page = |byte: &dyn Fn(usize) -> u8| Box::new(std::array::from_fn(byte));
    // They begin as a dictionary of zstd's does.
    let magic = [0x37, 0xa4, 0x30, 0xec];
    let sets: [(&str, Vec<Box<[u8; PAGE]>>); 3] = [
        ("zeros", vec![page(&|_| 0); 200]),
        ("two bytes", (0..200u8).map(|n| page(&|_| n & 1)).collect()),
        (
            "its magic number",
            noise(200)
                .into_iter()
                .map(|mut page| {
                    page[..4].copy_from_slice(&magic);
                    page
                })
                .collect(),
        ),
    ];
    for (what, samples) in sets {
        let (_trees, state, context, _) = with_samples(samples);
        match train(&context, &at("sb"), &Request::default()) {
            Ok(trained) => assert_eq!(trained.number, None, "{what}"),
            Err(error) => contains(
                &error.to_string(),
                &["zstd makes no dictionary of 160 pages"],
            ),
        }
        let loaded = state.calls().iter().any(|call| call.contains("add"));
        assert!(!loaded, "{what}");
    }
}
