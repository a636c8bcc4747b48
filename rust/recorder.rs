// SPDX-License-Identifier: GPL-2.0

//! The recorder: every page fault of a sandbox for a page that was swapped out goes to its ring, which
//! user space reads (ffi/recorder.c calls [`agentzip_rs_fault`]).
//!
//! # The ring
//!
//! One for each sandbox that is recorded, of fixed size. When it is full the new record is dropped and
//! counted, and what is there stays: a reader who is late then has the beginning of a burst without a
//! gap. That is what a plan is made of, for what is touched first after a wait is waited for first.
//! Overwriting would keep the end of the burst, which nobody waits for any more.
//!
//! # Joining
//!
//! The handler knows who wants which page, our load what it took to decode it. Both run in the same
//! thread for the same swap slot, so the load finds the record by thread and slot, some places back
//! from the newest one at most. A page that somebody else loaded, or the host, stays [`NOT_DECODED`],
//! and so does a record that was read before the load was through.
//!
//! A fault may be repeated before its page came (the kernel gave a lock up in between). So the same
//! thread at the same address and slot, with a newest record that nobody joined, is the same fault.
//! So is one that comes much later, if the thread has missed nothing else in between; it tells nothing
//! new.
//!
//! # Locking
//!
//! The lock of a recorder is taken in task context only, so interrupts stay on. It nests inside the
//! folio lock (load) and the mmap_lock (handler); inside it is only what signalling an eventfd takes.
//! No user memory is touched under it and nothing is allocated or freed: rings and eventfds come from
//! outside and go outside.
//!
//! # Races, by pair
//!
//! * handler, load, [`Recorder::note`] / another ring: under the lock there is the former ring, the new
//!   one or none. Records of the former one are lost, and counted.
//! * the same / read: a record is read once, by one reader; a load that comes after finds none.
//! * read / another ring, detach: batches that a reader has copied are its own; the next finds the new
//!   ring, or no sandbox.
//! * handler / detach: the detach takes the ring away under the control lock, under which alone rings
//!   come. A handler that still finds the sandbox finds no ring.
//! * handler, load / reaping: they are readers that reaping waits for (id_table.rs).
//! * signal / another eventfd: the eventfd is signalled under the lock, and its reference is put after
//!   it was taken out under the lock.
//! * handler / disarm, unload: the handler is removed first, which waits for whoever is in it. Rings
//!   outlive that; they go with their sandboxes.

use core::ptr::NonNull;

use kernel::alloc::KVVec;
use kernel::error::to_result;
use kernel::prelude::*;
use kernel::sync::atomic::{Atomic, Relaxed};
use kernel::sync::{new_spinlock, rcu, SpinLock};

use crate::bindings;
use crate::codec::Representation;
use crate::counters::Counter;
use crate::state;
use crate::uapi::{self, FaultKind, FaultRecord, NOT_DECODED};

/// Places that a load, or the repetition of a fault, looks back for the record of its thread: there
/// are some at most for each thread that faults at the same time.
const LOOK_BACK: usize = 32;

/// Counts of records, kept once for the whole store and once for each sandbox.
pub(crate) struct Counts {
    /// Page faults seen while recording, lost ones included.
    pub(crate) faults: Counter,
    /// Records that nobody will read.
    pub(crate) lost: Counter,
}

impl Counts {
    pub(crate) const fn new() -> Self {
        Self {
            faults: Counter::new(),
            lost: Counter::new(),
        }
    }
}

/// A reference to an eventfd.
///
/// # Invariants
///
/// The pointer is valid, and the reference ours.
pub(crate) struct EventFd(NonNull<bindings::eventfd_ctx>);

// SAFETY: An eventfd locks itself, and may be signalled and put by any task.
unsafe impl Send for EventFd {}

impl EventFd {
    /// The one that is open with this number in the current process. `EBADF` when nothing is, `EINVAL`
    /// when it is no eventfd.
    pub(crate) fn get(fd: i32) -> Result<Self> {
        let mut ctx = core::ptr::null_mut();
        // SAFETY: `ctx` is valid for writes.
        to_result(unsafe { bindings::agentzip_eventfd_get(fd, &mut ctx) })?;
        // INVARIANT: We were given a reference.
        NonNull::new(ctx).map(Self).ok_or(EBADF)
    }

    /// Wakes who waits for it. Does not sleep.
    fn signal(&self) {
        // SAFETY: By the type invariants.
        unsafe { bindings::agentzip_eventfd_signal(self.0.as_ptr()) };
    }
}

impl Drop for EventFd {
    fn drop(&mut self) {
        // SAFETY: By the type invariants; put once, here.
        unsafe { bindings::agentzip_eventfd_put(self.0.as_ptr()) };
    }
}

/// Lets the handler know that there is something to record, as long as it exists.
struct Recorded;

impl Recorded {
    fn new() -> Self {
        // SAFETY: No preconditions.
        unsafe { bindings::agentzip_recorder_count(1) };
        Self
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        // SAFETY: No preconditions.
        unsafe { bindings::agentzip_recorder_count(-1) };
    }
}

/// A record and the slot of its page, 0 for records that are about no fault.
#[derive(Clone, Copy)]
struct Place {
    record: FaultRecord,
    slot: usize,
}

/// The records of a sandbox that nobody has read yet.
///
/// # Invariants
///
/// The number of places is a power of two, and `len` no larger.
pub(crate) struct Ring {
    places: KVVec<Place>,
    /// Where the next record goes, modulo the number of places.
    next: usize,
    /// Records that were not read: the newest ones.
    len: usize,
    _recorded: Recorded,
}

impl Ring {
    /// An empty one for so many records, a power of two. May sleep.
    pub(crate) fn new(records: u32) -> Result<Self> {
        if !records.is_power_of_two() {
            return Err(EINVAL);
        }
        let empty = Place {
            record: FaultRecord {
                representation: NOT_DECODED,
                ..FaultRecord::default()
            },
            slot: 0,
        };
        // INVARIANT: As was just checked.
        Ok(Self {
            places: KVVec::from_elem(empty, records as usize, GFP_KERNEL)?,
            next: 0,
            len: 0,
            _recorded: Recorded::new(),
        })
    }

    /// Most records.
    pub(crate) fn capacity(&self) -> usize {
        self.places.len()
    }

    fn bytes(&self) -> u64 {
        (self.places.capacity() * size_of::<Place>()) as u64
    }

    fn is_half_full(&self) -> bool {
        self.len >= self.capacity() / 2
    }

    /// The place that was filled `back` records before the next, 1 or more.
    fn before(&mut self, back: usize) -> Option<&mut Place> {
        let mask = self.capacity().wrapping_sub(1);
        self.places.get_mut(self.next.wrapping_sub(back) & mask)
    }

    /// Adds a record. False when there is no room for it.
    fn push(&mut self, place: Place) -> bool {
        let capacity = self.capacity();
        if self.len >= capacity {
            return false;
        }
        let at = self.next & capacity.wrapping_sub(1);
        let Some(free) = self.places.get_mut(at) else {
            return false;
        };
        *free = place;
        self.next = self.next.wrapping_add(1);
        self.len += 1;
        true
    }

    /// Takes the oldest record out.
    fn pop(&mut self) -> Option<FaultRecord> {
        let record = match self.len {
            0 => None,
            len => self.before(len).map(|place| place.record),
        }?;
        self.len -= 1;
        Some(record)
    }

    /// Whether the newest record of a thread is of this fault, and its page has not come yet.
    fn is_repeated(&mut self, tid: i32, address: u64, slot: usize) -> bool {
        for back in 1..=LOOK_BACK {
            match self.before(back) {
                Some(place) if place.record.tid == tid => {
                    return place.slot == slot
                        && place.record.address == address
                        && place.record.representation == NOT_DECODED;
                }
                _ => {}
            }
        }
        false
    }

    /// Tells the record of a thread's fault what its page was decoded from.
    fn join(&mut self, tid: i32, slot: usize, representation: u8, ns: u32) {
        for back in 1..=LOOK_BACK.min(self.len) {
            let Some(place) = self.before(back) else {
                return;
            };
            if place.record.tid == tid && place.slot == slot {
                if place.record.representation == NOT_DECODED {
                    place.record.representation = representation;
                    place.record.decode_ns = ns;
                }
                return;
            }
        }
    }
}

/// What the lock protects.
struct Inner {
    ring: Option<Ring>,
    eventfd: Option<EventFd>,
    /// The eventfd was signalled, and the ring is half full since.
    signalled: bool,
}

impl Inner {
    fn signal_if_due(&mut self) {
        let is_due = !self.signalled && self.ring.as_ref().is_some_and(Ring::is_half_full);
        if let (true, Some(eventfd)) = (is_due, &self.eventfd) {
            eventfd.signal();
            self.signalled = true;
        }
    }
}

/// The recorder of a sandbox.
#[pin_data]
pub(crate) struct Recorder {
    #[pin]
    inner: SpinLock<Inner>,
    /// Bytes of the ring. 0 while there is none, so that everybody leaves without the lock.
    bytes: Atomic<u64>,
    pub(crate) counts: Counts,
}

impl Recorder {
    /// One that records nothing.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            inner <- new_spinlock!(
                Inner { ring: None, eventfd: None, signalled: false },
                "agentzip_recorder"
            ),
            bytes: Atomic::new(0),
            counts: Counts::new(),
        })
    }

    /// Bytes of the ring.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    fn is_recording(&self) -> bool {
        self.bytes() != 0
    }

    /// Records that the ring has room for; 0 when there is none.
    pub(crate) fn capacity(&self) -> usize {
        self.inner.lock().ring.as_ref().map_or(0, Ring::capacity)
    }

    /// Puts another ring in place, or none. The caller holds the control lock, and drops what it gets
    /// where it may sleep; records in it are counted as lost.
    #[must_use]
    pub(crate) fn replace_ring(&self, ring: Option<Ring>) -> Option<Ring> {
        let mut inner = self.inner.lock();
        self.bytes
            .store(ring.as_ref().map_or(0, Ring::bytes), Relaxed);
        let old = core::mem::replace(&mut inner.ring, ring);
        inner.signalled = false;
        drop(inner);
        self.lose(old.as_ref().map_or(0, |old| old.len));
        old
    }

    /// Puts another eventfd in place, or none; signals it if the ring is half full. The caller drops
    /// what it gets under no lock.
    #[must_use]
    pub(crate) fn replace_eventfd(&self, eventfd: Option<EventFd>) -> Option<EventFd> {
        let mut inner = self.inner.lock();
        let old = core::mem::replace(&mut inner.eventfd, eventfd);
        inner.signalled = false;
        inner.signal_if_due();
        old
    }

    /// Ends the recording. As [`Self::replace_ring`].
    #[must_use]
    pub(crate) fn stop(&self) -> (Option<Ring>, Option<EventFd>) {
        (self.replace_ring(None), self.replace_eventfd(None))
    }

    /// Adds a record, or counts it as lost when the ring is full; does nothing when there is no ring.
    /// Task context; does not sleep and allocates nothing.
    pub(crate) fn note(&self, record: FaultRecord) {
        if self.is_recording() {
            self.push(|_| Some(Place { record, slot: 0 }));
        }
    }

    /// Adds the record that `make` makes for the ring, under the lock. Returns whether it made one.
    fn push(&self, make: impl FnOnce(&mut Ring) -> Option<Place>) -> bool {
        let mut inner = self.inner.lock();
        let Some(ring) = &mut inner.ring else {
            return false;
        };
        let Some(place) = make(ring) else {
            return false;
        };
        let kept = ring.push(place);
        inner.signal_if_due();
        drop(inner);
        self.lose(usize::from(!kept));
        true
    }

    /// Notes that a thread waits for one of its pages. False when that was noted already.
    fn demand(&self, mut record: FaultRecord, slot: usize) -> bool {
        if !self.is_recording() {
            return false;
        }
        let is_new = self.push(|ring| {
            if ring.is_repeated(record.tid, record.address, slot) {
                return None;
            }
            // Under the lock, so that records are in the order of their times.
            // SAFETY: Not in an NMI.
            record.time_ns = unsafe { bindings::agentzip_now_ns() };
            Some(Place { record, slot })
        });
        if is_new {
            self.count(|counts| counts.faults.add(1));
        }
        is_new
    }

    /// Our load has decoded a page for the current thread, in so many ns.
    pub(crate) fn decoded(&self, slot: usize, representation: Representation, ns: u64) {
        if !self.is_recording() {
            return;
        }
        let tid = kernel::current!().pid();
        let ns = u32::try_from(ns).unwrap_or(u32::MAX);
        if let Some(ring) = &mut self.inner.lock().ring {
            ring.join(tid, slot, representation as u8, ns);
        }
    }

    /// Takes the oldest records out, as many as there are and fit into `out`; returns how many.
    pub(crate) fn take(&self, out: &mut [FaultRecord]) -> usize {
        let mut inner = self.inner.lock();
        let Some(ring) = &mut inner.ring else {
            return 0;
        };
        let mut taken = 0;
        for (out, record) in out.iter_mut().zip(core::iter::from_fn(|| ring.pop())) {
            *out = record;
            taken += 1;
        }
        if !ring.is_half_full() {
            inner.signalled = false;
        }
        taken
    }

    /// Counts records that nobody will read.
    pub(crate) fn lose(&self, records: usize) {
        if records != 0 {
            self.count(|counts| counts.lost.add(records as u64));
        }
    }

    fn count(&self, add: impl Fn(&Counts)) {
        add(&self.counts);
        if let Some(state) = state::get() {
            add(&state.records);
        }
    }
}

/// Handler of `do_swap_page()`: the current thread waits for one of its pages.
#[no_mangle]
extern "C" fn agentzip_rs_fault(address: usize, slot: usize, tgid: c_int, tid: c_int, write: bool) {
    let Some(state) = state::get() else { return };
    let rcu = rcu::read_lock();
    let sandbox = state
        .registry
        .owner_of_current(&rcu)
        .and_then(|owner| state.sandboxes.get(owner.index(), &rcu));
    let Some(sandbox) = sandbox else { return };
    let record = FaultRecord {
        address: address as u64,
        tgid,
        tid,
        representation: NOT_DECODED,
        kind: FaultKind::Demand as u8,
        flags: if write { uapi::FAULT_WRITE } else { 0 },
        ..FaultRecord::default()
    };
    if sandbox.recorder.demand(record, slot) {
        // SAFETY: A tracepoint takes any values.
        unsafe { bindings::agentzip_trace_fault(sandbox.cgroup_id, slot, address as u64, write) };
    }
}
