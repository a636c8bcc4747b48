// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A sandbox and what its processes do, one operation after the other, each of them chosen at random.
//!
//! Its thread alone changes the processes' memory, so it knows what each page should hold. Everything that
//! may happen to the pages without changing them, the thread of the host and those of the other sandboxes do
//! at the same time.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::Ordering;
use std::time::Instant;

use agentzip_uapi as uapi;
use anyhow::{ensure, Context, Result};

use super::count::{self, Counts, Ended, Table};
use super::model::{Piece, Process};
use super::random::Random;
use super::shared::Shared;
use crate::suite::daemon;
use crate::suite::fixture::cgroup::{self, Cgroup};
use crate::suite::fixture::module;
use crate::suite::fixture::puppet::{Region, Way};
use crate::suite::sys;

/// Most processes of a sandbox.
const PROCESSES: usize = 4;
/// Most pages of a process.
const PAGES: usize = 1536;
/// Most pages of a process that are locked into memory.
const LOCKED: usize = 96;
/// Pages of a huge page.
const HUGE: usize = 512;
/// Operations that are named when one fails.
const REMEMBERED: usize = 12;

/// A sandbox, its processes and what they should hold.
pub struct Agent<'a> {
    shared: &'a Shared<'a>,
    number: usize,
    random: Random,
    rooms: [Cgroup; 2],
    /// Its processes; there is always one.
    pub processes: Vec<Process>,
    /// What was done.
    pub counts: Counts,
    last: VecDeque<&'static str>,
}

/// What a sandbox can do.
type Operation = fn(&mut Agent<'_>) -> Result<Ended>;

const OPERATIONS: Table<Operation> = &[
    (("write", write), 40),
    (("write-from-outside", write_from_outside), 6),
    (("check", check), 30),
    (("touch-by-threads", touch_by_threads), 6),
    (("reclaim", reclaim), 16),
    (("madvise-pageout", page_out), 10),
    (("madvise-discard", discard), 8),
    (("madvise-willneed", will_need), 4),
    (("madvise-collapse", collapse), 3),
    (("madvise-hugepage", hugepage), 3),
    (("madvise-mergeable", mergeable), 3),
    (("mmap", map), 8),
    (("munmap", unmap), 5),
    (("mremap", remap), 5),
    (("mlock", lock), 4),
    (("userfaultfd", watch), 3),
    (("direct-in", direct_in), 4),
    (("direct-out", direct_out), 4),
    (("fork", fork), 4),
    (("exit", exit), 3),
    (("exec", exec), 1),
    (("phase", phase), 10),
    (("prefetch", prefetch), 8),
    (("page-states", page_states), 3),
    (("memory-max", squeeze), 4),
    (("freeze", freeze), 2),
    (("cgroup-move", move_process), 4),
    (("cgroup-replace", replace_room), 2),
    (("cgroup-begin-again", begin_again), 1),
    (("sandbox-limit", limit), 3),
];

/// The names of all of them.
pub fn names() -> impl Iterator<Item = &'static str> {
    count::names(OPERATIONS)
}

/// How an operation ended that may fail with one of these errors.
pub fn ended<T>(result: Result<T>, allowed: &[i32]) -> Result<Ended> {
    let Err(error) = result else {
        return Ok(Ended::Done);
    };
    let errno = error
        .chain()
        .find_map(|cause| cause.downcast_ref::<io::Error>()?.raw_os_error());
    match errno {
        Some(errno) if allowed.contains(&errno) => Ok(Ended::Refused),
        _ => Err(error),
    }
}

impl<'a> Agent<'a> {
    /// The sandbox of this number, with one process.
    pub fn start(shared: &'a Shared<'a>, number: usize, seed: u64) -> Result<Agent<'a>> {
        let mut agent = Agent {
            shared,
            number,
            random: Random::new(seed, 2 + number as u64),
            rooms: rooms(&shared.sandbox(number).cgroup)?,
            processes: Vec::new(),
            counts: Counts::default(),
            last: VecDeque::new(),
        };
        let process = agent.fork_zygote()?;
        agent.admit(process.context("the template has no room for a process")?)?;
        Ok(agent)
    }

    /// Forks a process from the template's zygote, if the family has room for one. It is where the zygote is.
    fn fork_zygote(&self) -> Result<Option<Process>> {
        let template = &mut *self.shared.template(self.number);
        if !template.family.has_room() {
            return Ok(None);
        }
        let puppet = template.family.fork(&template.zygote)?;
        Ok(Some(Process::new(puppet, &template.region)))
    }

    /// Takes a process into the sandbox.
    fn admit(&mut self, process: Process) -> Result<()> {
        self.rooms[0].enter(process.puppet.pid)?;
        self.processes.push(process);
        Ok(())
    }

    /// Does what it chooses until the time is over, or another has failed; then checks everything.
    pub fn run(&mut self) -> Result<()> {
        let mut operations = 0u64;
        while Instant::now() < self.shared.end && !self.shared.failed.load(Ordering::Relaxed) {
            let (name, operation) = *self.random.weighted(OPERATIONS);
            self.last.truncate(REMEMBERED);
            self.last.push_front(name);
            let working = self.shared.work();
            let ended = operation(self).with_context(|| {
                let last: Vec<&str> = self.last.iter().skip(1).copied().collect();
                format!(
                    "sandbox {}, operation {operations}, {name} (before it {})",
                    self.number,
                    last.join(", ")
                )
            });
            drop(working);
            self.counts.add(name, self.shared.note(ended)?);
            operations += 1;
        }
        let checked = self.check_all();
        self.shared.note(checked)
    }

    /// Checks all pages of all processes.
    pub fn check_all(&mut self) -> Result<()> {
        for process in &self.processes {
            let checked = process.check_all().with_context(|| {
                format!(
                    "sandbox {}, process {} ({})",
                    self.number,
                    process.puppet.pid,
                    self.shared.sandbox(self.number).events()
                )
            })?;
            self.counts.pages_verified += checked;
        }
        Ok(())
    }

    /// A process, and a mapping of it if it has one.
    fn any_piece(&mut self) -> Option<(usize, usize)> {
        let process = self.random.below(self.processes.len());
        let pieces = self.processes[process].pieces.len();
        (pieces > 0).then(|| (process, self.random.below(pieces)))
    }

    /// The same with some pages of the mapping.
    fn any_part(&mut self, most: usize) -> Option<(usize, usize, (usize, usize))> {
        let (process, piece) = self.any_piece()?;
        let pages = self.processes[process].pieces[piece].region.pages();
        Some((process, piece, self.random.part(pages, most)))
    }

    /// Gives advice on a whole mapping.
    fn advise(&mut self, advice: i32, allowed: &[i32]) -> Result<Ended> {
        let Some((process, piece)) = self.any_piece() else {
            return Ok(Ended::Refused);
        };
        let process = &self.processes[process];
        let advised = process.puppet.advise(&process.pieces[piece].region, advice);
        ended(advised, allowed)
    }

    /// Gives advice on some pages.
    fn advise_part(&mut self, advice: i32, allowed: &[i32]) -> Result<Ended> {
        let Some((process, piece, (from, pages))) = self.any_part(256) else {
            return Ok(Ended::Refused);
        };
        let process = &self.processes[process];
        let region = &process.pieces[piece].region;
        let advised = process.puppet.advise_part(region, from, pages, advice);
        ended(advised, allowed)
    }
}

/// Makes the two cgroups of a sandbox in which its processes are.
fn rooms(sandbox: &Cgroup) -> Result<[Cgroup; 2]> {
    sandbox.delegate()?;
    Ok([sandbox.child("x")?, sandbox.child("y")?])
}

fn write(agent: &mut Agent<'_>) -> Result<Ended> {
    let Some((process, piece, part)) = agent.any_part(64) else {
        return Ok(Ended::Refused);
    };
    agent.processes[process].write(piece, part, &mut agent.random)?;
    Ok(Ended::Done)
}

fn write_from_outside(agent: &mut Agent<'_>) -> Result<Ended> {
    let Some((process, piece, (page, _))) = agent.any_part(1) else {
        return Ok(Ended::Refused);
    };
    let spec = agent.random.spec(page);
    let process = &mut agent.processes[process];
    let region = &mut process.pieces[piece].region;
    let mut content = [0; sys::PAGE_WORDS];
    spec.render(&mut content);
    sys::write_process(process.puppet.pid, region.at(page), &content)?;
    region.specs[page] = spec;
    Ok(Ended::Done)
}

fn check(agent: &mut Agent<'_>) -> Result<Ended> {
    let Some((process, piece, part)) = agent.any_part(256) else {
        return Ok(Ended::Refused);
    };
    agent.counts.pages_verified += agent.processes[process].check(piece, part)?;
    Ok(Ended::Done)
}

fn touch_by_threads(agent: &mut Agent<'_>) -> Result<Ended> {
    let Some((process, piece, (from, pages))) = agent.any_part(128) else {
        return Ok(Ended::Refused);
    };
    let threads = 2 + agent.random.below(3) as u64;
    let process = &agent.processes[process];
    let part = process.pieces[piece].region.part(from, pages);
    process.puppet.touch_by(&part, threads)?;
    Ok(Ended::Done)
}

fn reclaim(agent: &mut Agent<'_>) -> Result<Ended> {
    let bytes = 1 << (16 + agent.random.below(8));
    agent.shared.sandbox(agent.number).cgroup.reclaim(bytes)?;
    Ok(Ended::Done)
}

fn page_out(agent: &mut Agent<'_>) -> Result<Ended> {
    // EINVAL: locked.
    agent.advise_part(libc::MADV_PAGEOUT, &[libc::EINVAL])
}

/// Gives pages up: they hold zeros afterwards.
fn discard(agent: &mut Agent<'_>) -> Result<Ended> {
    let Some((process, piece, (from, pages))) = agent.any_part(96) else {
        return Ok(Ended::Refused);
    };
    let process = &mut agent.processes[process];
    let piece = &mut process.pieces[piece];
    let advice = match piece.shared {
        true => libc::MADV_REMOVE,
        false => libc::MADV_DONTNEED,
    };
    let advised = process
        .puppet
        .advise_part(&piece.region, from, pages, advice);
    // EINVAL: locked.
    let ended = ended(advised, &[libc::EINVAL])?;
    ensure!(
        (ended == Ended::Refused) == piece.locked,
        "madvise({advice}) of {} pages: {ended:?}",
        if piece.locked { "locked" } else { "unlocked" }
    );
    if ended == Ended::Done {
        let zeros = &mut piece.region.specs[from..from + pages];
        zeros.fill(crate::suite::fixture::page::Spec::ZERO);
    }
    Ok(ended)
}

fn will_need(agent: &mut Agent<'_>) -> Result<Ended> {
    agent.advise_part(libc::MADV_WILLNEED, &[])
}

fn collapse(agent: &mut Agent<'_>) -> Result<Ended> {
    let no = [libc::EINVAL, libc::EBUSY, libc::EAGAIN, libc::ENOMEM];
    agent.advise(libc::MADV_COLLAPSE, &no)
}

fn hugepage(agent: &mut Agent<'_>) -> Result<Ended> {
    let advice = *agent
        .random
        .of(&[libc::MADV_HUGEPAGE, libc::MADV_NOHUGEPAGE]);
    agent.advise(advice, &[])
}

fn mergeable(agent: &mut Agent<'_>) -> Result<Ended> {
    let advice = *agent
        .random
        .of(&[libc::MADV_MERGEABLE, libc::MADV_UNMERGEABLE]);
    agent.advise(advice, &[])
}

fn map(agent: &mut Agent<'_>) -> Result<Ended> {
    let shared = agent.random.chance(20);
    let huge = agent.random.chance(20);
    let pages = match huge {
        true => HUGE,
        false => 1 + agent.random.below(256),
    };
    let index = agent.random.below(agent.processes.len());
    let process = &mut agent.processes[index];
    if process.pages() + pages > PAGES {
        return Ok(Ended::Refused);
    }
    let mut region = Region::new(0, pages);
    region.addr = process.free_address();
    let advice = match huge {
        true => libc::MADV_HUGEPAGE,
        false => libc::MADV_NOHUGEPAGE,
    };
    process.puppet.map_as(&region, shared, advice)?;
    process.pieces.push(Piece {
        region,
        shared,
        locked: false,
    });
    let piece = process.pieces.len() - 1;
    process.write(piece, (0, pages), &mut agent.random)?;
    Ok(Ended::Done)
}

fn unmap(agent: &mut Agent<'_>) -> Result<Ended> {
    let Some((process, piece, part)) = agent.any_part(128) else {
        return Ok(Ended::Refused);
    };
    let process = &mut agent.processes[process];
    let hole = process.pieces[piece].region.part(part.0, part.1);
    process.puppet.unmap(&hole)?;
    process.cut(piece, part);
    Ok(Ended::Done)
}

fn remap(agent: &mut Agent<'_>) -> Result<Ended> {
    let Some((process, piece)) = agent.any_piece() else {
        return Ok(Ended::Refused);
    };
    let process = &mut agent.processes[process];
    let there = process.free_address();
    let region = &mut process.pieces[piece].region;
    process.puppet.remap(region, there)?;
    Ok(Ended::Done)
}

fn lock(agent: &mut Agent<'_>) -> Result<Ended> {
    let Some((process, piece)) = agent.any_piece() else {
        return Ok(Ended::Refused);
    };
    let process = &mut agent.processes[process];
    let locked: usize = process
        .pieces
        .iter()
        .filter(|piece| piece.locked)
        .map(|piece| piece.region.pages())
        .sum();
    let piece = &mut process.pieces[piece];
    if !piece.locked && locked + piece.region.pages() > LOCKED {
        return Ok(Ended::Refused);
    }
    process.puppet.lock(&piece.region, !piece.locked)?;
    piece.locked = !piece.locked;
    Ok(Ended::Done)
}

fn watch(agent: &mut Agent<'_>) -> Result<Ended> {
    let Some((process, piece)) = agent.any_piece() else {
        return Ok(Ended::Refused);
    };
    let process = &agent.processes[process];
    let piece = &process.pieces[piece];
    if piece.shared {
        return Ok(Ended::Refused);
    }
    process.puppet.watch_writes(&piece.region)?;
    Ok(Ended::Done)
}

/// `O_DIRECT`, or `io_uring` with registered buffers.
fn any_device(random: &mut Random) -> Way {
    match random.chance(50) {
        true => Way::Registered,
        false => Way::Direct,
    }
}

/// A device writes pages while they may be on their way out.
fn direct_in(agent: &mut Agent<'_>) -> Result<Ended> {
    let Some((process, piece, (from, pages))) = agent.any_part(16) else {
        return Ok(Ended::Refused);
    };
    let specs: Vec<_> = (from..from + pages)
        .map(|page| agent.random.spec(page))
        .collect();
    let way = any_device(&mut agent.random);
    let process = &mut agent.processes[process];
    let region = &mut process.pieces[piece].region;
    region.specs[from..from + pages].copy_from_slice(&specs);
    process.puppet.direct_in(&region.part(from, pages), way)?;
    Ok(Ended::Done)
}

/// A device reads pages that may be out.
fn direct_out(agent: &mut Agent<'_>) -> Result<Ended> {
    let Some((process, piece, (from, pages))) = agent.any_part(16) else {
        return Ok(Ended::Refused);
    };
    let way = any_device(&mut agent.random);
    let process = &agent.processes[process];
    let part = process.pieces[piece].region.part(from, pages);
    process.puppet.direct_out(&part, way)?;
    agent.counts.pages_verified += pages as u64;
    Ok(Ended::Done)
}

fn fork(agent: &mut Agent<'_>) -> Result<Ended> {
    let mut template = agent.shared.template(agent.number);
    if agent.processes.len() == PROCESSES || !template.family.has_room() {
        return Ok(Ended::Refused);
    }
    let parent = agent.random.below(agent.processes.len());
    let parent = &agent.processes[parent];
    let child = template.family.fork(&parent.puppet)?;
    let child = parent.forked(child);
    drop(template);
    agent.processes.push(child);
    Ok(Ended::Done)
}

fn exit(agent: &mut Agent<'_>) -> Result<Ended> {
    if agent.processes.len() == 1 {
        return Ok(Ended::Refused);
    }
    let process = agent.random.below(agent.processes.len());
    let process = agent.processes.swap_remove(process);
    match agent.random.chance(50) {
        true => process.puppet.kill()?,
        false => process.puppet.exit()?,
    }
    Ok(Ended::Done)
}

fn exec(agent: &mut Agent<'_>) -> Result<Ended> {
    if agent.processes.len() == 1 {
        return Ok(Ended::Refused);
    }
    let process = agent.random.below(agent.processes.len());
    let process = agent.processes.swap_remove(process);
    process.puppet.exec()?;
    // It may be anywhere on its way to the new program.
    std::thread::sleep(std::time::Duration::from_millis(
        agent.random.below(20) as u64
    ));
    process.puppet.kill()?;
    Ok(Ended::Done)
}

/// Says what the agent does: to the module, or to the daemon where there is one.
fn phase(agent: &mut Agent<'_>) -> Result<Ended> {
    const HINTS: &[&str] = &[
        "llm-wait;expect=2000",
        "llm-wait;expect=60000",
        "message-near;in=300",
        "first-token",
        "tool-start;tool=torture",
        "tool-end",
        "idle",
    ];
    let sandbox = agent.shared.sandbox(agent.number);
    if agent.shared.recipe.daemon {
        let hint = *agent.random.of(HINTS);
        daemon::tell(sandbox.cgroup.path(), "phase", hint)?;
        return Ok(Ended::Done);
    }
    let phase = *agent.random.of(&uapi::Phase::ALL);
    let Some(ctx) = agent.shared.try_ctx() else {
        return Ok(Ended::Refused);
    };
    let told = ctx.device().phase(sandbox.id, phase as u32);
    ended(
        told.map_err(Into::into),
        &[libc::ENOENT, libc::EINVAL, libc::ENOMEM],
    )
}

/// What the calls about a process may say: not attached at the moment, or too much to do.
const CALLS: &[i32] = &[
    libc::ENOENT,
    libc::EAGAIN,
    libc::ENOMEM,
    libc::EOPNOTSUPP,
    libc::EPERM,
];

fn prefetch(agent: &mut Agent<'_>) -> Result<Ended> {
    let process = agent.random.below(agent.processes.len());
    let process = &agent.processes[process];
    let mut ranges = Vec::new();
    for _ in 0..1 + agent.random.below(32) {
        if process.pieces.is_empty() {
            break;
        }
        let region = &agent.random.of(&process.pieces).region;
        let (from, pages) = agent.random.part(region.pages(), 64);
        ranges.push(region.part(from, pages).range());
    }
    // Where nothing is mapped, now or ever.
    ranges.push(Region::new(agent.random.below(900), 16).range());
    let request = uapi::Prefetch {
        cgroup_id: agent.shared.sandbox(agent.number).id,
        pid: process.puppet.pid,
        timeout_ms: 100 << agent.random.below(6),
        hit_window_ms: 50 << agent.random.below(6),
        priority: agent.random.below(3) as u32,
        flags: agent.random.below(2) as u32 * uapi::PREFETCH_UNTESTED,
        ..Default::default()
    };
    let Some(ctx) = agent.shared.try_ctx() else {
        return Ok(Ended::Refused);
    };
    let asked = ctx.device().prefetch(&ranges, request);
    ended(asked.map_err(Into::into), CALLS)
}

fn page_states(agent: &mut Agent<'_>) -> Result<Ended> {
    let Some((process, piece)) = agent.any_piece() else {
        return Ok(Ended::Refused);
    };
    let clear = agent.random.chance(50);
    let process = &agent.processes[process];
    let range = process.pieces[piece].region.range();
    let id = agent.shared.sandbox(agent.number).id;
    let Some(ctx) = agent.shared.try_ctx() else {
        return Ok(Ended::Refused);
    };
    let states = ctx
        .device()
        .page_states(id, process.puppet.pid, range, clear);
    ended(states.map_err(Into::into), CALLS)
}

/// Takes a quarter of what can be taken at once, by its limit.
fn squeeze(agent: &mut Agent<'_>) -> Result<Ended> {
    /// What its processes need to go on.
    const SPARED: u64 = 2 << 20;
    // Without swap the limit would end its processes.
    let Ok(_swap) = agent.shared.swap.try_read() else {
        return Ok(Ended::Refused);
    };
    let cgroup = &agent.shared.sandbox(agent.number).cgroup;
    let stays = cgroup.stat("unevictable")? + SPARED;
    let part = cgroup.stat("anon")?.saturating_sub(stays) / 4;
    let limit = cgroup.number("memory.current")?.saturating_sub(part);
    cgroup.write("memory.max", &limit.to_string())?;
    cgroup.write("memory.max", "max")?;
    Ok(Ended::Done)
}

/// Takes memory from processes that stand still.
fn freeze(agent: &mut Agent<'_>) -> Result<Ended> {
    // The daemon may freeze it as well.
    if agent.shared.recipe.daemon {
        return Ok(Ended::Refused);
    }
    let cgroup = agent.shared.sandbox(agent.number).cgroup;
    cgroup.freeze(true)?;
    cgroup.reclaim(4 << 20)?;
    cgroup.freeze(false)?;
    Ok(Ended::Done)
}

fn move_process(agent: &mut Agent<'_>) -> Result<Ended> {
    let process = agent.random.below(agent.processes.len());
    let room = agent.random.below(2);
    agent.rooms[room].enter(agent.processes[process].puppet.pid)?;
    Ok(Ended::Done)
}

/// Removes a cgroup below that of the sandbox, whose charges its parent takes over, and makes it again.
fn replace_room(agent: &mut Agent<'_>) -> Result<Ended> {
    let gone = agent.random.below(2);
    for process in &agent.processes {
        agent.rooms[1 - gone].enter(process.puppet.pid)?;
    }
    // EBUSY: what has just died is still there.
    let removed = agent.rooms[gone].remove().map_err(Into::into);
    if ended(removed, &[libc::EBUSY])? == Ended::Refused {
        return Ok(Ended::Refused);
    }
    let name = ["x", "y"][gone];
    agent.rooms[gone] = agent.shared.sandbox(agent.number).cgroup.child(name)?;
    Ok(Ended::Done)
}

/// Ends the sandbox with all its processes, and begins a new one.
fn begin_again(agent: &mut Agent<'_>) -> Result<Ended> {
    // First of all, for there must always be one: others may take what room there is.
    let Some(process) = agent.fork_zygote()? else {
        return Ok(Ended::Refused);
    };
    let mut sandbox = agent.shared.lock_sandbox(agent.number);
    agent.processes.clear();
    cgroup::remove_tree(sandbox.cgroup.path())?;
    sandbox.replace(agent.shared)?;
    let cgroup = sandbox.cgroup.clone();
    drop(sandbox);
    agent.rooms = rooms(&cgroup)?;
    agent.admit(process)?;
    Ok(Ended::Done)
}

/// Bounds what the sandbox may store, or lets it go.
fn limit(agent: &mut Agent<'_>) -> Result<Ended> {
    let sandbox = agent.shared.sandbox(agent.number);
    let bound = match agent.random.chance(50) {
        true => "max".to_owned(),
        false => (1u64 << (14 + agent.random.below(10))).to_string(),
    };
    let file = module::sysfs(&format!("sandboxes/{}/max_bytes", sandbox.id));
    // ENOENT, ENODEV: it is not attached now. EACCES: its directory goes at this moment.
    ended(
        std::fs::write(file, bound).map_err(Into::into),
        &[libc::ENOENT, libc::ENODEV, libc::EACCES],
    )
}
