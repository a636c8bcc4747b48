// SPDX-License-Identifier: GPL-2.0

//! The module's state, and the one pointer through which hooks, device and sysfs reach it.

use kernel::prelude::*;
use kernel::sync::atomic::{Acquire, Atomic, Release};
use kernel::sync::rcu;
use kernel::sync::{new_mutex, Mutex};

use crate::counters::Counters;
use crate::id_table::IdTable;
use crate::pool::Pool;
use crate::registry::Registry;
use crate::sandbox::Sandbox;
use crate::scratch::PerCpu;
use crate::store_policy::MAX_OWNERS;
use crate::table::SlotTable;
use crate::template::Template;

/// Most templates at a time.
const MAX_TEMPLATES: usize = 256;

/// What the control lock protects beside the tables' changes.
pub(crate) struct Control {
    /// A hook could not be removed: the module stays armed and pinned for ever.
    pub(crate) stuck: bool,
}

/// The state.
///
/// Lock order: control lock; mmap_lock -> folio lock (template scan, without the control lock);
/// folio lock (of reclaim's caller) -> mutex of a CPU's scratch -> swap
/// cluster lock -> shard lock of the slot table -> zsmalloc's. Only the last three are taken by the
/// hooks.
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
    pub(crate) pool: Pool,
    pub(crate) scratch: PerCpu,
    /// Of the whole store.
    pub(crate) counters: Counters,
    pub(crate) armed: Atomic<u32>,
    pub(crate) enabled: Atomic<u32>,
    pub(crate) draining: Atomic<u32>,
}

impl State {
    fn new() -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            control <- new_mutex!(Control { stuck: false }, "agentzip_control"),
            registry <- Registry::new(),
            sandboxes: IdTable::new(MAX_OWNERS)?,
            templates: IdTable::new(MAX_TEMPLATES)?,
            table: SlotTable::new()?,
            pool: Pool::new()?,
            scratch: PerCpu::new()?,
            counters: Counters::new(),
            armed: Atomic::new(0),
            enabled: Atomic::new(1),
            draining: Atomic::new(0),
        }? Error)
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
    pub(crate) fn new() -> Result<Self> {
        let state = KBox::try_pin_init(State::new(), GFP_KERNEL)?;
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
