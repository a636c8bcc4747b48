// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What a machine does that nobody asks its sandboxes about: processors go and come back, memory is taken
//! offline.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};

use super::fixture::module::{Counters, SecondLook};
use super::fixture::probe::Probe;
use super::fixture::puppet::{Puppet, Region};
use super::fixture::{host, Ctx};
use super::runner::Test;
use super::sys;
use super::template_file::calls::add_file;
use super::template_file::restored::{sealed_memfd, Restored};

macro_rules! test {
    ($f:ident) => {
        Test {
            name: concat!("machine.", stringify!($f)),
            timeout_s: 120,
            run: $f,
        }
    };
}

/// The tests of this file. The debug kernel has no memory that can be taken offline, and little time.
pub const TESTS: &[Test] = &[
    test!(processors_go_and_come),
    test!(memory_is_taken_offline),
    test!(templates_leave_movable_memory),
];

const PROCESSOR: &str = "/sys/devices/system/cpu/cpu1/online";
const MEMORY: &str = "/sys/devices/system/memory";
/// How long processors go and come.
const TIME: Duration = Duration::from_secs(10);

/// The processor is there again when this goes.
struct Processor;

impl Drop for Processor {
    fn drop(&mut self) {
        // It never went, or is there.
        let _ = fs::write(PROCESSOR, "1");
    }
}

/// Stores, loads and second looks while the processors that they run on come and go.
fn processors_go_and_come(ctx: &mut Ctx) -> Result<()> {
    ensure!(Path::new(PROCESSOR).exists(), "there is one processor only");
    let _second_look = SecondLook::on()?;
    let mut world = ctx.world(128)?;
    world.store_mixed(1)?;
    let churned = Region::new(8, 384);
    world.puppet.map(&churned)?;
    let before = Counters::global()?;
    let _processor = Processor;
    let ms = host::patience(TIME).as_millis() as u64;
    let cgroup = world.sandbox.cgroup.clone();
    world.puppet.begin_churn_reclaiming(&churned, ms, &cgroup)?;
    let end = Instant::now() + host::patience(TIME);
    let mut rounds = 0;
    while Instant::now() < end {
        for online in ["0", "1"] {
            host::write(PROCESSOR, online)?;
            std::thread::sleep(Duration::from_millis(30));
        }
        rounds += 1;
    }
    let checked = world.puppet.end_churn()?;
    let (stores, loads) = (before.grown("stores")?, before.grown("loads")?);
    println!("# {rounds} rounds, {checked} pages checked, {stores} stores, {loads} loads");
    ensure!(
        rounds > 3 && stores > 100 && loads > 100,
        "{rounds} rounds, {stores} stores, {loads} loads"
    );
    world.check()
}

/// Blocks of memory that are in use. Whether they can be taken offline shows when it is tried.
fn blocks() -> Result<Vec<PathBuf>> {
    let mut blocks = Vec::new();
    for entry in fs::read_dir(MEMORY).context("this kernel cannot take memory offline")? {
        let path = entry?.path();
        let state = fs::read_to_string(path.join("state")).unwrap_or_default();
        if state.trim() == "online" {
            blocks.push(path);
        }
    }
    blocks.sort();
    Ok(blocks)
}

/// Asks the kernel to take a block of memory offline: what came of it.
///
/// It tries until it succeeds, finds a page that cannot move at all, or a signal comes, which we send.
fn take_offline(block: &Path) -> Result<&'static str> {
    /// How long it may try.
    const LONGEST: Duration = Duration::from_secs(8);
    sys::default_sigchld();
    let mut child = Command::new("/bin/sh")
        .args(["-c", "echo offline > \"$0\" 2> /dev/null"])
        .arg(block.join("state"))
        .spawn()
        .context("start a shell")?;
    let began = Instant::now();
    let ended = loop {
        if let Some(status) = child.try_wait()? {
            break Some(status);
        }
        if began.elapsed() > host::patience(LONGEST) {
            child.kill()?;
            child.wait()?;
            break None;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    sys::ignore_sigchld();
    Ok(match ended {
        Some(status) if status.success() => WENT,
        Some(_) => "stays",
        None => "interrupted",
    })
}

const WENT: &str = "went";

/// Blocks of memory are taken offline and back. Whether one goes depends on what is in it: nothing is lost.
fn memory_is_taken_offline(ctx: &mut Ctx) -> Result<()> {
    /// Blocks that are tried.
    const BLOCKS: usize = 4;
    let mut world = ctx.world(512)?;
    world.store_mixed(1)?;
    let mut outcomes = Vec::new();
    for block in blocks()?.iter().rev().take(BLOCKS) {
        let state = block.join("state");
        let outcome = take_offline(block)?;
        let checked = world.check().context("while memory went");
        if host::read(&state)? == "offline" {
            host::write(&state, "online")?;
        }
        checked?;
        outcomes.push(outcome);
        world.store_mixed(2)?;
    }
    println!("# blocks of memory: {}", outcomes.join(", "));
    ensure!(!outcomes.is_empty(), "no block of memory can be tried");
    world.check()
}

/// A block of memory whose pages must be able to move. Ordinary memory again when this goes, if it can.
struct Movable {
    block: PathBuf,
    /// Pages of a block.
    pages: u64,
}

impl Movable {
    /// Makes the first that goes such a block; anonymous memory comes from it from now on.
    fn make() -> Result<Movable> {
        /// Blocks that are tried.
        const BLOCKS: usize = 8;
        let bytes = host::read(Path::new(MEMORY).join("block_size_bytes"))?;
        let bytes = u64::from_str_radix(&bytes, 16).context("block_size_bytes")?;
        for block in blocks()?.into_iter().rev().take(BLOCKS) {
            if take_offline(&block)? == WENT {
                host::write(block.join("state"), "online_movable")?;
                let zones = host::read(block.join("valid_zones"))?;
                ensure!(zones.starts_with("Movable"), "it is in zone {zones}");
                let pages = bytes / sys::PAGE_SIZE as u64;
                return Ok(Movable { block, pages });
            }
        }
        bail!("no block of memory goes");
    }

    /// How many pages of a region lie in it.
    fn holds(&self, puppet: &Puppet, region: &Region) -> Result<usize> {
        let number = host::read(self.block.join("phys_index"))?;
        let number = u64::from_str_radix(&number, 16).context("phys_index")?;
        let frames = puppet.frames(region)?;
        let inside = frames
            .iter()
            .flatten()
            .filter(|&&frame| frame / self.pages == number);
        Ok(inside.count())
    }
}

impl Drop for Movable {
    fn drop(&mut self) {
        // The block may be offline already, or not go; the next test does not mind.
        if take_offline(&self.block).is_ok() {
            let _ = host::write(self.block.join("state"), "online");
        }
    }
}

/// Pages of movable memory are copied into templates, not held: such memory can be taken away while
/// everybody uses what was in it.
fn templates_leave_movable_memory(ctx: &mut Ctx) -> Result<()> {
    const PAGES: usize = 1024;
    const FILE_PAGES: usize = 256;
    ctx.swap()?;
    let movable = Movable::make()?;
    let mut template = ctx.template(PAGES)?;
    let inside = movable.holds(&template.holder, &template.region)?;
    ensure!(
        inside * 10 >= PAGES * 9,
        "only {inside} of {PAGES} pages lie in movable memory"
    );
    let file = sealed_memfd(FILE_PAGES)?;
    host::drain_page_batches()?;
    let taken = add_file(ctx, "file", &file)?;
    let added = template.added;
    println!(
        "# {inside} of {PAGES} pages in movable memory; {} copied; {} of {FILE_PAGES} of a file copied",
        added.pages_copied, taken.copied
    );
    let probe = Probe::start(
        ctx,
        &template.name,
        &mut template.family,
        &template.zygote,
        &template.region,
    )?;
    let restored = Restored::start(ctx, "file", 0, FILE_PAGES)?;
    let outcome = take_offline(&movable.block)?;
    ensure!(
        outcome == WENT,
        "the block {outcome}: {} pages are held, {} copied; {} of a file are held",
        added.pages_referenced,
        added.pages_copied,
        taken.referenced
    );
    ensure!(
        added.pages_copied >= inside as u64 && taken.copied * 10 >= FILE_PAGES as u64 * 9,
        "{inside} pages lay in movable memory, {added:?}; file: {taken:?}"
    );
    let left = movable.holds(&template.holder, &template.region)?;
    ensure!(left == 0, "{left} pages lie in memory that went");
    template.holder.check(&template.region)?;
    probe.needs_template(PAGES as u64 * 9 / 10)?;
    probe.check()?;
    restored.needs_template(FILE_PAGES as u64 * 9 / 10)?;
    restored.check()
}
