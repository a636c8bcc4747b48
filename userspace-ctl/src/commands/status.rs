// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `agentzip status`.

use std::fmt;

use serde::Serialize;

use super::sandbox::{self, bytes_per_page};
use super::template;
use crate::error::Result;
use crate::format::{count, percent, Bytes, Table};
use crate::sysfs::{Memory, ModuleState, PageCounters};
use crate::{Context, PAGE_SIZE};

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
}

/// Reads the module's statistics. Needs no privilege.
///
/// # Errors
///
/// When the module is not loaded or its files cannot be read.
pub fn status(context: &Context) -> Result<Report> {
    Ok(Report {
        module: context.sysfs.module()?,
        memory: context.sysfs.memory()?,
        store: context.sysfs.store()?,
        templates: template::list(context)?,
        sandboxes: sandbox::list(context)?,
    })
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
        self.write_store(f)?;
        self.write_memory(f)?;
        self.write_representations(f)?;
        writeln!(f, "\nTemplates\n{}", self.templates)?;
        write!(f, "Sandboxes\n{}", self.sandboxes)
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
            ("template-backed", store.template_backed, String::new()),
            (
                "declined",
                store.declined_incompressible,
                "incompressible".to_owned(),
            ),
            ("declined", store.declined_nomem, "no memory".to_owned()),
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
            ("payload pool", memory.pool),
            ("pool handles", memory.handles),
            ("slot table", memory.table),
            ("template pages", memory.template_pages),
            ("template indexes", memory.template_index),
            ("scratch", memory.scratch),
            ("objects", memory.objects),
            ("total", memory.total),
        ] {
            table.row([
                what.to_owned(),
                Bytes(bytes).to_string(),
                percent(bytes, memory.total),
            ]);
        }
        write!(f, "\nMemory that the store occupies\n{table}")
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
}
