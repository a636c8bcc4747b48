// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Sandboxes and hints by xattr: watches trees of cgroups with inotify.
//!
//! A cgroup whose directory has `user.agentzip.template` is a sandbox; `user.agentzip.phase` says what
//! its agent does. Setting an xattr makes an `IN_ATTRIB` event on the directory *above*, with the
//! name, so one watch serves all siblings. What is below a sandbox belongs to it and is not watched.
//!
//! The kernel does not say which xattr was set. So every `IN_ATTRIB` of a directory counts as its phase
//! written again, unless something else has changed: an attribute, owner, group or mode, or which
//! xattrs there are. Then only a phase of other text counts. What is left is another xattr than ours that
//! is written a second time: that repeats the last hint by xattr, which is harmless unless hints came by
//! another way since. A runtime should keep to one way.
//!
//! Two writes before the daemon reads the first are one event to the kernel, and the text of
//! the last counts. When the kernel's queue overflows everything is looked at again, and only phases of
//! other text count.

mod examine;
mod node;
mod scan;
mod settings;
mod xattr;

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags};
use rustix::io::Errno;

use self::node::{Key, Nodes};
pub use self::settings::{WatchSettings, MAX_DEPTH};
pub use self::xattr::{NAMES, PHASE};
use crate::attributes::Attributes;
use crate::authority::{Authority, Uid};
use crate::directory::{Directory, Mount};
use crate::error::{Error, Result};
use crate::hint::Hint;

/// Bytes of events that one [`Watcher::read`] takes.
const BUFFER: usize = 16 << 10;

/// Something that was seen.
#[derive(Clone, Debug)]
pub enum Change {
    /// A cgroup is a sandbox now.
    Appeared {
        /// Its directory, held open.
        cgroup: Arc<Directory>,
        /// To whom it belongs.
        owner: Uid,
        /// What it shall be, as far as its owner may say so.
        attributes: Attributes,
    },
    /// A sandbox shall be something else.
    Attributes {
        /// Its directory.
        cgroup: Arc<Directory>,
        /// To whom it belongs.
        owner: Uid,
        /// What it shall be, as far as its owner may say so.
        attributes: Attributes,
    },
    /// A hint, for any cgroup of a tree.
    Phase {
        /// Its directory.
        cgroup: Arc<Directory>,
        /// To whom it belongs.
        owner: Uid,
        /// What its agent does.
        hint: Hint,
        /// It was found when everything was looked at, and may be old: what came by another way
        /// since may be newer.
        standing: bool,
    },
    /// What appeared is no sandbox any more.
    Removed {
        /// What was its directory.
        cgroup: Arc<Directory>,
        /// To whom it belonged.
        owner: Uid,
        /// Why.
        why: Removal,
    },
    /// Something was not obeyed, or cannot be watched.
    Refused {
        /// Path in the hierarchy.
        cgroup: String,
        /// To whom it belongs, if that is known.
        owner: Option<Uid>,
        /// Why, and what to do about it.
        reason: String,
    },
}

/// Why a sandbox is none any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// Its directory was removed.
    Gone,
    /// Its template xattr was removed, or may not be obeyed any more.
    Untagged,
    /// A cgroup above it became a sandbox.
    Swallowed,
}

/// Watches trees of cgroups.
#[derive(Debug)]
pub struct Watcher {
    inotify: OwnedFd,
    mount: Arc<Mount>,
    trees: Vec<Tree>,
    max_depth: usize,
    max_directories: usize,
    nodes: Nodes,
}

#[derive(Debug)]
struct Tree {
    path: PathBuf,
    /// Its root, while that is there.
    root: Option<Key>,
    /// Cgroups in view.
    count: usize,
    /// A bound was met, and said so.
    full: bool,
    /// That the root is not there was said.
    missed: bool,
    /// The watch on the directory above the root, which other trees may share.
    perch: Option<i32>,
}

/// An event of inotify.
struct Notice {
    watch: i32,
    what: ReadFlags,
    name: Option<OsString>,
}

impl Watcher {
    /// Prepares to watch; [`rescan`](Watcher::rescan) begins.
    ///
    /// # Errors
    ///
    /// When the settings make no sense or the kernel refuses.
    pub fn new(mount: Arc<Mount>, settings: &WatchSettings) -> Result<Watcher> {
        let trees = settings.check(mount.path())?;
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).map_err(
            |errno| match errno {
                Errno::MFILE => Error::invalid(
                    "inotify",
                    "too many instances; raise fs.inotify.max_user_instances, or the limit of open files",
                ),
                other => Error::io("make inotify for", mount.path())(other.into()),
            },
        )?;
        let trees = trees.into_iter().map(|path| Tree {
            path,
            root: None,
            count: 0,
            full: false,
            missed: false,
            perch: None,
        });
        Ok(Watcher {
            inotify,
            trees: trees.collect(),
            mount,
            max_depth: settings.max_depth,
            max_directories: settings.max_directories,
            nodes: Nodes::default(),
        })
    }

    /// Cgroups in view, and watches held.
    pub fn size(&self) -> (usize, usize) {
        (self.nodes.len(), self.nodes.watches())
    }

    /// A tree's root is not there. [`read`](Watcher::read) tells when it comes, if the directory above it
    /// is there; else [`seek_trees`](Watcher::seek_trees) finds it.
    pub fn misses_trees(&self) -> bool {
        self.trees.iter().any(|tree| tree.root.is_none())
    }

    /// Looks at everything again: at the beginning, and after the rules of `authority` changed. Hints that it finds are `standing`.
    pub fn rescan(&mut self, authority: &Authority) -> Vec<Change> {
        let mut pass = Pass::new(authority, true);
        self.look_at_all(&mut pass);
        pass.changes
    }

    /// Looks only for trees that were missing.
    pub fn seek_trees(&mut self, authority: &Authority) -> Vec<Change> {
        let mut pass = Pass::new(authority, true);
        for index in 0..self.trees.len() {
            if self
                .trees
                .get(index)
                .is_some_and(|tree| tree.root.is_none())
            {
                self.look_at_tree(index, &mut pass);
            }
        }
        pass.changes
    }

    /// Reads what happened, without waiting. To be called when the file descriptor is readable.
    ///
    /// # Errors
    ///
    /// When the kernel refuses to tell.
    pub fn read(&mut self, authority: &Authority) -> Result<Vec<Change>> {
        let mut pass = Pass::new(authority, false);
        for notice in self.notices()? {
            if notice.what.contains(ReadFlags::QUEUE_OVERFLOW) {
                pass.standing = true;
                self.look_at_all(&mut pass);
                pass.standing = false;
            } else if let Some(key) = self.nodes.watched(notice.watch) {
                self.notice(key, &notice, &mut pass);
            } else {
                self.notice_above(&notice, &mut pass);
            }
        }
        self.look_where_room_is(&mut pass);
        Ok(pass.changes)
    }

    /// One system call's worth of events.
    fn notices(&self) -> Result<Vec<Notice>> {
        let mut buffer = [MaybeUninit::uninit(); BUFFER];
        let mut reader = inotify::Reader::new(&self.inotify, &mut buffer);
        let mut notices = Vec::new();
        loop {
            match reader.next() {
                Ok(event) => notices.push(Notice {
                    watch: event.wd(),
                    what: event.events(),
                    name: event
                        .file_name()
                        .map(|name| OsStr::from_bytes(name.to_bytes()).to_owned()),
                }),
                Err(Errno::AGAIN | Errno::INTR) => break,
                Err(errno) => {
                    return Err(Error::io("read inotify of", self.mount.path())(
                        errno.into(),
                    ))
                }
            }
            if reader.is_buffer_empty() {
                break;
            }
        }
        Ok(notices)
    }

    fn notice(&mut self, key: Key, notice: &Notice, pass: &mut Pass<'_>) {
        if notice.what.contains(ReadFlags::IGNORED) {
            // The kernel dropped the watch: the directory is gone. Its parent says so, too, unless
            // it is a root.
            self.nodes.take_watch(key);
            if self
                .nodes
                .get(key)
                .is_some_and(|node| node.parent.is_none())
            {
                self.remove(key, pass);
            }
            return;
        }
        let Some(name) = notice.name.as_deref() else {
            return;
        };
        if !notice.what.contains(ReadFlags::ISDIR) {
            return;
        }
        let child = self.nodes.child(key, name);
        if notice
            .what
            .intersects(ReadFlags::DELETE | ReadFlags::MOVED_FROM)
        {
            if let Some(child) = child {
                self.remove(child, pass);
            }
        } else if notice
            .what
            .intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO)
        {
            // One of that name may be known already, from a look after this was queued.
            self.meet(key, name, pass);
        } else if notice.what.contains(ReadFlags::ATTRIB) {
            match child {
                // What was read in this pass was read after this was queued.
                Some(child) if pass.looked_at.contains(&child) => {}
                Some(child) => self.look_at(child, pass),
                None => self.meet(key, name, pass),
            }
        }
    }
}

impl AsFd for Watcher {
    /// Readable when [`Watcher::read`] has something to tell.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}

/// One look at what happened.
struct Pass<'a> {
    authority: &'a Authority,
    /// What is found may be old.
    standing: bool,
    /// Cgroups whose xattrs were read.
    looked_at: HashSet<Key>,
    changes: Vec<Change>,
}

impl<'a> Pass<'a> {
    fn new(authority: &'a Authority, standing: bool) -> Pass<'a> {
        Pass {
            authority,
            standing,
            looked_at: HashSet::new(),
            changes: Vec::new(),
        }
    }

    fn refuse(&mut self, path: &Path, owner: Option<Uid>, reason: String) {
        self.changes.push(Change::Refused {
            cgroup: format!("/{}", path.display()),
            owner,
            reason,
        });
    }
}
