// SPDX-License-Identifier: GPL-2.0

//! Groups: sandboxes of one task, in one domain, of one template.
//!
//! They share reference pages, the index that leads to them, and dictionaries. A group comes into being with its
//! first sandbox and goes with its last: every user of a reference page or a dictionary is an
//! entry of one of its sandboxes or a store of one, so none is left then.

use kernel::prelude::*;
use kernel::sync::atomic::{Atomic, Relaxed};
use kernel::sync::{new_spinlock, Arc, SpinLock};

use crate::dictionary::Dictionary;
use crate::domain::Domain;
use crate::pages::{self, DirectMap};
use crate::store_policy::{self, Service, MAX_DICTIONARIES};
use crate::uapi::Name;

/// Most pages of the content index of a group: 1 MiB.
const INDEX_PAGES: u32 = 256;

/// A group.
#[pin_data(PinnedDrop)]
pub(crate) struct Group {
    pub(crate) name: Name,
    pub(crate) domain: Arc<Domain>,
    /// Id of the template in its table.
    pub(crate) template_id: usize,
    /// Whether it is that of a sensitive sandbox alone: nothing ever gets into it.
    pub(crate) private: bool,
    /// Id of one of its sandboxes, so that a walk over these meets each group once.
    representative: Atomic<usize>,
    /// Nests inside the lock of a slot; see the engine for the order.
    #[pin]
    pub(crate) shared: SpinLock<store_policy::Group<DirectMap>>,
    /// How often a dictionary was added: the second look renews entries once for each time.
    edition: Atomic<u32>,
    /// The dictionaries that `shared` counts the users of, by number. Taken in load, under no other
    /// spinlock; `shared` nests inside.
    #[pin]
    dictionaries: SpinLock<[Option<Arc<Dictionary>>; MAX_DICTIONARIES as usize]>,
}

impl Group {
    /// A group that the sandbox with this id is about to join. Makes no reference page until it has
    /// a budget.
    pub(crate) fn new(
        name: Name,
        domain: Arc<Domain>,
        template_id: usize,
        representative: usize,
        private: bool,
    ) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            name,
            domain,
            template_id,
            private,
            representative: Atomic::new(representative),
            shared <- new_spinlock!(
                // INVARIANT: Inside a structure of the store policy.
                store_policy::Group::new(DirectMap, 0, INDEX_PAGES),
                "agentzip_group"
            ),
            edition: Atomic::new(0),
            dictionaries <- new_spinlock!(
                [const { None }; MAX_DICTIONARIES as usize],
                "agentzip_dictionaries"
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

    /// How often a dictionary was added.
    pub(crate) fn edition(&self) -> u32 {
        self.edition.load(Relaxed)
    }

    /// The dictionary with this number.
    pub(crate) fn dictionary(&self, number: u8) -> Option<Arc<Dictionary>> {
        let dictionaries = self.dictionaries.lock();
        dictionaries.get(usize::from(number))?.clone()
    }

    /// Makes a dictionary the current one, retires the former; returns its number. The caller holds the
    /// control lock. `ENOSPC` when all numbers are taken.
    pub(crate) fn add_dictionary(&self, dictionary: Arc<Dictionary>) -> Result<u8> {
        // Who is given the number by `shared` finds the dictionary: it waits for this lock.
        let mut dictionaries = self.dictionaries.lock();
        let number = self.shared.lock().dictionaries.add().ok_or(ENOSPC)?;
        if let Some(place) = dictionaries.get_mut(usize::from(number)) {
            *place = Some(dictionary);
        }
        // The control lock is held: nobody else counts.
        self.edition.store(self.edition().wrapping_add(1), Relaxed);
        Ok(number)
    }

    /// Retires the current dictionary; returns its number. The caller holds the control lock. `ENOENT`
    /// when there is none.
    pub(crate) fn retire_dictionary(&self) -> Result<u8> {
        let dictionaries = &mut self.shared.lock().dictionaries;
        let number = dictionaries.current().ok_or(ENOENT)?;
        dictionaries.retire();
        Ok(number)
    }

    /// Drops retired dictionaries that no payload needs any more. May sleep; the caller holds the control
    /// lock, so that nobody is given their numbers meanwhile.
    pub(crate) fn drop_unused_dictionaries(&self) {
        loop {
            let unused = self.shared.lock().dictionaries.take_unused();
            let Some(number) = unused else { return };
            let dictionary = {
                let mut dictionaries = self.dictionaries.lock();
                dictionaries
                    .get_mut(usize::from(number))
                    .and_then(Option::take)
            };
            drop(dictionary);
        }
    }

    /// Its dictionaries.
    pub(crate) fn dictionaries(&self) -> DictionaryUse {
        let dictionaries = self.dictionaries.lock();
        let mut sum = DictionaryUse::default();
        for dictionary in dictionaries.iter().flatten() {
            sum.count += 1;
            sum.bytes += dictionary.bytes();
        }
        let shared = self.shared.lock();
        let users = &shared.dictionaries;
        sum.current_users = users
            .current()
            .map_or(0, |number| users.users(number).into());
        sum.service = users.service();
        sum
    }
}

/// What the dictionaries of a group amount to.
#[derive(Default)]
pub(crate) struct DictionaryUse {
    /// How many there are, the current one and older ones that still have users.
    pub(crate) count: u64,
    /// Bytes of their contents and of zstd's tables.
    pub(crate) bytes: u64,
    /// Payloads that need the current one.
    pub(crate) current_users: u64,
    /// How well the current one serves.
    pub(crate) service: Service,
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
