// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Other users of ftrace on the hooked functions, and the module's own tracepoints.

use std::fs;

use anyhow::{ensure, Result};

use super::bpf::{Place, Program};
use super::fixture::cgroup::remove_tree;
use super::fixture::module::{self, expect_errno, Counters};
use super::fixture::trace::{self, HOOKED};
use super::fixture::{clean_module, host, Ctx, World};
use super::runner::Test;
use super::unload;

macro_rules! test {
    ($f:ident) => {
        Test {
            name: concat!("tracing.", stringify!($f)),
            timeout_s: 60,
            run: $f,
        }
    };
}

/// The tests of this file.
pub const TESTS: &[Test] = &[
    test!(second_ipmodify_user_is_refused),
    test!(arm_is_refused_by_ipmodify_user),
    test!(ftrace_cannot_be_disabled),
    test!(function_tracer),
    test!(function_graph_tracer),
    test!(kprobes),
    test!(all_at_once),
    test!(tracepoints),
];

/// Those with BPF, which the debug kernel is built without.
pub const BPF_TESTS: &[Test] = &[test!(bpf_after_us), test!(bpf_before_us)];

/// Stores, loads and erases, all of it right and all of it counted.
fn exercise(world: &mut World, rounds: u32) -> Result<()> {
    let before = Counters::global()?;
    for round in 0..rounds {
        world.store_mixed(round)?;
        world.check()?;
    }
    let pages = world.region.pages() as u64 * u64::from(rounds);
    let loads = before.grown("loads")?;
    ensure!(loads >= pages, "{loads} loads of {pages} pages");
    let to_disk = world.sandbox.cgroup.stat("pswpout")?;
    ensure!(to_disk == 0, "{to_disk} pages slipped past the hooks");
    let balance = before.grown("stores")? as i64 - before.grown("erased")? as i64;
    let entries = module::entries()? as i64 - before.get("entries")? as i64;
    ensure!(
        balance == entries,
        "stores less erased is {balance}, entries {entries}"
    );
    Ok(())
}

fn second_ipmodify_user_is_refused(ctx: &mut Ctx) -> Result<()> {
    let mut world = ctx.world(64)?;
    for function in HOOKED {
        let result = host::load_testmod(&format!("block={function}"));
        expect_errno(function, result, &[libc::EBUSY])?;
    }
    let claimed = trace::claimed()?;
    ensure!(claimed.len() == 3, "hooked now: {claimed:?}");
    exercise(&mut world, 1)
}

fn arm_is_refused_by_ipmodify_user(ctx: &mut Ctx) -> Result<()> {
    ctx.device().disarm()?;
    for function in HOOKED {
        host::load_testmod(&format!("block={function}"))?;
        let result = ctx.device().arm();
        expect_errno(
            &format!("arm with {function} taken"),
            result,
            &[libc::EBUSY],
        )?;
        ensure!(ctx.device().info()?.armed == 0, "armed all the same");
        let claimed = trace::claimed()?;
        ensure!(
            claimed == [function],
            "with {function} taken, hooked: {claimed:?}"
        );
        host::unload_testmod()?;
    }
    // Nothing holds the module: it can go, and comes back whole.
    ctx.close_device();
    module::unload()?;
    module::load("")?;
    ctx.open_device()?;
    ctx.device().arm()?;
    let mut world = ctx.world(64)?;
    exercise(&mut world, 1)
}

fn ftrace_cannot_be_disabled(ctx: &mut Ctx) -> Result<()> {
    const SWITCH: &str = "/proc/sys/kernel/ftrace_enabled";
    let mut world = ctx.world(64)?;
    let result = fs::write(SWITCH, "0");
    let now = host::read(SWITCH)?;
    if now == "0" {
        host::write(SWITCH, "1")?;
    }
    // Kernels that no longer let anybody disable ftrace say EOPNOTSUPP.
    let errnos = [libc::EBUSY, libc::EOPNOTSUPP];
    expect_errno("ftrace_enabled=0 while armed", result, &errnos)?;
    ensure!(now == "1", "ftrace_enabled is {now}");
    exercise(&mut world, 1)
}

fn traced(what: &str, at_least: usize) -> Result<()> {
    for function in HOOKED {
        let lines = trace::count(function)?;
        ensure!(lines >= at_least, "{what}: {lines} lines of {function}");
    }
    Ok(())
}

fn function_tracer(ctx: &mut Ctx) -> Result<()> {
    let mut world = ctx.world(128)?;
    trace::set_filter()?;
    trace::clear()?;
    trace::set("current_tracer", "function")?;
    exercise(&mut world, 2)?;
    trace::set("tracing_on", "0")?;
    let seen = traced("function tracer", 64);
    trace::set("tracing_on", "1")?;
    trace::reset()?;
    exercise(&mut world, 1)?;
    seen
}

fn function_graph_tracer(ctx: &mut Ctx) -> Result<()> {
    let mut world = ctx.world(128)?;
    trace::set_filter()?;
    trace::clear()?;
    trace::set("current_tracer", "function_graph")?;
    exercise(&mut world, 2)?;
    trace::reset()?;
    exercise(&mut world, 1)
}

fn kprobes(ctx: &mut Ctx) -> Result<()> {
    let mut world = ctx.world(128)?;
    trace::clear()?;
    trace::set_kprobes()?;
    exercise(&mut world, 2)?;
    trace::set("events/azt/enable", "0")?;
    let seen = traced("kprobes", 64);
    trace::reset()?;
    exercise(&mut world, 1)?;
    seen
}

/// Arming while everybody else is there already, and leaving before them.
fn all_at_once(ctx: &mut Ctx) -> Result<()> {
    ctx.device().disarm()?;
    trace::set_filter()?;
    trace::set("current_tracer", "function")?;
    trace::set_kprobes()?;
    ctx.device().arm()?;
    let mut world = ctx.world(128)?;
    exercise(&mut world, 2)?;
    trace::set("current_tracer", "function_graph")?;
    exercise(&mut world, 1)?;
    world.puppet.kill()?;
    module::wait_entries(0)?;
    ctx.device().disarm()?;
    let claimed = trace::claimed()?;
    ensure!(claimed.is_empty(), "still hooked: {claimed:?}");
    trace::reset()
}

/// A program at each place of each hooked function.
fn programs() -> Result<Vec<Program>> {
    let places = HOOKED
        .into_iter()
        .flat_map(|function| Place::ALL.map(|place| (place, function)));
    places
        .map(|(place, function)| Program::attach(place, function))
        .collect()
}

/// Each of them must run while pages go out and come back, all of which the module takes.
fn exercise_beside(world: &mut World, programs: &[Program]) -> Result<()> {
    let runs = || {
        let runs = programs.iter().map(Program::runs);
        runs.collect::<Result<Vec<_>>>()
    };
    let before = runs()?;
    exercise(world, 2)?;
    for ((program, before), now) in programs.iter().zip(before).zip(runs()?) {
        let (place, function) = (program.place, program.function);
        ensure!(
            now >= before + 64,
            "{place:?} on {function} ran {} times",
            now - before
        );
    }
    Ok(())
}

/// BPF programs come and go while the module is armed.
fn bpf_after_us(ctx: &mut Ctx) -> Result<()> {
    let mut world = ctx.world(128)?;
    let mut programs = programs()?;
    exercise_beside(&mut world, &programs)?;
    // One after the other, so that trampolines are made anew.
    programs.retain(|program| program.place != Place::Fexit);
    exercise_beside(&mut world, &programs)?;
    drop(programs);
    exercise(&mut world, 1)
}

/// BPF programs are there when the module arms, when it leaves, and when it comes back.
fn bpf_before_us(ctx: &mut Ctx) -> Result<()> {
    ctx.device().disarm()?;
    let programs = programs()?;
    ctx.device().arm()?;
    let mut world = ctx.world(128)?;
    exercise_beside(&mut world, &programs)?;
    remove_tree(world.sandbox.cgroup.path())?;
    module::wait_entries(0)?;
    clean_module(ctx.device())?;
    unload::reload(ctx, "")?;
    let mut world = ctx.world_without_swap(128)?;
    exercise_beside(&mut world, &programs)?;
    drop(programs);
    exercise(&mut world, 1)
}

fn tracepoints(ctx: &mut Ctx) -> Result<()> {
    let mut world = ctx.world(256)?;
    trace::clear()?;
    trace::set("events/agentzip/enable", "1")?;
    let before = Counters::global()?;
    world.store_mixed(1)?;
    world.check()?;
    trace::set("events/agentzip/enable", "0")?;
    let (stores, loads) = (before.grown("stores")?, before.grown("loads")?);
    for (event, expected) in [("agentzip_store:", stores), ("agentzip_load:", loads)] {
        let seen = trace::count(event)? as u64;
        // One may be under way while the switch is thrown; a large folio is one line a page.
        ensure!(
            seen.abs_diff(expected) <= 16,
            "{seen} lines of {event} for {expected} pages"
        );
    }
    trace::reset()
}
