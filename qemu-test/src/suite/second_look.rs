// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The second look: what reclaim stored in a hurry is encoded again while the agent waits, against
//! everything else that may happen to an entry meanwhile.

use std::time::{Duration, Instant};

use agentzip_uapi::Phase;
use anyhow::{ensure, Context, Result};

use super::fixture::module::{self, Counters, SecondLook};
use super::fixture::page::{Kind, Spec};
use super::fixture::puppet::{Family, Puppet, Region};
use super::fixture::{clean_module, host, page_out, Ctx, Sandbox, Template};
use super::runner::Test;

macro_rules! test {
    ($f:ident) => {
        Test {
            name: concat!("second_look.", stringify!($f)),
            timeout_s: 90,
            run: $f,
        }
    };
}

/// The tests of this file.
pub const TESTS: &[Test] = &[
    test!(makes_entries_smaller),
    test!(only_while_the_agent_waits),
    test!(switched_off),
    test!(within_its_share_of_the_time),
    test!(with_the_sandboxes_level),
    test!(against_everything),
    test!(against_the_end_of_sandboxes),
    test!(unload_during_it),
];

/// Fresh pages of each member.
const PAGES: usize = 256;

/// A sandbox with a process that has fresh pages.
struct Member {
    sandbox: Sandbox,
    puppet: Puppet,
    region: Region,
}

/// A page that only those who write the same recipe have.
fn fresh(page: usize) -> Spec {
    Spec::new(Kind::Heap, 4_000_000 + page as u32)
}

/// Much like [`fresh`], and different in each round.
fn changed(page: usize, round: u32) -> Spec {
    fresh(page).edited(4, page as u32 + 1000 * round)
}

impl Member {
    fn start(ctx: &mut Ctx, cgroup: &str, template: &mut Template) -> Result<Member> {
        let sandbox = ctx.sandbox(cgroup, &template.name)?;
        let puppet = fork(&mut template.family, &template.zygote, &sandbox)?;
        let region = Region::new(5, PAGES);
        puppet.map(&region)?;
        Ok(Member {
            sandbox,
            puppet,
            region,
        })
    }

    /// Writes all pages and takes them out.
    fn write(&mut self, spec: impl Fn(usize) -> Spec) -> Result<()> {
        self.puppet.write(&mut self.region, |i| Some(spec(i)))?;
        self.page_out()
    }

    fn page_out(&self) -> Result<()> {
        page_out(&self.sandbox.cgroup, &self.puppet, &self.region)
    }

    fn check(&self) -> Result<()> {
        self.puppet.check(&self.region)
    }

    fn number(&self, field: &str) -> Result<u64> {
        self.sandbox.counters()?.get(field)
    }

    fn tell(&self, phase: Phase) -> Result<()> {
        let file = module::sysfs(&format!("sandboxes/{}/phase", self.sandbox.id));
        host::write(file, phase.name())
    }

    /// Waits until nothing of it waits for a second look.
    fn wait_done(&self) -> Result<()> {
        host::wait_until(
            "every entry should have its second look",
            Duration::from_secs(30),
            || Ok(self.number("provisional")? == 0),
        )
        .with_context(|| format!("{:?} are left", self.number("provisional").ok()))
    }
}

fn fork(family: &mut Family, zygote: &Puppet, sandbox: &Sandbox) -> Result<Puppet> {
    let puppet = family.fork(zygote)?;
    sandbox.cgroup.enter(puppet.pid)?;
    Ok(puppet)
}

/// Entries are counted by form, once each, whatever has become of them.
fn counts_agree(members: &[&Member]) -> Result<()> {
    for member in members {
        let counters = member.sandbox.counters()?;
        let (entries, by_form) = (counters.get("entries")?, counters.sum("pages_"));
        ensure!(entries == by_form, "{entries} entries, {by_form} by form");
    }
    let global = Counters::global()?;
    let (entries, by_form) = (global.get("entries")?, global.sum("pages_"));
    ensure!(
        entries == by_form,
        "{entries} entries in all, {by_form} by form"
    );
    Ok(())
}

fn makes_entries_smaller(ctx: &mut Ctx) -> Result<()> {
    ctx.swap()?;
    let mut template = ctx.template(16)?;
    let mut maker = Member::start(ctx, "maker", &mut template)?;
    let mut user = Member::start(ctx, "user", &mut template)?;
    // What reclaim makes of it, while nobody looks at it again.
    maker.tell(Phase::Running)?;
    user.tell(Phase::Running)?;
    let _on = SecondLook::on()?;
    maker.write(fresh)?;
    user.write(|page| changed(page, 0))?;
    let hurried = user.number("arena_bytes")?;
    let waiting = user.number("provisional")?;
    ensure!(
        waiting >= PAGES as u64 * 9 / 10,
        "{waiting} of {PAGES} pages wait for a second look"
    );
    ensure!(
        user.number("group_references")? == 0,
        "reclaim made reference pages"
    );
    maker.tell(Phase::Waiting)?;
    maker.wait_done()?;
    user.tell(Phase::Waiting)?;
    user.wait_done()?;
    let looked = user.number("second_look_pages")?;
    ensure!(
        looked >= waiting && looked <= waiting + 1000,
        "{waiting} pages waited, {looked} were looked at"
    );
    let now = user.number("arena_bytes")?;
    ensure!(
        now * 4 < hurried,
        "{hurried} bytes before the second look, {now} after it"
    );
    let saved = user.number("second_look_bytes")?;
    ensure!(saved > hurried / 2, "{saved} of {hurried} bytes saved");
    ensure!(user.number("second_look_ns")? > 0, "it took no time");
    ensure!(
        user.number("group_references")? >= PAGES as u64 / 2,
        "siblings share nothing"
    );
    counts_agree(&[&maker, &user])?;
    for _ in 0..2 {
        maker.check()?;
        user.check()?;
        maker.page_out()?;
        user.page_out()?;
    }
    maker.puppet.kill()?;
    user.puppet.kill()?;
    module::wait_entries(0)?;
    let global = Counters::global()?;
    ensure!(
        global.get("memory_references")? == 0,
        "reference pages are left"
    );
    ensure!(
        global.get("provisional")? == 0,
        "provisional entries are left"
    );
    Ok(())
}

fn only_while_the_agent_waits(ctx: &mut Ctx) -> Result<()> {
    ctx.swap()?;
    let mut template = ctx.template(16)?;
    let mut member = Member::start(ctx, "member", &mut template)?;
    let _on = SecondLook::on()?;
    for phase in [Phase::Running, Phase::Resuming] {
        member.tell(phase)?;
        member.write(fresh)?;
        let before = member.number("provisional")?;
        std::thread::sleep(Duration::from_secs(2));
        let after = member.number("provisional")?;
        ensure!(
            before > 0 && before == after,
            "{before} entries waited, {after} after a while in phase {}",
            phase.name()
        );
        member.check()?;
    }
    member.write(fresh)?;
    member.tell(Phase::Waiting)?;
    member.wait_done()?;
    // Stops within a page: what was under way when the phase was told may still end.
    member.write(|page| changed(page, 1))?;
    member.tell(Phase::Running)?;
    std::thread::sleep(Duration::from_millis(200));
    let first = member.number("second_look_pages")?;
    std::thread::sleep(Duration::from_secs(1));
    let second = member.number("second_look_pages")?;
    ensure!(
        first == second,
        "{} entries were looked at after the phase had changed",
        second - first
    );
    member.check()
}

fn switched_off(ctx: &mut Ctx) -> Result<()> {
    ctx.swap()?;
    let mut template = ctx.template(16)?;
    let mut member = Member::start(ctx, "member", &mut template)?;
    let before = Counters::global()?;
    member.write(fresh)?;
    ensure!(
        member.number("provisional")? == 0,
        "stores are provisional without a second look"
    );
    ensure!(
        before.grown("second_look_pages")? == 0,
        "entries were looked at"
    );
    // Nobody has told a phase: it is looked at at any time.
    {
        let _on = SecondLook::on()?;
        member.write(|page| changed(page, 1))?;
        member.wait_done()?;
        ensure!(
            before.grown("second_look_pages")? > 0,
            "nothing was looked at"
        );
    }
    member.check()
}

/// Lets the second look take so much of a CPU's time, and all of it again in the end.
struct Share;

impl Share {
    const FILE: &str = "second_look_percent";

    fn of(percent: u64) -> Result<Share> {
        host::write(module::sysfs(Self::FILE), &percent.to_string())?;
        Ok(Share)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let _ = host::write(module::sysfs(Self::FILE), "100");
    }
}

fn within_its_share_of_the_time(ctx: &mut Ctx) -> Result<()> {
    /// A round, which is not cut short, and its last page.
    const ROUND: f64 = 0.1;
    ctx.swap()?;
    let mut template = ctx.template(16)?;
    let mut member = Member::start(ctx, "member", &mut template)?;
    let _on = SecondLook::on()?;
    let mut round = 0;
    let mut looked = |percent: u64, passes: u32| -> Result<(f64, f64)> {
        let _share = Share::of(percent)?;
        let before = Counters::global()?;
        let start = Instant::now();
        for _ in 0..passes {
            round += 1;
            member.tell(Phase::Running)?;
            member.write(|page| changed(page, round))?;
            member.tell(Phase::Waiting)?;
            member.wait_done()?;
        }
        let took = start.elapsed();
        let looked = before.grown("second_look_ns")? as f64 / 1e9;
        Ok((looked, took.as_secs_f64()))
    };
    let (unbound, _) = looked(100, 1)?;
    // So many that the bound shows.
    ensure!(unbound > 0.0, "it took no time");
    let passes = (8.0 * ROUND / unbound).ceil() as u32;
    let (looked, took) = looked(25, passes)?;
    println!("# {looked:.2} s in {took:.1} s");
    ensure!(
        looked <= took * 0.25 + ROUND,
        "{looked:.2} s of {took:.1} s with a bound of 25 percent"
    );
    ensure!(looked > 3.0 * ROUND, "it took {looked:.2} s only");
    // A pause ends when the share changes: with one percent this would take minutes.
    {
        let _share = Share::of(1)?;
        member.tell(Phase::Running)?;
        for round in 100..103 {
            member.write(|page| changed(page, round))?;
        }
        let before = Counters::global()?;
        member.tell(Phase::Waiting)?;
        let begun = || Ok(before.grown("second_look_pages")? > 0);
        host::wait_until("a first round", Duration::from_secs(30), begun)?;
    }
    member.wait_done()?;
    for wrong in ["0", "101", "-1", "all"] {
        let result = std::fs::write(module::sysfs(Share::FILE), wrong);
        module::expect_errno(wrong, result, &[libc::EINVAL])?;
    }
    member.check()
}

/// The same pages at both levels.
fn with_the_sandboxes_level(ctx: &mut Ctx) -> Result<()> {
    ctx.swap()?;
    let mut template = ctx.template(16)?;
    let mut member = Member::start(ctx, "member", &mut template)?;
    let file = module::sysfs(&format!("sandboxes/{}/level", member.sandbox.id));
    for wrong in ["9", "0", "-3", "six"] {
        let result = std::fs::write(&file, wrong);
        module::expect_errno(wrong, result, &[libc::EINVAL])?;
    }
    let _on = SecondLook::on()?;
    let mut bytes = Vec::new();
    for level in ["3", "6"] {
        host::write(&file, level)?;
        ensure!(host::read(&file)? == level, "the level was not kept");
        // The former entries are replaced, so that no page resembles one of those.
        member.write(|page| Spec::new(Kind::Fill, page as u32))?;
        member.write(|page| Spec::new(Kind::Text, page as u32))?;
        member.wait_done()?;
        bytes.push(member.number("arena_bytes")?);
        member.check()?;
    }
    println!("# {bytes:?} bytes at levels 3 and 6");
    ensure!(bytes[1] < bytes[0], "{bytes:?} bytes at levels 3 and 6");
    Ok(())
}

/// Stores, loads, frees and compaction of the entries that are being looked at.
fn against_everything(ctx: &mut Ctx) -> Result<()> {
    ctx.swap()?;
    let mut template = ctx.template(16)?;
    let mut members = Vec::new();
    for n in 0..3 {
        members.push(Member::start(ctx, &format!("member{n}"), &mut template)?);
    }
    let _on = SecondLook::on()?;
    let before = Counters::global()?;
    let end = Instant::now() + Duration::from_secs(20);
    let mut round = 0;
    while Instant::now() < end {
        for (n, member) in members.iter_mut().enumerate() {
            let seed = round + n as u32;
            member.write(|page| match page % 3 {
                0 => fresh(page),
                1 => changed(page, seed),
                _ => Spec::new(Kind::Heap, 5_000_000 + seed * 1000 + page as u32),
            })?;
        }
        for (n, member) in members.iter().enumerate() {
            let phase = match (round as usize + n) % 4 {
                0 => Phase::Running,
                _ => Phase::Waiting,
            };
            member.tell(phase)?;
        }
        for member in &members {
            member.check()?;
            member.page_out()?;
        }
        round += 1;
    }
    let looked = before.grown("second_look_pages")?;
    ensure!(
        round >= 2 && looked >= PAGES as u64,
        "{round} rounds, {looked} entries were looked at"
    );
    for member in &members {
        member.tell(Phase::Waiting)?;
        member.wait_done()?;
        member.check()?;
    }
    counts_agree(&members.iter().collect::<Vec<_>>())?;
    for member in members {
        member.puppet.kill()?;
    }
    module::wait_entries(0)?;
    let left = module::value("stats/memory_references")?;
    ensure!(left == 0, "{left} bytes of reference pages are left");
    Ok(())
}

/// Processes are killed and cgroups removed while their entries are being looked at.
fn against_the_end_of_sandboxes(ctx: &mut Ctx) -> Result<()> {
    ctx.swap()?;
    let mut template = ctx.template(16)?;
    let mut stays = Member::start(ctx, "stays", &mut template)?;
    let _on = SecondLook::on()?;
    stays.write(fresh)?;
    let before = Counters::global()?;
    for n in 0..8u32 {
        let mut goes = Member::start(ctx, &format!("goes{n}"), &mut template)?;
        goes.write(|page| changed(page, n))?;
        let id = goes.sandbox.id;
        std::thread::sleep(Duration::from_millis(u64::from(n) * 20));
        goes.puppet.kill()?;
        if n % 2 == 0 {
            ctx.device().detach(id)?;
        }
        goes.sandbox.cgroup.remove().context("rmdir")?;
        stays.check()?;
        stays.page_out()?;
        host::wait_until("the sandbox should go", Duration::from_secs(10), || {
            Ok(!module::list("sandboxes")?.contains(&id.to_string()))
        })?;
    }
    let looked = before.grown("second_look_pages")?;
    ensure!(looked > 0, "nothing was looked at");
    stays.wait_done()?;
    stays.check()?;
    counts_agree(&[&stays])
}

/// The module goes as soon as it may, while the worker still comes back to look.
fn unload_during_it(ctx: &mut Ctx) -> Result<()> {
    ctx.swap()?;
    for round in 0..3 {
        let mut template = ctx.template(16)?;
        let mut member = Member::start(ctx, "member", &mut template)?;
        let on = SecondLook::on()?;
        // Once during a pause.
        let _share = Share::of([100, 1, 50][round])?;
        member.write(fresh)?;
        ensure!(member.number("provisional")? > 0, "nothing is waiting");
        member.puppet.kill()?;
        member.sandbox.cgroup.remove().context("rmdir")?;
        module::wait_entries(0)?;
        drop(template);
        clean_module(ctx.device())?;
        drop(on);
        ctx.device().disarm().context("disarm")?;
        ctx.close_device();
        module::unload().context("unload")?;
        module::load("").context("load")?;
        ctx.open_device()?;
        ctx.device().arm().context("arm")?;
    }
    Ok(())
}
