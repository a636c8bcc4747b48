// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The golden vectors on the host's build; the module checks the same ones at load.

use agentzip_codec::golden::{check, Buffers};
use agentzip_codec::host::Host;
use agentzip_codec::Scratch;

#[test]
fn golden_vectors() {
    let mut scratch = Box::new(Scratch::new());
    let mut buffers = Box::new(Buffers::new());
    assert_eq!(check(&mut Host::new(), &mut scratch, &mut buffers), Ok(21));
    // What an earlier run left behind does not matter.
    assert_eq!(check(&mut Host::new(), &mut scratch, &mut buffers), Ok(21));
}
