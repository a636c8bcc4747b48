// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Hibernation while the store has entries.

use std::path::Path;

use anyhow::{ensure, Context, Result};

use super::fixture::module::{self, Counters};
use super::fixture::{host, Ctx};
use super::runner::Test;

/// The tests of this file. The debug kernel cannot hibernate.
pub const TESTS: &[Test] = &[Test {
    name: "power.hibernation",
    timeout_s: 240,
    run: hibernation,
}];

const POWER: &str = "/sys/power";

/// Writes an image of the machine to the swap device that the store's slots are on, and goes on from that
/// image: all memory, the store and the hooks are what was written and read back.
fn hibernation(ctx: &mut Ctx) -> Result<()> {
    let disk = ctx.swap()?;
    let disk = disk.file_name().context("a swap disk without a name")?;
    let mut world = ctx.world_without_swap(512)?;
    world.store_mixed(1)?;
    let entries = module::entries()?;
    let before = Counters::global()?;

    let power = Path::new(POWER);
    let number = host::read(Path::new("/sys/class/block").join(disk).join("dev"))?;
    host::write(power.join("resume"), &number)?;
    host::write(power.join("disk"), "test_resume")?;
    // Where it ends, and begins again.
    host::write(power.join("state"), "disk").context("hibernate")?;

    // Nothing came back meanwhile: what was taken into the image are entries.
    let loads = before.grown("loads")?;
    let left = module::entries()?;
    ensure!(
        loads < 256 && left > entries - 256,
        "{loads} loads, {left} entries of {entries} left: nothing was out during it"
    );
    world.check()?;
    world.store_mixed(2)?;
    world.check()
}
