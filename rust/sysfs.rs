// SPDX-License-Identifier: GPL-2.0

//! What the files below /sys/kernel/agentzip say (ffi/sysfs.c makes them).
//!
//! Showing runs under RCU and takes no lock but those of arenas and groups: removing a directory,
//! under the control lock, waits for readers of its files.

use core::fmt::Write;

use kernel::prelude::*;
use kernel::str::CString;
use kernel::sync::atomic::{Acquire, Relaxed, Release};
use kernel::sync::rcu;

use crate::bindings;
use crate::bindings::agentzip_attr::{self as attr, Type as Attr};
use crate::bindings::agentzip_node_kind::{self as node_kind, Type as Kind};
use crate::control;
use crate::counters::{Counter, Counters};
use crate::pages::Limit;
use crate::recorder;
use crate::restore;
use crate::sandbox::Sandbox;
use crate::second_look;
use crate::state::{self, State};
use crate::template::Template;
use crate::uapi::{self, Name, PageStats, Phase, Signature};

/// A directory of a sandbox or a template.
///
/// # Invariants
///
/// The pointer came from `agentzip_sysfs_add()`.
pub(crate) struct Node(*mut bindings::agentzip_node);

// SAFETY: sysfs locks itself; a node is removed once, by its owner.
unsafe impl Send for Node {}
// SAFETY: As above.
unsafe impl Sync for Node {}

impl Drop for Node {
    /// Removes the directory; waits for readers of its files, hence may sleep.
    fn drop(&mut self) {
        // SAFETY: By the type invariants; removed once, here.
        unsafe { bindings::agentzip_sysfs_remove(self.0) };
    }
}

fn add(kind: Kind, id: usize, name: &CStr) -> Result<Node> {
    // SAFETY: The name is a C string, which sysfs copies.
    let node = unsafe { bindings::agentzip_sysfs_add(kind, id as c_uint, name.as_char_ptr()) };
    if node.is_null() {
        return Err(ENOMEM);
    }
    // INVARIANT: Just added.
    Ok(Node(node))
}

/// Adds the directory of a sandbox. May sleep.
pub(crate) fn add_sandbox(id: usize, cgroup_id: u64) -> Result<Node> {
    let name = CString::try_from_fmt(kernel::prelude::fmt!("{}", cgroup_id))?;
    add(node_kind::AGENTZIP_NODE_SANDBOX, id, &name)
}

/// Adds the directory of a template. May sleep.
pub(crate) fn add_template(id: usize, name: &Name) -> Result<Node> {
    add(
        node_kind::AGENTZIP_NODE_TEMPLATE,
        id,
        CStr::from_bytes_until_nul(name).map_err(|_| EINVAL)?,
    )
}

/// The tree's fixed part, removed when dropped.
pub(crate) struct Tree;

impl Tree {
    pub(crate) fn new() -> Result<Self> {
        // SAFETY: Called once, when the module loads.
        kernel::error::to_result(unsafe { bindings::agentzip_sysfs_init() })?;
        Ok(Self)
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        // SAFETY: Set up by `new()`; the directories of sandboxes and templates are gone.
        unsafe { bindings::agentzip_sysfs_exit() };
    }
}

/// Text under construction, in a sysfs buffer.
struct Output<'a> {
    buffer: &'a mut [u8],
    len: usize,
}

impl Write for Output<'_> {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        let end = self.len.checked_add(text.len()).ok_or(core::fmt::Error)?;
        self.buffer
            .get_mut(self.len..end)
            .ok_or(core::fmt::Error)?
            .copy_from_slice(text.as_bytes());
        self.len = end;
        Ok(())
    }
}

/// What a file says.
enum Value<'a> {
    Number(u64),
    Text(&'a str),
    Signature(&'a Signature),
    Counts(&'a [Counter]),
}

fn text(name: &Name) -> Value<'_> {
    Value::Text(uapi::name_as_str(name).unwrap_or("?"))
}

/// The word that stands for no bound, as in the files of memory cgroups.
const UNLIMITED: &str = "max";

fn limit(limit: &Limit) -> Value<'static> {
    match limit.get() {
        Limit::NONE => Value::Text(UNLIMITED),
        bytes => Value::Number(bytes),
    }
}

fn parse_limit(input: &str) -> Result<u64> {
    if input == UNLIMITED {
        return Ok(Limit::NONE);
    }
    input.parse().map_err(|_| EINVAL)
}

fn parse_switch(input: &str) -> Result<u32> {
    match input {
        "0" => Ok(0),
        "1" => Ok(1),
        _ => Err(EINVAL),
    }
}

/// Position of `attr` in a run of attributes that begins with `first`.
fn place(attr: Attr, first: Attr) -> Option<usize> {
    attr.checked_sub(first).map(|n| n as usize)
}

fn page_value(stats: &PageStats, attr: Attr) -> Option<u64> {
    let representations = uapi::Representation::ALL.len();
    Some(match attr {
        attr::AGENTZIP_ATTR_stores => stats.stores,
        attr::AGENTZIP_ATTR_loads => stats.loads,
        attr::AGENTZIP_ATTR_erased => stats.erased,
        attr::AGENTZIP_ATTR_declined_incompressible => stats.declined_incompressible,
        attr::AGENTZIP_ATTR_declined_nomem => stats.declined_nomem,
        attr::AGENTZIP_ATTR_declined_full => stats.declined_full,
        attr::AGENTZIP_ATTR_declined_detached => stats.declined_detached,
        attr::AGENTZIP_ATTR_load_errors => stats.load_errors,
        attr::AGENTZIP_ATTR_template_backed => stats.template_backed,
        attr::AGENTZIP_ATTR_promoted => stats.promoted,
        attr::AGENTZIP_ATTR_dropped => stats.dropped,
        attr::AGENTZIP_ATTR_provisional => stats.provisional,
        attr::AGENTZIP_ATTR_second_look_pages => stats.second_look_pages,
        attr::AGENTZIP_ATTR_second_look_bytes => stats.second_look_bytes,
        attr::AGENTZIP_ATTR_second_look_ns => stats.second_look_ns,
        attr::AGENTZIP_ATTR_encode_ns => stats.encode_ns,
        attr::AGENTZIP_ATTR_decode_ns => stats.decode_ns,
        _ => {
            let pages = place(attr, attr::AGENTZIP_ATTR_pages_fill);
            let bytes = place(attr, attr::AGENTZIP_ATTR_bytes_fill);
            match (pages, bytes) {
                (_, Some(n)) if n < representations => *stats.bytes.get(n)?,
                (Some(n), _) if n < representations => *stats.pages.get(n)?,
                _ => return None,
            }
        }
    })
}

fn prefetch_value(counters: &Counters, attr: Attr) -> Option<u64> {
    let prefetch = &counters.prefetch;
    Some(
        match attr {
            attr::AGENTZIP_ATTR_prefetch_pages => &prefetch.pages,
            attr::AGENTZIP_ATTR_prefetch_present => &prefetch.present,
            attr::AGENTZIP_ATTR_prefetch_absent => &prefetch.absent,
            attr::AGENTZIP_ATTR_prefetch_dropped => &prefetch.dropped,
            attr::AGENTZIP_ATTR_prefetch_hits => &prefetch.hits,
            attr::AGENTZIP_ATTR_prefetch_misses => &prefetch.misses,
            attr::AGENTZIP_ATTR_prefetch_untested => &prefetch.untested,
            attr::AGENTZIP_ATTR_prefetch_ns => &prefetch.ns,
            _ => return None,
        }
        .get(),
    )
}

fn memory_value(stats: &uapi::MemoryStats, attr: Attr) -> Option<u64> {
    Some(match attr {
        attr::AGENTZIP_ATTR_memory_arenas => stats.arenas,
        attr::AGENTZIP_ATTR_memory_references => stats.references,
        attr::AGENTZIP_ATTR_memory_sketches => stats.sketches,
        attr::AGENTZIP_ATTR_memory_dictionaries => stats.dictionaries,
        attr::AGENTZIP_ATTR_memory_table => stats.table,
        attr::AGENTZIP_ATTR_memory_template_pages => stats.template_pages,
        attr::AGENTZIP_ATTR_memory_template_index => stats.template_index,
        attr::AGENTZIP_ATTR_memory_scratch => stats.scratch,
        attr::AGENTZIP_ATTR_memory_objects => stats.objects,
        attr::AGENTZIP_ATTR_memory_total => stats.total(),
        _ => return None,
    })
}

fn record_value(counts: &recorder::Counts, attr: Attr) -> Option<u64> {
    Some(match attr {
        attr::AGENTZIP_ATTR_faults => counts.faults.get(),
        attr::AGENTZIP_ATTR_faults_lost => counts.lost.get(),
        _ => return None,
    })
}

fn kernel_btf() -> Value<'static> {
    // SAFETY: It returns a constant that ends with a NUL.
    let digest = unsafe { CStr::from_char_ptr(bindings::agentzip_kernel_btf()) };
    Value::Text(digest.to_str().unwrap_or("?"))
}

fn root_value(state: &State, attr: Attr) -> Option<Value<'static>> {
    Some(Value::Number(match attr {
        attr::AGENTZIP_ATTR_abi_version => uapi::ABI_VERSION.into(),
        attr::AGENTZIP_ATTR_armed => state.armed.load(Acquire).into(),
        attr::AGENTZIP_ATTR_draining => state.draining.load(Acquire).into(),
        attr::AGENTZIP_ATTR_enabled => state.enabled.load(Acquire).into(),
        // SAFETY: No preconditions.
        attr::AGENTZIP_ATTR_recorder => unsafe { bindings::agentzip_recorder_installed() }.into(),
        attr::AGENTZIP_ATTR_max_distance => state.max_distance.load(Relaxed).into(),
        attr::AGENTZIP_ATTR_second_look => state.second_look.load(Relaxed).into(),
        attr::AGENTZIP_ATTR_second_look_percent => state.second_look_percent.load(Relaxed).into(),
        attr::AGENTZIP_ATTR_prefetch => state.prefetch.load(Relaxed).into(),
        attr::AGENTZIP_ATTR_keep_on_load => state.keep_on_load.load(Relaxed).into(),
        attr::AGENTZIP_ATTR_max_bytes => return Some(limit(&state.max_bytes)),
        attr::AGENTZIP_ATTR_kernel_btf => return Some(kernel_btf()),
        _ => return None,
    }))
}

fn stats_value(state: &State, attr: Attr) -> Option<Value<'_>> {
    match attr {
        attr::AGENTZIP_ATTR_entries => return Some(Value::Number(state.table.entries())),
        attr::AGENTZIP_ATTR_load_latency => return Some(Value::Counts(state.counters.latency())),
        _ => {}
    }
    if let Some(number) = record_value(&state.records, attr) {
        return Some(Value::Number(number));
    }
    page_value(&state.counters.snapshot(), attr)
        .or_else(|| prefetch_value(&state.counters, attr))
        .or_else(|| memory_value(&control::memory(state), attr))
        .map(Value::Number)
}

fn sandbox_value<'a>(sandbox: &'a Sandbox, attr: Attr, rcu: &rcu::Guard) -> Option<Value<'a>> {
    Some(match attr {
        attr::AGENTZIP_ATTR_phase => Value::Text(sandbox.phase().name()),
        attr::AGENTZIP_ATTR_level => Value::Number(sandbox.level().into()),
        attr::AGENTZIP_ATTR_template => text(&sandbox.template.name),
        attr::AGENTZIP_ATTR_group => text(&sandbox.group.name),
        attr::AGENTZIP_ATTR_domain => text(&sandbox.group.domain.name),
        attr::AGENTZIP_ATTR_max_bytes => limit(&sandbox.max_bytes),
        attr::AGENTZIP_ATTR_arena_bytes => Value::Number(sandbox.arena_bytes()),
        attr::AGENTZIP_ATTR_group_references => Value::Number(sandbox.group.references()),
        attr::AGENTZIP_ATTR_group_reference_bytes => Value::Number(sandbox.group.bytes().0),
        attr::AGENTZIP_ATTR_group_sketch_bytes => Value::Number(sandbox.group.bytes().1),
        attr::AGENTZIP_ATTR_group_dictionaries => Value::Number(sandbox.group.dictionaries().count),
        attr::AGENTZIP_ATTR_group_dictionary_bytes => {
            Value::Number(sandbox.group.dictionaries().bytes)
        }
        attr::AGENTZIP_ATTR_group_dictionary_users => {
            Value::Number(sandbox.group.dictionaries().current_users)
        }
        attr::AGENTZIP_ATTR_group_dictionary_first => {
            Value::Number(sandbox.group.dictionaries().service.at_first.into())
        }
        attr::AGENTZIP_ATTR_group_dictionary_recent => {
            Value::Number(sandbox.group.dictionaries().service.of_late.into())
        }
        attr::AGENTZIP_ATTR_entries => Value::Number(sandbox.entries.get()),
        attr::AGENTZIP_ATTR_ranges => Value::Number(sandbox.ranges.len(rcu)),
        attr::AGENTZIP_ATTR_attached => Value::Number(sandbox.is_attached().into()),
        attr::AGENTZIP_ATTR_sensitive => Value::Number(sandbox.is_sensitive().into()),
        attr::AGENTZIP_ATTR_load_latency => Value::Counts(sandbox.counters.latency()),
        _ => Value::Number(
            record_value(&sandbox.recorder.counts, attr)
                .or_else(|| page_value(&sandbox.counters.snapshot(), attr))
                .or_else(|| prefetch_value(&sandbox.counters, attr))?,
        ),
    })
}

fn template_value<'a>(
    state: &State,
    id: usize,
    template: &'a Template,
    attr: Attr,
) -> Option<Value<'a>> {
    Some(match attr {
        attr::AGENTZIP_ATTR_domain => text(&template.domain),
        attr::AGENTZIP_ATTR_source => Value::Text(template.pages.source.name()),
        attr::AGENTZIP_ATTR_signature => Value::Signature(&template.signature),
        attr::AGENTZIP_ATTR_pages_referenced => Value::Number(template.pages.referenced()),
        attr::AGENTZIP_ATTR_pages_copied => Value::Number(template.pages.copied()),
        attr::AGENTZIP_ATTR_pages_skipped => Value::Number(template.pages.skipped),
        attr::AGENTZIP_ATTR_pages_indexed => Value::Number(template.content.done()),
        attr::AGENTZIP_ATTR_sketch_bytes => Value::Number(template.content.bytes()),
        attr::AGENTZIP_ATTR_users => Value::Number(control::template_users(state, id)),
        attr::AGENTZIP_ATTR_index_bytes => Value::Number(template.pages.index_bytes()),
        attr::AGENTZIP_ATTR_page_bytes => Value::Number(template.pages.page_bytes()),
        _ => return None,
    })
}

fn show(kind: Kind, id: usize, attr: Attr, buffer: &mut [u8]) -> Result<usize> {
    let rcu = rcu::read_lock();
    let state = state::get().ok_or(ENODEV)?;
    let value = match kind {
        node_kind::AGENTZIP_NODE_ROOT => root_value(state, attr),
        node_kind::AGENTZIP_NODE_STATS => stats_value(state, attr),
        node_kind::AGENTZIP_NODE_SANDBOX => {
            sandbox_value(state.sandboxes.get(id, &rcu).ok_or(ENODEV)?, attr, &rcu)
        }
        node_kind::AGENTZIP_NODE_TEMPLATE => {
            let template = state.templates.get(id, &rcu).ok_or(ENODEV)?;
            template_value(state, id, template, attr)
        }
        _ => None,
    };
    let mut output = Output { buffer, len: 0 };
    match value.ok_or(EINVAL)? {
        Value::Number(number) => writeln!(output, "{number}"),
        Value::Text(text) => writeln!(output, "{text}"),
        Value::Signature(bytes) if bytes.iter().all(|&b| b == 0) => writeln!(output, "none"),
        Value::Signature(bytes) => bytes
            .iter()
            .try_for_each(|byte| write!(output, "{byte:02x}"))
            .and_then(|()| writeln!(output)),
        Value::Counts(counts) => counts
            .iter()
            .enumerate()
            .try_for_each(|(i, count)| {
                let before = if i == 0 { "" } else { " " };
                write!(output, "{before}{}", count.get())
            })
            .and_then(|()| writeln!(output)),
    }
    .map_err(|_| EOVERFLOW)?;
    Ok(output.len)
}

fn set(kind: Kind, id: usize, attr: Attr, input: &[u8]) -> Result {
    let rcu = rcu::read_lock();
    let state = state::get().ok_or(ENODEV)?;
    let input = core::str::from_utf8(input).map_err(|_| EINVAL)?.trim();
    match (kind, attr) {
        (node_kind::AGENTZIP_NODE_ROOT, attr::AGENTZIP_ATTR_enabled) => {
            state.enabled.store(parse_switch(input)?, Release);
            Ok(())
        }
        (node_kind::AGENTZIP_NODE_ROOT, attr::AGENTZIP_ATTR_second_look) => {
            state.second_look.store(parse_switch(input)?, Relaxed);
            second_look::kick();
            Ok(())
        }
        (node_kind::AGENTZIP_NODE_ROOT, attr::AGENTZIP_ATTR_prefetch) => {
            state.prefetch.store(parse_switch(input)?, Relaxed);
            restore::kick();
            Ok(())
        }
        (node_kind::AGENTZIP_NODE_ROOT, attr::AGENTZIP_ATTR_keep_on_load) => {
            state.keep_on_load.store(parse_switch(input)?, Relaxed);
            Ok(())
        }
        (node_kind::AGENTZIP_NODE_ROOT, attr::AGENTZIP_ATTR_second_look_percent) => {
            let percent = input.parse().ok().filter(|n| (1..=100).contains(n));
            state
                .second_look_percent
                .store(percent.ok_or(EINVAL)?, Relaxed);
            second_look::kick();
            Ok(())
        }
        (node_kind::AGENTZIP_NODE_ROOT, attr::AGENTZIP_ATTR_max_distance) => {
            let percent = input.parse().ok().filter(|percent| *percent <= 100);
            state.max_distance.store(percent.ok_or(EINVAL)?, Relaxed);
            Ok(())
        }
        (node_kind::AGENTZIP_NODE_ROOT, attr::AGENTZIP_ATTR_max_bytes) => {
            state.max_bytes.set(parse_limit(input)?);
            Ok(())
        }
        (node_kind::AGENTZIP_NODE_SANDBOX, attr::AGENTZIP_ATTR_max_bytes) => {
            let sandbox = state.sandboxes.get(id, &rcu).ok_or(ENODEV)?;
            sandbox.max_bytes.set(parse_limit(input)?);
            Ok(())
        }
        (node_kind::AGENTZIP_NODE_SANDBOX, attr::AGENTZIP_ATTR_level) => {
            let sandbox = state.sandboxes.get(id, &rcu).ok_or(ENODEV)?;
            sandbox.set_level(input.parse().map_err(|_| EINVAL)?)
        }
        (node_kind::AGENTZIP_NODE_SANDBOX, attr::AGENTZIP_ATTR_phase) => {
            let phase = Phase::from_name(input).ok_or(EINVAL)?;
            let sandbox = state.sandboxes.get(id, &rcu).ok_or(ENODEV)?;
            sandbox.set_phase(phase)
        }
        _ => Err(EINVAL),
    }
}

/// Shows an attribute; called by ffi/sysfs.c with a buffer of a page.
#[no_mangle]
extern "C" fn agentzip_rs_show(kind: Kind, id: c_uint, attr: Attr, buf: *mut c_char) -> isize {
    // SAFETY: sysfs gives a buffer of a page to every show.
    let buffer =
        unsafe { core::slice::from_raw_parts_mut(buf.cast::<u8>(), kernel::page::PAGE_SIZE) };
    match show(kind, id as usize, attr, buffer) {
        Ok(len) => len as isize,
        Err(error) => error.to_errno() as isize,
    }
}

/// Sets an attribute; called by ffi/sysfs.c.
#[no_mangle]
extern "C" fn agentzip_rs_set(
    kind: Kind,
    id: c_uint,
    attr: Attr,
    buf: *const c_char,
    len: usize,
) -> isize {
    // SAFETY: sysfs gives `len` readable bytes to every store.
    let input = unsafe { core::slice::from_raw_parts(buf.cast::<u8>(), len) };
    match set(kind, id as usize, attr, input) {
        Ok(()) => len as isize,
        Err(error) => error.to_errno() as isize,
    }
}
