// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What a scenario's pages are like at the last wait, and whether they are hard enough.

use std::collections::{HashMap, HashSet};
use std::fmt::Write;
use std::fs;
use std::path::Path;

use agentzip_density::corpus::{IndexedPage, Scenario as Loaded, PAGE_SIZE};
use anyhow::{ensure, Context, Result};
use serde::{Deserialize, Serialize};

use crate::scenario::{Scenario, Start};

/// Bytes of metadata that zswap is charged a page. Its entry in a slab, the slot in its XArray,
/// zsmalloc's handle and the rounding up to a size class come to some 105 B on Linux 7.3.
const ZSWAP_METADATA: usize = 100;
/// zstd's level in zswap.
const ZSWAP_LEVEL: i32 = 3;

// What a scenario of forks must reach, or it would be easier than real sandboxes are.
const LEAST_SANDBOXES: u32 = 16;
const LEAST_TEMPLATE_MIB: f64 = 80.0;
const LEAST_OWNED_MIB: f64 = 40.0;
const MOST_ZSWAP_RATIO: f64 = 4.0;

/// Upper bounds of the classes of changed words in a template-backed page; a last one is above.
const CLASSES: [usize; 5] = [0, 8, 32, 128, 256];

/// Figures of a scenario at its last wait.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Survey {
    /// Name of the scenario.
    name: String,
    /// Number of sandboxes.
    sandboxes: u32,
    /// The template, in MiB.
    template_mib: f64,
    /// What a sandbox owns on average, in MiB.
    owned_mib: f64,
    /// The same of the one that owns least.
    owned_mib_least: f64,
    /// Share of the owned pages that is zero. These count in no figure below but the shares.
    zero: f64,
    /// Share with a template page of the same index.
    template_backed: f64,
    /// Share equal to some page of the template, at whatever index.
    equal_to_template: f64,
    /// Share equal to none of the template, but to a page of another sandbox.
    equal_to_sibling: f64,
    /// Shares of the template-backed pages by the number of 8-byte words that differ from the
    /// closest template page of the same index, in [`CLASSES`].
    changed_words: Vec<f64>,
    /// Mean size of a template-backed page under zstd, in bytes.
    zstd_backed: f64,
    /// The same of the other pages.
    zstd_fresh: f64,
    /// Bytes of the owned pages by what zswap would use for them, its metadata included.
    zswap_ratio: f64,
}

/// Where the figures of the scenario in `dir` are.
fn file(dir: &Path) -> std::path::PathBuf {
    dir.join("survey.json")
}

impl Survey {
    /// Looks at every page that the sandboxes own at the last wait.
    pub fn of(scenario: &Loaded) -> Survey {
        let last: Vec<&[IndexedPage]> = scenario
            .sandboxes
            .iter()
            .filter_map(|sandbox| sandbox.waits.last().map(Vec::as_slice))
            .collect();
        let mut template: HashMap<u64, Vec<u32>> = HashMap::new();
        for entry in &scenario.template {
            template.entry(entry.index).or_default().push(entry.page);
        }
        let in_template: HashSet<u32> = scenario.template.iter().map(|entry| entry.page).collect();
        let owners = owners(&last);
        let sizes = zstd_sizes(scenario, &last);

        let mut count = Count::default();
        for entry in last.iter().copied().flatten() {
            let content = scenario.pages.get(entry.page);
            // The swap core keeps these to itself.
            if content.iter().all(|byte| *byte == 0) {
                count.zero += 1;
                continue;
            }
            let size = sizes[&entry.page];
            count.pages += 1;
            count.zswap_bytes += size + ZSWAP_METADATA;
            if in_template.contains(&entry.page) {
                count.equal_to_template += 1;
            } else if owners[&entry.page] > 1 {
                count.equal_to_sibling += 1;
            }
            match template.get(&entry.index) {
                Some(candidates) => {
                    let changed = candidates
                        .iter()
                        .map(|page| changed_words(content, scenario.pages.get(*page)))
                        .min()
                        .unwrap_or(PAGE_SIZE / 8);
                    let class = CLASSES.iter().position(|bound| changed <= *bound);
                    count.changed[class.unwrap_or(CLASSES.len())] += 1;
                    count.backed_bytes += size;
                }
                None => count.fresh_bytes += size,
            }
        }
        count.survey(scenario, &last)
    }

    /// Keeps the figures beside the pages.
    pub fn save(&self, dir: &Path) -> Result<()> {
        let text = serde_json::to_vec_pretty(self).context("encode the survey")?;
        fs::write(file(dir), text).with_context(|| format!("write {}", file(dir).display()))
    }

    /// The figures kept beside the pages.
    pub fn load(dir: &Path) -> Result<Survey> {
        let text = fs::read(file(dir)).with_context(|| format!("read {}", file(dir).display()))?;
        serde_json::from_slice(&text).with_context(|| format!("parse {}", file(dir).display()))
    }

    /// Fails when forks of a zygote are easier to keep small than those of real agents. With
    /// fewer sandboxes than a real group has nothing is asked: that is for trying things out.
    pub fn check(&self, scenario: &Scenario) -> Result<()> {
        if !matches!(scenario.start, Start::Fork) || self.sandboxes < LEAST_SANDBOXES {
            return Ok(());
        }
        let name = &self.name;
        ensure!(
            self.template_mib >= LEAST_TEMPLATE_MIB,
            "{name}: the zygote has {:.1} MiB of anonymous memory instead of {LEAST_TEMPLATE_MIB}: \
             let it import more of what agents use (qemu-test/workload/corpus_tools.py)",
            self.template_mib
        );
        ensure!(
            self.owned_mib_least >= LEAST_OWNED_MIB,
            "{name}: a sandbox owns only {:.1} MiB instead of {LEAST_OWNED_MIB} at its last wait: \
             let the agents do more in a turn (qemu-test/workload/corpus_sandbox.py)",
            self.owned_mib_least
        );
        ensure!(
            self.zswap_ratio <= MOST_ZSWAP_RATIO,
            "{name}: zswap's ratio with zstd is {:.2}, above {MOST_ZSWAP_RATIO}: the agents' data \
             are easier than real ones (qemu-test/workload/corpus_sandbox.py)",
            self.zswap_ratio
        );
        Ok(())
    }
}

/// In how many sandboxes each content is.
fn owners(last: &[&[IndexedPage]]) -> HashMap<u32, u32> {
    let mut owners = HashMap::new();
    for list in last {
        let distinct: HashSet<u32> = list.iter().map(|entry| entry.page).collect();
        for page in distinct {
            *owners.entry(page).or_insert(0) += 1;
        }
    }
    owners
}

/// The size of each content under zstd; one that does not shrink is kept as it is.
fn zstd_sizes(scenario: &Loaded, last: &[&[IndexedPage]]) -> HashMap<u32, usize> {
    let mut compressor = zstd::bulk::Compressor::new(ZSWAP_LEVEL).expect("a level that zstd has");
    let mut sizes = HashMap::new();
    let mut packed = [0; PAGE_SIZE];
    for entry in last.iter().copied().flatten() {
        sizes.entry(entry.page).or_insert_with(|| {
            compressor
                .compress_to_buffer(scenario.pages.get(entry.page), &mut packed[..])
                .unwrap_or(PAGE_SIZE)
        });
    }
    sizes
}

/// How many 8-byte words differ.
fn changed_words(a: &[u8; PAGE_SIZE], b: &[u8; PAGE_SIZE]) -> usize {
    let pairs = a.chunks_exact(8).zip(b.chunks_exact(8));
    pairs.filter(|(a, b)| a != b).count()
}

/// Sums over the owned pages.
#[derive(Default)]
struct Count {
    zero: usize,
    /// Those that are not zero.
    pages: usize,
    zswap_bytes: usize,
    equal_to_template: usize,
    equal_to_sibling: usize,
    changed: [usize; CLASSES.len() + 1],
    backed_bytes: usize,
    fresh_bytes: usize,
}

impl Count {
    fn survey(&self, scenario: &Loaded, last: &[&[IndexedPage]]) -> Survey {
        let mib = |pages: usize| (pages * PAGE_SIZE) as f64 / f64::from(1 << 20);
        let of = |part: usize, whole: usize| part as f64 / whole.max(1) as f64;
        let all = self.pages + self.zero;
        let backed: usize = self.changed.iter().sum();
        Survey {
            name: scenario.name.clone(),
            sandboxes: last.len() as u32,
            template_mib: mib(scenario.template.len()),
            owned_mib: mib(all) / last.len().max(1) as f64,
            owned_mib_least: mib(last.iter().map(|list| list.len()).min().unwrap_or(0)),
            zero: of(self.zero, all),
            template_backed: of(backed, all),
            equal_to_template: of(self.equal_to_template, all),
            equal_to_sibling: of(self.equal_to_sibling, all),
            changed_words: self.changed.iter().map(|n| of(*n, backed)).collect(),
            zstd_backed: of(self.backed_bytes, backed),
            zstd_fresh: of(self.fresh_bytes, self.pages - backed),
            zswap_ratio: of(self.pages * PAGE_SIZE, self.zswap_bytes),
        }
    }
}

/// The figures of several scenarios, for people.
pub fn table(all: &[Survey]) -> String {
    let mut text = String::new();
    for survey in all {
        let percent = |share: f64| format!("{:.0}%", share * 100.0);
        let changed: Vec<_> = survey
            .changed_words
            .iter()
            .map(|share| percent(*share))
            .collect();
        // Writing to a String does not fail.
        let _ = writeln!(
            text,
            "{}: {} sandboxes, template {:.1} MiB, owned {:.1} MiB (least {:.1}), zero {:.1}%\n  \
             template-backed {}, equal to template {}, to a sibling {}\n  \
             changed words 0/1-8/9-32/33-128/129-256/more: {}\n  \
             zstd-3 {:.0} B backed, {:.0} B fresh; zswap's ratio {:.2}",
            survey.name,
            survey.sandboxes,
            survey.template_mib,
            survey.owned_mib,
            survey.owned_mib_least,
            survey.zero * 100.0,
            percent(survey.template_backed),
            percent(survey.equal_to_template),
            percent(survey.equal_to_sibling),
            changed.join(" "),
            survey.zstd_backed,
            survey.zstd_fresh,
            survey.zswap_ratio
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use agentzip_density::corpus::{Corpus, Manifest, SandboxPages, ScenarioWriter};

    /// A page that zstd makes small, with its own first word.
    fn page(first: u64) -> [u8; PAGE_SIZE] {
        let mut page = [7; PAGE_SIZE];
        page[..8].copy_from_slice(&first.to_le_bytes());
        page
    }

    #[test]
    fn shares() {
        let dir = std::env::temp_dir().join(format!("agentzip-survey.{}", std::process::id()));
        let mut writer = ScenarioWriter::create(&dir.join("x")).unwrap();
        let mut at = |index, content: &[u8; PAGE_SIZE]| IndexedPage {
            index,
            page: writer.add(content).unwrap(),
        };
        // Two pages of one index: the closest counts.
        let template = vec![at(1, &page(1)), at(1, &[9; PAGE_SIZE]), at(2, &page(2))];
        let own = |list| SandboxPages { waits: vec![list] };
        let sandboxes = vec![
            own(vec![
                at(1, &page(100)),
                at(2, &page(2)),
                at(3, &page(300)),
                at(4, &[0; PAGE_SIZE]),
            ]),
            own(vec![
                at(2, &[5; PAGE_SIZE]),
                at(3, &page(1)),
                at(8, &page(300)),
                at(9, &page(900)),
            ]),
        ];
        let manifest = Manifest {
            name: "x".into(),
            sandboxes: 0,
            waits: vec![1],
            seed: 1,
            kernel: String::new(),
            programs: vec![],
            made: 0,
            template_pages: 0,
            owned_pages: 0,
            unique_pages: 0,
        };
        writer.finish(manifest, template, sandboxes).unwrap();
        let survey = Survey::of(&Corpus::open(&dir).unwrap().load("x").unwrap());
        survey.save(&dir).unwrap();
        let survey = Survey::load(&dir).unwrap();
        fs::remove_dir_all(&dir).unwrap();

        assert_eq!(survey.sandboxes, 2);
        assert_eq!(survey.template_mib, 3.0 / 256.0);
        assert_eq!(survey.owned_mib, 4.0 / 256.0);
        assert_eq!(survey.owned_mib_least, 4.0 / 256.0);
        assert_eq!(survey.zero, 1.0 / 8.0);
        assert_eq!(survey.template_backed, 3.0 / 8.0);
        assert_eq!(survey.equal_to_template, 2.0 / 8.0);
        assert_eq!(survey.equal_to_sibling, 2.0 / 8.0);
        let third = 1.0 / 3.0;
        assert_eq!(survey.changed_words, [third, third, 0.0, 0.0, 0.0, third]);
        assert!((8.0..100.0).contains(&survey.zstd_backed));
        let bytes = survey.zstd_backed * 3.0 + survey.zstd_fresh * 4.0 + 700.0;
        assert!((survey.zswap_ratio - 7.0 * 4096.0 / bytes).abs() < 1e-9);
    }

    #[test]
    fn floors() {
        let real = Survey {
            name: "fan-out".into(),
            sandboxes: 16,
            template_mib: 90.0,
            owned_mib: 70.0,
            owned_mib_least: 60.0,
            zero: 0.0,
            template_backed: 0.4,
            equal_to_template: 0.1,
            equal_to_sibling: 0.2,
            changed_words: vec![],
            zstd_backed: 1200.0,
            zstd_fresh: 900.0,
            zswap_ratio: 3.6,
        };
        let forks = Scenario {
            name: "fan-out",
            start: Start::Fork,
        };
        real.check(&forks).unwrap();
        let change = |change: fn(&mut Survey)| {
            let mut survey = real.clone();
            change(&mut survey);
            survey
        };
        let fails = |survey: Survey, word: &str| {
            let error = survey.check(&forks).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        };
        fails(change(|s| s.template_mib = 79.9), "zygote");
        fails(change(|s| s.owned_mib_least = 39.9), "owns only");
        fails(change(|s| s.zswap_ratio = 4.01), "easier");

        // Of a smaller group, or of processes that are no forks, nothing is asked.
        change(|s| (s.sandboxes, s.zswap_ratio) = (15, 9.0))
            .check(&forks)
            .unwrap();
        let scratch = Scenario {
            name: "scratch-node",
            start: Start::Scratch(&["node"]),
        };
        change(|s| s.zswap_ratio = 9.0).check(&scratch).unwrap();
    }
}
