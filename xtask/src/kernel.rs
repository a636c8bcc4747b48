// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The kernels that a guest can run.

use std::path::PathBuf;

use crate::paths;
use crate::setup::Cache;

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// Debian's own, unmodified.
    Stock,
    /// Built from the same source with every checker: qemu-test/debug-kernel/debug.config.
    Debug,
}

impl Kernel {
    /// For names of logs and guests: `name` itself, or `name-debug`.
    pub fn label(self, name: &str) -> String {
        match self {
            Kernel::Stock => name.to_owned(),
            Kernel::Debug => format!("{name}-debug"),
        }
    }

    /// For people.
    pub fn title(self) -> &'static str {
        match self {
            Kernel::Stock => "stock kernel",
            Kernel::Debug => "debug kernel",
        }
    }

    /// Build tree to compile modules with.
    pub fn buildtree(self, cache: &Cache) -> PathBuf {
        match self {
            Kernel::Stock => cache.buildtree.clone(),
            Kernel::Debug => cache.debugkernel.clone(),
        }
    }

    /// Image to boot.
    pub fn image(self, cache: &Cache) -> PathBuf {
        match self {
            Kernel::Stock => cache.initramfs.join("vmlinuz"),
            Kernel::Debug => cache.debugkernel.join("vmlinuz"),
        }
    }

    /// The copy of the module's sources that Kbuild works on.
    pub fn stage(self) -> PathBuf {
        paths::target().join(self.label("kmod"))
    }

    /// What is added to the kernel command line.
    pub fn cmdline(self) -> &'static str {
        match self {
            Kernel::Stock => "",
            // Compiled in, but only done when asked for. Checks in the slab allocator keep it from
            // using per-CPU arrays, where stale addresses hide lost objects from kmemleak. Long
            // reports fit the log buffer.
            Kernel::Debug => " page_poison=1 slab_debug=F log_buf_len=4M",
        }
    }
}
