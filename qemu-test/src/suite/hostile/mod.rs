// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Calls and files in the hands of whoever means no good, or has a bug: calls that are right but for
//! something, from several threads at once; descriptors of every kind; every file of the sysfs tree, written
//! and read at random. Whatever comes of it, sandboxes keep what they hold.

mod call;
mod calls;
mod files;

use std::time::Duration;

use super::runner::Test;

macro_rules! test {
    ($module:ident::$f:ident) => {
        Test {
            name: concat!("hostile.", stringify!($f)),
            timeout_s: 120,
            run: $module::$f,
        }
    };
}

/// The tests of this folder.
pub const TESTS: &[Test] = &[
    test!(calls::mutated_calls),
    test!(calls::descriptors_of_every_kind),
    test!(files::files_written_and_read),
    test!(files::files_as_anybody),
];

/// How long calls are made.
const TIME: Duration = Duration::from_secs(15);
/// Threads that make them.
const THREADS: usize = 4;
/// Longest that one call may take.
const LONGEST: Duration = Duration::from_secs(10);
