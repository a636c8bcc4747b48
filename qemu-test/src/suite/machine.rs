// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What a machine does that nobody asks its sandboxes about: processors go and come back, memory is taken
//! offline.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};

use super::fixture::memory::{self, Block, Tried};
use super::fixture::module::{Counters, SecondLook};
use super::fixture::probe::Probe;
use super::fixture::puppet::{Puppet, Region};
use super::fixture::{host, Ctx};
use super::runner::Test;
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

/// The tests of this file. Not on the debug kernel, which has little time: its torture does the same.
pub const TESTS: &[Test] = &[
    test!(processors_go_and_come),
    test!(memory_is_taken_offline),
    test!(templates_leave_movable_memory),
];

const PROCESSOR: &str = "/sys/devices/system/cpu/cpu1/online";
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

/// How long the kernel may try to take a block of memory offline.
const LONGEST: Duration = Duration::from_secs(8);

/// Blocks of memory are taken offline and back. Whether one goes depends on what is in it: nothing is lost.
fn memory_is_taken_offline(ctx: &mut Ctx) -> Result<()> {
    /// Blocks that are tried.
    const BLOCKS: usize = 4;
    let mut world = ctx.world(512)?;
    world.store_mixed(1)?;
    let mut outcomes = Vec::new();
    for block in memory::online()?.iter().rev().take(BLOCKS) {
        let tried = block.take_offline(host::patience(LONGEST))?;
        let checked = world.check().context("while memory went");
        if tried == Tried::Went {
            block.bring_back()?;
        }
        checked?;
        outcomes.push(format!("{tried:?}"));
        world.store_mixed(2)?;
    }
    println!("# blocks of memory: {}", outcomes.join(", "));
    ensure!(!outcomes.is_empty(), "no block of memory can be tried");
    world.check()
}

/// A block of memory whose pages must be able to move. Ordinary memory again when this goes, if it can.
struct Movable(Block);

impl Movable {
    /// Makes the first that goes such a block; anonymous memory comes from it from now on.
    fn make() -> Result<Movable> {
        /// Blocks that are tried.
        const BLOCKS: usize = 8;
        for block in memory::online()?.into_iter().rev().take(BLOCKS) {
            if block.take_offline(host::patience(LONGEST))? == Tried::Went {
                block.bring_back_movable()?;
                return Ok(Movable(block));
            }
        }
        bail!("no block of memory goes");
    }

    /// How many pages of a region lie in it.
    fn holds(&self, puppet: &Puppet, region: &Region) -> Result<usize> {
        let block = self.0.frames()?;
        let frames = puppet.frames(region)?;
        Ok(frames
            .iter()
            .flatten()
            .filter(|frame| block.contains(frame))
            .count())
    }
}

impl Drop for Movable {
    fn drop(&mut self) {
        // The block may be offline already, or not go; the next test does not mind.
        if self.0.take_offline(host::patience(LONGEST)).is_ok() {
            let _ = self.0.bring_back();
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
    let outcome = movable.0.take_offline(host::patience(LONGEST))?;
    ensure!(
        outcome == Tried::Went,
        "the block: {outcome:?}; {} pages are held, {} copied; {} of a file are held",
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
