// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What is known of one sandbox.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use agentzip_uapi::Phase;
use serde::Serialize;

use crate::config::{Config, Weights};
use crate::lifecycle::{Machine, Time};
use crate::schedule::allowance::Allowance;
use crate::schedule::score::Access;

/// What a sandbox is weighed by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Profile {
    /// Somebody waits for the answer.
    #[default]
    Interactive,
    /// Nobody does.
    Batch,
}

impl Profile {
    /// Its weights.
    pub fn weights(self, config: &Config) -> Weights {
        match self {
            Profile::Interactive => config.profile.interactive.into(),
            Profile::Batch => config.profile.batch.into(),
        }
    }

    /// How long a sandbox of this profile may be held.
    pub(super) fn hold(self, config: &Config) -> Duration {
        config.time(match self {
            Profile::Interactive => config.schedule.hold_interactive,
            Profile::Batch => config.schedule.hold_batch,
        })
    }
}

impl FromStr for Profile {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "interactive" => Ok(Profile::Interactive),
            "batch" => Ok(Profile::Batch),
            _ => Err(format!("profile {text:?} is neither interactive nor batch")),
        }
    }
}

/// Why nothing can be taken from a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The machine has no swap, or none that is free.
    NoSwap,
    /// `memory.swap.max` of the cgroup or one above it leaves no room.
    SwapMax,
    /// What is left is locked, or in use by the kernel.
    Unevictable,
    /// Its files cannot be read or written.
    Files,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::NoSwap => "no swap is free; fix: swapon DEVICE",
            Reason::SwapMax => "memory.swap.max of its cgroup, or of one above it, is reached",
            Reason::Unevictable => "what is left is locked (mlock) or in use by the kernel",
            Reason::Files => "the files of its cgroup cannot be used; see the log",
        })
    }
}

/// Why a sandbox is to be compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Want {
    /// Memory is short: its file cache goes as well, and first.
    pub pressure: bool,
}

/// A job that runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job {
    /// CPU time that was set aside for it.
    pub estimate: Duration,
    /// It was told to stop.
    pub stopping: bool,
}

#[derive(Debug)]
pub(super) struct Sandbox {
    pub machine: Machine,
    pub profile: Profile,
    /// The module has it.
    pub attached: bool,
    /// Held still for a tool that reads its memory.
    pub quiesced: bool,
    pub want: Option<Want>,
    pub job: Option<Job>,
    /// Bytes that were taken since it last woke: what it needs when it wakes.
    pub taken: u64,
    /// What it needed when it last woke.
    pub needs: u64,
    pub access: Access,
    /// Turns that it may take.
    pub turns: Allowance,
    /// `memory.current`, as of the last sample.
    pub current: u64,
    /// The least of it since the sandbox was compressed.
    pub low: u64,
    pub cpu_usec: Option<u64>,
    pub psi: f64,
    /// When it last woke.
    pub woke: Option<Time>,
    /// When it was restored ahead of the end of this wait.
    pub restored: Option<Time>,
    pub reason: Option<Reason>,
    /// Jobs in a row that came to nothing.
    pub dry_jobs: u32,
    /// Nothing is left to take, not even from its file cache, until it is larger than this.
    /// `u64::MAX`: as large as the next sample says.
    pub dry: Option<u64>,
    /// Not to be tried before this, and how long the next pause is.
    pub pause: Option<(Time, Duration)>,
    pub score: f64,
    /// Hints that it was given.
    pub hints: u64,
}

impl Sandbox {
    pub fn new(machine: Machine, profile: Profile, now: Time) -> Sandbox {
        Sandbox {
            machine,
            profile,
            attached: false,
            quiesced: false,
            want: None,
            job: None,
            taken: 0,
            needs: 0,
            access: Access::new(now),
            turns: Allowance::new(now),
            current: 0,
            low: u64::MAX,
            cpu_usec: None,
            psi: 0.0,
            woke: None,
            restored: None,
            reason: None,
            dry_jobs: 0,
            dry: None,
            pause: None,
            score: 0.0,
            hints: 0,
        }
    }

    /// The phase that the module should have.
    pub fn phase(&self) -> Option<Phase> {
        match self.quiesced {
            true => Some(Phase::Running),
            false => self.machine.state().phase(),
        }
    }

    /// It is not to be tried yet, as trying did not help.
    pub fn pauses(&self, now: Time) -> bool {
        self.pause
            .is_some_and(|(until, length)| now < until && until.saturating_sub(now) <= length)
    }
}
