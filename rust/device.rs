// SPDX-License-Identifier: GPL-2.0

//! `/dev/agentzip`: ioctls, in and out. The interface is rust/uapi; what they do is in control/.
//!
//! The device has mode 0600: only root opens it. Still every argument is hostile: sizes, pointers,
//! names and numbers are checked before anything changes.

use kernel::fs::File;
use kernel::ioctl::{_IOC_NR, _IOC_SIZE, _IOC_TYPE};
use kernel::miscdevice::{MiscDevice, MiscDeviceOptions, MiscDeviceRegistration};
use kernel::prelude::*;
use kernel::sync::atomic::Acquire;
use kernel::transmute::{AsBytes, FromBytes};
use kernel::uaccess::{UserPtr, UserSlice};

use crate::control;
use crate::pages;
use crate::prefetch;
use crate::process;
use crate::ranges::Ranges;
use crate::state::{self, State};
use crate::uapi::{self, nr};

/// The registered device.
pub(crate) type Registration = MiscDeviceRegistration<Device>;

/// Registers the device.
pub(crate) fn register() -> impl PinInit<Registration, Error> {
    MiscDeviceRegistration::register(MiscDeviceOptions { name: c"agentzip" })
}

/// An open file; it has no state of its own.
pub(crate) struct Device;

/// An argument structure.
///
/// # Safety
///
/// Only fixed-size integers and arrays of them, no padding: every bit pattern is valid, and no byte
/// is uninitialised.
unsafe trait Arg: Copy {
    /// Sizes of its earlier versions, with which it begins.
    const EARLIER: &'static [usize] = &[];
}

// SAFETY: rust/uapi asserts the sizes; all fields are integers or byte arrays.
unsafe impl Arg for uapi::Info {}
// SAFETY: As above.
unsafe impl Arg for uapi::TemplateAddSigned {
    const EARLIER: &'static [usize] = &[size_of::<uapi::TemplateAdd>()];
}
// SAFETY: As above.
unsafe impl Arg for uapi::TemplateAddFile {}
// SAFETY: As above.
unsafe impl Arg for uapi::TemplateRemove {}
// SAFETY: As above.
unsafe impl Arg for uapi::SandboxAttachSigned {
    const EARLIER: &'static [usize] = &[size_of::<uapi::SandboxAttach>()];
}
// SAFETY: As above.
unsafe impl Arg for uapi::SandboxRanges {}
// SAFETY: As above.
unsafe impl Arg for uapi::SandboxRange {}
// SAFETY: As above.
unsafe impl Arg for uapi::SandboxDetach {}
// SAFETY: As above.
unsafe impl Arg for uapi::SandboxPhase {}
// SAFETY: As above.
unsafe impl Arg for uapi::DictionaryAdd {}
// SAFETY: As above.
unsafe impl Arg for uapi::DictionaryRetire {}
// SAFETY: As above.
unsafe impl Arg for uapi::DictionarySamples {}
// SAFETY: As above.
unsafe impl Arg for uapi::SandboxRecord {}
// SAFETY: As above.
unsafe impl Arg for uapi::FaultsRead {}
// SAFETY: As above.
unsafe impl Arg for uapi::FaultRecord {}
// SAFETY: As above.
unsafe impl Arg for uapi::Stats {}
// SAFETY: As above.
unsafe impl Arg for uapi::Drain {}
// SAFETY: As above.
unsafe impl Arg for uapi::Range {}
// SAFETY: As above.
unsafe impl Arg for uapi::Prefetch {}
// SAFETY: As above.
unsafe impl Arg for uapi::PageStates {}

/// An [`Arg`] as the bytes that cross the border.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Wire<T: Arg>(T);

// SAFETY: By the contract of `Arg` every bit pattern is valid.
unsafe impl<T: Arg> FromBytes for Wire<T> {}
// SAFETY: By the contract of `Arg` no byte is uninitialised.
unsafe impl<T: Arg> AsBytes for Wire<T> {}

/// Reads an argument of `size` bytes, as the caller's ioctl number says. What an earlier version
/// lacks is zero.
///
/// `EINVAL` when it is shorter than ours and of no earlier version, `E2BIG` when it is longer and
/// what we do not know is not zero.
fn read_arg<T: Arg>(ptr: UserPtr, size: usize) -> Result<T> {
    let known = size_of::<T>();
    if size < known && !T::EARLIER.contains(&size) {
        return Err(EINVAL);
    }
    let mut reader = UserSlice::new(ptr, size).reader();
    // SAFETY: By the contract of `Arg` zeros are valid.
    let mut arg = Wire(unsafe { core::mem::zeroed::<T>() });
    reader.read_slice(
        arg.as_bytes_mut()
            .get_mut(..size.min(known))
            .ok_or(EINVAL)?,
    )?;
    let mut rest = [0u8; 64];
    while !reader.is_empty() {
        let len = reader.len().min(rest.len());
        let Some(rest) = rest.get_mut(..len) else {
            break;
        };
        reader.read_slice(rest)?;
        if rest.iter().any(|&b| b != 0) {
            return Err(E2BIG);
        }
    }
    Ok(arg.0)
}

/// Writes back as much as the caller's version has.
fn write_arg<T: Arg>(ptr: UserPtr, size: usize, arg: &T) -> Result {
    let arg = Wire(*arg);
    let bytes = arg.as_bytes();
    let bytes = bytes.get(..size.min(bytes.len())).ok_or(EINVAL)?;
    UserSlice::new(ptr, bytes.len()).writer().write_slice(bytes)
}

/// Reads an array of `count` elements that an argument refers to.
fn read_array<T: Arg>(address: u64, count: usize) -> Result<KVVec<T>> {
    let ptr = UserPtr::from_addr(usize::try_from(address)?);
    let mut reader = UserSlice::new(ptr, count * size_of::<T>()).reader();
    let mut elements = KVVec::with_capacity(count, GFP_KERNEL)?;
    for _ in 0..count {
        elements.push_within_capacity(reader.read::<Wire<T>>()?.0)?;
    }
    Ok(elements)
}

/// Reads, calls, writes back; also on failure when `write_on_error`.
fn exchange<T: Arg>(
    ptr: UserPtr,
    size: usize,
    write_on_error: bool,
    f: impl FnOnce(&mut T) -> Result,
) -> Result {
    let mut arg = read_arg::<T>(ptr, size)?;
    let result = f(&mut arg);
    if result.is_ok() || write_on_error {
        write_arg(ptr, size, &arg)?;
    }
    result
}

fn template_add(state: &State, arg: &mut uapi::TemplateAddSigned) -> Result {
    let add = &arg.add;
    if add.flags != 0 || add.reserved != 0 || add.nr_ranges == 0 {
        return Err(EINVAL);
    }
    if add.nr_ranges > uapi::MAX_RANGES {
        return Err(E2BIG);
    }
    let ranges = read_array::<uapi::Range>(add.ranges, add.nr_ranges as usize)?;
    let page = kernel::page::PAGE_SIZE as u64;
    let mut end = 0;
    for range in ranges.iter() {
        if range.start % page != 0
            || range.end % page != 0
            || range.start < end
            || range.end <= range.start
        {
            return Err(EINVAL);
        }
        end = range.end;
    }
    control::template_add(state, arg, &ranges)
}

fn sandbox_ranges(state: &State, arg: &uapi::SandboxRanges) -> Result {
    if arg.reserved != 0 {
        return Err(EINVAL);
    }
    if arg.nr_ranges > uapi::MAX_SANDBOX_RANGES {
        return Err(E2BIG);
    }
    let given = read_array(arg.ranges, arg.nr_ranges as usize)?;
    control::sandbox_ranges(state, arg.cgroup_id, Ranges::new(&given)?)
}

fn dictionary_add(state: &State, arg: &mut uapi::DictionaryAdd) -> Result {
    if !(uapi::MIN_DICTIONARY..=uapi::MAX_DICTIONARY).contains(&arg.length) {
        return Err(EINVAL);
    }
    let len = arg.length as usize;
    let ptr = UserPtr::from_addr(usize::try_from(arg.content)?);
    let mut content = KVVec::from_elem(0, len, GFP_KERNEL)?;
    UserSlice::new(ptr, len).reader().read_slice(&mut content)?;
    let number = control::dictionary_add(state, arg.cgroup_id, &content);
    pages::zero(&mut content);
    arg.number = number?.into();
    Ok(())
}

fn dictionary_samples(state: &State, arg: &mut uapi::DictionarySamples) -> Result {
    if arg.reserved != 0 || !(1..=uapi::MAX_SAMPLES).contains(&arg.capacity) {
        return Err(EINVAL);
    }
    let ptr = UserPtr::from_addr(usize::try_from(arg.buffer)?);
    let len = arg.capacity as usize * kernel::page::PAGE_SIZE;
    let mut writer = UserSlice::new(ptr, len).writer();
    control::dictionary_samples(state, arg, &mut writer)
}

fn prefetch(state: &State, arg: &mut uapi::Prefetch) -> Result {
    if arg.flags & !uapi::PREFETCH_UNTESTED != 0 || arg.nr_ranges == 0 {
        return Err(EINVAL);
    }
    if arg.nr_ranges > uapi::MAX_PREFETCH_RANGES {
        return Err(E2BIG);
    }
    let ranges = read_array(arg.ranges, arg.nr_ranges as usize)?;
    prefetch::prefetch(state, arg, ranges)
}

fn page_states(state: &State, arg: &uapi::PageStates) -> Result {
    let page = kernel::page::PAGE_SIZE as u64;
    if arg.flags & !uapi::PAGE_STATES_CLEAR != 0
        || (arg.start | arg.end) % page != 0
        || arg.end <= arg.start
        || arg.end > process::user_end()
    {
        return Err(EINVAL);
    }
    let pages = (arg.end - arg.start) / page;
    if pages > uapi::MAX_PAGE_STATES {
        return Err(E2BIG);
    }
    let ptr = UserPtr::from_addr(usize::try_from(arg.states)?);
    let mut writer = UserSlice::new(ptr, pages as usize).writer();
    control::page_states(state, arg, |states| writer.write_slice(states))
}

/// Records that are copied at a time: taken out of the ring under its lock, then written under none.
const BATCH: usize = 256;

/// Moves records of a sandbox to the caller; returns how many. Those that cannot be written are lost,
/// and so are those before them, of which the caller will not hear.
fn move_faults(state: &State, arg: &uapi::FaultsRead) -> Result<u32> {
    let capacity = arg.capacity as usize;
    let ptr = UserPtr::from_addr(usize::try_from(arg.buffer)?);
    let mut writer = UserSlice::new(ptr, capacity * size_of::<uapi::FaultRecord>()).writer();
    let empty = uapi::FaultRecord::default();
    let mut batch = KVVec::from_elem(empty, capacity.min(BATCH), GFP_KERNEL)?;
    let mut moved = 0;
    while moved < capacity {
        let room = batch.len().min(capacity - moved);
        let batch = batch.get_mut(..room).ok_or(EINVAL)?;
        let taken = match control::take_faults(state, arg.cgroup_id, batch) {
            // It was detached just now.
            Err(_) if moved > 0 => break,
            taken => taken?,
        };
        moved += taken;
        for record in batch.iter().take(taken) {
            if let Err(error) = writer.write(&Wire(*record)) {
                // Unless the sandbox is gone, and its count with it.
                let _ = control::lose_faults(state, arg.cgroup_id, moved);
                return Err(error);
            }
        }
        if taken < room {
            break;
        }
    }
    Ok(moved as u32)
}

fn faults_read(state: &State, arg: &mut uapi::FaultsRead) -> Result {
    if !(1..=uapi::MAX_RECORDS).contains(&arg.capacity) {
        return Err(EINVAL);
    }
    arg.records = move_faults(state, arg)?;
    arg.lost = control::lose_faults(state, arg.cgroup_id, 0)?;
    Ok(())
}

fn dispatch(state: &State, cmd: u32, ptr: UserPtr) -> Result {
    let size = _IOC_SIZE(cmd);
    match _IOC_NR(cmd) {
        nr::INFO => exchange::<uapi::Info>(ptr, size, false, |arg| {
            *arg = uapi::Info {
                abi_version: uapi::ABI_VERSION,
                armed: state.armed.load(Acquire),
                enabled: state.enabled.load(Acquire),
                draining: state.draining.load(Acquire),
            };
            Ok(())
        }),
        nr::ARM => control::arm(state),
        nr::DISARM => control::disarm(state),
        nr::TEMPLATE_ADD => exchange(ptr, size, false, |arg| template_add(state, arg)),
        nr::TEMPLATE_ADD_FILE => exchange(ptr, size, false, |arg| {
            control::template_add_file(state, arg)
        }),
        nr::TEMPLATE_REMOVE => {
            exchange(ptr, size, true, |arg| control::template_remove(state, arg))
        }
        nr::SANDBOX_ATTACH => exchange(ptr, size, false, |arg| control::sandbox_attach(state, arg)),
        nr::SANDBOX_RANGES => sandbox_ranges(state, &read_arg(ptr, size)?),
        nr::SANDBOX_DETACH => exchange(ptr, size, false, |arg| control::sandbox_detach(state, arg)),
        nr::SANDBOX_PHASE => control::sandbox_phase(state, &read_arg(ptr, size)?),
        nr::DICTIONARY_ADD => exchange(ptr, size, false, |arg| dictionary_add(state, arg)),
        nr::DICTIONARY_RETIRE => exchange(ptr, size, false, |arg: &mut uapi::DictionaryRetire| {
            if arg.reserved != 0 {
                return Err(EINVAL);
            }
            arg.number = control::dictionary_retire(state, arg.cgroup_id)?.into();
            Ok(())
        }),
        nr::DICTIONARY_SAMPLES => exchange(ptr, size, false, |arg| dictionary_samples(state, arg)),
        nr::PREFETCH => exchange(ptr, size, false, |arg| prefetch(state, arg)),
        nr::PAGE_STATES => page_states(state, &read_arg(ptr, size)?),
        nr::SANDBOX_RECORD => control::sandbox_record(state, &read_arg(ptr, size)?),
        nr::FAULTS_READ => exchange(ptr, size, false, |arg| faults_read(state, arg)),
        nr::STATS => exchange(ptr, size, false, |arg| control::stats(state, arg)),
        nr::DRAIN => exchange(ptr, size, false, |arg: &mut uapi::Drain| {
            arg.entries = control::drain(state);
            Ok(())
        }),
        _ => Err(ENOTTY),
    }
}

#[vtable]
impl MiscDevice for Device {
    type Ptr = KBox<Self>;

    fn open(_file: &File, _misc: &MiscDeviceRegistration<Self>) -> Result<KBox<Self>> {
        Ok(KBox::new(Device, GFP_KERNEL)?)
    }

    fn ioctl(_device: &Self, _file: &File, cmd: u32, arg: usize) -> Result<isize> {
        if _IOC_TYPE(cmd) != uapi::IOC_MAGIC {
            return Err(ENOTTY);
        }
        // The device is registered after the state is published and goes before it.
        let state = state::get().ok_or(ENODEV)?;
        dispatch(state, cmd, UserPtr::from_addr(arg))?;
        Ok(0)
    }
}
