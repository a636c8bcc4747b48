// SPDX-License-Identifier: GPL-2.0

//! The `selftest` parameter: the codec's golden vectors, checked by the kernel's build of it.

use kernel::alloc::flags::{GFP_KERNEL, __GFP_ZERO};
use kernel::prelude::*;

use crate::codec::{golden, PAYLOAD_VERSION};
use crate::dictionary::Dictionary;
use crate::scratch::Scratch;

/// Checks the golden vectors. `EBADMSG` when one fails, and the log says which; `ENOMEM` when there
/// is no memory to check them.
pub(crate) fn run() -> Result {
    let mut scratch = Scratch::with_dictionaries()?;
    let vectors = KVBox::<golden::Buffers>::new_uninit(GFP_KERNEL | __GFP_ZERO)?;
    // SAFETY: All bytes zero is a valid value: arrays of bytes.
    let mut vectors = unsafe { vectors.assume_init() };
    let codec = scratch.buffers.work.codec();
    let mut no_dictionary = Ok(());
    let dictionary = |content: &[u8]| {
        let made = Dictionary::new(content);
        made.map_err(|error| no_dictionary = Err(error)).ok()
    };
    match golden::check(&mut scratch.zstd, codec, &mut vectors, dictionary) {
        Ok(count) => {
            pr_info!(
                "selftest: {} golden vectors of payload version {} passed\n",
                count,
                PAYLOAD_VERSION
            );
            Ok(())
        }
        Err(error) => {
            no_dictionary?;
            pr_err!("selftest: {} vector {} failed\n", error.what, error.vector);
            Err(EBADMSG)
        }
    }
}
