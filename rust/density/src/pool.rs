// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Pages for the structures of the store, in plain memory, with a check of who uses which.
//!
//! A page belongs to the structure that uses it first after it was given out. Panics when a
//! structure uses a page that is not given out or that is another's: in the kernel that would be a
//! write to freed memory. A page that is given out again may hold anything, which is harsher than
//! what the kernel does.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;

use agentzip_store::engine::Account;
use agentzip_store::{Pages, PAGE_BYTES};

type Page = [u8; PAGE_BYTES];

/// Pages in a chunk, and chunks: room for 16 GiB.
const CHUNK: usize = 2048;
const CHUNKS: usize = 2048;

/// Whose a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Free,
    /// Given out; nobody has used it yet.
    Given,
    /// Of the structure with this number.
    By(u32),
}

/// Hands out page numbers and takes them back.
#[derive(Default)]
pub struct Pool {
    state: RefCell<State>,
    structures: Cell<u32>,
}

#[derive(Default)]
struct State {
    uses: Vec<Use>,
    accounts: Vec<Account>,
    free: Vec<u32>,
    counts: Counts,
    /// Of so many allocations one fails; 0 for none.
    fail_one_in: u64,
    random: u64,
}

/// Pages given out, by account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// For arenas of sandboxes.
    pub sandbox: u64,
    /// For groups.
    pub group: u64,
}

impl Counts {
    /// Both.
    pub fn all(&self) -> u64 {
        self.sandbox + self.group
    }

    fn of(&mut self, account: Account) -> &mut u64 {
        match account {
            Account::Sandbox => &mut self.sandbox,
            Account::Group => &mut self.group,
        }
    }
}

impl Pool {
    /// A pool that gives a page whenever one is asked for.
    pub fn new() -> Rc<Self> {
        Rc::default()
    }

    /// From now on one of `one_in` allocations fails, at random; none with 0.
    pub fn fail(&self, one_in: u64, seed: u64) {
        let mut state = self.state.borrow_mut();
        state.fail_one_in = one_in;
        state.random = seed | 1;
    }

    /// Whether an allocation fails now.
    pub fn fails(&self) -> bool {
        let mut state = self.state.borrow_mut();
        if state.fail_one_in == 0 {
            return false;
        }
        // xorshift64
        let mut random = state.random;
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        state.random = random;
        random % state.fail_one_in == 0
    }

    /// Gives a page out. `None` when a failure was [asked for](Self::fail).
    pub fn allocate(&self, account: Account) -> Option<u32> {
        if self.fails() {
            return None;
        }
        let mut state = self.state.borrow_mut();
        let page = match state.free.pop() {
            Some(page) => page,
            None => {
                state.uses.push(Use::Free);
                state.accounts.push(account);
                (state.uses.len() - 1) as u32
            }
        };
        state.uses[page as usize] = Use::Given;
        state.accounts[page as usize] = account;
        *state.counts.of(account) += 1;
        Some(page)
    }

    /// Takes a page back.
    ///
    /// # Panics
    ///
    /// When it is not given out.
    pub fn free(&self, page: u32) {
        let mut state = self.state.borrow_mut();
        assert_ne!(
            state.uses[page as usize],
            Use::Free,
            "page {page} was freed twice"
        );
        state.uses[page as usize] = Use::Free;
        let account = state.accounts[page as usize];
        *state.counts.of(account) -= 1;
        state.free.push(page);
    }

    /// Pages that are given out.
    pub fn counts(&self) -> Counts {
        self.state.borrow().counts
    }

    /// Notes that a structure uses a page.
    fn claim(&self, page: u32, structure: u32) {
        let mut state = self.state.borrow_mut();
        let by = &mut state.uses[page as usize];
        match *by {
            Use::Given => *by = Use::By(structure),
            Use::By(other) => assert_eq!(other, structure, "page {page} is another structure's"),
            Use::Free => panic!("page {page} is used and was not given out"),
        }
    }
}

type Chunk = Box<[OnceCell<Box<Page>>]>;

/// The pages of one structure.
pub struct NativePages {
    pool: Rc<Pool>,
    structure: u32,
    chunks: Box<[OnceCell<Chunk>]>,
}

fn cells<T>(count: usize) -> Box<[OnceCell<T>]> {
    (0..count).map(|_| OnceCell::new()).collect()
}

fn chunk() -> Chunk {
    cells(CHUNK)
}

fn page() -> Box<Page> {
    Box::new([0; PAGE_BYTES])
}

impl NativePages {
    /// Pages of `pool` for one structure.
    pub fn new(pool: &Rc<Pool>) -> Self {
        let structure = pool.structures.get();
        pool.structures.set(structure + 1);
        Self {
            pool: Rc::clone(pool),
            structure,
            chunks: cells(CHUNKS),
        }
    }
}

impl Clone for NativePages {
    /// Pages of the same pool, for another structure.
    fn clone(&self) -> Self {
        Self::new(&self.pool)
    }
}

impl Pages for NativePages {
    fn bytes(&self, number: u32) -> &Page {
        self.pool.claim(number, self.structure);
        let number = number as usize;
        let chunk = self.chunks[number / CHUNK].get_or_init(chunk);
        chunk[number % CHUNK].get_or_init(page)
    }

    fn bytes_mut(&mut self, number: u32) -> &mut Page {
        self.pool.claim(number, self.structure);
        let number = number as usize;
        let cell = &mut self.chunks[number / CHUNK];
        cell.get_or_init(chunk);
        let cell = &mut cell.get_mut().expect("just made")[number % CHUNK];
        cell.get_or_init(page);
        cell.get_mut().expect("just made")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_counted_and_keep_their_bytes() {
        let pool = Pool::new();
        let mut pages = NativePages::new(&pool);
        let a = pool.allocate(Account::Sandbox).unwrap();
        let b = pool.allocate(Account::Group).unwrap();
        pages.bytes_mut(a)[7] = 1;
        pages.bytes_mut(b)[7] = 2;
        assert_eq!((pages.bytes(a)[7], pages.bytes(b)[7]), (1, 2));
        assert_eq!(
            pool.counts(),
            Counts {
                sandbox: 1,
                group: 1
            }
        );
        pool.free(a);
        pool.free(b);
        assert_eq!(pool.counts().all(), 0);
    }

    #[test]
    #[should_panic(expected = "another structure's")]
    fn no_page_is_used_by_two_structures() {
        let pool = Pool::new();
        let page = pool.allocate(Account::Group).unwrap();
        NativePages::new(&pool).bytes_mut(page)[0] = 1;
        NativePages::new(&pool).bytes(page);
    }

    #[test]
    #[should_panic(expected = "not given out")]
    fn no_page_is_used_after_it_was_freed() {
        let pool = Pool::new();
        let pages = NativePages::new(&pool);
        let page = pool.allocate(Account::Group).unwrap();
        pages.bytes(page);
        pool.free(page);
        pages.bytes(page);
    }

    #[test]
    fn allocations_fail_when_asked_to() {
        let pool = Pool::new();
        pool.fail(3, 1);
        let given = (0..3000)
            .filter(|_| pool.allocate(Account::Group).is_some())
            .count();
        assert!((1800..2200).contains(&given), "{given}");
        pool.fail(0, 0);
        assert!(pool.allocate(Account::Group).is_some());
    }
}
