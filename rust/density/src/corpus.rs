// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A corpus: the pages that the processes of each scenario owned at several of their waits.
//!
//! ```no_run
//! use agentzip_density::corpus::Corpus;
//!
//! let corpus = Corpus::open("/path/to/corpus".as_ref())?;
//! for manifest in corpus.scenarios() {
//!     let scenario = corpus.load(&manifest.name)?;
//!     for sandbox in &scenario.sandboxes {
//!         for owned in &sandbox.waits[0] {
//!             let _content: &[u8; 4096] = scenario.pages.get(owned.page);
//!         }
//!     }
//! }
//! # Ok::<(), agentzip_density::corpus::Error>(())
//! ```
//!
//! # On disk
//!
//! A corpus is a folder with one folder for each scenario, which holds three files:
//!
//! - `manifest.json`: a [`Manifest`];
//! - `pages`: the distinct pages, in the order of their numbers, in blocks of
//!   [`BLOCK_PAGES`] (the last one may be shorter), each one a zstd frame with a checksum;
//! - `lists`: which page was at which index. Little-endian; the magic [`MAGIC`], then in
//!   32-bit words the counts of distinct pages, waits and sandboxes, the numbers of the
//!   waits and the size of each block in `pages`; then the lists, the template's first,
//!   then by sandbox and wait, each a 32-bit count and as many pairs of a 64-bit index and
//!   a 32-bit page number; then XXH3 (64 bits) of all that.
//!
//! The reader trusts none of them: what is damaged is an [`Error`], never a panic.

mod error;
mod read;
mod write;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub use error::{Error, Result};
pub use write::ScenarioWriter;

/// Bytes of a page.
pub const PAGE_SIZE: usize = 4096;
/// Pages of a block in the file `pages`.
pub const BLOCK_PAGES: usize = 256;
/// Most distinct pages of a scenario: 8 GiB, since a scenario is loaded whole.
pub const MAX_PAGES: u32 = 2 << 20;
/// First bytes of the file `lists`. The digit is the version of the format.
pub const MAGIC: [u8; 8] = *b"AZCORP1\n";

/// What is known of a scenario without loading it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Name of the scenario and of its folder.
    pub name: String,
    /// Number of sandboxes.
    pub sandboxes: u32,
    /// The waits at which the sandboxes were dumped, counted from 1, rising.
    pub waits: Vec<u32>,
    /// Seed of the workload.
    pub seed: u64,
    /// Release of the kernel that ran the processes.
    pub kernel: String,
    /// Versions of the programs that ran: (name, version).
    pub programs: Vec<(String, String)>,
    /// When it was made, in seconds since 1970 (UTC).
    pub made: u64,
    /// Pages of the template.
    pub template_pages: u64,
    /// Owned pages in all lists of the sandboxes together.
    pub owned_pages: u64,
    /// Distinct pages.
    pub unique_pages: u32,
}

/// A page at an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct IndexedPage {
    /// The page's index as reclaim sees it (`folio->index`): virtual address >> 12 where the
    /// memory was mapped. A process can own several pages with one index.
    pub index: u64,
    /// Number of the content in [`Pages`].
    pub page: u32,
}

/// The pages that one sandbox owned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SandboxPages {
    /// Owned pages at each of [`Scenario::waits`], sorted by index.
    pub waits: Vec<Vec<IndexedPage>>,
}

/// The distinct pages of a scenario, in memory.
pub struct Pages {
    /// Page after page.
    bytes: Vec<u8>,
}

impl Pages {
    /// The content of a page.
    ///
    /// # Panics
    ///
    /// If there is no page of that number. Every number in the lists of the same
    /// [`Scenario`] exists.
    pub fn get(&self, page: u32) -> &[u8; PAGE_SIZE] {
        self.bytes[page as usize * PAGE_SIZE..]
            .first_chunk()
            .expect("whole pages only")
    }

    /// How many there are; their numbers are below.
    pub fn len(&self) -> u32 {
        // At most MAX_PAGES.
        (self.bytes.len() / PAGE_SIZE) as u32
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

/// A scenario, loaded.
pub struct Scenario {
    /// Its name.
    pub name: String,
    /// The waits at which the sandboxes were dumped, counted from 1, rising.
    pub waits: Vec<u32>,
    /// Pages of the template, sorted by index.
    pub template: Vec<IndexedPage>,
    /// One for each sandbox.
    pub sandboxes: Vec<SandboxPages>,
    /// The contents.
    pub pages: Pages,
    /// What else is known.
    pub manifest: Manifest,
}

/// A folder of scenarios.
pub struct Corpus {
    dir: PathBuf,
    scenarios: Vec<Manifest>,
}

impl Corpus {
    /// Opens the corpus in `dir` and reads the manifests of its scenarios; folders without
    /// one are ignored.
    ///
    /// # Errors
    ///
    /// When the folder or a manifest cannot be read.
    pub fn open(dir: &Path) -> Result<Corpus> {
        let mut scenarios = read::manifests(dir)?;
        scenarios.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(Corpus {
            dir: dir.to_path_buf(),
            scenarios,
        })
    }

    /// The scenarios in it, by name.
    pub fn scenarios(&self) -> &[Manifest] {
        &self.scenarios
    }

    /// Loads a scenario whole into memory, with as many threads as there are processors.
    ///
    /// # Errors
    ///
    /// When there is no such scenario, or a file of it cannot be read or is damaged.
    pub fn load(&self, name: &str) -> Result<Scenario> {
        let manifest = self
            .scenarios
            .iter()
            .find(|manifest| manifest.name == name)
            .ok_or_else(|| Error::Unknown {
                dir: self.dir.clone(),
                name: name.to_owned(),
            })?;
        read::scenario(&self.dir.join(name), manifest)
    }
}

/// Where the manifest of the scenario in `dir` is.
fn manifest_file(dir: &Path) -> PathBuf {
    dir.join("manifest.json")
}

/// Where the lists of the scenario in `dir` are.
fn lists_file(dir: &Path) -> PathBuf {
    dir.join("lists")
}

/// Where the pages of the scenario in `dir` are.
fn pages_file(dir: &Path) -> PathBuf {
    dir.join("pages")
}
