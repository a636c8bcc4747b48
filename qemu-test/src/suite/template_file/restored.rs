// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Files with pages that are known, and processes whose pages are near those.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use anyhow::{ensure, Context, Result};
use rustix::fs::{fcntl_add_seals, memfd_create, MemfdFlags, SealFlags};

use super::super::fixture::module::Counters;
use super::super::fixture::page::{Kind, Spec};
use super::super::fixture::puppet::{Family, Puppet, Region};
use super::super::fixture::{page_out, Ctx, Sandbox};
use super::super::sys::{PAGE_SIZE, PAGE_WORDS};
use super::calls::{range, set_ranges};

/// All three seals that a page needs to be kept by reference.
pub const SEALED: SealFlags = SealFlags::WRITE
    .union(SealFlags::SHRINK)
    .union(SealFlags::GROW);

/// What page `i` of a file of these tests holds.
pub fn original(i: usize) -> Spec {
    Spec::new(Kind::Heap, i as u32)
}

/// Writes page `i` of a file.
pub fn write_page(file: &File, i: usize, spec: Spec) -> Result<()> {
    let mut page = [0; PAGE_WORDS];
    spec.render(&mut page);
    let bytes: Vec<u8> = page.iter().flat_map(|word| word.to_ne_bytes()).collect();
    Ok(file.write_all_at(&bytes, (i * PAGE_SIZE) as u64)?)
}

/// Fills a file with the pages of these tests.
pub fn fill(file: &File, pages: usize) -> Result<()> {
    (0..pages).try_for_each(|i| write_page(file, i, original(i)))
}

/// A memfd with the pages of these tests, which can be sealed.
pub fn memfd(pages: usize) -> Result<File> {
    let flags = MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC;
    let file = File::from(memfd_create("agentzip-suite", flags).context("memfd_create")?);
    fill(&file, pages)?;
    Ok(file)
}

/// A memfd that nobody can change any more.
pub fn sealed_memfd(pages: usize) -> Result<File> {
    let file = memfd(pages)?;
    fcntl_add_seals(&file, SEALED).context("seal")?;
    Ok(file)
}

/// A file on the guest's disk, with its path.
pub fn disk_file(pages: usize) -> Result<(String, File)> {
    let path = "/tmp/agentzip-suite-template".to_owned();
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(&path)
        .with_context(|| format!("create {path}"))?;
    fill(&file, pages)?;
    Ok((path, file))
}

/// Where other processes find an open file of ours.
pub fn path_of(file: &impl AsRawFd) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd())
}

/// A process in a sandbox whose pages are near those of a file.
pub struct Restored {
    /// The sandbox.
    pub sandbox: Sandbox,
    _family: Family,
    /// The process.
    pub puppet: Puppet,
    /// Its memory.
    pub region: Region,
}

impl Restored {
    /// Anonymous memory of `pages` pages, near those of the template from `first` on.
    pub fn start(ctx: &Ctx, template: &str, first: usize, pages: usize) -> Result<Restored> {
        let sandbox = ctx.sandbox(&format!("box-{template}"), template)?;
        let (family, puppet) = Family::start()?;
        sandbox.cgroup.enter(puppet.pid)?;
        let mut region = Region::new(5, pages);
        puppet.map(&region)?;
        set_ranges(ctx, sandbox.id, &[range(&region, first)]).context("ranges")?;
        write_near(&puppet, &mut region, first, 0)?;
        let restored = Restored {
            sandbox,
            _family: family,
            puppet,
            region,
        };
        restored.page_out()?;
        Ok(restored)
    }

    /// Pages the sandbox out; all of the region must go.
    pub fn page_out(&self) -> Result<()> {
        page_out(&self.sandbox.cgroup, &self.puppet, &self.region)
    }

    /// Demands that this many entries are encoded against the template.
    pub fn needs_template(&self, pages: u64) -> Result<()> {
        needs_template(&self.sandbox, pages)
    }

    /// Demands that every page comes back as it was written.
    pub fn check(&self) -> Result<()> {
        self.puppet.check(&self.region)?;
        let errors = self.sandbox.counters()?.get("load_errors")?;
        ensure!(errors == 0, "{errors} load errors");
        Ok(())
    }
}

/// Demands that this many entries of a sandbox are encoded against the template.
pub fn needs_template(sandbox: &Sandbox, pages: u64) -> Result<()> {
    let counters = sandbox.counters()?;
    let found = counters.get("pages_ref")? + counters.sum("pages_delta");
    ensure!(
        found >= pages,
        "{found} pages use the template, not {pages}"
    );
    Ok(())
}

/// Page `i` of a restored: equal to its page of the file, or with a few changed words.
fn near(page: usize, i: usize, round: u32) -> Spec {
    let edits = if i % 4 == 0 { 0 } else { 3 };
    original(page).edited(edits, i as u32 + round * 5000)
}

/// Writes pages near those of the file from `first` on to a whole region.
pub fn write_near(puppet: &Puppet, region: &mut Region, first: usize, round: u32) -> Result<()> {
    puppet.write(region, |i| Some(near(first + i, i, round)))
}

/// Bytes of template pages that live only because the module holds them.
pub fn template_bytes() -> Result<u64> {
    Counters::global()?.get("memory_template_pages")
}
