// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Pages that are restored ahead of need: which, at whose cost, and against everything that may happen to
//! a process meanwhile.

mod calls;
mod ends;
mod outcomes;
mod races;

use std::time::Duration;

use agentzip_uapi as uapi;
use anyhow::{ensure, Context, Result};

use super::fixture::module::Counters;
use super::fixture::puppet::{Puppet, Region};
use super::fixture::{host, page_out, write_mixed, Ctx, World};
use super::runner::Test;

macro_rules! test {
    ($module:ident::$f:ident) => {
        test!($module::$f, 90)
    };
    ($module:ident::$f:ident, $timeout_s:literal) => {
        Test {
            name: concat!("prefetch.", stringify!($f)),
            timeout_s: $timeout_s,
            run: $module::$f,
        }
    };
}

/// The tests of this folder.
pub const TESTS: &[Test] = &[
    test!(outcomes::restores_what_is_asked),
    test!(outcomes::holes_stay_holes),
    test!(outcomes::page_states),
    test!(outcomes::hits_and_misses),
    test!(outcomes::tested_before_their_time),
    test!(outcomes::without_a_hit_test),
    test!(outcomes::every_process_of_a_sandbox),
    test!(calls::hostile_arguments),
    test!(calls::foreign_processes),
    test!(calls::switched_off),
    test!(ends::too_old),
    test!(ends::full_cgroup),
    test!(ends::payer_removed),
    test!(ends::payer_full),
    test!(ends::agent_waits_again),
    test!(ends::detached),
    test!(ends::process_exits),
    test!(ends::module_unloaded),
    test!(races::each_page_is_decoded_once),
    test!(races::against_changes_of_mappings, 180),
];

/// A sandbox with a process whose fresh region is swapped out.
struct Scene {
    world: World,
    region: Region,
}

impl Scene {
    fn start(ctx: &mut Ctx, pages: usize) -> Result<Scene> {
        let world = ctx.world(16)?;
        let mut region = Region::new(5, pages);
        world.puppet.map(&region)?;
        write_mixed(&world.puppet, &mut region, 3)?;
        let scene = Scene { world, region };
        scene.page_out()?;
        Ok(scene)
    }

    fn puppet(&self) -> &Puppet {
        &self.world.puppet
    }

    fn page_out(&self) -> Result<()> {
        page_out(&self.world.sandbox.cgroup, self.puppet(), &self.region)
    }

    fn counters(&self) -> Result<Counters> {
        self.world.sandbox.counters()
    }

    /// What a request for the process says besides the ranges; it has all the time that it needs.
    fn request(&self) -> uapi::Prefetch {
        uapi::Prefetch {
            cgroup_id: self.world.sandbox.id,
            pid: self.puppet().pid,
            timeout_ms: 60_000,
            hit_window_ms: 1000,
            ..Default::default()
        }
    }

    /// Asks for regions and waits until all pages have come to an end.
    fn restore(&self, ctx: &Ctx, regions: &[&Region]) -> Result<()> {
        let ranges: Vec<_> = regions.iter().map(|region| region.range()).collect();
        let before = self.counters()?;
        let pages = ctx.device().prefetch(&ranges, self.request())?;
        let asked: usize = regions.iter().map(|region| region.pages()).sum();
        ensure!(pages == asked as u64, "{pages} of {asked} pages queued");
        wait_ended(&before, pages)
    }
}

/// Pages that have come to an end since.
fn ended(before: &Counters) -> Result<u64> {
    ["pages", "present", "absent", "dropped"]
        .iter()
        .map(|field| before.grown(&format!("prefetch_{field}")))
        .sum()
}

/// Waits until so many pages have come to an end, and no more.
fn wait_ended(before: &Counters, pages: u64) -> Result<()> {
    let what = format!("{pages} pages should come to an end");
    host::wait_until(&what, Duration::from_secs(30), || {
        Ok(ended(before)? >= pages)
    })
    .with_context(|| format!("{:?} have", ended(before).ok()))?;
    let ended = ended(before)?;
    ensure!(
        ended == pages,
        "{ended} of {pages} pages have come to an end"
    );
    Ok(())
}

/// Demands how much counters have grown.
fn expect_grown(before: &Counters, expected: &[(&str, u64)]) -> Result<()> {
    for (field, expected) in expected {
        let grown = before.grown(field)?;
        ensure!(
            grown == *expected,
            "{field} grew by {grown}, not {expected}"
        );
    }
    Ok(())
}
