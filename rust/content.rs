// SPDX-License-Identifier: GPL-2.0

//! The content index of a template: from the sketch of a page to template pages that resemble it.
//!
//! For sandboxes whose pages lie at other indexes than the template's, as those that were started
//! from scratch. The worker builds it, some pages at a time; what it leads to is looked at before
//! it is used, so it serves while it grows.

use kernel::prelude::*;
use kernel::sync::atomic::{Atomic, Relaxed};
use kernel::sync::{new_spinlock, rcu, SpinLock};

use crate::codec;
use crate::pages::{self, DirectMap, Limit, Payer};
use crate::store_policy::{feature_keys, Index, Where, PAGE_BYTES};
use crate::template::TemplatePages;

/// Most pages of the index: 2 MiB.
const MAX_PAGES: u32 = 512;

/// Template pages that a round of the worker takes up.
const SLICE: usize = 4096;

/// The index.
#[pin_data(PinnedDrop)]
pub(crate) struct ContentIndex {
    /// Nests inside nothing but RCU; pages are allocated outside.
    #[pin]
    index: SpinLock<Index<DirectMap>>,
    /// Template pages taken up so far.
    done: Atomic<usize>,
}

impl ContentIndex {
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            // INVARIANT: Inside a structure of the store policy.
            index <- new_spinlock!(Index::new(DirectMap, MAX_PAGES), "agentzip_content"),
            done: Atomic::new(0),
        })
    }

    /// Calls `f` with the index. Does not sleep.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&Index<DirectMap>) -> R) -> R {
        f(&self.index.lock())
    }

    /// Takes up the next pages, as far as there is memory below `limit` for it. One caller at a time
    /// (the control lock).
    pub(crate) fn build(&self, template: &TemplatePages, limit: &Limit) {
        let start = self.done.load(Relaxed);
        let end = start.saturating_add(SLICE).min(template.len());
        for ordinal in start..end {
            let sketch = {
                let rcu = rcu::read_lock();
                let page = template.page(ordinal as u32, &rcu);
                page.map(codec::sketch)
            };
            if sketch.is_some_and(|sketch| !self.insert(ordinal as u32, &sketch, limit)) {
                return;
            }
            self.done.store(ordinal + 1, Relaxed);
        }
    }

    /// Enters a page. False when that takes memory which is not there now.
    fn insert(&self, ordinal: u32, sketch: &codec::Sketch, limit: &Limit) -> bool {
        // The first page of all serves the index itself: then it wants another.
        while self.index.lock().wants_page() {
            let page = limit
                .allows(pages::bytes())
                .then(|| pages::allocate(Payer::NobodyWaiting));
            let Some(page) = page.flatten() else {
                return false;
            };
            if !self.index.lock().add_page(page) {
                pages::free(page);
                break;
            }
        }
        let mut index = self.index.lock();
        for key in feature_keys(sketch) {
            index.insert(key, Where::Template(ordinal));
        }
        true
    }

    /// Template pages taken up so far.
    pub(crate) fn done(&self) -> u64 {
        self.done.load(Relaxed) as u64
    }

    /// Bytes of its pages.
    pub(crate) fn bytes(&self) -> u64 {
        self.index.lock().pages() * PAGE_BYTES as u64
    }
}

#[pinned_drop]
impl PinnedDrop for ContentIndex {
    fn drop(self: Pin<&mut Self>) {
        self.index.lock().clear(pages::free);
    }
}
