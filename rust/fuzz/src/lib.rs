// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Fuzz targets: everything that reads what somebody else wrote.
//!
//! Each module is a target: a function of bytes that panics when a rule is broken. `fuzz_targets/` has a
//! program of libFuzzer for each (feature `libfuzzer`), `corpus/` the inputs that it begins with. The
//! tests of this crate run these inputs, without libFuzzer; `cargo xtask fuzz` and `cargo xtask test` run
//! the programs, and so does cargo-fuzz, with a sanitizer if it is on a nightly compiler.
//!
//! Three things are noticed in every target without any sanitizer: memory that is not given back
//! ([`run`]), an allocation that no input should ask for (`heap.rs`), and, where C code reads or writes,
//! bytes beyond the ends of its buffers (`guarded.rs`).

mod guarded;
mod heap;
mod input;

pub mod config;
pub mod decode;
pub mod dictionary;
pub mod plan;
pub mod protocol;
pub mod signature;
pub mod socket;
pub mod template;
pub mod trace;
pub mod uapi;

/// A target: it panics when its input breaks a rule.
pub type Target = fn(&[u8]);

/// All targets, by the names of their programs and corpora.
pub const TARGETS: [(&str, Target); 10] = [
    ("config", config::target),
    ("decode", decode::target),
    ("dictionary", dictionary::target),
    ("plan", plan::target),
    ("protocol", protocol::target),
    ("signature", signature::target),
    ("socket", socket::target),
    ("template", template::target),
    ("trace", trace::target),
    ("uapi", uapi::target),
];

/// Runs an input through a target.
///
/// # Panics
///
/// When the target does, or leaves memory behind three times in a row: what is made once and kept does so
/// once.
pub fn run(target: impl Fn(&[u8]), data: &[u8]) {
    let mut left = 0;
    for _ in 0..3 {
        let before = heap::held();
        target(data);
        left = heap::held() - before;
        if left <= 0 {
            return;
        }
    }
    panic!("each run leaves {left} bytes allocated");
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::{Path, PathBuf};

    /// Most bytes of all corpora together.
    const MOST: usize = 64 << 10;

    fn folder(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
    }

    /// What is in a folder, without endings.
    fn names(name: &str) -> BTreeSet<String> {
        let entries = fs::read_dir(folder(name)).unwrap();
        let stem = |entry: fs::DirEntry| entry.path().file_stem().unwrap().to_owned();
        entries
            .map(|entry| stem(entry.unwrap()).into_string().unwrap())
            .collect()
    }

    #[test]
    fn every_target_has_a_program_and_a_corpus() {
        let targets: BTreeSet<String> = TARGETS.map(|(name, _)| name.to_owned()).into();
        assert_eq!(names("fuzz_targets"), targets);
        assert_eq!(names("corpus"), targets);
    }

    #[test]
    fn corpora_pass() {
        let mut bytes = 0;
        for (name, target) in TARGETS {
            let inputs: Vec<PathBuf> = fs::read_dir(folder("corpus").join(name))
                .unwrap()
                .map(|entry| entry.unwrap().path())
                .collect();
            assert!(!inputs.is_empty(), "{name}");
            for input in inputs {
                println!("{}", input.display());
                let data = fs::read(&input).unwrap();
                bytes += data.len();
                run(target, &data);
            }
        }
        assert!(bytes <= MOST, "{bytes} bytes are in the corpora");
    }

    #[test]
    #[should_panic(expected = "each run leaves 8 bytes allocated")]
    fn a_leak_is_noticed() {
        let lose = |_: &[u8]| std::mem::forget(std::hint::black_box(Box::new(7_u64)));
        run(lose, b"");
    }

    #[test]
    fn what_is_kept_once_is_no_leak() {
        let kept = std::cell::OnceCell::new();
        run(|_| drop(kept.get_or_init(|| vec![7; 100]).clone()), b"");
    }
}
