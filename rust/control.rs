// SPDX-License-Identifier: GPL-2.0

//! What user space can do: arm and disarm, templates, sandboxes, phases, dictionaries, drain,
//! statistics.
//!
//! Every function takes the control lock, changes everything or nothing, and may sleep.

use kernel::prelude::*;
use kernel::sync::atomic::{Acquire, Atomic, Release};
use kernel::sync::rcu;
use kernel::sync::Arc;
use kernel::uaccess::UserSliceWriter;

use crate::bindings;
use crate::codec::PAGE_SIZE;
use crate::compaction;
use crate::dictionary::Dictionary;
use crate::domain::Domain;
use crate::group::Group;
use crate::id_table::synchronize_readers;
use crate::pages;
use crate::process::Process;
use crate::ranges::Ranges;
use crate::recorder::{EventFd, Ring};
use crate::restore;
use crate::samples;
use crate::sandbox::Sandbox;
use crate::second_look;
use crate::state::State;
use crate::store_policy::Owner;
use crate::sysfs;
use crate::template::{Template, TemplatePages};
use crate::uapi::{self, Name, Phase, Signature};

/// Deepest cgroup that can be attached, in levels below the root.
const MAX_DEPTH: usize = 64;

fn set(flag: &Atomic<u32>, on: bool) {
    flag.store(on.into(), Release);
}

/// Installs the hooks and pins the module. Ends draining.
///
/// # Errors
///
/// `EALREADY` when armed; `EOPNOTSUPP` while zswap was never set up since boot (hooks.c); `EBUSY` and others from
/// ftrace.
pub(crate) fn arm(state: &State) -> Result {
    let mut control = state.control.lock();
    if control.stuck {
        return Err(EBUSY);
    }
    if state.armed.load(Acquire) != 0 {
        set(&state.draining, false);
        return Err(EALREADY);
    }
    // SAFETY: May sleep, as we may.
    let result = kernel::error::to_result(unsafe { bindings::agentzip_hooks_arm() });
    if result == Err(ENOTRECOVERABLE) {
        control.stuck = true;
    }
    result?;
    set(&state.draining, false);
    set(&state.armed, true);
    pr_info!("armed\n");
    Ok(())
}

/// Removes the hooks and unpins the module.
///
/// # Errors
///
/// `EBUSY` while entries exist; `EALREADY` when not armed. When a hook cannot be removed the module
/// stays pinned for ever.
pub(crate) fn disarm(state: &State) -> Result {
    let mut control = state.control.lock();
    if state.armed.load(Acquire) == 0 {
        return Err(EALREADY);
    }
    if control.stuck {
        return Err(EBUSY);
    }
    // No store may add an entry between the check and the removal of the hooks.
    let was_draining = state.draining.load(Acquire) != 0;
    set(&state.draining, true);
    synchronize_readers();
    if !state.table.is_empty() {
        set(&state.draining, was_draining);
        return Err(EBUSY);
    }
    // SAFETY: May sleep, as we may.
    let result = kernel::error::to_result(unsafe { bindings::agentzip_hooks_disarm() });
    if let Err(error) = result {
        control.stuck = true;
        pr_err!("disarm: a hook cannot be removed; the module stays loaded until reboot\n");
        return Err(error);
    }
    set(&state.armed, false);
    set(&state.draining, was_draining);
    pr_info!("disarmed\n");
    Ok(())
}

/// Stops new stores, waits for those under way and returns the number of entries left.
pub(crate) fn drain(state: &State) -> u64 {
    let _control = state.control.lock();
    set(&state.draining, true);
    // Handlers that saw the former state are RCU readers, the stores they began are in flight.
    synchronize_readers();
    state.table.entries()
}

/// The name, or `instead` when all its bytes are zero. `EINVAL` for an illegal one.
fn name_or(name: &Name, instead: Option<&Name>) -> Result<Name> {
    if let (true, Some(instead)) = (name.iter().all(|&b| b == 0), instead) {
        return Ok(*instead);
    }
    uapi::name_as_str(name).ok_or(EINVAL)?;
    Ok(*name)
}

fn default_domain() -> Result<Name> {
    uapi::name_from_str(uapi::DEFAULT_DOMAIN).ok_or(EINVAL)
}

fn find_template(state: &State, name: &Name) -> Option<usize> {
    let rcu = rcu::read_lock();
    let mut found = None;
    state.templates.for_each(&rcu, |id, template| {
        if template.name == *name {
            found = Some(id);
        }
    });
    found
}

fn count_users(state: &State, template_id: usize) -> u64 {
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

/// Makes a cgroup a sandbox; fills `arg.attach.cgroup_id`.
///
/// # Errors
///
/// `EINVAL` for an illegal name or flag, and for a group of a sensitive sandbox; `EBADF` and others of the descriptor; `EOPNOTSUPP` for the root and
/// for a cgroup without the memory controller; `E2BIG` for one deeper than [`MAX_DEPTH`]; `ENOENT`
/// for an unknown template; `EPERM` when the template belongs to another domain; `EKEYREJECTED` when
/// both have a signature and the two differ; `EEXIST` when the cgroup, one above or one below it is
/// attached already; `EBUSY` when entries remain from an attachment with another template or group, or
/// of which only one was sensitive;
/// `ENOSPC` when there are too many sandboxes.
pub(crate) fn sandbox_attach(state: &State, arg: &mut uapi::SandboxAttachSigned) -> Result {
    const NONE: Signature = [0; uapi::SIGNATURE_LEN];
    const NO_GROUP: Name = [0; uapi::NAME_LEN];
    let uapi::SandboxAttachSigned {
        attach: arg,
        signature,
    } = arg;
    let template_name = name_or(&arg.template, None)?;
    let sensitive = match arg.flags {
        0 => false,
        uapi::SANDBOX_SENSITIVE if arg.group == NO_GROUP => true,
        _ => return Err(EINVAL),
    };
    let group = name_or(&arg.group, Some(&template_name))?;
    let domain = name_or(&arg.domain, Some(&default_domain()?))?;

    let mut ids = KVec::from_elem(0u64, MAX_DEPTH, GFP_KERNEL)?;
    // SAFETY: The array has room for what is asked.
    let count = unsafe {
        bindings::agentzip_cgroup_ids(arg.cgroup_fd, ids.as_mut_ptr(), MAX_DEPTH as c_int)
    };
    kernel::error::to_result(count.min(0))?;
    ids.truncate(count as usize);
    let (&cgroup_id, ancestors) = ids.split_first().ok_or(EBADF)?;

    let _control = state.control.lock();
    tidy_sandboxes(state);
    let template_id = find_template(state, &template_name).ok_or(ENOENT)?;
    let mut former = None;
    {
        let rcu = rcu::read_lock();
        let template = state.templates.get(template_id, &rcu).ok_or(ENOENT)?;
        if template.domain != domain {
            return Err(EPERM);
        }
        let known = *signature != NONE && template.signature != NONE;
        if known && template.signature != *signature {
            return Err(EKEYREJECTED);
        }
        if ids.iter().any(|&id| state.registry.get(id, &rcu).is_some()) {
            return Err(EEXIST);
        }
        let mut below = false;
        state.sandboxes.for_each(&rcu, |id, sandbox| {
            below |= sandbox.is_attached() && sandbox.ancestors.contains(&cgroup_id);
            if sandbox.cgroup_id == cgroup_id {
                let old = &sandbox.group;
                let same = old.template_id == template_id && old.name == group;
                former = Some((id, same && old.private == sensitive));
            }
        });
        if below {
            return Err(EEXIST);
        }
    }
    let id = match former {
        // Detached, with entries: it comes back to life.
        Some((id, true)) => id,
        Some((_, false)) => return Err(EBUSY),
        None => {
            let place = (template_id, group, domain);
            add_sandbox(state, cgroup_id, ancestors, place, sensitive)?
        }
    };
    let owner = Owner::new(id as u16).ok_or(ENOSPC)?;
    let result = state.registry.insert(cgroup_id, owner);
    {
        let rcu = rcu::read_lock();
        if let Some(sandbox) = state.sandboxes.get(id, &rcu) {
            sandbox.set_attached(result.is_ok());
        }
    }
    arg.cgroup_id = cgroup_id;
    // A sandbox that was not registered after all is reaped like a detached one.
    // SAFETY: May be called at any time while the module is loaded.
    unsafe { bindings::agentzip_worker_kick() };
    result
}

/// Reference pages of all groups may take one part in this many of what the store may.
const REFERENCE_SHARE: u64 = 2;

/// Divides what reference pages may take: equally between the domains that have groups, and between
/// the groups of a domain. Reference pages are charged to nobody, so that nobody should be able to
/// take them all. The caller holds the control lock.
fn share_out(state: &State) {
    let bytes = state.max_bytes.get() / REFERENCE_SHARE;
    let rcu = rcu::read_lock();
    for_each_group(state, &rcu, |group| group.domain.begin_count());
    let mut domains: u64 = 0;
    for_each_group(state, &rcu, |group| {
        domains += u64::from(group.domain.count_group());
    });
    for_each_group(state, &rcu, |group| {
        group.set_budget(bytes / domains.max(1) / group.domain.groups().max(1));
    });
}

/// Calls `f` with every group that can have reference pages.
fn for_each_group(state: &State, rcu: &rcu::Guard, mut f: impl FnMut(&Group)) {
    state.sandboxes.for_each(rcu, |id, sandbox| {
        if sandbox.group.is_represented_by(id) && !sandbox.group.private {
            f(&sandbox.group);
        }
    });
}

/// Lets another sandbox stand for the group of one that is gone, if there is one. The caller holds the
/// control lock.
fn pass_on_group(state: &State, gone: usize, group: &Group) {
    if !group.is_represented_by(gone) {
        return;
    }
    let rcu = rcu::read_lock();
    state.sandboxes.for_each(&rcu, |id, sandbox| {
        if core::ptr::eq(&*sandbox.group, group) {
            group.represent_by(id);
        }
    });
}

/// Makes the object of a sandbox that is not registered yet; returns its id.
fn add_sandbox(
    state: &State,
    cgroup_id: u64,
    ancestors: &[u64],
    (template_id, name, domain): (usize, Name, Name),
    sensitive: bool,
) -> Result<usize> {
    let mut ancestor_ids = KVec::with_capacity(ancestors.len(), GFP_KERNEL)?;
    ancestor_ids.extend_from_slice(ancestors, GFP_KERNEL)?;
    let id = state.sandboxes.free_id()?;
    let template = state.templates.share(template_id).ok_or(ENOENT)?;
    let group = share_group(state, id, name, domain, template_id, sensitive)?;
    let node = sysfs::add_sandbox(id, cgroup_id)?;
    let sandbox = Arc::pin_init(
        Sandbox::new(cgroup_id, ancestor_ids, template, group, node),
        GFP_KERNEL,
    )?;
    state.sandboxes.fill(id, sandbox);
    share_out(state);
    Ok(id)
}

/// The group of this name, domain and template; a new one, which the sandbox with this id will stand
/// for, when no sandbox is in it yet. A private one is always new, and nobody else gets it.
fn share_group(
    state: &State,
    id: usize,
    name: Name,
    domain: Name,
    template_id: usize,
    private: bool,
) -> Result<Arc<Group>> {
    let mut known = None;
    for other in 0..state.sandboxes.capacity() {
        let Some(sandbox) = state.sandboxes.share(other) else {
            continue;
        };
        let group = &sandbox.group;
        if group.domain.name != domain {
            continue;
        }
        let open = !private && !group.private;
        if open && group.name == name && group.template_id == template_id {
            return Ok(group.clone());
        }
        if known.is_none() {
            known = Some(group.domain.clone());
        }
    }
    let domain = match known {
        Some(domain) => domain,
        None => Domain::new(domain)?,
    };
    // Its share is found when it is in the table.
    Arc::pin_init(
        Group::new(name, domain, template_id, id, private),
        GFP_KERNEL,
    )
}

/// Calls `f` with the sandbox of a cgroup, attached or not.
pub(crate) fn with_sandbox<R>(
    state: &State,
    cgroup_id: u64,
    f: impl FnOnce(&Sandbox) -> R,
) -> Result<R> {
    let rcu = rcu::read_lock();
    let mut found = None;
    state.sandboxes.for_each(&rcu, |id, sandbox| {
        if sandbox.cgroup_id == cgroup_id {
            found = Some(id);
        }
    });
    let sandbox = found
        .and_then(|id| state.sandboxes.get(id, &rcu))
        .ok_or(ENOENT)?;
    Ok(f(sandbox))
}

/// Stops new stores of a sandbox; its entries stay loadable. Fills `arg.entries`.
pub(crate) fn sandbox_detach(state: &State, arg: &mut uapi::SandboxDetach) -> Result {
    let _control = state.control.lock();
    with_sandbox(state, arg.cgroup_id, |sandbox| {
        if !sandbox.is_attached() {
            return Err(ENOENT);
        }
        sandbox.set_attached(false);
        Ok(())
    })??;
    state.registry.remove(arg.cgroup_id);
    // Stores that began before end here, so that the count is true.
    synchronize_readers();
    let recording;
    (arg.entries, recording) = with_sandbox(state, arg.cgroup_id, |sandbox| {
        (sandbox.entries.get(), sandbox.recorder.stop())
    })?;
    drop(recording);
    // SAFETY: May be called at any time while the module is loaded.
    unsafe { bindings::agentzip_worker_kick() };
    Ok(())
}

/// Replaces the ranges that say where the memory of a sandbox lies in its template. Entries name
/// pages of the template, so they stay right.
pub(crate) fn sandbox_ranges(state: &State, cgroup_id: u64, ranges: Ranges) -> Result {
    let _control = state.control.lock();
    let ranges = match ranges.is_empty() {
        true => None,
        false => Some(KBox::new(ranges, GFP_KERNEL)?),
    };
    let old = with_sandbox(state, cgroup_id, |sandbox| {
        sandbox
            .is_attached()
            .then(|| sandbox.ranges.replace(ranges))
    })?
    .ok_or(ENOENT)?;
    if old.is_some() {
        rcu::synchronize_rcu();
    }
    Ok(())
}

/// Notes what the agent of a sandbox is doing.
pub(crate) fn sandbox_phase(state: &State, arg: &uapi::SandboxPhase) -> Result {
    if arg.reserved != 0 {
        return Err(EINVAL);
    }
    let phase = Phase::from_raw(arg.phase).ok_or(EINVAL)?;
    with_sandbox(state, arg.cgroup_id, |sandbox| sandbox.set_phase(phase))?
}

/// Begins, changes or ends the recording of a sandbox's page faults. Without a ring the eventfd is not
/// looked at.
///
/// # Errors
///
/// `EINVAL` for a size that a ring cannot have; `EBADF`, `EINVAL` when there is no such eventfd; `ENOENT`
/// when it is not attached.
pub(crate) fn sandbox_record(state: &State, arg: &uapi::SandboxRecord) -> Result {
    const NONE: i32 = -1;
    let sizes = uapi::MIN_RECORDS..=uapi::MAX_RECORDS;
    if arg.records != 0 && !(sizes.contains(&arg.records) && arg.records.is_power_of_two()) {
        return Err(EINVAL);
    }
    let eventfd = match (arg.records, arg.eventfd) {
        (0, _) | (_, NONE) => None,
        (_, fd) => Some(EventFd::get(fd)?),
    };
    let _control = state.control.lock();
    let capacity = with_sandbox(state, arg.cgroup_id, |sandbox| {
        sandbox.is_attached().then(|| sandbox.recorder.capacity())
    })?
    .ok_or(ENOENT)?;
    // The control lock keeps it from being detached, and the ring from being replaced.
    let former_ring = match arg.records {
        records if records as usize == capacity => None,
        records => {
            let ring = (records != 0).then(|| Ring::new(records)).transpose()?;
            with_sandbox(state, arg.cgroup_id, |sandbox| {
                sandbox.recorder.replace_ring(ring)
            })?
        }
    };
    let former_eventfd = with_sandbox(state, arg.cgroup_id, |sandbox| {
        sandbox.recorder.replace_eventfd(eventfd)
    })?;
    drop((former_ring, former_eventfd));
    Ok(())
}

/// Takes the oldest records out of the ring of an attached sandbox, as many as there are and fit into
/// `out`; returns how many. Takes no control lock. `ENOENT` when it is not attached.
pub(crate) fn take_faults(
    state: &State,
    cgroup_id: u64,
    out: &mut [uapi::FaultRecord],
) -> Result<usize> {
    with_sandbox(state, cgroup_id, |sandbox| {
        sandbox.is_attached().then(|| sandbox.recorder.take(out))
    })?
    .ok_or(ENOENT)
}

/// Counts records of a sandbox that were taken and did not arrive; returns how many were lost so far.
/// `ENOENT` when there is no such sandbox.
pub(crate) fn lose_faults(state: &State, cgroup_id: u64, records: usize) -> Result<u64> {
    with_sandbox(state, cgroup_id, |sandbox| {
        sandbox.recorder.lose(records);
        sandbox.recorder.counts.lost.get()
    })
}

/// The group of a sandbox, attached or not. The caller holds the control lock.
fn group_of(state: &State, cgroup_id: u64) -> Result<Arc<Group>> {
    with_sandbox(state, cgroup_id, |sandbox| sandbox.group.clone())
}

/// The same to give it dictionaries, or to take samples of its pages: `EPERM` for that of a sensitive sandbox.
fn open_group_of(state: &State, cgroup_id: u64) -> Result<Arc<Group>> {
    let group = group_of(state, cgroup_id)?;
    match group.private {
        true => Err(EPERM),
        false => Ok(group),
    }
}

/// Gives the group of a sandbox a dictionary, which new payloads are made with from now on. Returns its
/// number.
///
/// # Errors
///
/// `ENOENT` when there is no such sandbox, `EPERM` when it is sensitive; `EINVAL` when zstd refuses the content; `ENOSPC` when older
/// dictionaries with users have all numbers; `ENOMEM` also at the bound of the store.
pub(crate) fn dictionary_add(state: &State, cgroup_id: u64, content: &[u8]) -> Result<u8> {
    // Before the lock: it takes some milliseconds.
    let dictionary = Dictionary::new(content)?;
    let _control = state.control.lock();
    let group = open_group_of(state, cgroup_id)?;
    group.drop_unused_dictionaries();
    let used = pages::bytes() + memory(state).dictionaries;
    if used.saturating_add(dictionary.bytes()) > state.max_bytes.get() {
        return Err(ENOMEM);
    }
    let number = group.add_dictionary(dictionary)?;
    second_look::kick();
    Ok(number)
}

/// Retires the current dictionary of a sandbox's group: new payloads are made without, and it goes with
/// the last that needs it. Returns its number.
///
/// # Errors
///
/// `ENOENT` when there is no such sandbox, or its group has no current dictionary.
pub(crate) fn dictionary_retire(state: &State, cgroup_id: u64) -> Result<u8> {
    let _control = state.control.lock();
    let group = group_of(state, cgroup_id)?;
    let number = group.retire_dictionary()?;
    group.drop_unused_dictionaries();
    Ok(number)
}

/// Writes samples of what the group of a sandbox has stored: see [`samples::write`]. Fills the output
/// fields of `arg`. `ENOENT` when there is no such sandbox, `EPERM` when it is sensitive.
pub(crate) fn dictionary_samples(
    state: &State,
    arg: &mut uapi::DictionarySamples,
    writer: &mut UserSliceWriter,
) -> Result {
    let group = {
        let _control = state.control.lock();
        open_group_of(state, arg.cgroup_id)?
    };
    let (least, cursor) = (arg.least as usize, arg.cursor);
    let result = samples::write(state, &group, least, cursor, writer);
    // If it is the last to go, it goes as a sandbox does: under the control lock.
    let _control = state.control.lock();
    drop(group);
    (arg.pages, arg.cursor) = result?;
    Ok(())
}

/// Calls `write` with the states of the pages of a process, a part at a time: see [`uapi::PageStates`].
///
/// # Errors
///
/// `ENOENT` when the sandbox is not attached; `ESRCH`, `EPERM`: see [`Process::find`]; `EINTR` when the
/// caller is being killed; `ENOMEM`; those of `write`.
pub(crate) fn page_states(
    state: &State,
    arg: &uapi::PageStates,
    mut write: impl FnMut(&[u8]) -> Result,
) -> Result {
    /// Pages under one hold of mmap_lock.
    const PART: usize = 4096;
    restore::attached(state, arg.cgroup_id, |_| ()).ok_or(ENOENT)?;
    let process = Process::find(arg.pid, arg.cgroup_id)?;
    let memory = process.memory().ok_or(ESRCH)?;
    let mut states = KVec::from_elem(0u8, PART, GFP_KERNEL)?;
    if arg.flags & uapi::PAGE_STATES_CLEAR != 0 {
        restore::test_now(state, arg.cgroup_id);
    }
    let mut at = arg.start;
    while at < arg.end {
        let pages = ((arg.end - at) / PAGE_SIZE as u64).min(PART as u64) as usize;
        let part = states.get_mut(..pages).ok_or(EINVAL)?;
        memory.states(at, part, arg.flags & uapi::PAGE_STATES_CLEAR != 0)?;
        write(part)?;
        at += (pages * PAGE_SIZE) as u64;
    }
    Ok(())
}

/// What the store occupies.
pub(crate) fn memory(state: &State) -> uapi::MemoryStats {
    let rcu = rcu::read_lock();
    let mut stats = uapi::MemoryStats {
        table: state.table.bytes(),
        scratch: state.scratch.bytes() + state.look.bytes(),
        objects: state.sandboxes.bytes() + state.templates.bytes() + state.requests.bytes(),
        ..Default::default()
    };
    state.templates.for_each(&rcu, |_, template| {
        stats.template_pages += template.pages.page_bytes();
        stats.template_index += template.pages.index_bytes();
        stats.objects += size_of::<Template>() as u64;
        stats.sketches += template.content.bytes();
    });
    state.sandboxes.for_each(&rcu, |_, sandbox| {
        stats.objects +=
            size_of::<Sandbox>() as u64 + sandbox.ranges.bytes(&rcu) + sandbox.recorder.bytes();
    });
    for_each_group(state, &rcu, |group| {
        let (references, sketches) = group.bytes();
        stats.references += references;
        stats.sketches += sketches;
        stats.dictionaries += group.dictionaries().bytes;
        stats.objects += size_of::<Group>() as u64;
    });
    // The rest of the store's pages; they change while we count.
    stats.arenas = pages::bytes().saturating_sub(stats.references + stats.sketches);
    stats
}

/// Statistics of a sandbox, or with cgroup id 0 of the whole store.
pub(crate) fn stats(state: &State, arg: &mut uapi::Stats) -> Result {
    if arg.cgroup_id == 0 {
        arg.page = state.counters.snapshot();
        arg.memory = memory(state);
    } else {
        arg.page = with_sandbox(state, arg.cgroup_id, |sandbox| sandbox.counters.snapshot())?;
        arg.memory = uapi::MemoryStats::default();
    }
    Ok(())
}

/// The worker's round: detaches sandboxes whose cgroup was removed, frees detached ones without
/// entries, drops dictionaries that nobody needs any more, shares out what reference pages may take,
/// compacts arenas, adopts orphaned template pages and indexes their contents. Starts the second look
/// if there is something for it. Returns whether there will be more to do.
pub(crate) fn housekeeping(state: &State) -> bool {
    let mut control = state.control.lock();
    tidy_sandboxes(state);
    drop_unused_dictionaries(state);
    share_out(state);
    compaction::compact(state, &mut control.compaction);
    if second_look::is_due(state) {
        second_look::kick();
    }
    let mut more = !state.registry.is_empty();
    for id in 0..state.templates.capacity() {
        if let Some(template) = state.templates.share(id) {
            template.pages.adopt_orphans();
            template.content.build(&template.pages, &state.max_bytes);
            more = true;
        }
    }
    more
}

/// Drops retired dictionaries without users. Entries end where nothing can be freed that may sleep, so
/// that it is done here. The caller holds the control lock.
fn drop_unused_dictionaries(state: &State) {
    for id in 0..state.sandboxes.capacity() {
        if let Some(sandbox) = state.sandboxes.share(id) {
            if sandbox.group.is_represented_by(id) {
                sandbox.group.drop_unused_dictionaries();
            }
        }
    }
}

/// Detaches sandboxes whose cgroup was removed and frees detached ones without entries. The caller
/// holds the control lock.
fn tidy_sandboxes(state: &State) {
    detach_removed(state);
    reap_sandboxes(state);
}

fn detach_removed(state: &State) {
    for id in 0..state.sandboxes.capacity() {
        let Some(sandbox) = state.sandboxes.share(id) else {
            continue;
        };
        // SAFETY: May sleep, as we may.
        if sandbox.is_attached() && !unsafe { bindings::agentzip_cgroup_exists(sandbox.cgroup_id) }
        {
            sandbox.set_attached(false);
            state.registry.remove(sandbox.cgroup_id);
            drop(sandbox.recorder.stop());
        }
    }
}

fn reap_sandboxes(state: &State) {
    let mut detached = KVec::new();
    {
        let rcu = rcu::read_lock();
        state.sandboxes.for_each(&rcu, |id, sandbox| {
            if !sandbox.is_attached() && sandbox.entries.get() == 0 {
                // Without memory the next round takes it.
                let _ = detached.push(id, GFP_NOWAIT);
            }
        });
    }
    let Ok(mut dead) = KVec::with_capacity(detached.len(), GFP_KERNEL) else {
        return;
    };
    if detached.is_empty() {
        return;
    }
    // A store that found the sandbox before it was detached may still add an entry.
    synchronize_readers();
    for &id in detached.iter() {
        let is_dead = {
            let rcu = rcu::read_lock();
            state
                .sandboxes
                .get(id, &rcu)
                .is_some_and(|sandbox| sandbox.entries.get() == 0)
        };
        if let Some(sandbox) = is_dead.then(|| state.sandboxes.take(id)).flatten() {
            pass_on_group(state, id, &sandbox.group);
            // Cannot fail: there is room for all.
            let _ = dead.push_within_capacity(sandbox);
        }
    }
    synchronize_readers();
    drop(dead);
}
