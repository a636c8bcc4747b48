// SPDX-License-Identifier: GPL-2.0

//! The module's state, and the one pointer through which hooks, device and sysfs reach it.

use kernel::prelude::*;
use kernel::sync::atomic::{Acquire, Atomic, Relaxed, Release};
use kernel::sync::rcu;
use kernel::sync::{new_mutex, Mutex};

use crate::bindings;
use crate::codec::PAGE_SIZE;
use crate::compaction::Walk;
use crate::counters::Counters;
use crate::id_table::IdTable;
use crate::pages::Limit;
use crate::prefetch;
use crate::recorder;
use crate::registry::Registry;
use crate::sandbox::Sandbox;
use crate::scratch;
use crate::second_look;
use crate::store_policy::engine::Policy;
use crate::store_policy::MAX_OWNERS;
use crate::table::SlotTable;
use crate::template::Template;

/// Most templates at a time.
const MAX_TEMPLATES: usize = 256;

/// The store may take one part in this many of the machine's memory, unless told otherwise.
const MAX_SHARE: u64 = 5;

/// What the control lock protects beside the tables' changes.
pub(crate) struct Control {
    /// A hook could not be removed: the module stays armed and pinned for ever.
    pub(crate) stuck: bool,
    /// The compaction under way.
    pub(crate) compaction: Option<Walk>,
}

/// The state.
///
/// Lock order: control lock; mmap_lock -> folio lock (template scan, without the control lock);
/// folio lock (of reclaim's caller) -> mutex of a scratch -> swap cluster lock -> shard lock of
/// the slot table (the lock of its slots) -> lock of a sandbox's arena or of a group; those two do
/// not nest. Lock of a group's dictionaries -> lock of the group. All but the first are taken by the
/// hooks, that of the dictionaries in load and store only. The lock of a sandbox's recorder nests in
/// the folio lock and the mmap_lock, and with none of the others.
/// The second look's mutex is its worker's alone. It comes before the shard locks as a scratch mutex
/// does; memory may be waited for under it, as reclaim never takes it.
/// The mutex of the queue of requests is taken under none of these, and none under it. A restore job takes
/// mmap_lock for read, and then what a fault takes.
#[pin_data]
pub(crate) struct State {
    /// Serialises every change from user space and the worker.
    #[pin]
    pub(crate) control: Mutex<Control>,
    #[pin]
    pub(crate) registry: Registry,
    /// By owner.
    pub(crate) sandboxes: IdTable<Sandbox>,
    pub(crate) templates: IdTable<Template>,
    pub(crate) table: SlotTable,
    /// Bound on the bytes of all arenas, reference pages and content indexes.
    pub(crate) max_bytes: Limit,
    pub(crate) scratch: scratch::Pool,
    /// The second look's worker.
    pub(crate) look: second_look::Worker,
    /// Whether pages are stored in a hurry and looked at again.
    pub(crate) second_look: Atomic<u32>,
    /// How much of one CPU's time the second look may take, 1 to 100 percent.
    pub(crate) second_look_percent: Atomic<u32>,
    /// Pages to restore ahead of need.
    pub(crate) requests: prefetch::Queue,
    /// Whether pages are restored ahead of need.
    pub(crate) prefetch: Atomic<u32>,
    /// Whether a load keeps the entry and leaves the page clean.
    pub(crate) keep_on_load: Atomic<u32>,
    /// Of the whole store.
    pub(crate) counters: Counters,
    /// The same of the recorded page faults.
    pub(crate) records: recorder::Counts,
    /// Largest share of a page, in percent, that its payload against another page may be.
    pub(crate) max_distance: Atomic<u32>,
    pub(crate) armed: Atomic<u32>,
    pub(crate) enabled: Atomic<u32>,
    pub(crate) draining: Atomic<u32>,
}

impl State {
    /// `bounce_bytes` bounds the scratch, the second look's included.
    fn new(bounce_bytes: u64) -> Result<impl PinInit<Self, Error>> {
        let look = second_look::Worker::new()?;
        let scratch = scratch::Pool::new(bounce_bytes.saturating_sub(look.bytes()))?;
        Ok(try_pin_init!(Self {
            control <- new_mutex!(Control { stuck: false, compaction: None }, "agentzip_control"),
            registry <- Registry::new(),
            sandboxes: IdTable::new(MAX_OWNERS)?,
            templates: IdTable::new(MAX_TEMPLATES)?,
            table: SlotTable::new()?,
            // SAFETY: No preconditions.
            max_bytes: Limit::new(unsafe { bindings::agentzip_total_ram_bytes() } / MAX_SHARE),
            scratch: scratch,
            look: look,
            second_look: Atomic::new(1),
            second_look_percent: Atomic::new(100),
            requests: prefetch::Queue::new()?,
            prefetch: Atomic::new(1),
            keep_on_load: Atomic::new(1),
            counters: Counters::new(),
            records: recorder::Counts::new(),
            max_distance: Atomic::new(100),
            armed: Atomic::new(0),
            enabled: Atomic::new(1),
            draining: Atomic::new(0),
        }? Error))
    }

    /// What the engine may do now.
    pub(crate) fn policy(&self) -> Policy {
        let mut policy = match self.second_look.load(Relaxed) {
            0 => Policy::AT_ONCE,
            _ => Policy::DEFAULT,
        };
        let max_distance = self.max_distance.load(Relaxed) as usize * PAGE_SIZE / 100;
        policy.limits.max_distance = max_distance;
        policy.cheap.max_distance = max_distance;
        policy
    }

    /// Whether new stores are taken.
    pub(crate) fn accepts_stores(&self) -> bool {
        self.enabled.load(Acquire) != 0 && self.draining.load(Acquire) == 0
    }
}

static STATE: Atomic<*const State> = Atomic::new(core::ptr::null());

/// The state, from the end of the module's init to the beginning of its exit.
///
/// Everything that calls this cannot run outside that time: hooks are armed only between (and the
/// module is pinned while they are), the device is registered after and removed before. Readers of
/// sysfs files hold RCU from before the call for as long as they use the state.
pub(crate) fn get() -> Option<&'static State> {
    // SAFETY: Non-null only while `Published` keeps the state alive.
    unsafe { STATE.load(Acquire).as_ref() }
}

/// Owns the state and publishes it.
pub(crate) struct Published {
    _state: Pin<KBox<State>>,
}

impl Published {
    /// Makes the state with at most so many bytes of scratch, but enough for one page at a time and the
    /// second look.
    pub(crate) fn new(bounce_bytes: u64) -> Result<Self> {
        let state = KBox::try_pin_init(State::new(bounce_bytes)?, GFP_KERNEL)?;
        STATE.store(&*state, Release);
        Ok(Self { _state: state })
    }
}

impl Drop for Published {
    fn drop(&mut self) {
        STATE.store(core::ptr::null(), Release);
    }
}

/// Empties the tables of sandboxes and templates when dropped, while the sysfs tree still stands.
pub(crate) struct Contents;

impl Drop for Contents {
    fn drop(&mut self) {
        let Some(state) = get() else { return };
        // Unloading means disarmed: no entry, no hook, and the device and the worker are gone. Only
        // readers of sysfs files are left; from now on they find no state, and those that had it
        // are RCU readers.
        STATE.store(core::ptr::null(), Release);
        rcu::synchronize_rcu();
        state.sandboxes.clear();
        state.templates.clear();
    }
}
