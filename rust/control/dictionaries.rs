// SPDX-License-Identifier: GPL-2.0

//! Dictionaries of groups: add, retire, and samples to train one with.
//!
//! They change under the control lock. A dictionary is made before it is taken, and samples are written
//! without it: both take long.

use kernel::prelude::*;
use kernel::uaccess::UserSliceWriter;

use super::groups::{group_of, open_group_of};
use super::statistics::memory;
use crate::dictionary::Dictionary;
use crate::pages;
use crate::samples;
use crate::second_look;
use crate::state::State;
use crate::uapi;

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
