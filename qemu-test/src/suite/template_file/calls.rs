// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The commands of templates from files, of ranges and of signatures.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use agentzip_uapi as uapi;
use anyhow::{Context, Result};

use super::super::fixture::module::{name, Device};
use super::super::fixture::puppet::Region;
use super::super::fixture::Ctx;
use super::super::sys::{self, PAGE_SIZE};

/// A structure of the interface as bytes, field after field.
#[derive(Default)]
pub struct Bytes(pub Vec<u8>);

impl Bytes {
    /// The same with a field more.
    pub fn with(mut self, field: impl AsRef<[u8]>) -> Bytes {
        self.0.extend(field.as_ref());
        self
    }
}

/// Runs a command.
pub fn call(device: &Device, command: u32, bytes: &mut Bytes) -> io::Result<()> {
    sys::ioctl_bytes(device.fd(), command, &mut bytes.0)
}

/// Number at the end of a structure, counted from the last.
pub fn output(bytes: &Bytes, from_end: usize) -> u64 {
    let words: Vec<u64> = bytes
        .0
        .chunks_exact(8)
        .map(|word| u64::from_ne_bytes(word.try_into().expect("eight bytes")))
        .collect();
    words[words.len() - from_end]
}

/// No signature.
pub const NONE: uapi::Signature = [0; uapi::SIGNATURE_LEN];

/// What became of the pages of a file.
#[derive(Debug, PartialEq, Eq)]
pub struct Taken {
    /// By reference.
    pub referenced: u64,
    /// As copies.
    pub copied: u64,
    /// Not at all.
    pub skipped: u64,
}

/// Registers a part of a file as a template.
pub fn add_part(
    device: &Device,
    template: &str,
    fd: i32,
    offset: u64,
    length: u64,
    signature: uapi::Signature,
) -> io::Result<Taken> {
    let mut bytes = Bytes::default()
        .with(fd.to_ne_bytes())
        .with(0u32.to_ne_bytes())
        .with(offset.to_ne_bytes())
        .with(length.to_ne_bytes())
        .with(name(template))
        .with([0; uapi::NAME_LEN])
        .with(signature)
        .with([0; 24]);
    call(device, uapi::TEMPLATE_ADD_FILE, &mut bytes)?;
    Ok(Taken {
        referenced: output(&bytes, 3),
        copied: output(&bytes, 2),
        skipped: output(&bytes, 1),
    })
}

/// Registers a whole file as a template without a signature.
pub fn add_file(ctx: &Ctx, template: &str, file: &impl AsRawFd) -> Result<Taken> {
    add_part(ctx.device(), template, file.as_raw_fd(), 0, 0, NONE)
        .with_context(|| format!("template {template} from a file"))
}

/// Attaches a cgroup with a signature; returns the id that the module gave.
pub fn attach_signed(
    ctx: &Ctx,
    cgroup: &File,
    template: &str,
    signature: uapi::Signature,
) -> io::Result<u64> {
    let mut bytes = Bytes::default()
        .with(cgroup.as_raw_fd().to_ne_bytes())
        .with(0u32.to_ne_bytes())
        .with(name(template))
        .with([0; 2 * uapi::NAME_LEN])
        .with([0; 8])
        .with(signature);
    call(ctx.device(), uapi::SANDBOX_ATTACH_SIGNED, &mut bytes)?;
    let after = bytes.0.len() - uapi::SIGNATURE_LEN;
    Ok(output(&Bytes(bytes.0[..after].to_vec()), 1))
}

/// Replaces the ranges of a sandbox.
pub fn set_ranges(ctx: &Ctx, id: u64, ranges: &[uapi::SandboxRange]) -> io::Result<()> {
    set_ranges_at(ctx, id, ranges.as_ptr() as u64, ranges.len() as u32)
}

/// The same with any address and count.
pub fn set_ranges_at(ctx: &Ctx, id: u64, address: u64, count: u32) -> io::Result<()> {
    let mut bytes = Bytes::default()
        .with(id.to_ne_bytes())
        .with(address.to_ne_bytes())
        .with(count.to_ne_bytes())
        .with(0u32.to_ne_bytes());
    call(ctx.device(), uapi::SANDBOX_RANGES, &mut bytes)
}

/// The range of a region whose first page is this one of the template.
pub fn range(region: &Region, first: usize) -> uapi::SandboxRange {
    let uapi::Range { start, end } = region.range();
    uapi::SandboxRange {
        start,
        end,
        offset: (first * PAGE_SIZE) as u64,
    }
}
