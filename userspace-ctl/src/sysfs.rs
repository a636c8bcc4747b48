// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The module's statistics below `/sys/kernel/agentzip`, as typed values. Anyone may read them.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use agentzip_uapi as uapi;
use serde::Serialize;

use crate::error::{read_number, read_text, Error, Result};

/// The sysfs tree.
#[derive(Clone, Debug)]
pub struct Sysfs {
    root: PathBuf,
}

/// State of the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ModuleState {
    /// Version of its control interface.
    pub abi_version: u64,
    /// The hooks are installed.
    pub armed: bool,
    /// New stores are accepted.
    pub enabled: bool,
    /// Drained, and not armed again since.
    pub draining: bool,
}

/// Entries of one representation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Representation {
    /// Its name.
    pub name: String,
    /// Entries now.
    pub pages: u64,
    /// Their payload bytes, without rounding.
    pub bytes: u64,
}

/// Counters about pages, of a sandbox or of the whole store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PageCounters {
    /// Entries now.
    pub entries: u64,
    /// Pages stored since the start.
    pub stores: u64,
    /// Pages loaded since the start.
    pub loads: u64,
    /// Entries that died since the start.
    pub erased: u64,
    /// Pages declined: no representation paid.
    pub declined_incompressible: u64,
    /// Pages declined: no memory.
    pub declined_nomem: u64,
    /// Pages declined: the sandbox was detached meanwhile.
    pub declined_detached: u64,
    /// Loads that failed a check.
    pub load_errors: u64,
    /// Pages whose index the template has.
    pub template_backed: u64,
    /// Nanoseconds spent in encoding.
    pub encode_ns: u64,
    /// Nanoseconds spent in decoding.
    pub decode_ns: u64,
    /// Entries by representation.
    pub representations: Vec<Representation>,
}

impl PageCounters {
    /// Pages declined for any reason.
    pub fn declined(&self) -> u64 {
        self.declined_incompressible + self.declined_nomem + self.declined_detached
    }

    /// Payload bytes of all entries.
    pub fn payload_bytes(&self) -> u64 {
        self.representations.iter().map(|r| r.bytes).sum()
    }
}

/// What the store occupies, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// Payload pool, holes and rounding included.
    pub pool: u64,
    /// Handles of the payload pool.
    pub handles: u64,
    /// Slot table.
    pub table: u64,
    /// Template pages that live only because the module holds them.
    pub template_pages: u64,
    /// Template indexes.
    pub template_index: u64,
    /// Per-CPU scratch.
    pub scratch: u64,
    /// Sandbox and template objects.
    pub objects: u64,
    /// All of it.
    pub total: u64,
}

/// A template.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Template {
    /// Its name.
    pub name: String,
    /// The domain that it belongs to.
    pub domain: String,
    /// Pages kept by reference.
    pub pages_referenced: u64,
    /// Pages copied.
    pub pages_copied: u64,
    /// Pages left out when it was made.
    pub pages_skipped: u64,
    /// Sandboxes that use it.
    pub users: u64,
    /// Bytes of its index.
    pub index_bytes: u64,
    /// Bytes of pages that live only because of it.
    pub page_bytes: u64,
}

/// A sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Sandbox {
    /// Id of its cgroup.
    pub cgroup_id: u64,
    /// What its agent does.
    pub phase: String,
    /// Its template.
    pub template: String,
    /// Its group.
    pub group: String,
    /// Its domain.
    pub domain: String,
    /// False: detached, and still listed for its entries.
    pub attached: bool,
    /// Its pages.
    pub pages: PageCounters,
}

impl Sysfs {
    /// The tree at this path.
    pub fn new(root: PathBuf) -> Self {
        Sysfs { root }
    }

    /// State of the module.
    ///
    /// # Errors
    ///
    /// When the module is not loaded, or a file cannot be read or understood.
    pub fn module(&self) -> Result<ModuleState> {
        let version = self.root.join("abi_version");
        let abi_version = read_number(&version).map_err(|error| match error {
            Error::Io { cause, .. } if cause.kind() == ErrorKind::NotFound => Error::Device {
                path: self.root.clone(),
                cause,
                advice: "load the module: insmod agentzip.ko",
            },
            other => other,
        })?;
        let flag = |name| read_number(&self.root.join(name)).map(|value| value != 0);
        Ok(ModuleState {
            abi_version,
            armed: flag("armed")?,
            enabled: flag("enabled")?,
            draining: flag("draining")?,
        })
    }

    /// Counters of the whole store.
    ///
    /// # Errors
    ///
    /// When a file cannot be read or understood.
    pub fn store(&self) -> Result<PageCounters> {
        page_counters(&self.root.join("stats"))
    }

    /// Entries of the whole store.
    ///
    /// # Errors
    ///
    /// When the file cannot be read or understood.
    pub fn entries(&self) -> Result<u64> {
        read_number(&self.root.join("stats/entries"))
    }

    /// What the store occupies.
    ///
    /// # Errors
    ///
    /// When a file cannot be read or understood.
    pub fn memory(&self) -> Result<Memory> {
        let field =
            |name: &str| read_number(&self.root.join("stats").join(format!("memory_{name}")));
        Ok(Memory {
            pool: field("pool")?,
            handles: field("handles")?,
            table: field("table")?,
            template_pages: field("template_pages")?,
            template_index: field("template_index")?,
            scratch: field("scratch")?,
            objects: field("objects")?,
            total: field("total")?,
        })
    }

    /// Every template, by name.
    ///
    /// # Errors
    ///
    /// When a file cannot be read or understood. One that vanishes meanwhile is left out.
    pub fn templates(&self) -> Result<Vec<Template>> {
        let mut templates = Vec::new();
        for name in subdirectories(&self.root.join("templates"))? {
            let directory = self.root.join("templates").join(&name);
            templates.extend(unless_gone(&directory, template(&directory, name))?);
        }
        templates.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(templates)
    }

    /// Every sandbox, by cgroup id.
    ///
    /// # Errors
    ///
    /// When a file cannot be read or understood. One that vanishes meanwhile is left out.
    pub fn sandboxes(&self) -> Result<Vec<Sandbox>> {
        let mut sandboxes = Vec::new();
        for name in subdirectories(&self.root.join("sandboxes"))? {
            let directory = self.root.join("sandboxes").join(&name);
            let Ok(id) = name.parse() else {
                return Err(Error::parse(directory, "the name is no cgroup id"));
            };
            sandboxes.extend(unless_gone(&directory, sandbox(&directory, id))?);
        }
        sandboxes.sort_by_key(|sandbox| sandbox.cgroup_id);
        Ok(sandboxes)
    }

    /// One sandbox; `None` when the module knows none of that id.
    ///
    /// # Errors
    ///
    /// When a file cannot be read or understood.
    pub fn sandbox(&self, cgroup_id: u64) -> Result<Option<Sandbox>> {
        let directory = self.root.join("sandboxes").join(cgroup_id.to_string());
        unless_gone(&directory, sandbox(&directory, cgroup_id))
    }
}

/// Turns a failure into `None` when the object is not there, not yet or no longer.
fn unless_gone<T>(directory: &Path, read: Result<T>) -> Result<Option<T>> {
    match read {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.errno() == Some(libc::ENODEV) || !directory.exists() => Ok(None),
        Err(error) => Err(error),
    }
}

fn subdirectories(path: &Path) -> Result<Vec<String>> {
    let entries = std::fs::read_dir(path).map_err(Error::io("list", path))?;
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(Error::io("list", path))?;
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    Ok(names)
}

fn read_word(path: PathBuf) -> Result<String> {
    Ok(read_text(&path)?.trim().to_owned())
}

fn template(directory: &Path, name: String) -> Result<Template> {
    let number = |name| read_number(&directory.join(name));
    Ok(Template {
        name,
        domain: read_word(directory.join("domain"))?,
        pages_referenced: number("pages_referenced")?,
        pages_copied: number("pages_copied")?,
        pages_skipped: number("pages_skipped")?,
        users: number("users")?,
        index_bytes: number("index_bytes")?,
        page_bytes: number("page_bytes")?,
    })
}

fn sandbox(directory: &Path, cgroup_id: u64) -> Result<Sandbox> {
    Ok(Sandbox {
        cgroup_id,
        phase: read_word(directory.join("phase"))?,
        template: read_word(directory.join("template"))?,
        group: read_word(directory.join("group"))?,
        domain: read_word(directory.join("domain"))?,
        attached: read_number(&directory.join("attached"))? != 0,
        pages: page_counters(directory)?,
    })
}

fn page_counters(directory: &Path) -> Result<PageCounters> {
    let number = |name: &str| read_number(&directory.join(name));
    let representations = uapi::Representation::ALL
        .into_iter()
        .map(|representation| {
            let name = representation.name();
            Ok(Representation {
                name: name.to_owned(),
                pages: number(&format!("pages_{name}"))?,
                bytes: number(&format!("bytes_{name}"))?,
            })
        })
        .collect::<Result<_>>()?;
    Ok(PageCounters {
        entries: number("entries")?,
        stores: number("stores")?,
        loads: number("loads")?,
        erased: number("erased")?,
        declined_incompressible: number("declined_incompressible")?,
        declined_nomem: number("declined_nomem")?,
        declined_detached: number("declined_detached")?,
        load_errors: number("load_errors")?,
        template_backed: number("template_backed")?,
        encode_ns: number("encode_ns")?,
        decode_ns: number("decode_ns")?,
        representations,
    })
}
