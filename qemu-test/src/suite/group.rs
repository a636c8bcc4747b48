// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Sandboxes of one group: what they share, how long it lives, and that nobody else shares it.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::time::Duration;

use agentzip_uapi as uapi;
use anyhow::{ensure, Context, Result};

use super::fixture::module::{self, name, Counters};
use super::fixture::page::{Kind, Spec};
use super::fixture::puppet::{Family, Puppet, Region};
use super::fixture::{host, page_out, Ctx, Sandbox};
use super::runner::Test;
use super::sys;

macro_rules! test {
    ($f:ident) => {
        Test {
            name: concat!("group.", stringify!($f)),
            timeout_s: 60,
            run: $f,
        }
    };
}

/// The tests of this file.
pub const TESTS: &[Test] = &[
    test!(siblings_share),
    test!(maker_is_killed),
    test!(maker_cgroup_is_removed),
    test!(maker_writes_anew),
    test!(detached_maker),
    test!(refused_after_promotion),
    test!(other_group),
    test!(other_domain),
    test!(goes_with_its_last_sandbox),
];

/// Fresh pages of each member.
const PAGES: usize = 256;

/// Most pages that a process has beside those; some of them resemble each other.
const OTHERS: u64 = 64;

/// A sandbox with a process that has fresh pages.
struct Member {
    sandbox: Sandbox,
    puppet: Puppet,
    region: Region,
}

/// A page that only those who write the same recipe have.
fn fresh(page: usize) -> Spec {
    Spec::new(Kind::Heap, 2_000_000 + page as u32)
}

/// What a sibling has at the same index: an equal page, one that is changed little or much, or
/// one that another index of [`fresh`] has.
fn similar(page: usize) -> Spec {
    match page % 4 {
        0 => fresh(page),
        1 => fresh(page).edited(4, page as u32),
        2 => fresh(page).edited(100, page as u32),
        _ => fresh(page - 1),
    }
}

/// Attaches a new cgroup with all that can be said about it.
fn attach(ctx: &Ctx, cgroup: &str, template: &str, group: &str, domain: &str) -> Result<Sandbox> {
    let cgroup = ctx.cgroup(cgroup)?;
    let dir = File::open(cgroup.path())?;
    let mut arg = uapi::SandboxAttach {
        cgroup_fd: dir.as_raw_fd(),
        flags: 0,
        template: name(template),
        group: name(group),
        domain: name(domain),
        cgroup_id: 0,
    };
    sys::ioctl(ctx.device().fd(), uapi::SANDBOX_ATTACH, &mut arg).context("attach")?;
    let id = arg.cgroup_id;
    Ok(Sandbox { cgroup, id })
}

impl Member {
    /// Forks a process into the sandbox, lets it write its pages and takes them out.
    fn start(
        sandbox: Sandbox,
        family: &mut Family,
        zygote: &Puppet,
        spec: impl Fn(usize) -> Spec,
    ) -> Result<Member> {
        let puppet = family.fork(zygote)?;
        sandbox.cgroup.enter(puppet.pid)?;
        let region = Region::new(5, PAGES);
        puppet.map(&region)?;
        let mut member = Member {
            sandbox,
            puppet,
            region,
        };
        member.write(spec)?;
        member.page_out()?;
        Ok(member)
    }

    fn write(&mut self, spec: impl Fn(usize) -> Spec) -> Result<()> {
        self.puppet.write(&mut self.region, |i| Some(spec(i)))
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

    /// Pages that need a base of whatever kind.
    fn based(&self) -> Result<u64> {
        let counters = self.sandbox.counters()?;
        Ok(counters.get("pages_ref")?
            + counters.sum("pages_delta")
            + counters.get("pages_prefix")?)
    }
}

/// Two sandboxes of one group; what the second one has resembles what the first one has.
fn siblings(ctx: &mut Ctx) -> Result<(super::fixture::Template, Member, Member)> {
    ctx.swap()?;
    let mut template = ctx.template(16)?;
    let maker = ctx.sandbox("maker", &template.name)?;
    let maker = Member::start(maker, &mut template.family, &template.zygote, fresh)?;
    let first = maker.number("group_references")?;
    ensure!(first <= OTHERS, "{first} reference pages of one sandbox");
    let user = ctx.sandbox("user", &template.name)?;
    let user = Member::start(user, &mut template.family, &template.zygote, similar)?;
    let references = user.number("group_references")?;
    ensure!(
        references >= first + PAGES as u64 / 2,
        "{first} reference pages, {references} with a sibling"
    );
    Ok((template, maker, user))
}

/// Waits until nothing of a group without entries is left but its index.
fn wait_no_references(member: u64) -> Result<()> {
    module::wait_entries(0)?;
    let count = module::value(&format!("sandboxes/{member}/group_references"))?;
    let bytes = module::value("stats/memory_references")?;
    ensure!(
        count == 0 && bytes == 0,
        "{count} reference pages in {bytes} bytes without an entry"
    );
    Ok(())
}

fn siblings_share(ctx: &mut Ctx) -> Result<()> {
    let (_template, maker, user) = siblings(ctx)?;
    let pages = PAGES as u64;
    let promoted = maker.number("promoted")?;
    let references = maker.number("group_references")?;
    // Two of four pages of the sibling lead to the same page of the maker.
    let own = user.number("promoted")?;
    ensure!(own <= OTHERS, "{own} pages of the sibling were promoted");
    ensure!(
        promoted >= pages / 2 && references <= promoted + own,
        "{promoted} and {own} pages promoted, {references} reference pages"
    );
    let refs = user.number("pages_ref")?;
    ensure!(refs >= pages * 4 / 10, "{refs} of {pages} pages as ref");
    let based = user.based()?;
    ensure!(
        based >= pages * 9 / 10,
        "{based} of {pages} pages have a base"
    );
    let refs = maker.number("pages_ref")?;
    ensure!(refs >= promoted, "{refs} refs, {promoted} promoted");
    let (arena, shared) = (
        user.number("arena_bytes")?,
        user.number("group_reference_bytes")?,
    );
    ensure!(
        arena < shared,
        "the sibling has {arena} bytes of its own, {shared} are shared"
    );
    let global = Counters::global()?;
    let (entries, by_form) = (global.get("entries")?, global.sum("pages_"));
    ensure!(entries == by_form, "{entries} entries, {by_form} by form");
    let all = global.get("memory_references")?;
    ensure!(all == shared, "memory_references is {all}, not {shared}");
    for _ in 0..2 {
        maker.check()?;
        user.check()?;
        maker.page_out()?;
        user.page_out()?;
    }
    maker.puppet.kill()?;
    user.puppet.kill()?;
    wait_no_references(user.sandbox.id)
}

/// What siblings refer to outlives the process and the entries that it came from.
fn maker_is_killed(ctx: &mut Ctx) -> Result<()> {
    let (_template, maker, user) = siblings(ctx)?;
    maker.puppet.kill()?;
    let id = maker.sandbox.id;
    let gone = || Ok(module::value(&format!("sandboxes/{id}/entries"))? == 0);
    host::wait_until(
        "the maker's entries should go",
        Duration::from_secs(5),
        gone,
    )?;
    let arena = module::value(&format!("sandboxes/{id}/arena_bytes"))?;
    ensure!(arena == 0, "{arena} bytes of the maker's arena are left");
    let references = user.number("group_references")?;
    ensure!(references > 0, "the reference pages went with their maker");
    user.check()?;
    user.page_out()?;
    user.check()?;
    user.puppet.kill()?;
    wait_no_references(user.sandbox.id)
}

fn maker_cgroup_is_removed(ctx: &mut Ctx) -> Result<()> {
    let (_template, maker, user) = siblings(ctx)?;
    maker.puppet.kill()?;
    maker.sandbox.cgroup.remove().context("rmdir the maker")?;
    let id = maker.sandbox.id.to_string();
    host::wait_until(
        "the maker's sandbox should go",
        Duration::from_secs(5),
        || Ok(!module::list("sandboxes")?.contains(&id)),
    )?;
    user.check()?;
    user.page_out()?;
    user.check()?;
    user.puppet.kill()?;
    wait_no_references(user.sandbox.id)
}

/// The maker's pages change, so that its entries end, while the sibling still needs what they were.
fn maker_writes_anew(ctx: &mut Ctx) -> Result<()> {
    let (_template, mut maker, user) = siblings(ctx)?;
    for round in 1..4 {
        maker.write(|i| Spec::new(Kind::Heap, 3_000_000 + round * 10_000 + i as u32))?;
        maker.page_out()?;
        user.check()?;
        user.page_out()?;
        maker.check()?;
        maker.page_out()?;
    }
    maker.puppet.kill()?;
    user.check()?;
    user.puppet.kill()?;
    wait_no_references(user.sandbox.id)
}

/// The entries of a detached sandbox still serve its siblings.
fn detached_maker(ctx: &mut Ctx) -> Result<()> {
    ctx.swap()?;
    let mut template = ctx.template(16)?;
    let maker = ctx.sandbox("maker", &template.name)?;
    let maker = Member::start(maker, &mut template.family, &template.zygote, fresh)?;
    ctx.device().detach(maker.sandbox.id)?;
    let user = ctx.sandbox("user", &template.name)?;
    let user = Member::start(user, &mut template.family, &template.zygote, similar)?;
    let promoted = maker.number("promoted")?;
    ensure!(promoted > 0, "nothing of the detached sandbox was promoted");
    maker.check()?;
    user.check()?;
    maker.puppet.kill()?;
    user.page_out()?;
    user.check()?;
    user.puppet.kill()?;
    wait_no_references(user.sandbox.id)
}

/// A sandbox without room needs a sibling's page as base, and then cannot be stored after all: what
/// was promoted for it is the maker's alone, and the counts are right.
fn refused_after_promotion(ctx: &mut Ctx) -> Result<()> {
    ctx.swap()?;
    let mut template = ctx.template(16)?;
    let maker = ctx.sandbox("maker", &template.name)?;
    let maker = Member::start(maker, &mut template.family, &template.zygote, fresh)?;
    let user = ctx.sandbox("user", &template.name)?;
    let bound = module::sysfs(&format!("sandboxes/{}/max_bytes", user.id));
    host::write(&bound, "0")?;
    let changed = |page| fresh(page).edited(4, page as u32);
    let user = Member::start(user, &mut template.family, &template.zygote, changed)?;
    let (full, arena) = (user.number("declined_full")?, user.number("arena_bytes")?);
    ensure!(
        full >= PAGES as u64 && arena == 0,
        "{full} pages declined, {arena} bytes stored without any room"
    );
    for member in [&maker, &user] {
        let counters = member.sandbox.counters()?;
        let (entries, by_form) = (counters.get("entries")?, counters.sum("pages_"));
        ensure!(entries == by_form, "{entries} entries, {by_form} by form");
    }
    maker.check()?;
    user.check()?;
    host::write(&bound, "max")?;
    user.page_out()?;
    maker.page_out()?;
    user.check()?;
    maker.check()?;
    maker.puppet.kill()?;
    user.puppet.kill()?;
    wait_no_references(user.sandbox.id)
}

/// Demands that two sandboxes with the same pages have nothing in common.
fn nothing_shared(one: &Member, other: &Member) -> Result<()> {
    for member in [one, other] {
        // The other's pages are equal: if any were in reach, these would be refs.
        for field in ["pages_ref", "promoted", "group_references"] {
            let found = member.number(field)?;
            ensure!(found <= OTHERS, "{field} is {found} across a border");
        }
        member.check()?;
    }
    Ok(())
}

fn other_group(ctx: &mut Ctx) -> Result<()> {
    ctx.swap()?;
    let mut t = ctx.template(16)?;
    let one = attach(ctx, "one", &t.name, "g1", uapi::DEFAULT_DOMAIN)?;
    let one = Member::start(one, &mut t.family, &t.zygote, fresh)?;
    let other = attach(ctx, "other", &t.name, "g2", uapi::DEFAULT_DOMAIN)?;
    let other = Member::start(other, &mut t.family, &t.zygote, fresh)?;
    nothing_shared(&one, &other)
}

/// Two tenants, whose groups have the same name.
fn other_domain(ctx: &mut Ctx) -> Result<()> {
    ctx.swap()?;
    let mut t = ctx.template(16)?;
    let range = t.region.range();
    let mut add = uapi::TemplateAdd {
        pid: t.holder.pid,
        flags: 0,
        ranges: std::ptr::from_ref(&range) as u64,
        nr_ranges: 1,
        reserved: 0,
        name: name("theirs"),
        domain: name("tenant2"),
        pages_referenced: 0,
        pages_copied: 0,
        pages_skipped: 0,
    };
    sys::ioctl(ctx.device().fd(), uapi::TEMPLATE_ADD, &mut add).context("template of tenant2")?;
    let one = attach(ctx, "one", &t.name, "g", uapi::DEFAULT_DOMAIN)?;
    let one = Member::start(one, &mut t.family, &t.zygote, fresh)?;
    let other = attach(ctx, "other", "theirs", "g", "tenant2")?;
    let other = Member::start(other, &mut t.family, &t.zygote, fresh)?;
    nothing_shared(&one, &other)
}

/// With its last sandbox goes the index of a group, too; a new group of the same name knows nothing.
fn goes_with_its_last_sandbox(ctx: &mut Ctx) -> Result<()> {
    let (mut template, maker, user) = siblings(ctx)?;
    let sketches = user.number("group_sketch_bytes")?;
    ensure!(sketches > 0, "the group has no index");
    maker.puppet.kill()?;
    user.puppet.kill()?;
    wait_no_references(user.sandbox.id)?;
    for sandbox in [&maker.sandbox, &user.sandbox] {
        ctx.device().detach(sandbox.id)?;
    }
    host::wait_until("the sandboxes should go", Duration::from_secs(5), || {
        Ok(module::list("sandboxes")?.is_empty())
    })?;
    let all = module::value("stats/memory_sketches")?;
    let of_template = module::value(&format!("templates/{}/sketch_bytes", template.name))?;
    ensure!(
        all == of_template,
        "{all} bytes of indexes, the template's has {of_template}"
    );
    let again = ctx.sandbox("again", &template.name)?;
    let again = Member::start(again, &mut template.family, &template.zygote, fresh)?;
    // Its pages resemble each other, but equal ones only the former group had.
    let equal = again.number("pages_ref")?;
    ensure!(
        equal <= OTHERS,
        "{equal} of {PAGES} pages equal pages of a group that is gone"
    );
    again.check()
}
