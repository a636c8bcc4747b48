// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Documentation/ABI names every request, field, event, error, hint, attribute and bound of the socket and the
//! xattrs, and its examples are what the code reads and writes.

use agentzip_ctl::authority::Uid;
use agentzip_ctl::hint::{MAX_EXPECT, MAX_HINT, MAX_TOOL};
use agentzip_ctl::protocol::{
    ErrorCode, Event, Happening, Request, Source, MAX_LINE, OPERATIONS, VERSION,
};
use agentzip_ctl::socket::{Settings, DEFAULT_PATH};
use agentzip_ctl::watch::NAMES;
use agentzip_ctl::Hint;

const SOCKET: &str = include_str!("../../Documentation/ABI/agentzip-socket.rst");
const XATTR: &str = include_str!("../../Documentation/ABI/testing/xattr-agentzip");

/// First cells of the table whose header begins with this.
fn first_cells(header: &str) -> Vec<&'static str> {
    let mut lines = SOCKET.lines().skip_while(|line| !line.starts_with(header));
    lines
        .next()
        .unwrap_or_else(|| panic!("no table {header:?}"));
    lines.next().unwrap();
    lines
        .take_while(|line| !line.starts_with("==="))
        .filter(|line| line.starts_with("``"))
        .map(|line| line.split("``").nth(1).unwrap())
        .collect()
}

#[test]
fn operations_errors_and_events_are_those_of_the_code() {
    assert_eq!(first_cells("``op``  "), OPERATIONS);
    assert_eq!(
        first_cells("``error``  "),
        ErrorCode::ALL.map(ErrorCode::name)
    );
    assert_eq!(first_cells("``event``  "), Happening::NAMES);
    for source in [
        Source::Xattr,
        Source::Socket,
        Source::Module,
        Source::Daemon,
    ] {
        let word = serde_json::to_value(source).unwrap();
        assert!(
            SOCKET.contains(&format!("``{}``", word.as_str().unwrap())),
            "{word}"
        );
    }
}

#[test]
fn hints_are_those_of_the_code() {
    let texts = first_cells("text  ");
    let words: Vec<&str> = texts
        .iter()
        .map(|text| {
            let text = text.replace("=MS", "=5").replace("=NAME", "=x");
            text.parse::<Hint>().unwrap().word()
        })
        .collect();
    assert_eq!(
        words,
        [
            "llm-wait",
            "message-near",
            "first-token",
            "tool-start",
            "tool-end",
            "idle",
            "done"
        ]
    );
    for word in words {
        assert!(XATTR.contains(word), "{word}");
    }
}

#[test]
fn xattrs_are_those_of_the_code() {
    let documented: Vec<&str> = XATTR
        .lines()
        .filter_map(|line| line.strip_prefix("What:"))
        .map(str::trim)
        .collect();
    let known = NAMES.map(|name| name.to_str().unwrap());
    assert_eq!(documented, known);
}

#[test]
fn fields_of_events_are_documented() {
    let cgroup = String::new;
    for happening in [
        Happening::Reclaimed {
            cgroup: cgroup(),
            cgroup_id: 1,
            asked_bytes: 1,
            reclaimed_bytes: 1,
            cpu_us: 1,
            stop_us: Some(1),
        },
        Happening::Pressure {
            level: "high".into(),
            used_percent: 1.0,
        },
        Happening::Reloaded {
            error: Some(String::new()),
        },
        Happening::Detached {
            cgroup: cgroup(),
            cgroup_id: 1,
            reason: "".into(),
        },
        Happening::State {
            cgroup: cgroup(),
            cgroup_id: 1,
            from: "a".into(),
            to: "b".into(),
        },
        Happening::Hint {
            cgroup: cgroup(),
            cgroup_id: 1,
            hint: Hint::Idle,
            source: Source::Xattr,
        },
        Happening::Refused {
            cgroup: cgroup(),
            reason: String::new(),
        },
        Happening::Alarm {
            about: "".into(),
            raised: true,
            reason: String::new(),
        },
    ] {
        let value = serde_json::to_value(Event::now(Uid::ROOT, happening)).unwrap();
        for field in value.as_object().unwrap().keys() {
            assert!(SOCKET.contains(&format!("``{field}``")), "{field}");
        }
    }
}

#[test]
fn bounds_are_those_of_the_code() {
    for (text, value) in [
        (format!("at most\n{} KiB", MAX_LINE >> 10), "MAX_LINE"),
        (format!("{} bytes at most", MAX_HINT), "MAX_HINT"),
        (format!("0 to {}", MAX_EXPECT.as_millis()), "MAX_EXPECT"),
        (format!("1 to {MAX_TOOL} ASCII letters"), "MAX_TOOL"),
        (format!("protocol, which is {VERSION}"), "VERSION"),
        (
            format!("``max_clients`` ({})", Settings::default().max_clients),
            "max_clients",
        ),
        (format!("({:04o})", Settings::default().mode), "mode"),
        (format!("``{DEFAULT_PATH}``"), "DEFAULT_PATH"),
    ] {
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words(SOCKET).contains(&words(&text)), "{value}: {text:?}");
    }
}

/// Lines of the examples: requests behind `>`; events and replies behind `<`.
#[test]
fn examples_are_what_is_spoken() {
    let mut requests = 0;
    let mut events = 0;
    for line in SOCKET.lines() {
        if let Some(request) = line.strip_prefix("  > ") {
            requests += 1;
            let parsed = Request::parse(request.as_bytes());
            assert!(parsed.is_ok() || request.contains("nap"), "{request}");
        } else if let Some(answer) = line.strip_prefix("  < ") {
            if answer.contains("\"event\"") {
                events += 1;
                let event: Event = serde_json::from_str(answer).unwrap();
                let written = String::from_utf8(event.to_line()).unwrap();
                assert_eq!(written.trim_end(), answer);
            } else {
                serde_json::from_str::<agentzip_ctl::protocol::Answer>(answer).unwrap();
            }
        }
    }
    assert_eq!((requests, events), (2, 1));
}

/// And what it says of words and figures is what there is.
#[test]
fn what_status_says_of_prefetch() {
    let board = agentzip_ctl::restorer::shown::Board::default();
    let shown = agentzip_ctl::restorer::shown::Shown {
        window_pages: Some(1),
        pages_at_every_resume: Some(1),
        ..Default::default()
    };
    let fields = |value: serde_json::Value| match value {
        serde_json::Value::Object(fields) => fields.into_iter().map(|(name, _)| name).collect(),
        _ => Vec::new(),
    };
    let mut all = fields(serde_json::to_value(board).unwrap());
    all.extend(fields(serde_json::to_value(shown).unwrap()));
    assert!(all.len() > 25);
    for field in all {
        assert!(SOCKET.contains(&format!("``{field}``")), "{field}");
    }
    for about in ["hit-ratio", "first-tool"] {
        assert!(SOCKET.contains(&format!("``{about}``")), "{about}");
    }
}

/// Every key, with its default, is in the admin guide.
#[test]
fn every_key_of_the_configuration() {
    let guide = include_str!("../../Documentation/admin-guide.rst");
    let text = toml::to_string(&agentzip_ctl::config::Config::default()).unwrap();
    let mut table = String::new();
    let mut keys = 0;
    for line in text.lines() {
        if let Some(name) = line.strip_prefix('[') {
            table = format!("{}.", name.trim_end_matches(']'));
        } else if let Some((key, value)) = line.split_once(" = ") {
            let key = format!("``{table}{key}``");
            let mut rows = guide
                .lines()
                .skip_while(|line| !line.starts_with("``time_scale``"));
            let row = rows.find(|line| line.starts_with(&key));
            let row = row.unwrap_or_else(|| panic!("{key} is not in the admin guide"));
            let default = value.trim_matches('"');
            let said = match default {
                "[]" => row.contains("none"),
                "" => true,
                other => row.contains(other),
            };
            assert!(said, "{row:?} does not say {default}");
            keys += 1;
        }
    }
    assert!(keys > 30, "{keys}");
}
