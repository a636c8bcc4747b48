// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Which cgroups are in view: lists directories, holds watches, forgets what is gone.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use rustix::fs::inotify::{self, WatchFlags};
use rustix::io::Errno;

use super::node::Key;
use super::{Change, Notice, Pass, Removal, Tree, Watcher};
use crate::directory::Directory;
use crate::error::Result;

impl Watcher {
    /// Looks at every tree as if for the first time.
    pub(super) fn look_at_all(&mut self, pass: &mut Pass<'_>) {
        pass.looked_at.clear();
        for index in 0..self.trees.len() {
            self.look_at_tree(index, pass);
        }
    }

    /// Looks whether the root of a tree is there and the one that we know, and at what is below it.
    pub(super) fn look_at_tree(&mut self, index: usize, pass: &mut Pass<'_>) {
        self.perch(index);
        let Some(tree) = self.trees.get_mut(index) else {
            return;
        };
        tree.full = false;
        let root = tree.root;
        let opened = self.mount.directory(&tree.path);
        match (root, opened) {
            (Some(root), Ok(directory))
                if self.nodes.get(root).map(|node| node.id) == Some(directory.id()) =>
            {
                self.descend(root, &directory, pass);
            }
            (root, opened) => {
                if let Some(root) = root {
                    self.remove(root, pass);
                }
                self.plant(index, opened, pass);
            }
        }
    }

    /// Watches the directory above the root of a tree, if it is there, for the root to come and go: of a
    /// cgroup that is removed, its own watch hears nothing.
    fn perch(&mut self, index: usize) {
        let Some(tree) = self.trees.get_mut(index) else {
            return;
        };
        // The root of the hierarchy has none, and stays.
        let Some(Ok(above)) = tree.path.parent().map(|above| self.mount.directory(above)) else {
            return;
        };
        let flags = WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO
            | WatchFlags::MASK_ADD
            | WatchFlags::ONLYDIR;
        // Without it, `seek_trees` finds what comes, and `rescan` what went.
        if let Ok(watch) = inotify::add_watch(&self.inotify, in_proc(&above), flags) {
            tree.perch = Some(watch);
        }
    }

    /// A root, or one beside it, came or went.
    pub(super) fn notice_above(&mut self, notice: &Notice, pass: &mut Pass<'_>) {
        for index in 0..self.trees.len() {
            let meant = self.trees.get(index).is_some_and(|tree| {
                tree.perch == Some(notice.watch) && tree.path.file_name() == notice.name.as_deref()
            });
            if meant {
                self.look_at_tree(index, pass);
            }
        }
    }

    /// Begins to watch a tree.
    pub(super) fn plant(&mut self, index: usize, opened: Result<Directory>, pass: &mut Pass<'_>) {
        let Some(tree) = self.trees.get_mut(index) else {
            return;
        };
        match opened {
            Ok(directory) => {
                let root = self.nodes.insert(None, index, &directory);
                tree.root = Some(root);
                tree.missed = false;
                tree.count += 1;
                self.descend(root, &directory, pass);
            }
            Err(error) => {
                if !std::mem::replace(&mut tree.missed, true) {
                    pass.refuse(
                        &tree.path,
                        None,
                        format!("the tree is not watched: {error}"),
                    );
                }
            }
        }
    }

    /// Looks at trees that had no room, once they have.
    pub(super) fn look_where_room_is(&mut self, pass: &mut Pass<'_>) {
        let room = self.max_directories - self.max_directories / 8;
        let some = |tree: &Tree| tree.full && tree.count <= room;
        if self.trees.iter().any(some) {
            pass.standing = true;
            self.look_at_all(pass);
        }
    }

    /// Watches a directory, and compares its children with those that are known.
    pub(super) fn descend(&mut self, key: Key, directory: &Directory, pass: &mut Pass<'_>) {
        let Some(node) = self.nodes.get(key) else {
            return;
        };
        if node.depth >= self.max_depth || node.sandbox.is_some() {
            return;
        }
        let index = node.tree;
        // Before the children are listed, so that none is missed.
        if node.watch.is_none() && !self.watch(key, directory, pass) {
            return;
        }
        let (names, more) = match directory.children(self.max_directories) {
            Ok(found) => found,
            // Gone meanwhile: its parent says so.
            Err(_) => return,
        };
        if more {
            self.full(index, pass);
        }
        let there: HashSet<&OsString> = names.iter().collect();
        let gone: Vec<Key> = self.nodes.get(key).map_or_else(Vec::new, |node| {
            let gone = node
                .children
                .iter()
                .filter(|(name, _)| !there.contains(name));
            gone.map(|(_, child)| *child).collect()
        });
        if !more {
            for child in gone {
                self.remove(child, pass);
            }
        }
        for name in &names {
            self.meet(key, name, pass);
        }
    }

    /// Holds a watch on a directory itself, whatever is at its path by now.
    pub(super) fn watch(&mut self, key: Key, directory: &Directory, pass: &mut Pass<'_>) -> bool {
        let flags = WatchFlags::ATTRIB
            | WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO
            | WatchFlags::EXCL_UNLINK
            | WatchFlags::ONLYDIR;
        match inotify::add_watch(&self.inotify, in_proc(directory), flags) {
            Ok(watch) => {
                self.nodes.set_watch(key, watch);
                true
            }
            Err(errno) => {
                let reason = match errno {
                    Errno::NOSPC => {
                        "not watched: no watches left; raise fs.inotify.max_user_watches".to_owned()
                    }
                    other => format!("not watched: {other}"),
                };
                pass.refuse(directory.inside(), None, reason);
                false
            }
        }
    }

    /// Looks at a child, known or not.
    pub(super) fn meet(&mut self, parent: Key, name: &OsStr, pass: &mut Pass<'_>) {
        let Some(node) = self.nodes.get(parent) else {
            return;
        };
        let (index, path) = (node.tree, node.path.join(name));
        // What is below a sandbox, or too deep, is left from before that was known.
        if node.sandbox.is_some() || node.depth >= self.max_depth {
            return;
        }
        let opened = self.mount.directory(&path);
        let known = self.nodes.child(parent, name);
        let directory = match (known, opened) {
            (Some(child), Ok(directory))
                if self.nodes.get(child).map(|node| node.id) == Some(directory.id()) =>
            {
                // Found by a look after its creation was queued: nothing of it was missed since.
                if pass.standing && !pass.looked_at.contains(&child) {
                    self.look_at(child, pass);
                    self.descend(child, &directory, pass);
                }
                return;
            }
            (known, opened) => {
                if let Some(child) = known {
                    self.remove(child, pass);
                }
                match opened {
                    Ok(directory) => directory,
                    // Gone meanwhile, or no directory of this mount.
                    Err(_) => return,
                }
            }
        };
        let Some(tree) = self.trees.get_mut(index) else {
            return;
        };
        if tree.count >= self.max_directories {
            self.full(index, pass);
            return;
        }
        tree.count += 1;
        let child = self.nodes.insert(Some(parent), index, &directory);
        let directory = Arc::new(directory);
        self.examine(child, &directory, pass);
        self.descend(child, &directory, pass);
    }

    pub(super) fn full(&mut self, index: usize, pass: &mut Pass<'_>) {
        let Some(tree) = self.trees.get_mut(index) else {
            return;
        };
        if !std::mem::replace(&mut tree.full, true) {
            let reason = format!(
                "more than {} cgroups in this tree: some are not seen; raise watch max_directories, or lower \
                 max_depth",
                self.max_directories
            );
            pass.refuse(&tree.path, None, reason);
        }
    }

    /// Stops to watch what is below a sandbox.
    pub(super) fn uproot(&mut self, key: Key, pass: &mut Pass<'_>) {
        if let Some(watch) = self.nodes.take_watch(key) {
            let _ = inotify::remove_watch(&self.inotify, watch);
        }
        let children = self
            .nodes
            .get(key)
            .map(|node| node.children.values().copied().collect::<Vec<_>>());
        for child in children.unwrap_or_default() {
            self.forget(child, Removal::Swallowed, pass);
        }
    }

    pub(super) fn remove(&mut self, key: Key, pass: &mut Pass<'_>) {
        self.forget(key, Removal::Gone, pass);
    }

    pub(super) fn forget(&mut self, key: Key, why: Removal, pass: &mut Pass<'_>) {
        for node in self.nodes.remove(key) {
            if let Some(watch) = node.watch {
                // The kernel may have done so.
                let _ = inotify::remove_watch(&self.inotify, watch);
            }
            if let Some(tree) = self.trees.get_mut(node.tree) {
                tree.count = tree.count.saturating_sub(1);
                if node.parent.is_none() {
                    tree.root = None;
                }
            }
            if let Some((cgroup, owner, _)) = node.sandbox {
                pass.changes.push(Change::Removed { cgroup, owner, why });
            }
        }
    }
}

/// A path to the directory itself, whatever has come in its place.
fn in_proc(directory: &Directory) -> String {
    format!("/proc/self/fd/{}", directory.as_fd().as_raw_fd())
}
