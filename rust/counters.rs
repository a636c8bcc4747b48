// SPDX-License-Identifier: GPL-2.0

//! Counters about pages, kept once for the whole store and once for each sandbox.
//!
//! All are relaxed atomics: each is exact by itself, a reader sees no common instant.

use kernel::sync::atomic::{Atomic, Relaxed};

use crate::codec::Representation;
use crate::store_policy::engine::Erased;
use crate::uapi;

/// A number that goes up and down; never below zero once all updates are through.
pub(crate) struct Counter(Atomic<u64>);

impl Counter {
    pub(crate) const fn new() -> Self {
        Self(Atomic::new(0))
    }

    pub(crate) fn add(&self, n: u64) {
        self.0.add(n, Relaxed);
    }

    pub(crate) fn sub(&self, n: u64) {
        self.0.add(n.wrapping_neg(), Relaxed);
    }

    /// 0 while updates of the same thing, made on several CPUs, come in the wrong order.
    pub(crate) fn get(&self) -> u64 {
        let n = self.0.load(Relaxed);
        if n > i64::MAX as u64 {
            0
        } else {
            n
        }
    }
}

/// Number of representations.
pub(crate) const REPRESENTATIONS: usize = uapi::Representation::ALL.len();

// The codec and the control interface number the representations alike.
const _: () = {
    assert!(Representation::Fill as u32 == uapi::Representation::Fill as u32);
    assert!(Representation::Ref as u32 == uapi::Representation::Ref as u32);
    assert!(Representation::Delta as u32 == uapi::Representation::Delta as u32);
    assert!(Representation::DeltaZstd as u32 == uapi::Representation::DeltaZstd as u32);
    assert!(Representation::Zstd as u32 == uapi::Representation::Zstd as u32);
    assert!(Representation::Prefix as u32 == uapi::Representation::Prefix as u32);
    assert!(Representation::Dict as u32 == uapi::Representation::Dict as u32);
    assert!(Representation::Padded as u32 == uapi::Representation::Padded as u32);
    assert!(REPRESENTATIONS <= uapi::REPRESENTATION_SLOTS);
};

/// Why a page was declined.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decline {
    /// No representation pays.
    Incompressible,
    /// No memory for a payload or for the table.
    NoMemory,
    /// The bound of the store or of the sandbox is reached.
    Full,
    /// The sandbox was detached, or stores were switched off, after the hook had decided.
    Detached,
}

/// What the restore workers did with the pages of requests, each of which is counted once.
pub(crate) struct Prefetch {
    /// Pages restored.
    pub(crate) pages: Counter,
    /// Pages that were in memory already.
    pub(crate) present: Counter,
    /// Pages that were not swapped out, and not in memory: left as they were.
    pub(crate) absent: Counter,
    /// Pages that were left swapped out.
    pub(crate) dropped: Counter,
    /// Restored pages that were accessed within the hit window.
    pub(crate) hits: Counter,
    /// Restored pages that were not.
    pub(crate) misses: Counter,
    /// Restored pages that have no hit test.
    pub(crate) untested: Counter,
    /// CPU time of jobs and hit tests, ns.
    pub(crate) ns: Counter,
}

impl Prefetch {
    const fn new() -> Self {
        Self {
            pages: Counter::new(),
            present: Counter::new(),
            absent: Counter::new(),
            dropped: Counter::new(),
            hits: Counter::new(),
            misses: Counter::new(),
            untested: Counter::new(),
            ns: Counter::new(),
        }
    }
}

/// The counters; their meaning is documented at [`uapi::PageStats`].
pub(crate) struct Counters {
    pages: [Counter; REPRESENTATIONS],
    bytes: [Counter; REPRESENTATIONS],
    /// Pages stored since the start.
    pub(crate) stores: Counter,
    /// Pages loaded since the start.
    pub(crate) loads: Counter,
    /// Entries that died since the start.
    pub(crate) erased: Counter,
    declined_incompressible: Counter,
    declined_nomem: Counter,
    declined_full: Counter,
    declined_detached: Counter,
    /// Loads that failed a check.
    pub(crate) load_errors: Counter,
    /// Stored pages whose index the template has.
    pub(crate) template_backed: Counter,
    /// Entries whose payload became a reference page.
    promoted: Counter,
    /// Entries that a load ended because a bound was near.
    pub(crate) dropped: Counter,
    /// Entries that wait for a second look.
    pub(crate) provisional: Counter,
    /// Entries that had their second look.
    second_look_pages: Counter,
    /// Bytes of payloads that it has saved in arenas of sandboxes.
    second_look_bytes: Counter,
    /// Time in the second look, ns.
    pub(crate) second_look_ns: Counter,
    /// Time in encoding in reclaim, ns.
    pub(crate) encode_ns: Counter,
    /// Time in decoding, ns.
    pub(crate) decode_ns: Counter,
    /// Of the restore workers.
    pub(crate) prefetch: Prefetch,
    /// Loads by the time that they took in all: number `i` from 2^i ns on.
    latency: [Counter; uapi::LATENCY_BUCKETS],
}

impl Counters {
    pub(crate) const fn new() -> Self {
        Self {
            pages: [const { Counter::new() }; REPRESENTATIONS],
            bytes: [const { Counter::new() }; REPRESENTATIONS],
            stores: Counter::new(),
            loads: Counter::new(),
            erased: Counter::new(),
            declined_incompressible: Counter::new(),
            declined_nomem: Counter::new(),
            declined_full: Counter::new(),
            declined_detached: Counter::new(),
            load_errors: Counter::new(),
            template_backed: Counter::new(),
            promoted: Counter::new(),
            dropped: Counter::new(),
            provisional: Counter::new(),
            second_look_pages: Counter::new(),
            second_look_bytes: Counter::new(),
            second_look_ns: Counter::new(),
            encode_ns: Counter::new(),
            decode_ns: Counter::new(),
            prefetch: Prefetch::new(),
            latency: [const { Counter::new() }; uapi::LATENCY_BUCKETS],
        }
    }

    /// A load has ended that took so many ns in all.
    pub(crate) fn took(&self, ns: u64) {
        let bucket = (ns.max(1).ilog2() as usize).min(uapi::LATENCY_BUCKETS - 1);
        if let Some(loads) = self.latency.get(bucket) {
            loads.add(1);
        }
    }

    /// Loads by the logarithm to base 2 of the ns that they took.
    pub(crate) fn latency(&self) -> &[Counter] {
        &self.latency
    }

    fn add(&self, representation: Representation, bytes: usize) {
        if let Some(pages) = self.pages.get(representation as usize) {
            pages.add(1);
        }
        if let Some(sum) = self.bytes.get(representation as usize) {
            sum.add(bytes as u64);
        }
    }

    fn sub(&self, representation: Representation, bytes: usize) {
        if let Some(pages) = self.pages.get(representation as usize) {
            pages.sub(1);
        }
        if let Some(sum) = self.bytes.get(representation as usize) {
            sum.sub(bytes as u64);
        }
    }

    /// An entry came into being.
    pub(crate) fn stored(&self, representation: Representation, bytes: usize) {
        self.stores.add(1);
        self.add(representation, bytes);
    }

    /// An entry died. `None` when its header was damaged: the counts of its representation stay.
    pub(crate) fn erased(&self, entry: &Erased) {
        self.erased.add(1);
        if entry.provisional {
            self.provisional.sub(1);
        }
        if let Some(representation) = entry.representation {
            self.sub(representation, entry.bytes);
        }
    }

    /// A provisional entry was encoded again: representation and bytes of its payload before and now.
    pub(crate) fn improved(&self, before: (Representation, usize), now: (Representation, usize)) {
        self.provisional.sub(1);
        self.renewed(before, now);
    }

    /// An entry was encoded again with a new dictionary, likewise.
    pub(crate) fn renewed(&self, before: (Representation, usize), now: (Representation, usize)) {
        self.second_look_pages.add(1);
        self.second_look_bytes
            .add(before.1.saturating_sub(now.1) as u64);
        self.sub(before.0, before.1);
        self.add(now.0, now.1);
    }

    /// The payload of an entry became a reference page, which the entry now equals.
    pub(crate) fn promoted(&self, from: Representation, bytes: usize) {
        self.promoted.add(1);
        self.sub(from, bytes);
        self.add(Representation::Ref, 0);
    }

    /// Pages were declined.
    pub(crate) fn declined(&self, why: Decline, pages: usize) {
        match why {
            Decline::Incompressible => &self.declined_incompressible,
            Decline::NoMemory => &self.declined_nomem,
            Decline::Full => &self.declined_full,
            Decline::Detached => &self.declined_detached,
        }
        .add(pages as u64);
    }

    /// The counters as the control interface shows them.
    pub(crate) fn snapshot(&self) -> uapi::PageStats {
        let mut stats = uapi::PageStats {
            stores: self.stores.get(),
            loads: self.loads.get(),
            erased: self.erased.get(),
            declined_incompressible: self.declined_incompressible.get(),
            declined_nomem: self.declined_nomem.get(),
            declined_full: self.declined_full.get(),
            promoted: self.promoted.get(),
            dropped: self.dropped.get(),
            provisional: self.provisional.get(),
            second_look_pages: self.second_look_pages.get(),
            second_look_bytes: self.second_look_bytes.get(),
            second_look_ns: self.second_look_ns.get(),
            declined_detached: self.declined_detached.get(),
            load_errors: self.load_errors.get(),
            template_backed: self.template_backed.get(),
            encode_ns: self.encode_ns.get(),
            decode_ns: self.decode_ns.get(),
            ..Default::default()
        };
        for (out, counter) in stats.pages.iter_mut().zip(&self.pages) {
            *out = counter.get();
        }
        for (out, counter) in stats.bytes.iter_mut().zip(&self.bytes) {
            *out = counter.get();
        }
        stats
    }
}
