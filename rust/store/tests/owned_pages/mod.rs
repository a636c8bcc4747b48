// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Pages for tests, which know whose they are.

use agentzip_store::{Pages, NO_PAGE, PAGE_BYTES};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

/// Hands out page numbers and takes them back.
#[derive(Clone)]
pub struct Owner {
    free: Rc<RefCell<BTreeSet<u32>>>,
    touched: Rc<RefCell<BTreeSet<u32>>>,
    total: usize,
}

/// The pages. Panics when one is used that is not given out.
pub struct OwnedPages {
    bytes: Vec<[u8; PAGE_BYTES]>,
    owner: Owner,
}

/// `total` pages full of junk.
pub fn owned_pages(total: usize) -> (OwnedPages, Owner) {
    let owner = Owner {
        free: Rc::new(RefCell::new((0..total as u32).collect())),
        touched: Rc::default(),
        total,
    };
    let bytes = vec![[0xa5; PAGE_BYTES]; total];
    let pages = OwnedPages {
        bytes,
        owner: owner.clone(),
    };
    (pages, owner)
}

impl Owner {
    /// Gives a page out, the one with the highest number first.
    pub fn take(&self) -> u32 {
        self.free.borrow_mut().pop_last().expect("out of pages")
    }

    /// Takes a page back.
    pub fn give_back(&self, page: u32) {
        assert!((page as usize) < self.total, "{page} is no page");
        assert!(
            self.free.borrow_mut().insert(page),
            "{page} given back twice"
        );
    }

    /// Number of pages given out.
    pub fn given(&self) -> u64 {
        (self.total - self.free.borrow().len()) as u64
    }

    /// Number of different pages used since the last call.
    pub fn touched(&self) -> usize {
        self.touched.take().len()
    }
}

impl OwnedPages {
    fn check(&self, page: u32) -> usize {
        assert_ne!(page, NO_PAGE);
        assert!(
            !self.owner.free.borrow().contains(&page),
            "{page} is not given out"
        );
        self.owner.touched.borrow_mut().insert(page);
        page as usize
    }
}

impl Pages for OwnedPages {
    fn bytes(&self, page: u32) -> &[u8; PAGE_BYTES] {
        &self.bytes[self.check(page)]
    }

    fn bytes_mut(&mut self, page: u32) -> &mut [u8; PAGE_BYTES] {
        let page = self.check(page);
        &mut self.bytes[page]
    }
}
