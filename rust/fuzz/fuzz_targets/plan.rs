// SPDX-License-Identifier: GPL-2.0 OR MIT

//! libFuzzer's program for [`agentzip_fuzz::plan`].

#![no_main]

use agentzip_fuzz::{plan, run};

libfuzzer_sys::fuzz_target!(|data: &[u8]| run(plan::target, data));
