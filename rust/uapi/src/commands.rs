// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Commands: their ioctl numbers, and in [`nr`] the lowest byte of each.

use super::*;

/// ioctl type ("magic") byte.
pub const IOC_MAGIC: u32 = 0xA2;

const fn ioc(dir: u32, nr: u32, size: usize) -> u32 {
    (dir << 30) | ((size as u32) << 16) | (IOC_MAGIC << 8) | nr
}

/// ioctl numbers: the lowest byte of the command of the same name.
pub mod nr {
    /// See [`super::INFO`].
    pub const INFO: u32 = 0x00;
    /// See [`super::ARM`].
    pub const ARM: u32 = 0x01;
    /// See [`super::DISARM`].
    pub const DISARM: u32 = 0x02;
    /// See [`super::TEMPLATE_ADD`].
    pub const TEMPLATE_ADD: u32 = 0x10;
    /// See [`super::TEMPLATE_REMOVE`].
    pub const TEMPLATE_REMOVE: u32 = 0x11;
    /// See [`super::TEMPLATE_ADD_FILE`].
    pub const TEMPLATE_ADD_FILE: u32 = 0x12;
    /// See [`super::SANDBOX_ATTACH`].
    pub const SANDBOX_ATTACH: u32 = 0x20;
    /// See [`super::SANDBOX_DETACH`].
    pub const SANDBOX_DETACH: u32 = 0x21;
    /// See [`super::SANDBOX_PHASE`].
    pub const SANDBOX_PHASE: u32 = 0x22;
    /// See [`super::SANDBOX_RANGES`].
    pub const SANDBOX_RANGES: u32 = 0x23;
    /// See [`super::DICTIONARY_ADD`].
    pub const DICTIONARY_ADD: u32 = 0x28;
    /// See [`super::DICTIONARY_RETIRE`].
    pub const DICTIONARY_RETIRE: u32 = 0x29;
    /// See [`super::DICTIONARY_SAMPLES`].
    pub const DICTIONARY_SAMPLES: u32 = 0x2a;
    /// See [`super::SANDBOX_RECORD`].
    pub const SANDBOX_RECORD: u32 = 0x40;
    /// See [`super::FAULTS_READ`].
    pub const FAULTS_READ: u32 = 0x41;
    /// See [`super::PREFETCH`].
    pub const PREFETCH: u32 = 0x42;
    /// See [`super::PAGE_STATES`].
    pub const PAGE_STATES: u32 = 0x43;
    /// See [`super::STATS`].
    pub const STATS: u32 = 0x30;
    /// See [`super::DRAIN`].
    pub const DRAIN: u32 = 0x31;
}

/// Reports version and state: [`Info`].
pub const INFO: u32 = ioc(2, nr::INFO, size_of::<Info>());
/// Installs the hooks, ends draining; no argument. `EBUSY` when another user redirects one of the
/// functions, `EALREADY` when armed.
pub const ARM: u32 = ioc(0, nr::ARM, 0);
/// Removes the hooks; no argument. `EBUSY` while entries exist, `EALREADY` when not armed.
pub const DISARM: u32 = ioc(0, nr::DISARM, 0);
/// See [`TemplateAdd`].
pub const TEMPLATE_ADD: u32 = ioc(3, nr::TEMPLATE_ADD, size_of::<TemplateAdd>());
/// See [`TemplateAddSigned`].
pub const TEMPLATE_ADD_SIGNED: u32 = ioc(3, nr::TEMPLATE_ADD, size_of::<TemplateAddSigned>());
/// See [`TemplateAddFile`].
pub const TEMPLATE_ADD_FILE: u32 = ioc(3, nr::TEMPLATE_ADD_FILE, size_of::<TemplateAddFile>());
/// See [`TemplateRemove`].
pub const TEMPLATE_REMOVE: u32 = ioc(3, nr::TEMPLATE_REMOVE, size_of::<TemplateRemove>());
/// See [`SandboxAttach`].
pub const SANDBOX_ATTACH: u32 = ioc(3, nr::SANDBOX_ATTACH, size_of::<SandboxAttach>());
/// See [`SandboxAttachSigned`].
pub const SANDBOX_ATTACH_SIGNED: u32 = ioc(3, nr::SANDBOX_ATTACH, size_of::<SandboxAttachSigned>());
/// See [`SandboxRanges`].
pub const SANDBOX_RANGES: u32 = ioc(1, nr::SANDBOX_RANGES, size_of::<SandboxRanges>());
/// See [`SandboxDetach`].
pub const SANDBOX_DETACH: u32 = ioc(3, nr::SANDBOX_DETACH, size_of::<SandboxDetach>());
/// See [`SandboxPhase`].
pub const SANDBOX_PHASE: u32 = ioc(1, nr::SANDBOX_PHASE, size_of::<SandboxPhase>());
/// See [`DictionaryAdd`].
pub const DICTIONARY_ADD: u32 = ioc(3, nr::DICTIONARY_ADD, size_of::<DictionaryAdd>());
/// See [`DictionaryRetire`].
pub const DICTIONARY_RETIRE: u32 = ioc(3, nr::DICTIONARY_RETIRE, size_of::<DictionaryRetire>());
/// See [`DictionarySamples`].
pub const DICTIONARY_SAMPLES: u32 = ioc(3, nr::DICTIONARY_SAMPLES, size_of::<DictionarySamples>());
/// See [`SandboxRecord`].
pub const SANDBOX_RECORD: u32 = ioc(1, nr::SANDBOX_RECORD, size_of::<SandboxRecord>());
/// See [`FaultsRead`].
pub const FAULTS_READ: u32 = ioc(3, nr::FAULTS_READ, size_of::<FaultsRead>());
/// See [`Prefetch`].
pub const PREFETCH: u32 = ioc(3, nr::PREFETCH, size_of::<Prefetch>());
/// See [`PageStates`].
pub const PAGE_STATES: u32 = ioc(1, nr::PAGE_STATES, size_of::<PageStates>());
/// See [`Stats`].
pub const STATS: u32 = ioc(3, nr::STATS, size_of::<Stats>());
/// See [`Drain`].
pub const DRAIN: u32 = ioc(2, nr::DRAIN, size_of::<Drain>());
