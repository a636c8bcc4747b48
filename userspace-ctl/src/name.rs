// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Names of templates, groups and domains.

use std::fmt;
use std::str::FromStr;

use agentzip_uapi::{name_from_str, Name, NAME_LEN, NAME_MAX};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A legal name: 1 to 47 ASCII letters, digits, `.`, `_` and `-`, not starting with a dot.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectName {
    text: String,
    raw: Box<Name>,
}

impl ObjectName {
    /// The name as the module takes it.
    pub fn raw(&self) -> Name {
        *self.raw
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The field for an optional name: all zero stands for the module's default.
    pub fn raw_or_default(name: Option<&ObjectName>) -> Name {
        name.map_or([0; NAME_LEN], ObjectName::raw)
    }
}

impl FromStr for ObjectName {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Self, BadName> {
        match name_from_str(text) {
            Some(raw) => Ok(ObjectName {
                text: text.to_owned(),
                raw: Box::new(raw),
            }),
            None => Err(BadName),
        }
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Serialize for ObjectName {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for ObjectName {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<ObjectName, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(from)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// The text is no legal name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a name has 1 to {NAME_MAX} ASCII letters, digits, '.', '_' or '-' and does not start with a dot"
)]
pub struct BadName;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        assert_eq!(
            "base-3.11_x".parse::<ObjectName>().unwrap().as_str(),
            "base-3.11_x"
        );
        for bad in [
            "",
            ".hidden",
            "a/b",
            "a b",
            "ü",
            "a\0",
            &"x".repeat(NAME_MAX + 1),
        ] {
            assert!(bad.parse::<ObjectName>().is_err(), "{bad:?}");
        }
        assert!("x".repeat(NAME_MAX).parse::<ObjectName>().is_ok());
    }
}
