// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `agentzip sandbox attach`, `list` and `detach`.

use std::fmt;
use std::path::Path;

use agentzip_uapi::DEFAULT_DOMAIN;
use serde::Serialize;

use super::explain::{known_templates, Refusal};
use super::{limit, ranges, sandbox_name, select, write_warnings};
use crate::cgroup::{Cgroup, Selector};
use crate::device::NewSandbox;
use crate::error::{Error, Result};
use crate::format::{count, Bytes, Table};
use crate::signature::Binaries;
use crate::sysfs::Sandbox;
use crate::{Context, Limit, ObjectName, Signature, PAGE_SIZE};

/// What `sandbox attach` did.
#[derive(Debug, Serialize)]
pub struct Attached {
    /// Path of the cgroup in the hierarchy.
    pub cgroup: String,
    /// Its id.
    pub cgroup_id: u64,
    /// Its template.
    pub template: String,
    /// The signature that was compared with the template's.
    pub signature: Signature,
    /// Ranges that were given.
    pub ranges: usize,
    /// What stands in the way of a saving.
    pub warnings: Vec<String>,
}

impl fmt::Display for Attached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Attached {
            cgroup,
            cgroup_id,
            template,
            ..
        } = self;
        writeln!(
            f,
            "sandbox {cgroup} (id {cgroup_id}) attached, template {template}"
        )?;
        write_warnings(f, &self.warnings)
    }
}

/// What `sandbox attach` is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The cgroup.
    pub cgroup: &'a Path,
    /// The template that it was cloned from.
    pub template: &'a ObjectName,
    /// Its group; of the template's name when `None`.
    pub group: Option<&'a ObjectName>,
    /// Its domain; `default` when `None`.
    pub domain: Option<&'a ObjectName>,
    /// Its pages share nothing with others and all take the same room; without a group.
    pub sensitive: bool,
    /// Bound on the arena; as it was, at first none, when `None`.
    pub max_bytes: Option<Limit>,
    /// Signature of what it was cloned from; when `None`, that of one of its processes.
    pub signature: Option<Signature>,
    /// Where its memory lies in the template; when empty, the module keeps what it has.
    pub ranges: ranges::Request<'a>,
}

/// Makes a cgroup a sandbox.
///
/// # Errors
///
/// When it is no cgroup, or the module refuses. When only the bound could not be set it is attached
/// all the same.
pub fn attach(context: &Context, request: &Request<'_>) -> Result<Attached> {
    let cgroup = context.cgroups.open(request.cgroup)?;
    if request.sensitive && request.group.is_some() {
        let problem = "a sensitive sandbox is in no group; name none";
        return Err(Error::invalid(
            format!("sandbox attach {}", cgroup.name()),
            problem,
        ));
    }
    let directory = cgroup.open()?;
    let ranges = request.ranges.resolve(context, &cgroup)?;
    let mut warnings = swap_warnings(context, &cgroup);
    let signature = request
        .signature
        .unwrap_or_else(|| own_signature(context, &cgroup, request.template, &mut warnings));
    let sandbox = NewSandbox {
        template: request.template.raw(),
        group: ObjectName::raw_or_default(request.group),
        domain: ObjectName::raw_or_default(request.domain),
        signature,
        sensitive: request.sensitive,
    };
    let attached = context.device.sandbox_attach(&directory, &sandbox);
    let cgroup_id = attached.map_err(|failure| {
        let refusal = Refusal {
            operation: "sandbox attach",
            object: cgroup.name(),
        };
        refusal.explain(failure, |errno, _| match errno {
            libc::EBADF => Some(format!(
                "{} is not a directory of cgroup v2, which is mounted at {}",
                cgroup.path().display(),
                context.cgroups.root().display()
            )),
            libc::ENOENT => Some(format!(
                "no template {}; {}",
                request.template,
                known_templates(context)
            )),
            libc::EPERM => Some(other_domain(context, request)),
            libc::EKEYREJECTED => Some(other_origin(context, request.template, signature)),
            libc::EEXIST => Some(already_attached(context, &cgroup)),
            libc::EOPNOTSUPP => Some(format!(
                "the memory controller is not on there; try: echo +memory > {}/cgroup.subtree_control",
                cgroup.path().parent().unwrap_or(cgroup.path()).display()
            )),
            libc::EBUSY => Some(
                "it still has entries from an attachment with another template, group or domain, or of \
                 which only one is sensitive; bring them back first: agentzip drain, or end its processes"
                    .to_owned(),
            ),
            libc::ENOSPC => {
                Some("the module holds as many sandboxes as it can; detach some".to_owned())
            }
            _ => None,
        })
    })?;
    if let Some(limit) = request.max_bytes {
        let set = context.sysfs.set_sandbox_limit(cgroup_id, limit);
        set.map_err(|error| {
            let advice = "it is attached, without the bound; see: agentzip sandbox limit";
            limit::explain("sandbox attach", &cgroup.name(), error, Some(advice))
        })?;
    }
    if !request.ranges.is_empty() {
        if let Err(error) = ranges::tell(context, cgroup_id, &cgroup.name(), &ranges) {
            // All or nothing. When this fails too, the sandbox is listed, and the error says enough.
            let _ = context.device.sandbox_detach(cgroup_id);
            return Err(error);
        }
    }
    Ok(Attached {
        cgroup: cgroup.name(),
        cgroup_id,
        template: request.template.to_string(),
        signature,
        ranges: ranges.len(),
        warnings,
    })
}

/// Processes of a cgroup that are looked at for a signature: there may be any number, with any number of
/// mappings each, and others wait.
const MOST_PROCESSES: usize = 64;

/// The signature of a process in the cgroup: of one that is like the template's, if there is any. None
/// when there is nothing to compare: the template is from a file or has no signature, or there is no
/// process.
fn own_signature(
    context: &Context,
    cgroup: &Cgroup,
    template: &ObjectName,
    warnings: &mut Vec<String>,
) -> Signature {
    let wanted = match context.sysfs.template(template.as_str()) {
        Ok(Some(template)) if template.source == "process" => template.signature,
        _ => Signature::NONE,
    };
    if wanted.is_none() {
        return Signature::NONE;
    }
    let (processes, _) = cgroup.processes().unwrap_or_default();
    let mut binaries = Binaries::default();
    let mut first = None;
    let mut problem = None;
    for pid in processes.into_iter().take(MOST_PROCESSES) {
        match binaries.signature(&context.procfs, pid) {
            Ok(signature) if signature == wanted => return signature,
            Ok(signature) => first = first.or(Some(signature)),
            Err(error) => problem = Some(error),
        }
    }
    if let (None, Some(problem)) = (first, problem) {
        warnings.push(format!("{problem}: the signature was not compared"));
    }
    first.unwrap_or(Signature::NONE)
}

fn other_origin(context: &Context, template: &ObjectName, signature: Signature) -> String {
    let known = context.sysfs.template(template.as_str()).ok().flatten();
    let wanted = known.map_or(Signature::NONE, |template| template.signature);
    format!(
        "it has signature {signature}, template {template} has {wanted}: it was not cloned from what \
         the template was made of; name the right template. A sandbox that only loaded more libraries \
         since its fork has the template's: --signature {wanted}"
    )
}

fn other_domain(context: &Context, request: &Request<'_>) -> String {
    let wanted = request.domain.map_or(DEFAULT_DOMAIN, ObjectName::as_str);
    let templates = context.sysfs.templates().unwrap_or_default();
    let template = templates
        .iter()
        .find(|t| t.name == request.template.as_str());
    match template {
        Some(template) => format!(
            "template {} belongs to domain {}, not {wanted}; nothing is shared across domains \
             (--domain names the sandbox's)",
            template.name, template.domain
        ),
        None => format!(
            "template {} belongs to another domain than {wanted}",
            request.template
        ),
    }
}

fn already_attached(context: &Context, cgroup: &Cgroup) -> String {
    let sandboxes = context.sysfs.sandboxes().unwrap_or_default();
    let is_sandbox = |id: u64| sandboxes.iter().any(|s| s.cgroup_id == id && s.attached);
    if is_sandbox(cgroup.id()) {
        return "it is a sandbox already; detach it first: agentzip sandbox detach".to_owned();
    }
    let above = cgroup
        .ancestors()
        .filter_map(|path| context.cgroups.open(path).ok());
    let below = cgroup.subtree();
    match above.chain(below).find(|other| is_sandbox(other.id())) {
        Some(other) => format!(
            "sandboxes do not nest, and {} is one; detach that first",
            other.name()
        ),
        None => {
            "it, or a cgroup above or below it, is a sandbox already; see: agentzip sandbox list"
                .to_owned()
        }
    }
}

/// Why reclaim could not take this cgroup's pages.
pub(super) fn swap_warnings(context: &Context, cgroup: &Cgroup) -> Vec<String> {
    let mut warnings = Vec::new();
    if let Ok(Some((0, file))) = cgroup.swap_limit() {
        warnings.push(format!(
            "this sandbox may not swap, so nothing can be saved; fix: echo max > {}",
            file.display()
        ));
    }
    if context
        .procfs
        .swaps()
        .is_ok_and(|devices| devices.is_empty())
    {
        warnings.push("no swap is in use: nothing can be reclaimed; fix: swapon DEVICE".to_owned());
    }
    warnings
}

/// A sandbox as `list` and `status` show it.
#[derive(Debug, Serialize)]
pub struct Listed {
    /// Path of its cgroup in the hierarchy; `None` when the directory is gone.
    pub cgroup: Option<String>,
    /// What the module says.
    #[serde(flatten)]
    pub sandbox: Sandbox,
}

impl Listed {
    /// How commands name it: the path of its cgroup, or `id:412` when that is gone.
    pub(super) fn name(&self) -> String {
        match &self.cgroup {
            Some(cgroup) => cgroup.clone(),
            None => format!("id:{}", self.sandbox.cgroup_id),
        }
    }
}

/// What `sandbox list` shows.
#[derive(Debug, Default, Serialize)]
#[serde(transparent)]
pub struct List(pub Vec<Listed>);

impl fmt::Display for List {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return writeln!(f, "no sandboxes");
        }
        let mut table = Table::new(&[
            ">ID",
            "CGROUP",
            "PHASE",
            "TEMPLATE",
            "GROUP",
            "DOMAIN",
            ">ENTRIES",
            ">WAS",
            ">PAYLOAD",
            ">B/PAGE",
            ">ARENA",
            ">MAX",
            ">LOADS",
            ">DECLINED",
            ">ERRORS",
        ]);
        for Listed { cgroup, sandbox } in &self.0 {
            let pages = &sandbox.pages;
            let phase = if sandbox.attached {
                sandbox.phase.clone()
            } else {
                "detached".to_owned()
            };
            table.row([
                sandbox.cgroup_id.to_string(),
                cgroup.clone().unwrap_or_else(|| "(gone)".to_owned()),
                phase,
                sandbox.template.clone(),
                sandbox.group_name(),
                sandbox.domain.clone(),
                pages.entries.to_string(),
                Bytes(pages.entries * PAGE_SIZE).to_string(),
                Bytes(pages.payload_bytes()).to_string(),
                bytes_per_page(pages.payload_bytes(), pages.entries),
                Bytes(sandbox.arena_bytes).to_string(),
                sandbox.max_bytes.to_string(),
                pages.loads.to_string(),
                pages.declined().to_string(),
                pages.load_errors.to_string(),
            ]);
        }
        table.fmt(f)
    }
}

/// Bytes a page, or a dash.
pub(super) fn bytes_per_page(bytes: u64, pages: u64) -> String {
    if pages == 0 {
        return "-".to_owned();
    }
    format!("{:.1}", bytes as f64 / pages as f64)
}

/// Lists the sandboxes.
///
/// # Errors
///
/// When the module is not loaded or its files cannot be read.
pub fn list(context: &Context) -> Result<List> {
    context.sysfs.module()?;
    let sandboxes = context.sysfs.sandboxes()?;
    // Without a cgroup tree the ids remain.
    let cgroups = match sandboxes.is_empty() {
        true => Default::default(),
        false => context.cgroups.by_id().unwrap_or_default(),
    };
    let listed = sandboxes.into_iter().map(|sandbox| Listed {
        cgroup: cgroups.get(&sandbox.cgroup_id).map(Cgroup::name),
        sandbox,
    });
    Ok(List(listed.collect()))
}

/// What `sandbox detach` did.
#[derive(Debug, Serialize)]
pub struct Detached {
    /// The sandbox, for people.
    #[serde(skip)]
    name: String,
    /// Its id.
    pub cgroup_id: u64,
    /// Entries that it still has.
    pub entries: u64,
}

impl fmt::Display for Detached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sandbox {} detached", self.name)?;
        match self.entries {
            0 => writeln!(f, "; no entries left"),
            entries => writeln!(
                f,
                "; {} stay loadable until their slots are freed",
                count(entries, "entry")
            ),
        }
    }
}

/// Ends new stores of a sandbox.
///
/// # Errors
///
/// When it is no sandbox.
pub fn detach(context: &Context, selector: &Selector) -> Result<Detached> {
    let (cgroup_id, cgroup) = select(context, selector)?;
    let name = sandbox_name(cgroup_id, cgroup.as_ref());
    let entries = context
        .device
        .sandbox_detach(cgroup_id)
        .map_err(|failure| {
            let refusal = Refusal {
                operation: "sandbox detach",
                object: name.clone(),
            };
            refusal.explain(failure, |errno, _| not_attached(context, errno, cgroup_id))
        })?;
    Ok(Detached {
        name,
        cgroup_id,
        entries,
    })
}

/// What `ENOENT` means for a command on a sandbox.
pub(super) fn not_attached(context: &Context, errno: i32, cgroup_id: u64) -> Option<String> {
    if errno != libc::ENOENT {
        return None;
    }
    let known = context.sysfs.sandbox(cgroup_id).ok().flatten();
    Some(match known {
        Some(sandbox) if !sandbox.attached => format!(
            "it was detached before and only holds {} until their slots are freed",
            count(sandbox.pages.entries, "entry")
        ),
        _ => "not a sandbox; see: agentzip sandbox list".to_owned(),
    })
}
