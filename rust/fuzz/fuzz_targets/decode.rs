// SPDX-License-Identifier: GPL-2.0 OR MIT

//! libFuzzer's program for [`agentzip_fuzz::decode`].

#![no_main]

use agentzip_fuzz::{decode, run};

libfuzzer_sys::fuzz_target!(|data: &[u8]| run(decode::target, data));
