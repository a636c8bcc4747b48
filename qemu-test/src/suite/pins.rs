// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Pages that a device, or the kernel through its own mapping, writes to while they are pinned: of pages that
//! were read back from swap and not written to since, the kernel forgets such writes.

use std::path::Path;

use anyhow::{ensure, Result};

use super::fixture::cgroup::Cgroup;
use super::fixture::module::{self, Counters};
use super::fixture::puppet::{Puppet, Region, Way};
use super::fixture::{host, mixed, page_out, Ctx};
use super::runner::Test;
use super::sys;

macro_rules! test {
    ($f:ident) => {
        Test {
            name: concat!("pins.", stringify!($f)),
            timeout_s: 60,
            run: $f,
        }
    };
}

/// The tests of this file.
pub const TESTS: &[Test] = &[
    test!(direct),
    test!(registered_buffer),
    test!(registered_buffer_on_disk),
    test!(only_read),
    test!(nothing_is_kept),
];

/// Those that the debug kernel cannot run: it has no AF_ALG.
pub const STOCK: &[Test] = &[test!(cipher_socket), test!(cipher_socket_on_disk)];

const PAGES: usize = 64;

/// Has clean pages of swap written in this way, and taken out again. The contents are to be checked.
fn write_clean(cgroup: &Cgroup, puppet: &Puppet, region: &mut Region, way: Way) -> Result<()> {
    puppet.write(region, |i| Some(mixed(i, 1)))?;
    page_out(cgroup, puppet, region)?;
    puppet.check(region)?;
    for (i, spec) in region.specs.iter_mut().enumerate() {
        *spec = mixed(i, 2);
    }
    puppet.direct_in(region, way)?;
    puppet.check(region)?;
    page_out(cgroup, puppet, region)
}

/// The same with pages that the store holds.
fn written_by(ctx: &mut Ctx, way: Way) -> Result<()> {
    let mut world = ctx.world(PAGES)?;
    let before = Counters::global()?;
    write_clean(&world.sandbox.cgroup, &world.puppet, &mut world.region, way)?;
    let stores = before.grown("stores")?;
    ensure!(
        stores >= 2 * PAGES as u64,
        "{stores} stores of {PAGES} pages, twice"
    );
    let to_disk = world.sandbox.cgroup.stat("pswpout")?;
    ensure!(to_disk == 0, "{to_disk} pages went to disk");
    world.check()
}

fn direct(ctx: &mut Ctx) -> Result<()> {
    written_by(ctx, Way::Direct)
}

fn registered_buffer(ctx: &mut Ctx) -> Result<()> {
    written_by(ctx, Way::Registered)
}

fn cipher_socket(ctx: &mut Ctx) -> Result<()> {
    with_ciphers(|| written_by(ctx, Way::Cipher))
}

/// Lets the kernel's ciphers be asked for, all of them.
fn with_ciphers(f: impl FnOnce() -> Result<()>) -> Result<()> {
    const ALLOWED: &str = "/proc/sys/crypto/af_alg_restrict";
    sys::default_sigchld();
    host::modprobe("algif_skcipher")?;
    host::modprobe("crypto_null")?;
    if !Path::new(ALLOWED).exists() {
        return f();
    }
    let before = host::read(ALLOWED)?;
    host::write(ALLOWED, "0")?;
    let result = f();
    host::write(ALLOWED, &before)?;
    result
}

/// Pages that the swap device has. While we are not armed the write is lost: it is the kernel that forgets it.
/// Should that end one day, pins.c has no reason any more.
fn on_disk(ctx: &mut Ctx, way: Way) -> Result<()> {
    ctx.swap()?;
    let cgroup = ctx.cgroup("plain")?;
    let (_family, puppet, mut region) = ctx.zygote(PAGES, &cgroup)?;
    write_clean(&cgroup, &puppet, &mut region, way)?;
    puppet.check(&region)?;
    ctx.device().disarm()?;
    write_clean(&cgroup, &puppet, &mut region, way)?;
    let lost = puppet.check(&region).is_err();
    ctx.device().arm()?;
    ensure!(lost, "{way:?}: the kernel marks pages dirty itself");
    Ok(())
}

fn registered_buffer_on_disk(ctx: &mut Ctx) -> Result<()> {
    on_disk(ctx, Way::Registered)
}

fn cipher_socket_on_disk(ctx: &mut Ctx) -> Result<()> {
    with_ciphers(|| on_disk(ctx, Way::Cipher))
}

/// Who only reads from pinned pages changes nothing.
fn only_read(ctx: &mut Ctx) -> Result<()> {
    let mut world = ctx.world(PAGES)?;
    world.store_mixed(1)?;
    for way in [Way::Direct, Way::Registered] {
        world.check()?;
        world.puppet.direct_out(&world.region, way)?;
        world.page_out()?;
        world.check()?;
    }
    Ok(())
}

/// With the switch off no page is clean after a load, so no write to one can be lost, whoever forgets to tell.
fn nothing_is_kept(ctx: &mut Ctx) -> Result<()> {
    const PAGES: usize = 512;
    let mut world = ctx.world(PAGES)?;
    world.store_mixed(1)?;
    let switch = module::sysfs("keep_on_load");
    let bad = std::fs::write(&switch, "2");
    module::expect_errno("keep_on_load=2", bad, &[libc::EINVAL])?;
    for (value, kept) in [("0", false), ("1", true)] {
        host::write(&switch, value)?;
        world.check()?;
        let before = Counters::global()?;
        world.page_out()?;
        let stores = before.grown("stores")?;
        // Some are of the process's own memory.
        let right = match kept {
            true => stores <= 64,
            false => stores >= PAGES as u64,
        };
        ensure!(
            right,
            "keep_on_load={value}: {stores} stores of {PAGES} pages"
        );
        world.check()?;
        world.page_out()?;
    }
    world.check()
}
