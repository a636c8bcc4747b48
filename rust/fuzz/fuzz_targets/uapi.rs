// SPDX-License-Identifier: GPL-2.0 OR MIT

//! libFuzzer's program for [`agentzip_fuzz::uapi`].

#![no_main]

use agentzip_fuzz::{run, uapi};

libfuzzer_sys::fuzz_target!(|data: &[u8]| run(uapi::target, data));
