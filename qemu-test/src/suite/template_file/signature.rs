// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Signatures are compared; callers of the first version go on working.

use std::fmt::Write;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Duration;

use agentzip_uapi as uapi;
use anyhow::{ensure, Context, Result};

use super::super::fixture::controller::{controller, output_of, run};
use super::super::fixture::module::{self, expect_errno, name};
use super::super::fixture::puppet::Region;
use super::super::fixture::{host, page_out, Ctx, Sandbox};
use super::super::sys::PAGE_SIZE;
use super::calls::{add_part, attach_signed, call, output, Bytes};
use super::restored::{disk_file, needs_template, sealed_memfd, write_near};

/// One that differs is refused; without one, nothing is compared.
pub fn signatures(ctx: &mut Ctx) -> Result<()> {
    let file = sealed_memfd(4)?;
    let signature: uapi::Signature = std::array::from_fn(|i| i as u8);
    let none = [0; uapi::SIGNATURE_LEN];
    let fd = file.as_raw_fd();
    add_part(ctx.device(), "signed", fd, 0, 0, signature)?;
    add_part(ctx.device(), "plain", fd, 0, 0, none)?;
    let shown =
        |template: &str| host::read(module::sysfs(&format!("templates/{template}/signature")));
    let mut hex = String::new();
    for byte in signature {
        write!(hex, "{byte:02x}")?;
    }
    ensure!(shown("signed")? == hex, "{}", shown("signed")?);
    ensure!(shown("plain")? == "none", "{}", shown("plain")?);

    let mut other = signature;
    other[31] ^= 1;
    let cgroup = ctx.cgroup("box")?;
    let dir = File::open(cgroup.path())?;
    let result = attach_signed(ctx, &dir, "signed", other);
    expect_errno("another signature", result, &[libc::EKEYREJECTED])?;
    let left = module::list("sandboxes")?;
    ensure!(left.is_empty(), "sandboxes are {left:?}");
    for (template, given) in [
        ("signed", signature),
        ("signed", none),
        ("plain", other),
        ("plain", none),
    ] {
        let id = attach_signed(ctx, &dir, template, given)
            .with_context(|| format!("attach to {template}"))?;
        ensure!(id == cgroup.id()?, "id {id}");
        ctx.device().detach(id)?;
        host::wait_until("the sandbox goes", Duration::from_secs(5), || {
            Ok(module::list("sandboxes")?.is_empty())
        })?;
    }
    // An unknown template and another domain are told before.
    let result = attach_signed(ctx, &dir, "absent", other);
    expect_errno("an unknown template", result, &[libc::ENOENT])?;

    // Of a process.
    let hold = ctx.holder_cgroup("hold")?;
    let (mut family, zygote, region) = ctx.zygote(16, &hold)?;
    let holder = family.fork(&zygote)?;
    let ranges = [region.range()];
    let mut bytes = Bytes::default()
        .with(holder.pid.to_ne_bytes())
        .with(0u32.to_ne_bytes())
        .with((ranges.as_ptr() as u64).to_ne_bytes())
        .with(1u32.to_ne_bytes())
        .with(0u32.to_ne_bytes())
        .with(name("process"))
        .with([0; uapi::NAME_LEN + 24])
        .with(signature);
    call(ctx.device(), uapi::TEMPLATE_ADD_SIGNED, &mut bytes)?;
    ensure!(shown("process")? == hex, "{}", shown("process")?);
    let source = host::read(module::sysfs("templates/process/source"))?;
    ensure!(source == "process", "source is {source:?}");
    let result = attach_signed(ctx, &dir, "process", other);
    expect_errno("another process", result, &[libc::EKEYREJECTED])
}

/// Callers of the first version give less and get less; sizes between the versions are none.
pub fn earlier_versions_of_the_structures(ctx: &mut Ctx) -> Result<()> {
    let template = ctx.template(16)?;
    let cgroup = ctx.cgroup("box")?;
    let dir = File::open(cgroup.path())?;
    let first = size_of::<uapi::SandboxAttach>();
    let second = size_of::<uapi::SandboxAttachSigned>();
    let command = |size: usize| (uapi::SANDBOX_ATTACH & !(0x3fff << 16)) | ((size as u32) << 16);
    let structure = || {
        let mut bytes = Bytes::default()
            .with(dir.as_raw_fd().to_ne_bytes())
            .with(0u32.to_ne_bytes())
            .with(name(&template.name))
            .with([0; 2 * uapi::NAME_LEN + 8]);
        // Beyond what the command's size covers.
        bytes.0.resize(second + 64, 0xa5);
        bytes
    };
    for size in first + 1..second {
        let result = call(ctx.device(), command(size), &mut structure());
        expect_errno(
            &format!("attach with {size} bytes"),
            result,
            &[libc::EINVAL],
        )?;
    }
    let mut bytes = structure();
    call(ctx.device(), command(first), &mut bytes).context("the first version")?;
    ensure!(
        bytes.0[first..].iter().all(|&b| b == 0xa5),
        "the kernel wrote beyond the first version"
    );
    let id = output(&Bytes(bytes.0[..first].to_vec()), 1);
    ensure!(id == cgroup.id()?, "id {id}");
    ctx.device().detach(id)?;
    Ok(())
}

/// The controller computes signatures and finds ranges in real processes.
pub fn controller_computes_them(ctx: &mut Ctx) -> Result<()> {
    ctx.swap()?;
    let (path, _file) = disk_file(64)?;
    let hold = ctx.holder_cgroup("hold")?;
    let (mut family, zygote, region) = ctx.zygote(16, &hold)?;
    let holder = family.fork(&zygote)?;
    host::drain_page_batches()?;
    run(&["template", "add", "--file", &path, "--name", "file"])?;
    let pid = holder.pid.to_string();
    let added = run(&["template", "add", "--pid", &pid, "--name", "process"])?;
    ensure!(!added.contains("signature none"), "{added}");

    // A member of the family is like the holder; a program of its own is not.
    let cgroups = [
        ctx.cgroup("like")?,
        ctx.cgroup("unlike")?,
        ctx.cgroup("mapped")?,
    ];
    let paths = cgroups.each_ref().map(|c| c.path().display().to_string());
    let like = family.fork(&zygote)?;
    cgroups[0].enter(like.pid)?;
    let attached = run(&[
        "sandbox",
        "attach",
        &paths[0],
        "--template",
        "process",
        "--json",
    ])?;
    ensure!(attached.contains("\"signature\": \""), "{attached}");
    like.check(&region)?;
    // Whoever reads a program first is charged for its pages, and others may keep them.
    output_of(Path::new("sleep"), &["0"])?;
    let unlike = family.fork(&zygote)?;
    cgroups[1].enter(unlike.pid)?;
    unlike.exec()?;
    let name = format!("/proc/{}/comm", unlike.pid);
    host::wait_until("it should exec", Duration::from_secs(10), || {
        Ok(host::read(&name)? == "sleep")
    })?;
    let refused = controller(&["sandbox", "attach", &paths[1], "--template", "process"])?;
    let error = refused.err().context("another program was attached")?;
    ensure!(
        error.contains("was not cloned from") && error.contains("--signature"),
        "{error}"
    );
    run(&[
        "sandbox",
        "attach",
        &paths[1],
        "--template",
        "process",
        "--signature",
        "none",
    ])?;

    let puppet = family.fork(&zygote)?;
    cgroups[2].enter(puppet.pid)?;
    let mut mapped = Region::new(12, 32);
    puppet.map_file(&mapped, &path, (8 * PAGE_SIZE) as u64)?;
    let arguments = [
        "sandbox",
        "attach",
        &paths[2],
        "--template",
        "file",
        "--mapped",
        &path,
    ];
    run(&arguments)?;
    write_near(&puppet, &mut mapped, 8, 0)?;
    page_out(&cgroups[2], &puppet, &mapped)?;
    let sandbox = Sandbox {
        id: cgroups[2].id()?,
        cgroup: cgroups[2].clone(),
    };
    needs_template(&sandbox, 32 - 2)?;
    puppet.check(&mapped)?;
    let status = run(&["status"])?;
    ensure!(!status.contains("ALARM"), "{status}");
    Ok(std::fs::remove_file(path)?)
}
