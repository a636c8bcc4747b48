// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The recorder: every page fault of a sandbox is told once, and nobody else's.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use agentzip_uapi as uapi;
use agentzip_uapi::{FaultKind, FaultRecord, NOT_DECODED};
use anyhow::{ensure, Context, Result};

use super::fixture::module::{self, expect_errno, Counters};
use super::fixture::puppet::{Puppet, Region};
use super::fixture::{host, page_out, trace, write_mixed, Ctx, World};
use super::runner::Test;
use super::sys;

macro_rules! test {
    ($f:ident) => {
        Test {
            name: concat!("recorder.", stringify!($f)),
            timeout_s: 60,
            run: $f,
        }
    };
}

/// The tests of this file.
pub const TESTS: &[Test] = &[
    test!(each_fault_once),
    test!(children_and_strangers),
    test!(other_processes_accesses),
    test!(full_ring),
    test!(half_full_ring_signals),
    test!(replaced_under_load),
    test!(ends_with_detach),
    test!(unload_while_recording),
    test!(bad_arguments),
    test!(beside_tracers),
];

/// Pages of the region that is touched.
const PAGES: usize = 128;

/// Sets the ring of a sandbox.
pub fn record(ctx: &Ctx, id: u64, records: u32, eventfd: i32) -> std::io::Result<()> {
    let mut arg = uapi::SandboxRecord {
        cgroup_id: id,
        records,
        eventfd,
    };
    sys::ioctl(ctx.device().fd(), uapi::SANDBOX_RECORD, &mut arg)
}

/// Takes records out of the ring: at most `capacity`; how many were lost so far.
pub fn take(ctx: &Ctx, id: u64, capacity: u32) -> std::io::Result<(Vec<FaultRecord>, u64)> {
    let mut records = vec![FaultRecord::default(); capacity as usize];
    let mut arg = uapi::FaultsRead {
        cgroup_id: id,
        buffer: records.as_mut_ptr() as u64,
        capacity,
        ..Default::default()
    };
    sys::ioctl(ctx.device().fd(), uapi::FAULTS_READ, &mut arg)?;
    records.truncate(arg.records as usize);
    Ok((records, arg.lost))
}

/// All that are there.
pub fn take_all(ctx: &Ctx, id: u64) -> Result<Vec<FaultRecord>> {
    Ok(take(ctx, id, uapi::MAX_RECORDS)
        .context("read the records")?
        .0)
}

/// Records of the pages of a region.
pub fn of<'a>(records: &'a [FaultRecord], region: &Region) -> Vec<&'a FaultRecord> {
    let range = region.range();
    records
        .iter()
        .filter(|record| (range.start..range.end).contains(&record.address))
        .collect()
}

/// A sandbox that is recorded, whose process has all its pages out but has run since.
fn recorded(ctx: &mut Ctx, records: u32, eventfd: i32) -> Result<World> {
    let mut world = ctx.world(PAGES)?;
    world.store_mixed(1)?;
    record(ctx, world.sandbox.id, records, eventfd).context("begin to record")?;
    // What the process needs to answer at all.
    world.puppet.touch(&world.region.part(0, 1))?;
    world.puppet.touch(&world.region.part(0, 1))?;
    take_all(ctx, world.sandbox.id)?;
    Ok(world)
}

/// One record for each page of the region, in order, of this thread.
fn ensure_each_once(
    records: &[FaultRecord],
    region: &Region,
    (tgid, tid): (i32, i32),
    flags: u8,
) -> Result<()> {
    let own = of(records, region);
    let pages: Vec<u64> = (0..region.pages()).map(|i| region.at(i) as u64).collect();
    let touched: Vec<u64> = own.iter().map(|record| record.address).collect();
    ensure!(
        touched == pages,
        "{} records for {} pages: {touched:x?}",
        touched.len(),
        pages.len()
    );
    for record in own {
        let form = uapi::Representation::ALL
            .into_iter()
            .find(|r| *r as u8 == record.representation);
        ensure!(
            (record.tgid, record.tid) == (tgid, tid)
                && record.kind == FaultKind::Demand as u8
                && record.flags == flags
                && record.reserved == 0
                && form.is_some()
                && record.decode_ns > 0,
            "{record:?} of thread {tid} in process {tgid}"
        );
    }
    Ok(())
}

/// Reads, writes, and a second thread.
fn each_fault_once(ctx: &mut Ctx) -> Result<()> {
    let mut world = recorded(ctx, 1024, -1)?;
    let id = world.sandbox.id;
    let pid = world.puppet.pid;
    world.page_out()?;
    take_all(ctx, id)?;
    let before = world.sandbox.counters()?;
    let began = sys::monotonic_ns()?;
    world.puppet.touch(&world.region)?;
    let ended = sys::monotonic_ns()?;
    let records = take_all(ctx, id)?;
    ensure_each_once(&records, &world.region, (pid, pid), 0)?;
    let times: Vec<u64> = records.iter().map(|record| record.time_ns).collect();
    ensure!(
        times.is_sorted() && began <= times[0] && times[times.len() - 1] <= ended,
        "from {began} to {ended}: {times:?}"
    );
    // Whatever the process touched beside the region was told, too.
    let decoded = records
        .iter()
        .filter(|record| record.representation != NOT_DECODED)
        .count() as u64;
    let loads = before.grown("loads")?;
    ensure!(decoded == loads, "{decoded} records of {loads} loads");
    let faults = before.grown("faults")?;
    ensure!(
        faults == records.len() as u64,
        "{} records of {faults} faults",
        records.len()
    );
    ensure!(before.grown("faults_lost")? == 0, "records were lost");

    world.page_out()?;
    take_all(ctx, id)?;
    world.write_mixed(2)?;
    let records = take_all(ctx, id)?;
    ensure_each_once(&records, &world.region, (pid, pid), uapi::FAULT_WRITE)?;

    world.page_out()?;
    take_all(ctx, id)?;
    let thread = world.puppet.touch_in_thread(&world.region)?;
    ensure!(thread != pid, "no other thread");
    let records = take_all(ctx, id)?;
    ensure_each_once(&records, &world.region, (pid, thread), 0)?;

    // Nothing is out any more.
    world.check()?;
    world.check()?;
    let records = take_all(ctx, id)?;
    ensure!(of(&records, &world.region).is_empty(), "{records:x?}");
    latency_adds_up(&world)
}

/// Every load is in one place of the histogram.
fn latency_adds_up(world: &World) -> Result<()> {
    for dir in [format!("sandboxes/{}", world.sandbox.id), "stats".into()] {
        let text = host::read(module::sysfs(&format!("{dir}/load_latency")))?;
        let counts = text
            .split(' ')
            .map(str::parse)
            .collect::<Result<Vec<u64>, _>>()
            .with_context(|| format!("{dir}: {text:?}"))?;
        ensure!(counts.len() == uapi::LATENCY_BUCKETS, "{dir}: {text}");
        let (sum, loads) = (
            counts.iter().sum::<u64>(),
            module::value(&format!("{dir}/loads"))?,
        );
        ensure!(sum == loads && loads > 0, "{dir}: {sum} of {loads} loads");
        // No load takes 15 ns or less, or more than a minute.
        ensure!(counts[..4].iter().sum::<u64>() == 0, "{dir}: {text}");
    }
    Ok(())
}

/// A child cgroup belongs to the sandbox, a cgroup beside it does not.
fn children_and_strangers(ctx: &mut Ctx) -> Result<()> {
    ctx.swap()?;
    let mut template = ctx.template(PAGES)?;
    let sandbox = ctx.sandbox("box", &template.name)?;
    sandbox.cgroup.delegate()?;
    let child = sandbox.cgroup.child("child")?;
    let beside = ctx.cgroup("beside")?;
    record(ctx, sandbox.id, 4096, -1)?;
    for (cgroup, own) in [(&child, true), (&beside, false)] {
        let puppet = template.spawn(cgroup)?;
        let mut region = template.region.clone();
        write_mixed(&puppet, &mut region, 1)?;
        page_out(cgroup, &puppet, &region)?;
        take_all(ctx, sandbox.id)?;
        puppet.touch(&region)?;
        let records = take_all(ctx, sandbox.id)?;
        if own {
            ensure_each_once(&records, &region, (puppet.pid, puppet.pid), 0)?;
        } else {
            ensure!(records.is_empty(), "a stranger's: {records:x?}");
        }
        puppet.check(&region)?;
        puppet.kill()?;
    }
    Ok(())
}

/// Memory that somebody else accesses was not missed by its process.
fn other_processes_accesses(ctx: &mut Ctx) -> Result<()> {
    let mut world = recorded(ctx, 1024, -1)?;
    let neighbour = world.template.spawn(&world.sandbox.cgroup)?;
    let (half, other) = (
        world.region.part(0, PAGES / 2),
        world.region.part(PAGES / 2, PAGES / 2),
    );
    world.page_out()?;
    take_all(ctx, world.sandbox.id)?;
    let before = world.sandbox.counters()?;
    let mut page = [0; sys::PAGE_WORDS];
    for i in 0..half.pages() {
        sys::read_process(world.puppet.pid, half.at(i), &mut page)?;
    }
    neighbour.check_other(&other, world.puppet.pid)?;
    let loads = before.grown("loads")?;
    ensure!(loads >= PAGES as u64, "{loads} loads of {PAGES} pages");
    let records = take_all(ctx, world.sandbox.id)?;
    ensure!(of(&records, &world.region).is_empty(), "{records:x?}");
    world.check()
}

/// What comes first stays, the rest is counted, and nobody waits.
fn full_ring(ctx: &mut Ctx) -> Result<()> {
    const ROOM: usize = uapi::MIN_RECORDS as usize;
    let world = recorded(ctx, uapi::MIN_RECORDS, -1)?;
    let id = world.sandbox.id;
    world.page_out()?;
    take_all(ctx, id)?;
    let before = world.sandbox.counters()?;
    let global = Counters::global()?;
    let (_, lost_before) = take(ctx, id, 1)?;
    world.check()?;
    let faults = before.grown("faults")?;
    let (records, lost) = take(ctx, id, uapi::MAX_RECORDS)?;
    ensure!(records.len() == ROOM, "{} records", records.len());
    let lost = lost - lost_before;
    ensure!(
        lost == faults - ROOM as u64 && lost >= (PAGES - ROOM) as u64,
        "{lost} of {faults} faults lost"
    );
    for counters in [&before, &global] {
        let counted = counters.grown("faults_lost")?;
        ensure!(counted == lost, "{counted} counted as lost, not {lost}");
    }
    let own = of(&records, &world.region);
    let first = world.region.part(0, own.len());
    ensure_each_once(&records, &first, (world.puppet.pid, world.puppet.pid), 0)?;
    // There is room again; in parts, as small as can be.
    world.page_out()?;
    take_all(ctx, id)?;
    world.puppet.touch(&world.region.part(0, ROOM / 2))?;
    let mut records = Vec::new();
    loop {
        let (some, _) = take(ctx, id, 1)?;
        if some.is_empty() {
            break;
        }
        records.extend(some);
    }
    let first = world.region.part(0, ROOM / 2);
    ensure_each_once(&records, &first, (world.puppet.pid, world.puppet.pid), 0)?;
    // What cannot be handed over is lost, and counted.
    world.page_out()?;
    take_all(ctx, id)?;
    world.puppet.touch(&world.region.part(0, 8))?;
    let before = world.sandbox.counters()?;
    let mut arg = uapi::FaultsRead {
        cgroup_id: id,
        buffer: 8,
        capacity: 8,
        ..Default::default()
    };
    let result = sys::ioctl(ctx.device().fd(), uapi::FAULTS_READ, &mut arg);
    expect_errno("a buffer at 8", result, &[libc::EFAULT])?;
    let lost = before.grown("faults_lost")?;
    ensure!(lost == 8, "{lost} of 8 records lost");
    world.check()
}

/// Signals of an eventfd since it was last read.
fn signals(eventfd: &mut File) -> Result<u64> {
    let mut count = [0; 8];
    match eventfd.read(&mut count) {
        Ok(8) => Ok(u64::from_ne_bytes(count)),
        Ok(n) => anyhow::bail!("{n} bytes of an eventfd"),
        Err(e) if e.kind() == ErrorKind::WouldBlock => Ok(0),
        Err(e) => Err(e).context("read an eventfd"),
    }
}

fn half_full_ring_signals(ctx: &mut Ctx) -> Result<()> {
    const HALF: usize = uapi::MIN_RECORDS as usize / 2;
    let mut eventfd = sys::eventfd()?;
    let world = recorded(ctx, uapi::MIN_RECORDS, eventfd.as_raw_fd())?;
    let id = world.sandbox.id;
    signals(&mut eventfd)?;
    for round in 0..2 {
        world.page_out()?;
        // The process itself is back before it is counted what it touches.
        world.puppet.touch(&world.region.part(0, 1))?;
        take_all(ctx, id)?;
        signals(&mut eventfd)?;
        world.puppet.touch(&world.region.part(1, HALF / 2))?;
        let early = signals(&mut eventfd)?;
        ensure!(early == 0, "{early} signals at a quarter in round {round}");
        world.puppet.touch(&world.region.part(1, HALF))?;
        ensure!(
            sys::wait_readable(eventfd.as_fd(), 1000)?,
            "no signal at the half in round {round}"
        );
        world.puppet.touch(&world.region)?;
        let count = signals(&mut eventfd)?;
        ensure!(count == 1, "{count} signals in round {round}");
    }
    // Another one hears at once that there is something to read; the former one nothing more.
    let mut other = sys::eventfd()?;
    record(ctx, id, uapi::MIN_RECORDS, other.as_raw_fd())?;
    ensure!(signals(&mut other)? == 1, "the new one was not signalled");
    let records = take_all(ctx, id)?;
    ensure!(
        records.len() == uapi::MIN_RECORDS as usize,
        "with the eventfd the records went"
    );
    record(ctx, id, uapi::MIN_RECORDS, -1)?;
    world.page_out()?;
    world.puppet.touch(&world.region)?;
    for eventfd in [&mut eventfd, &mut other] {
        let count = signals(eventfd)?;
        ensure!(count == 0, "{count} signals after it was replaced");
    }
    // Nobody listens any more: nothing happens.
    record(ctx, id, uapi::MIN_RECORDS, other.as_raw_fd())?;
    drop((eventfd, other));
    take_all(ctx, id)?;
    world.page_out()?;
    world.check()
}

/// Rings of all sizes come and go while four processes fault; every fault is read or counted as lost.
fn replaced_under_load(ctx: &mut Ctx) -> Result<()> {
    ctx.swap()?;
    let mut template = ctx.template(16)?;
    let sandbox = ctx.sandbox("box", &template.name)?;
    let eventfd = sys::eventfd()?;
    let puppets = (0..4)
        .map(|_| template.spawn(&sandbox.cgroup))
        .collect::<Result<Vec<Puppet>>>()?;
    for (i, puppet) in puppets.iter().enumerate() {
        let region = Region::new(5, 96);
        puppet.map(&region)?;
        puppet.begin_churn_reclaiming(&region, 4000 + i as u64, &sandbox.cgroup)?;
    }
    let mut read = 0;
    let (mut rings, began) = (0u32, Instant::now());
    while began.elapsed() < Duration::from_millis(4000) {
        let records = match rings % 4 {
            3 => 0,
            n => uapi::MIN_RECORDS << (3 * n),
        };
        let eventfd = if rings % 2 == 0 {
            eventfd.as_raw_fd()
        } else {
            -1
        };
        record(ctx, sandbox.id, records, eventfd)?;
        rings += 1;
        for _ in 0..8 {
            read += take(ctx, sandbox.id, 48)?.0.len() as u64;
        }
    }
    record(ctx, sandbox.id, uapi::MAX_RECORDS, -1)?;
    for puppet in &puppets {
        puppet.end_churn()?;
    }
    // Those of the processes that are idle now.
    read += take_all(ctx, sandbox.id)?.len() as u64;
    let counters = sandbox.counters()?;
    let (faults, lost) = (counters.get("faults")?, counters.get("faults_lost")?);
    println!("# {rings} rings, {faults} faults, {lost} lost");
    ensure!(faults > 0 && read > 0, "no fault was recorded");
    ensure!(
        faults == read + lost,
        "{faults} faults, {read} read, {lost} lost"
    );
    Ok(())
}

fn ends_with_detach(ctx: &mut Ctx) -> Result<()> {
    let eventfd = sys::eventfd()?;
    let world = recorded(ctx, uapi::MAX_RECORDS, eventfd.as_raw_fd())?;
    let (id, device) = (world.sandbox.id, ctx.device());
    let with_ring = module::value("stats/memory_objects")?;
    world.page_out()?;
    world.puppet.touch(&world.region)?;
    device.detach(id)?;
    let without = module::value("stats/memory_objects")?;
    let least = u64::from(uapi::MAX_RECORDS) * size_of::<FaultRecord>() as u64;
    ensure!(
        with_ring.saturating_sub(without) >= least,
        "{with_ring} bytes with the ring, {without} without"
    );
    expect_errno("read after detach", take(ctx, id, 1), &[libc::ENOENT])?;
    let result = record(ctx, id, uapi::MIN_RECORDS, -1);
    expect_errno("record after detach", result, &[libc::ENOENT])?;
    let lost = module::value(&format!("sandboxes/{id}/faults_lost"))?;
    ensure!(lost >= PAGES as u64, "{lost} records lost with the ring");
    // The next attachment begins without.
    let again = device.attach(world.sandbox.cgroup.path(), &world.template.name)?;
    let before = world.sandbox.counters()?;
    world.page_out()?;
    world.check()?;
    ensure!(before.grown("faults")? == 0, "recorded after the detach");
    ensure!(take_all(ctx, again)?.is_empty(), "records of nobody");
    Ok(())
}

fn unload_while_recording(ctx: &mut Ctx) -> Result<()> {
    let eventfd = sys::eventfd()?;
    let world = recorded(ctx, 256, eventfd.as_raw_fd())?;
    let id = world.sandbox.id;
    world.puppet.kill()?;
    module::wait_entries(0)?;
    // Disarmed and armed again, it goes on.
    ctx.device().disarm()?;
    ctx.device().arm()?;
    let mut template = world.template;
    let puppet = template.spawn(&world.sandbox.cgroup)?;
    let mut region = template.region.clone();
    write_mixed(&puppet, &mut region, 3)?;
    page_out(&world.sandbox.cgroup, &puppet, &region)?;
    take_all(ctx, id)?;
    puppet.touch(&region)?;
    let records = take_all(ctx, id)?;
    ensure_each_once(&records, &region, (puppet.pid, puppet.pid), 0)?;
    puppet.kill()?;
    module::wait_entries(0)?;
    ctx.device().disarm()?;
    ctx.close_device();
    module::unload().context("unload")?;
    module::load("").context("load")?;
    ctx.open_device()?;
    Ok(ctx.device().arm()?)
}

fn bad_arguments(ctx: &mut Ctx) -> Result<()> {
    let template = ctx.template(16)?;
    let sandbox = ctx.sandbox("box", &template.name)?;
    let null = File::open("/dev/null")?;
    let id = sandbox.id;
    record(ctx, id, 128, -1)?;
    for (what, id, records, eventfd, errno) in [
        ("no power of two", id, 65, -1, libc::EINVAL),
        ("too few", id, uapi::MIN_RECORDS / 2, -1, libc::EINVAL),
        ("too many", id, uapi::MAX_RECORDS * 2, -1, libc::EINVAL),
        ("far too many", id, 1 << 31, -1, libc::EINVAL),
        ("nothing open", id, 64, 999, libc::EBADF),
        ("a negative descriptor", id, 64, -2, libc::EBADF),
        ("no eventfd", id, 64, null.as_raw_fd(), libc::EINVAL),
        ("no sandbox", id + 1, 64, -1, libc::ENOENT),
        ("cgroup 0", 0, 64, -1, libc::ENOENT),
    ] {
        let result = record(ctx, id, records, eventfd);
        expect_errno(what, result, &[errno])?;
    }
    let mut room = [FaultRecord::default()];
    for (what, id, capacity, errno) in [
        ("no room", id, 0, libc::EINVAL),
        ("too much room", id, uapi::MAX_RECORDS + 1, libc::EINVAL),
        ("no sandbox", id + 1, 1, libc::ENOENT),
        ("cgroup 0", 0, 1, libc::ENOENT),
    ] {
        let mut arg = uapi::FaultsRead {
            cgroup_id: id,
            buffer: room.as_mut_ptr() as u64,
            capacity,
            ..Default::default()
        };
        let result = sys::ioctl(ctx.device().fd(), uapi::FAULTS_READ, &mut arg);
        expect_errno(what, result, &[errno])?;
    }
    // None of that has changed the ring, and 0 ends it whatever the eventfd.
    ensure!(take_all(ctx, id)?.is_empty(), "records of nobody");
    record(ctx, id, 0, 999)?;
    record(ctx, id, 0, -1)?;
    Ok(())
}

/// Others trace the function; the trace point says what the ring does.
fn beside_tracers(ctx: &mut Ctx) -> Result<()> {
    const FUNCTION: &str = "do_swap_page";
    let world = recorded(ctx, 1024, -1)?;
    let (id, pid) = (world.sandbox.id, world.puppet.pid);
    let recorded = |what: &str| -> Result<u64> {
        world.page_out()?;
        take_all(ctx, id)?;
        trace::clear()?;
        world.puppet.touch(&world.region)?;
        let records = take_all(ctx, id)?;
        ensure_each_once(&records, &world.region, (pid, pid), 0).context(what.to_owned())?;
        Ok(records.len() as u64)
    };
    trace::set("set_ftrace_filter", FUNCTION)?;
    for tracer in ["function", "function_graph"] {
        trace::set("current_tracer", tracer)?;
        recorded(tracer)?;
        let lines = trace::count(FUNCTION)?;
        ensure!(lines >= PAGES, "{tracer}: {lines} lines of {FUNCTION}");
    }
    trace::set(
        "kprobe_events",
        &format!("p:azt/p {FUNCTION}\nr:azt/r {FUNCTION}"),
    )?;
    trace::set("events/azt/enable", "1")?;
    recorded("a probe, beside function_graph")?;
    trace::set("events/azt/enable", "0")?;
    trace::reset()?;

    trace::set("events/agentzip/agentzip_fault/enable", "1")?;
    let records = recorded("its own trace point")?;
    let lines = trace::count("agentzip_fault:")? as u64;
    // One may be under way while the buffer is emptied.
    ensure!(
        lines.abs_diff(records) <= 4 && lines >= PAGES as u64,
        "{lines} lines, {records} records"
    );
    trace::reset()
}
