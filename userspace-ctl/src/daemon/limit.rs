// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Bounds how much is logged: so many lines of a kind in a time, then how many were left out.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::lifecycle::Time;

/// Lines of one kind in one window.
const LINES: u32 = 20;
/// The window.
const WINDOW: Duration = Duration::from_secs(10);

/// Counts lines by kind. Kinds are words of the source, so there are few.
#[derive(Debug, Default)]
pub struct LogLimit {
    kinds: BTreeMap<&'static str, Window>,
}

#[derive(Debug)]
struct Window {
    began: Time,
    lines: u32,
    left_out: u32,
}

impl LogLimit {
    /// Whether a line of this kind may be logged; with how many were left out before it.
    pub fn allow(&mut self, kind: &'static str, now: Time) -> Option<u32> {
        let window = self.kinds.entry(kind).or_insert(Window {
            began: now,
            lines: 0,
            left_out: 0,
        });
        // Also when the clock went back.
        if now < window.began || now - window.began >= WINDOW {
            window.began = now;
            window.lines = 0;
        }
        if window.lines >= LINES {
            window.left_out = window.left_out.saturating_add(1);
            return None;
        }
        window.lines += 1;
        Some(std::mem::take(&mut window.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_cut_and_counted() {
        let mut limit = LogLimit::default();
        let at = Duration::from_secs;
        let allowed = (0..1000)
            .filter(|_| limit.allow("a", at(1)).is_some())
            .count();
        assert_eq!(allowed, LINES as usize);
        assert_eq!(limit.allow("b", at(1)), Some(0));
        assert_eq!(limit.allow("a", at(11)), Some(980));
        assert_eq!(limit.allow("a", at(11)), Some(0));
        // The clock goes back: a new window.
        assert_eq!(limit.allow("a", at(0)), Some(0));
    }
}
