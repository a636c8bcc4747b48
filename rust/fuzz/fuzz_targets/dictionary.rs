// SPDX-License-Identifier: GPL-2.0 OR MIT

//! libFuzzer's program for [`agentzip_fuzz::dictionary`].

#![no_main]

use agentzip_fuzz::{dictionary, run};

libfuzzer_sys::fuzz_target!(|data: &[u8]| run(dictionary::target, data));
