// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The engine's platform natively: one thread, plain memory, and the store's own tables.

use std::cell::RefCell;
use std::collections::hash_map::{Entry, HashMap};
use std::rc::Rc;

use std::sync::Arc;

use agentzip_codec::host::Dictionary;
use agentzip_codec::{Base, BaseId, Page};
use agentzip_store::engine::{Account, NoMemory, Platform};
use agentzip_store::template::MAX_CANDIDATES;
use agentzip_store::{
    locate, Arenas, Descriptor, Group, Index, Leaf, Owner, Slot, SlotAddress, MAX_DICTIONARIES,
    MAX_OWNERS,
};

use crate::pool::{NativePages, Pool};
use crate::template::Template;

/// Names a group of a [`Native`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupId(usize);

/// Bounds of a group.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Pages of payloads of reference pages.
    pub reference_pages: u64,
    /// Pages of the index of contents.
    pub index_pages: u32,
}

impl Bounds {
    /// As the module sets them, with no limit for reference pages.
    pub const DEFAULT: Self = Self {
        reference_pages: u64::MAX,
        index_pages: 256,
    };
}

struct Sandbox {
    group: GroupId,
    arenas: RefCell<Arenas<NativePages>>,
}

struct Members<'a> {
    template: Rc<Template<'a>>,
    shared: RefCell<Group<NativePages>>,
    dictionaries: [Option<Arc<Dictionary>>; MAX_DICTIONARIES as usize],
    sandboxes: usize,
}

/// A store in plain memory.
pub struct Native<'a> {
    pool: Rc<Pool>,
    table: RefCell<HashMap<u64, Box<Leaf>>>,
    sandboxes: Vec<Option<Sandbox>>,
    groups: Vec<Option<Members<'a>>>,
}

impl<'a> Native<'a> {
    /// An empty store.
    pub fn new(pool: &Rc<Pool>) -> Self {
        Self {
            pool: Rc::clone(pool),
            table: RefCell::default(),
            sandboxes: Vec::new(),
            groups: Vec::new(),
        }
    }

    /// Where its pages come from.
    pub fn pool(&self) -> &Rc<Pool> {
        &self.pool
    }

    /// Makes a group without sandboxes.
    pub fn add_group(&mut self, template: &Rc<Template<'a>>, bounds: Bounds) -> GroupId {
        let pages = NativePages::new(&self.pool);
        self.groups.push(Some(Members {
            template: Rc::clone(template),
            shared: RefCell::new(Group::new(
                pages,
                bounds.reference_pages,
                bounds.index_pages,
            )),
            dictionaries: [const { None }; MAX_DICTIONARIES as usize],
            sandboxes: 0,
        }));
        GroupId(self.groups.len() - 1)
    }

    /// Ends a group and gives back the pages of its index.
    ///
    /// # Panics
    ///
    /// When it has sandboxes, or reference pages are left.
    pub fn remove_group(&mut self, id: GroupId) {
        let group = self.groups[id.0].take().expect("a group");
        assert_eq!(group.sandboxes, 0, "group {} has sandboxes", id.0);
        let mut shared = group.shared.into_inner();
        assert_eq!(shared.references.live(), 0, "reference pages are left");
        assert_eq!(
            shared.arena.pages(),
            0,
            "payloads of reference pages are left"
        );
        shared.clear(|page| self.pool.free(page));
    }

    /// Makes this the dictionary of a group's new payloads.
    ///
    /// # Panics
    ///
    /// When there is no such group, or it has as many dictionaries as it can have.
    pub fn add_dictionary(&mut self, id: GroupId, dictionary: Arc<Dictionary>) {
        let members = self.groups[id.0].as_mut().expect("a group");
        let number = members.shared.get_mut().dictionaries.add();
        let number = usize::from(number.expect("room for a dictionary"));
        members.dictionaries[number] = Some(dictionary);
    }

    /// Drops the dictionaries that nothing needs any more.
    pub fn drop_dictionaries(&mut self) {
        for members in self.groups.iter_mut().flatten() {
            while let Some(number) = members.shared.get_mut().dictionaries.take_unused() {
                members.dictionaries[usize::from(number)] = None;
            }
        }
    }

    /// Bytes of all dictionaries.
    pub fn dictionary_bytes(&self) -> u64 {
        let groups = self.groups.iter().flatten();
        let all = groups.flat_map(|members| members.dictionaries.iter().flatten());
        all.map(|dictionary| dictionary.bytes() as u64).sum()
    }

    /// Attaches a sandbox to a group.
    ///
    /// # Panics
    ///
    /// When there are as many as a descriptor can name.
    pub fn attach(&mut self, group: GroupId) -> Owner {
        let free = self.sandboxes.iter().position(Option::is_none);
        let number = free.unwrap_or_else(|| {
            assert!(self.sandboxes.len() < MAX_OWNERS, "too many sandboxes");
            self.sandboxes.push(None);
            self.sandboxes.len() - 1
        });
        self.sandboxes[number] = Some(Sandbox {
            group,
            arenas: RefCell::new(Arenas::new(NativePages::new(&self.pool))),
        });
        self.groups[group.0].as_mut().expect("a group").sandboxes += 1;
        Owner::new(number as u16).expect("below MAX_OWNERS")
    }

    /// Removes a sandbox.
    ///
    /// # Panics
    ///
    /// When its arena has pages left.
    pub fn detach(&mut self, owner: Owner) {
        let sandbox = self.sandboxes[owner.index()].take().expect("a sandbox");
        assert_eq!(
            sandbox.arenas.borrow().pages(),
            0,
            "payloads of a sandbox are left"
        );
        let group = self.groups[sandbox.group.0].as_mut();
        group.expect("lives as long as its sandboxes").sandboxes -= 1;
    }

    /// Calls `f` with the arenas of each sandbox.
    pub fn for_each_sandbox(&self, mut f: impl FnMut(&Arenas<NativePages>)) {
        for sandbox in self.sandboxes.iter().flatten() {
            f(&sandbox.arenas.borrow());
        }
    }

    /// Calls `f` with what each group shares.
    pub fn for_each_group(&self, mut f: impl FnMut(&Group<NativePages>, &Template<'a>)) {
        for group in self.groups.iter().flatten() {
            f(&group.shared.borrow(), &group.template);
        }
    }

    /// Leaves of the slot table.
    pub fn leaves(&self) -> u64 {
        self.table.borrow().len() as u64
    }

    /// Entries in the slot table.
    pub fn entries(&self) -> u64 {
        let table = self.table.borrow();
        table.values().map(|leaf| leaf.used() as u64).sum()
    }

    fn sandbox(&self, owner: Owner) -> Option<&Sandbox> {
        self.sandboxes.get(owner.index())?.as_ref()
    }

    fn members(&self, owner: Owner) -> Option<&Members<'a>> {
        self.groups.get(self.sandbox(owner)?.group.0)?.as_ref()
    }
}

fn address(slot: Slot) -> SlotAddress {
    locate(slot.swap_type(), slot.offset())
}

impl Platform for Native<'_> {
    type Pages = NativePages;
    type Dictionary = Arc<Dictionary>;

    fn entry<R>(&self, slot: Slot, f: impl FnOnce(&mut Descriptor) -> R) -> Option<R> {
        let address = address(slot);
        let mut table = self.table.borrow_mut();
        table.get_mut(&address.leaf)?.update(address.index, f)
    }

    fn put(&self, slot: Slot, new: Descriptor) -> Result<Option<Descriptor>, NoMemory> {
        let address = address(slot);
        let mut table = self.table.borrow_mut();
        let leaf = match table.entry(address.leaf) {
            Entry::Occupied(leaf) => leaf.into_mut(),
            Entry::Vacant(_) if self.pool.fails() => return Err(NoMemory),
            Entry::Vacant(leaf) => leaf.insert(Box::default()),
        };
        Ok(leaf.replace(address.index, Some(new)))
    }

    fn take(&self, slot: Slot) -> Option<Descriptor> {
        let address = address(slot);
        let mut table = self.table.borrow_mut();
        let leaf = table.get_mut(&address.leaf)?;
        let old = leaf.replace(address.index, None);
        if leaf.is_empty() {
            table.remove(&address.leaf);
        }
        old
    }

    fn arena<R>(&self, owner: Owner, f: impl FnOnce(&mut Arenas<NativePages>) -> R) -> Option<R> {
        Some(f(&mut self.sandbox(owner)?.arenas.borrow_mut()))
    }

    fn is_compacting(&self, _owner: Owner) -> bool {
        true
    }

    fn group<R>(&self, owner: Owner, f: impl FnOnce(&mut Group<NativePages>) -> R) -> Option<R> {
        Some(f(&mut self.members(owner)?.shared.borrow_mut()))
    }

    fn same_group(&self, a: Owner, b: Owner) -> bool {
        let group = |owner| self.sandbox(owner).map(|sandbox| sandbox.group);
        group(a).is_some() && group(a) == group(b)
    }

    fn template_bases<R>(&self, owner: Owner, index: u64, f: impl FnOnce(&[Base<'_>]) -> R) -> R {
        const NONE: Page = [0; agentzip_codec::PAGE_SIZE];
        let mut bases = [Base {
            id: BaseId::Template(0),
            page: &NONE,
        }; MAX_CANDIDATES];
        let mut count = 0;
        if let Some(members) = self.members(owner) {
            for &ordinal in members.template.candidates(index).as_slice() {
                if let Some(page) = members.template.page(ordinal) {
                    bases[count] = Base {
                        id: BaseId::Template(ordinal),
                        page,
                    };
                    count += 1;
                }
            }
        }
        f(&bases[..count])
    }

    fn template_page<R>(
        &self,
        owner: Owner,
        ordinal: u32,
        f: impl FnOnce(&Page) -> R,
    ) -> Option<R> {
        self.members(owner)?.template.page(ordinal).map(f)
    }

    fn template_index<R>(
        &self,
        owner: Owner,
        f: impl FnOnce(&Index<NativePages>) -> R,
    ) -> Option<R> {
        Some(f(&self.members(owner)?.template.content().borrow()))
    }

    fn dictionary(&self, owner: Owner, number: u8) -> Option<Arc<Dictionary>> {
        let dictionaries = &self.members(owner)?.dictionaries;
        dictionaries.get(usize::from(number))?.clone()
    }

    fn allocate(&self, _owner: Owner, account: Account) -> Option<u32> {
        self.pool.allocate(account)
    }

    fn free(&self, page: u32) {
        self.pool.free(page);
    }
}
