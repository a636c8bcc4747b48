// SPDX-License-Identifier: GPL-2.0

//! Templates: registered from a process or a file, removed, counted.
//!
//! Pages are taken without the control lock, as that may take long and depends on others; the name is
//! looked up before and again under the lock, which is held from there until the template is in its
//! table. Removal takes it too. Look-ups and counts are RCU readers and take no lock.

use kernel::prelude::*;
use kernel::sync::rcu;
use kernel::sync::Arc;

use super::tidy::tidy_sandboxes;
use super::{default_domain, name_or};
use crate::bindings;
use crate::codec::PAGE_SIZE;
use crate::id_table::synchronize_readers;
use crate::state::State;
use crate::sysfs;
use crate::template::{Template, TemplatePages};
use crate::uapi::{self, Name, Signature};

pub(super) fn find_template(state: &State, name: &Name) -> Option<usize> {
    let rcu = rcu::read_lock();
    let mut found = None;
    state.templates.for_each(&rcu, |id, template| {
        if template.name == *name {
            found = Some(id);
        }
    });
    found
}

pub(super) fn count_users(state: &State, template_id: usize) -> u64 {
    let rcu = rcu::read_lock();
    let mut users = 0;
    state.sandboxes.for_each(&rcu, |_, sandbox| {
        users += u64::from(sandbox.group.template_id == template_id);
    });
    users
}

/// Sandboxes, attached or not, that use a template.
pub(crate) fn template_users(state: &State, template_id: usize) -> u64 {
    count_users(state, template_id)
}

/// Registers pages of a process as a template; fills the output fields of `arg`.
///
/// # Errors
///
/// `EEXIST` when the name is taken; see [`TemplatePages::scan`] for the others.
pub(crate) fn template_add(
    state: &State,
    arg: &mut uapi::TemplateAddSigned,
    ranges: &[uapi::Range],
) -> Result {
    let uapi::TemplateAddSigned { add, signature } = arg;
    let pid = add.pid;
    [add.pages_referenced, add.pages_copied, add.pages_skipped] =
        register_template(state, &add.name, &add.domain, *signature, || {
            TemplatePages::scan(pid, ranges)
        })?;
    Ok(())
}

/// Registers pages of a file as a template; fills the output fields of `arg`.
///
/// # Errors
///
/// `EINVAL` for an offset or a length that is not page aligned; `EEXIST` when the name is taken; see
/// [`TemplatePages::read_file`] for the others.
pub(crate) fn template_add_file(state: &State, arg: &mut uapi::TemplateAddFile) -> Result {
    let page = PAGE_SIZE as u64;
    if arg.flags != 0 || arg.offset % page != 0 || arg.length % page != 0 {
        return Err(EINVAL);
    }
    let (fd, offset, length) = (arg.fd, arg.offset, arg.length);
    [arg.pages_referenced, arg.pages_copied, arg.pages_skipped] =
        register_template(state, &arg.name, &arg.domain, arg.signature, || {
            TemplatePages::read_file(fd, offset, length)
        })?;
    Ok(())
}

/// Makes a template of what `take` finds; returns how many pages were referenced, copied, skipped.
fn register_template(
    state: &State,
    name: &Name,
    domain: &Name,
    signature: Signature,
    take: impl FnOnce() -> Result<TemplatePages>,
) -> Result<[u64; 3]> {
    let name = name_or(name, None)?;
    let domain = name_or(domain, Some(&default_domain()?))?;
    if find_template(state, &name).is_some() {
        return Err(EEXIST);
    }
    // It may take long and depends on others, so it comes before the lock.
    let pages = take()?;
    let counts = [pages.referenced(), pages.copied(), pages.skipped];
    let _control = state.control.lock();
    if find_template(state, &name).is_some() {
        return Err(EEXIST);
    }
    let id = state.templates.free_id()?;
    // The directory comes first; until the id is filled its files say ENODEV.
    let node = sysfs::add_template(id, &name)?;
    let template = Template::new(name, domain, signature, pages, node);
    state
        .templates
        .fill(id, Arc::pin_init(template, GFP_KERNEL)?);
    // SAFETY: May be called at any time while the module is loaded.
    unsafe { bindings::agentzip_worker_kick() };
    Ok(counts)
}

/// Removes a template; on `EBUSY`, `arg.users` says how many sandboxes use it.
pub(crate) fn template_remove(state: &State, arg: &mut uapi::TemplateRemove) -> Result {
    let name = name_or(&arg.name, None)?;
    let _control = state.control.lock();
    tidy_sandboxes(state);
    let id = find_template(state, &name).ok_or(ENOENT)?;
    arg.users = count_users(state, id);
    if arg.users != 0 {
        return Err(EBUSY);
    }
    if let Some(template) = state.templates.take(id) {
        synchronize_readers();
        drop(template);
    }
    Ok(())
}
