// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Every place in the module that allocates memory fails at least once, wherever it runs: in a call
//! from user space, in reclaim, in the worker, at load. What depends on it is refused or done
//! without, nothing is left over, and every page is what it was.
//!
//! The places are read off the module's file. A place fails when an allocation has its return
//! address on the stack, so it does not matter whose task it is in, and nothing else fails.

mod calls;
mod lifecycle;
mod reclaim;

use std::io;
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};

use super::fixture::fault::Faults;
use super::fixture::module;
use super::fixture::sites::{self, Site};
use super::fixture::Ctx;
use super::inject::is_enomem;
use super::runner::Test;

/// What any kernel can tell: whether somebody has said of every kernel function that the module calls
/// if it allocates.
pub const LISTS: &[Test] = &[Test {
    name: "sites.functions_are_known",
    timeout_s: 60,
    run: functions_are_known,
}];

/// The tests of this file that need the debug kernel.
pub const TESTS: &[Test] = &[Test {
    name: "inject.every_site",
    timeout_s: 900,
    run: every_site,
}];

/// Places that never fail: the function called, a part of the caller's name, what it is that cannot
/// fail. There must be one place for each, and it must not have failed.
const CANNOT_FAIL: &[(&str, &str, &str)] = &[(
    "rust_helper_krealloc_node_align",
    "10MiscDevice4open",
    "a box of 0 bytes: an open file has no state",
)];

/// How long the kernel may take for what it does by itself.
const PATIENCE: Duration = Duration::from_secs(5);

/// The code that stays after loading.
const TEXT: &str = ".text";
/// The code that is gone after loading.
const INIT_TEXT: &str = ".init.text";

/// Which places to try.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Which {
    All,
    /// Those that have not failed yet: for what takes long.
    Left,
}

/// The places, and which of them have failed.
struct Search {
    faults: Faults,
    sites: Vec<Site>,
    hit: Vec<bool>,
}

impl Search {
    fn new() -> Result<Search> {
        let sites = sites::of_module(&module::file())?;
        ensure!(!sites.is_empty(), "the module allocates nothing");
        for site in &sites {
            ensure!([TEXT, INIT_TEXT].contains(&site.section.as_str()), "{site}");
        }
        Ok(Search {
            faults: Faults::prepare()?,
            hit: vec![false; sites.len()],
            sites,
        })
    }

    /// Lets places fail in turn in `attempt`, which returns how many allocations failed.
    fn each(
        &mut self,
        what: &str,
        which: Which,
        mut attempt: impl FnMut(&Faults, &Site) -> Result<u64>,
    ) -> Result<()> {
        let began = std::time::Instant::now();
        let (mut tried, mut count) = (0, 0);
        for (site, hit) in self.sites.iter().zip(&mut self.hit) {
            if *hit && which == Which::Left {
                continue;
            }
            tried += 1;
            let failed = attempt(&self.faults, site)
                .with_context(|| format!("{what} with failures of {site}"))?;
            count += usize::from(failed > 0);
            *hit |= failed > 0;
        }
        println!(
            "@@ inject: {what}: {count} of {tried} places fail, {:.0} s",
            began.elapsed().as_secs_f64()
        );
        Ok(())
    }

    /// The same for a call to the loaded module. The call succeeds, and `undo` undoes it, or fails
    /// with one of `errors`; `undone` finds nothing of it left.
    fn each_call<T>(
        &mut self,
        what: &str,
        which: Which,
        errors: &[i32],
        mut call: impl FnMut() -> io::Result<T>,
        mut undo: impl FnMut(T) -> Result<()>,
        undone: impl Fn() -> Result<()>,
    ) -> Result<()> {
        let text = module::section(TEXT)?;
        self.each(what, which, |faults, site| {
            if site.section != TEXT {
                return Ok(0);
            }
            let failing = faults.at(text + site.offset)?;
            let result = call();
            let failed = failing.failed()?;
            drop(failing);
            match result {
                Ok(value) => undo(value).context("undo")?,
                Err(e) if failed > 0 && is_enomem(&e) => {}
                Err(e) if errors.contains(&e.raw_os_error().unwrap_or(0)) => {}
                Err(e) => return Err(e.into()),
            }
            undone()?;
            Ok(failed)
        })
    }

    /// Demands that all have failed but those that cannot.
    fn finish(self) -> Result<()> {
        let (mut failed, mut missed) = (0, Vec::new());
        let mut excused = [0; CANNOT_FAIL.len()];
        for (site, hit) in self.sites.iter().zip(self.hit) {
            let excuse = CANNOT_FAIL.iter().position(|(callee, function, _)| {
                site.callee == *callee && site.function.contains(function)
            });
            match (excuse, hit) {
                (None, true) => failed += 1,
                (None, false) => missed.push(site.to_string()),
                (Some(i), false) => excused[i] += 1,
                (Some(i), true) => bail!("{site} failed, although it is {}", CANNOT_FAIL[i].2),
            }
        }
        ensure!(
            missed.is_empty(),
            "{} of {} places never failed: {}",
            missed.len(),
            self.sites.len(),
            missed.join("; ")
        );
        for (count, excuse) in excused.into_iter().zip(CANNOT_FAIL) {
            ensure!(count == 1, "{count} places are like {excuse:?}");
        }
        println!(
            "@@ inject: {failed} of {} places have failed, {} cannot",
            self.sites.len(),
            CANNOT_FAIL.len()
        );
        Ok(())
    }
}

fn functions_are_known(_: &mut Ctx) -> Result<()> {
    let sites = sites::of_module(&module::file())?;
    ensure!(!sites.is_empty(), "the module allocates nothing");
    Ok(())
}

fn every_site(ctx: &mut Ctx) -> Result<()> {
    let mut search = Search::new()?;
    calls::templates_and_sandboxes(ctx, &mut search)?;
    reclaim::stores(ctx, &mut search)?;
    reclaim::worker(ctx, &mut search)?;
    calls::files(ctx, &mut search)?;
    calls::dictionaries(ctx, &mut search)?;
    calls::recording(ctx, &mut search)?;
    calls::prefetching(ctx, &mut search)?;
    lifecycle::arming(ctx, &mut search)?;
    lifecycle::loading(ctx, &mut search)?;
    search.finish()
}
