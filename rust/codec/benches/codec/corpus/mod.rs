// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The corpus: owned pages of sandboxes, with the template's page of the same index if it has one.
//!
//! File format, little endian: the 8 bytes `AZPAGES1`, a u64 count, then for each page
//!
//! ```text
//! u32  number of the sandbox
//! u32  1 when a template page follows, else 0
//! u64  page index (virtual address / 4096)
//! 4096 bytes of the page
//! 4096 bytes of the template page, if any
//! ```

mod make;

use agentzip_codec::{Page, PAGE_SIZE};
use std::fs;
use std::io::{BufWriter, Read, Write};
use std::path::{Path, PathBuf};

const MAGIC: &[u8; 8] = b"AZPAGES1";

/// Name of the corpus in the cache directory; changes with what it is made of.
const FILE_NAME: &str = "codec-corpus-v1.pages";

/// A page where pages lie.
#[repr(align(4096))]
pub struct Aligned(pub Page);

impl Aligned {
    pub fn new() -> Box<Self> {
        Box::new(Self([0; PAGE_SIZE]))
    }
}

/// An owned page of a sandbox.
pub struct Record {
    pub sandbox: u32,
    pub index: u64,
    pub page: Box<Aligned>,
    pub base: Option<Box<Aligned>>,
}

/// Owned pages, in random but reproducible order.
pub struct Corpus {
    pub source: PathBuf,
    pub records: Vec<Record>,
}

/// The corpus in the cache directory, made if it is not there.
pub fn cached(cache: &Path, remake: bool) -> Result<Corpus, String> {
    let file = cache.join(FILE_NAME);
    if remake || !file.exists() {
        fs::create_dir_all(cache).map_err(|e| format!("create {}: {e}", cache.display()))?;
        let records = make::make(cache)?;
        // Written beside and renamed, so that an interrupted run leaves no half corpus.
        let partial = file.with_extension("partial");
        write(&partial, &records).map_err(|e| format!("write {}: {e}", partial.display()))?;
        fs::rename(&partial, &file).map_err(|e| format!("rename {}: {e}", partial.display()))?;
    }
    Corpus::read(&file)
}

fn write(file: &Path, records: &[Record]) -> std::io::Result<()> {
    let mut out = BufWriter::new(fs::File::create(file)?);
    out.write_all(MAGIC)?;
    out.write_all(&(records.len() as u64).to_le_bytes())?;
    for record in records {
        out.write_all(&record.sandbox.to_le_bytes())?;
        out.write_all(&u32::from(record.base.is_some()).to_le_bytes())?;
        out.write_all(&record.index.to_le_bytes())?;
        out.write_all(&record.page.0)?;
        if let Some(base) = &record.base {
            out.write_all(&base.0)?;
        }
    }
    out.flush()
}

impl Corpus {
    /// Reads a corpus file.
    pub fn read(file: &Path) -> Result<Self, String> {
        let context = |e: std::io::Error| format!("read {}: {e}", file.display());
        let bytes = fs::read(file).map_err(context)?;
        let mut input = &bytes[..];
        let mut magic = [0; 8];
        input.read_exact(&mut magic).map_err(context)?;
        if &magic != MAGIC {
            return Err(format!("{} is no corpus", file.display()));
        }
        let count = take::<8>(&mut input).map(u64::from_le_bytes);
        let mut records = Vec::new();
        for _ in 0..count.map_err(context)? {
            records.push(read_record(&mut input).map_err(context)?);
        }
        shuffle(&mut records);
        Ok(Self {
            source: file.to_owned(),
            records,
        })
    }

    /// Keeps the first `pages` records.
    pub fn truncate(&mut self, pages: usize) {
        self.records.truncate(pages);
    }
}

fn read_record(input: &mut &[u8]) -> std::io::Result<Record> {
    let sandbox = u32::from_le_bytes(take(input)?);
    let has_base = u32::from_le_bytes(take(input)?) != 0;
    let index = u64::from_le_bytes(take(input)?);
    let mut page = || {
        let mut page = Aligned::new();
        input.read_exact(&mut page.0).map(|()| page)
    };
    Ok(Record {
        sandbox,
        index,
        page: page()?,
        base: has_base.then(page).transpose()?,
    })
}

fn take<const N: usize>(input: &mut &[u8]) -> std::io::Result<[u8; N]> {
    let mut bytes = [0; N];
    input.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Fisher-Yates with a fixed seed: any prefix is a fair sample.
fn shuffle<T>(items: &mut [T]) {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    for end in (1..items.len()).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        items.swap(end, (state % (end as u64 + 1)) as usize);
    }
}
