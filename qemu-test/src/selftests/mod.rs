// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Runs programs of the kernel's own tests, without the module or in cgroups that are attached.
//!
//! What they print is handed out as it is, one file for each; the host takes it apart.

mod plan;
mod poller;

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use serde::Serialize;

use self::plan::{Place, Program};
use crate::run;
use crate::suite::fixture::cgroup::{self, Cgroup, CGROUP_ROOT};
use crate::suite::fixture::module::{self, Counters, Device};
use crate::suite::fixture::{host, Ctx, Template};
use crate::suite::runner::KernelLog;
use crate::suite::sys;
use crate::verdict::Tally;

/// The list of programs on the payload disk.
const LIST: &str = "programs";
/// The cgroup of those that make none, below the root.
const BOX: &str = "selftests-box";
/// What a program has that is to need swap.
const TIGHT: &str = "16M";

/// Options of `agentzip-guest selftests`.
#[derive(clap::Args)]
pub struct Args {
    /// Load the module, arm it and attach the programs' cgroups.
    #[arg(long)]
    attach: bool,
    /// Only programs whose name contains this; may be given several times.
    #[arg(long)]
    only: Vec<String>,
    /// Folder for selftests.json and the output of each program.
    #[arg(long, default_value_os_t = run::report_folder())]
    report: PathBuf,
}

/// selftests.json of one guest.
#[derive(Serialize)]
struct Report {
    kernel: String,
    module: bool,
    zswap_compressor: String,
    runs: Vec<Run>,
}

/// How one program ended.
#[derive(Serialize)]
struct Run {
    name: String,
    /// Its exit code; none when a signal ended it.
    code: Option<i32>,
    /// The signal that ended it.
    signal: Option<i32>,
    /// It was not done in time.
    late: bool,
    seconds: f64,
    /// Pages that the module stored meanwhile.
    stored: u64,
    /// Pages that it gave back meanwhile.
    loaded: u64,
    /// Cgroups right below the root that were attached.
    attached: BTreeSet<String>,
    /// Attempts to attach one that failed: it was gone again.
    missed: u32,
}

/// The module, with a template of a few pages that no program shares.
struct Module {
    ctx: Ctx,
    template: Template,
    /// For the thread that attaches.
    device: Device,
}

/// Runs them.
pub fn main(args: Args) -> Result<Tally> {
    let list = Path::new(host::PAYLOAD).join(LIST);
    let mut programs = plan::parse(&host::read(list)?)?;
    programs.retain(|one| args.only.is_empty() || args.only.iter().any(|o| one.name.contains(o)));
    host::set_zswap_param("enabled", "Y")?;
    let mut log = KernelLog::open()?;
    let module = match args.attach {
        true => Some(Module::load()?),
        false => None,
    };
    let mut report = Report {
        kernel: host::read("/proc/sys/kernel/osrelease")?,
        module: args.attach,
        zswap_compressor: host::zswap_param("compressor")?,
        runs: Vec::new(),
    };
    let mut tally = Tally::default();
    let mut check = |name: &str, result: Result<()>| match result {
        Ok(()) => tally.passed += 1,
        Err(error) => {
            println!("@@ not ok selftests.{name}: {error:#}");
            tally.failed += 1;
        }
    };
    for program in &programs {
        let run = one(program, module.as_ref(), &args.report)
            .with_context(|| format!("run {}", program.name))?;
        println!(
            "@@ selftests: {}: {}, {:.0} s, {} pages stored",
            run.name,
            match (run.late, run.code, run.signal) {
                (true, ..) => "not done in time".to_owned(),
                (_, Some(code), _) => format!("exit code {code}"),
                (.., signal) => format!("signal {signal:?}"),
            },
            run.seconds,
            run.stored
        );
        report.runs.push(run);
        let faults = log.faults()?;
        let result = match faults.is_empty() {
            true => Ok(()),
            false => Err(anyhow::anyhow!("kernel log: {}", faults.join(" | "))),
        };
        check(&program.name, result);
    }
    if let Some(module) = module {
        check("nothing_left", module.finish());
    }
    run::write(&args.report, "selftests.json", &report)?;
    Ok(tally)
}

impl Module {
    /// Loads and arms it as it is, and registers the template.
    fn load() -> Result<Module> {
        module::load_as_is("").context("load the module")?;
        let mut ctx = Ctx::new()?;
        let template = ctx.template(16)?;
        let device = Device::open().context("open the device")?;
        Ok(Module {
            ctx,
            template,
            device,
        })
    }

    /// Every page must have come back whole; then the module goes.
    fn finish(self) -> Result<()> {
        let Module {
            ctx,
            template,
            device,
        } = self;
        let errors = Counters::global()?.get("load_errors")?;
        ensure!(errors == 0, "{errors} load errors");
        drop(template);
        ctx.finish()?;
        device.disarm().context("disarm")?;
        drop(device);
        module::unload().context("unload the module")
    }
}

/// Runs one program.
fn one(program: &Program, module: Option<&Module>, report: &Path) -> Result<Run> {
    let old = poller::children()?;
    let path = match program.place {
        Place::Box | Place::Tight => Some(Cgroup::create(Path::new(CGROUP_ROOT).join(BOX))?),
        Place::Own | Place::Host => None,
    };
    if let (Some(cgroup), Place::Tight) = (&path, program.place) {
        cgroup.write("memory.max", TIGHT)?;
    }
    let mut attached = BTreeSet::new();
    if let (Some(cgroup), Some(module)) = (&path, module) {
        let device = module.ctx.device();
        device
            .attach(cgroup.path(), &module.template.name)
            .context("attach")?;
        attached.insert(BOX.to_owned());
    }
    let before = module.map(|_| Counters::global()).transpose()?;
    let began = Instant::now();
    let mut child = start(program, path.as_ref(), report)?;
    let mut missed = 0;
    let status = match module {
        Some(module) if program.place == Place::Own => {
            let end = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let thread =
                    scope.spawn(|| poller::run(&module.device, &module.template.name, &old, &end));
                let status = wait(&mut child, program.limit);
                end.store(true, Ordering::Relaxed);
                let (names, failed) = thread.join().expect("the thread does not panic")?;
                attached = names;
                missed = failed;
                status
            })?
        }
        _ => wait(&mut child, program.limit)?,
    };
    let seconds = began.elapsed().as_secs_f64();
    let grown = |name: &str| before.as_ref().map_or(Ok(0), |before| before.grown(name));
    let (stored, loaded) = (grown("stores")?, grown("loads")?);
    // What it left: one that was late has not tidied up.
    for name in poller::children()?.difference(&old) {
        cgroup::remove_tree(&Path::new(CGROUP_ROOT).join(name))?;
    }
    Ok(Run {
        name: program.name.clone(),
        code: status.and_then(|status| status.code()),
        signal: status.and_then(|status| status.signal()),
        late: status.is_none(),
        seconds,
        stored,
        loaded,
        attached,
        missed,
    })
}

/// Starts a program, in a cgroup if one is given.
fn start(program: &Program, cgroup: Option<&Cgroup>, report: &Path) -> Result<Child> {
    let output = File::create(report.join(format!("{}.out", program.name)))?;
    // The shell enters the cgroup and becomes the program.
    let enter = cgroup.map_or(String::new(), |cgroup| {
        format!("echo $$ >{}/cgroup.procs && ", cgroup.path().display())
    });
    Command::new("/bin/sh")
        .args(["-c", &format!("{enter}exec \"$0\" \"$@\"")])
        .arg(Path::new(host::PAYLOAD).join(&program.file))
        .args(&program.args)
        .current_dir("/tmp")
        .stdin(Stdio::null())
        .stderr(output.try_clone()?)
        .stdout(output)
        .process_group(0)
        .spawn()
        .context("start it")
}

/// Waits for the end of a program; none when it was not done in time and was killed.
fn wait(child: &mut Child, limit: Duration) -> Result<Option<ExitStatus>> {
    let deadline = Instant::now() + limit;
    let mut status = child.try_wait()?;
    while status.is_none() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
        status = child.try_wait()?;
    }
    // ESRCH: nothing of it is left.
    let _ = sys::kill(-(child.id() as i32), libc::SIGKILL);
    if status.is_none() {
        child.wait()?;
    }
    Ok(status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_late_is_killed() {
        let mut child = Command::new("sleep")
            .arg("100")
            .process_group(0)
            .spawn()
            .unwrap();
        assert!(wait(&mut child, Duration::from_millis(50))
            .unwrap()
            .is_none());
        let mut child = Command::new("sh")
            .args(["-c", "exit 4"])
            .process_group(0)
            .spawn()
            .unwrap();
        let status = wait(&mut child, Duration::from_secs(60)).unwrap().unwrap();
        assert_eq!(status.code(), Some(4));
    }
}
