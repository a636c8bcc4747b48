// SPDX-License-Identifier: GPL-2.0 OR MIT

//! libFuzzer's program for [`agentzip_fuzz::trace`].

#![no_main]

use agentzip_fuzz::{run, trace};

libfuzzer_sys::fuzz_target!(|data: &[u8]| run(trace::target, data));
