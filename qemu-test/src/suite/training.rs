// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `agentzip dict train` with pages that a group has stored: what pays is loaded, what does not is not,
//! and the group may go meanwhile.

use std::time::Duration;

use anyhow::{ensure, Result};

use super::dictionary::World;
use super::fixture::controller::{controller, run, Running};
use super::fixture::module;
use super::fixture::page::{Kind, Spec};
use super::fixture::{fault, host, Ctx};
use super::runner::Test;

macro_rules! test {
    ($f:ident) => {
        Test {
            name: concat!("training.", stringify!($f)),
            timeout_s: 180,
            run: $f,
        }
    };
}

/// The tests of this file.
pub const TESTS: &[Test] = &[
    test!(what_pays_is_loaded),
    test!(hostile_samples),
    test!(group_goes_meanwhile),
];

/// Arguments of the training of a sandbox's group.
fn training(id: &str) -> [&str; 6] {
    ["dict", "train", "--sandbox", id, "--size", "16K"]
}

/// So many pages that a dictionary pays; the debug kernel, which would take minutes for them, has fewer:
/// there none does.
fn what_pays_is_loaded(ctx: &mut Ctx) -> Result<()> {
    const PAGES: usize = 3584;
    const TOO_FEW: usize = 256;
    let pages = if fault::available() { TOO_FEW } else { PAGES };
    let mut world = World::with_pages(ctx, pages)?;
    world.store_as(0..pages, |page| Spec::new(Kind::Text, page as u32))?;
    let id = format!("id:{}", world.sandbox.id);
    let said = run(&training(&id))?;
    println!("# {said}");
    if pages == TOO_FEW {
        ensure!(said.contains("does not pay: nothing loaded"), "{said}");
        ensure!(world.number("group_dictionaries")? == 0, "{said}");
        return world.check();
    }
    ensure!(said.contains(" loaded: "), "{said}");
    ensure!(world.number("group_dictionaries")? == 1, "{said}");
    let before = world.number("arena_bytes")?;
    world.store_as(0..PAGES, |page| {
        Spec::new(Kind::Text, (PAGES + page) as u32)
    })?;
    let (pages, now) = (world.number("pages_dict")?, world.number("arena_bytes")?);
    ensure!(
        pages > PAGES as u64 / 2 && now < before,
        "{pages} of {PAGES} pages with it, {now} bytes instead of {before}"
    );
    world.check()
}

/// Pages of which the trainer can make nothing: equal ones, noise, and some that begin like a dictionary.
fn hostile_samples(ctx: &mut Ctx) -> Result<()> {
    const PAGES: usize = 256;
    let kinds: [fn(usize) -> Spec; 3] = [
        |_| Spec::new(Kind::Heap, 7),
        |page| Spec::new(Kind::Random, page as u32),
        |page| Spec::new(Kind::Heap, 7).edited(200, page as u32),
    ];
    let mut world = World::with_pages(ctx, PAGES)?;
    let id = format!("id:{}", world.sandbox.id);
    for (number, kind) in kinds.iter().enumerate() {
        // Noise goes to the swap device; the pages before it are gone, too.
        let stored = world.store_as(0..PAGES, kind);
        ensure!(stored.is_ok() || number == 1, "{stored:?}");
        match controller(&["dict", "train", "--sandbox", &id])? {
            Ok(said) => ensure!(said.contains("nothing loaded"), "{number}: {said}"),
            Err(said) => ensure!(said.contains("dict"), "{number}: {said}"),
        }
        ensure!(world.number("group_dictionaries")? == 0, "{number}: loaded");
        world.check()?;
    }
    Ok(())
}

/// All sandboxes of the group end while the controller reads their pages and trains.
fn group_goes_meanwhile(ctx: &mut Ctx) -> Result<()> {
    const PAGES: usize = 512;
    let mut world = World::with_pages(ctx, PAGES)?;
    world.store_as(0..PAGES, |page| Spec::new(Kind::Text, page as u32))?;
    let id = format!("id:{}", world.sandbox.id);
    let mut trainer = Running::start(&training(&id))?;
    let began = || trainer.has_open("/dev/agentzip");
    host::wait_until("the training should begin", Duration::from_secs(30), began)?;
    let World {
        puppet, sandbox, ..
    } = world;
    puppet.kill()?;
    sandbox.cgroup.remove()?;
    ensure!(
        trainer.is_running()?,
        "the training was over before the group went"
    );
    match trainer.end()? {
        // It was done when the sandbox was forgotten; with its pages gone there was little to train with.
        Ok(said) => println!("# {said}"),
        Err(said) => {
            println!("# {said}");
            ensure!(
                said.contains("not a sandbox") || said.contains("samples"),
                "{said}"
            );
        }
    }
    module::wait_entries(0)?;
    // The worker comes by once a second.
    let gone = || {
        let dictionaries = module::value("stats/memory_dictionaries")?;
        Ok(module::list("sandboxes")?.is_empty() && dictionaries == 0)
    };
    let what = "sandbox and dictionaries should be gone";
    host::wait_until(what, Duration::from_secs(10), gone)
}
