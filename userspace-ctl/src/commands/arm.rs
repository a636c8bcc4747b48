// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `agentzip arm` and `agentzip disarm`.

use std::fmt;

use agentzip_uapi::ABI_VERSION;
use serde::Serialize;

use super::explain::{refused, Refusal};
use super::write_warnings;
use crate::device::{Failure, Info};
use crate::error::Result;
use crate::format::count;
use crate::Context;

/// How the BTF of the kernel that the module was built for compares with that of the one that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum KernelBtf {
    /// It is the same.
    Equal,
    /// It is another one: armed by force.
    Different,
    /// One of the two is not known.
    Unknown,
}

/// What `arm` or `disarm` did.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The hooks are installed now.
    pub armed: bool,
    /// They were already as asked for.
    pub unchanged: bool,
    /// New stores are accepted (`enabled`).
    pub enabled: bool,
    /// Whether the module fits the kernel; `None` when that was not looked at, for the hooks were installed
    /// before, or were to go.
    pub kernel_btf: Option<KernelBtf>,
    /// What stands in the way of a saving.
    pub warnings: Vec<String>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let already = if self.unchanged { "already " } else { "" };
        let state = if self.armed { "armed" } else { "disarmed" };
        writeln!(f, "{already}{state}")?;
        write_warnings(f, &self.warnings)
    }
}

/// State of the module, after checking that it speaks our version.
fn info(context: &Context, operation: &'static str) -> Result<Info> {
    let refusal = Refusal {
        operation,
        object: "module".to_owned(),
    };
    let info = context
        .device
        .info()
        .map_err(|failure| refusal.explain(failure, |_, _| None))?;
    if info.abi_version != ABI_VERSION {
        let advice = format!(
            "the module speaks version {} of the control interface, this controller version {ABI_VERSION}; \
             use the two of one build",
            info.abi_version
        );
        return Err(refused(operation, "module", libc::EPROTO, advice));
    }
    Ok(info)
}

/// Compares the kernel that the module was built for with the one that runs, and warns when there is
/// something to warn of.
///
/// # Errors
///
/// When they differ, or a file cannot be read, unless `force` says that this is all right.
fn compare_kernels(
    context: &Context,
    force: bool,
    warnings: &mut Vec<String>,
) -> Result<KernelBtf> {
    let path = context.btf.path().display();
    let unknown = |why: String| {
        format!(
            "nobody can tell whether the module fits this kernel: {why}; \
             arm only a module that was built for it"
        )
    };
    let read = || Ok((context.sysfs.kernel_btf()?, context.btf.digest()?));
    let (built_for, running) = match read() {
        Err(error) if force => {
            warnings.push(unknown(format!("{error}; armed by force")));
            return Ok(KernelBtf::Unknown);
        }
        read => read?,
    };
    let Some(built_for) = built_for else {
        let why = "its build recorded no BTF of the kernel that it is for".to_owned();
        warnings.push(unknown(why));
        return Ok(KernelBtf::Unknown);
    };
    let Some(running) = running else {
        warnings.push(unknown(format!("the kernel has no BTF ({path})")));
        return Ok(KernelBtf::Unknown);
    };
    if built_for == running {
        return Ok(KernelBtf::Equal);
    }
    let difference = format!(
        "the module was built for another kernel: the BTF of that one has SHA-256 {built_for}, \
         {path} of this one {running}, so structures or functions that the module relies on may differ"
    );
    if !force {
        let advice = format!(
            "{difference}; build it for this kernel (cargo xtask build modules, or make modules KDIR=TREE), \
             or arm at your own risk: agentzip arm --force"
        );
        return Err(refused("arm", "module", libc::ENOEXEC, advice));
    }
    warnings.push(format!("{difference}; armed by force"));
    Ok(KernelBtf::Different)
}

/// Installs the hooks; with `force` also those of a module that was built for another kernel.
///
/// # Errors
///
/// When the module refuses, is not there or was built for another kernel.
pub fn arm(context: &Context, force: bool) -> Result<Report> {
    let before = info(context, "arm")?;
    let mut warnings = Vec::new();
    let kernel_btf = match before.armed {
        true => None,
        false => Some(compare_kernels(context, force, &mut warnings)?),
    };
    warnings.extend(prepare_swap_in(context));
    // Arming anew ends draining.
    let unchanged = before.armed && !before.draining;
    if !unchanged {
        let refusal = Refusal {
            operation: "arm",
            object: "module".to_owned(),
        };
        unless_already(context.device.arm()).map_err(|failure| {
            refusal.explain(failure, |errno, _| match errno {
                libc::EOPNOTSUPP => Some(
                    "zswap could not be set up, so the kernel may swap in large folios, which cannot be loaded; \
                     fix: echo N > /sys/module/zswap/parameters/enabled, and see the kernel log when that fails"
                        .to_owned(),
                ),
                libc::EBUSY => Some(
                    "another user redirects zswap_store, zswap_load or zswap_invalidate (a live patch?); \
                     look for the letter I in /sys/kernel/tracing/enabled_functions"
                        .to_owned(),
                ),
                _ => None,
            })
        })?;
    }
    if !before.enabled {
        warnings.push(format!(
            "new stores are off; switch them on: echo 1 > {}/enabled",
            agentzip_uapi::SYSFS_PATH
        ));
    }
    Ok(Report {
        armed: true,
        unchanged,
        enabled: before.enabled,
        kernel_btf,
        warnings,
    })
}

/// Removes the hooks.
///
/// # Errors
///
/// When the module refuses (entries exist) or is not there.
pub fn disarm(context: &Context) -> Result<Report> {
    let before = info(context, "disarm")?;
    if before.armed {
        let refusal = Refusal {
            operation: "disarm",
            object: "module".to_owned(),
        };
        unless_already(context.device.disarm()).map_err(|failure| {
            refusal.explain(failure, |errno, _| {
                let entries = match context.sysfs.entries() {
                    Ok(entries) => format!("the store still holds {}", count(entries, "entry")),
                    Err(_) => "the store still holds entries".to_owned(),
                };
                (errno == libc::EBUSY)
                    .then(|| format!("{entries}; bring them back first: agentzip drain"))
            })
        })?;
    }
    Ok(Report {
        armed: false,
        unchanged: !before.armed,
        enabled: before.enabled,
        kernel_btf: None,
        warnings: Vec::new(),
    })
}

/// `EALREADY` is no failure: somebody else did it; or the module was armed and only left draining.
fn unless_already(result: Result<(), Failure>) -> Result<(), Failure> {
    match result {
        Err(Failure::Refused { errno, .. }) if errno.raw_os_error() == Some(libc::EALREADY) => {
            Ok(())
        }
        other => other,
    }
}

/// Makes the kernel swap in single pages, and looks for what would spoil the saving.
fn prepare_swap_in(context: &Context) -> Vec<String> {
    let mut warnings = Vec::new();
    if let Err(error) = context.zswap.swap_in_single_pages() {
        warnings.push(format!(
            "{error}: zswap must be set up once, on or off: else the kernel may swap in large folios, \
             which cannot be loaded"
        ));
    }
    match context.procfs.page_cluster() {
        Ok(0) => {}
        Ok(cluster) => warnings.push(format!(
            "vm.page-cluster is {cluster}: readahead loads pages that nobody asked for; \
             fix: sysctl vm.page-cluster=0"
        )),
        Err(error) => warnings.push(error.to_string()),
    }
    match context.procfs.swaps() {
        Ok(devices) if devices.is_empty() => warnings.push(
            "no swap is in use: nothing can be reclaimed, so nothing is saved; \
             fix: mkswap DEVICE && swapon DEVICE, as large as all anonymous memory"
                .to_owned(),
        ),
        Ok(_) => {}
        Err(error) => warnings.push(error.to_string()),
    }
    warnings
}
