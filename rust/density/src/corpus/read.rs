// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Reads a scenario. Nothing in the files is trusted.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Mutex;
use std::thread;

use xxhash_rust::xxh3::xxh3_64;

use super::{
    lists_file, manifest_file, pages_file, Error, IndexedPage, Manifest, Pages, Result,
    SandboxPages, Scenario, BLOCK_PAGES, MAGIC, MAX_PAGES, PAGE_SIZE,
};

/// Bytes of a full block, unpacked.
const BLOCK: usize = BLOCK_PAGES * PAGE_SIZE;

/// The manifests of all scenarios in `dir`.
pub(super) fn manifests(dir: &Path) -> Result<Vec<Manifest>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).map_err(Error::io("read", dir))? {
        let entry = entry.map_err(Error::io("read", dir))?;
        let file = manifest_file(&entry.path());
        if !file.is_file() {
            continue;
        }
        let text = fs::read(&file).map_err(Error::io("read", &file))?;
        let manifest: Manifest = serde_json::from_slice(&text)
            .map_err(|error| Error::damaged(&file, error.to_string()))?;
        // `load` joins the name to the folder: it must be one component, this one.
        if entry.file_name().to_str() != Some(manifest.name.as_str()) {
            return Err(Error::damaged(
                &file,
                format!(
                    "it names the scenario \"{}\", which its folder does not",
                    manifest.name
                ),
            ));
        }
        found.push(manifest);
    }
    Ok(found)
}

/// The scenario in the folder `dir`.
pub(super) fn scenario(dir: &Path, manifest: &Manifest) -> Result<Scenario> {
    let file = lists_file(dir);
    let bytes = fs::read(&file).map_err(Error::io("read", &file))?;
    let lists = Lists::parse(&bytes).map_err(|why| Error::damaged(&file, why))?;
    if lists.waits != manifest.waits
        || lists.sandboxes.len() as u64 != u64::from(manifest.sandboxes)
        || lists.pages != manifest.unique_pages
    {
        return Err(Error::damaged(
            &file,
            "its counts are not those of manifest.json",
        ));
    }
    Ok(Scenario {
        name: manifest.name.clone(),
        pages: pages(&pages_file(dir), lists.pages, &lists.blocks)?,
        waits: lists.waits,
        template: lists.template,
        sandboxes: lists.sandboxes,
        manifest: manifest.clone(),
    })
}

/// Content of the file `lists`.
struct Lists {
    /// Count of distinct pages.
    pages: u32,
    waits: Vec<u32>,
    /// Packed bytes of each block.
    blocks: Vec<u32>,
    template: Vec<IndexedPage>,
    sandboxes: Vec<SandboxPages>,
}

impl Lists {
    fn parse(bytes: &[u8]) -> std::result::Result<Lists, &'static str> {
        let (body, sum) = bytes.split_last_chunk::<8>().ok_or(CUT)?;
        let rest = body
            .strip_prefix(&MAGIC)
            .ok_or("its format is another one")?;
        if xxh3_64(body) != u64::from_le_bytes(*sum) {
            return Err("its checksum is wrong");
        }
        let mut input = Input { rest };
        let pages = input.word()?;
        if pages > MAX_PAGES {
            return Err("it has too many pages");
        }
        let waits = input.word()? as usize;
        let sandboxes = input.word()? as usize;
        let waits = input.words(waits)?;
        let blocks = input.words((pages as usize).div_ceil(BLOCK_PAGES))?;
        let template = input.list(pages)?;
        let mut all = Vec::new();
        for _ in 0..sandboxes {
            let mut sandbox = SandboxPages::default();
            for _ in 0..waits.len() {
                sandbox.waits.push(input.list(pages)?);
            }
            // Without waits a sandbox takes no input, and their number would be anything.
            if sandbox.waits.is_empty() {
                return Err("it has no waits");
            }
            all.push(sandbox);
        }
        if !input.rest.is_empty() {
            return Err("it is too long");
        }
        Ok(Lists {
            pages,
            waits,
            blocks,
            template,
            sandboxes: all,
        })
    }
}

/// The file ends too early.
const CUT: &str = "it is cut off";

/// Bytes not yet parsed.
struct Input<'a> {
    rest: &'a [u8],
}

impl Input<'_> {
    fn take<const N: usize>(&mut self) -> std::result::Result<[u8; N], &'static str> {
        let (head, rest) = self.rest.split_first_chunk::<N>().ok_or(CUT)?;
        self.rest = rest;
        Ok(*head)
    }

    fn word(&mut self) -> std::result::Result<u32, &'static str> {
        self.take().map(u32::from_le_bytes)
    }

    fn words(&mut self, count: usize) -> std::result::Result<Vec<u32>, &'static str> {
        if count > self.rest.len() / 4 {
            return Err(CUT);
        }
        (0..count).map(|_| self.word()).collect()
    }

    fn list(&mut self, pages: u32) -> std::result::Result<Vec<IndexedPage>, &'static str> {
        let count = self.word()? as usize;
        if count > self.rest.len() / 12 {
            return Err(CUT);
        }
        let mut list = Vec::with_capacity(count);
        for _ in 0..count {
            let index = u64::from_le_bytes(self.take()?);
            let page = self.word()?;
            if page >= pages {
                return Err("it names a page that does not exist");
            }
            list.push(IndexedPage { index, page });
        }
        if !list.is_sorted_by_key(|entry| entry.index) {
            return Err("a list is not sorted by index");
        }
        Ok(list)
    }
}

/// Unpacks the `count` pages of a file whose blocks have the given packed sizes.
fn pages(path: &Path, count: u32, blocks: &[u32]) -> Result<Pages> {
    let file = File::open(path).map_err(Error::io("open", path))?;
    let have = file.metadata().map_err(Error::io("stat", path))?.len();
    let want: u64 = blocks.iter().map(|size| u64::from(*size)).sum();
    if have != want {
        return Err(Error::damaged(
            path,
            format!("it has {have} bytes instead of {want}"),
        ));
    }
    let mut bytes = vec![0; count as usize * PAGE_SIZE];
    let starts = blocks.iter().scan(0u64, |next, size| {
        let start = *next;
        *next += u64::from(*size);
        Some((start, *size as usize))
    });
    let jobs = Mutex::new(starts.zip(bytes.chunks_mut(BLOCK)));
    let work = || -> Result<()> {
        let mut packed = Vec::new();
        loop {
            // A thread that panicked is reported when it is joined.
            let job = jobs.lock().unwrap_or_else(|e| e.into_inner()).next();
            let Some(((start, size), target)) = job else {
                return Ok(());
            };
            packed.resize(size, 0);
            file.read_exact_at(&mut packed, start)
                .map_err(Error::io("read", path))?;
            let length = zstd::bulk::decompress_to_buffer(&packed, target)
                .map_err(|error| Error::damaged(path, format!("block at {start}: {error}")))?;
            if length != target.len() {
                return Err(Error::damaged(
                    path,
                    format!("the block at {start} is too short"),
                ));
            }
        }
    };
    let threads = thread::available_parallelism().map_or(1, |n| n.get());
    thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        all.into_iter()
            .try_for_each(|thread| thread.join().expect("no panic in a reader"))
    })?;
    Ok(Pages { bytes })
}
