// SPDX-License-Identifier: GPL-2.0 OR MIT

//! libFuzzer's program for [`agentzip_fuzz::template`].

#![no_main]

use agentzip_fuzz::{run, template};

libfuzzer_sys::fuzz_target!(|data: &[u8]| run(template::target, data));
