// SPDX-License-Identifier: GPL-2.0 OR MIT

//! libFuzzer's program for [`agentzip_fuzz::signature`].

#![no_main]

use agentzip_fuzz::{run, signature};

libfuzzer_sys::fuzz_target!(|data: &[u8]| run(signature::target, data));
