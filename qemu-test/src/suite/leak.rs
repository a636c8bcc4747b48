// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The search for lost memory finds what is lost: the suite ends with one, and one that finds
//! nothing must not pass for good news.

use anyhow::{ensure, Context, Result};

use super::fixture::{host, kmemleak, Ctx};
use super::runner::Test;

/// The tests of this file.
pub const TESTS: &[Test] = &[Test {
    name: "leak.planted_is_found",
    timeout_s: 120,
    run: planted_is_found,
}];

/// What the test module writes into the objects that it loses, as a report shows it.
const PLANTED: &str = "planted by test.";

/// Objects that are planted. A stale copy of an address, on a stack for example, hides its object.
const COUNT: usize = 16;
/// How many of them must be found.
const ENOUGH: usize = COUNT / 2;

fn planted_is_found(_ctx: &mut Ctx) -> Result<()> {
    let count = |report: &str| report.matches(PLANTED).count();
    host::load_testmod(&format!("leak={COUNT}")).context("load the test module")?;
    let found = count(&kmemleak::scan()?);
    println!("# {found} of {COUNT} planted objects found");
    // Freed, they are no longer reported to whoever searches after us.
    host::unload_testmod()?;
    let after = count(&kmemleak::reported()?);
    ensure!(found >= ENOUGH, "{found} of {COUNT} planted objects found");
    ensure!(
        after == 0,
        "{after} objects are reported although they were freed"
    );
    Ok(())
}
