// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Memory ends while nearly all of a sandbox is compressed: somebody is killed, soon, and nobody beside
//! notices.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};

use super::fixture::module;
use super::fixture::page::{Kind, Spec};
use super::fixture::puppet::{Puppet, Region};
use super::fixture::{host, Ctx, World};
use super::runner::Test;
use super::sys::{self, Backing, ARENA, PAGE_SIZE};

macro_rules! test {
    ($f:ident) => {
        Test {
            name: concat!("oom.", stringify!($f)),
            timeout_s: 180,
            run: $f,
        }
    };
}

/// The tests of this file.
pub const TESTS: &[Test] = &[
    test!(heartbeat_is_measured),
    test!(sandbox_at_its_limit),
    test!(host_without_memory),
];

/// How soon somebody must be killed.
const SOON: Duration = Duration::from_secs(30);
/// Longest time between two beats of who is not concerned. Two processors share what may be a busy machine,
/// under emulation.
const LONGEST_GAP: Duration = Duration::from_secs(3);
/// The same where the whole host is short of memory, so that everybody who wants some reclaims first.
const LONGEST_GAP_OF_HOST: Duration = Duration::from_secs(10);
/// Pages of the sandbox.
const PAGES: usize = 8192;

/// A thread that does, again and again, what needs the kernel's memory management: it maps a page, writes to
/// it and gives it back.
#[derive(Default)]
struct Heart {
    end: AtomicBool,
    beats: AtomicU64,
    /// Longest time between two beats, in nanoseconds.
    longest: AtomicU64,
    /// Held at each beat: who has it stops the heart.
    hold: Mutex<()>,
}

impl Heart {
    fn beat(&self) -> Result<()> {
        /// In no region of a puppet.
        const PLACE: usize = ARENA + (60 << 30);
        let mut last = Instant::now();
        while !self.end.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(10));
            {
                let _hold = self.hold.lock().unwrap_or_else(PoisonError::into_inner);
                sys::map(PLACE, PAGE_SIZE, Backing::Anonymous).context("map a page")?;
                sys::write_page(PLACE, &[1; sys::PAGE_WORDS]);
                sys::unmap(PLACE, PAGE_SIZE).context("unmap a page")?;
            }
            let gap = last.elapsed();
            last = Instant::now();
            self.longest
                .fetch_max(gap.as_nanos() as u64, Ordering::Relaxed);
            self.beats.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Beats while `body` runs. Returns what that returns, the number of beats, and the longest time between
    /// two.
    fn during<T>(body: impl FnOnce(&Heart) -> Result<T>) -> Result<(T, u64, Duration)> {
        let heart = Heart::default();
        let result = std::thread::scope(|scope| {
            let beating = scope.spawn(|| heart.beat());
            let result = body(&heart);
            heart.end.store(true, Ordering::Relaxed);
            beating.join().ok().context("the heart panicked")??;
            result
        })?;
        let gap = Duration::from_nanos(heart.longest.load(Ordering::Relaxed));
        Ok((result, heart.beats.load(Ordering::Relaxed), gap))
    }
}

/// The control: a heart that is stopped for some time shows it, one that is not does not.
fn heartbeat_is_measured(_ctx: &mut Ctx) -> Result<()> {
    let pause = host::patience(LONGEST_GAP) + Duration::from_millis(500);
    let (_, beats, gap) = Heart::during(|heart| {
        let _hold = heart.hold.lock().unwrap_or_else(PoisonError::into_inner);
        std::thread::sleep(pause);
        Ok(())
    })?;
    ensure!(
        gap > host::patience(LONGEST_GAP),
        "stopped for {pause:?}, and {gap:?} between two of {beats} beats"
    );
    let (_, beats, gap) = Heart::during(|_| {
        std::thread::sleep(pause);
        Ok(())
    })?;
    ensure!(
        beats > 20 && gap < host::patience(LONGEST_GAP),
        "not stopped, {beats} beats, {gap:?} between two"
    );
    Ok(())
}

/// A sandbox nearly all of whose memory is compressed.
fn compressed(ctx: &mut Ctx) -> Result<World> {
    let mut world = ctx.world(64)?;
    world.region = Region::new(4, PAGES);
    world.puppet.map(&world.region)?;
    world.store_mixed(1)?;
    let entries = world.sandbox.counters()?.get("entries")?;
    let resident = world.sandbox.cgroup.stat("anon")? / PAGE_SIZE as u64;
    ensure!(
        entries > 9 * resident,
        "{entries} pages are out, {resident} not"
    );
    Ok(world)
}

/// A process of the sandbox, whose name the harness knows, takes memory that nothing makes smaller until it is
/// killed.
fn take_all(hog: &Puppet, region: &mut Region) -> Result<Duration> {
    let began = Instant::now();
    let end = hog.write(region, |i| Some(Spec::new(Kind::Random, i as u32)));
    let took = began.elapsed();
    ensure!(end.is_err(), "there was memory enough for {region:?}");
    ensure!(!sys::alive(hog.pid), "the process that took it lives");
    Ok(took)
}

/// `memory.max` and `memory.swap.max` are reached: the kernel kills in the sandbox. Nothing is left of it.
fn sandbox_at_its_limit(ctx: &mut Ctx) -> Result<()> {
    /// Room to the limits, in bytes.
    const ROOM: u64 = 4 << 20;
    let mut world = compressed(ctx)?;
    let cgroup = world.sandbox.cgroup.clone();
    let hog = world.template.spawn(&cgroup)?;
    let mut region = Region::new(6, 16 << 8);
    hog.map(&region)?;
    cgroup.write("memory.oom.group", "1")?;
    for (file, current) in [
        ("memory.swap.max", "memory.swap.current"),
        ("memory.max", "memory.current"),
    ] {
        let limit = cgroup.number(current)? + ROOM;
        cgroup.write(file, &limit.to_string())?;
    }
    let (took, beats, gap) = Heart::during(|_| take_all(&hog, &mut region))?;
    println!("# killed after {took:?}; {beats} beats, {gap:?} between two at most");
    ensure!(took < host::patience(SOON), "killed after {took:?}");
    ensure!(
        gap < host::patience(LONGEST_GAP),
        "{gap:?} between two beats"
    );
    let events = cgroup.read("memory.events")?;
    let killed = |line: &str| line.strip_prefix("oom_kill ").is_some_and(|n| n != "0");
    ensure!(events.lines().any(killed), "nobody was killed: {events}");
    host::wait_until("all of the sandbox should end", SOON, || {
        Ok(!sys::alive(world.puppet.pid))
    })?;
    module::wait_entries(0).context("entries outlive who was killed")?;
    let left = world.sandbox.counters()?.get("arena_bytes")?;
    ensure!(left == 0, "{left} bytes of arenas are left");
    // The sandbox goes on to work.
    cgroup.write("memory.max", "max")?;
    cgroup.write("memory.swap.max", "max")?;
    world.puppet = world.template.spawn(&cgroup)?;
    world.region = world.template.region.clone();
    world.store_mixed(2)?;
    world.check()
}

/// The whole host has no memory left: who takes it all is killed. The compressed pages of the sandbox that it
/// is in are right afterwards.
///
/// Memory that is locked makes the machine small, and only who takes the rest can be killed.
fn host_without_memory(ctx: &mut Ctx) -> Result<()> {
    /// What is left free, in bytes.
    const FREE: u64 = 128 << 20;
    /// Memory of one region at most, in pages.
    const MOST: u64 = 1 << 18;
    // Children inherit it.
    host::write("/proc/self/oom_score_adj", "-1000")?;
    let mut world = compressed(ctx)?;
    let heavy = ctx.cgroup("heavy")?;
    let mut weights = Vec::new();
    loop {
        let pages = host::meminfo("MemAvailable")?.saturating_sub(FREE) / PAGE_SIZE as u64;
        if pages < 1024 {
            break;
        }
        let weight = world.template.spawn(&heavy)?;
        let region = Region::new(7, pages.min(MOST) as usize);
        weight.map_as(&region, false, libc::MADV_HUGEPAGE)?;
        weight.lock(&region, true)?;
        weights.push(weight);
        ensure!(weights.len() < 16, "memory does not get less");
    }
    let hog = world.template.spawn(&world.sandbox.cgroup)?;
    hog.name("azt-hog")?;
    host::write(format!("/proc/{}/oom_score_adj", hog.pid), "1000")?;
    let killed_before = host::vmstat("oom_kill")?;
    let mut region = Region::new(6, 128 << 10);
    hog.map(&region)?;
    let (took, beats, gap) = Heart::during(|_| take_all(&hog, &mut region))?;
    // Most of the time it writes: so much longer than soon.
    println!("# killed after {took:?}; {beats} beats, {gap:?} between two at most");
    ensure!(took < host::patience(2 * SOON), "killed after {took:?}");
    ensure!(
        gap < host::patience(LONGEST_GAP_OF_HOST),
        "{gap:?} between two beats"
    );
    let killed = host::vmstat("oom_kill")? - killed_before;
    ensure!(killed == 1, "{killed} processes were killed");
    for weight in weights {
        weight.kill()?;
    }
    world.check()
}
