// SPDX-License-Identifier: GPL-2.0 OR MIT

//! libFuzzer's program for [`agentzip_fuzz::config`].

#![no_main]

use agentzip_fuzz::{config, run};

libfuzzer_sys::fuzz_target!(|data: &[u8]| run(config::target, data));
