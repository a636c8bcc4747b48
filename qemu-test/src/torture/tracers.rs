// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Others who trace the functions that the module redirects: they come and go while pages do.

use std::time::Duration;

use anyhow::Result;

use super::count::Ended;
use super::host::Host;
use crate::suite::bpf::{Place, Program};
use crate::suite::fixture::trace::{self, HOOKED};

/// Most BPF programs at a time.
const PROGRAMS: usize = 6;
/// How long to wait for sandboxes that do not stand still.
const LONGEST: Duration = Duration::from_secs(2);

/// Who is there.
#[derive(Default)]
pub struct Tracers {
    tracer: Option<&'static str>,
    kprobes: bool,
    programs: Vec<Program>,
}

impl Tracers {
    /// Nobody yet.
    pub fn none() -> Result<Tracers> {
        trace::set_filter()?;
        Ok(Tracers::default())
    }
}

/// The function tracer, or nobody when it is there.
pub fn function(host: &mut Host<'_>) -> Result<Ended> {
    switch(host, "function")
}

/// The tracer of calls and returns, or nobody when it is there.
pub fn function_graph(host: &mut Host<'_>) -> Result<Ended> {
    switch(host, "function_graph")
}

fn switch(host: &mut Host<'_>, name: &'static str) -> Result<Ended> {
    let now = match host.tracers.tracer {
        Some(tracer) if tracer == name => None,
        _ => Some(name),
    };
    let set = || trace::set("current_tracer", now.unwrap_or("nop"));
    if host.patching(LONGEST, set)?.is_none() {
        return Ok(Ended::Refused);
    }
    host.tracers.tracer = now;
    Ok(Ended::Done)
}

/// A kprobe and a kretprobe on each function, or none.
pub fn kprobes(host: &mut Host<'_>) -> Result<Ended> {
    let there = host.tracers.kprobes;
    let switch = || match there {
        true => trace::remove_kprobes(),
        false => trace::set_kprobes(),
    };
    if host.patching(LONGEST, switch)?.is_none() {
        return Ok(Ended::Refused);
    }
    host.tracers.kprobes = !there;
    Ok(Ended::Done)
}

/// A BPF program comes to one of the functions, or another goes.
pub fn bpf(host: &mut Host<'_>) -> Result<Ended> {
    let programs = host.tracers.programs.len();
    if programs == PROGRAMS || programs > 0 && host.random.chance(40) {
        let goes = host.random.below(programs);
        let mut programs = std::mem::take(&mut host.tracers.programs);
        let gone = host.patching(LONGEST, || {
            programs.swap_remove(goes);
            Ok(())
        })?;
        host.tracers.programs = programs;
        return Ok(gone.map_or(Ended::Refused, |()| Ended::Done));
    }
    let place = *host.random.of(&Place::ALL);
    let function = *host.random.of(&HOOKED);
    let Some(program) = host.patching(LONGEST, || Program::attach(place, function))? else {
        return Ok(Ended::Refused);
    };
    host.tracers.programs.push(program);
    Ok(Ended::Done)
}
