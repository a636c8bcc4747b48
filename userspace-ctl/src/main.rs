// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The `agentzip` command.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    match cli::run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("agentzip: {error:#}");
            ExitCode::FAILURE
        }
    }
}
