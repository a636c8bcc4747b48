// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Attaching: which cgroups, to which templates, and what can be asked of a sandbox.

use std::fs;
use std::path::Path;

use agentzip_uapi as uapi;
use anyhow::{ensure, Result};

use super::fixture::module::{self, expect_errno};
use super::fixture::{host, Ctx};
use super::runner::Test;

macro_rules! test {
    ($f:ident) => {
        Test {
            name: concat!("attach.", stringify!($f)),
            timeout_s: 20,
            run: $f,
        }
    };
}

/// The tests of this file.
pub const TESTS: &[Test] = &[
    test!(template_names),
    test!(non_cgroup),
    test!(unknown_template),
    test!(other_domain),
    test!(twice),
    test!(unknown_cgroup),
    test!(phase),
];

fn template_names(ctx: &mut Ctx) -> Result<()> {
    let template = ctx.template(16)?;
    let again = ctx.register(&template.name, &template.holder, &[&template.region]);
    ensure!(again.is_err(), "the name was taken twice");
    let result = ctx.device().template_add(
        &template.name,
        template.holder.pid,
        &[template.region.range()],
    );
    expect_errno("name in use", result, &[libc::EEXIST])?;
    let result = ctx.device().template_remove("nosuch").map_err(|(e, _)| e);
    expect_errno("remove an unknown template", result, &[libc::ENOENT])?;
    let a = ctx.sandbox("a", &template.name)?;
    ctx.sandbox("b", &template.name)?;
    let (error, users) = match ctx.device().template_remove(&template.name) {
        Ok(()) => anyhow::bail!("a template in use was removed"),
        Err(pair) => pair,
    };
    ensure!(error.raw_os_error() == Some(libc::EBUSY), "{error}");
    ensure!(users == 2, "EBUSY says {users} users");
    ctx.device().detach(a.id)?;
    host::wait_until(
        "a sandbox without entries goes at once",
        std::time::Duration::from_secs(4),
        || Ok(module::value(&format!("templates/{}/users", template.name))? == 1),
    )
}

fn non_cgroup(ctx: &mut Ctx) -> Result<()> {
    let template = ctx.template(16)?;
    let device = ctx.device();
    for path in ["/tmp", "/proc/self/status", "/dev/null", "/sys/kernel"] {
        let result = device.attach(Path::new(path), &template.name);
        expect_errno(path, result, &[libc::EBADF])?;
    }
    let file = ctx.root.path().join("cgroup.procs");
    let result = device.attach(&file, &template.name);
    expect_errno("a file of a cgroup", result, &[libc::EBADF])?;
    for fd in [-1, i32::MAX] {
        let result = device.attach_fd(fd, &template.name, None);
        expect_errno(&format!("descriptor {fd}"), result, &[libc::EBADF])?;
    }
    let users = module::value(&format!("templates/{}/users", template.name))?;
    ensure!(users == 0, "the template has {users} users");
    Ok(())
}

fn unknown_template(ctx: &mut Ctx) -> Result<()> {
    let cgroup = ctx.cgroup("box")?;
    let result = ctx.device().attach(cgroup.path(), "nosuch");
    expect_errno("unknown template", result, &[libc::ENOENT])?;
    ensure!(module::list("sandboxes")?.is_empty(), "it was attached");
    Ok(())
}

fn other_domain(ctx: &mut Ctx) -> Result<()> {
    let template = ctx.template(16)?;
    let cgroup = ctx.cgroup("box")?;
    let device = ctx.device();
    let result = device.attach_in(cgroup.path(), &template.name, Some("tenant2"));
    expect_errno("another domain", result, &[libc::EPERM])?;
    ensure!(
        module::list("sandboxes")?.is_empty(),
        "it was attached all the same"
    );
    // The default domain by its name is the default domain.
    device.attach_in(cgroup.path(), &template.name, Some(uapi::DEFAULT_DOMAIN))?;
    Ok(())
}

fn twice(ctx: &mut Ctx) -> Result<()> {
    let template = ctx.template(16)?;
    let sandbox = ctx.sandbox("box", &template.name)?;
    let device = ctx.device();
    let result = device.attach(sandbox.cgroup.path(), &template.name);
    expect_errno("the same again", result, &[libc::EEXIST])?;
    sandbox.cgroup.delegate()?;
    let child = sandbox.cgroup.child("child")?;
    let result = device.attach(child.path(), &template.name);
    expect_errno("below a sandbox", result, &[libc::EEXIST])?;
    let result = device.attach(ctx.root.path(), &template.name);
    expect_errno("above a sandbox", result, &[libc::EEXIST])?;
    let sandboxes = module::list("sandboxes")?;
    ensure!(sandboxes == [sandbox.id.to_string()], "{sandboxes:?}");
    // After a detach the place is free again.
    device.detach(sandbox.id)?;
    device.attach(child.path(), &template.name)?;
    Ok(())
}

fn unknown_cgroup(ctx: &mut Ctx) -> Result<()> {
    let device = ctx.device();
    for id in [1, u64::MAX, ctx.root.id()?] {
        expect_errno("detach", device.detach(id), &[libc::ENOENT])?;
        expect_errno("phase", device.phase(id, 0), &[libc::ENOENT])?;
        expect_errno("stats", device.stats(id), &[libc::ENOENT])?;
    }
    Ok(())
}

fn phase(ctx: &mut Ctx) -> Result<()> {
    let template = ctx.template(16)?;
    let sandbox = ctx.sandbox("box", &template.name)?;
    let device = ctx.device();
    let file = module::sysfs(&format!("sandboxes/{}/phase", sandbox.id));
    let first = host::read(&file)?;
    ensure!(first == "running", "it begins with {first}");
    for phase in uapi::Phase::ALL.into_iter().rev() {
        device.phase(sandbox.id, phase as u32)?;
        let now = host::read(&file)?;
        ensure!(now == phase.name(), "{} set, {now} read", phase.name());
    }
    for phase in uapi::Phase::ALL {
        fs::write(&file, format!("{}\n", phase.name()))?;
        let now = host::read(&file)?;
        ensure!(now == phase.name(), "{} written, {now} read", phase.name());
    }
    expect_errno("phase 3", device.phase(sandbox.id, 3), &[libc::EINVAL])?;
    for bad in ["", "walking", "runningx"] {
        if !bad.is_empty() {
            expect_errno(bad, fs::write(&file, bad), &[libc::EINVAL])?;
        }
    }
    let now = host::read(&file)?;
    ensure!(now == "resuming", "refused values changed it to {now}");
    Ok(())
}
