// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The density laboratory: page sets of real processes, and what is measured on them.
//!
//! `cargo xtask corpus` makes a [`corpus`]; later programs only read it. `cargo xtask bench density`
//! [replays](replay) it through the codec and the store that the module runs, in a [`lab`], and
//! compares the bytes that all takes with other [stores](baseline).
#![forbid(unsafe_code)]

pub mod ablation;
pub mod account;
pub mod baseline;
pub mod corpus;
pub mod lab;
pub mod platform;
pub mod pool;
pub mod replay;
pub mod report;
pub mod template;
pub mod timing;
pub mod training;
