// SPDX-License-Identifier: GPL-2.0

//! Groups: sandboxes of one task, in one domain, of one template.
//!
//! They share reference pages and the index that leads to them. A group comes into being with its
//! first sandbox and goes with its last: every user of a reference page is an entry of one of its
//! sandboxes or a store of one, so none is left then.

use kernel::prelude::*;
use kernel::sync::atomic::{Atomic, Relaxed};
use kernel::sync::{new_spinlock, SpinLock};

use crate::pages::{self, DirectMap};
use crate::store_policy;
use crate::uapi::Name;

/// Most pages of the content index of a group: 2 MiB.
const INDEX_PAGES: u32 = 512;

/// A group.
#[pin_data(PinnedDrop)]
pub(crate) struct Group {
    pub(crate) name: Name,
    pub(crate) domain: Name,
    /// Id of the template in its table.
    pub(crate) template_id: usize,
    /// Id of one of its sandboxes, so that a walk over these meets each group once.
    representative: Atomic<usize>,
    /// Nests inside the lock of a slot; see the engine for the order.
    #[pin]
    pub(crate) shared: SpinLock<store_policy::Group<DirectMap>>,
}

impl Group {
    /// A group that the sandbox with this id is about to join. Makes no reference page until it has
    /// a budget.
    pub(crate) fn new(
        name: Name,
        domain: Name,
        template_id: usize,
        representative: usize,
    ) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            name,
            domain,
            template_id,
            representative: Atomic::new(representative),
            shared <- new_spinlock!(
                // INVARIANT: Inside a structure of the store policy.
                store_policy::Group::new(DirectMap, 0, INDEX_PAGES),
                "agentzip_group"
            ),
        }? Error)
    }

    /// Sets the most bytes that its reference pages may take.
    pub(crate) fn set_budget(&self, bytes: u64) {
        let pages = bytes / kernel::page::PAGE_SIZE as u64;
        self.shared.lock().set_budget(pages);
    }

    /// Whether the sandbox with this id stands for the group.
    pub(crate) fn is_represented_by(&self, id: usize) -> bool {
        self.representative.load(Relaxed) == id
    }

    /// Lets the sandbox with this id stand for the group. The caller holds the control lock.
    pub(crate) fn represent_by(&self, id: usize) {
        self.representative.store(id, Relaxed);
    }

    /// Bytes of its reference pages with their table, and of its index.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        let page = kernel::page::PAGE_SIZE as u64;
        let shared = self.shared.lock();
        let references = shared.arena.pages() + shared.references.pages();
        (references * page, shared.index.pages() * page)
    }

    /// Number of its reference pages.
    pub(crate) fn references(&self) -> u64 {
        self.shared.lock().references.live().into()
    }
}

#[pinned_drop]
impl PinnedDrop for Group {
    fn drop(self: Pin<&mut Self>) {
        let mut shared = self.shared.lock();
        let left = shared.references.live();
        if left != 0 {
            // Only after a payload was found damaged when it was freed: what it named is unknown.
            pr_warn!("group removed with {} reference pages in use\n", left);
        }
        shared.clear(pages::free);
    }
}
