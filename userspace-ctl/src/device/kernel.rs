// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The device of the real module.

use std::cell::OnceCell;
use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::PathBuf;
use std::time::Duration;

use agentzip_uapi::{self as uapi, Name, Phase};

use super::{
    Device, Failure, FaultsTaken, Haste, Info, NewSandbox, NewTemplate, Samples, Source,
    TemplatePages,
};
use crate::error::{Error, Result};
use crate::{sys, PAGE_SIZE};

/// Samples in one call: some ten milliseconds.
const SAMPLES: usize = 2048;

/// `/dev/agentzip`, opened by the first command.
#[derive(Debug)]
pub struct KernelDevice {
    path: PathBuf,
    file: OnceCell<File>,
}

impl KernelDevice {
    /// The device at this path; nothing is opened yet.
    pub fn new(path: PathBuf) -> Self {
        KernelDevice {
            path,
            file: OnceCell::new(),
        }
    }

    fn fd(&self) -> Result<BorrowedFd<'_>, Failure> {
        if let Some(file) = self.file.get() {
            return Ok(file.as_fd());
        }
        let opened = OpenOptions::new().read(true).write(true).open(&self.path);
        match opened {
            Ok(file) => Ok(self.file.get_or_init(|| file).as_fd()),
            Err(cause) => {
                let advice = match cause.kind() {
                    ErrorKind::NotFound => "load the module: insmod agentzip.ko",
                    ErrorKind::PermissionDenied => "run as root",
                    _ => "is the module loaded? try: insmod agentzip.ko",
                };
                Err(Failure::Open(Error::Device {
                    path: self.path.clone(),
                    cause,
                    advice,
                }))
            }
        }
    }
}

impl Device for KernelDevice {
    fn info(&self) -> Result<Info, Failure> {
        let mut info = uapi::Info::default();
        sys::call(self.fd()?, &mut info)?;
        Ok(Info {
            abi_version: info.abi_version,
            armed: info.armed != 0,
            enabled: info.enabled != 0,
            draining: info.draining != 0,
        })
    }

    fn arm(&self) -> Result<(), Failure> {
        Ok(sys::arm(self.fd()?)?)
    }

    fn disarm(&self) -> Result<(), Failure> {
        Ok(sys::disarm(self.fd()?)?)
    }

    fn template_add(&self, template: &NewTemplate) -> Result<TemplatePages, Failure> {
        let signature = template.signature.raw();
        match &template.source {
            Source::Process { pid, ranges } => {
                let add = uapi::TemplateAdd {
                    pid: *pid,
                    flags: 0,
                    ranges: 0,
                    nr_ranges: 0,
                    reserved: 0,
                    name: template.name,
                    domain: template.domain,
                    pages_referenced: 0,
                    pages_copied: 0,
                    pages_skipped: 0,
                };
                let mut argument = uapi::TemplateAddSigned { add, signature };
                sys::template_add(self.fd()?, &mut argument, ranges)?;
                Ok(TemplatePages {
                    referenced: argument.add.pages_referenced,
                    copied: argument.add.pages_copied,
                    skipped: argument.add.pages_skipped,
                })
            }
            Source::File {
                file,
                offset,
                length,
            } => {
                let mut argument = uapi::TemplateAddFile {
                    fd: file.as_raw_fd(),
                    flags: 0,
                    offset: *offset,
                    length: *length,
                    name: template.name,
                    domain: template.domain,
                    signature,
                    pages_referenced: 0,
                    pages_copied: 0,
                    pages_skipped: 0,
                };
                sys::call(self.fd()?, &mut argument)?;
                Ok(TemplatePages {
                    referenced: argument.pages_referenced,
                    copied: argument.pages_copied,
                    skipped: argument.pages_skipped,
                })
            }
        }
    }

    fn template_remove(&self, name: &Name) -> Result<(), Failure> {
        let mut remove = uapi::TemplateRemove {
            name: *name,
            users: 0,
        };
        sys::call(self.fd()?, &mut remove).map_err(|errno| Failure::Refused {
            users: (errno.raw_os_error() == Some(libc::EBUSY)).then_some(remove.users),
            errno,
        })
    }

    fn sandbox_attach(&self, cgroup: &File, sandbox: &NewSandbox) -> Result<u64, Failure> {
        let attach = uapi::SandboxAttach {
            cgroup_fd: cgroup.as_raw_fd(),
            flags: match sandbox.sensitive {
                true => uapi::SANDBOX_SENSITIVE,
                false => 0,
            },
            template: sandbox.template,
            group: sandbox.group,
            domain: sandbox.domain,
            cgroup_id: 0,
        };
        let mut argument = uapi::SandboxAttachSigned {
            attach,
            signature: sandbox.signature.raw(),
        };
        sys::call(self.fd()?, &mut argument)?;
        Ok(argument.attach.cgroup_id)
    }

    fn sandbox_ranges(&self, cgroup_id: u64, ranges: &[uapi::SandboxRange]) -> Result<(), Failure> {
        Ok(sys::sandbox_ranges(self.fd()?, cgroup_id, ranges)?)
    }

    fn sandbox_detach(&self, cgroup_id: u64) -> Result<u64, Failure> {
        let mut detach = uapi::SandboxDetach {
            cgroup_id,
            entries: 0,
        };
        sys::call(self.fd()?, &mut detach)?;
        Ok(detach.entries)
    }

    fn sandbox_phase(&self, cgroup_id: u64, phase: Phase) -> Result<(), Failure> {
        let mut argument = uapi::SandboxPhase {
            cgroup_id,
            phase: phase as u32,
            reserved: 0,
        };
        Ok(sys::call(self.fd()?, &mut argument)?)
    }

    fn dictionary_add(&self, cgroup_id: u64, content: &[u8]) -> Result<u32, Failure> {
        Ok(sys::dictionary_add(self.fd()?, cgroup_id, content)?)
    }

    fn dictionary_retire(&self, cgroup_id: u64) -> Result<u32, Failure> {
        let mut argument = uapi::DictionaryRetire {
            cgroup_id,
            ..Default::default()
        };
        sys::call(self.fd()?, &mut argument)?;
        Ok(argument.number)
    }

    fn dictionary_samples(
        &self,
        cgroup_id: u64,
        least: u32,
        cursor: u64,
    ) -> Result<Samples, Failure> {
        let mut argument = uapi::DictionarySamples {
            cgroup_id,
            least,
            cursor,
            ..Default::default()
        };
        let mut pages = vec![[0; PAGE_SIZE as usize]; SAMPLES];
        sys::dictionary_samples(self.fd()?, &mut argument, &mut pages)?;
        pages.truncate(argument.pages as usize);
        Ok(Samples {
            pages,
            next: (argument.cursor != uapi::SAMPLES_END).then_some(argument.cursor),
        })
    }

    fn drain(&self) -> Result<u64, Failure> {
        let mut drain = uapi::Drain::default();
        sys::call(self.fd()?, &mut drain)?;
        Ok(drain.entries)
    }

    fn sandbox_record(
        &self,
        cgroup_id: u64,
        records: u32,
        eventfd: Option<BorrowedFd<'_>>,
    ) -> Result<(), Failure> {
        let mut argument = uapi::SandboxRecord {
            cgroup_id,
            records,
            eventfd: eventfd.map_or(-1, |fd| fd.as_raw_fd()),
        };
        Ok(sys::call(self.fd()?, &mut argument)?)
    }

    fn faults_read(
        &self,
        cgroup_id: u64,
        room: &mut [uapi::FaultRecord],
    ) -> Result<FaultsTaken, Failure> {
        let (records, lost) = sys::restore::faults_read(self.fd()?, cgroup_id, room)?;
        Ok(FaultsTaken { records, lost })
    }

    fn prefetch(
        &self,
        cgroup_id: u64,
        pid: i32,
        ranges: &[uapi::Range],
        haste: Haste,
    ) -> Result<u64, Failure> {
        let mut argument = uapi::Prefetch {
            cgroup_id,
            pid,
            timeout_ms: milliseconds(haste.timeout),
            hit_window_ms: milliseconds(haste.hit_window),
            priority: haste.priority,
            flags: u32::from(!haste.tested) * uapi::PREFETCH_UNTESTED,
            ..Default::default()
        };
        sys::restore::prefetch(self.fd()?, &mut argument, ranges)?;
        Ok(argument.pages)
    }

    fn page_states(
        &self,
        cgroup_id: u64,
        pid: i32,
        range: uapi::Range,
        clear: bool,
    ) -> Result<Vec<u8>, Failure> {
        let mut argument = uapi::PageStates {
            cgroup_id,
            start: range.start,
            end: range.end,
            pid,
            flags: u32::from(clear) * uapi::PAGE_STATES_CLEAR,
            ..Default::default()
        };
        Ok(sys::restore::page_states(self.fd()?, &mut argument)?)
    }
}

/// For the kernel: 0 would mean its default.
fn milliseconds(time: Duration) -> u32 {
    let ms = u32::try_from(time.as_millis()).unwrap_or(u32::MAX);
    ms.clamp(1, uapi::MAX_PREFETCH_MS)
}
