// SPDX-License-Identifier: GPL-2.0

//! `/dev/agentzip`: ioctls, in and out. The interface is rust/uapi; what they do is in control.rs.
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
unsafe trait Arg: Copy {}

// SAFETY: rust/uapi asserts the sizes; all fields are integers or byte arrays.
unsafe impl Arg for uapi::Info {}
// SAFETY: As above.
unsafe impl Arg for uapi::TemplateAdd {}
// SAFETY: As above.
unsafe impl Arg for uapi::TemplateRemove {}
// SAFETY: As above.
unsafe impl Arg for uapi::SandboxAttach {}
// SAFETY: As above.
unsafe impl Arg for uapi::SandboxDetach {}
// SAFETY: As above.
unsafe impl Arg for uapi::SandboxPhase {}
// SAFETY: As above.
unsafe impl Arg for uapi::Stats {}
// SAFETY: As above.
unsafe impl Arg for uapi::Drain {}
// SAFETY: As above.
unsafe impl Arg for uapi::Range {}

/// An [`Arg`] as the bytes that cross the border.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Wire<T: Arg>(T);

// SAFETY: By the contract of `Arg` every bit pattern is valid.
unsafe impl<T: Arg> FromBytes for Wire<T> {}
// SAFETY: By the contract of `Arg` no byte is uninitialised.
unsafe impl<T: Arg> AsBytes for Wire<T> {}

/// Reads an argument of `size` bytes, as the caller's ioctl number says.
///
/// `EINVAL` when it is shorter than ours (this is the first version), `E2BIG` when it is longer and
/// what we do not know is not zero.
fn read_arg<T: Arg>(ptr: UserPtr, size: usize) -> Result<T> {
    let known = size_of::<T>();
    if size < known {
        return Err(EINVAL);
    }
    let mut reader = UserSlice::new(ptr, size).reader();
    let arg = reader.read::<Wire<T>>()?.0;
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
    Ok(arg)
}

fn write_arg<T: Arg>(ptr: UserPtr, arg: &T) -> Result {
    UserSlice::new(ptr, size_of::<T>())
        .writer()
        .write(&Wire(*arg))
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
        write_arg(ptr, &arg)?;
    }
    result
}

fn template_add(state: &State, arg: &mut uapi::TemplateAdd) -> Result {
    if arg.flags != 0 || arg.reserved != 0 || arg.nr_ranges == 0 {
        return Err(EINVAL);
    }
    if arg.nr_ranges > uapi::MAX_RANGES {
        return Err(E2BIG);
    }
    let count = arg.nr_ranges as usize;
    let ptr = UserPtr::from_addr(usize::try_from(arg.ranges)?);
    let mut reader = UserSlice::new(ptr, count * size_of::<uapi::Range>()).reader();
    let mut ranges = KVVec::with_capacity(count, GFP_KERNEL)?;
    let mut end = 0;
    let page = kernel::page::PAGE_SIZE as u64;
    for _ in 0..count {
        let range = reader.read::<Wire<uapi::Range>>()?.0;
        if range.start % page != 0
            || range.end % page != 0
            || range.start < end
            || range.end <= range.start
        {
            return Err(EINVAL);
        }
        end = range.end;
        ranges.push(range, GFP_KERNEL)?;
    }
    control::template_add(state, arg, &ranges)
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
        nr::TEMPLATE_REMOVE => {
            exchange(ptr, size, true, |arg| control::template_remove(state, arg))
        }
        nr::SANDBOX_ATTACH => exchange(ptr, size, false, |arg: &mut uapi::SandboxAttach| {
            if arg.flags != 0 {
                return Err(EINVAL);
            }
            control::sandbox_attach(state, arg)
        }),
        nr::SANDBOX_DETACH => exchange(ptr, size, false, |arg| control::sandbox_detach(state, arg)),
        nr::SANDBOX_PHASE => control::sandbox_phase(state, &read_arg(ptr, size)?),
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
