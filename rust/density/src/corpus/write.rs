// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Writes a scenario: pages as they come, each content once, then the lists.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::{xxh3_128, xxh3_64};
use zstd::bulk::Compressor;
use zstd::zstd_safe::CParameter;

use super::{
    lists_file, manifest_file, pages_file, Error, IndexedPage, Manifest, Result, SandboxPages,
    BLOCK_PAGES, MAGIC, MAX_PAGES, PAGE_SIZE,
};

/// zstd's level for the blocks: the file only has to be smaller than the pages.
const LEVEL: i32 = 1;

/// Writes one scenario into a folder of its own.
pub struct ScenarioWriter {
    dir: PathBuf,
    file: File,
    compressor: Compressor<'static>,
    /// Number of each content, by its 128-bit XXH3.
    known: HashMap<u128, u32>,
    /// The block being filled.
    block: Vec<u8>,
    /// Packed bytes of each finished block.
    blocks: Vec<u32>,
}

impl ScenarioWriter {
    /// Starts a scenario in the folder `dir`, which is made if it does not exist.
    ///
    /// # Errors
    ///
    /// When folder or file cannot be made.
    pub fn create(dir: &Path) -> Result<ScenarioWriter> {
        fs::create_dir_all(dir).map_err(Error::io("mkdir", dir))?;
        let path = pages_file(dir);
        let file = File::create(&path).map_err(Error::io("create", &path))?;
        let compressor = Compressor::new(LEVEL)
            .and_then(|mut compressor| {
                compressor.set_parameter(CParameter::ChecksumFlag(true))?;
                Ok(compressor)
            })
            .map_err(Error::io("set up zstd for", &path))?;
        Ok(ScenarioWriter {
            dir: dir.to_path_buf(),
            file,
            compressor,
            known: HashMap::new(),
            block: Vec::with_capacity(BLOCK_PAGES * PAGE_SIZE),
            blocks: Vec::new(),
        })
    }

    /// Adds a content, if it is new, and gives its number.
    ///
    /// # Errors
    ///
    /// When there are too many, or the file cannot be written.
    pub fn add(&mut self, page: &[u8; PAGE_SIZE]) -> Result<u32> {
        let next = self.known.len() as u32;
        let hash = xxh3_128(page);
        if let Some(number) = self.known.get(&hash) {
            return Ok(*number);
        }
        if next == MAX_PAGES {
            return Err(Error::TooLarge {
                path: self.dir.clone(),
            });
        }
        self.known.insert(hash, next);
        self.block.extend_from_slice(page);
        if self.block.len() == BLOCK_PAGES * PAGE_SIZE {
            self.flush()?;
        }
        Ok(next)
    }

    /// Packs and writes the block at hand.
    fn flush(&mut self) -> Result<()> {
        let path = pages_file(&self.dir);
        let packed = self
            .compressor
            .compress(&self.block)
            .map_err(Error::io("pack a block of", &path))?;
        self.file
            .write_all(&packed)
            .map_err(Error::io("write", &path))?;
        // A block is 1 MiB at most, and zstd adds less than that.
        self.blocks.push(packed.len() as u32);
        self.block.clear();
        Ok(())
    }

    /// Writes the lists and the manifest, whose counts are filled in here. Every page number
    /// must come from [`add`](Self::add), every sandbox have as many lists as `manifest` has
    /// waits; the lists are sorted here. The manifest comes last: a scenario without one does not exist.
    ///
    /// # Errors
    ///
    /// When a file cannot be written.
    pub fn finish(
        mut self,
        mut manifest: Manifest,
        mut template: Vec<IndexedPage>,
        mut sandboxes: Vec<SandboxPages>,
    ) -> Result<Manifest> {
        if !self.block.is_empty() {
            self.flush()?;
        }
        template.sort_unstable();
        for list in sandboxes.iter_mut().flat_map(|sandbox| &mut sandbox.waits) {
            list.sort_unstable();
        }
        manifest.unique_pages = self.known.len() as u32;
        manifest.sandboxes = sandboxes.len() as u32;
        manifest.template_pages = template.len() as u64;
        let owned =
            |sandbox: &SandboxPages| sandbox.waits.iter().map(Vec::len).sum::<usize>() as u64;
        manifest.owned_pages = sandboxes.iter().map(owned).sum();

        let path = lists_file(&self.dir);
        let bytes = lists(&manifest, &self.blocks, &template, &sandboxes);
        fs::write(&path, bytes).map_err(Error::io("write", &path))?;
        let path = manifest_file(&self.dir);
        let text = serde_json::to_vec_pretty(&manifest)
            .map_err(|error| Error::io("write", &path)(error.into()))?;
        fs::write(&path, text).map_err(Error::io("write", &path))?;
        Ok(manifest)
    }
}

/// The file `lists`.
fn lists(
    manifest: &Manifest,
    blocks: &[u32],
    template: &[IndexedPage],
    sandboxes: &[SandboxPages],
) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    let words = |bytes: &mut Vec<u8>, words: &[u32]| {
        bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    };
    let counts = [
        manifest.unique_pages,
        manifest.waits.len() as u32,
        sandboxes.len() as u32,
    ];
    words(&mut bytes, &counts);
    words(&mut bytes, &manifest.waits);
    words(&mut bytes, blocks);
    let of_sandboxes = sandboxes.iter().flat_map(|sandbox| &sandbox.waits);
    for list in std::iter::once(template).chain(of_sandboxes.map(Vec::as_slice)) {
        words(&mut bytes, &[list.len() as u32]);
        for entry in list {
            bytes.extend(entry.index.to_le_bytes());
            words(&mut bytes, &[entry.page]);
        }
    }
    let sum = xxh3_64(&bytes);
    bytes.extend(sum.to_le_bytes());
    bytes
}
