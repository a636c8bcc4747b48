// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The test suite that runs in the guest: the module against the kernel's real page path.
//!
//! Each test is a function in a table, runs in a process of its own with its own cgroups and
//! swap area, is bounded in time, and fails when it leaves anything behind: entries, templates,
//! sandboxes, pool memory, or a complaint in the kernel log. Output is KTAP.

mod abi;
mod attach;
pub mod bpf;
pub mod daemon;
pub mod dictionary;
pub mod fixture;
mod group;
mod hooks;
mod hostile;
mod inject;
mod inject_sites;
mod isolation;
mod large;
mod leak;
mod lifetime;
mod machine;
mod oom;
mod overhead;
mod pins;
mod power;
mod prefetch;
mod recorder;
pub mod runner;
mod second_look;
mod sensitive;
mod store;
pub mod sys;
mod template;
mod template_file;
mod tracing;
mod training;
pub mod unload;
mod zswap;

use std::time::Instant;

use anyhow::{ensure, Context, Result};

use self::fixture::{cgroup, fault, host, kmemleak, module};
use self::runner::{KernelLog, Test};
use crate::verdict::Tally;

/// Arguments of the suite.
#[derive(clap::Args)]
pub struct Args {
    /// Only print how many tests there are.
    #[arg(long)]
    count: bool,
    /// This is the debug kernel, and all its checkers must be at work.
    #[arg(long)]
    debug: bool,
    /// This guest has little memory: only the tests that need that.
    #[arg(long, conflicts_with = "debug")]
    small: bool,
    /// Only run tests whose name contains this; may be given several times.
    #[arg(long)]
    filter: Vec<String>,
}

/// All tests, in the order in which they run.
///
/// `large` comes first: whether large folios are swapped in, and so whether the module arms, depends on
/// zswap never having been set up since the boot.
///
/// Those at the end need the debug kernel.
fn table(args: &Args) -> Vec<Test> {
    if args.small {
        return daemon::storm::TESTS.to_vec();
    }
    let mut tests = [
        large::TESTS,
        abi::TESTS,
        attach::TESTS,
        hostile::TESTS,
        hooks::TESTS,
        pins::TESTS,
        isolation::TESTS,
        lifetime::TESTS,
        oom::TESTS,
        template::TESTS,
        store::TESTS,
        group::TESTS,
        second_look::TESTS,
        sensitive::TESTS,
        prefetch::TESTS,
        dictionary::TESTS,
        training::TESTS,
        template_file::TESTS,
        tracing::TESTS,
        recorder::TESTS,
        zswap::TESTS,
        unload::TESTS,
        overhead::TESTS,
        inject_sites::LISTS,
    ]
    .concat();
    match args.debug {
        true => tests.extend([leak::TESTS, inject::TESTS, inject_sites::TESTS].concat()),
        false => tests.extend(
            [
                tracing::BPF_TESTS,
                machine::TESTS,
                pins::STOCK,
                power::TESTS,
                daemon::TESTS,
            ]
            .concat(),
        ),
    }
    tests
}

/// Runs the suite.
pub fn main(args: Args) -> Result<Tally> {
    let tests: Vec<Test> = table(&args)
        .into_iter()
        .filter(|test| args.filter.is_empty() || args.filter.iter().any(|f| test.name.contains(f)))
        .collect();
    if args.count {
        println!("{}", tests.len() + 1);
        return Ok(Tally::default());
    }
    if args.debug {
        checkers_at_work()?;
    }
    prepare().context("prepare the guest")?;
    let mut log = KernelLog::open()?;
    let dying_before = cgroup::dying()?;

    println!("TAP version 14");
    println!("1..{}", tests.len() + 1);
    let mut tally = Tally::default();
    let start = Instant::now();
    for (i, test) in tests.iter().enumerate() {
        let began = Instant::now();
        if test.name != large::BEFORE_ZSWAP {
            host::set_up_zswap()?;
        }
        let mut result = runner::run(test, &mut log);
        if args.debug && result.is_ok() {
            result = checkers_at_work();
        }
        report(i + 1, test.name, began, result, &mut tally);
        if (i + 1) % 10 == 0 {
            println!(
                "@@ suite: {} of {} tests, {:.0} s",
                i + 1,
                tests.len(),
                start.elapsed().as_secs_f64()
            );
        }
    }
    let began = Instant::now();
    let result = nothing_left(&mut log, dying_before);
    report(tests.len() + 1, "nothing_left", began, result, &mut tally);
    println!(
        "@@ suite: {} passed, {} failed, {:.0} s",
        tally.passed,
        tally.failed,
        start.elapsed().as_secs_f64()
    );
    Ok(tally)
}

/// A checker that has switched itself off, as all do after their first report, proves nothing.
pub fn checkers_at_work() -> Result<()> {
    ensure!(fault::available(), "no fault injection");
    ensure!(
        std::path::Path::new("/sys/kernel/debug/kmemleak").exists(),
        "no kmemleak"
    );
    let lockdep = host::read("/proc/lockdep_stats").context("no lockdep")?;
    let on = lockdep.lines().any(|line| {
        let (name, value) = line.split_once(':').unwrap_or_default();
        name.trim() == "debug_locks" && value.trim() == "1"
    });
    ensure!(on, "lockdep has switched itself off");
    Ok(())
}

fn report(number: usize, name: &str, began: Instant, result: Result<()>, tally: &mut Tally) {
    let seconds = began.elapsed().as_secs_f64();
    match result {
        Ok(()) => {
            tally.passed += 1;
            println!("ok {number} {name} # {seconds:.2} s");
        }
        Err(error) => {
            tally.failed += 1;
            println!("not ok {number} {name} # {error:#} ({seconds:.2} s)");
            println!("@@ not ok {name}: {error:#}");
        }
    }
}

/// Brings the guest into the state that every test expects.
pub fn prepare() -> Result<()> {
    for device in host::swaps()? {
        sys::swapoff(&device).with_context(|| format!("swapoff {}", device.display()))?;
    }
    host::write("/proc/sys/vm/page-cluster", "0")?;
    // From now on without a line in the kernel log each time.
    host::write("/proc/sys/vm/drop_caches", "4")?;
    // Complaints must reach the log each time, not once.
    if std::path::Path::new("/sys/kernel/debug/clear_warn_once").exists() {
        host::write("/sys/kernel/debug/clear_warn_once", "1")?;
    }
    if !module::loaded() {
        module::load("").context("load the module")?;
    }
    // In the debug kernel it is built in.
    if !std::path::Path::new("/sys/block/zram0").exists() {
        host::modprobe("zram")?;
    }
    fixture::recover()?;
    kmemleak::forget()
}

/// After the last test: the module goes, and with it everything.
pub fn nothing_left(log: &mut KernelLog, dying_before: u64) -> Result<()> {
    for directory in ["sandboxes", "templates"] {
        let left = module::list(directory)?;
        ensure!(left.is_empty(), "{directory} left: {}", left.join(" "));
    }
    let device = module::Device::open()?;
    if device.info()?.armed == 1 {
        device.disarm().context("disarm")?;
    }
    drop(device);
    module::unload().context("unload the module")?;
    ensure!(
        !module::sysfs("").exists(),
        "the sysfs tree outlives the module"
    );
    let what = format!("no more than {dying_before} dying cgroups");
    host::wait_until(&what, std::time::Duration::from_secs(60), || {
        // Charged pages in per-CPU caches keep a removed cgroup; reclaim flushes them.
        host::drop_caches()?;
        Ok(cgroup::dying()? <= dying_before)
    })
    .with_context(|| format!("there are {:?}", cgroup::dying().ok()))?;
    let leaks = kmemleak::scan()?;
    ensure!(leaks.is_empty(), "memory is lost:\n{leaks}");
    let faults = log.faults()?;
    ensure!(faults.is_empty(), "kernel log: {}", faults.join(" | "));
    Ok(())
}
