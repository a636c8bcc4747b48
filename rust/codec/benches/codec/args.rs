// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The command line.

use std::path::PathBuf;

/// See the documentation of main.rs.
pub struct Args {
    pub cache: PathBuf,
    pub corpus: Option<PathBuf>,
    pub remake: bool,
    pub pages: usize,
    pub rounds: usize,
    pub batch: usize,
    pub json: Option<PathBuf>,
}

pub fn parse(mut words: impl Iterator<Item = String>) -> Result<Args, String> {
    let mut args = Args {
        cache: env!("CARGO_TARGET_TMPDIR").into(),
        corpus: None,
        remake: false,
        pages: usize::MAX,
        rounds: 5,
        batch: 256,
        json: None,
    };
    while let Some(flag) = words.next() {
        let mut value = || words.next().ok_or(format!("{flag} needs a value"));
        match flag.as_str() {
            "--cache" => args.cache = value()?.into(),
            "--corpus" => args.corpus = Some(value()?.into()),
            "--remake" => args.remake = true,
            "--pages" => args.pages = number(&flag, &value()?)?,
            "--rounds" => args.rounds = number(&flag, &value()?)?.clamp(1, 1000),
            "--batch" => args.batch = number(&flag, &value()?)?.max(1),
            // Cargo says so itself.
            "--bench" => {}
            "--json" => args.json = Some(value()?.into()),
            _ => return Err(format!("unknown argument {flag}; see the top of main.rs")),
        }
    }
    Ok(args)
}

fn number(flag: &str, text: &str) -> Result<usize, String> {
    text.parse()
        .map_err(|_| format!("{flag}: {text} is no number"))
}
