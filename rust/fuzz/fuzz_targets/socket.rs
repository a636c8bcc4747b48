// SPDX-License-Identifier: GPL-2.0 OR MIT

//! libFuzzer's program for [`agentzip_fuzz::socket`].

#![no_main]

use agentzip_fuzz::{run, socket};

libfuzzer_sys::fuzz_target!(|data: &[u8]| run(socket::target, data));
