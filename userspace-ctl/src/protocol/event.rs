// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Events: what subscribers are told.

use std::borrow::Cow;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::attributes::Attributes;
use crate::authority::Uid;
use crate::hint::Hint;

/// A word of a fixed vocabulary; owned only where a client read it.
pub type Word = Cow<'static, str>;

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// When: milliseconds since 1970.
    pub time_ms: u64,
    /// Whose cgroup it is about: others than it and root do not see the event. Not sent.
    #[serde(skip, default = "root")]
    pub owner: Uid,
    /// What.
    #[serde(flatten)]
    pub happening: Happening,
}

fn root() -> Uid {
    Uid::ROOT
}

/// By which way a hint or an attachment came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// An xattr of the cgroup's directory.
    Xattr,
    /// The socket.
    Socket,
    /// What the module had when the daemon began.
    Module,
    /// The daemon itself.
    Daemon,
}

/// What happened. `cgroup` is the path in the hierarchy, `cgroup_id` the id by which the module knows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Happening {
    /// A cgroup became a sandbox.
    Attached {
        /// The sandbox.
        cgroup: String,
        /// Its id.
        cgroup_id: u64,
        /// What it is.
        #[serde(flatten)]
        attributes: Attributes,
        /// Who wanted it.
        source: Source,
    },
    /// A sandbox is none any more.
    Detached {
        /// What was the sandbox.
        cgroup: String,
        /// Its id.
        cgroup_id: u64,
        /// Why: `removed`, `untagged`, `swallowed`, `asked`, `detached`, `unwatched`.
        reason: Word,
    },
    /// A hint came in.
    Hint {
        /// The sandbox.
        cgroup: String,
        /// Its id.
        cgroup_id: u64,
        /// The hint.
        hint: Hint,
        /// By which way it came.
        source: Source,
    },
    /// A sandbox came into another state.
    State {
        /// The sandbox.
        cgroup: String,
        /// Its id.
        cgroup_id: u64,
        /// State before: `running`, `cooling`, `compressed`, `resuming`, `terminated`.
        from: Word,
        /// State from now on.
        to: Word,
    },
    /// A reclaim job ended.
    Reclaimed {
        /// The sandbox.
        cgroup: String,
        /// Its id.
        cgroup_id: u64,
        /// Bytes that were asked for.
        asked_bytes: u64,
        /// Bytes by which its memory fell.
        reclaimed_bytes: u64,
        /// CPU time of the worker, in microseconds.
        cpu_us: u64,
        /// It was stopped: microseconds from the order to the end; `None` when it ran to its end.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        stop_us: Option<u64>,
    },
    /// Something that a user asked for by xattr was not done.
    Refused {
        /// The cgroup.
        cgroup: String,
        /// Why.
        reason: String,
    },
    /// The watermarks of memory were crossed.
    Pressure {
        /// `low`, `high`.
        level: Word,
        /// Memory used, in percent.
        used_percent: f64,
    },
    /// Prefetch became worse than it used to be, or well again.
    Alarm {
        /// `hit-ratio`: fewer of the restored pages are accessed in time than usual; `first-tool`:
        /// `slo.first_tool_p99` is missed.
        about: Word,
        /// It begins; false: it is over.
        raised: bool,
        /// The numbers, for people.
        reason: String,
    },
    /// The configuration was read again.
    Reloaded {
        /// What was wrong with it; the former one stays in effect then.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    },
}

impl Happening {
    /// Names of all events.
    pub const NAMES: [&'static str; 9] = [
        "attached",
        "detached",
        "hint",
        "state",
        "reclaimed",
        "refused",
        "pressure",
        "alarm",
        "reloaded",
    ];

    /// Its name.
    pub fn name(&self) -> &'static str {
        match self {
            Happening::Attached { .. } => "attached",
            Happening::Detached { .. } => "detached",
            Happening::Hint { .. } => "hint",
            Happening::State { .. } => "state",
            Happening::Reclaimed { .. } => "reclaimed",
            Happening::Refused { .. } => "refused",
            Happening::Pressure { .. } => "pressure",
            Happening::Alarm { .. } => "alarm",
            Happening::Reloaded { .. } => "reloaded",
        }
    }
}

impl Event {
    /// Something that happened just now, about a cgroup of `owner`; about the host: of root.
    pub fn now(owner: Uid, happening: Happening) -> Event {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        Event {
            time_ms: since.map_or(0, |time| {
                u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
            }),
            owner,
            happening,
        }
    }

    /// Writes it as a line, with its end.
    pub fn to_line(&self) -> Vec<u8> {
        // Strings and numbers, written to memory: nothing here can fail.
        let mut bytes = serde_json::to_vec(self).unwrap_or_default();
        bytes.push(b'\n');
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_event_reads_back_what_it_writes() {
        let cgroup = || "/agents/sb1".to_owned();
        let cgroup_id = 412;
        let all = [
            Happening::Attached {
                cgroup: cgroup(),
                cgroup_id,
                attributes: Attributes {
                    template: Some("t".parse().unwrap()),
                    ..Attributes::default()
                },
                source: Source::Xattr,
            },
            Happening::Detached {
                cgroup: cgroup(),
                cgroup_id,
                reason: "removed".into(),
            },
            Happening::Hint {
                cgroup: cgroup(),
                cgroup_id,
                hint: "tool-start;tool=pytest".parse().unwrap(),
                source: Source::Socket,
            },
            Happening::State {
                cgroup: cgroup(),
                cgroup_id,
                from: "running".into(),
                to: "cooling".into(),
            },
            Happening::Reclaimed {
                cgroup: cgroup(),
                cgroup_id,
                asked_bytes: 5,
                reclaimed_bytes: 4,
                cpu_us: 3,
                stop_us: Some(2),
            },
            Happening::Refused {
                cgroup: cgroup(),
                reason: "no".into(),
            },
            Happening::Pressure {
                level: "high".into(),
                used_percent: 81.5,
            },
            Happening::Alarm {
                about: "hit-ratio".into(),
                raised: true,
                reason: "40% are accessed in time; usual are 70%".to_owned(),
            },
            Happening::Reloaded { error: None },
        ];
        assert_eq!(all.each_ref().map(Happening::name), Happening::NAMES);
        for happening in all {
            let name = happening.name();
            let event = Event::now(Uid::ROOT, happening);
            assert!(event.time_ms > 1_600_000_000_000);
            let line = String::from_utf8(event.to_line()).unwrap();
            assert!(line.contains(&format!("\"event\":\"{name}\"")), "{line}");
            assert!(line.ends_with("}\n") && !line.contains("owner"), "{line}");
            assert_eq!(
                serde_json::from_str::<Event>(&line).unwrap(),
                event,
                "{line}"
            );
        }
    }
}
