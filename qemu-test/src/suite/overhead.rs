// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What the hooks cost those who are no sandbox: times of one guest, with and without them.

use std::time::Instant;

use anyhow::{ensure, Context, Result};

use super::fixture::page::{Kind, Spec};
use super::fixture::puppet::{Puppet, Region};
use super::fixture::{host, module, page_out, write_mixed, Ctx};
use super::recorder;
use super::runner::Test;

/// The tests of this file.
pub const TESTS: &[Test] = &[
    Test {
        name: "overhead.untagged_cgroup",
        timeout_s: 120,
        run: untagged_cgroup,
    },
    Test {
        name: "overhead.recording",
        timeout_s: 120,
        run: recording,
    },
];

/// Pages that one measurement moves.
const PAGES: usize = 512;
/// Times that the hooks are installed and removed.
const ALTERNATIONS: usize = 8;
/// Measurements between two changes.
const REPEATS: usize = 4;
/// A ratio above this, twice in a row, is more than noise even on a busy machine under emulation.
const LIMIT: f64 = 1.2;

/// Microseconds a page.
#[derive(Default)]
struct Times {
    out: Vec<f64>,
    back: Vec<f64>,
}

impl Times {
    fn measure(&mut self, puppet: &Puppet, region: &Region) -> Result<()> {
        let micros = |began: Instant| began.elapsed().as_secs_f64() * 1e6 / PAGES as f64;
        // The first round after a change warms up and is not counted.
        for repeat in 0..=REPEATS {
            let began = Instant::now();
            puppet.page_out(region, false)?;
            let out = micros(began);
            let left = PAGES - puppet.pages_out(region)?;
            ensure!(left * 10 <= PAGES, "{left} of {PAGES} pages did not go out");
            let began = Instant::now();
            puppet.touch(region)?;
            if repeat > 0 {
                self.out.push(out);
                self.back.push(micros(began));
            }
        }
        Ok(())
    }
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// The first quartile: what else runs on the host only ever adds to a time.
fn undisturbed(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 4]
}

/// A cgroup that is not attached swaps to zram, which makes what is not ours as cheap as can be.
/// With the hooks there is a sandbox with entries, so that they have something to look up.
fn untagged_cgroup(ctx: &mut Ctx) -> Result<()> {
    host::zram_swap("64M")?;
    let mut template = ctx.template(64)?;
    let plain = ctx.cgroup("plain")?;
    let puppet = template.spawn(&plain)?;
    let mut region = Region::new(5, PAGES);
    puppet.map(&region)?;
    puppet.write(&mut region, |i| {
        Some(Spec::new(Kind::Heap, i as u32 + 7000))
    })?;
    let sandbox = ctx.sandbox("box", &template.name)?;
    let mut once = || -> Result<bool> {
        let (mut with, mut without) = (Times::default(), Times::default());
        for round in 0..ALTERNATIONS {
            ctx.device().ensure_armed().context("arm")?;
            let inmate = template.spawn(&sandbox.cgroup)?;
            let mut own = template.region.clone();
            write_mixed(&inmate, &mut own, round as u32)?;
            page_out(&sandbox.cgroup, &inmate, &own)?;
            with.measure(&puppet, &region)?;
            inmate.check(&own)?;
            inmate.kill()?;
            module::wait_entries(0)?;
            ctx.device().disarm().context("disarm")?;
            without.measure(&puppet, &region)?;
        }
        report(&mut with, &mut without)
    };
    let quick = once()? || once()?;
    ctx.device().arm()?;
    puppet.check(&region)?;
    ensure!(
        quick,
        "slower with the hooks than {LIMIT} times, in two series"
    );
    Ok(())
}

/// A page that a sandbox touches comes back about as fast while that is recorded, and so does one of a
/// cgroup beside it, which swaps to zram. The sandbox's pages are small deltas, which decode as fast as
/// anything.
fn recording(ctx: &mut Ctx) -> Result<()> {
    const RECORDS: u32 = 4096;
    host::zram_swap("64M")?;
    let mut template = ctx.template(PAGES)?;
    let sandbox = ctx.sandbox("box", &template.name)?;
    let beside = ctx.cgroup("beside")?;
    let mut region = template.region.clone();
    let inmate = template.spawn(&sandbox.cgroup)?;
    let near = |i: usize| Some(Spec::new(Kind::Heap, i as u32).edited(4, i as u32));
    inmate.write(&mut region, near)?;
    let stranger = template.spawn(&beside)?;
    let mut other = Region::new(5, PAGES);
    stranger.map(&other)?;
    stranger.write(&mut other, |i| Some(Spec::new(Kind::Heap, i as u32 + 7000)))?;
    let once = || -> Result<bool> {
        let (mut with, mut without) = <(Times, Times)>::default();
        let (mut with_beside, mut without_beside) = <(Times, Times)>::default();
        for _ in 0..ALTERNATIONS {
            recorder::record(ctx, sandbox.id, RECORDS, -1).context("record")?;
            with.measure(&inmate, &region)?;
            with_beside.measure(&stranger, &other)?;
            let (records, _) = recorder::take(ctx, sandbox.id, RECORDS)?;
            ensure!(records.len() >= PAGES, "{} records", records.len());
            recorder::record(ctx, sandbox.id, 0, -1).context("do not record")?;
            without.measure(&inmate, &region)?;
            without_beside.measure(&stranger, &other)?;
        }
        let mut quick = true;
        for (what, with, without) in [
            ("of a sandbox", &mut with.back, &mut without.back),
            (
                "of a cgroup beside it",
                &mut with_beside.back,
                &mut without_beside.back,
            ),
        ] {
            let undisturbed = undisturbed(with) / undisturbed(without);
            let (with, without) = (median(with), median(without));
            println!(
                "@@ overhead: page_in {what}: {with:.1} us a page while the sandbox is recorded, \
                 {without:.1} while not, ratio {:.3} of the medians, {undisturbed:.3} of the first quartiles",
                with / without
            );
            quick &= undisturbed <= LIMIT;
        }
        Ok(quick)
    };
    let quick = once()? || once()?;
    inmate.check(&region)?;
    stranger.check(&other)?;
    ensure!(
        quick,
        "slower while recording than {LIMIT} times, in two series"
    );
    Ok(())
}

/// Prints and files the figures; whether the hooks are as good as free.
fn report(with: &mut Times, without: &mut Times) -> Result<bool> {
    let mut json = Vec::new();
    let mut quick = true;
    for (what, with, without) in [
        ("page_out", &mut with.out, &mut without.out),
        ("page_in", &mut with.back, &mut without.back),
    ] {
        let undisturbed = undisturbed(with) / undisturbed(without);
        let (with, without) = (median(with), median(without));
        let ratio = with / without;
        println!(
            "@@ overhead: {what} of an untagged cgroup: {with:.1} us a page with the hooks, \
             {without:.1} without, ratio {ratio:.3} of the medians, {undisturbed:.3} of the first quartiles"
        );
        json.push(format!(
            "\"{what}\":{{\"armed_us\":{with:.3},\"disarmed_us\":{without:.3},\
             \"ratio\":{ratio:.4},\"ratio_first_quartile\":{undisturbed:.4}}}"
        ));
        quick &= undisturbed <= LIMIT;
    }
    if let Some(dir) = std::env::var_os("AGENTZIP_REPORT") {
        let file = std::path::Path::new(&dir).join("overhead.json");
        host::write(file, &format!("{{{}}}\n", json.join(",")))?;
    }
    Ok(quick)
}
