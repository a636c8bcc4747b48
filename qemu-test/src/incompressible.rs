// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What pages that nothing makes smaller cost: out to the swap device and back, in a cgroup that is not
//! attached, in a sandbox that declines them, and with zswap. In one guest, in turn.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use serde::Serialize;

use crate::run::report_folder;
use crate::suite::fixture::cgroup::Cgroup;
use crate::suite::fixture::module::Counters;
use crate::suite::fixture::page::{Kind, Spec};
use crate::suite::fixture::puppet::{Puppet, Region};
use crate::suite::fixture::{host, Ctx};
use crate::suite::{self, runner};
use crate::verdict::Tally;

/// Options of `agentzip-guest incompressible`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Times that each configuration is measured; in the order of one round, then in the reverse.
    #[arg(long, default_value_t = 16)]
    rounds: u32,
    /// Pages that go out and come back each time, at most 262144.
    #[arg(long, default_value_t = 2048)]
    pages: usize,
    /// Time for all of it, in seconds.
    #[arg(long, default_value_t = 1200)]
    limit_s: u64,
    /// Folder for incompressible.json.
    #[arg(long, default_value_os_t = report_folder())]
    report: PathBuf,
}

/// The share of the host's throughput that must be left.
const TARGET: f64 = 0.98;

/// Who takes the pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Path {
    /// The swap device, of a cgroup that is not attached.
    Host,
    /// The swap device, after the module has declined them.
    Declined,
    /// zswap with zstd, of a cgroup that is not attached.
    ZswapZstd,
}

impl Path {
    const ALL: [Path; 3] = [Path::Host, Path::Declined, Path::ZswapZstd];
}

/// Microseconds a page, of each round.
#[derive(Clone, Debug, Default, Serialize)]
struct Times {
    /// `MADV_PAGEOUT` until all writes have ended.
    out_us: Vec<f64>,
    /// One word of every page, read in order.
    back_us: Vec<f64>,
    /// Both.
    both_us: Vec<f64>,
}

/// Quartiles.
#[derive(Clone, Copy, Debug, Serialize)]
struct Spread {
    first: f64,
    median: f64,
    third: f64,
}

impl Spread {
    fn of(values: &[f64]) -> Spread {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |share: usize| sorted[(sorted.len() - 1) * share / 4];
        Spread {
            first: at(1),
            median: at(2),
            third: at(3),
        }
    }
}

#[derive(Serialize)]
struct Measured {
    path: Path,
    out_us: Spread,
    back_us: Spread,
    both_us: Spread,
    /// Throughput as a share of the host's: quartiles of that of each round.
    of_host: Spread,
    /// The same of `MADV_PAGEOUT` alone.
    out_of_host: Spread,
    rounds: Times,
}

/// incompressible.json.
#[derive(Serialize)]
struct Report {
    kernel: String,
    pages: usize,
    target: f64,
    /// Pages that the module declined.
    declined: u64,
    measured: Vec<Measured>,
}

/// Somebody whose pages go out and come back.
struct Subject {
    cgroup: Cgroup,
    puppet: Puppet,
    region: Region,
    seed: u32,
}

impl Subject {
    /// New noise, out and back: microseconds a page.
    fn measure(&mut self, path: Path) -> Result<[f64; 2]> {
        let pages = self.region.pages();
        let micros = |began: Instant| began.elapsed().as_secs_f64() * 1e6 / pages as f64;
        self.seed += 1;
        let first = self.seed << 18;
        self.puppet.write(&mut self.region, |i| {
            Some(Spec::new(Kind::Random, first + i as u32))
        })?;
        host::drain_page_batches()?;
        let began = Instant::now();
        self.puppet.page_out(&self.region, false)?;
        while host::vmstat("nr_writeback")? > 0 {
            std::thread::sleep(Duration::from_micros(200));
        }
        let out = micros(began);
        // What was written stays in the swap cache until somebody looks.
        if path != Path::ZswapZstd {
            self.cgroup.reclaim_all()?;
        }
        let left = pages - self.puppet.pages_out(&self.region)?;
        ensure!(left * 20 <= pages, "{left} of {pages} pages did not go out");
        let began = Instant::now();
        self.puppet.touch(&self.region)?;
        Ok([out, micros(began)])
    }
}

/// Runs it.
pub fn main(args: Args) -> Result<Tally> {
    suite::prepare().context("prepare the guest")?;
    host::set_up_zswap()?;
    let limit = Duration::from_secs(args.limit_s);
    match runner::bounded(limit, &|ctx| measure(ctx, &args)) {
        Ok(()) => Ok(Tally {
            passed: 1,
            failed: 0,
        }),
        Err(error) => {
            println!("@@ not ok incompressible: {error:#}");
            Ok(Tally {
                passed: 0,
                failed: 1,
            })
        }
    }
}

fn measure(ctx: &mut Ctx, args: &Args) -> Result<()> {
    ensure!(args.rounds > 0 && args.pages > 0, "nothing to measure");
    ctx.swap_of(4 * args.pages as u32 + 4096)?;
    host::set_zswap_param("compressor", "zstd")?;
    let mut template = ctx.template(64)?;
    let sandbox = ctx.sandbox("box", &template.name)?;
    let mut subject = |cgroup: &Cgroup| -> Result<Subject> {
        let puppet = template.spawn(cgroup)?;
        let region = Region::new(5, args.pages);
        puppet.map(&region)?;
        Ok(Subject {
            cgroup: cgroup.clone(),
            puppet,
            region,
            seed: 0,
        })
    };
    let mut attached = subject(&sandbox.cgroup)?;
    let mut plain = subject(&ctx.cgroup("plain")?)?;
    let mut times: [Times; 3] = Default::default();
    let before = Counters::global()?;
    // The first round warms up and is not counted.
    for round in 0..=args.rounds {
        let mut order = Path::ALL;
        if round % 2 == 1 {
            order.reverse();
        }
        for path in order {
            let subject = match path {
                Path::Declined => &mut attached,
                Path::Host | Path::ZswapZstd => &mut plain,
            };
            let zswap = if path == Path::ZswapZstd { "Y" } else { "N" };
            host::set_zswap_param("enabled", zswap)?;
            let measured = subject.measure(path);
            host::set_zswap_param("enabled", "N")?;
            let [out, back] = measured.with_context(|| format!("{path:?}"))?;
            if round > 0 {
                let times = &mut times[path as usize];
                times.out_us.push(out);
                times.back_us.push(back);
                times.both_us.push(out + back);
            }
        }
        println!(
            "@@ incompressible: round {round} of {}: {}",
            args.rounds,
            times
                .iter()
                .map(|t| format!("{:.1} us", t.both_us.last().copied().unwrap_or(0.0)))
                .collect::<Vec<_>>()
                .join(", ")
        );
    }
    let declined = before.grown("declined_incompressible")?;
    let pages = u64::from(args.rounds) * args.pages as u64;
    ensure!(
        declined * 20 >= pages * 19 && before.grown("stores")? * 20 < pages,
        "{declined} of {pages} pages were declined"
    );
    plain.puppet.check(&plain.region)?;
    attached.puppet.check(&attached.region)?;
    report(args, &times, declined)
}

fn report(args: &Args, times: &[Times; 3], declined: u64) -> Result<()> {
    let shares = |of: fn(&Times) -> &Vec<f64>, path: Path| {
        let (host, own) = (of(&times[0]), of(&times[path as usize]));
        let shares: Vec<f64> = host.iter().zip(own).map(|(host, own)| host / own).collect();
        Spread::of(&shares)
    };
    let measured: Vec<Measured> = Path::ALL
        .into_iter()
        .map(|path| Measured {
            path,
            out_us: Spread::of(&times[path as usize].out_us),
            back_us: Spread::of(&times[path as usize].back_us),
            both_us: Spread::of(&times[path as usize].both_us),
            of_host: shares(|t| &t.both_us, path),
            out_of_host: shares(|t| &t.out_us, path),
            rounds: times[path as usize].clone(),
        })
        .collect();
    for m in &measured {
        println!(
            "@@ incompressible: {:?}: out {:.1} us a page, back {:.1}, together {:.1} ({:.1} to {:.1}); \
             throughput {:.3} of the host's ({:.3} to {:.3}), out alone {:.3}",
            m.path,
            m.out_us.median,
            m.back_us.median,
            m.both_us.median,
            m.both_us.first,
            m.both_us.third,
            m.of_host.median,
            m.of_host.first,
            m.of_host.third,
            m.out_of_host.median
        );
    }
    let share = measured[Path::Declined as usize].of_host.median;
    let met = if share >= TARGET { "met" } else { "missed" };
    println!(
        "@@ incompressible: {share:.3} of the host's throughput; the target, {TARGET}, is {met}"
    );
    let report = Report {
        kernel: host::read("/proc/sys/kernel/osrelease")?,
        pages: args.pages,
        target: TARGET,
        declined,
        measured,
    };
    let json = serde_json::to_string_pretty(&report)?;
    let path = args.report.join("incompressible.json");
    std::fs::write(&path, json + "\n").with_context(|| format!("write {}", path.display()))
}
