// SPDX-License-Identifier: GPL-2.0

//! Scratch: the copy of a page, the engine's buffers and the zstd contexts. Allocated when the module
//! loads, as one for each possible CPU, so that CPU hotplug needs nothing, or as many as the bound on
//! their bytes leaves room for: what stores and loads need in passing is never more.
//!
//! Locking: one mutex for each, taken as zswap does: pick the one of the CPU that we happen to run
//! on, then lock its mutex. The task may migrate in between or sleep while it holds it; the mutex, not the
//! CPU, gives exclusion. So CPUs can share one. While it is taken any other that is free serves as well;
//! only if none is, the task sleeps. The locks of slots, arenas and groups, the page allocator's and RCU nest
//! inside; no folio is locked under it. Under it handles of dictionaries are taken and dropped.

use kernel::alloc::flags::{GFP_KERNEL, __GFP_ZERO};
use kernel::cpu::CpuId;
use kernel::prelude::*;
use kernel::sync::{new_mutex, Mutex, MutexGuard};

use crate::bindings;
use crate::codec::Page;
use crate::pages;
use crate::store_policy::engine::Work;
use crate::zstd::{Dictionaries, Zstd};

/// Plain buffers, all-zero valid.
pub(crate) struct Buffers {
    /// The page to encode: copied once, because O_DIRECT may change the original meanwhile.
    pub(crate) page: Page,
    /// The engine's.
    pub(crate) work: Work,
}

/// What one page at a time is worked on with.
pub(crate) struct Scratch {
    pub(crate) buffers: KVBox<Buffers>,
    pub(crate) zstd: Zstd,
}

impl Scratch {
    /// For the pool: what needs a dictionary can be decompressed.
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

    /// Leaves nothing of a page that was encoded by itself alone. Costs some microseconds.
    pub(crate) fn wipe_after_encode(&mut self) {
        self.buffers.page.fill(0);
        self.buffers.work.wipe();
        self.zstd.wipe_compressor();
    }

    /// Leaves nothing of a page that was decoded by itself alone, likewise.
    pub(crate) fn wipe_after_decode(&mut self) {
        self.buffers.work.wipe();
        self.zstd.wipe_decompressor();
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        pages::zero(&mut self.page);
        self.work.wipe_all(pages::zero);
    }
}

/// All scratch of stores, loads and samples.
pub(crate) struct Pool {
    scratches: KVec<Pin<KBox<Mutex<Scratch>>>>,
    bytes: u64,
}

impl Pool {
    /// As many as possible CPUs, but of no more than `max_bytes` together, and at least one.
    pub(crate) fn new(max_bytes: u64) -> Result<Self> {
        // SAFETY: No preconditions.
        let cpus = unsafe { bindings::agentzip_nr_cpu_ids() } as usize;
        let mut scratches = KVec::with_capacity(cpus, GFP_KERNEL)?;
        let mut bytes = 0u64;
        for made in 0..cpus {
            // All are of one size, which the first one tells.
            let each = bytes.checked_div(made as u64).unwrap_or(0);
            if bytes + each > max_bytes {
                break;
            }
            let scratch = Scratch::new()?;
            bytes += scratch.bytes();
            scratches.push(
                KBox::pin_init(new_mutex!(scratch, "agentzip_scratch"), GFP_KERNEL)?,
                GFP_KERNEL,
            )?;
        }
        Ok(Self { scratches, bytes })
    }

    /// The scratch of the CPU that we run on, or ran on a moment ago, or another one that is free. May
    /// sleep. `None` never happens: there is at least one.
    pub(crate) fn lock(&self) -> Option<MutexGuard<'_, Scratch>> {
        let cpu = CpuId::current().as_u32() as usize;
        let mine = cpu.checked_rem(self.scratches.len())?;
        let (before, from) = self.scratches.split_at_checked(mine)?;
        let free = from.iter().find_map(|scratch| scratch.try_lock());
        free.or_else(|| before.iter().find_map(|scratch| scratch.try_lock()))
            .or_else(|| Some(from.first()?.lock()))
    }

    /// Bytes of all scratch; fixed.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}
