// SPDX-License-Identifier: GPL-2.0

//! Requests to restore pages ahead of need: checked, queued, handed out to jobs (restore.rs) and kept
//! until the pages that were restored have had their hit test.
//!
//! All memory that a request needs is allocated with it, in the call that brings it; jobs and hit
//! tests allocate nothing of ours.
//!
//! Locking: the queue's mutex is taken last; under it nothing is waited for. Jobs and hit tests take
//! what they need out of it, with a reference on the request, and work without it.

use kernel::prelude::*;
use kernel::sync::atomic::Relaxed;
use kernel::sync::{new_mutex, Arc, Mutex};
use kernel::time::{Delta, Instant, Monotonic};

use crate::bindings;
use crate::codec::PAGE_SIZE;
use crate::counters::Counter;
use crate::process::{self, Process};
use crate::restore;
use crate::state::State;
use crate::uapi::{self, Range};

/// Pages of a job.
pub(crate) const JOB_PAGES: usize = 64;

/// Most requests that wait for a job, and most requests of which anything is left.
const MAX_WAITING: usize = 256;
const MAX_REQUESTS: usize = 1024;

/// Most bytes of all requests.
const MAX_BYTES: u64 = 16 << 20;

/// What does not change of a request.
pub(crate) struct Request {
    pub(crate) cgroup_id: u64,
    pub(crate) process: Process,
    /// Whether the sandbox has begun to wait since (see [`crate::sandbox::Sandbox::waits`]).
    pub(crate) waits: u32,
    ranges: KVVec<Range>,
    deadline: Instant<Monotonic>,
    hit_window: Delta,
    /// Restored pages have a hit test.
    is_tested: bool,
    priority: u32,
}

impl Request {
    /// Whether what was not begun is dropped.
    pub(crate) fn is_expired(&self) -> bool {
        (Instant::now() - self.deadline).as_nanos() >= 0
    }

    /// Whether restored pages have a hit test.
    pub(crate) fn is_tested(&self) -> bool {
        self.is_tested
    }

    /// Fills `pages` with the addresses from the cursor on, which it advances. Returns how many there
    /// were.
    fn pages(&self, at: &mut Cursor, pages: &mut [u64; JOB_PAGES]) -> usize {
        let mut count = 0;
        for page in pages.iter_mut() {
            let Some(range) = self.ranges.get(at.range as usize) else {
                break;
            };
            *page = range.start + u64::from(at.page) * PAGE_SIZE as u64;
            count += 1;
            at.page += 1;
            if range.start + u64::from(at.page) * PAGE_SIZE as u64 >= range.end {
                *at = Cursor {
                    range: at.range + 1,
                    page: 0,
                };
            }
        }
        count
    }
}

/// A place in the pages of a request.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Cursor {
    range: u32,
    page: u32,
}

impl Cursor {
    const NOWHERE: Self = Self {
        range: u32::MAX,
        page: 0,
    };
}

/// The pages of one job.
struct Chunk {
    /// The first; nowhere when there is nothing to do for them any more.
    at: Cursor,
    /// A bit for each page that awaits its hit test.
    restored: u64,
    due: Instant<Monotonic>,
}

/// A request, and how far it is.
struct Entry {
    request: Arc<Request>,
    number: u64,
    at: Cursor,
    /// Pages that no job has.
    left: u64,
    /// Jobs that have pages of it.
    jobs: u32,
    /// Room for all, in the order in which they were begun.
    chunks: KVVec<Chunk>,
    /// So many of the first chunks are nowhere: nobody looks at them again.
    over: usize,
    bytes: u64,
}

impl Entry {
    fn is_over(&self) -> bool {
        self.left == 0 && self.jobs == 0 && self.over == self.chunks.len()
    }

    /// Takes the pages of a chunk out for their hit test: nothing is left to do for it then.
    fn take(&mut self, number: usize) -> Option<Work> {
        let chunk = self.chunks.get_mut(number)?;
        let mut pages = [0; JOB_PAGES];
        let count = self.request.pages(&mut chunk.at, &mut pages);
        chunk.at = Cursor::NOWHERE;
        let restored = core::mem::take(&mut chunk.restored);
        self.skip_over();
        Some(Work {
            request: self.request.clone(),
            number: self.number,
            chunk: number,
            pages,
            count,
            restored,
        })
    }

    /// To be called after a chunk has become nowhere.
    fn skip_over(&mut self) {
        let rest = self.chunks.get(self.over..).unwrap_or_default();
        let is_nowhere = |chunk: &&Chunk| chunk.at == Cursor::NOWHERE;
        self.over += rest.iter().take_while(is_nowhere).count();
    }
}

/// What a job, or a hit test, has to do.
pub(crate) struct Work {
    pub(crate) request: Arc<Request>,
    number: u64,
    chunk: usize,
    pages: [u64; JOB_PAGES],
    count: usize,
    /// For a hit test: a bit for each page to be tested.
    pub(crate) restored: u64,
}

impl Work {
    /// Addresses of the pages.
    pub(crate) fn pages(&self) -> &[u64] {
        self.pages.get(..self.count).unwrap_or_default()
    }
}

/// The next thing in the queue.
pub(crate) enum Next {
    /// Pages to restore.
    Job(Work),
    /// A request that has grown too old, and how many of its pages were not begun.
    Expired(Arc<Request>, u64),
}

struct Requests {
    entries: KVec<Entry>,
    next_number: u64,
    /// When hit tests run next.
    next_test: Option<Instant<Monotonic>>,
}

/// The queue.
pub(crate) struct Queue {
    requests: Pin<KBox<Mutex<Requests>>>,
    /// Bytes of all requests.
    bytes: Counter,
}

impl Queue {
    pub(crate) fn new() -> Result<Self> {
        let requests = Requests {
            entries: KVec::with_capacity(MAX_REQUESTS, GFP_KERNEL)?,
            next_number: 0,
            next_test: None,
        };
        Ok(Self {
            requests: KBox::pin_init(new_mutex!(requests, "agentzip_prefetch"), GFP_KERNEL)?,
            bytes: Counter::new(),
        })
    }

    /// Bytes that the queue and all requests in it occupy.
    pub(crate) fn bytes(&self) -> u64 {
        (MAX_REQUESTS * size_of::<Entry>()) as u64 + self.bytes.get()
    }

    /// Adds a request of so many pages. `EAGAIN` when there are too many, `ENOMEM`.
    fn add(&self, request: Request, pages: u64) -> Result {
        let jobs = pages.div_ceil(JOB_PAGES as u64) as usize;
        let chunks = KVVec::with_capacity(jobs, GFP_KERNEL)?;
        let bytes = size_of::<Request>()
            + request.ranges.capacity() * size_of::<Range>()
            + chunks.capacity() * size_of::<Chunk>();
        let request = Arc::new(request, GFP_KERNEL)?;
        let mut requests = self.requests.lock();
        let waiting = requests.entries.iter().filter(|entry| entry.left != 0);
        if waiting.count() >= MAX_WAITING || self.bytes.get() + bytes as u64 > MAX_BYTES {
            return Err(EAGAIN);
        }
        let number = requests.next_number;
        let entry = Entry {
            request,
            number,
            at: Cursor { range: 0, page: 0 },
            left: pages,
            jobs: 0,
            chunks,
            over: 0,
            bytes: bytes as u64,
        };
        requests
            .entries
            .push_within_capacity(entry)
            .map_err(|_| EAGAIN)?;
        requests.next_number += 1;
        self.bytes.add(bytes as u64);
        let jobs: u64 = requests
            .entries
            .iter()
            .map(|entry| entry.left.div_ceil(JOB_PAGES as u64))
            .sum();
        // SAFETY: May be called at any time while the module is loaded.
        unsafe { bindings::agentzip_restore_kick(jobs.min(u64::from(u32::MAX)) as c_uint) };
        Ok(())
    }

    /// The next pages to restore: of the request with the greatest priority, the oldest of those.
    pub(crate) fn next(&self) -> Option<Next> {
        let mut requests = self.requests.lock();
        let entry = requests
            .entries
            .iter_mut()
            .filter(|entry| entry.left != 0)
            .max_by_key(|entry| (entry.request.priority, u64::MAX - entry.number))?;
        let request = entry.request.clone();
        if request.is_expired() {
            let left = core::mem::take(&mut entry.left);
            self.tidy(&mut requests);
            return Some(Next::Expired(request, left));
        }
        let mut pages = [0; JOB_PAGES];
        let chunk = Chunk {
            at: entry.at,
            restored: 0,
            due: request.deadline,
        };
        let count = request.pages(&mut entry.at, &mut pages);
        let work = Work {
            number: entry.number,
            chunk: entry.chunks.len(),
            pages,
            count,
            restored: 0,
            request,
        };
        entry.left = entry.left.saturating_sub(count as u64);
        entry.jobs += 1;
        // Cannot fail: there is room for all.
        let _ = entry.chunks.push_within_capacity(chunk);
        Some(Next::Job(work))
    }

    /// A job is done: `restored` has a bit set for each page that is to have a hit test. With `over` the
    /// rest of the request is dropped: returns how many pages that were.
    pub(crate) fn done(&self, work: &Work, restored: u64, over: bool) -> u64 {
        let due = Instant::now() + work.request.hit_window;
        let mut requests = self.requests.lock();
        let mut dropped = 0;
        let mut entries = requests.entries.iter_mut();
        if let Some(entry) = entries.find(|entry| entry.number == work.number) {
            entry.jobs -= 1;
            if over {
                dropped = core::mem::take(&mut entry.left);
            }
            if let Some(chunk) = entry.chunks.get_mut(work.chunk) {
                chunk.restored = restored;
                chunk.due = due;
                if restored == 0 {
                    chunk.at = Cursor::NOWHERE;
                }
            }
            entry.skip_over();
        }
        if restored != 0 {
            self.test_at(&mut requests, due);
        }
        self.tidy(&mut requests);
        dropped
    }

    /// Pages that are due for their hit test. When there are none, sees to it that the test runs again
    /// when there are.
    pub(crate) fn next_test(&self) -> Option<Work> {
        let mut requests = self.requests.lock();
        let now = Instant::now();
        let mut first: Option<Instant<Monotonic>> = None;
        for entry in requests.entries.iter_mut() {
            let mut due = None;
            for (i, chunk) in entry.chunks.iter().enumerate().skip(entry.over) {
                if chunk.restored == 0 {
                    continue;
                }
                if (chunk.due - now).as_nanos() > 0 {
                    if first.is_none_or(|first| (chunk.due - first).is_negative()) {
                        first = Some(chunk.due);
                    }
                    continue;
                }
                due = Some(i);
                break;
            }
            if let Some(work) = due.and_then(|chunk| entry.take(chunk)) {
                return Some(work);
            }
        }
        self.tidy(&mut requests);
        requests.next_test = None;
        if let Some(first) = first {
            self.test_at(&mut requests, first);
        }
        None
    }

    /// Pages of a sandbox that await their hit test, whether it is due or not.
    pub(crate) fn test_of(&self, cgroup_id: u64) -> Option<Work> {
        let mut requests = self.requests.lock();
        for entry in requests.entries.iter_mut() {
            if entry.request.cgroup_id != cgroup_id {
                continue;
            }
            let mut chunks = entry.chunks.iter().enumerate().skip(entry.over);
            let found = chunks.find(|(_, chunk)| chunk.restored != 0);
            if let Some(work) = found.map(|(i, _)| i).and_then(|chunk| entry.take(chunk)) {
                return Some(work);
            }
        }
        self.tidy(&mut requests);
        None
    }

    /// Hit tests run then, or earlier.
    fn test_at(&self, requests: &mut Requests, due: Instant<Monotonic>) {
        if requests
            .next_test
            .is_some_and(|next| !(due - next).is_negative())
        {
            return;
        }
        requests.next_test = Some(due);
        let ms = (due - Instant::now()).as_millis_ceil().max(0);
        // SAFETY: May be called at any time while the module is loaded.
        unsafe { bindings::agentzip_hit_test_in(ms.min(i64::from(u32::MAX)) as c_uint) };
    }

    /// Drops requests of which nothing is left.
    fn tidy(&self, requests: &mut Requests) {
        requests.entries.retain(|entry| {
            if entry.is_over() {
                self.bytes.sub(entry.bytes);
            }
            !entry.is_over()
        });
    }
}

/// Checks ranges; returns how many pages they have.
///
/// `EINVAL` when one is not page aligned, empty, or not in user space; `E2BIG` when they are too many
/// pages.
fn count_pages(ranges: &[Range]) -> Result<u64> {
    let page = PAGE_SIZE as u64;
    let mut pages = 0u64;
    for range in ranges {
        if (range.start | range.end) % page != 0
            || range.end <= range.start
            || range.end > process::user_end()
        {
            return Err(EINVAL);
        }
        pages = pages.saturating_add((range.end - range.start) / page);
    }
    if pages > uapi::MAX_PREFETCH_PAGES {
        return Err(E2BIG);
    }
    Ok(pages)
}

/// A time of a request. `EINVAL` when it is too long.
fn time(ms: u32) -> Result<Delta> {
    match ms {
        0 => Ok(Delta::from_millis(uapi::DEFAULT_PREFETCH_MS.into())),
        1..=uapi::MAX_PREFETCH_MS => Ok(Delta::from_millis(ms.into())),
        _ => Err(EINVAL),
    }
}

/// Queues a request to restore these ranges; fills `arg.pages`.
///
/// # Errors
///
/// `EINVAL`, `E2BIG` for ranges and times that are none; `EOPNOTSUPP` while it is switched off; `ENOENT`
/// when the sandbox is not attached; `ESRCH`, `EPERM`: see [`Process::find`]; `EAGAIN` when too much is
/// queued; `ENOMEM`. Nothing is queued then.
pub(crate) fn prefetch(state: &State, arg: &mut uapi::Prefetch, ranges: KVVec<Range>) -> Result {
    let pages = count_pages(&ranges)?;
    let timeout = time(arg.timeout_ms)?;
    let hit_window = time(arg.hit_window_ms)?;
    if state.prefetch.load(Relaxed) == 0 {
        return Err(EOPNOTSUPP);
    }
    let waits = restore::attached(state, arg.cgroup_id, |sandbox| sandbox.waits()).ok_or(ENOENT)?;
    let request = Request {
        cgroup_id: arg.cgroup_id,
        process: Process::find(arg.pid, arg.cgroup_id)?,
        waits,
        ranges,
        deadline: Instant::now() + timeout,
        hit_window,
        is_tested: arg.flags & uapi::PREFETCH_UNTESTED == 0,
        priority: arg.priority,
    };
    state.requests.add(request, pages)?;
    arg.pages = pages;
    Ok(())
}
