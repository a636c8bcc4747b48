// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The format of a corpus: what is written is read back, and damage is an error.

use std::fs;
use std::path::{Path, PathBuf};

use agentzip_density::corpus::{
    Corpus, Error, IndexedPage, Manifest, SandboxPages, ScenarioWriter, BLOCK_PAGES, MAGIC,
    PAGE_SIZE,
};
use xxhash_rust::xxh3::xxh3_64;

/// A folder that is removed in the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("agentzip-{name}.{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn join(&self, path: &str) -> PathBuf {
        self.0.join(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Page `n`: different for each, and neither constant nor random.
fn page(n: u32) -> [u8; PAGE_SIZE] {
    let mut page = [0; PAGE_SIZE];
    for (at, word) in page.chunks_exact_mut(4).enumerate() {
        word.copy_from_slice(&(n * 7 + at as u32 % 50).to_le_bytes());
    }
    page
}

fn manifest(name: &str, waits: &[u32]) -> Manifest {
    Manifest {
        name: name.into(),
        sandboxes: 0,
        waits: waits.to_vec(),
        seed: 9,
        kernel: "7.3".into(),
        programs: vec![("python3".into(), "3.13".into())],
        made: 1,
        template_pages: 0,
        owned_pages: 0,
        unique_pages: 0,
    }
}

/// Writes a scenario with more than one block: its template, then what its sandboxes own.
fn write(dir: &Path) -> (Manifest, Vec<IndexedPage>, Vec<SandboxPages>) {
    let mut writer = ScenarioWriter::create(&dir.join("small")).unwrap();
    let mut list = |first: u64, numbers: std::ops::Range<u32>| -> Vec<IndexedPage> {
        (first..)
            .zip(numbers)
            .map(|(index, n)| IndexedPage {
                index,
                page: writer.add(&page(n)).unwrap(),
            })
            .collect()
    };
    let blocks = BLOCK_PAGES as u32;
    let template = list(0x7f00_0000_0000, 0..blocks + 3);
    let sandboxes = vec![
        SandboxPages {
            waits: vec![list(5, 0..9), list(6, blocks..2 * blocks + 1)],
        },
        SandboxPages {
            waits: vec![vec![], list(1 << 51, 1000..1001)],
        },
    ];
    let made = manifest("small", &[2, 11]);
    let manifest = writer
        .finish(made, template.clone(), sandboxes.clone())
        .unwrap();
    (manifest, template, sandboxes)
}

/// The error of loading the scenario, as text.
fn error(dir: &Path) -> String {
    match Corpus::open(dir).and_then(|corpus| corpus.load("small")) {
        Ok(_) => panic!("a damaged corpus was loaded"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn what_is_written_is_read() {
    let folder = Folder::new("corpus-read");
    let (manifest, template, sandboxes) = write(&folder.0);
    assert_eq!(manifest.unique_pages, 2 * BLOCK_PAGES as u32 + 2);
    assert_eq!(manifest.template_pages, template.len() as u64);
    assert_eq!(manifest.owned_pages, 9 + BLOCK_PAGES as u64 + 1 + 1);
    assert_eq!(manifest.sandboxes, 2);

    // Neither a file nor a folder without a manifest is a scenario.
    fs::write(folder.join("note"), "x").unwrap();
    fs::create_dir(folder.join("unfinished")).unwrap();
    let corpus = Corpus::open(&folder.0).unwrap();
    assert_eq!(corpus.scenarios(), [manifest]);
    let loaded = corpus.load("small").unwrap();
    assert_eq!(loaded.name, "small");
    assert_eq!(loaded.waits, [2, 11]);
    assert_eq!(loaded.template, template);
    assert_eq!(loaded.sandboxes, sandboxes);
    assert_eq!(loaded.pages.len(), 2 * BLOCK_PAGES as u32 + 2);
    for (n, entry) in (0..).zip(&loaded.template) {
        assert_eq!(loaded.pages.get(entry.page), &page(n));
    }
    let last = loaded.sandboxes[1].waits[1][0];
    assert_eq!(loaded.pages.get(last.page), &page(1000));
}

#[test]
fn lists_are_sorted() {
    let folder = Folder::new("corpus-sorted");
    let mut writer = ScenarioWriter::create(&folder.join("small")).unwrap();
    let number = writer.add(&page(1)).unwrap();
    let at = |index| IndexedPage {
        index,
        page: number,
    };
    let sandboxes = vec![SandboxPages {
        waits: vec![vec![at(9), at(3)]],
    }];
    writer
        .finish(manifest("small", &[1]), vec![at(8), at(2)], sandboxes)
        .unwrap();
    let loaded = Corpus::open(&folder.0).unwrap().load("small").unwrap();
    assert_eq!(loaded.template, [at(2), at(8)]);
    assert_eq!(loaded.sandboxes[0].waits[0], [at(3), at(9)]);
}

#[test]
fn unknown_scenario() {
    let folder = Folder::new("corpus-unknown");
    write(&folder.0);
    let corpus = Corpus::open(&folder.0).unwrap();
    assert!(matches!(
        corpus.load("large"),
        Err(Error::Unknown { name, .. }) if name == "large"
    ));
    assert!(Corpus::open(&folder.join("nowhere")).is_err());
}

/// Every byte of `lists` and some of `pages` changed, and both cut off anywhere.
#[test]
fn damage_is_found() {
    let folder = Folder::new("corpus-damage");
    write(&folder.0);
    for name in ["small/lists", "small/pages"] {
        let path = folder.join(name);
        let whole = fs::read(&path).unwrap();
        let step = whole.len() / 97 + 1;
        for at in (0..whole.len()).step_by(step).chain([whole.len() - 1]) {
            let mut changed = whole.clone();
            changed[at] ^= 0x21;
            fs::write(&path, &changed).unwrap();
            assert!(error(&folder.0).contains("damaged"), "{name} at {at}");
            fs::write(&path, &whole[..at]).unwrap();
            assert!(error(&folder.0).contains("damaged"), "{name} cut at {at}");
        }
        fs::write(&path, &whole).unwrap();
        Corpus::open(&folder.0).unwrap().load("small").unwrap();
    }
}

/// Lists whose checksum is right but whose content is not.
#[test]
fn hostile_lists() {
    let folder = Folder::new("corpus-hostile");
    write(&folder.0);
    let try_words = |words: &[u32]| {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        let sum = xxh3_64(&bytes);
        bytes.extend(sum.to_le_bytes());
        fs::write(folder.join("small/lists"), bytes).unwrap();
        error(&folder.0)
    };
    let huge = u32::MAX;
    // Pages, waits, sandboxes; then waits, blocks, lists.
    assert!(try_words(&[]).contains("cut off"));
    assert!(try_words(&[huge, 0, 0]).contains("too many pages"));
    assert!(try_words(&[0, huge, 0]).contains("cut off"));
    assert!(try_words(&[0, 0, huge, 0]).contains("no waits"));
    assert!(try_words(&[0, 1, huge, 2, 0]).contains("cut off"));
    assert!(try_words(&[0, 1, 0, 2, huge]).contains("cut off"));
    assert!(try_words(&[0, 1, 0, 2, 1, 5, 0, 0]).contains("does not exist"));
    assert!(try_words(&[0, 1, 0, 2, 0, 0]).contains("too long"));
    let unsorted = [1, 1, 0, 2, 1, 2, 9, 0, 0, 8, 0, 0];
    assert!(try_words(&unsorted).contains("not sorted"));
    // In itself right, but not what the manifest says.
    assert!(try_words(&[0, 1, 0, 2, 0]).contains("manifest.json"));
}

#[test]
fn hostile_manifests() {
    let folder = Folder::new("corpus-manifest");
    write(&folder.0);
    let path = folder.join("small/manifest.json");
    let text = fs::read_to_string(&path).unwrap();
    for changed in ["{", &text.replace("\"small\"", "\"../small\"")] {
        fs::write(&path, changed).unwrap();
        assert!(error(&folder.0).contains("damaged"), "{changed}");
    }
}
