// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The configurations: what sets them up, what they occupy, what takes them down.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use serde::Serialize;

use super::cgroup::{self, Cgroup};
use super::daemon::{Daemon, Settings};
use super::memory::{Machine, Store};
use super::pages::PAGE;
use super::zygote::Zygote;

/// The module's files.
const SYSFS: &str = "/sys/kernel/agentzip";
/// zswap's settings.
const ZSWAP: &str = "/sys/module/zswap/parameters";
/// How long something may take to go away.
const PATIENCE: Duration = Duration::from_secs(30);
/// Pause between two looks.
const POLL: Duration = Duration::from_millis(200);
/// Name under which the zygote's pages are registered.
const TEMPLATE: &str = "zygote";

/// Where waiting sandboxes' pages go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum Configuration {
    /// Nowhere: no swap.
    None,
    /// zswap with zstd.
    ZswapZstd,
    /// The module and the controller's daemon, which agents' hints tell when to work; zswap is off.
    Agentzip,
    /// The module alone: nobody says what agents do, and a timer takes as much from them.
    AgentzipNoWaitAlign,
}

impl Configuration {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::ZswapZstd => "zswap_zstd",
            Self::Agentzip => "agentzip",
            Self::AgentzipNoWaitAlign => "agentzip_no_wait_align",
        }
    }

    /// Whether pages go to the module.
    pub fn uses_module(self) -> bool {
        matches!(self, Self::Agentzip | Self::AgentzipNoWaitAlign)
    }
}

/// Where the pieces are.
#[derive(Clone, Debug)]
pub struct Places {
    /// The module's file.
    pub module: PathBuf,
    /// The controller's file.
    pub controller: PathBuf,
    /// The swap device.
    pub swap: Option<PathBuf>,
    /// Folder of the daemon's log.
    pub log: PathBuf,
    /// How the daemon is set up.
    pub settings: Settings,
}

/// Pages and payload bytes of one representation.
#[derive(Clone, Debug, Serialize)]
pub struct Representation {
    /// Its name.
    pub name: String,
    /// Pages stored so.
    pub pages: u64,
    /// Their payload bytes.
    pub bytes: u64,
    /// Payload bytes of a page; 0 without pages.
    pub bytes_per_page: f64,
}

/// A configuration that is set up.
pub struct Backend {
    configuration: Configuration,
    places: Places,
    daemon: Option<Daemon>,
}

impl Backend {
    /// Swap and zswap, before the baseline is read.
    pub fn prepare(configuration: Configuration, places: &Places) -> Result<Self> {
        let backend = Self {
            configuration,
            places: places.clone(),
            daemon: None,
        };
        cgroup::write(Path::new("/proc/sys/vm/page-cluster"), "0")?;
        zswap("enabled", "N")?;
        if let Some(device) = &places.swap {
            let device = device.display().to_string();
            if cgroup::read(Path::new("/proc/swaps"))?.contains(&device) {
                run("swapoff", &[&device])?;
            }
            if configuration != Configuration::None {
                run("swapon", &[&device])?;
            }
        } else if configuration != Configuration::None {
            bail!(
                "{} needs a swap device: set AGENTZIP_SWAP or --swap",
                configuration.name()
            );
        }
        if configuration == Configuration::ZswapZstd {
            zswap("compressor", "zstd")?;
            zswap("shrinker_enabled", "N")?;
            zswap("max_pool_percent", "50")?;
            zswap("enabled", "Y")?;
            let now = fs::read_to_string(format!("{ZSWAP}/compressor"))?;
            ensure!(
                now.trim() == "zstd",
                "zswap uses {} instead of zstd",
                now.trim()
            );
        }
        Ok(backend)
    }

    /// After the baseline: the module, its template and its sandboxes; and the daemon, which attaches
    /// them where there is one.
    pub fn attach(&mut self, zygote: &Zygote, sandboxes: &[Cgroup]) -> Result<()> {
        if !self.configuration.uses_module() {
            return Ok(());
        }
        if !Path::new(SYSFS).exists() {
            run("insmod", &[&self.places.module.display().to_string()])?;
        }
        self.control(&["arm"])?;
        self.control(&[
            "template",
            "add",
            "--pid",
            &zygote.holder().to_string(),
            "--name",
            TEMPLATE,
        ])?;
        if self.configuration == Configuration::Agentzip {
            let Places {
                controller,
                settings,
                log,
                ..
            } = &self.places;
            let holder = zygote.cgroup().map(Cgroup::path);
            let daemon = Daemon::start(controller, *settings, holder, log)?;
            daemon.attach(sandboxes, TEMPLATE)?;
            self.daemon = Some(daemon);
            return Ok(());
        }
        for sandbox in sandboxes {
            let path = sandbox.path().display().to_string();
            self.control(&["sandbox", "attach", &path, "--template", TEMPLATE])?;
        }
        Ok(())
    }

    /// The daemon, where there is one.
    pub fn daemon(&self) -> Option<&Daemon> {
        self.daemon.as_ref()
    }

    /// The agent of a sandbox works: tells the daemon so.
    pub fn works(&self, sandbox: &Cgroup, hint: &str) -> Result<()> {
        match self.daemon {
            Some(_) => sandbox.tell("phase", hint),
            None => Ok(()),
        }
    }

    /// Whether pages of sandboxes that wait go anywhere.
    pub fn compresses(&self) -> bool {
        self.configuration != Configuration::None
    }

    /// The agents of these sandboxes wait until all that they own is out: the daemon does that when it
    /// is told so, else we do.
    pub fn wait(&self, sandboxes: &[Cgroup]) -> Result<()> {
        let Some(daemon) = &self.daemon else {
            return sandboxes.iter().try_for_each(Cgroup::reclaim);
        };
        for sandbox in sandboxes {
            daemon.llm_wait(sandbox)?;
        }
        daemon.wait_out(sandboxes)
    }

    /// What the compressing side occupies now.
    pub fn occupied(&self, base: &Machine, now: &Machine) -> Result<Store> {
        let mut store = Store::default();
        let mut count = |name: &str, bytes: u64| {
            store.metadata.insert(name.to_owned(), bytes);
        };
        match self.configuration {
            Configuration::None => {}
            Configuration::ZswapZstd => {
                let names = ["zswap_entry", "zs_handle", "zspage", "radix_tree_node"];
                for (name, bytes) in now.slab_growth(base, &names) {
                    count(name, bytes);
                }
                store.in_slab = store.metadata.values().sum();
                store.pool = now.zswap;
                store.held = Machine::zswapped()?;
            }
            Configuration::Agentzip | Configuration::AgentzipNoWaitAlign => {
                let mut stats = self.statistics()?;
                store.held = stats.get("entries").copied().unwrap_or(0) * PAGE;
                stats.retain(|name, _| name.starts_with("memory_") && name != "memory_total");
                let mut pool = |name: &str| {
                    let missing = || format!("no {name}");
                    stats.remove(name).with_context(missing)
                };
                store.shared = pool("memory_references")?;
                store.pool = pool("memory_arenas")? + store.shared;
                for (name, bytes) in stats {
                    count(name.trim_start_matches("memory_"), bytes);
                }
                let in_slab = ["table", "objects"];
                let metadata = in_slab.iter().filter_map(|name| store.metadata.get(*name));
                store.in_slab = metadata.sum();
            }
        }
        if self.configuration != Configuration::None {
            store
                .metadata
                .insert("swap_tables".to_owned(), now.swap_tables(base));
        }
        Ok(store)
    }

    /// Every counter of the module; empty in the other configurations.
    pub fn statistics(&self) -> Result<BTreeMap<String, u64>> {
        let mut found = BTreeMap::new();
        if !self.configuration.uses_module() {
            return Ok(found);
        }
        let directory = Path::new(SYSFS).join("stats");
        for entry in
            fs::read_dir(&directory).with_context(|| format!("read {}", directory.display()))?
        {
            let path = entry?.path();
            let value = cgroup::read(&path)?;
            // A list of counts is no counter.
            if value.trim().contains(' ') {
                continue;
            }
            let value = value
                .trim()
                .parse()
                .with_context(|| format!("parse {}", path.display()))?;
            if let Some(name) = path.file_name().and_then(|name| name.to_str()) {
                found.insert(name.to_owned(), value);
            }
        }
        Ok(found)
    }

    /// How the stored pages are encoded now.
    pub fn representations(&self) -> Result<Vec<Representation>> {
        let stats = self.statistics()?;
        let value = |key: String| stats.get(&key).copied().unwrap_or(0);
        Ok(agentzip_uapi::Representation::ALL
            .iter()
            .filter(|_| !stats.is_empty())
            .map(|representation| {
                let name = representation.name();
                let pages = value(format!("pages_{name}"));
                let bytes = value(format!("bytes_{name}"));
                let bytes_per_page = if pages == 0 {
                    0.0
                } else {
                    bytes as f64 / pages as f64
                };
                Representation {
                    name: name.to_owned(),
                    pages,
                    bytes,
                    bytes_per_page,
                }
            })
            .collect())
    }

    /// After the sandboxes exited: takes everything down and says what was left behind.
    ///
    /// An empty list is what is wanted.
    pub fn finish(&mut self, sandboxes: &[Cgroup]) -> Result<Vec<String>> {
        let mut left = Vec::new();
        match self.configuration {
            Configuration::None => {}
            Configuration::ZswapZstd => {
                if let Some(bytes) = wait_zero(Machine::zswapped)? {
                    left.push(format!("{bytes} bytes in zswap"));
                }
                zswap("enabled", "N")?;
            }
            Configuration::Agentzip | Configuration::AgentzipNoWaitAlign => {
                let entries = || {
                    Ok(self
                        .statistics()?
                        .get("entries")
                        .copied()
                        .unwrap_or(u64::MAX))
                };
                if let Some(entries) = wait_zero(entries)? {
                    left.push(format!("{entries} entries in the store"));
                }
                if let Some(daemon) = self.daemon.take() {
                    daemon.finish(sandboxes)?;
                } else {
                    for sandbox in sandboxes {
                        let path = sandbox.path().display().to_string();
                        self.control(&["sandbox", "detach", &path])?;
                    }
                }
                self.control(&["drain"])?;
                // The module drops the last traces of detached sandboxes within some seconds.
                patiently(|| self.control(&["template", "rm", TEMPLATE]))?;
                self.control(&["disarm"])?;
                run("rmmod", &["agentzip"])?;
            }
        }
        Ok(left)
    }

    fn control(&self, args: &[&str]) -> Result<()> {
        run(&self.places.controller.display().to_string(), args)
    }
}

/// Repeats what fails for some time, at most 30 s; returns the last error.
fn patiently(action: impl Fn() -> Result<()>) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match action() {
            Err(_) if Instant::now() < deadline => std::thread::sleep(POLL),
            result => return result,
        }
    }
}

/// Polls until a count is zero; returns it when it does not become so within 30 s.
fn wait_zero(count: impl Fn() -> Result<u64>) -> Result<Option<u64>> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match count()? {
            0 => return Ok(None),
            left if Instant::now() > deadline => return Ok(Some(left)),
            _ => std::thread::sleep(POLL),
        }
    }
}

fn zswap(parameter: &str, value: &str) -> Result<()> {
    cgroup::write(&Path::new(ZSWAP).join(parameter), value)
}

/// Runs a helper program that must succeed; its error text is part of the error.
fn run(program: &str, args: &[&str]) -> Result<()> {
    let output = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("start {program}"))?;
    ensure!(
        output.status.success(),
        "{program} {}: {}: {}",
        args.join(" "),
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(())
}
