// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The control interface: any field is refused, or means what it says.
//!
//! An input is a number (4 bytes), a name field and a text. What is checked in the kernel alone, the
//! guest suite has tests for; the ranges of a sandbox are in [`template`](crate::template).

use agentzip_ctl::ObjectName;
use agentzip_uapi::{name_as_str, name_from_str, FaultKind, Name, Phase};

use crate::input::Input;

/// The target.
pub fn target(data: &[u8]) {
    let mut input = Input::new(data);
    number(input.u32());
    field(&input.array());
    if let Ok(text) = std::str::from_utf8(input.rest()) {
        text_of_name(text);
    }
}

fn number(raw: u32) {
    match Phase::from_raw(raw) {
        Some(phase) => {
            assert_eq!(phase as u32, raw);
            assert_eq!(Phase::from_name(phase.name()), Some(phase));
        }
        None => assert!(raw >= Phase::ALL.len() as u32),
    }
    let [raw, ..] = raw.to_le_bytes();
    if let Some(kind) = FaultKind::from_raw(raw) {
        assert_eq!(kind as u8, raw);
    }
}

fn field(name: &Name) {
    if let Some(text) = name_as_str(name) {
        assert_eq!(name_from_str(text), Some(*name));
        let object = text.parse::<ObjectName>().map(|object| object.raw());
        assert_eq!(object, Ok(*name));
    }
}

fn text_of_name(text: &str) {
    let object = text.parse::<ObjectName>().ok();
    let raw = name_from_str(text);
    assert_eq!(object.map(|object| object.raw()), raw);
    if let Some(raw) = raw {
        assert_eq!(name_as_str(&raw), Some(text));
    }
    if let Some(phase) = Phase::from_name(text) {
        assert_eq!(phase.name(), text);
    }
}
