// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `agentzip status`.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::alarm::{self, Alarm};
use super::limit::is_near;
use super::sandbox::{self, bytes_per_page};
use super::{daemon_status, template, write_warnings};
use crate::error::Result;
use crate::format::{count, percent, Bytes, Table};
use crate::sysfs::{Memory, ModuleState, PageCounters, Sandbox};
use crate::{Context, Limit, PAGE_SIZE};

/// The store should be below one part in this many of the machine's memory.
const RAM_PARTS: u64 = 20;

/// Everything that the module tells.
#[derive(Debug, Serialize)]
pub struct Report {
    /// State of the module.
    pub module: ModuleState,
    /// What the store occupies.
    pub memory: Memory,
    /// Counters of the whole store.
    pub store: PageCounters,
    /// The templates.
    pub templates: template::List,
    /// The sandboxes.
    pub sandboxes: sandbox::List,
    /// What their groups share.
    pub groups: Vec<Group>,
    /// Templates, sandboxes and groups are not shown: they are for root.
    pub hidden: bool,
    /// What wants attention.
    pub warnings: Vec<String>,
    /// Sandboxes that their template explains badly.
    pub alarms: Vec<Alarm>,
    /// What the daemon knows, where one runs that may be asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub daemon: Option<daemon_status::Report>,
}

/// Sandboxes that share reference pages.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Group {
    /// Its name.
    pub name: String,
    /// Its domain.
    pub domain: String,
    /// Its template: groups of one name and two templates are two.
    pub template: String,
    /// Sandboxes in it, detached ones included.
    pub sandboxes: u64,
    /// Reference pages.
    pub references: u64,
    /// Bytes of those, with their tables.
    pub reference_bytes: u64,
    /// Bytes of the content index.
    pub sketch_bytes: u64,
    /// Bytes of the dictionaries, with zstd's tables.
    pub dictionary_bytes: u64,
}

/// Reads the module's statistics. Others than root are shown neither templates nor sandboxes.
///
/// # Errors
///
/// When the module is not loaded or its files cannot be read.
pub fn status(context: &Context) -> Result<Report> {
    let sandboxes = if_allowed(sandbox::list(context))?;
    let templates = if_allowed(template::list(context))?;
    let hidden = sandboxes.is_none() || templates.is_none();
    let sandboxes = sandboxes.unwrap_or_default();
    let mut report = Report {
        module: context.sysfs.module()?,
        memory: context.sysfs.memory()?,
        store: context.sysfs.store()?,
        templates: templates.unwrap_or_default(),
        alarms: alarm::alarms(&sandboxes.0),
        sandboxes,
        groups: Vec::new(),
        hidden,
        warnings: Vec::new(),
        daemon: None,
    };
    report.groups = groups(report.sandboxes.0.iter().map(|listed| &listed.sandbox));
    report.warnings = warnings(&report, context.procfs.meminfo()?.total);
    if hidden {
        let why = "templates, sandboxes and groups are shown to root only";
        report.warnings.push(why.to_owned());
    }
    Ok(report)
}

/// `None` when it is not for us to read.
fn if_allowed<T>(read: Result<T>) -> Result<Option<T>> {
    match read {
        Err(error) if error.errno() == Some(libc::EACCES) => Ok(None),
        read => read.map(Some),
    }
}

/// What each group shares, by domain, name and template. Sensitive sandboxes are in none.
fn groups<'a>(sandboxes: impl Iterator<Item = &'a Sandbox>) -> Vec<Group> {
    let mut groups = BTreeMap::new();
    for sandbox in sandboxes.filter(|sandbox| !sandbox.sensitive) {
        let key = (&sandbox.domain, &sandbox.group, &sandbox.template);
        let group = groups.entry(key).or_insert_with(|| Group {
            name: sandbox.group.clone(),
            domain: sandbox.domain.clone(),
            template: sandbox.template.clone(),
            sandboxes: 0,
            references: sandbox.group_references,
            reference_bytes: sandbox.group_reference_bytes,
            sketch_bytes: sandbox.group_sketch_bytes,
            dictionary_bytes: sandbox.group_dictionary_bytes,
        });
        group.sandboxes += 1;
    }
    groups.into_values().collect()
}

fn warnings(report: &Report, ram: u64) -> Vec<String> {
    let mut warnings = Vec::new();
    let memory = &report.memory;
    if memory.total > ram / RAM_PARTS {
        warnings.push(format!(
            "the store occupies {} of the machine's {} ({}), more than {}; end sandboxes, or bound it: \
             agentzip limit SIZE",
            Bytes(memory.total),
            Bytes(ram),
            percent(memory.total, ram),
            percent(1, RAM_PARTS),
        ));
    }
    let mut near = |what: &str, used: u64, limit: Limit, command: &str| {
        if is_near(used, limit) {
            warnings.push(format!(
                "{what} has {} of at most {limit}: what does not fit goes to the swap device; \
                 more room: agentzip {command}",
                Bytes(used),
            ));
        }
    };
    near(
        "the store",
        memory.bounded(),
        report.module.max_bytes,
        "limit SIZE",
    );
    for listed in &report.sandboxes.0 {
        let sandbox = &listed.sandbox;
        near(
            &format!("sandbox {}", listed.name()),
            sandbox.arena_bytes,
            sandbox.max_bytes,
            &format!("sandbox limit {} SIZE", listed.name()),
        );
    }
    warnings
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let module = &self.module;
        let hooks = if module.armed { "armed" } else { "not armed" };
        let stores = match (module.draining, module.enabled) {
            (true, _) => "draining",
            (false, true) => "stores on",
            (false, false) => "stores off",
        };
        writeln!(f, "AgentZip: {hooks}, {stores}; ABI {}", module.abi_version,)?;
        for alarm in &self.alarms {
            writeln!(f, "ALARM: {alarm}")?;
        }
        self.write_store(f)?;
        self.write_memory(f)?;
        self.write_representations(f)?;
        writeln!(f, "\nTemplates\n{}", self.templates)?;
        write!(f, "Sandboxes\n{}", self.sandboxes)?;
        self.write_groups(f)?;
        if let Some(daemon) = &self.daemon {
            write!(f, "\n{daemon}")?;
        }
        write_warnings(f, &self.warnings)
    }
}

impl Report {
    fn write_store(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let store = &self.store;
        let was = store.entries * PAGE_SIZE;
        write!(
            f,
            "\nStore: {} ({})",
            count(store.entries, "entry"),
            Bytes(was)
        )?;
        write!(f, " in {}", Bytes(self.memory.total))?;
        if self.memory.total > 0 && was > 0 {
            write!(f, ", ratio {:.1}", was as f64 / self.memory.total as f64)?;
        }
        writeln!(f)?;
        let each = |ns: u64, times: u64| ns.checked_div(times).unwrap_or(0);
        let seen = store.stores + store.declined_incompressible;
        let mut table = Table::new(&["", ">PAGES", ""]).indented(2);
        for (what, pages, remark) in [
            (
                "stored",
                store.stores,
                format!("{} ns each to encode", each(store.encode_ns, seen)),
            ),
            (
                "loaded",
                store.loads,
                format!("{} ns each to decode", each(store.decode_ns, store.loads)),
            ),
            ("erased", store.erased, String::new()),
            (
                "looked at again",
                store.second_look_pages,
                format!(
                    "{} ns each, {} saved",
                    each(store.second_look_ns, store.second_look_pages),
                    Bytes(store.second_look_bytes)
                ),
            ),
            (
                "provisional",
                store.provisional,
                "waiting for that".to_owned(),
            ),
            ("template-backed", store.template_backed, String::new()),
            ("promoted", store.promoted, "to reference pages".to_owned()),
            (
                "dropped",
                store.dropped,
                "by loads, near a bound".to_owned(),
            ),
            (
                "declined",
                store.declined_incompressible,
                "incompressible".to_owned(),
            ),
            ("declined", store.declined_nomem, "no memory".to_owned()),
            ("declined", store.declined_full, "bound reached".to_owned()),
            (
                "declined",
                store.declined_detached,
                "detached meanwhile".to_owned(),
            ),
            ("load errors", store.load_errors, String::new()),
        ] {
            table.row([what.to_owned(), pages.to_string(), remark]);
        }
        write!(f, "{table}")
    }

    fn write_memory(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let memory = &self.memory;
        let mut table = Table::new(&["", ">BYTES", ">SHARE"]).indented(2);
        for (what, bytes) in [
            ("arenas", memory.arenas),
            ("reference pages", memory.references),
            ("content indexes", memory.sketches),
            ("slot table", memory.table),
            ("template pages", memory.template_pages),
            ("template indexes", memory.template_index),
            ("scratch", memory.scratch),
            ("objects", memory.objects),
            ("dictionaries", memory.dictionaries),
            ("total", memory.total),
        ] {
            table.row([
                what.to_owned(),
                Bytes(bytes).to_string(),
                percent(bytes, memory.total),
            ]);
        }
        let max = self.module.max_bytes;
        let bounded = Bytes(memory.bounded());
        writeln!(f, "\nMemory that the store occupies\n{table}")?;
        writeln!(f, "  {bounded} of at most {max} in the first three")
    }

    fn write_representations(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let store = &self.store;
        let bytes = store.payload_bytes();
        let mut table =
            Table::new(&["", ">PAGES", ">SHARE", ">BYTES", ">SHARE", ">B/PAGE"]).indented(2);
        for representation in &store.representations {
            table.row([
                representation.name.clone(),
                representation.pages.to_string(),
                percent(representation.pages, store.entries),
                Bytes(representation.bytes).to_string(),
                percent(representation.bytes, bytes),
                bytes_per_page(representation.bytes, representation.pages),
            ]);
        }
        write!(f, "\nRepresentations\n{table}")
    }

    fn write_groups(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.groups.is_empty() {
            return Ok(());
        }
        let mut table = Table::new(&[
            "GROUP",
            "DOMAIN",
            "TEMPLATE",
            ">SANDBOXES",
            ">REFERENCES",
            ">BYTES",
            ">INDEX",
            ">DICTIONARIES",
        ]);
        for group in &self.groups {
            table.row([
                group.name.clone(),
                group.domain.clone(),
                group.template.clone(),
                group.sandboxes.to_string(),
                group.references.to_string(),
                Bytes(group.reference_bytes).to_string(),
                Bytes(group.sketch_bytes).to_string(),
                Bytes(group.dictionary_bytes).to_string(),
            ]);
        }
        write!(f, "\nGroups\n{table}")
    }
}
