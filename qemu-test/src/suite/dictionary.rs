// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Dictionaries of groups: pages come back that were stored with one, it stays for as long as they need
//! it, and what is no dictionary is refused.

use std::ops::Range;
use std::time::Duration;

use agentzip_codec::golden;
use agentzip_uapi as uapi;
use agentzip_uapi::Phase;
use anyhow::{ensure, Context, Result};

use super::fixture::module::{self, expect_errno};
use super::fixture::page::{Kind, Rng, Spec};
use super::fixture::puppet::{Puppet, Region};
use super::fixture::{host, page_out, Ctx, Sandbox, Template};
use super::runner::Test;
use super::sys;

macro_rules! test {
    ($f:ident) => {
        Test {
            name: concat!("dictionary.", stringify!($f)),
            timeout_s: 120,
            run: $f,
        }
    };
}

/// The tests of this file.
pub const TESTS: &[Test] = &[
    test!(pages_come_back),
    test!(renewed_with_a_new_one),
    test!(reference_pages_get_one),
    test!(how_well_it_serves),
    test!(retired_while_in_use),
    test!(all_numbers_taken),
    test!(goes_with_its_last_sandbox),
    test!(hostile_contents),
    test!(hostile_arguments),
    test!(samples),
];

/// Pages of the sandbox.
const PAGES: usize = 256;

/// Least payload of samples.
const LEAST: u32 = 600;

/// Bytes of a page.
const PAGE: usize = 4096;

/// The second look is on, which uses dictionaries, until this goes.
struct SecondLook;

impl SecondLook {
    fn on() -> Result<SecondLook> {
        module::set_second_look(true).context("switch the second look on")?;
        Ok(SecondLook)
    }
}

impl Drop for SecondLook {
    fn drop(&mut self) {
        // Without the module there is nothing to switch off.
        let _ = module::set_second_look(false);
    }
}

/// A sandbox with a process, nothing of which is stored yet.
pub struct World {
    _look: SecondLook,
    _template: Template,
    /// The sandbox.
    pub sandbox: Sandbox,
    /// Its process.
    pub puppet: Puppet,
    /// Its pages.
    pub region: Region,
}

/// A page that no other resembles and that zstd makes smaller.
fn fresh(page: usize, round: usize) -> Spec {
    Spec::new(Kind::Heap, (5_000_000 + 10_000 * round + page) as u32)
}

/// A dictionary that zstd takes.
pub fn dictionary() -> Vec<u8> {
    let mut page = [0; PAGE];
    golden::dictionary(&mut page);
    page.to_vec()
}

/// A dictionary that has these pages in it.
pub fn dictionary_of(pages: impl Iterator<Item = Spec>) -> Vec<u8> {
    let mut content = dictionary();
    for spec in pages {
        let mut page = [0; sys::PAGE_WORDS];
        spec.render(&mut page);
        content.extend(page.iter().flat_map(|word| word.to_le_bytes()));
    }
    content
}

impl World {
    fn new(ctx: &mut Ctx) -> Result<World> {
        Self::with_pages(ctx, PAGES)
    }

    /// One whose process has so many pages.
    pub fn with_pages(ctx: &mut Ctx, pages: usize) -> Result<World> {
        let look = SecondLook::on()?;
        ctx.swap()?;
        let mut template = ctx.template(16)?;
        let sandbox = ctx.sandbox("sb", &template.name)?;
        let puppet = template.family.fork(&template.zygote)?;
        sandbox.cgroup.enter(puppet.pid)?;
        let region = Region::new(5, pages);
        puppet.map(&region)?;
        Ok(World {
            _look: look,
            _template: template,
            sandbox,
            puppet,
            region,
        })
    }

    /// Writes new content to some pages, takes them out, and waits for the second look.
    fn store(&mut self, pages: Range<usize>, round: usize) -> Result<()> {
        self.store_as(pages, |page| fresh(page, round))
    }

    /// The same with these contents.
    pub fn store_as(&mut self, pages: Range<usize>, content: impl Fn(usize) -> Spec) -> Result<()> {
        let spec = |page| pages.contains(&page).then(|| content(page));
        self.puppet.write(&mut self.region, spec)?;
        page_out(&self.sandbox.cgroup, &self.puppet, &self.region)?;
        let entries = self.number("entries")?;
        ensure!(
            entries >= self.region.pages() as u64,
            "{entries} entries after {} pages went out",
            self.region.pages()
        );
        let id = self.sandbox.id;
        let looked = || Ok(module::value(&format!("sandboxes/{id}/provisional"))? == 0);
        host::wait_until(
            "the second look should be done",
            Duration::from_secs(30),
            looked,
        )
    }

    /// Tells what the agent does.
    fn tell(&self, phase: Phase) -> Result<()> {
        let file = module::sysfs(&format!("sandboxes/{}/phase", self.sandbox.id));
        host::write(file, phase.name())
    }

    /// Checks all pages.
    pub fn check(&self) -> Result<()> {
        self.puppet.check(&self.region)
    }

    /// One of the sandbox's counters.
    pub fn number(&self, field: &str) -> Result<u64> {
        self.sandbox.counters()?.get(field)
    }

    fn add(&self, ctx: &Ctx, content: &[u8]) -> std::io::Result<u32> {
        add(ctx, self.sandbox.id, content)
    }
}

/// Waits until the group of a sandbox has so many dictionaries.
fn wait_dictionaries(id: u64, count: u64) -> Result<()> {
    let there = || Ok(module::value(&format!("sandboxes/{id}/group_dictionaries"))? == count);
    let what = format!("the group should have {count} dictionaries");
    host::wait_until(&what, Duration::from_secs(10), there)
}

/// Makes this the dictionary of a sandbox's group. Returns its number.
pub fn add(ctx: &Ctx, id: u64, content: &[u8]) -> std::io::Result<u32> {
    let mut arg = uapi::DictionaryAdd {
        cgroup_id: id,
        content: content.as_ptr() as u64,
        length: content.len() as u32,
        number: 0,
    };
    sys::ioctl(ctx.device().fd(), uapi::DICTIONARY_ADD, &mut arg)?;
    Ok(arg.number)
}

/// Retires the dictionary of a sandbox's group. Returns its number.
pub fn retire(ctx: &Ctx, id: u64) -> std::io::Result<u32> {
    let mut arg = uapi::DictionaryRetire {
        cgroup_id: id,
        ..Default::default()
    };
    sys::ioctl(ctx.device().fd(), uapi::DICTIONARY_RETIRE, &mut arg)?;
    Ok(arg.number)
}

fn pages_come_back(ctx: &mut Ctx) -> Result<()> {
    let mut world = World::new(ctx)?;
    world.add(ctx, &dictionary()).context("add")?;
    let counters = world.sandbox.counters()?;
    let bytes = counters.get("group_dictionary_bytes")?;
    ensure!(
        counters.get("group_dictionaries")? == 1 && bytes > PAGE as u64,
        "a group with a dictionary has {bytes} bytes of them"
    );
    let all = module::value("stats/memory_dictionaries")?;
    ensure!(all == bytes, "memory_dictionaries is {all}, not {bytes}");
    world.store(0..PAGES, 0)?;
    let (pages, users) = (
        world.number("pages_dict")?,
        world.number("group_dictionary_users")?,
    );
    ensure!(
        pages >= PAGES as u64 / 16 && users >= pages,
        "{pages} pages of {PAGES} with the dictionary, which has {users} users"
    );
    for _ in 0..2 {
        world.check()?;
        page_out(&world.sandbox.cgroup, &world.puppet, &world.region)?;
    }
    // Stored again, by and by.
    for round in 1..4 {
        world.store(0..PAGES / round, round)?;
        world.check()?;
    }
    let errors = world.number("load_errors")?;
    ensure!(errors == 0, "{errors} load errors");
    Ok(())
}

/// A retired dictionary serves the pages that need it, and its number is given back with the last.
/// What was stored before there was a dictionary is encoded with it, while the agent waits.
fn renewed_with_a_new_one(ctx: &mut Ctx) -> Result<()> {
    const KNOWN: usize = 8;
    let mut world = World::new(ctx)?;
    world.store(0..PAGES, 0)?;
    let before = world.sandbox.counters()?;
    ensure!(
        before.get("pages_zstd")? > 0 && before.get("pages_dict")? == 0,
        "no page is compressed by itself"
    );
    world.tell(Phase::Running)?;
    world
        .add(ctx, &dictionary_of((0..KNOWN).map(|page| fresh(page, 0))))
        .context("add")?;
    // Two rounds of housekeeping.
    std::thread::sleep(host::patience(Duration::from_secs(2)));
    let pages = world.number("pages_dict")?;
    ensure!(
        pages == 0,
        "{pages} pages with the dictionary while the agent works"
    );
    world.tell(Phase::Waiting)?;
    let renewed = || Ok(world.number("pages_dict")? >= KNOWN as u64);
    host::wait_until("pages are renewed", Duration::from_secs(10), renewed)?;
    world.check()?;
    // It comes to an end: nothing is tried twice.
    let busy = || -> Result<u64> { world.number("second_look_ns") };
    let at_rest = || {
        let then = busy()?;
        std::thread::sleep(host::patience(Duration::from_secs(2)));
        Ok(busy()? == then)
    };
    host::wait_until("the second look rests", Duration::from_secs(10), at_rest)?;
    let after = world.sandbox.counters()?;
    for counters in [&before, &after] {
        let (entries, pages) = (counters.get("entries")?, counters.sum("pages_"));
        ensure!(entries == pages, "{entries} entries but {pages} pages");
    }
    let (pages, users) = (
        after.get("pages_dict")?,
        after.get("group_dictionary_users")?,
    );
    ensure!(
        users >= pages,
        "{pages} pages with the dictionary, which has {users} users"
    );
    ensure!(
        after.sum("bytes_") < before.sum("bytes_"),
        "the dictionary saves nothing"
    );
    page_out(&world.sandbox.cgroup, &world.puppet, &world.region)?;
    world.check()?;
    let errors = world.number("load_errors")?;
    ensure!(errors == 0, "{errors} load errors");
    Ok(())
}

/// The mean of what was stored at first stays, that of the last pages follows them.
fn how_well_it_serves(ctx: &mut Ctx) -> Result<()> {
    /// Of which half or more resemble no other page: more than it takes for a mean.
    const ROUNDS: usize = 3;
    let mut world = World::new(ctx)?;
    world.add(ctx, &dictionary()).context("add")?;
    let means = |world: &World| -> Result<(u64, u64)> {
        let first = world.number("group_dictionary_first")?;
        Ok((first, world.number("group_dictionary_recent")?))
    };
    ensure!(means(&world)? == (0, 0), "means of nothing");
    let text = |page, round| Spec::new(Kind::Text, (page + PAGES * round) as u32);
    for round in 0..ROUNDS {
        world.store_as(0..PAGES, |page| text(page, round))?;
    }
    let (first, recent) = means(&world)?;
    ensure!(
        0 < first && first < PAGE as u64 && recent > 0,
        "means of {first} and {recent} bytes"
    );
    // With noise in them.
    for round in ROUNDS..2 * ROUNDS {
        world.store_as(0..PAGES, |page| {
            text(page, round).edited(150, (page + PAGES * round) as u32)
        })?;
    }
    let (then, now) = means(&world)?;
    println!("# {first} and {recent} bytes, {now} of other pages");
    ensure!(then == first, "the first mean was {first}, is {then}");
    ensure!(
        now > first,
        "pages with noise have a mean of {now}, {first} without"
    );
    retire(ctx, world.sandbox.id).context("retire")?;
    ensure!(means(&world)? == (0, 0), "means without a dictionary");
    world.check()
}

fn reference_pages_get_one(ctx: &mut Ctx) -> Result<()> {
    // As many pages as zstd finds again in a dictionary.
    const KNOWN: usize = 32;
    const TWICE: usize = 2 * KNOWN;
    let mut world = World::new(ctx)?;
    // Each of the second so many resembles one of the first, which becomes a reference page.
    world.store_as(0..PAGES, |page| match page {
        KNOWN..TWICE => fresh(page - KNOWN, 0).edited(4, page as u32),
        _ => fresh(page, 0),
    })?;
    let (promoted, pages) = (world.number("promoted")?, world.number("pages_dict")?);
    ensure!(
        promoted >= KNOWN as u64 / 2 && pages == 0,
        "{promoted} reference pages, {pages} pages with a dictionary"
    );
    world
        .add(ctx, &dictionary_of((0..KNOWN).map(|page| fresh(page, 0))))
        .context("add")?;
    // Payloads that need it and are not those of entries are those of reference pages. One in five of
    // these is zstd by itself: the others resemble the template's pages, too.
    let of_references = || -> Result<u64> {
        let counters = world.sandbox.counters()?;
        let users = counters.get("group_dictionary_users")?;
        Ok(users.saturating_sub(counters.get("pages_dict")?))
    };
    let renewed = || Ok(of_references()? >= 2);
    host::wait_until("reference pages get it", Duration::from_secs(10), renewed)
        .with_context(|| format!("{:?} have it", of_references().ok()))?;
    world.check()?;
    page_out(&world.sandbox.cgroup, &world.puppet, &world.region)?;
    world.check()?;
    let errors = world.number("load_errors")?;
    ensure!(errors == 0, "{errors} load errors");
    Ok(())
}

fn retired_while_in_use(ctx: &mut Ctx) -> Result<()> {
    let mut world = World::new(ctx)?;
    let id = world.sandbox.id;
    let number = world.add(ctx, &dictionary()).context("add")?;
    world.store(0..PAGES, 0)?;
    ensure!(world.number("pages_dict")? > 0, "nothing needs it");
    ensure!(retire(ctx, id)? == number, "another one was retired");
    expect_errno("retire again", retire(ctx, id), &[libc::ENOENT])?;
    let users = world.number("group_dictionary_users")?;
    ensure!(users == 0, "no current dictionary has {users} users");
    world.check()?;
    page_out(&world.sandbox.cgroup, &world.puppet, &world.region)?;
    wait_dictionaries(id, 1)?;
    let other = world.add(ctx, &dictionary()).context("add another")?;
    ensure!(other != number, "two dictionaries have number {number}");
    world.check()?;
    // What is stored again needs the other one, or a reference page that needs the first.
    world.store(0..PAGES, 1)?;
    world.check()?;
    retire(ctx, id)?;
    let World {
        puppet, sandbox, ..
    } = world;
    puppet.kill()?;
    module::wait_entries(0)?;
    let gone = || Ok(sandbox.counters()?.get("group_dictionary_bytes")? == 0);
    host::wait_until("dictionaries should go", Duration::from_secs(10), gone)?;
    let all = module::value("stats/memory_dictionaries")?;
    ensure!(all == 0, "{all} bytes of dictionaries are left");
    let again = add(ctx, id, &dictionary()).context("add once more")?;
    ensure!(again == 0, "number {again} without any other");
    Ok(())
}

/// Dictionaries that reference pages need: those are not renewed with the next one.
fn all_numbers_taken(ctx: &mut Ctx) -> Result<()> {
    const MOST: usize = 8;
    const PART: usize = PAGES / MOST;
    let mut world = World::new(ctx)?;
    world.store(0..PAGES, MOST)?;
    for round in 0..MOST {
        world.add(ctx, &dictionary()).context("add")?;
        // Each page twice.
        world.store_as(PART * round..PART * (round + 1), |page| {
            fresh(page / 2, round)
        })?;
        let users = world.number("group_dictionary_users")?;
        ensure!(users > 0, "nothing needs dictionary {round}");
    }
    let ninth = world.add(ctx, &dictionary());
    expect_errno("a ninth dictionary", ninth, &[libc::ENOSPC])?;
    let current = world.number("group_dictionary_users")?;
    ensure!(current > 0, "the refused one retired the current one");
    world.check()?;
    let World {
        puppet, sandbox, ..
    } = world;
    puppet.kill()?;
    module::wait_entries(0)?;
    wait_dictionaries(sandbox.id, 1)?;
    add(ctx, sandbox.id, &dictionary()).context("add when they are gone")?;
    Ok(())
}

fn goes_with_its_last_sandbox(ctx: &mut Ctx) -> Result<()> {
    let mut world = World::new(ctx)?;
    world.add(ctx, &dictionary()).context("add")?;
    world.store(0..PAGES, 0)?;
    let World {
        puppet, sandbox, ..
    } = world;
    puppet.kill()?;
    ctx.device().detach(sandbox.id)?;
    let gone = || Ok(module::value("stats/memory_dictionaries")? == 0);
    host::wait_until(
        "the dictionary should go with the sandbox",
        Duration::from_secs(10),
        gone,
    )
}

/// Contents of every kind: zstd takes or refuses them, and pages come back with what it takes.
fn hostile_contents(ctx: &mut Ctx) -> Result<()> {
    let mut world = World::new(ctx)?;
    world.store(0..PAGES, 1000)?;
    let good = dictionary();
    let mut rng = Rng::new(7);
    let mut noise = vec![0; 64 << 10];
    noise.fill_with(|| rng.next() as u8);
    expect_errno("noise", world.add(ctx, &noise), &[libc::EINVAL])?;
    expect_errno("zeros", world.add(ctx, &[0; PAGE]), &[libc::EINVAL])?;
    noise[..8].copy_from_slice(&good[..8]);
    expect_errno(
        "noise after the magic",
        world.add(ctx, &noise),
        &[libc::EINVAL],
    )?;
    let mut taken = 0;
    for round in 0..200 {
        let mut bad = good.clone();
        // In the entropy tables, for the most part.
        let span = if round % 4 == 0 { bad.len() } else { 128 };
        for _ in 0..1 + rng.next() % 3 {
            bad[rng.next() as usize % span] = rng.next() as u8;
        }
        match world.add(ctx, &bad) {
            Ok(_) => taken += 1,
            // Those before are still being replaced by each other.
            Err(error) if error.raw_os_error() == Some(libc::ENOSPC) => {
                let room = || Ok(world.number("group_dictionaries")? < 8);
                host::wait_until("a number is free", Duration::from_secs(20), room)?;
            }
            refused => expect_errno("damaged", refused, &[libc::EINVAL])?,
        }
        if round % 50 == 0 {
            world.store(0..PAGES / 8, round)?;
            world.check()?;
        }
    }
    ensure!(taken > 0, "none of the damaged dictionaries is one");
    let errors = world.number("load_errors")?;
    ensure!(errors == 0, "{errors} load errors");
    Ok(())
}

fn hostile_arguments(ctx: &mut Ctx) -> Result<()> {
    let world = World::new(ctx)?;
    let id = world.sandbox.id;
    let good = dictionary();
    expect_errno("no sandbox", add(ctx, id + 1, &good), &[libc::ENOENT])?;
    expect_errno("no sandbox", retire(ctx, 0), &[libc::ENOENT])?;
    expect_errno("none there", retire(ctx, id), &[libc::ENOENT])?;
    for (what, content, length, errno) in [
        ("nothing", good.as_ptr() as u64, 0, libc::EINVAL),
        (
            "too short",
            good.as_ptr() as u64,
            uapi::MIN_DICTIONARY - 1,
            libc::EINVAL,
        ),
        (
            "too long",
            good.as_ptr() as u64,
            uapi::MAX_DICTIONARY + 1,
            libc::EINVAL,
        ),
        (
            "longest number",
            good.as_ptr() as u64,
            u32::MAX,
            libc::EINVAL,
        ),
        ("null", 0, uapi::MAX_DICTIONARY, libc::EFAULT),
        (
            "kernel address",
            1 << 63,
            uapi::MIN_DICTIONARY,
            libc::EFAULT,
        ),
        (
            "end of memory",
            u64::MAX - 300,
            uapi::MIN_DICTIONARY,
            libc::EFAULT,
        ),
    ] {
        let mut arg = uapi::DictionaryAdd {
            cgroup_id: id,
            content,
            length,
            number: 0,
        };
        let result = sys::ioctl(ctx.device().fd(), uapi::DICTIONARY_ADD, &mut arg);
        expect_errno(what, result, &[errno])?;
    }
    let mut arg = uapi::DictionaryRetire {
        cgroup_id: id,
        reserved: 1,
        ..Default::default()
    };
    let result = sys::ioctl(ctx.device().fd(), uapi::DICTIONARY_RETIRE, &mut arg);
    expect_errno("reserved", result, &[libc::EINVAL])?;
    let count = world.number("group_dictionaries")?;
    ensure!(count == 0, "{count} dictionaries came of it");
    Ok(())
}

/// Asks for samples; returns the pages and the cursor to go on with.
pub fn sample(
    ctx: &Ctx,
    id: u64,
    capacity: usize,
    cursor: u64,
) -> std::io::Result<(Vec<[u8; PAGE]>, u64)> {
    let mut pages = vec![[0; PAGE]; capacity];
    let mut arg = uapi::DictionarySamples {
        cgroup_id: id,
        buffer: pages.as_mut_ptr() as u64,
        capacity: capacity as u32,
        least: LEAST,
        cursor,
        ..Default::default()
    };
    sys::ioctl(ctx.device().fd(), uapi::DICTIONARY_SAMPLES, &mut arg)?;
    pages.truncate(arg.pages as usize);
    Ok((pages, arg.cursor))
}

/// Every page with a long payload is among the samples, once, whatever fits in a call.
fn samples(ctx: &mut Ctx) -> Result<()> {
    let mut world = World::new(ctx)?;
    let id = world.sandbox.id;
    world.store(0..PAGES, 0)?;
    let mut wanted: Vec<Vec<u8>> = (0..PAGES)
        .map(|page| {
            let mut words = [0; PAGE / 8];
            fresh(page, 0).render(&mut words);
            words.iter().flat_map(|word| word.to_le_bytes()).collect()
        })
        .collect();
    wanted.sort();
    for capacity in [1, 7, 100, 1024] {
        let mut found = Vec::new();
        let mut cursor = 0;
        while cursor != uapi::SAMPLES_END {
            let (pages, next) = sample(ctx, id, capacity, cursor).context("samples")?;
            ensure!(pages.len() <= capacity, "more pages than there is room for");
            found.extend(pages.into_iter().map(Vec::from));
            cursor = next;
        }
        let all = found.len();
        // The process has other pages, too.
        found.retain(|page| wanted.binary_search(page).is_ok());
        found.sort();
        ensure!(
            found == wanted,
            "{} of {PAGES} pages among {all}, {capacity} at a time",
            found.len()
        );
    }
    for (what, buffer, capacity, reserved, errno) in [
        ("no room", 0, 0, 0, libc::EINVAL),
        ("too much room", 0, uapi::MAX_SAMPLES + 1, 0, libc::EINVAL),
        ("reserved", 0, 1, 1, libc::EINVAL),
        ("null", 0, 16, 0, libc::EFAULT),
        ("kernel address", 1 << 63, 16, 0, libc::EFAULT),
    ] {
        let mut arg = uapi::DictionarySamples {
            cgroup_id: id,
            buffer,
            capacity,
            least: LEAST,
            reserved,
            ..Default::default()
        };
        let result = sys::ioctl(ctx.device().fd(), uapi::DICTIONARY_SAMPLES, &mut arg);
        expect_errno(what, result, &[errno])?;
    }
    expect_errno("no sandbox", sample(ctx, id + 1, 1, 0), &[libc::ENOENT])?;
    let mut rng = Rng::new(3);
    for _ in 0..200 {
        // Any cursor gives pages of the group, or the end.
        sample(ctx, id, 4, rng.next() >> (rng.next() % 64)).context("any cursor")?;
    }
    world.check()
}
