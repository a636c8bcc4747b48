// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What a sandbox shall be: the same four names in the xattrs of its cgroup's directory and in an
//! `attach` request.

use serde::{Deserialize, Serialize};

use crate::name::{BadName, ObjectName};

/// Template, group, domain and profile of a sandbox. What is `None` was not said.
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
}

/// Which of the four.
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
}

/// Why the value of an attribute was not taken.
#[derive(Debug, thiserror::Error)]
#[error("{}: {cause}", attribute.name())]
pub struct BadAttribute {
    /// Which attribute.
    pub attribute: Attribute,
    /// Why.
    pub cause: BadName,
}

impl Attribute {
    /// All of them.
    pub const ALL: [Attribute; 4] = [
        Attribute::Template,
        Attribute::Group,
        Attribute::Domain,
        Attribute::Profile,
    ];

    /// Its name in requests.
    pub fn name(self) -> &'static str {
        match self {
            Attribute::Template => "template",
            Attribute::Group => "group",
            Attribute::Domain => "domain",
            Attribute::Profile => "profile",
        }
    }
}

impl Attributes {
    /// Sets an attribute from bytes that anyone may have written. White space around the name is
    /// ignored, and so is one NUL byte at the end.
    ///
    /// # Errors
    ///
    /// When it is no legal name; nothing was changed then.
    pub fn set(&mut self, attribute: Attribute, value: &[u8]) -> Result<(), BadAttribute> {
        let value = value.strip_suffix(b"\0").unwrap_or(value).trim_ascii();
        let name = std::str::from_utf8(value).map_err(|_| BadName);
        let name = name.and_then(str::parse);
        let name = name.map_err(|cause| BadAttribute { attribute, cause })?;
        *match attribute {
            Attribute::Template => &mut self.template,
            Attribute::Group => &mut self.group,
            Attribute::Domain => &mut self.domain,
            Attribute::Profile => &mut self.profile,
        } = Some(name);
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
            let value = format!(" {}-1\n", attribute.name());
            attributes.set(attribute, value.as_bytes()).unwrap();
        }
        let json = serde_json::to_string(&attributes).unwrap();
        assert_eq!(
            json,
            "{\"template\":\"template-1\",\"group\":\"group-1\",\"domain\":\"domain-1\",\"profile\":\"profile-1\"}"
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
