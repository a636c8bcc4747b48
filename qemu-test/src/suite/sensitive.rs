// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Sensitive sandboxes: their pages share nothing with anybody, and take one room whatever they hold.

use agentzip_uapi as uapi;
use anyhow::{ensure, Context, Result};
use std::fs::File;
use std::os::fd::AsRawFd;

use super::fixture::module::{self, expect_errno, name};
use super::fixture::page::{Kind, Spec};
use super::fixture::puppet::{Family, Puppet, Region};
use super::fixture::{page_out, Ctx, Sandbox};
use super::runner::Test;
use super::sys;

macro_rules! test {
    ($f:ident) => {
        Test {
            name: concat!("sensitive.", stringify!($f)),
            timeout_s: 90,
            run: $f,
        }
    };
}

/// The tests of this file.
pub const TESTS: &[Test] = &[
    test!(one_room_for_all_pages),
    test!(noise_is_declined),
    test!(zeros_are_the_kernels),
    test!(nobody_shares_with_it),
    test!(the_flag_stays),
    test!(processes_move),
    test!(compaction_keeps_pages),
];

/// Pages of each process.
const PAGES: usize = 128;
/// Most pages that a process has beside those.
const OTHERS: u64 = 64;
/// Bytes of a padded payload.
const ROOM: u64 = 2040;

/// A sandbox with a process.
struct Member {
    sandbox: Sandbox,
    puppet: Puppet,
    region: Region,
}

impl Member {
    /// Attaches a new cgroup, and forks a process into it.
    fn new(
        ctx: &Ctx,
        cgroup: &str,
        template: &str,
        sensitive: bool,
        family: &mut Family,
        zygote: &Puppet,
    ) -> Result<Member> {
        let cgroup = ctx.cgroup(cgroup)?;
        let id = ctx
            .device()
            .attach_sensitive(cgroup.path(), template, sensitive)
            .context("attach")?;
        let puppet = family.fork(zygote)?;
        cgroup.enter(puppet.pid)?;
        let region = Region::new(5, PAGES);
        puppet.map(&region)?;
        Ok(Member {
            sandbox: Sandbox { cgroup, id },
            puppet,
            region,
        })
    }

    /// Writes pages anew, and takes them out.
    fn store(&mut self, spec: impl Fn(usize) -> Spec) -> Result<()> {
        self.puppet.write(&mut self.region, |i| Some(spec(i)))?;
        page_out(&self.sandbox.cgroup, &self.puppet, &self.region)
    }

    fn number(&self, field: &str) -> Result<u64> {
        self.sandbox.counters()?.get(field)
    }

    /// Demands that every entry is a padded one, of one length, and nothing is shared.
    fn is_closed(&self) -> Result<()> {
        let counters = self.sandbox.counters()?;
        let entries = counters.get("entries")?;
        let (pages, bytes) = (counters.get("pages_padded")?, counters.get("bytes_padded")?);
        ensure!(
            pages == entries && counters.sum("pages_") == entries,
            "{pages} of {entries} entries are padded"
        );
        ensure!(
            bytes == entries * ROOM && counters.sum("bytes_") == bytes,
            "{entries} entries in {bytes} bytes"
        );
        for field in [
            "promoted",
            "provisional",
            "template_backed",
            "group_references",
            "group_reference_bytes",
            "group_sketch_bytes",
        ] {
            let found = counters.get(field)?;
            ensure!(found == 0, "{field} is {found}");
        }
        Ok(())
    }
}

/// A text that zstd makes short.
fn text(page: usize) -> Spec {
    Spec::new(Kind::Text, 4_000_000 + page as u32)
}

/// What the template has at this index.
fn template_page(page: usize) -> Spec {
    Spec::new(Kind::Heap, page as u32)
}

/// Two members with the same pages, the first one sensitive.
fn pair(ctx: &mut Ctx) -> Result<(super::fixture::Template, Member, Member)> {
    ctx.swap()?;
    let mut t = ctx.template(16)?;
    let closed = Member::new(ctx, "closed", &t.name, true, &mut t.family, &t.zygote)?;
    let open = Member::new(ctx, "open", &t.name, false, &mut t.family, &t.zygote)?;
    for (member, expected) in [(&closed, 1), (&open, 0)] {
        let file = format!("sandboxes/{}/sensitive", member.sandbox.id);
        let found = module::value(&file)?;
        ensure!(found == expected, "{file} is {found}");
    }
    Ok((t, closed, open))
}

fn one_room_for_all_pages(ctx: &mut Ctx) -> Result<()> {
    let (_template, mut closed, mut open) = pair(ctx)?;
    let mut rooms = Vec::new();
    for spec in [
        |page| Spec::new(Kind::Fill, 1 + page as u32),
        |_| Spec::new(Kind::Fill, 1),
        text,
        |_| text(0),
        // Almost nothing but zeros.
        |page| Spec::ZERO.edited(1 + page as u16 % 4, page as u32),
    ] {
        closed.store(spec)?;
        open.store(spec)?;
        closed.is_closed()?;
        let entries = closed.number("entries")?;
        ensure!(
            entries >= PAGES as u64,
            "{entries} entries of {PAGES} pages"
        );
        // Control: elsewhere the contents decide.
        rooms.push(open.sandbox.counters()?.sum("bytes_"));
        ensure!(open.number("pages_padded")? == 0, "padded without the flag");
        closed.puppet.check(&closed.region)?;
        open.puppet.check(&open.region)?;
    }
    let (least, most) = (rooms.iter().min(), rooms.iter().max());
    ensure!(
        least != most,
        "the bytes of the open one do not depend on its pages: {rooms:?}"
    );
    // Two of them fill a page of the arena.
    let (entries, arena) = (closed.number("entries")?, closed.number("arena_bytes")?);
    ensure!(
        arena >= entries.div_ceil(2) * 4096,
        "{entries} entries in {arena} bytes"
    );

    // Pages of the template: here as any others, there as nothing but a reference.
    closed
        .puppet
        .write(&mut closed.region, |i| Some(template_page(i % 16)))?;
    page_out(&closed.sandbox.cgroup, &closed.puppet, &closed.region)?;
    closed.is_closed()?;
    closed.puppet.check(&closed.region)
}

fn noise_is_declined(ctx: &mut Ctx) -> Result<()> {
    let (_template, mut closed, _open) = pair(ctx)?;
    closed.store(text)?;
    let before = closed.sandbox.counters()?;
    closed.store(|page| Spec::new(Kind::Random, page as u32))?;
    let declined = closed.number("declined_incompressible")?;
    ensure!(
        declined >= PAGES as u64,
        "{declined} of {PAGES} pages of noise declined"
    );
    let entries = closed.number("entries")?;
    ensure!(
        entries <= OTHERS && before.get("entries")? >= PAGES as u64,
        "{entries} entries are left"
    );
    closed.is_closed()?;
    closed.puppet.check(&closed.region)?;
    // And back.
    closed.store(text)?;
    closed.is_closed()?;
    closed.puppet.check(&closed.region)
}

/// The swap core keeps zeros apart before anybody is asked: they have no entry, as in any sandbox.
fn zeros_are_the_kernels(ctx: &mut Ctx) -> Result<()> {
    let (_template, mut closed, _open) = pair(ctx)?;
    closed.store(|_| Spec::ZERO)?;
    let entries = closed.number("entries")?;
    ensure!(entries <= OTHERS, "{entries} entries of pages of zeros");
    closed.is_closed()?;
    closed.puppet.check(&closed.region)
}

fn nobody_shares_with_it(ctx: &mut Ctx) -> Result<()> {
    let (mut t, mut closed, mut open) = pair(ctx)?;
    let mut second = Member::new(ctx, "second", &t.name, true, &mut t.family, &t.zygote)?;
    closed.store(text)?;
    second.store(text)?;
    // What it has is no base for a sibling, nor is a sibling's for it.
    open.store(text)?;
    closed.store(text)?;
    for member in [&closed, &second] {
        member.is_closed()?;
        member.puppet.check(&member.region)?;
    }
    let references = open.number("group_references")?;
    ensure!(references <= OTHERS, "{references} reference pages");
    open.puppet.check(&open.region)?;
    // Control: a second open one shares all of that.
    let mut sibling = Member::new(ctx, "sibling", &t.name, false, &mut t.family, &t.zygote)?;
    sibling.store(text)?;
    let refs = sibling.number("pages_ref")?;
    ensure!(refs >= PAGES as u64 / 2, "{refs} refs of siblings");
    closed.is_closed()?;

    // Neither dictionaries nor samples.
    let device = ctx.device();
    let mut page = [0u8; 4096];
    let mut samples = uapi::DictionarySamples {
        cgroup_id: closed.sandbox.id,
        buffer: page.as_mut_ptr() as u64,
        capacity: 1,
        ..Default::default()
    };
    expect_errno(
        "samples of a sensitive sandbox",
        sys::ioctl(device.fd(), uapi::DICTIONARY_SAMPLES, &mut samples),
        &[libc::EPERM],
    )?;
    samples.cgroup_id = open.sandbox.id;
    sys::ioctl(device.fd(), uapi::DICTIONARY_SAMPLES, &mut samples).context("samples")?;
    Ok(())
}

/// Entries keep a sandbox what it is; without any it may become the other.
fn the_flag_stays(ctx: &mut Ctx) -> Result<()> {
    let (t, mut closed, mut open) = pair(ctx)?;
    closed.store(text)?;
    open.store(text)?;
    let device = ctx.device();
    for (member, sensitive) in [(&closed, true), (&open, false)] {
        let path = member.sandbox.cgroup.path();
        let attach = |sensitive| device.attach_sensitive(path, &t.name, sensitive);
        expect_errno("attached twice", attach(!sensitive), &[libc::EEXIST])?;
        let left = device.detach(member.sandbox.id)?;
        ensure!(left >= PAGES as u64, "{left} entries are left");
        expect_errno("another flag", attach(!sensitive), &[libc::EBUSY])?;
        let id = attach(sensitive).context("the same flag")?;
        ensure!(id == member.sandbox.id, "another id");
        member.puppet.check(&member.region)?;
    }
    closed.is_closed()?;

    let dir = File::open(ctx.cgroup("third")?.path())?;
    let attach = |flags, group| {
        let mut arg = uapi::SandboxAttach {
            cgroup_fd: dir.as_raw_fd(),
            flags,
            template: name(&t.name),
            group,
            domain: [0; uapi::NAME_LEN],
            cgroup_id: 0,
        };
        sys::ioctl(device.fd(), uapi::SANDBOX_ATTACH, &mut arg)
    };
    let none = [0; uapi::NAME_LEN];
    for (flags, group) in [
        (2, none),
        (uapi::SANDBOX_SENSITIVE | 2, none),
        (u32::MAX, none),
        (uapi::SANDBOX_SENSITIVE, name("g")),
    ] {
        expect_errno("a wrong attach", attach(flags, group), &[libc::EINVAL])?;
    }

    let id = closed.sandbox.id;
    device.detach(id)?;
    closed.puppet.kill()?;
    super::fixture::host::wait_until(
        "the sandbox should go",
        std::time::Duration::from_secs(5),
        || Ok(!module::list("sandboxes")?.contains(&id.to_string())),
    )?;
    device
        .attach_sensitive(closed.sandbox.cgroup.path(), &t.name, false)
        .context("the other flag without entries")?;
    Ok(())
}

/// A page is its cgroup's: who moves takes no page along, and what is written anew is the new one's.
fn processes_move(ctx: &mut Ctx) -> Result<()> {
    let (_template, mut closed, mut open) = pair(ctx)?;
    closed.store(text)?;
    open.store(|page| text(page + PAGES))?;
    closed.sandbox.cgroup.enter(open.puppet.pid)?;
    open.sandbox.cgroup.enter(closed.puppet.pid)?;
    // What is there stays as it was stored.
    let padded = closed.number("pages_padded")?;
    ensure!(padded >= PAGES as u64, "{padded} padded pages are left");
    closed.puppet.check(&closed.region)?;
    open.puppet.check(&open.region)?;
    for member in [&mut closed, &mut open] {
        member.puppet.advise(&member.region, libc::MADV_DONTNEED)?;
        member.region.specs.fill(Spec::ZERO);
    }
    std::mem::swap(&mut closed.puppet, &mut open.puppet);
    std::mem::swap(&mut closed.region, &mut open.region);
    closed.store(text)?;
    open.store(text)?;
    closed.is_closed()?;
    let (entries, padded) = (open.number("entries")?, open.number("pages_padded")?);
    ensure!(
        padded == 0 && entries >= PAGES as u64,
        "{padded} padded of {entries} entries in the open one"
    );
    closed.puppet.check(&closed.region)?;
    open.puppet.check(&open.region)
}

/// Half of the entries go, in pairs and singly: what is left is moved together, and right.
fn compaction_keeps_pages(ctx: &mut Ctx) -> Result<()> {
    let (_template, mut closed, _open) = pair(ctx)?;
    closed.store(text)?;
    let before = closed.number("arena_bytes")?;
    // Every third page changes to noise, which has no entry.
    closed.store(|page| match page % 3 {
        0 => Spec::new(Kind::Random, page as u32),
        _ => text(page),
    })?;
    super::fixture::host::wait_until(
        "the arena should become smaller",
        std::time::Duration::from_secs(20),
        || Ok(closed.number("arena_bytes")? < before * 9 / 10),
    )?;
    closed.is_closed()?;
    closed.puppet.check(&closed.region)
}
