// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The golden vectors on the host's build; the module checks the same ones at load.

use agentzip_codec::golden::{check, Buffers};
use agentzip_codec::host::{Dictionary, Host};
use agentzip_codec::Scratch;

#[test]
fn golden_vectors() {
    let mut scratch = Box::new(Scratch::new());
    let mut buffers = Box::new(Buffers::new());
    // The second time, what the earlier run left behind does not matter.
    for _ in 0..2 {
        let result = check(
            &mut Host::new(),
            &mut scratch,
            &mut buffers,
            Dictionary::new,
        );
        assert_eq!(result, Ok(30));
    }
}
