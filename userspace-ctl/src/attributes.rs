// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What a sandbox shall be: the same five attributes in the xattrs of its cgroup's directory and in an
//! `attach` request.

use serde::{Deserialize, Serialize};

use crate::name::{BadName, ObjectName};

/// Template, group, domain and profile of a sandbox, and whether it is sensitive. What is `None` was not said.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attributes {
    /// Template that it was cloned from. A cgroup without one is no sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<ObjectName>,
    /// Group of sandboxes that may share pages; the template's name when `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<ObjectName>,
    /// Trust domain; the tenant's, or `default`, when `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<ObjectName>,
    /// Profile of scheduling, of the configuration: `interactive`, `batch` ...
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<ObjectName>,
    /// Its pages share nothing with others, and all take the same room. It has a group of its own, which is
    /// not named.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sensitive: bool,
}

/// Which of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attribute {
    /// The template.
    Template,
    /// The group.
    Group,
    /// The trust domain.
    Domain,
    /// The profile of scheduling.
    Profile,
    /// Whether it is sensitive: `1` or `0`.
    Sensitive,
}

/// Why the value of an attribute was not taken.
#[derive(Debug, thiserror::Error)]
#[error("{}: {cause}", attribute.name())]
pub struct BadAttribute {
    /// Which attribute.
    pub attribute: Attribute,
    /// Why.
    pub cause: BadValue,
}

/// What is wrong with a value.
#[derive(Debug, thiserror::Error)]
pub enum BadValue {
    /// It is no name.
    #[error(transparent)]
    Name(#[from] BadName),
    /// It is no switch.
    #[error("expected 0 or 1")]
    Switch,
}

impl Attribute {
    /// All of them.
    pub const ALL: [Attribute; 5] = [
        Attribute::Template,
        Attribute::Group,
        Attribute::Domain,
        Attribute::Profile,
        Attribute::Sensitive,
    ];

    /// Its name in requests.
    pub fn name(self) -> &'static str {
        match self {
            Attribute::Template => "template",
            Attribute::Group => "group",
            Attribute::Domain => "domain",
            Attribute::Profile => "profile",
            Attribute::Sensitive => "sensitive",
        }
    }
}

impl Attributes {
    /// Sets an attribute from bytes that anyone may have written. White space around the value is
    /// ignored, and so is one NUL byte at the end.
    ///
    /// # Errors
    ///
    /// When it is no legal name, or no switch; nothing was changed then.
    pub fn set(&mut self, attribute: Attribute, value: &[u8]) -> Result<(), BadAttribute> {
        let value = value.strip_suffix(b"\0").unwrap_or(value).trim_ascii();
        let bad = |cause| BadAttribute { attribute, cause };
        let place = match attribute {
            Attribute::Template => &mut self.template,
            Attribute::Group => &mut self.group,
            Attribute::Domain => &mut self.domain,
            Attribute::Profile => &mut self.profile,
            Attribute::Sensitive => {
                self.sensitive = match value {
                    b"0" => false,
                    b"1" => true,
                    _ => return Err(bad(BadValue::Switch)),
                };
                return Ok(());
            }
        };
        let name = std::str::from_utf8(value).map_err(|_| BadName);
        let name = name.and_then(str::parse);
        *place = Some(name.map_err(|cause| bad(cause.into()))?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_attribute_has_its_field_and_name() {
        let mut attributes = Attributes::default();
        for attribute in Attribute::ALL {
            let value = match attribute {
                Attribute::Sensitive => " 1\n".to_owned(),
                name => format!(" {}-1\n", name.name()),
            };
            attributes.set(attribute, value.as_bytes()).unwrap();
        }
        let json = serde_json::to_string(&attributes).unwrap();
        assert_eq!(
            json,
            "{\"template\":\"template-1\",\"group\":\"group-1\",\"domain\":\"domain-1\",\"profile\":\"profile-1\",\"sensitive\":true}"
        );
        assert_eq!(
            serde_json::from_str::<Attributes>(&json).unwrap(),
            attributes
        );
        assert_eq!(
            serde_json::from_str::<Attributes>("{}").unwrap(),
            Attributes::default()
        );
    }

    #[test]
    fn a_switch_is_0_or_1() {
        let mut attributes = Attributes::default();
        for (value, sensitive) in [(&b"1"[..], true), (b"0\0", false), (b" 1\n", true)] {
            attributes.set(Attribute::Sensitive, value).unwrap();
            assert_eq!(attributes.sensitive, sensitive);
        }
        // Not what somebody may have meant by it: who is told nothing may think that it is on.
        for bad in [&b""[..], b"yes", b"2", b"01", b"true", b"\xff"] {
            let error = attributes.set(Attribute::Sensitive, bad).unwrap_err();
            assert_eq!(error.to_string(), "sensitive: expected 0 or 1");
            assert!(attributes.sensitive);
        }
        assert!(serde_json::from_str::<Attributes>("{\"sensitive\":\"1\"}").is_err());
        assert_eq!(serde_json::to_string(&Attributes::default()).unwrap(), "{}");
    }

    #[test]
    fn bad_names_change_nothing() {
        let mut attributes = Attributes::default();
        attributes.set(Attribute::Domain, b"a").unwrap();
        let before = attributes.clone();
        for bad in [&b""[..], b"..", b"a/b", b"\xff", b"a\0b", &[b'x'; 48]] {
            let error = attributes.set(Attribute::Domain, bad).unwrap_err();
            assert!(
                error.to_string().starts_with("domain: a name has"),
                "{error}"
            );
            assert_eq!(attributes, before);
        }
        for bad in [
            "{\"domain\":\"../x\"}",
            "{\"domian\":\"x\"}",
            "{\"template\":7}",
        ] {
            assert!(serde_json::from_str::<Attributes>(bad).is_err(), "{bad}");
        }
    }
}
