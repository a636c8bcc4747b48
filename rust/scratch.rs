// SPDX-License-Identifier: GPL-2.0

//! Per-CPU scratch: the copy of the page, the engine's buffers and the zstd contexts. Allocated for
//! every possible CPU when the module loads, so that CPU hotplug needs nothing.
//!
//! Locking: one mutex for each CPU, taken as zswap does: pick the CPU that we happen to run on, then
//! lock its mutex. The task may migrate in between or sleep while it holds it; the mutex, not the
//! CPU, gives exclusion. The locks of slots, arenas and groups, the page allocator's and RCU nest
//! inside; no folio is locked under it. Under it handles of dictionaries are taken and dropped.

use kernel::alloc::flags::{GFP_KERNEL, __GFP_ZERO};
use kernel::cpu::CpuId;
use kernel::prelude::*;
use kernel::sync::{new_mutex, Mutex, MutexGuard};

use crate::bindings;
use crate::codec::Page;
use crate::store_policy::engine::Work;
use crate::zstd::{Dictionaries, Zstd};

/// Plain buffers, all-zero valid.
pub(crate) struct Buffers {
    /// The page to encode: copied once, because O_DIRECT may change the original meanwhile.
    pub(crate) page: Page,
    /// The engine's.
    pub(crate) work: Work,
}

/// The scratch of one CPU.
pub(crate) struct Scratch {
    pub(crate) buffers: KVBox<Buffers>,
    pub(crate) zstd: Zstd,
}

impl Scratch {
    /// For a CPU: what needs a dictionary can be decompressed.
    fn new() -> Result<Self> {
        Self::with(Dictionaries::Decompress)
    }

    /// For who compresses with dictionaries, too.
    pub(crate) fn with_dictionaries() -> Result<Self> {
        Self::with(Dictionaries::Compress)
    }

    fn with(dictionaries: Dictionaries) -> Result<Self> {
        let buffers = KVBox::<Buffers>::new_uninit(GFP_KERNEL | __GFP_ZERO)?;
        Ok(Self {
            // SAFETY: All bytes zero is a valid value: arrays of bytes.
            buffers: unsafe { buffers.assume_init() },
            zstd: Zstd::new(dictionaries)?,
        })
    }

    pub(crate) fn bytes(&self) -> u64 {
        size_of::<Buffers>() as u64 + self.zstd.bytes()
    }
}

/// The scratch of all CPUs.
pub(crate) struct PerCpu {
    cpus: KVec<Pin<KBox<Mutex<Scratch>>>>,
    bytes: u64,
}

impl PerCpu {
    pub(crate) fn new() -> Result<Self> {
        // SAFETY: No preconditions.
        let count = unsafe { bindings::agentzip_nr_cpu_ids() } as usize;
        let mut cpus = KVec::with_capacity(count, GFP_KERNEL)?;
        let mut bytes = 0;
        for _ in 0..count {
            let scratch = Scratch::new()?;
            bytes += scratch.bytes();
            cpus.push(
                KBox::pin_init(new_mutex!(scratch, "agentzip_scratch"), GFP_KERNEL)?,
                GFP_KERNEL,
            )?;
        }
        Ok(Self { cpus, bytes })
    }

    /// The scratch of the CPU that we run on, or ran on a moment ago. May sleep. `None` never
    /// happens: every possible CPU has one.
    pub(crate) fn lock(&self) -> Option<MutexGuard<'_, Scratch>> {
        let cpu = CpuId::current().as_u32() as usize;
        self.cpus.get(cpu).map(|scratch| scratch.lock())
    }

    /// Bytes of all scratch; fixed.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}
