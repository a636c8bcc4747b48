// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The module's files below `/sys/kernel/agentzip`, as typed values. Those of single sandboxes and
//! templates are for root, who may also set bounds; the others anyone may read.

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use agentzip_uapi as uapi;
use serde::Serialize;

use crate::error::{read_number, read_text, write_text, Error, Result};
use crate::limit::Limit;
use crate::name::ObjectName;
use crate::signature::{BadSignature, Signature};

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
    /// Bound on the store's own pages: [`Memory::bounded`].
    pub max_bytes: Limit,
}

/// Entries of one representation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Representation {
    /// Its name.
    pub name: String,
    /// Entries now.
    pub pages: u64,
    /// Their payload bytes in the arenas, rounding to 8 bytes included.
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
    /// Pages declined: a bound was reached.
    pub declined_full: u64,
    /// Pages declined: the sandbox was detached meanwhile.
    pub declined_detached: u64,
    /// Loads that failed a check.
    pub load_errors: u64,
    /// Pages whose index the template has.
    pub template_backed: u64,
    /// Entries that became reference pages since the start.
    pub promoted: u64,
    /// Entries that loads ended since the start, as a bound was near.
    pub dropped: u64,
    /// Entries now that wait for a second look.
    pub provisional: u64,
    /// Entries that had it since the start.
    pub second_look_pages: u64,
    /// Payload bytes that it saved since the start.
    pub second_look_bytes: u64,
    /// Nanoseconds spent in it.
    pub second_look_ns: u64,
    /// Nanoseconds spent in encoding in reclaim.
    pub encode_ns: u64,
    /// Nanoseconds spent in decoding.
    pub decode_ns: u64,
    /// Entries by representation.
    pub representations: Vec<Representation>,
}

impl PageCounters {
    /// Pages declined for any reason.
    pub fn declined(&self) -> u64 {
        self.declined_incompressible
            + self.declined_nomem
            + self.declined_full
            + self.declined_detached
    }

    /// Payload bytes of all entries.
    pub fn payload_bytes(&self) -> u64 {
        self.representations.iter().map(|r| r.bytes).sum()
    }
}

/// What the store occupies, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// Arenas of the sandboxes, holes and rounding included.
    pub arenas: u64,
    /// Reference pages of the groups, with their tables.
    pub references: u64,
    /// Content indexes of groups and templates.
    pub sketches: u64,
    /// Slot table.
    pub table: u64,
    /// Template pages that live only because the module holds them.
    pub template_pages: u64,
    /// Template indexes.
    pub template_index: u64,
    /// Scratch.
    pub scratch: u64,
    /// Sandbox and template objects.
    pub objects: u64,
    /// Dictionaries of the groups, with zstd's tables.
    pub dictionaries: u64,
    /// All of it.
    pub total: u64,
}

impl Memory {
    /// The part that [`ModuleState::max_bytes`] bounds.
    pub fn bounded(&self) -> u64 {
        self.arenas + self.references + self.sketches
    }
}

/// A template.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Template {
    /// Its name.
    pub name: String,
    /// The domain that it belongs to.
    pub domain: String,
    /// What it was made from: `process` or `file`.
    pub source: String,
    /// Fingerprint of that.
    pub signature: Signature,
    /// Pages kept by reference.
    pub pages_referenced: u64,
    /// Pages copied.
    pub pages_copied: u64,
    /// Pages left out when it was made.
    pub pages_skipped: u64,
    /// Pages that its content index has.
    pub pages_indexed: u64,
    /// Sandboxes that use it.
    pub users: u64,
    /// Bytes of its index.
    pub index_bytes: u64,
    /// Bytes of pages that live only because of it.
    pub page_bytes: u64,
    /// Bytes of its content index.
    pub sketch_bytes: u64,
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
    /// Its pages share nothing, and all take the same room.
    pub sensitive: bool,
    /// Bound on `arena_bytes`.
    pub max_bytes: Limit,
    /// Bytes of its arena, which its cgroup is charged for.
    pub arena_bytes: u64,
    /// Reference pages of its group.
    pub group_references: u64,
    /// Bytes of those, with their tables.
    pub group_reference_bytes: u64,
    /// Bytes of the content index of its group.
    pub group_sketch_bytes: u64,
    /// Dictionaries of its group: the current one, and retired ones in use.
    pub group_dictionaries: u64,
    /// Bytes of those, with zstd's tables.
    pub group_dictionary_bytes: u64,
    /// Payloads that need the current one.
    pub group_dictionary_users: u64,
    /// Mean bytes of the first payloads made with the current one; 0 while there are few.
    pub group_dictionary_first: u64,
    /// The same of the last ones.
    pub group_dictionary_recent: u64,
    /// Ranges that say where its memory lies in the template.
    pub ranges: u64,
    /// Its pages.
    pub pages: PageCounters,
}

/// What the module was told about a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
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
    /// Its pages share nothing.
    pub sensitive: bool,
}

impl Sandbox {
    /// Its group as it is shown: that of a sensitive one is nobody else's, and has no name of its own.
    pub fn group_name(&self) -> String {
        match self.sensitive {
            true => "(sensitive)".to_owned(),
            false => self.group.clone(),
        }
    }
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
            max_bytes: read_limit(&self.root.join("max_bytes"))?,
        })
    }

    /// SHA-256 of the BTF of the kernel that the module was built for, in hexadecimal digits; `None` when
    /// its build did not know it. An older module does not say either.
    ///
    /// # Errors
    ///
    /// When the file cannot be read or understood.
    pub fn kernel_btf(&self) -> Result<Option<String>> {
        let path = self.root.join("kernel_btf");
        let text = match read_text(&path) {
            Err(Error::Io { cause, .. }) if cause.kind() == ErrorKind::NotFound => return Ok(None),
            read => read?,
        };
        match text.trim() {
            "none" => Ok(None),
            word if word.len() == 64 && word.bytes().all(|b| b.is_ascii_hexdigit()) => {
                Ok(Some(word.to_ascii_lowercase()))
            }
            word => Err(Error::parse(
                &path,
                format!("expected 64 hexadecimal digits or \"none\", found {word:?}"),
            )),
        }
    }

    /// Bounds the store's own pages, or ends the bound.
    ///
    /// # Errors
    ///
    /// When the file cannot be written.
    pub fn set_store_limit(&self, limit: Limit) -> Result<()> {
        write_text(&self.root.join("max_bytes"), &limit.to_file())
    }

    /// The same for the arena of a sandbox.
    ///
    /// # Errors
    ///
    /// When the file cannot be written.
    pub fn set_sandbox_limit(&self, cgroup_id: u64, limit: Limit) -> Result<()> {
        let file = format!("sandboxes/{cgroup_id}/max_bytes");
        write_text(&self.root.join(file), &limit.to_file())
    }

    /// The module is loaded.
    pub fn is_there(&self) -> bool {
        self.root.join("abi_version").exists()
    }

    /// Tells the module what the agent in a sandbox does.
    ///
    /// # Errors
    ///
    /// When there is no such sandbox (`ENOENT`), or the caller may not write its file.
    pub fn set_phase(&self, cgroup_id: u64, phase: uapi::Phase) -> Result<()> {
        let file = format!("sandboxes/{cgroup_id}/phase");
        write_text(&self.root.join(file), phase.name())
    }

    /// Sets zstd's level of the second looks at a sandbox's pages: 3 or 6.
    ///
    /// # Errors
    ///
    /// When the file cannot be written.
    pub fn set_level(&self, cgroup_id: u64, level: u32) -> Result<()> {
        let file = format!("sandboxes/{cgroup_id}/level");
        write_text(&self.root.join(file), &level.to_string())
    }

    /// CPU time that restore workers took for a sandbox since it was attached, in nanoseconds.
    ///
    /// # Errors
    ///
    /// When the file cannot be read or understood; an older module has none.
    pub fn prefetch_ns(&self, cgroup_id: u64) -> Result<u64> {
        let file = format!("sandboxes/{cgroup_id}/prefetch_ns");
        read_number(&self.root.join(file))
    }

    /// What the second look may take, in percent of one processor.
    ///
    /// # Errors
    ///
    /// When the file cannot be read or understood.
    pub fn second_look_percent(&self) -> Result<u64> {
        read_number(&self.root.join("second_look_percent"))
    }

    /// Sets that: 1 to 100.
    ///
    /// # Errors
    ///
    /// When the file cannot be written.
    pub fn set_second_look_percent(&self, percent: u32) -> Result<()> {
        let path = self.root.join("second_look_percent");
        write_text(&path, &percent.clamp(1, 100).to_string())
    }

    /// Sets how far a page may be from the one that it is encoded against, in percent of a page.
    ///
    /// # Errors
    ///
    /// When the file cannot be written.
    pub fn set_max_distance(&self, percent: u32) -> Result<()> {
        write_text(
            &self.root.join("max_distance"),
            &percent.min(100).to_string(),
        )
    }

    /// Ids of the sandboxes that the module has, detached ones included.
    ///
    /// # Errors
    ///
    /// When the directory cannot be read.
    pub fn sandbox_ids(&self) -> Result<Vec<u64>> {
        let names = subdirectories(&self.root.join("sandboxes"))?;
        Ok(names.iter().filter_map(|name| name.parse().ok()).collect())
    }

    /// What the module was told about a sandbox, without its counters; `None` when it knows none of
    /// that id.
    ///
    /// # Errors
    ///
    /// When a file cannot be read or understood.
    pub fn told(&self, cgroup_id: u64) -> Result<Option<Told>> {
        let directory = self.root.join("sandboxes").join(cgroup_id.to_string());
        let read = || {
            Ok(Told {
                phase: read_word(directory.join("phase"))?,
                template: read_word(directory.join("template"))?,
                group: read_word(directory.join("group"))?,
                domain: read_word(directory.join("domain"))?,
                attached: read_number(&directory.join("attached"))? != 0,
                sensitive: read_number_if_there(&directory.join("sensitive"))? != 0,
            })
        };
        unless_gone(&directory, read())
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
            arenas: field("arenas")?,
            references: field("references")?,
            sketches: field("sketches")?,
            table: field("table")?,
            template_pages: field("template_pages")?,
            template_index: field("template_index")?,
            scratch: field("scratch")?,
            objects: field("objects")?,
            dictionaries: field("dictionaries")?,
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

    /// One template; `None` when the module knows none of that name.
    ///
    /// # Errors
    ///
    /// When a file cannot be read or understood.
    pub fn template(&self, name: &str) -> Result<Option<Template>> {
        let directory = self.root.join("templates").join(name);
        unless_gone(&directory, template(&directory, name.to_owned()))
    }

    /// What tells a template from another one that has its name before or after it: the number of its
    /// directory. `None`: there is no such template.
    pub fn template_instance(&self, name: &ObjectName) -> Option<u64> {
        let path = self.root.join("templates").join(name.as_str());
        Some(std::fs::metadata(path).ok()?.ino())
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

/// Reads a number that modules before version 5 of the interface do not show: 0 then.
fn read_number_if_there(path: &Path) -> Result<u64> {
    match read_number(path) {
        Err(Error::Io { cause, .. }) if cause.kind() == ErrorKind::NotFound => Ok(0),
        read => read,
    }
}

fn read_limit(path: &Path) -> Result<Limit> {
    let text = read_text(path)?;
    text.trim().parse().map_err(|_| {
        let found = text.trim();
        Error::parse(
            path,
            format!("expected a number or \"max\", found {found:?}"),
        )
    })
}

fn read_signature(path: PathBuf) -> Result<Signature> {
    let text = read_text(&path)?;
    text.trim()
        .parse()
        .map_err(|problem: BadSignature| Error::parse(&path, problem.to_string()))
}

fn template(directory: &Path, name: String) -> Result<Template> {
    let number = |name| read_number(&directory.join(name));
    Ok(Template {
        name,
        domain: read_word(directory.join("domain"))?,
        source: read_word(directory.join("source"))?,
        signature: read_signature(directory.join("signature"))?,
        pages_referenced: number("pages_referenced")?,
        pages_copied: number("pages_copied")?,
        pages_skipped: number("pages_skipped")?,
        pages_indexed: number("pages_indexed")?,
        users: number("users")?,
        index_bytes: number("index_bytes")?,
        page_bytes: number("page_bytes")?,
        sketch_bytes: number("sketch_bytes")?,
    })
}

fn sandbox(directory: &Path, cgroup_id: u64) -> Result<Sandbox> {
    let number = |name| read_number(&directory.join(name));
    Ok(Sandbox {
        cgroup_id,
        phase: read_word(directory.join("phase"))?,
        template: read_word(directory.join("template"))?,
        group: read_word(directory.join("group"))?,
        domain: read_word(directory.join("domain"))?,
        attached: number("attached")? != 0,
        sensitive: read_number_if_there(&directory.join("sensitive"))? != 0,
        max_bytes: read_limit(&directory.join("max_bytes"))?,
        arena_bytes: number("arena_bytes")?,
        group_references: number("group_references")?,
        group_reference_bytes: number("group_reference_bytes")?,
        group_sketch_bytes: number("group_sketch_bytes")?,
        group_dictionaries: number("group_dictionaries")?,
        group_dictionary_bytes: number("group_dictionary_bytes")?,
        group_dictionary_users: number("group_dictionary_users")?,
        group_dictionary_first: number("group_dictionary_first")?,
        group_dictionary_recent: number("group_dictionary_recent")?,
        ranges: number("ranges")?,
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
                pages: read_number_if_there(&directory.join(format!("pages_{name}")))?,
                bytes: read_number_if_there(&directory.join(format!("bytes_{name}")))?,
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
        declined_full: number("declined_full")?,
        declined_detached: number("declined_detached")?,
        load_errors: number("load_errors")?,
        template_backed: number("template_backed")?,
        promoted: number("promoted")?,
        dropped: number("dropped")?,
        encode_ns: number("encode_ns")?,
        decode_ns: number("decode_ns")?,
        provisional: number("provisional")?,
        second_look_pages: number("second_look_pages")?,
        second_look_bytes: number("second_look_bytes")?,
        second_look_ns: number("second_look_ns")?,
        representations,
    })
}
