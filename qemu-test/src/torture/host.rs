// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What happens to all sandboxes, one operation after the other, while they work: none of it may change
//! what they hold.

use std::fs;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};

use super::agent::ended;
use super::count::{self, Counts, Ended, Table};
use super::random::Random;
use super::shared::Shared;
use super::tracers::Tracers;
use super::{machine, tracers};
use crate::suite::daemon::Daemon;
use crate::suite::fixture::module::{self, expect_errno};
use crate::suite::fixture::page::{Kind, Spec};
use crate::suite::fixture::puppet::{Puppet, Region};
use crate::suite::fixture::{clean_module, fault, host};
use crate::suite::{bpf, dictionary, sys};

/// Whoever does it.
pub struct Host<'a> {
    /// What all threads share.
    pub shared: &'a Shared<'a>,
    /// Its choices.
    pub random: Random,
    /// Who else traces the hooked functions.
    pub tracers: Tracers,
    daemon: Option<Daemon>,
    extra: Extra,
    /// What was done.
    pub counts: Counts,
}

/// A process whose pages become templates that nobody uses.
struct Extra {
    holder: Puppet,
    region: Region,
}

/// What the host can do.
type Operation = fn(&mut Host<'_>) -> Result<Ended>;

const OPERATIONS: Table<Operation> = &[
    (("host-reclaim", reclaim), 20),
    (("host-pressure", pressure), 4),
    (("second-look", second_look), 8),
    (("stores-off-and-on", stores), 3),
    (("prefetch-off-and-on", prefetch), 2),
    (("store-limit", limit), 4),
    (("detach-and-attach", attach), 8),
    (("template-add", template), 4),
    (("dictionary-add", dictionary_add), 6),
    (("dictionary-retire", dictionary_retire), 3),
    (("drain", drain), 3),
    ((RELOAD, reload), 1),
    (("daemon-kill", daemon_kill), 3),
    (("swapoff", machine::swapoff), 2),
    (("zswap-switch", machine::zswap), 4),
    (("drop-caches", machine::drop_caches), 4),
    (("compact", machine::compact), 3),
    (("ksm", machine::ksm), 4),
    (("thp", machine::thp), 4),
    (("damon", machine::damon), 3),
    (("processor-off-and-on", machine::processor), 2),
    (("memory-off-and-on", machine::memory), 2),
    (("tracer-function", tracers::function), 3),
    (("tracer-graph", tracers::function_graph), 3),
    (("tracer-kprobes", tracers::kprobes), 3),
    ((BPF, tracers::bpf), 4),
];

const RELOAD: &str = "reload-under-load";
/// Those that patch code which the kernel executes.
const PATCHING: [&str; 5] = [
    RELOAD,
    "tracer-function",
    "tracer-graph",
    "tracer-kprobes",
    BPF,
];
/// The operation that the debug kernel cannot do: it is built without BPF.
const BPF: &str = "tracer-bpf";

/// The names of all.
pub fn names() -> impl Iterator<Item = &'static str> {
    count::names(OPERATIONS)
}

/// The names of those that are left out: this kernel is built without, or nothing may patch its code.
pub fn unavailable(patching: bool) -> Vec<&'static str> {
    names()
        .filter(|name| match PATCHING.contains(name) {
            true => !patching || (*name == BPF && !bpf::available()),
            false => false,
        })
        .collect()
}

impl<'a> Host<'a> {
    /// Prepares what its operations need; `daemon`: the one that decides about phases.
    pub fn start(shared: &'a Shared<'a>, seed: u64, daemon: Option<Daemon>) -> Result<Host<'a>> {
        let ctx = shared.ctx();
        let (_, holder, region) = ctx.zygote(64, &ctx.holder_cgroup("extra")?)?;
        Ok(Host {
            shared,
            random: Random::new(seed, 1),
            tracers: Tracers::none()?,
            daemon,
            extra: Extra { holder, region },
            counts: Counts::default(),
        })
    }

    /// Does what it chooses until the time is over, or another has failed.
    pub fn run(&mut self) -> Result<()> {
        let worked = self.work();
        // Also when something failed: else who waits for a process that the daemon holds would do so for good.
        let ended = self.end_daemon();
        worked.and(ended)
    }

    fn work(&mut self) -> Result<()> {
        let unavailable = unavailable(self.shared.recipe.patching);
        while Instant::now() < self.shared.end && !self.shared.failed.load(Ordering::Relaxed) {
            let (name, operation) = *self.random.weighted(OPERATIONS);
            if unavailable.contains(&name) {
                continue;
            }
            let ended = operation(self).with_context(|| format!("host, {name}"));
            self.counts.add(name, self.shared.note(ended)?);
            // The sandboxes are what most of the time is for.
            std::thread::sleep(Duration::from_millis(self.random.below(40) as u64));
        }
        Ok(())
    }

    /// Kills the daemon, if there is to be one, and lets go what it held.
    fn end_daemon(&mut self) -> Result<()> {
        if !self.shared.recipe.daemon {
            return Ok(());
        }
        if let Some(daemon) = self.daemon.take() {
            daemon.kill().context("kill the daemon")?;
        }
        self.let_go()
    }

    /// Lets go what a daemon held that is no more.
    fn let_go(&self) -> Result<()> {
        for number in 0..self.shared.sandboxes() {
            let sandbox = self.shared.lock_sandbox(number);
            sandbox.cgroup.write("cgroup.freeze", "0")?;
        }
        Ok(())
    }

    /// Changes code that the kernel executes. Emulated processors may go on executing what is gone (see
    /// `suite/unload.rs`), so there the sandboxes stand still for that moment; when they do not within
    /// `longest`, nothing is changed, and there is no result.
    ///
    /// The caller holds no lock that an operation of a sandbox waits for.
    pub fn patching<T>(
        &self,
        longest: Duration,
        change: impl FnOnce() -> Result<T>,
    ) -> Result<Option<T>> {
        let emulated = std::env::var("AGENTZIP_ACCEL").as_deref() != Ok("kvm");
        let still = emulated.then(|| self.shared.pause(longest));
        if matches!(still, Some(None)) {
            return Ok(None);
        }
        change().map(Some)
    }

    /// The number of a sandbox.
    fn sandbox(&mut self) -> usize {
        self.random.below(self.shared.sandboxes())
    }

    /// Writes a setting of the module off and on again.
    fn off_and_on(&mut self, name: &str) -> Result<Ended> {
        host::write(module::sysfs(name), "0")?;
        std::thread::sleep(Duration::from_millis(self.random.below(100) as u64));
        host::write(module::sysfs(name), "1")?;
        Ok(Ended::Done)
    }
}

/// What a cgroup that has just been removed says.
const REMOVED: &[i32] = &[libc::ENOENT, libc::ENODEV];

fn reclaim(host: &mut Host<'_>) -> Result<Ended> {
    let bytes = 1 << (18 + host.random.below(6));
    let number = host.sandbox();
    let sandbox = host.shared.sandbox(number);
    ended(sandbox.cgroup.reclaim(bytes), REMOVED)
}

/// Reclaim that begins above the sandboxes, file cache and all.
fn pressure(host: &mut Host<'_>) -> Result<Ended> {
    let file = host.shared.root.path().join("memory.reclaim");
    // EAGAIN: there was less.
    ended(fs::write(file, "8M").map_err(Into::into), &[libc::EAGAIN])
}

fn second_look(host: &mut Host<'_>) -> Result<Ended> {
    module::set_second_look(host.random.chance(70))?;
    Ok(Ended::Done)
}

fn stores(host: &mut Host<'_>) -> Result<Ended> {
    host.off_and_on("enabled")
}

fn prefetch(host: &mut Host<'_>) -> Result<Ended> {
    host.off_and_on("prefetch")
}

fn limit(host: &mut Host<'_>) -> Result<Ended> {
    let bound = match host.random.chance(60) {
        true => host::meminfo("MemTotal")? / 5,
        false => 1 << (18 + host.random.below(8)),
    };
    host::write(module::sysfs("max_bytes"), &bound.to_string())?;
    Ok(Ended::Done)
}

/// Detaches a sandbox, and attaches it again at once or later.
fn attach(host: &mut Host<'_>) -> Result<Ended> {
    let number = host.sandbox();
    let mut sandbox = host.shared.lock_sandbox(number);
    if !sandbox.attached {
        return sandbox.attach(host.shared);
    }
    let detached = host.shared.ctx().device().detach(sandbox.id);
    // ENOENT: the daemon, or the removal of its cgroup, was first.
    let ended = ended(detached.map_err(Into::into), &[libc::ENOENT])?;
    sandbox.attached = false;
    if host.random.chance(60) {
        sandbox.attach(host.shared)?;
    }
    Ok(ended)
}

/// Registers a template that no sandbox uses, and removes it.
fn template(host: &mut Host<'_>) -> Result<Ended> {
    const NAME: &str = "extra";
    let extra = &host.extra;
    let ctx = host.shared.ctx();
    let device = ctx.device();
    let added = device.template_add(NAME, extra.holder.pid, &[extra.region.range()]);
    let ended = ended(added.map_err(Into::into), &[libc::ENOMEM])?;
    if ended == Ended::Done {
        device
            .template_remove(NAME)
            .map_err(|(error, users)| anyhow::anyhow!("{error}, {users} users"))?;
    }
    Ok(ended)
}

fn dictionary_add(host: &mut Host<'_>) -> Result<Ended> {
    let number = host.sandbox();
    let id = host.shared.sandbox(number).id;
    add_dictionary(host, id)
}

fn add_dictionary(host: &mut Host<'_>, id: u64) -> Result<Ended> {
    let pages = 1 + host.random.below(8);
    let first = host.random.below(64);
    let specs = (first..first + pages).map(|page| Spec::new(Kind::Text, page as u32));
    let content = dictionary::dictionary_of(specs);
    let added = dictionary::add(&host.shared.ctx(), id, &content);
    // EPERM: it is sensitive.
    let no = [libc::ENOENT, libc::ENOSPC, libc::ENOMEM, libc::EPERM];
    ended(added.map_err(Into::into), &no)
}

/// Gives a group another dictionary, and retires it while payloads may need it, or the one before.
fn dictionary_retire(host: &mut Host<'_>) -> Result<Ended> {
    let number = host.sandbox();
    let id = host.shared.sandbox(number).id;
    if add_dictionary(host, id)? == Ended::Refused {
        return Ok(Ended::Refused);
    }
    let retired = dictionary::retire(&host.shared.ctx(), id);
    ended(retired.map_err(Into::into), &[libc::ENOENT])
}

/// Has stores go the host's way, until the module is armed again.
fn drain(host: &mut Host<'_>) -> Result<Ended> {
    let shared = host.shared;
    let ctx = shared.ctx();
    ctx.device().drain().context("drain")?;
    std::thread::sleep(Duration::from_millis(host.random.below(300) as u64));
    // EALREADY: it is armed, and no longer draining.
    expect_errno("arm", ctx.device().arm(), &[libc::EALREADY])?;
    let info = ctx.device().info()?;
    ensure!(info.draining == 0, "it drains although it was armed");
    Ok(Ended::Done)
}

/// Brings every page back, unloads the module and loads it anew, while the sandboxes go on.
fn reload(host: &mut Host<'_>) -> Result<Ended> {
    let daemon = host.daemon.take();
    let had_daemon = daemon.is_some();
    if let Some(daemon) = daemon {
        daemon.kill()?;
        host.let_go()?;
    }
    let ended = match host.shared.recipe.failing {
        0 => reload_alone(host)?,
        _ => fault::spare(|| reload_alone(host))?,
    };
    if had_daemon {
        host.daemon = Some(Daemon::restart()?);
    }
    Ok(ended)
}

fn reload_alone(host: &mut Host<'_>) -> Result<Ended> {
    /// Nobody holds a sandbox now: what they do ends.
    const LONGEST: Duration = Duration::from_secs(60);
    let shared = host.shared;
    let mut swap = shared.swap.write().expect("no thread panics");
    shared.ctx().device().drain()?;
    let off = sys::swapoff(&swap);
    // ENOMEM: there is no room for everything.
    if ended(off.map_err(Into::into), &[libc::ENOMEM])? == Ended::Refused {
        return drain(host).map(|_| Ended::Refused);
    }
    module::wait_entries(0)?;
    let mut ctx = shared.take_ctx();
    shared.no_load_errors()?;
    clean_module(ctx.device())?;
    host.patching(LONGEST, || Ok(ctx.device().disarm()?))?
        .context("disarm: the sandboxes go on")?;
    ctx.close_device();
    module::unload().context("unload")?;
    module::load("").context("load")?;
    ctx.open_device()?;
    host.patching(LONGEST, || Ok(ctx.device().arm()?))?
        .context("arm: the sandboxes go on")?;
    shared.register(&ctx)?;
    *swap = machine::swap_on(&ctx, shared.recipe.swap)?;
    drop(ctx);
    for number in 0..shared.sandboxes() {
        shared.lock_sandbox(number).attach(shared)?;
    }
    Ok(Ended::Done)
}

fn daemon_kill(host: &mut Host<'_>) -> Result<Ended> {
    let Some(daemon) = host.daemon.take() else {
        return Ok(Ended::Refused);
    };
    daemon.kill()?;
    host.daemon = Some(Daemon::restart()?);
    Ok(Ended::Done)
}
