// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The line that tells the host how the guest's work ended.

use std::io::Write;
use std::process::ExitCode;

/// Set by `init` for its child: print the verdict line at the end.
pub const VARIABLE: &str = "AGENTZIP_VERDICT";

/// How many checks passed and failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Checks that passed.
    pub passed: u32,
    /// Checks that failed.
    pub failed: u32,
}

/// Prints the verdict line of `tally`, in one write.
///
/// The host demands exactly one such line of a guest.
pub fn print(tally: Tally) {
    let word = if tally.failed == 0 { "pass" } else { "fail" };
    let line = format!("@@ VERDICT {word} {} {}\n", tally.passed, tally.failed);
    let mut out = std::io::stdout().lock();
    // Nothing is left to do when standard output is gone: the host will miss the line.
    let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
}

/// Ends a subcommand: says what went wrong and gives the exit code, 0 or 1.
///
/// As the child of `init` it prints the verdict too, so exit codes other than
/// 0 and 1 (a panic, a signal) tell `init` that no verdict was printed.
pub fn finish(result: anyhow::Result<Tally>) -> ExitCode {
    let tally = result.unwrap_or_else(|error| {
        println!("@@ error: {error:#}");
        Tally {
            passed: 0,
            failed: 1,
        }
    });
    if std::env::var_os(VARIABLE).is_some() {
        print(tally);
    }
    ExitCode::from(u8::from(tally.failed != 0))
}
