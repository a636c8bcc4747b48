// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `agentzip template add`: from a process, or from a file.

use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};

use agentzip_uapi::{Range, MAX_RANGES};
use serde::Serialize;

use super::explain::{refused, Refusal};
use super::write_warnings;
use crate::cgroup::Cgroup;
use crate::device::{NewTemplate, Source, TemplatePages};
use crate::error::{Error, Result};
use crate::format::{count, Bytes, Table};
use crate::signature::{self, Binaries};
use crate::{Context, ObjectName, Signature, PAGE_SIZE};

/// What `template add` did.
#[derive(Debug, Serialize)]
pub struct Added {
    /// Name of the template.
    pub name: String,
    /// Its domain.
    pub domain: String,
    /// Where its pages are from.
    #[serde(flatten)]
    pub origin: Origin,
    /// Fingerprint of that, which sandboxes are compared with.
    pub signature: Signature,
    /// Pages kept by reference: they cost nothing while the process or the file holds them.
    pub pages_referenced: u64,
    /// Pages copied.
    pub pages_copied: u64,
    /// Pages left out.
    pub pages_skipped: u64,
    /// What makes the template worse than it could be.
    pub warnings: Vec<String>,
}

/// Where the pages of a template are from.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum Origin {
    /// A process.
    Process {
        /// Its pid.
        pid: i32,
        /// Address ranges taken.
        ranges: usize,
    },
    /// A file.
    File {
        /// Its path.
        file: PathBuf,
        /// First byte taken.
        offset: u64,
        /// Bytes taken; 0: to the end.
        length: u64,
    },
}

impl fmt::Display for Added {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "template {} (domain {}) from ", self.name, self.domain)?;
        let (holder, skipped) = match &self.origin {
            Origin::Process { pid, ranges } => {
                writeln!(f, "process {pid}, {}:", count(*ranges as u64, "range"))?;
                ("process", "absent, swapped out, zero, or of a file")
            }
            Origin::File { file, .. } => {
                writeln!(f, "file {}:", file.display())?;
                ("file", "holes and zeros")
            }
        };
        let mut table = Table::new(&["", ">PAGES", ">SIZE", ""]).indented(2);
        for (what, pages, remark) in [
            (
                "referenced",
                self.pages_referenced,
                format!("cost nothing while the {holder} holds them"),
            ),
            ("copied", self.pages_copied, String::new()),
            ("skipped", self.pages_skipped, skipped.to_owned()),
        ] {
            let size = Bytes(pages * PAGE_SIZE).to_string();
            table.row([what.to_owned(), pages.to_string(), size, remark]);
        }
        write!(f, "{table}")?;
        writeln!(f, "  signature {}", self.signature)?;
        write_warnings(f, &self.warnings)
    }
}

/// What every new template has, whatever it is made of.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Name.
    pub name: &'a ObjectName,
    /// Domain; `default` when `None`.
    pub domain: Option<&'a ObjectName>,
    /// Signature; computed when `None`.
    pub signature: Option<Signature>,
}

impl Request<'_> {
    fn add(
        &self,
        context: &Context,
        object: String,
        source: Source,
        signature: Signature,
    ) -> Result<TemplatePages> {
        let from_file = matches!(source, Source::File { .. });
        let template = NewTemplate {
            source,
            name: self.name.raw(),
            domain: ObjectName::raw_or_default(self.domain),
            signature,
        };
        context.device.template_add(&template).map_err(|failure| {
            let refusal = Refusal {
                operation: "template add",
                object,
            };
            refusal.explain(failure, |errno, _| {
                let advice = match (errno, from_file) {
                    (libc::EEXIST, _) => {
                        return Some(format!(
                            "a template of this name exists; choose another name, or remove it: \
                             agentzip template rm {}",
                            self.name
                        ))
                    }
                    (libc::ESRCH, _) => "there is no such process",
                    (libc::E2BIG, false) => "its memory is larger than a template can be (64 GiB)",
                    (libc::E2BIG, true) => {
                        "it has more than 64 GiB of pages that are not zero; take a part of it \
                         (--offset, --length)"
                    }
                    (libc::ENODATA, false) => "none of its pages can serve as a template",
                    (libc::ENODATA, true) => "there are only holes and zeros",
                    (libc::EINVAL, true) => "it is no regular file that can be read",
                    _ => return None,
                };
                Some(advice.to_owned())
            })
        })
    }

    fn added(
        &self,
        origin: Origin,
        signature: Signature,
        pages: TemplatePages,
        warnings: Vec<String>,
    ) -> Added {
        let domain = self
            .domain
            .map_or(agentzip_uapi::DEFAULT_DOMAIN, ObjectName::as_str);
        Added {
            name: self.name.to_string(),
            domain: domain.to_owned(),
            origin,
            signature,
            pages_referenced: pages.referenced,
            pages_copied: pages.copied,
            pages_skipped: pages.skipped,
            warnings,
        }
    }
}

/// Registers the private memory of a process as a template.
///
/// # Errors
///
/// When the process cannot be inspected, holds nothing, or the module refuses.
pub fn from_process(context: &Context, pid: i32, request: &Request<'_>) -> Result<Added> {
    let object = format!("{} from process {pid}", request.name);
    let maps = context
        .procfs
        .maps(pid)
        .map_err(|error| match error.errno() {
            Some(libc::ENOENT | libc::ESRCH) => refused(
                "template add",
                &object,
                libc::ESRCH,
                "there is no such process",
            ),
            _ => error,
        })?;
    let ranges: Vec<Range> = maps
        .iter()
        .filter(|mapping| mapping.is_template_material())
        .map(|mapping| mapping.range)
        .collect();
    if ranges.is_empty() {
        return Err(Error::invalid(
            format!("process {pid}"),
            "has no private writable memory (a kernel thread, or exiting?)",
        ));
    }
    if ranges.len() > MAX_RANGES as usize {
        let problem = format!(
            "has {} private writable mappings; a template takes at most {MAX_RANGES}",
            ranges.len()
        );
        return Err(Error::invalid(format!("process {pid}"), problem));
    }
    let mut warnings = check_holder(context, pid);
    let signature = request.signature.unwrap_or_else(|| {
        let computed = Binaries::default().signature(&context.procfs, pid);
        computed.unwrap_or_else(|error| {
            warnings.push(format!(
                "{error}: the template gets no signature, and sandboxes are not compared with it"
            ));
            Signature::NONE
        })
    });
    let origin = Origin::Process {
        pid,
        ranges: ranges.len(),
    };
    let source = Source::Process { pid, ranges };
    let pages = request.add(context, object, source, signature)?;
    Ok(request.added(origin, signature, pages, warnings))
}

/// A part of a file.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// The file.
    pub path: &'a Path,
    /// Its first byte.
    pub offset: u64,
    /// Its length in bytes; 0: to the end of the file.
    pub length: u64,
}

/// Registers a part of a file as a template.
///
/// # Errors
///
/// When the file cannot be read, the part is not made of whole pages, or the module refuses.
pub fn from_file(context: &Context, part: &Part<'_>, request: &Request<'_>) -> Result<Added> {
    let Part {
        path,
        offset,
        length,
    } = *part;
    if offset % PAGE_SIZE != 0 || length % PAGE_SIZE != 0 {
        let problem =
            format!("offset {offset} and length {length} must be multiples of {PAGE_SIZE}");
        return Err(Error::invalid(path.display().to_string(), problem));
    }
    let file = File::open(path).map_err(Error::io("open", path))?;
    let signature = match request.signature {
        Some(signature) => signature,
        None => signature::of_file(&file, offset, length).map_err(Error::io("read", path))?,
    };
    let object = format!("{} from file {}", request.name, path.display());
    let origin = Origin::File {
        file: path.to_owned(),
        offset,
        length,
    };
    let source = Source::File {
        file,
        offset,
        length,
    };
    let pages = request.add(context, object, source, signature)?;
    Ok(request.added(origin, signature, pages, Vec::new()))
}

/// What a process that holds template pages should be like.
fn check_holder(context: &Context, pid: i32) -> Vec<String> {
    let mut warnings = Vec::new();
    match context.procfs.state(pid) {
        Ok('T' | 't') => {}
        Ok(state) => warnings.push(format!(
            "process {pid} is not stopped (state {state}): pages that it changes from now on are no longer \
             shared; fork a holder that stops, or: kill -STOP {pid}"
        )),
        Err(error) => warnings.push(error.to_string()),
    }
    let Some(cgroup) = holder_cgroup(context, pid) else {
        return warnings;
    };
    match context.sysfs.sandboxes() {
        Ok(sandboxes)
            if cgroup.ancestors().any(|path| {
                context.cgroups.open(path).is_ok_and(|c| {
                    sandboxes
                        .iter()
                        .any(|s| s.attached && s.cgroup_id == c.id())
                })
            }) =>
        {
            warnings.push(format!(
                "process {pid} lives in the sandbox {}: keep the holder outside",
                cgroup.name()
            ));
        }
        _ => {}
    }
    let limit = cgroup.swap_limit().ok().flatten();
    if limit.is_none_or(|(bytes, _)| bytes > 0) {
        warnings.push(format!(
            "process {pid} can be swapped out; keep it in a cgroup of its own with no swap: \
             echo 0 > {}/memory.swap.max",
            cgroup.path().display()
        ));
    }
    warnings
}

fn holder_cgroup(context: &Context, pid: i32) -> Option<Cgroup> {
    let name = context.procfs.cgroup(pid)?;
    let path = context.cgroups.root().join(name.trim_start_matches('/'));
    context.cgroups.open(&path).ok()
}
