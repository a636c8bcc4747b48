// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The switch of zswap, which decides how large the folios are that the kernel swaps in.

use std::path::PathBuf;

use crate::error::{read_text, write_text, Result};

/// `/sys/module/zswap/parameters`.
#[derive(Clone, Debug)]
pub struct Zswap {
    root: PathBuf,
}

impl Zswap {
    /// The parameters in this directory.
    pub fn new(root: PathBuf) -> Self {
        Zswap { root }
    }

    /// Makes the kernel swap in one page at a time from now until the next boot.
    ///
    /// A load of a large folio with one of our pages in it cannot be served. Synchronous swap
    /// devices (zram) bring large folios in as long as zswap was never set up since boot
    /// (`zswap_never_enabled()`). Zswap sets itself up at the first write to `enabled`, whatever
    /// is written; so its own value is written back, and no page goes to zswap in between.
    ///
    /// Returns whether zswap is on.
    ///
    /// # Errors
    ///
    /// When the parameter cannot be read or written (`ENODEV`: zswap found no compressor).
    pub fn swap_in_single_pages(&self) -> Result<bool> {
        let path = self.root.join("enabled");
        let enabled = read_text(&path)?;
        let enabled = enabled.trim();
        if enabled == "Y" {
            return Ok(true);
        }
        write_text(&path, enabled)?;
        Ok(false)
    }
}
