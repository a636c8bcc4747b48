// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The results as a table and as JSON.

use crate::corpus::Corpus;
use crate::measure::{ClassResult, CodecResult, Times, ALL, FILL_PAGES};
use agentzip_codec::Representation;
use serde_json::{json, Map, Value};
use std::fmt::Write;

/// What the word-run delta has to reach: zstd-3's time over its own, both medians, same pages, like
/// for like: zstd-3 has no checksum of the page, so neither has the delta there. How long a CRC-32C
/// takes is a matter of the host's library, not of the codec; both ratios are printed.
const GOALS: (f64, f64) = (15.0, 20.0);

const ZSTD: &str = "zstd-3";

/// Our codec in [`ClassResult::codecs`], as the module runs it.
const WITH_CHECKSUM: usize = 0;
/// Our codec without the CRC-32C of the page.
const WITHOUT_CHECKSUM: usize = 1;

/// The table.
pub fn text(corpus: &Corpus, classes: &[ClassResult]) -> String {
    let mut out = String::new();
    render(&mut out, corpus, classes).expect("writing to a string");
    out
}

fn render(out: &mut String, corpus: &Corpus, classes: &[ClassResult]) -> std::fmt::Result {
    let backed = corpus.records.iter().filter(|r| r.base.is_some()).count();
    writeln!(
        out,
        "{} pages ({} with a template page, {} fresh) from {}",
        corpus.records.len(),
        backed,
        corpus.records.len() - backed,
        corpus.source.display()
    )?;
    writeln!(
        out,
        "ns per 4 KiB; agentzip chooses the representation and checks the CRC-32C within its time;\n\
         {FILL_PAGES} fill pages were added\n"
    )?;
    writeln!(
        out,
        "{:<11} {:>6}  {:<22} {:>24}   {:>24}  {:>7} {:>7}",
        "pages", "", "codec", "encode median/mean/p99", "decode median/mean/p99", "bytes", "cost"
    )?;
    for class in classes {
        let mut label = format!("{:<11} {:>6}", name(class.representation), class.pages);
        for codec in &class.codecs {
            writeln!(
                out,
                "{label:<18}  {:<22} {:>24}   {:>24}  {:>7.1} {:>7.1}",
                codec.name,
                triple(&codec.encode),
                triple(&codec.decode),
                codec.bytes,
                codec.cost
            )?;
            label.clear();
        }
    }
    writeln!(out)?;
    for class in classes {
        let (encode, decode) = ratios(class, WITHOUT_CHECKSUM);
        let (checked_encode, checked_decode) = ratios(class, WITH_CHECKSUM);
        write!(
            out,
            "{:<11} zstd-3 takes {encode:.1} times its encode time, {decode:.1} times its decode \
             time; {checked_encode:.1} and {checked_decode:.1} times with our checksum in ours",
            name(class.representation)
        )?;
        if class.representation == Representation::Delta {
            let verdict = |ok| if ok { "reached" } else { "MISSED" };
            write!(
                out,
                " (goals, none with a checksum: {} {}, {} {})",
                GOALS.0,
                verdict(encode >= GOALS.0),
                GOALS.1,
                verdict(decode >= GOALS.1)
            )?;
        }
        writeln!(out)?;
    }
    let of_corpus = || {
        let classes = classes.iter();
        classes.filter(|class| class.representation != Representation::Fill)
    };
    let pages: usize = of_corpus().map(|class| class.pages).sum();
    let sum = |n: usize, value: fn(&CodecResult) -> f64| -> f64 {
        let weighted =
            of_corpus().filter_map(|class| Some(value(class.codecs.get(n)?) * class.pages as f64));
        weighted.sum::<f64>() / pages as f64
    };
    writeln!(
        out,
        "all but fill: agentzip {:.1} B, cost {:.1}; zstd-3 {:.1} B, cost {:.1}",
        sum(0, |c| c.bytes),
        sum(0, |c| c.cost),
        sum(2, |c| c.bytes),
        sum(2, |c| c.cost)
    )
}

/// The same numbers for programs.
pub fn json(corpus: &Corpus, classes: &[ClassResult]) -> String {
    let mut representations = Map::new();
    for class in classes {
        let codecs: Map<String, Value> = class
            .codecs
            .iter()
            .map(|codec| (codec.name.to_string(), codec_json(codec)))
            .collect();
        let (encode, decode) = ratios(class, WITHOUT_CHECKSUM);
        let (checked_encode, checked_decode) = ratios(class, WITH_CHECKSUM);
        representations.insert(
            name(class.representation).into(),
            json!({
                "pages": class.pages,
                "codecs": codecs,
                "zstd_encode_over_agentzip": encode,
                "zstd_decode_over_agentzip": decode,
                "zstd_encode_over_agentzip_with_checksum": checked_encode,
                "zstd_decode_over_agentzip_with_checksum": checked_decode,
            }),
        );
    }
    let report = json!({
        "pages": corpus.records.len(),
        "fill_pages_added": FILL_PAGES,
        "template_backed": corpus.records.iter().filter(|r| r.base.is_some()).count(),
        "unit": "ns per 4 KiB page, bytes per page",
        "goals": {"delta_encode": GOALS.0, "delta_decode": GOALS.1},
        "representations": representations,
    });
    format!("{report:#}\n")
}

fn codec_json(codec: &CodecResult) -> Value {
    let times = |t: &Times| json!({"median": t.median, "mean": t.mean, "p99": t.p99});
    json!({
        "encode_ns": times(&codec.encode),
        "decode_ns": times(&codec.decode),
        "bytes": codec.bytes,
        "cost": codec.cost,
    })
}

/// How often our times, with or without checksum, go into those of zstd-3: encode, decode.
fn ratios(class: &ClassResult, ours: usize) -> (f64, f64) {
    let zstd = class.codecs.iter().find(|codec| codec.name == ZSTD);
    match (class.codecs.get(ours), zstd) {
        (Some(ours), Some(zstd)) => (
            zstd.encode.median as f64 / ours.encode.median.max(1) as f64,
            zstd.decode.median as f64 / ours.decode.median.max(1) as f64,
        ),
        _ => (0.0, 0.0),
    }
}

fn triple(times: &Times) -> String {
    format!("{}/{}/{}", times.median, times.mean, times.p99)
}

fn name(representation: Representation) -> &'static str {
    ALL.iter()
        .find(|(kind, _)| *kind == representation)
        .map_or("?", |&(_, name)| name)
}
