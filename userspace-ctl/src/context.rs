// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Everything that a command works on.

use std::path::PathBuf;

use crate::btf::Btf;
use crate::cgroup::Hierarchy;
use crate::device::{Device, KernelDevice};
use crate::host::{Host, Machine};
use crate::procfs::Procfs;
use crate::sysfs::Sysfs;
use crate::zswap::Zswap;

/// Where things are.
#[derive(Clone, Debug)]
pub struct Paths {
    /// The control device.
    pub device: PathBuf,
    /// The module's sysfs tree.
    pub sysfs: PathBuf,
    /// The cgroup v2 mount; found in `/proc/self/mountinfo` when `None`.
    pub cgroup_root: Option<PathBuf>,
    /// The procfs mount.
    pub proc: PathBuf,
    /// Parameters of zswap.
    pub zswap: PathBuf,
    /// BTF of the running kernel.
    pub btf: PathBuf,
}

impl Default for Paths {
    fn default() -> Self {
        Paths {
            device: agentzip_uapi::DEVICE_PATH.into(),
            sysfs: agentzip_uapi::SYSFS_PATH.into(),
            cgroup_root: None,
            proc: "/proc".into(),
            zswap: "/sys/module/zswap/parameters".into(),
            btf: "/sys/kernel/btf/vmlinux".into(),
        }
    }
}

/// The layers that commands use.
pub struct Context {
    /// Commands of the module.
    pub device: Box<dyn Device>,
    /// Processes and swap devices.
    pub host: Box<dyn Host>,
    /// Statistics of the module.
    pub sysfs: Sysfs,
    /// The cgroup tree.
    pub cgroups: Hierarchy,
    /// Processes, memory, swap.
    pub procfs: Procfs,
    /// The kernel's own compressed cache.
    pub zswap: Zswap,
    /// Its structures and functions.
    pub btf: Btf,
}

impl Context {
    /// The real device and host, at these paths.
    pub fn new(paths: &Paths) -> Context {
        Context::with(
            paths,
            Box::new(KernelDevice::new(paths.device.clone())),
            Box::new(Machine),
        )
    }

    /// Another device and host; the trees of files at these paths.
    pub fn with(paths: &Paths, device: Box<dyn Device>, host: Box<dyn Host>) -> Context {
        let procfs = Procfs::new(paths.proc.clone());
        let cgroup_root = paths
            .cgroup_root
            .clone()
            .or_else(|| procfs.cgroup2_mount())
            .unwrap_or_else(|| "/sys/fs/cgroup".into());
        Context {
            device,
            host,
            sysfs: Sysfs::new(paths.sysfs.clone()),
            cgroups: Hierarchy::new(cgroup_root),
            procfs,
            zswap: Zswap::new(paths.zswap.clone()),
            btf: Btf::new(paths.btf.clone()),
        }
    }
}
