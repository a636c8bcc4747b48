// SPDX-License-Identifier: GPL-2.0 OR MIT

//! libFuzzer's program for [`agentzip_fuzz::protocol`].

#![no_main]

use agentzip_fuzz::{protocol, run};

libfuzzer_sys::fuzz_target!(|data: &[u8]| run(protocol::target, data));
