// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The cgroups in view: what is known of each, and where it is in its tree.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::sync::Arc;

use super::xattr::{Value, Values};
use crate::attributes::Attributes;
use crate::authority::Uid;
use crate::directory::{Directory, Ownership};

/// Number of a node; never used again.
pub(super) type Key = u64;

/// What an `IN_ATTRIB` can be about, besides a phase that is written again.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) values: Values,
    pub(super) ownership: Ownership,
    /// Names of all xattrs.
    pub(super) listed: Vec<u8>,
}

impl Seen {
    /// Attributes, and who said them, are the same.
    pub(super) fn says_the_same_as(&self, other: &Seen) -> bool {
        self.ownership == other.ownership && self.values == other.values
    }
}

/// One cgroup.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) parent: Option<Key>,
    /// Index of its tree.
    pub(super) tree: usize,
    /// Levels below the root of the tree.
    pub(super) depth: usize,
    /// Its path in the hierarchy.
    pub(super) path: PathBuf,
    /// Its cgroup's id.
    pub(super) id: u64,
    /// Its watch, if what is below it is looked at.
    pub(super) watch: Option<i32>,
    pub(super) children: HashMap<OsString, Key>,
    /// What was read last, besides the phase.
    pub(super) seen: Option<Seen>,
    /// The phase as it was read last.
    pub(super) phase: Option<Value>,
    /// It is a sandbox: its directory, its owner, and what it shall be.
    pub(super) sandbox: Option<(Arc<Directory>, Uid, Attributes)>,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Nodes {
    nodes: HashMap<Key, Node>,
    watches: HashMap<i32, Key>,
    next: Key,
}

impl Nodes {
    pub(super) fn get(&self, key: Key) -> Option<&Node> {
        self.nodes.get(&key)
    }

    pub(super) fn get_mut(&mut self, key: Key) -> Option<&mut Node> {
        self.nodes.get_mut(&key)
    }

    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    pub(super) fn watches(&self) -> usize {
        self.watches.len()
    }

    pub(super) fn watched(&self, watch: i32) -> Option<Key> {
        self.watches.get(&watch).copied()
    }

    pub(super) fn child(&self, parent: Key, name: &OsStr) -> Option<Key> {
        self.get(parent)?.children.get(name).copied()
    }

    /// Adds a node. The caller sees to it that the parent has no such child.
    pub(super) fn insert(
        &mut self,
        parent: Option<Key>,
        tree: usize,
        directory: &Directory,
    ) -> Key {
        let key = self.next;
        self.next += 1;
        let mut depth = 0;
        if let Some(above) = parent.and_then(|parent| self.nodes.get_mut(&parent)) {
            depth = above.depth + 1;
            if let Some(name) = directory.inside().file_name() {
                above.children.insert(name.to_owned(), key);
            }
        }
        let node = Node {
            parent,
            tree,
            depth,
            path: directory.inside().to_owned(),
            id: directory.id(),
            watch: None,
            children: HashMap::new(),
            seen: None,
            phase: None,
            sandbox: None,
        };
        self.nodes.insert(key, node);
        key
    }

    pub(super) fn set_watch(&mut self, key: Key, watch: i32) {
        let former = self.watches.insert(watch, key);
        // The kernel gave the watch of another node: that directory is this one now.
        if let Some(other) = former.filter(|other| *other != key) {
            if let Some(node) = self.nodes.get_mut(&other) {
                node.watch = None;
            }
        }
        if let Some(node) = self.nodes.get_mut(&key) {
            node.watch = Some(watch);
        }
    }

    /// Forgets a watch; returns it if it was there.
    pub(super) fn take_watch(&mut self, key: Key) -> Option<i32> {
        let watch = self.nodes.get_mut(&key)?.watch.take()?;
        self.watches.remove(&watch);
        Some(watch)
    }

    /// Removes a node and what is below it, children first. The caller drops their watches.
    pub(super) fn remove(&mut self, key: Key) -> Vec<Node> {
        let mut order = vec![key];
        let mut next = 0;
        while let Some(node) = order.get(next).and_then(|key| self.nodes.get(key)) {
            let children: Vec<Key> = node.children.values().copied().collect();
            order.extend(children);
            next += 1;
        }
        let mut removed = Vec::with_capacity(order.len());
        for key in order.into_iter().rev() {
            if let Some(node) = self.nodes.remove(&key) {
                if let Some(watch) = node.watch {
                    self.watches.remove(&watch);
                }
                removed.push(node);
            }
        }
        if let Some(node) = removed.last() {
            let parent = node.parent.and_then(|parent| self.nodes.get_mut(&parent));
            if let (Some(parent), Some(name)) = (parent, node.path.file_name()) {
                if parent.children.get(name) == Some(&key) {
                    parent.children.remove(name);
                }
            }
        }
        removed
    }
}
