// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A small platform for the engine: a few slots, sandboxes of one group, counted pages.

use super::scheduler::Scheduler;
use agentzip_codec::host::{Dictionary, Host};
use agentzip_codec::{Base, BaseId, Page, Representation};
use agentzip_store::engine::{
    self, Account, Erased, Improved, NoMemory, Platform, Policy, Refusal, Renewed, Work,
};
use agentzip_store::{
    Arenas, Descriptor, Group, Index, Owner, Pages, Slot, MAX_DICTIONARIES, PAGE_BYTES, UNIT_BYTES,
};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Slots and sandboxes of a world.
pub const SLOTS: usize = 8;
const SANDBOXES: usize = 4;

/// A page, from `Box::into_raw()`.
struct Owned(*mut [u8; PAGE_BYTES]);

// SAFETY: It owns what it points to; the structure that holds its number is the only user.
unsafe impl Send for Owned {}

/// Memory that pages come from. A page that is freed is filled with rubbish.
#[derive(Clone, Default)]
pub struct Memory(Arc<Mutex<Vec<Option<Owned>>>>);

impl Memory {
    fn allocate(&self) -> u32 {
        let mut pages = self.0.lock().unwrap();
        let page = Some(Owned(Box::into_raw(Box::new([0; PAGE_BYTES]))));
        // Freed numbers are used again at once, as a kernel does.
        match pages.iter().position(Option::is_none) {
            Some(number) => {
                pages[number] = page;
                number as u32
            }
            None => {
                pages.push(page);
                pages.len() as u32 - 1
            }
        }
    }

    fn free(&self, page: u32) {
        let page = self.0.lock().unwrap()[page as usize]
            .take()
            .expect("a page is freed twice");
        // SAFETY: It came from `Box::into_raw()` and was not freed yet.
        let mut page = unsafe { Box::from_raw(page.0) };
        page.fill(0xa5);
    }

    /// Pages that are not free.
    pub fn in_use(&self) -> usize {
        self.0.lock().unwrap().iter().flatten().count()
    }

    /// Flips bits of the byte `at` of this unit of a payload, wherever it is. Returns in how many places.
    pub fn damage(&self, unit: &[u8; UNIT_BYTES], at: usize, bits: u8) -> usize {
        let pages = self.0.lock().unwrap();
        let mut places = 0;
        for page in pages.iter().flatten() {
            // SAFETY: It is live, and nobody uses it now: tests do this between calls.
            let content = unsafe { &mut *page.0 };
            for found in content.chunks_exact_mut(UNIT_BYTES).filter(|c| c == unit) {
                found[at] ^= bits;
                places += 1;
            }
        }
        places
    }

    fn address(&self, page: u32) -> *mut [u8; PAGE_BYTES] {
        let pages = self.0.lock().unwrap();
        let page = pages[page as usize].as_ref();
        page.expect("a page is used after it was freed").0
    }
}

impl Pages for Memory {
    fn bytes(&self, page: u32) -> &[u8; PAGE_BYTES] {
        // SAFETY: Live, and lent only with the structure that holds it.
        unsafe { &*self.address(page) }
    }

    fn bytes_mut(&mut self, page: u32) -> &mut [u8; PAGE_BYTES] {
        // SAFETY: As above.
        unsafe { &mut *self.address(page) }
    }
}

/// The platform, and what a test expects of it.
pub struct World {
    pub scheduler: Scheduler,
    pub memory: Memory,
    slots: [Mutex<Option<Descriptor>>; SLOTS],
    arenas: [Mutex<Arenas<Memory>>; SANDBOXES],
    group: Mutex<Group<Memory>>,
    dictionaries: Mutex<[Option<Arc<Dictionary>>; MAX_DICTIONARIES as usize]>,
    template: Vec<(u64, Page)>,
    policy: Policy,
    /// Allocations that still succeed.
    allowance: Mutex<Option<usize>>,
    expected: Mutex<BTreeMap<usize, Page>>,
    /// Sandboxes have reached max_bytes; the store as a whole has not.
    pub sandbox_full: AtomicBool,
    /// How the entries were encoded that became reference pages.
    pub promotions: Mutex<Vec<Representation>>,
}

pub fn owner(sandbox: u16) -> Owner {
    Owner::new(sandbox).unwrap()
}

/// The slot with this number.
pub fn slot(number: usize) -> Slot {
    Slot::new(0, number as u64).unwrap()
}

thread_local! {
    static TOOLS: RefCell<(Box<Work>, Host, Box<Page>)> =
        RefCell::new((Box::default(), Host::new(), Box::new([0; PAGE_BYTES])));
}

impl World {
    /// An empty world where everything is done at once, with one template page for each index of
    /// `template`.
    pub fn new(template: Vec<(u64, Page)>) -> Self {
        Self::with_policy(template, Policy::AT_ONCE)
    }

    /// An empty world where pages are stored in a hurry and looked at again.
    pub fn with_second_look(template: Vec<(u64, Page)>) -> Self {
        Self::with_policy(template, Policy::DEFAULT)
    }

    fn with_policy(template: Vec<(u64, Page)>, policy: Policy) -> Self {
        let memory = Memory::default();
        Self {
            scheduler: Scheduler::default(),
            slots: Default::default(),
            arenas: std::array::from_fn(|_| Mutex::new(Arenas::new(memory.clone()))),
            group: Mutex::new(Group::new(memory.clone(), 1 << 20, 512)),
            memory,
            dictionaries: Mutex::default(),
            template,
            policy,
            allowance: Mutex::new(None),
            expected: Mutex::default(),
            sandbox_full: Default::default(),
            promotions: Default::default(),
        }
    }

    /// Lets only so many allocations succeed from now on.
    pub fn allow(&self, allocations: Option<usize>) {
        *self.allowance.lock().unwrap() = allocations;
    }

    /// Stores a page, as a swap-out of sandbox `me` does.
    pub fn store(
        &self,
        me: u16,
        number: usize,
        index: u64,
        page: &Page,
    ) -> Result<Representation, Refusal> {
        self.store_with(&self.policy, me, number, index, page)
    }

    /// The same for a sensitive sandbox.
    pub fn store_padded(
        &self,
        me: u16,
        number: usize,
        index: u64,
        page: &Page,
    ) -> Result<Representation, Refusal> {
        let policy = Policy {
            padded: true,
            ..self.policy
        };
        self.store_with(&policy, me, number, index, page)
    }

    fn store_with(
        &self,
        policy: &Policy,
        me: u16,
        number: usize,
        index: u64,
        page: &Page,
    ) -> Result<Representation, Refusal> {
        self.erase(number);
        let stored = TOOLS.with_borrow_mut(|(work, host, _)| {
            engine::store(
                self,
                policy,
                owner(me),
                slot(number),
                index,
                page,
                work,
                host,
            )
        })?;
        assert_eq!(stored.replaced, None);
        self.expected.lock().unwrap().insert(number, *page);
        Ok(stored.representation)
    }

    /// Looks at the entry of a slot again, if it is provisional.
    pub fn improve(&self, number: usize) -> Option<Improved> {
        let owner = engine::provisional(self, slot(number))?;
        self.improve_of(owner, number)
    }

    /// The same if it is of this sandbox.
    pub fn improve_of(&self, owner: Owner, number: usize) -> Option<Improved> {
        TOOLS.with_borrow_mut(|(work, host, page)| {
            engine::improve(self, &self.policy, owner, slot(number), page, work, host)
        })
    }

    /// Tries the group's dictionary for an entry, or its reference page, that was made without it.
    pub fn renew(&self, number: usize) -> Option<Renewed> {
        let owner = engine::dated(self, slot(number))?;
        self.renew_of(owner, number)
    }

    /// The same if the entry is of this sandbox.
    pub fn renew_of(&self, owner: Owner, number: usize) -> Option<Renewed> {
        TOOLS.with_borrow_mut(|(work, host, page)| {
            engine::renew(self, &self.policy, owner, slot(number), page, work, host)
        })
    }

    /// Makes this the group's dictionary. Returns its number.
    pub fn add_dictionary(&self, dictionary: Arc<Dictionary>) -> u8 {
        // The handle first: once the number is known it may be asked for.
        let mut dictionaries = self.dictionaries.lock().unwrap();
        let number = self.group.lock().unwrap().dictionaries.add().unwrap();
        dictionaries[usize::from(number)] = Some(dictionary);
        number
    }

    /// Retires the group's dictionary.
    pub fn retire_dictionary(&self) {
        self.group(owner(0), |group| group.dictionaries.retire());
    }

    /// Drops the dictionaries that nothing needs any more. Returns how many are left.
    pub fn drop_dictionaries(&self) -> usize {
        while let Some(number) = self
            .group(owner(0), |group| group.dictionaries.take_unused())
            .flatten()
        {
            self.dictionaries.lock().unwrap()[usize::from(number)] = None;
        }
        self.dictionaries.lock().unwrap().iter().flatten().count()
    }

    /// Payloads that need a dictionary.
    pub fn dictionary_users(&self, number: u8) -> u32 {
        self.group.lock().unwrap().dictionaries.users(number)
    }

    /// Loads a slot and checks the page; returns how it was encoded.
    pub fn check(&self, number: usize) -> Representation {
        let mut page = [0; PAGE_BYTES];
        let loaded = TOOLS
            .with_borrow_mut(|(work, host, _)| {
                engine::load(self, slot(number), work, host, &mut page)
            })
            .unwrap_or_else(|error| panic!("slot {number}: {error}"));
        let expected = self.expected.lock().unwrap()[&number];
        assert!(page == expected, "slot {number}: wrong page");
        loaded.representation
    }

    /// Loads a slot whatever may have happened to the memory: the page, or why it cannot be brought
    /// back.
    pub fn try_load(&self, number: usize) -> Result<Page, engine::LoadError> {
        let mut page = [0; PAGE_BYTES];
        TOOLS.with_borrow_mut(|(work, host, _)| {
            engine::load(self, slot(number), work, host, &mut page).map(|_| page)
        })
    }

    /// Frees a slot.
    pub fn erase(&self, number: usize) -> Option<Erased> {
        let erased = engine::erase(self, slot(number));
        if let Some(erased) = &erased {
            assert!(erased.representation.is_some(), "slot {number}: damaged");
            self.expected.lock().unwrap().remove(&number);
        }
        erased
    }

    /// Compacts the arena of a sandbox and the group's, whether that pays or not.
    pub fn compact(&self, sandbox: u16) {
        let me = owner(sandbox);
        for provisional in [false, true] {
            while self.arena(me, |arenas| arenas.of(provisional).begin_compaction()) == Some(true) {
            }
        }
        for number in 0..SLOTS {
            engine::compact_entry(self, slot(number));
        }
        while self.arena(me, |arena| arena.end_compaction()) == Some(true) {}
        while self.group(me, |group| group.arena.begin_compaction()) == Some(true) {}
        engine::compact_group(self, me, 0, 1000);
        while self.group(me, |group| group.arena.end_compaction()) == Some(true) {}
    }

    /// Live reference pages.
    pub fn references(&self) -> u32 {
        self.group.lock().unwrap().references.live()
    }

    /// The payload of a reference page.
    pub fn reference(&self, id: u32) -> Option<Vec<u8>> {
        let group = self.group.lock().unwrap();
        let mut payload = vec![0; PAGE_BYTES];
        let len = group
            .arena
            .read(group.references.get(id)?.place, &mut payload)?;
        payload.truncate(len);
        Some(payload)
    }

    /// Pages of the table of reference pages.
    pub fn reference_pages(&self) -> u64 {
        self.group.lock().unwrap().references.pages()
    }

    /// Checks every slot, frees them all, and checks that nothing is left.
    pub fn finish(self) {
        let left: Vec<usize> = self.expected.lock().unwrap().keys().copied().collect();
        for &number in &left {
            self.check(number);
        }
        for number in left {
            assert!(self.erase(number).is_some(), "slot {number} was lost");
            let rest: Vec<usize> = self.expected.lock().unwrap().keys().copied().collect();
            for number in rest {
                self.check(number);
            }
        }
        assert_eq!(self.references(), 0, "reference pages are left");
        assert_eq!(self.reference_pages(), 0, "pages of their table are left");
        self.retire_dictionary();
        assert_eq!(self.drop_dictionaries(), 0, "a dictionary has users left");
        let mut group = self.group.into_inner().unwrap();
        assert_eq!(group.arena.pages(), 0, "payloads of the group are left");
        for arena in self.arenas {
            assert_eq!(arena.into_inner().unwrap().pages(), 0, "payloads are left");
        }
        group.clear(|page| self.memory.free(page));
        assert_eq!(self.memory.in_use(), 0, "pages are left");
    }
}

impl Platform for World {
    type Pages = Memory;
    type Dictionary = Arc<Dictionary>;

    fn entry<R>(&self, slot: Slot, f: impl FnOnce(&mut Descriptor) -> R) -> Option<R> {
        let number = slot.offset();
        self.scheduler.with(("slot", number), || {
            self.slots[number as usize].lock().unwrap().as_mut().map(f)
        })
    }

    fn put(&self, slot: Slot, new: Descriptor) -> Result<Option<Descriptor>, NoMemory> {
        let number = slot.offset();
        self.scheduler.with(("slot", number), || {
            Ok(self.slots[number as usize].lock().unwrap().replace(new))
        })
    }

    fn take(&self, slot: Slot) -> Option<Descriptor> {
        let number = slot.offset();
        self.scheduler.with(("slot", number), || {
            self.slots[number as usize].lock().unwrap().take()
        })
    }

    fn arena<R>(&self, owner: Owner, f: impl FnOnce(&mut Arenas<Memory>) -> R) -> Option<R> {
        let number = owner.index();
        self.scheduler.with(("arena", number as u64), || {
            Some(f(&mut self.arenas.get(number)?.lock().unwrap()))
        })
    }

    fn is_compacting(&self, _owner: Owner) -> bool {
        true
    }

    fn group<R>(&self, _owner: Owner, f: impl FnOnce(&mut Group<Memory>) -> R) -> Option<R> {
        self.scheduler
            .with(("group", 0), || Some(f(&mut self.group.lock().unwrap())))
    }

    fn same_group(&self, _a: Owner, _b: Owner) -> bool {
        true
    }

    fn template_bases<R>(&self, _owner: Owner, index: u64, f: impl FnOnce(&[Base<'_>]) -> R) -> R {
        let bases: Vec<Base<'_>> = self
            .template
            .iter()
            .enumerate()
            .filter(|(_, (at, _))| *at == index)
            .map(|(ordinal, (_, page))| Base {
                id: BaseId::Template(ordinal as u32),
                page,
            })
            .collect();
        f(&bases)
    }

    fn template_page<R>(
        &self,
        _owner: Owner,
        ordinal: u32,
        f: impl FnOnce(&Page) -> R,
    ) -> Option<R> {
        self.template.get(ordinal as usize).map(|(_, page)| f(page))
    }

    fn template_index<R>(&self, _owner: Owner, f: impl FnOnce(&Index<Memory>) -> R) -> Option<R> {
        let mut index = Index::new(self.memory.clone(), 8);
        for _ in 0..2 {
            assert!(index.add_page(self.memory.allocate()));
        }
        for (ordinal, (_, page)) in self.template.iter().enumerate() {
            let sketch = agentzip_codec::sketch(page);
            for key in agentzip_store::feature_keys(&sketch) {
                index.insert(key, agentzip_store::Where::Template(ordinal as u32));
            }
        }
        let result = f(&index);
        index.clear(|page| self.memory.free(page));
        Some(result)
    }

    fn dictionary(&self, _owner: Owner, number: u8) -> Option<Arc<Dictionary>> {
        self.scheduler.with(("dictionaries", 0), || {
            let dictionaries = self.dictionaries.lock().unwrap();
            dictionaries.get(usize::from(number)).cloned().flatten()
        })
    }

    fn allocate(&self, _owner: Owner, account: Account) -> Option<u32> {
        if account == Account::Sandbox && self.sandbox_full.load(Ordering::Relaxed) {
            return None;
        }
        if let Some(left) = self.allowance.lock().unwrap().as_mut() {
            *left = left.checked_sub(1)?;
        }
        Some(self.memory.allocate())
    }

    fn free(&self, page: u32) {
        self.memory.free(page);
    }

    fn promoted(&self, promoted: &engine::Promoted) {
        self.promotions.lock().unwrap().push(promoted.from);
    }
}
