// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Traces: any text is refused, or is a trace that reads back what it writes.

use agentzip_ctl::predict::trace::{Trace, MAX_FAULTS};

/// Pages in a row that are enough: more are more of the same, and take time.
const ENOUGH: u64 = 1000;

/// The target.
pub fn target(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    // A source that ends in \r loses it, for \r\n is the end of a line as well.
    if is_slow(text) || text.contains('\r') {
        return;
    }
    let Ok(trace) = Trace::parse(text) else {
        return;
    };
    assert!(trace.faults() <= MAX_FAULTS);
    let written = trace.to_text();
    assert_eq!(Trace::parse(&written), Ok(trace), "{written:?}");
}

/// Whether a line has that many pages in a row, and no more than a trace may have faults.
fn is_slow(text: &str) -> bool {
    text.split('x').skip(1).any(|rest| {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let number = rest[..digits].parse::<u64>();
        number.is_ok_and(|number| (ENOUGH..=MAX_FAULTS as u64).contains(&number))
    })
}
