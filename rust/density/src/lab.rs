// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A store with a swap device in front of it: pages go out, stay while they do not change, and come
//! back.

use std::collections::BTreeMap;
use std::rc::Rc;

use agentzip_codec::host::Host;
use agentzip_codec::{Page, PAGE_SIZE};
use agentzip_store::engine::{self, Improved, Loaded, Platform, Policy, Refusal, Stored, Work};
use agentzip_store::{Owner, Slot};

use crate::corpus::{self, IndexedPage};
use crate::platform::{Bounds, GroupId, Native};
use crate::pool::Pool;
use crate::template::Template;
use crate::training::Training;

/// Reference pages that are compacted under one hold of the group's lock, as in the module.
const COMPACT_BATCH: u32 = 64;

/// Pages by number.
pub trait Contents {
    /// The bytes of a page.
    ///
    /// # Panics
    ///
    /// When there is none of that number.
    fn page(&self, number: u32) -> &Page;
}

impl Contents for corpus::Pages {
    fn page(&self, number: u32) -> &Page {
        self.get(number)
    }
}

impl Contents for Vec<Page> {
    fn page(&self, number: u32) -> &Page {
        &self[number as usize]
    }
}

/// Hears of each store and load, and runs it.
pub trait Observer {
    /// Runs a store of `page`.
    fn store(
        &mut self,
        page: u32,
        bytes: &Page,
        run: &mut dyn FnMut() -> Result<Stored, Refusal>,
    ) -> Result<Stored, Refusal>;

    /// Runs the second look at the entry of `page`.
    fn improve(
        &mut self,
        page: u32,
        bytes: &Page,
        run: &mut dyn FnMut() -> Option<Improved>,
    ) -> Option<Improved>;

    /// Runs a load of `page`.
    fn load(&mut self, page: u32, bytes: &Page, run: &mut dyn FnMut() -> Option<Loaded>);
}

/// An observer that only runs them.
pub struct Blind;

impl Observer for Blind {
    fn store(
        &mut self,
        _page: u32,
        _bytes: &Page,
        run: &mut dyn FnMut() -> Result<Stored, Refusal>,
    ) -> Result<Stored, Refusal> {
        run()
    }

    fn improve(
        &mut self,
        _page: u32,
        _bytes: &Page,
        run: &mut dyn FnMut() -> Option<Improved>,
    ) -> Option<Improved> {
        run()
    }

    fn load(&mut self, _page: u32, _bytes: &Page, run: &mut dyn FnMut() -> Option<Loaded>) {
        run();
    }
}

/// A page that is swapped out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Out {
    /// Index and content.
    pub page: IndexedPage,
    /// Its slot; `None` when the store refused it and it is on the device.
    pub slot: Option<Slot>,
}

/// A sandbox of the laboratory.
pub struct Sandbox {
    /// Its name in the store.
    pub owner: Owner,
    /// Its pages that are swapped out, sorted by index and content.
    pub out: Vec<Out>,
}

/// Hands out swap slots, the lowest free one first.
#[derive(Default)]
struct Slots {
    free: std::collections::BTreeSet<u64>,
    end: u64,
}

impl Slots {
    fn take(&mut self) -> Slot {
        let offset = self.free.pop_first().unwrap_or_else(|| {
            self.end += 1;
            self.end - 1
        });
        Slot::new(0, offset).expect("a device of less than 64 TiB")
    }

    fn give_back(&mut self, slot: Slot) {
        self.free.insert(slot.offset());
    }
}

/// What has happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Events {
    /// Pages stored.
    pub stores: u64,
    /// Entries that were looked at again.
    pub improved: u64,
    /// Pages that were to be stored and had not changed since they were last.
    pub kept: u64,
    /// Pages refused because no representation pays.
    pub incompressible: u64,
    /// Pages refused for lack of memory.
    pub no_memory: u64,
    /// All-zero pages, which the swap core keeps to itself.
    pub zero: u64,
    /// Pages brought back and compared.
    pub loads: u64,
    /// Entries whose payload became a reference page.
    pub promotions: u64,
    /// Entries and reference pages that a new dictionary made shorter.
    pub renewed: u64,
    /// Arenas of sandboxes and groups that were compacted.
    pub compactions: u64,
}

/// The store under test.
pub struct Lab<'a> {
    native: Native<'a>,
    contents: &'a dyn Contents,
    policy: Policy,
    work: Box<Work>,
    buffer: Box<Page>,
    backend: Host,
    slots: Slots,
    sandboxes: BTreeMap<usize, Sandbox>,
    events: Events,
}

impl<'a> Lab<'a> {
    /// An empty store for pages of `contents`.
    pub fn new(contents: &'a dyn Contents, policy: Policy) -> Self {
        Self {
            native: Native::new(&Pool::new()),
            contents,
            policy,
            work: Box::default(),
            buffer: Box::new([0; PAGE_SIZE]),
            backend: Host::new(),
            slots: Slots::default(),
            sandboxes: BTreeMap::new(),
            events: Events::default(),
        }
    }

    /// Makes a group with this template, a list of pages sorted by index.
    pub fn add_group(&mut self, template: &[IndexedPage], bounds: Bounds) -> GroupId {
        let template = Template::new(template, self.contents, self.native.pool());
        self.native.add_group(&Rc::new(template), bounds)
    }

    /// Ends a group without sandboxes.
    pub fn remove_group(&mut self, group: GroupId) {
        self.native.remove_group(group);
    }

    /// A sandbox with this number arrives.
    pub fn arrive(&mut self, number: usize, group: GroupId) {
        let owner = self.native.attach(group);
        let out = Vec::new();
        let known = self.sandboxes.insert(number, Sandbox { owner, out });
        assert!(known.is_none(), "sandbox {number} arrived twice");
    }

    /// The store.
    pub fn native(&self) -> &Native<'a> {
        &self.native
    }

    /// The pages by number.
    pub fn contents(&self) -> &dyn Contents {
        self.contents
    }

    /// The sandboxes that are there, by number.
    pub fn sandboxes(&self) -> &BTreeMap<usize, Sandbox> {
        &self.sandboxes
    }

    /// What has happened.
    pub fn events(&self) -> Events {
        self.events
    }

    /// A sandbox waits: all its pages are swapped out. Pages that have not changed keep their
    /// entries.
    pub fn swap_out(&mut self, number: usize, owned: &[IndexedPage], observer: &mut dyn Observer) {
        let mut wanted = owned.to_vec();
        wanted.sort_unstable();
        let sandbox = self.sandboxes.get_mut(&number).expect("a sandbox");
        let owner = sandbox.owner;
        let mut before = std::mem::take(&mut sandbox.out).into_iter().peekable();
        let mut out = Vec::with_capacity(wanted.len());
        let mut new = Vec::new();
        let mut gone = Vec::new();
        for page in wanted {
            while let Some(old) = before.next_if(|old| old.page < page) {
                gone.push(old);
            }
            match before.next_if(|old| old.page == page) {
                Some(old) => out.push(old),
                None => new.push(page),
            }
        }
        gone.extend(before);
        self.events.kept += out.len() as u64;
        // A page that is written to, or unmapped, loses its slot before the next wait.
        for slot in gone.iter().filter_map(|old| old.slot) {
            self.erase(slot);
        }
        for page in new {
            let bytes = *self.contents.page(page.page);
            if bytes == [0; PAGE_SIZE] {
                self.events.zero += 1;
                continue;
            }
            let slot = self.store(owner, page, &bytes, observer);
            out.push(Out { page, slot });
        }
        out.sort_unstable_by_key(|out| out.page);
        for out in &out {
            self.improve(out, observer);
        }
        if let Some(sandbox) = self.sandboxes.get_mut(&number) {
            sandbox.out = out;
        }
    }

    /// Looks again at an entry if it is provisional.
    fn improve(&mut self, out: &Out, observer: &mut dyn Observer) {
        let Some(slot) = out.slot else { return };
        let Some(owner) = engine::provisional(&self.native, slot) else {
            return;
        };
        let bytes = self.contents.page(out.page.page);
        let (native, work, backend) = (&self.native, &mut *self.work, &mut self.backend);
        let (policy, buffer) = (&self.policy, &mut *self.buffer);
        let improved = observer.improve(out.page.page, bytes, &mut || {
            engine::improve(native, policy, owner, slot, buffer, work, backend)
        });
        if let Some(improved) = improved {
            self.events.improved += 1;
            self.events.promotions += u64::from(improved.promoted.is_some());
        }
    }

    /// Makes a dictionary of what the sandboxes have stored and lets a group use it from now on. Returns
    /// whether one came out.
    pub fn train(&mut self, group: GroupId, training: &Training) -> bool {
        let dictionary = training.train(self);
        let made = dictionary.is_some();
        if let Some(dictionary) = dictionary {
            self.native.add_dictionary(group, dictionary);
            self.renew();
        }
        made
    }

    /// Encodes with the current dictionary what was encoded without it, as the module's second look does
    /// after a dictionary was added.
    fn renew(&mut self) {
        for sandbox in self.sandboxes.values() {
            for slot in sandbox.out.iter().filter_map(|out| out.slot) {
                let renewed = engine::renew(
                    &self.native,
                    &self.policy,
                    sandbox.owner,
                    slot,
                    &mut self.buffer,
                    &mut self.work,
                    &mut self.backend,
                );
                self.events.renewed += u64::from(renewed.is_some());
            }
        }
    }

    fn store(
        &mut self,
        owner: Owner,
        page: IndexedPage,
        bytes: &Page,
        observer: &mut dyn Observer,
    ) -> Option<Slot> {
        let slot = self.slots.take();
        let (native, work, backend) = (&self.native, &mut *self.work, &mut self.backend);
        let policy = &self.policy;
        let stored = observer.store(page.page, bytes, &mut || {
            engine::store(
                native, policy, owner, slot, page.index, bytes, work, backend,
            )
        });
        match stored {
            Ok(stored) => {
                assert!(stored.replaced.is_none(), "slot {slot:?} was taken");
                self.events.stores += 1;
                self.events.promotions += u64::from(stored.promoted.is_some());
                return Some(slot);
            }
            Err(Refusal::Incompressible) => self.events.incompressible += 1,
            Err(Refusal::NoMemory) => self.events.no_memory += 1,
        }
        assert!(
            self.native.entry(slot, |_| ()).is_none(),
            "an entry is left of a page that was refused"
        );
        self.slots.give_back(slot);
        None
    }

    fn erase(&mut self, slot: Slot) {
        assert!(
            engine::erase(&self.native, slot).is_some(),
            "the entry of {slot:?} is gone"
        );
        self.slots.give_back(slot);
    }

    /// A sandbox wakes up: all its pages are brought back and compared. The entries stay.
    ///
    /// # Panics
    ///
    /// When a page does not come back the same.
    pub fn swap_in(&mut self, number: usize, observer: &mut dyn Observer) {
        let sandbox = &self.sandboxes[&number];
        let mut out = Box::new([0u8; PAGE_SIZE]);
        for entry in &sandbox.out {
            let Some(slot) = entry.slot else { continue };
            let expected = self.contents.page(entry.page.page);
            let (native, work, backend) = (&self.native, &mut *self.work, &mut self.backend);
            let page = &mut *out;
            let mut result = None;
            observer.load(entry.page.page, expected, &mut || {
                let loaded = engine::load(native, slot, work, backend, page);
                result = Some(loaded);
                loaded.ok()
            });
            let loaded = result
                .expect("the observer runs it")
                .unwrap_or_else(|error| panic!("sandbox {number}, {entry:?}: {error}"));
            assert_eq!(loaded.owner, sandbox.owner, "sandbox {number}, {entry:?}");
            assert!(
                *out == *expected,
                "sandbox {number}, {entry:?}: another page came back"
            );
            self.events.loads += 1;
        }
    }

    /// A sandbox leaves: its entries end.
    pub fn leave(&mut self, number: usize) {
        let sandbox = self.sandboxes.remove(&number).expect("a sandbox");
        for slot in sandbox.out.iter().filter_map(|out| out.slot) {
            self.erase(slot);
        }
        self.native.detach(sandbox.owner);
    }

    /// Compacts what is sparse, as the module's worker does.
    pub fn compact(&mut self) {
        let owners: Vec<Owner> = self
            .sandboxes
            .values()
            .map(|sandbox| sandbox.owner)
            .collect();
        let mut any = false;
        for &owner in &owners {
            self.compact_group(owner);
            let mut marked = false;
            if self.native.arena(owner, |arena| arena.is_sparse()) == Some(true) {
                while self.native.arena(owner, |arena| arena.begin_compaction()) == Some(true) {
                    marked = true;
                }
            }
            any |= marked;
            self.events.compactions += u64::from(marked);
        }
        if !any {
            return;
        }
        for offset in 0..self.slots.end {
            let slot = Slot::new(0, offset).expect("given out before");
            engine::compact_entry(&self.native, slot);
        }
        for owner in owners {
            while self.native.arena(owner, |arena| arena.end_compaction()) == Some(true) {}
        }
    }

    /// Compacts the reference pages of a sandbox's group if they are sparse.
    fn compact_group(&mut self, owner: Owner) {
        let native = &self.native;
        if native.group(owner, |group| group.arena.is_sparse()) != Some(true) {
            return;
        }
        let mut marked = false;
        while native.group(owner, |group| group.arena.begin_compaction()) == Some(true) {
            marked = true;
        }
        let mut next = marked.then_some(0);
        while let Some(first) = next {
            next = engine::compact_group(native, owner, first, COMPACT_BATCH);
        }
        while native.group(owner, |group| group.arena.end_compaction()) == Some(true) {}
        self.events.compactions += u64::from(marked);
    }
}
