// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What a machine does that nobody asks its sandboxes about: processors go and come back, memory is taken
//! offline.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};

use super::fixture::memory::{self, Tried};
use super::fixture::module::{Counters, SecondLook};
use super::fixture::puppet::Region;
use super::fixture::{host, Ctx};
use super::runner::Test;

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

/// Blocks of memory are taken offline and back. Whether one goes depends on what is in it: nothing is lost.
fn memory_is_taken_offline(ctx: &mut Ctx) -> Result<()> {
    /// How long the kernel may try.
    const LONGEST: Duration = Duration::from_secs(8);
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
