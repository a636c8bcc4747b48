// SPDX-License-Identifier: GPL-2.0 OR MIT
//! In a guest whose kernel takes signed modules only: ours, which is not signed, is refused, and the controller
//! says what to do.

use std::path::Path;

use anyhow::{ensure, Context, Result};

use crate::suite::fixture::{controller, module};
use crate::verdict::Tally;

/// Options of `agentzip-guest refused`.
#[derive(clap::Args)]
pub struct Args {
    /// The errno that loading the module has to end with.
    #[arg(long)]
    errno: i32,
}

/// Tries to load the module.
pub fn main(args: Args) -> Result<Tally> {
    let loaded = module::load_as_is("");
    let errno = loaded.err().and_then(|error| error.raw_os_error());
    ensure!(
        errno == Some(args.errno),
        "loading the module: errno {errno:?}, expected {}",
        args.errno
    );
    ensure!(!Path::new("/sys/kernel/agentzip").exists(), "it is there");
    let complaint = controller::controller(&["arm"])?
        .err()
        .context("armed without a module")?;
    for word in ["/dev/agentzip", "insmod"] {
        ensure!(complaint.contains(word), "no {word:?} in: {complaint}");
    }
    Ok(Tally {
        passed: 1,
        failed: 0,
    })
}
