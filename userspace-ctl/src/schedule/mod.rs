// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The rules of scheduling, each by itself and without side effects; [`crate::governor`] puts them
//! together.
//!
//! [`score`] says how much a sandbox is worth compressing; [`fair`] divides the work among those
//! that wait; [`budget`] bounds its CPU time; [`watermark`] says when memory is short;
//! [`allowance`] bounds what one may set in motion; [`admission`] lets waking sandboxes go on one after the other.

pub mod admission;
pub mod allowance;
pub mod budget;
pub mod fair;
pub mod score;
pub mod watermark;
