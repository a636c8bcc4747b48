// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A module of tests: rings, pages by number, and what was asked for.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use agentzip_uapi::{
    FaultKind, FaultRecord, Name, Phase, Range, SandboxRange, PAGE_ACCESSED, PAGE_PRESENT,
    PAGE_SWAPPED,
};

use crate::device::{
    Device, Failure, FaultsTaken, Haste, Info, NewSandbox, NewTemplate, Samples, TemplatePages,
};
use crate::governor::Id;
use crate::PAGE_SIZE;

/// A request to restore.
#[derive(Clone, Debug, PartialEq)]
pub struct Asked {
    pub id: Id,
    pub pid: i32,
    pub pages: Vec<u64>,
    pub haste: Haste,
}

#[derive(Default)]
pub struct Module {
    /// Errno of all four commands; 0: none.
    pub errno: Cell<i32>,
    pub rings: RefCell<BTreeMap<Id, VecDeque<FaultRecord>>>,
    pub armed: RefCell<Vec<(Id, u32)>>,
    pub lost: Cell<u64>,
    /// State of pages of a process.
    pub pages: RefCell<BTreeMap<(i32, u64), u8>>,
    pub asked: RefCell<Vec<Asked>>,
    /// Workers do what they are asked for at once.
    pub prompt: Cell<bool>,
    /// Restored pages that await their hit test, if there are any.
    pub awaiting: RefCell<Option<Vec<(Id, i32, u64)>>>,
    /// Requests that are taken; `None`: any number.
    pub room: Cell<Option<u32>>,
    pub now: Cell<Duration>,
    /// How long a look at the states of a range takes.
    pub slow: Cell<Duration>,
    pub looks: Cell<u32>,
}

impl Module {
    fn answer(&self) -> Result<(), Failure> {
        match self.errno.get() {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno).into()),
        }
    }

    /// A process touches a page: what the kernel would do, and record.
    pub fn touch(&self, id: Id, pid: i32, page: u64) {
        let mut pages = self.pages.borrow_mut();
        let state = pages.entry((pid, page)).or_insert(0);
        if *state & PAGE_SWAPPED != 0 {
            self.record(id, pid, page, FaultKind::Demand, 10_000);
        }
        *state = PAGE_PRESENT | PAGE_ACCESSED;
    }

    pub fn record(&self, id: Id, pid: i32, page: u64, kind: FaultKind, decode_ns: u32) {
        let record = FaultRecord {
            time_ns: self.now.get().as_nanos() as u64,
            address: page * PAGE_SIZE,
            tgid: pid,
            tid: pid,
            decode_ns,
            kind: kind as u8,
            ..FaultRecord::default()
        };
        if let Some(ring) = self.rings.borrow_mut().get_mut(&id) {
            ring.push_back(record);
        }
    }

    fn hit_tests(&self, id: Id) {
        let mut awaiting = self.awaiting.borrow_mut();
        let Some(awaiting) = awaiting.as_mut() else {
            return;
        };
        let (of, others) = std::mem::take(awaiting)
            .into_iter()
            .partition(|(other, ..)| *other == id);
        *awaiting = others;
        let of: Vec<(Id, i32, u64)> = of;
        for (_, pid, page) in of {
            let kind = match self.state(pid, page) & PAGE_ACCESSED {
                0 => FaultKind::Miss,
                _ => FaultKind::Hit,
            };
            self.record(id, pid, page, kind, 0);
        }
    }

    /// Reclaim takes everything of a process.
    pub fn take_out(&self, pid: i32) {
        for ((of, _), state) in self.pages.borrow_mut().iter_mut() {
            if *of == pid && *state != 0 {
                *state = PAGE_SWAPPED;
            }
        }
    }

    pub fn state(&self, pid: i32, page: u64) -> u8 {
        self.pages.borrow().get(&(pid, page)).copied().unwrap_or(0)
    }

    /// All pages that were asked for since the last call.
    pub fn asked_pages(&self) -> Vec<(i32, u64)> {
        let asked = self.asked.take();
        asked
            .iter()
            .flat_map(|asked| asked.pages.iter().map(|page| (asked.pid, *page)))
            .collect()
    }
}

fn no<T>() -> Result<T, Failure> {
    Err(io::Error::from(io::ErrorKind::Unsupported).into())
}

impl Device for Module {
    fn info(&self) -> Result<Info, Failure> {
        no()
    }
    fn arm(&self) -> Result<(), Failure> {
        no()
    }
    fn disarm(&self) -> Result<(), Failure> {
        no()
    }
    fn template_add(&self, _: &NewTemplate) -> Result<TemplatePages, Failure> {
        no()
    }
    fn template_remove(&self, _: &Name) -> Result<(), Failure> {
        no()
    }
    fn sandbox_attach(&self, _: &File, _: &NewSandbox) -> Result<u64, Failure> {
        no()
    }
    fn sandbox_ranges(&self, _: u64, _: &[SandboxRange]) -> Result<(), Failure> {
        no()
    }
    fn sandbox_detach(&self, _: u64) -> Result<u64, Failure> {
        no()
    }
    fn sandbox_phase(&self, _: u64, _: Phase) -> Result<(), Failure> {
        no()
    }
    fn dictionary_add(&self, _: u64, _: &[u8]) -> Result<u32, Failure> {
        no()
    }
    fn dictionary_retire(&self, _: u64) -> Result<u32, Failure> {
        no()
    }
    fn dictionary_samples(&self, _: u64, _: u32, _: u64) -> Result<Samples, Failure> {
        no()
    }
    fn drain(&self) -> Result<u64, Failure> {
        no()
    }

    fn sandbox_record(
        &self,
        cgroup_id: u64,
        records: u32,
        eventfd: Option<BorrowedFd<'_>>,
    ) -> Result<(), Failure> {
        self.answer()?;
        assert_eq!(records > 0, eventfd.is_some());
        self.armed.borrow_mut().push((cgroup_id, records));
        let mut rings = self.rings.borrow_mut();
        match records {
            0 => drop(rings.remove(&cgroup_id)),
            _ => drop(rings.entry(cgroup_id).or_default()),
        }
        Ok(())
    }

    fn faults_read(
        &self,
        cgroup_id: u64,
        room: &mut [FaultRecord],
    ) -> Result<FaultsTaken, Failure> {
        self.answer()?;
        let mut rings = self.rings.borrow_mut();
        let Some(ring) = rings.get_mut(&cgroup_id) else {
            return Err(io::Error::from_raw_os_error(libc::EINVAL).into());
        };
        let records = ring.len().min(room.len());
        for (slot, record) in room.iter_mut().zip(ring.drain(..records)) {
            *slot = record;
        }
        Ok(FaultsTaken {
            records,
            lost: self.lost.get(),
        })
    }

    fn prefetch(&self, id: u64, pid: i32, ranges: &[Range], haste: Haste) -> Result<u64, Failure> {
        self.answer()?;
        if self.room.get() == Some(0) {
            return Err(io::Error::from_raw_os_error(libc::EAGAIN).into());
        }
        self.room.set(self.room.get().map(|room| room - 1));
        let each = ranges.iter().flat_map(|range| {
            assert!(range.start < range.end);
            range.start / PAGE_SIZE..range.end / PAGE_SIZE
        });
        let pages: Vec<u64> = each.collect();
        let mut states = self.pages.borrow_mut();
        let mut queued = 0;
        for page in &pages {
            if let Some(state) = states.get_mut(&(pid, *page)) {
                queued += u64::from(*state & PAGE_SWAPPED != 0);
                if self.prompt.get() && *state & PAGE_SWAPPED != 0 {
                    *state = PAGE_PRESENT;
                    if let Some(awaiting) = &mut *self.awaiting.borrow_mut() {
                        awaiting.push((id, pid, *page));
                    }
                }
            }
        }
        self.asked.borrow_mut().push(Asked {
            id,
            pid,
            pages,
            haste,
        });
        Ok(queued)
    }

    fn page_states(
        &self,
        id: u64,
        pid: i32,
        range: Range,
        clear: bool,
    ) -> Result<Vec<u8>, Failure> {
        self.answer()?;
        self.looks.set(self.looks.get() + 1);
        self.now.set(self.now.get() + self.slow.get());
        if clear {
            self.hit_tests(id);
        }
        let mut pages = self.pages.borrow_mut();
        let states = (range.start / PAGE_SIZE..range.end / PAGE_SIZE).map(|page| {
            let Some(state) = pages.get_mut(&(pid, page)) else {
                return 0;
            };
            let before = *state;
            if clear {
                *state &= !PAGE_ACCESSED;
            }
            before
        });
        Ok(states.collect())
    }
}
