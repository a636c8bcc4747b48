// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A template as the module has it: pages by ordinal, found by index or by content.

use std::cell::RefCell;
use std::rc::Rc;

use agentzip_codec::{sketch, Page};
use agentzip_store::engine::Account;
use agentzip_store::template::{build, lookup, Candidates, Layers, Run};
use agentzip_store::{feature_keys, Index, Where};

use crate::corpus::IndexedPage;
use crate::lab::Contents;
use crate::pool::{NativePages, Pool};

/// Most pages of the index of contents.
const MAX_CONTENT_PAGES: u32 = 4096;

/// The template of a group.
pub struct Template<'a> {
    runs: Vec<Run>,
    layers: Layers,
    pages: Vec<&'a Page>,
    content: RefCell<Index<NativePages>>,
}

impl<'a> Template<'a> {
    /// A template of these pages, sorted by index.
    ///
    /// # Panics
    ///
    /// When they are not sorted, or more than a template can have.
    pub fn new(list: &[IndexedPage], contents: &'a dyn Contents, pool: &Rc<Pool>) -> Self {
        let mut runs = Vec::new();
        let mut pages = Vec::new();
        let built = build(
            list.iter().map(|page| page.index),
            |position, _| {
                pages.push(contents.page(list[position].page));
                Ok::<_, std::convert::Infallible>(())
            },
            |run| {
                runs.push(run);
                Ok(())
            },
        )
        .expect("a sorted list of pages");
        let mut content = Index::new(NativePages::new(pool), MAX_CONTENT_PAGES);
        for (ordinal, page) in (0..).zip(&pages) {
            remember(&mut content, pool, page, ordinal);
        }
        Self {
            runs,
            layers: built.layers,
            pages,
            content: RefCell::new(content),
        }
    }

    /// Ordinals of the pages with an index.
    pub fn candidates(&self, index: u64) -> Candidates {
        lookup(&self.runs, &self.layers, index)
    }

    /// A page.
    pub fn page(&self, ordinal: u32) -> Option<&'a Page> {
        self.pages.get(ordinal as usize).copied()
    }

    /// The index of its contents.
    pub fn content(&self) -> &RefCell<Index<NativePages>> {
        &self.content
    }

    /// Bytes of what the module has beside the pages: runs, and a pointer to each page.
    pub fn bytes(&self) -> u64 {
        (size_of_val(&self.runs[..]) + size_of_val(&self.pages[..]) + size_of::<Self>()) as u64
    }

    /// Pages of the index of contents.
    pub fn content_pages(&self) -> u64 {
        self.content.borrow().pages()
    }

    /// Number of pages.
    pub fn len(&self) -> usize {
        self.pages.len()
    }

    /// Whether it has no pages.
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// Gives the pages of the index of contents back.
    pub fn clear(&self, pool: &Pool) {
        self.content.borrow_mut().clear(|page| pool.free(page));
    }
}

fn remember(content: &mut Index<NativePages>, pool: &Pool, page: &Page, ordinal: u32) {
    while content.wants_page() {
        let Some(new) = pool.allocate(Account::Group) else {
            break;
        };
        if !content.add_page(new) {
            pool.free(new);
            break;
        }
    }
    for key in feature_keys(&sketch(page)) {
        // The first page of a content is as good as any other.
        if content.lookup(key).is_none() {
            content.insert(key, Where::Template(ordinal));
        }
    }
}
