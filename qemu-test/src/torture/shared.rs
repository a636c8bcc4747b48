// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What the threads of a round share.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use agentzip_uapi as uapi;
use anyhow::{ensure, Context, Result};

use super::agent::ended;
use super::count::Ended;
use super::machine;
use super::recipe::Recipe;
use crate::suite::daemon;
use crate::suite::fixture::cgroup::Cgroup;
use crate::suite::fixture::module::Counters;
use crate::suite::fixture::{host, Ctx, Template};

/// How long the threads of a round work.
pub const ROUND: Duration = Duration::from_secs(20);
/// Pages of a template.
const TEMPLATE: usize = 128;

/// What all threads of a round share.
///
/// The order of its locks: swap, ctx, working, a sandbox, a template. A sandbox's thread has `working`
/// throughout an operation, so it only tries for swap and ctx.
pub struct Shared<'a> {
    /// The device of the module; written while that is being loaded anew.
    ctx: RwLock<&'a mut Ctx>,
    /// Parent of all cgroups.
    pub root: Cgroup,
    /// Settings of the round.
    pub recipe: Recipe,
    /// The swap device. Who needs swap meanwhile reads it, who takes it away writes it.
    pub swap: RwLock<PathBuf>,
    /// Read throughout each operation of a sandbox.
    working: RwLock<()>,
    /// No operation of a sandbox begins.
    paused: AtomicBool,
    /// When no operation begins any more.
    pub end: Instant,
    /// One has failed, and the others end.
    pub failed: AtomicBool,
    templates: Vec<Mutex<Template>>,
    registered: Vec<Registered>,
    sandboxes: Vec<Mutex<Place>>,
}

/// What a template is made of.
struct Registered {
    name: String,
    holder: i32,
    range: uapi::Range,
}

/// A sandbox as the host sees it.
#[derive(Clone)]
pub struct Place {
    /// Its cgroup.
    pub cgroup: Cgroup,
    /// Its id.
    pub id: u64,
    /// The module has it, as far as we know.
    pub attached: bool,
    number: usize,
    generation: u32,
}

impl Place {
    /// Makes the cgroup of a sandbox.
    fn new(root: &Cgroup, number: usize, generation: u32) -> Result<Place> {
        let cgroup = root.child(&format!("sandbox-{number}-{generation}"))?;
        Ok(Place {
            id: cgroup.id()?,
            cgroup,
            attached: false,
            number,
            generation,
        })
    }

    /// Attaches it to its template.
    pub fn attach(&mut self, shared: &Shared<'_>) -> Result<Ended> {
        // EEXIST: the daemon was first. EBUSY: its former attachment is not over yet.
        const NO: &[i32] = &[libc::EEXIST, libc::EBUSY, libc::ENOMEM];
        let template = &shared.registered[self.number % shared.registered.len()].name;
        let sensitive = shared.recipe.sensitive && self.number == 0;
        let path = self.cgroup.path();
        let ended = match shared.try_ctx() {
            Some(ctx) => {
                let attached = ctx.device().attach_sensitive(path, template, sensitive);
                ended(attached.map_err(Into::into), NO)?
            }
            None => Ended::Refused,
        };
        self.attached = ended == Ended::Done;
        if shared.recipe.daemon {
            daemon::tell(path, "sensitive", if sensitive { "1" } else { "0" })?;
            daemon::tell(path, "template", template)?;
        }
        Ok(ended)
    }

    /// Begins again with a new cgroup; the former one is removed.
    pub fn replace(&mut self, shared: &Shared<'_>) -> Result<()> {
        *self = Place::new(&shared.root, self.number, self.generation + 1)?;
        self.attach(shared).map(drop)
    }

    /// What its memory controller has to say, for messages.
    pub fn events(&self) -> String {
        let events = self.cgroup.read("memory.events").unwrap_or_default();
        events.trim().replace('\n', ", ")
    }
}

impl<'a> Shared<'a> {
    /// Swaps, registers the templates, and makes the sandboxes' cgroups.
    pub fn new(ctx: &'a mut Ctx, recipe: &Recipe) -> Result<Shared<'a>> {
        let device = machine::swap_on(ctx, recipe.swap)?;
        let templates = (0..recipe.templates)
            .map(|_| ctx.template(TEMPLATE))
            .collect::<Result<Vec<_>>>()?;
        let registered = templates.iter().map(|template| Registered {
            name: template.name.clone(),
            holder: template.holder.pid,
            range: template.region.range(),
        });
        let registered = registered.collect();
        let root = ctx.root.clone();
        let sandboxes = (0..recipe.sandboxes)
            .map(|number| Place::new(&root, number, 0).map(Mutex::new))
            .collect::<Result<Vec<_>>>()?;
        Ok(Shared {
            ctx: RwLock::new(ctx),
            root,
            recipe: recipe.clone(),
            swap: RwLock::new(device),
            working: RwLock::new(()),
            paused: AtomicBool::new(false),
            end: Instant::now() + host::patience(ROUND),
            failed: AtomicBool::new(false),
            templates: templates.into_iter().map(Mutex::new).collect(),
            registered,
            sandboxes,
        })
    }

    /// For the host: the device of the module.
    pub fn ctx(&self) -> RwLockReadGuard<'_, &'a mut Ctx> {
        self.ctx.read().expect("no thread panics")
    }

    /// The same for all others, unless the module is being loaded anew.
    pub fn try_ctx(&self) -> Option<RwLockReadGuard<'_, &'a mut Ctx>> {
        self.ctx.try_read().ok()
    }

    /// For who loads the module anew.
    pub fn take_ctx(&self) -> RwLockWriteGuard<'_, &'a mut Ctx> {
        self.ctx.write().expect("no thread panics")
    }

    /// For an operation of a sandbox, as long as it lasts.
    pub fn work(&self) -> RwLockReadGuard<'_, ()> {
        while self.paused.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.working.read().expect("no thread panics")
    }

    /// Has all sandboxes stand still while the guard lives; none when that is not so after `longest`: an
    /// operation waits for a process that the daemon holds.
    pub fn pause(&self, longest: Duration) -> Option<RwLockWriteGuard<'_, ()>> {
        let end = Instant::now() + host::patience(longest);
        self.paused.store(true, Ordering::Relaxed);
        let guard = loop {
            match self.working.try_write() {
                Ok(guard) => break Some(guard),
                Err(_) if Instant::now() > end => break None,
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        };
        self.paused.store(false, Ordering::Relaxed);
        guard
    }

    /// Registers the templates with a module that was loaded anew.
    pub fn register(&self, ctx: &Ctx) -> Result<()> {
        for Registered {
            name,
            holder,
            range,
        } in &self.registered
        {
            let added = ctx.device().template_add(name, *holder, &[*range]);
            added.with_context(|| format!("register {name} again"))?;
        }
        Ok(())
    }

    /// The module has given up no page since it was loaded.
    pub fn no_load_errors(&self) -> Result<()> {
        let errors = Counters::global()?.get("load_errors")?;
        ensure!(errors == 0, "{errors} load errors");
        Ok(())
    }

    /// How many sandboxes there are.
    pub fn sandboxes(&self) -> usize {
        self.sandboxes.len()
    }

    /// A sandbox as it is now. It may be gone when it is used.
    pub fn sandbox(&self, number: usize) -> Place {
        self.lock_sandbox(number).clone()
    }

    /// A sandbox that stays as it is while the guard lives.
    pub fn lock_sandbox(&self, number: usize) -> MutexGuard<'_, Place> {
        self.sandboxes[number].lock().expect("no thread panics")
    }

    /// The template of a sandbox, to fork from.
    pub fn template(&self, number: usize) -> MutexGuard<'_, Template> {
        let template = &self.templates[number % self.templates.len()];
        template.lock().expect("no thread panics")
    }

    /// Remembers that something failed, so that all threads end.
    pub fn note<T>(&self, result: Result<T>) -> Result<T> {
        if result.is_err() {
            self.failed.store(true, Ordering::Relaxed);
        }
        result
    }
}
