// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Controller of the AgentZip kernel module.
//!
//! The layers, from the bottom: [`sys`] holds the system calls that need `unsafe`; [`device`]
//! talks to `/dev/agentzip`; [`sysfs`], [`cgroup`] and [`procfs`] read and write trees of files
//! below a root that tests replace; [`btf`] fingerprints the running kernel, [`signature`]
//! what templates are made of; [`reclaim`] and [`restore`] move the pages of a sandbox out
//! and in, [`hot`] finds those that had better stay; [`commands`] holds one function for each command of the `agentzip` binary, which takes
//! a [`Context`] and returns a report that prints itself as text or as JSON.
//!
//! The daemon, from the outside in: [`watch`], [`socket`] and [`protocol`] bring in what agents' runtimes
//! say, [`authority`] says who may say it; [`daemon`] waits for all of it and does what is to be done
//! ([`worker`] reclaims); [`governor`] decides that, by the rules of [`lifecycle`] and [`schedule`] and the
//! [`config`], without touching anything; [`predict`] foresees which pages a sandbox will touch when it
//! resumes, as purely. [`client`] is for those who speak to it.

#![deny(unsafe_code)]

pub mod attributes;
pub mod authority;
pub mod btf;
pub mod cgroup;
pub mod client;
pub mod commands;
pub mod config;
pub mod context;
pub mod daemon;
pub mod device;
pub mod directory;
pub mod error;
pub mod format;
pub mod governor;
pub mod hint;
pub mod host;
pub mod hot;
pub mod lifecycle;
pub mod limit;
pub mod name;
pub mod predict;
pub mod procfs;
pub mod protocol;
pub mod reclaim;
pub mod restore;
pub mod restorer;
pub mod schedule;
pub mod signature;
pub mod socket;
pub mod sys;
pub mod sysfs;
pub mod watch;
pub mod worker;
pub mod yields;
pub mod zswap;

pub use attributes::Attributes;
pub use authority::{Authority, Tenant, Uid};
pub use context::{Context, Paths};
pub use error::{Error, Result};
pub use hint::{Hint, ToolName};
pub use limit::Limit;
pub use name::ObjectName;
pub use signature::Signature;

/// Bytes of a page.
pub const PAGE_SIZE: u64 = 4096;
