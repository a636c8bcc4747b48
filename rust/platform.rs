// SPDX-License-Identifier: GPL-2.0

//! The kernel as the engine's platform: whose locks, pages and tables it runs on.
//!
//! Every closure runs under the lock, or the RCU section, that [`Platform`] names for its method.

use core::cell::Cell;

use kernel::sync::atomic::Relaxed;
use kernel::sync::rcu;
use kernel::sync::Arc;

use crate::bindings;
use crate::codec::{Base, BaseId, Page, PAGE_SIZE};
use crate::dictionary::Dictionary;
use crate::pages::{self, DirectMap, Payer};
use crate::sandbox::Sandbox;
use crate::state::State;
use crate::store_policy::engine::{Account, NoMemory, Platform, Promoted};
use crate::store_policy::template::MAX_CANDIDATES;
use crate::store_policy::{Arenas, Descriptor, Group, Index, Owner, Slot};

/// What pages of an arena are for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// A page that reclaim wants to be rid of: without waiting, and within the bounds.
    Store,
    /// A smaller payload in exchange for one that is there. The bounds do not count: at a bound this
    /// is what makes room. The caller may wait for memory.
    Exchange,
}

/// The kernel as the engine's platform.
pub(crate) struct Site<'a> {
    pub(crate) state: &'a State,
    /// Who pays for the arenas of the sandbox that stores, and what for. `None` outside of that.
    payer: Option<(&'a MemoryCgroup, Need)>,
    /// Whether a page was refused because a bound is reached, not for lack of memory.
    pub(crate) full: Cell<bool>,
}

impl<'a> Site<'a> {
    /// For everything that allocates no page of an arena.
    pub(crate) fn new(state: &'a State) -> Self {
        Self {
            state,
            payer: None,
            full: Cell::new(false),
        }
    }

    /// For what allocates pages of an arena that this memory cgroup pays for.
    pub(crate) fn paid_by<'b>(&'b self, payer: &'b MemoryCgroup, need: Need) -> Site<'b> {
        Site {
            payer: Some((payer, need)),
            ..Site::new(self.state)
        }
    }

    /// Calls `f` with a sandbox, under RCU. `None` when there is no such sandbox.
    pub(crate) fn sandbox<R>(&self, owner: Owner, f: impl FnOnce(&Sandbox) -> R) -> Option<R> {
        let rcu = rcu::read_lock();
        self.state.sandboxes.get(owner.index(), &rcu).map(f)
    }
}

impl Platform for Site<'_> {
    type Pages = DirectMap;
    type Dictionary = Arc<Dictionary>;

    fn entry<R>(&self, slot: Slot, f: impl FnOnce(&mut Descriptor) -> R) -> Option<R> {
        self.state.table.entry(slot, f)
    }

    fn put(&self, slot: Slot, new: Descriptor) -> Result<Option<Descriptor>, NoMemory> {
        self.state.table.replace(slot, new).map_err(|_| NoMemory)
    }

    fn take(&self, slot: Slot) -> Option<Descriptor> {
        self.state.table.erase(slot)
    }

    fn arena<R>(&self, owner: Owner, f: impl FnOnce(&mut Arenas<DirectMap>) -> R) -> Option<R> {
        self.sandbox(owner, |sandbox| f(&mut sandbox.arenas.lock()))
    }

    fn is_compacting(&self, owner: Owner) -> bool {
        self.sandbox(owner, |sandbox| sandbox.compacting.load(Relaxed) != 0) == Some(true)
    }

    fn group<R>(&self, owner: Owner, f: impl FnOnce(&mut Group<DirectMap>) -> R) -> Option<R> {
        self.sandbox(owner, |sandbox| f(&mut sandbox.group.shared.lock()))
    }

    fn same_group(&self, a: Owner, b: Owner) -> bool {
        let group = |owner| self.sandbox(owner, |sandbox| core::ptr::from_ref(&*sandbox.group));
        a == b || group(a).is_some_and(|first| group(b) == Some(first))
    }

    fn template_bases<R>(&self, owner: Owner, index: u64, f: impl FnOnce(&[Base<'_>]) -> R) -> R {
        let rcu = rcu::read_lock();
        const NONE: Page = [0; PAGE_SIZE];
        let mut bases = [Base {
            id: BaseId::Template(0),
            page: &NONE,
        }; MAX_CANDIDATES];
        let mut count = 0;
        if let Some(sandbox) = self.state.sandboxes.get(owner.index(), &rcu) {
            let pages = &sandbox.template.pages;
            let candidates = sandbox.candidates(index);
            for (base, &ordinal) in bases.iter_mut().zip(candidates.as_slice()) {
                if let Some(page) = pages.page(ordinal, &rcu) {
                    *base = Base {
                        id: BaseId::Template(ordinal),
                        page,
                    };
                    count += 1;
                }
            }
        }
        f(bases.get(..count).unwrap_or_default())
    }

    fn template_page<R>(
        &self,
        owner: Owner,
        ordinal: u32,
        f: impl FnOnce(&Page) -> R,
    ) -> Option<R> {
        let rcu = rcu::read_lock();
        let sandbox = self.state.sandboxes.get(owner.index(), &rcu)?;
        sandbox.template.pages.page(ordinal, &rcu).map(f)
    }

    fn template_index<R>(&self, owner: Owner, f: impl FnOnce(&Index<DirectMap>) -> R) -> Option<R> {
        self.sandbox(owner, |sandbox| sandbox.template.content.with(f))
    }

    fn dictionary(&self, owner: Owner, number: u8) -> Option<Arc<Dictionary>> {
        self.sandbox(owner, |sandbox| sandbox.group.dictionary(number))?
    }

    fn allocate(&self, owner: Owner, account: Account) -> Option<u32> {
        let bounded = self.state.max_bytes.allows(pages::bytes());
        match account {
            Account::Group if bounded => pages::allocate(Payer::Nobody),
            Account::Group => None,
            Account::Sandbox => {
                let (payer, need) = self.payer?;
                if need == Need::Exchange {
                    return pages::allocate(Payer::CgroupWaiting(payer.0));
                }
                let within = self.sandbox(owner, |sandbox| {
                    sandbox.max_bytes.allows(sandbox.arena_bytes())
                });
                if !bounded || within != Some(true) {
                    self.full.set(true);
                    return None;
                }
                pages::allocate(Payer::Cgroup(payer.0))
            }
        }
    }

    fn free(&self, page: u32) {
        pages::free(page);
    }

    fn promoted(&self, promoted: &Promoted) {
        self.state.counters.promoted(promoted.from, promoted.bytes);
        self.sandbox(promoted.owner, |maker| {
            maker.counters.promoted(promoted.from, promoted.bytes)
        });
    }
}

/// A reference to the memory cgroup of a sandbox, which pays for its arena.
///
/// # Invariants
///
/// The value owns the reference.
pub(crate) struct MemoryCgroup(*mut bindings::mem_cgroup);

impl MemoryCgroup {
    /// Takes a reference. `None` when the memory cgroup has been removed.
    ///
    /// # Safety
    ///
    /// It is valid during the call: the caller holds RCU since it looked it up.
    pub(crate) unsafe fn get(memcg: *mut bindings::mem_cgroup) -> Option<Self> {
        // SAFETY: By the safety requirements.
        let taken = unsafe { bindings::agentzip_memcg_tryget(memcg) };
        // INVARIANT: Just taken.
        taken.then_some(Self(memcg))
    }

    /// That of a cgroup v2 directory. `None` when it was removed. May sleep.
    pub(crate) fn of_cgroup(id: u64) -> Option<Self> {
        // SAFETY: May sleep, as our caller may.
        let memcg = unsafe { bindings::agentzip_memcg_of_cgroup(id) };
        // INVARIANT: The reference passes to us.
        (!memcg.is_null()).then_some(Self(memcg))
    }
}

impl Drop for MemoryCgroup {
    fn drop(&mut self) {
        // SAFETY: By the type invariants the reference is ours, and it ends here.
        unsafe { bindings::agentzip_memcg_put(self.0) };
    }
}
