// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The xattrs of a cgroup's directory, as anyone may have written them.

use std::ffi::CStr;
use std::os::fd::AsFd;

use rustix::fs::{fgetxattr, flistxattr};
use rustix::io::Errno;

use crate::attributes::{Attribute, Attributes};
use crate::hint::MAX_HINT;

/// What the agent does.
pub const PHASE: &CStr = c"user.agentzip.phase";

/// All xattrs that are read.
pub const NAMES: [&CStr; 6] = [
    c"user.agentzip.template",
    c"user.agentzip.group",
    c"user.agentzip.domain",
    c"user.agentzip.profile",
    c"user.agentzip.sensitive",
    PHASE,
];

/// The xattr of an attribute.
fn name(attribute: Attribute) -> &'static CStr {
    let [template, group, domain, profile, sensitive, _] = NAMES;
    match attribute {
        Attribute::Template => template,
        Attribute::Group => group,
        Attribute::Domain => domain,
        Attribute::Profile => profile,
        Attribute::Sensitive => sensitive,
    }
}

/// A value: as it was written, or why it could not be read.
pub(super) type Value = Result<Vec<u8>, Errno>;

/// Reads an xattr; `None` when it is not there. More than [`MAX_HINT`] bytes are `ERANGE`.
pub(super) fn value(directory: impl AsFd, name: &CStr) -> Option<Value> {
    let mut buffer = [0; MAX_HINT];
    match fgetxattr(directory, name, &mut buffer) {
        Ok(length) => Some(Ok(buffer.get(..length).unwrap_or(&[]).to_vec())),
        Err(Errno::NODATA) => None,
        Err(errno) => Some(Err(errno)),
    }
}

/// The values of the attributes.
pub(super) type Values = [Option<Value>; Attribute::ALL.len()];

/// Reads the attributes. Without a template the others do not matter, and are not read.
pub(super) fn values(directory: impl AsFd) -> Values {
    let mut values: Values = [const { None }; Attribute::ALL.len()];
    for (slot, attribute) in values.iter_mut().zip(Attribute::ALL) {
        *slot = value(&directory, name(attribute));
        if slot.is_none() && attribute == Attribute::Template {
            break;
        }
    }
    values
}

/// Names of all xattrs, as the kernel lists them; empty when there are more than 4 KiB of them.
pub(super) fn listed(directory: impl AsFd) -> Vec<u8> {
    let mut buffer = [0; 4096];
    let length = flistxattr(directory, &mut buffer).unwrap_or(0);
    buffer.get(..length).unwrap_or(&[]).to_vec()
}

/// What the values say; `None` when there is no template.
///
/// # Errors
///
/// Which value is not legal, and why.
pub(super) fn attributes(values: &Values) -> Result<Option<Attributes>, String> {
    let mut attributes = Attributes::default();
    for (value, attribute) in values.iter().zip(Attribute::ALL) {
        match value {
            None => {}
            Some(Ok(bytes)) => attributes
                .set(attribute, bytes)
                .map_err(|error| format!("user.agentzip.{error}"))?,
            Some(Err(errno)) => {
                return Err(format!(
                    "user.agentzip.{}: {}",
                    attribute.name(),
                    unreadable(*errno)
                ))
            }
        }
    }
    Ok(attributes.template.is_some().then_some(attributes))
}

/// Why a value could not be read.
pub(super) fn unreadable(errno: Errno) -> String {
    match errno {
        Errno::RANGE => format!("longer than {MAX_HINT} bytes"),
        Errno::NOTSUP => "this file system has no user xattrs".to_owned(),
        other => format!("cannot be read: {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_attributes() {
        for attribute in Attribute::ALL {
            let expected = format!("user.agentzip.{}", attribute.name());
            assert_eq!(name(attribute).to_str(), Ok(expected.as_str()));
        }
    }

    #[test]
    fn what_values_say() {
        let ok = |text: &str| Some(Ok(text.as_bytes().to_vec()));
        assert_eq!(attributes(&[None, ok("g"), None, None, None]), Ok(None));
        let found = attributes(&[ok("t\n"), None, ok("d"), None, ok("1")])
            .unwrap()
            .unwrap();
        assert_eq!(found.template.unwrap().as_str(), "t");
        assert_eq!(found.domain.unwrap().as_str(), "d");
        assert!(found.sensitive);
        let wrong = attributes(&[ok("t"), None, None, None, ok("on")]).unwrap_err();
        assert_eq!(wrong, "user.agentzip.sensitive: expected 0 or 1");
        let wrong = attributes(&[ok("t"), ok("a/b"), None, None, None]).unwrap_err();
        assert!(
            wrong.starts_with("user.agentzip.group: a name has"),
            "{wrong}"
        );
        let wrong = attributes(&[Some(Err(Errno::RANGE)), None, None, None, None]).unwrap_err();
        assert_eq!(wrong, "user.agentzip.template: longer than 256 bytes");
    }
}
