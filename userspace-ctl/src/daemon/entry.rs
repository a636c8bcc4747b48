// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A sandbox as the daemon holds it: its directory, its files, and what the module makes of it.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use super::files::CgroupFiles;
use crate::attributes::Attributes;
use crate::authority::Uid;
use crate::directory::Directory;
use crate::governor::{Profile, View};
use crate::hint::Hint;
use crate::hot::HotSet;
use crate::lifecycle::Time;
use crate::protocol::Source;
use crate::restorer::shown::Shown;
use crate::socket::Token;
use crate::sysfs::Told;

/// First pause before an attachment that failed is tried again, and the longest.
const RETRY: [Duration; 2] = [Duration::from_secs(5), Duration::from_secs(300)];

/// For how long after a note the same hint by xattr counts as its echo.
const ECHO: Duration = Duration::from_secs(1);

/// How far the attachment to the module has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Attachment {
    /// There is no module.
    None,
    /// The clerk has the order.
    Asked,
    /// The module has it.
    Done,
    /// It failed.
    Failed {
        /// When it is tried again.
        at: Time,
        /// How long the pause before that is.
        pause: Duration,
        /// Why.
        reason: String,
    },
}

impl Attachment {
    fn name(&self) -> &'static str {
        match self {
            Attachment::None => "none",
            Attachment::Asked => "asked",
            Attachment::Done => "done",
            Attachment::Failed { .. } => "failed",
        }
    }

    /// It failed once more. True when the reason is a new one.
    pub fn fail(&mut self, reason: String, now: Time) -> bool {
        let (pause, new) = match self {
            Attachment::Failed {
                pause,
                reason: before,
                ..
            } => ((*pause * 2).min(RETRY[1]), *before != reason),
            _ => (RETRY[0], true),
        };
        *self = Attachment::Failed {
            at: now.saturating_add(pause),
            pause,
            reason,
        };
        new
    }

    /// It is to be tried now.
    pub fn is_due(&self, now: Time) -> bool {
        match self {
            Attachment::Failed { at, pause, .. } => now >= *at || *at - now > *pause,
            Attachment::None | Attachment::Asked | Attachment::Done => false,
        }
    }
}

#[derive(Debug)]
pub(super) struct Entry {
    pub directory: Arc<Directory>,
    pub owner: Uid,
    pub attributes: Attributes,
    pub source: Source,
    pub attachment: Attachment,
    /// The last failure, for as long as the clerk has the order.
    pub failed: Option<Attachment>,
    /// It shall be something else since the clerk got the order that it has.
    pub changed: bool,
    pub files: CgroupFiles,
    /// Its hot pages, as of the last sample.
    pub hot: Arc<HotSet>,
    /// The last hint by xattr.
    pub by_xattr: Option<Hint>,
    /// A hint by another way came after that, and this is noted on the directory.
    pub outdated: bool,
    /// When we last wrote a note on its directory, which the watcher takes for the same hint again.
    pub noted: Option<Time>,
    /// We froze it.
    pub frozen: bool,
    /// Who waits for the attachment.
    pub attaching: Vec<Token>,
    /// Who waits for all its pages to be back.
    pub quiescing: Vec<Token>,
}

impl Entry {
    pub fn new(
        directory: Arc<Directory>,
        owner: Uid,
        attributes: Attributes,
        source: Source,
    ) -> Entry {
        Entry {
            directory,
            owner,
            attributes,
            source,
            attachment: Attachment::None,
            failed: None,
            changed: false,
            files: CgroupFiles::default(),
            hot: Arc::default(),
            by_xattr: None,
            outdated: false,
            noted: None,
            frozen: false,
            attaching: Vec::new(),
            quiescing: Vec::new(),
        }
    }

    /// Whether this hint by xattr is but the echo of a note of ours.
    pub fn is_echo(&self, hint: &Hint, now: Time) -> bool {
        let noted = self
            .noted
            .is_some_and(|noted| now.saturating_sub(noted) < ECHO);
        noted && self.by_xattr.as_ref() == Some(hint)
    }

    /// Its path in the hierarchy.
    pub fn name(&self) -> String {
        self.directory.name()
    }

    /// Its profile; one that is not known counts as interactive, which is told.
    pub fn profile(&self) -> (Profile, Option<String>) {
        match &self.attributes.profile {
            None => (Profile::default(), None),
            Some(name) => match name.as_str().parse() {
                Ok(profile) => (profile, None),
                Err(problem) => (Profile::default(), Some(problem)),
            },
        }
    }

    /// The module has it as what it shall be.
    pub fn is_as(&self, told: &Told) -> bool {
        same_sandbox(&self.attributes, told)
    }

    /// The restorer knows of it: records its faults, learns from them and makes plans.
    pub fn is_recorded(&self) -> bool {
        self.attachment == Attachment::Done && !self.attributes.sensitive
    }

    /// How it is listed.
    pub fn listed(&self, view: View, prefetch: Option<Shown>) -> Listed {
        Listed {
            cgroup: self.name(),
            attributes: self.attributes.clone(),
            attachment: self.attachment.name(),
            problem: match &self.attachment {
                Attachment::Failed { reason, .. } => Some(reason.clone()),
                _ => view.reason.map(|reason| reason.to_string()),
            },
            hot_bytes: self.hot.bytes(),
            prefetch,
            view,
        }
    }
}

/// The module has a sandbox as these attributes say.
pub(super) fn same_sandbox(attributes: &Attributes, told: &Told) -> bool {
    let Some(template) = &attributes.template else {
        return false;
    };
    let is = |name: Option<&crate::ObjectName>, default: &str, told: &str| {
        name.map_or(default, |name| name.as_str()) == told
    };
    template.as_str() == told.template
        && attributes.sensitive == told.sensitive
        && is(attributes.group.as_ref(), &told.template, &told.group)
        && is(
            attributes.domain.as_ref(),
            agentzip_uapi::DEFAULT_DOMAIN,
            &told.domain,
        )
}

/// A sandbox as `status` and `list` of the socket show it.
#[derive(Clone, Debug, Serialize)]
pub struct Listed {
    /// Path of its cgroup in the hierarchy.
    pub cgroup: String,
    /// What it shall be.
    #[serde(flatten)]
    pub attributes: Attributes,
    /// How far the attachment to the module has come: `none` (there is no module), `asked`, `done`,
    /// `failed`.
    pub attachment: &'static str,
    /// Why nothing, or less than could be, is saved.
    pub problem: Option<String>,
    /// Bytes of the pages that it writes all the time, as of the last sample; with `encode.hot_skip` only.
    pub hot_bytes: u64,
    /// What prefetch did for it; without plans `None`.
    pub prefetch: Option<Shown>,
    /// What the governor knows.
    #[serde(flatten, serialize_with = "without_profile")]
    pub view: View,
}

/// The profile is an attribute already; a second field of that name would be no JSON.
fn without_profile<S: serde::Serializer>(view: &View, to: S) -> Result<S::Ok, S::Error> {
    let value = serde_json::to_value(view).map_err(serde::ser::Error::custom)?;
    let serde_json::Value::Object(mut fields) = value else {
        return Err(serde::ser::Error::custom("a view is an object"));
    };
    fields.remove("profile");
    if let Some(id) = fields.remove("id") {
        fields.insert("cgroup_id".to_owned(), id);
    }
    fields.serialize(to)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attachments_are_tried_again_at_growing_pauses() {
        let at = Duration::from_secs;
        let mut attachment = Attachment::Asked;
        assert!(attachment.fail("a".to_owned(), at(10)));
        assert!(!attachment.is_due(at(14)) && attachment.is_due(at(15)));
        assert!(!attachment.fail("a".to_owned(), at(15)));
        assert!(!attachment.is_due(at(24)) && attachment.is_due(at(25)));
        assert!(attachment.fail("b".to_owned(), at(25)));
        for _ in 0..20 {
            attachment.fail("b".to_owned(), at(30));
        }
        assert!(attachment.is_due(at(330)));
        // The clock went back.
        assert!(attachment.is_due(at(1)));
    }

    #[test]
    fn a_sensitive_sandbox_is_not_recorded() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("sb")).unwrap();
        let mount = crate::directory::Mount::open(dir.path()).unwrap();
        for sensitive in [false, true] {
            let attributes = Attributes {
                sensitive,
                ..Attributes::default()
            };
            let directory = mount.directory(std::path::Path::new("sb")).unwrap();
            let mut entry = Entry::new(Arc::new(directory), Uid::ROOT, attributes, Source::Xattr);
            assert!(!entry.is_recorded(), "the module does not have it yet");
            entry.attachment = Attachment::Done;
            assert_eq!(entry.is_recorded(), !sensitive);
        }
    }

    #[test]
    fn what_the_module_has() {
        let told = Told {
            phase: "running".to_owned(),
            template: "t".to_owned(),
            group: "t".to_owned(),
            domain: "default".to_owned(),
            attached: true,
            sensitive: false,
        };
        let attributes = Attributes {
            template: Some("t".parse().unwrap()),
            ..Attributes::default()
        };
        assert!(same_sandbox(&attributes, &told));
        let group = Attributes {
            group: Some("g".parse().unwrap()),
            ..attributes.clone()
        };
        assert!(!same_sandbox(&group, &told));
        let sensitive = Attributes {
            sensitive: true,
            ..attributes.clone()
        };
        assert!(!same_sandbox(&sensitive, &told));
        let so = Told {
            sensitive: true,
            ..told.clone()
        };
        assert!(same_sandbox(&sensitive, &so) && !same_sandbox(&attributes, &so));
        let domain = Attributes {
            domain: Some("default".parse().unwrap()),
            ..attributes
        };
        assert!(same_sandbox(&domain, &told));
        assert!(!same_sandbox(&Attributes::default(), &told));
    }
}
