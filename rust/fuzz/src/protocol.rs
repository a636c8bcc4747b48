// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What agents' runtimes say: any line is a request that reads back what it writes, or is refused in one
//! line; any xattr is an attribute or a hint that does, or is refused.
//!
//! An input is lines.

use agentzip_ctl::attributes::Attribute;
use agentzip_ctl::protocol::{Answer, Request, Response};
use agentzip_ctl::{Attributes, Hint};

/// The target.
pub fn target(data: &[u8]) {
    for line in data.split(|byte| *byte == b'\n') {
        request(line);
        xattr(line);
    }
}

fn request(line: &[u8]) {
    match Request::parse(line) {
        Ok(parsed) => {
            let again = parsed.request.to_line(parsed.id);
            let again = again.strip_suffix(b"\n").expect("a line has an end");
            assert!(!again.contains(&b'\n'));
            assert_eq!(Request::parse(again), Ok(parsed));
        }
        Err(wrong) => {
            let mut reply = Vec::new();
            let response = Response::error(wrong.code, wrong.reason.as_str());
            response.write_line(wrong.id, &mut reply);
            let reply = reply.strip_suffix(b"\n").expect("a line has an end");
            assert!(!reply.contains(&b'\n'));
            let answer: Answer = serde_json::from_slice(reply).expect("a refusal can be read");
            let expected = Answer {
                ok: false,
                id: wrong.id,
                result: None,
                error: Some(wrong.code),
                reason: Some(wrong.reason),
            };
            assert_eq!(answer, expected);
        }
    }
}

fn xattr(value: &[u8]) {
    if let Ok(hint) = Hint::from_bytes(value) {
        assert_eq!(hint.to_string().parse(), Ok(hint));
    }
    let mut attributes = Attributes::default();
    for attribute in Attribute::ALL {
        let before = attributes.clone();
        let set = attributes.set(attribute, value);
        // A switch may be told what it is already.
        if attribute != Attribute::Sensitive || set.is_err() {
            assert_eq!(set.is_ok(), attributes != before);
        }
    }
    let text = serde_json::to_string(&attributes).expect("names are written as JSON");
    let again: Attributes = serde_json::from_str(&text).expect("what was written is read");
    assert_eq!(again, attributes);
}
