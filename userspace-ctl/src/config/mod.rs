// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The daemon's configuration: a TOML file in which every key may be left out.
//!
//! `agentzip.toml` beside this crate has every key with its default; a test holds the two together.

mod parse;
mod prefetch;
mod units;

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use parse::Problem;
pub use prefetch::{Prefetch, PrefetchMode, Records, Slo};
pub use units::{Mode, Part, Percent, Span, StoreSize, Within};

pub use crate::authority::Tenant;
pub use crate::watch::WatchSettings;
use crate::Limit;

/// Where the file is.
pub const PATH: &str = "/etc/agentzip.toml";

/// The whole file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Every time below is this many times as long: 1 on hardware, more in an emulated guest.
    /// From 0.01 to 1000.
    #[serde(deserialize_with = "parse::time_scale")]
    pub time_scale: f64,
    /// Cgroups of template holders, whose `memory.swap.max` is held at 0. Absolute.
    pub holders: Vec<PathBuf>,
    /// Where sandboxes are looked for.
    pub watch: WatchSettings,
    /// The socket.
    pub socket: Socket,
    /// When what is compressed.
    pub schedule: Schedule,
    /// How.
    pub encode: Encode,
    /// What comes back, and how fast.
    pub prefetch: Prefetch,
    /// What all of it is measured by.
    pub slo: Slo,
    /// How much the store may take.
    pub store: Store,
    /// What a sandbox is weighed by, for each profile.
    pub profile: Profiles,
    /// Who but root may attach sandboxes, and where.
    #[serde(rename = "tenant", skip_serializing_if = "Vec::is_empty")]
    pub tenants: Vec<Tenant>,
}

/// The socket that takes requests as JSON lines.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Socket {
    /// Where it is. Absolute.
    pub path: PathBuf,
    /// Who may connect, in octal.
    pub mode: Mode,
    /// The group that it belongs to: a name or a number; the daemon's own when empty.
    pub group: String,
    /// Clients at one time: 4 to 65,536. One user other than root gets a quarter of them.
    pub max_clients: Within<4, 65_536>,
}

impl Socket {
    /// What the server takes.
    pub fn settings(&self) -> crate::socket::Settings {
        crate::socket::Settings {
            path: self.path.clone(),
            mode: self.mode.0,
            group: (!self.group.is_empty()).then(|| self.group.clone()),
            max_clients: self.max_clients.get() as usize,
        }
    }
}

/// When what is compressed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Schedule {
    /// How often memory is looked at.
    pub period: Span,
    /// How often the pages that a sandbox writes are sampled with `encode.hot_skip`.
    pub sample_period: Span,
    /// How long a sandbox without hints must be left alone before it is compressed.
    pub cooling: Span,
    /// Length of a wait that came without `expect`.
    pub expect: Span,
    /// CPU time of compression, restore and second look together, in percent of all processors.
    pub cpu_budget: Percent,
    /// Sandboxes that are compressed at one time: 1 to 16.
    pub compress_workers: Within<1, 16>,
    /// A sandbox that is expected back sooner is spared by the pressure path.
    pub keep_if_expected_within: Span,
    /// How long the pressure path leaves a sandbox alone that came back.
    pub min_residency: Span,
    /// The pressure path ends when less memory than this is used, in percent.
    pub hysteresis_low: Percent,
    /// The pressure path begins when more memory than this is used, in percent.
    pub hysteresis_high: Percent,
    /// Sandboxes of profile batch are let go on only below this, in percent of memory used.
    pub batch_resume_below: Percent,
    /// Memory pressure (`some avg10`) of a running sandbox above which nothing is taken from
    /// running ones, in percent.
    pub psi_limit: Percent,
    /// The pressure path takes from sandboxes with at least this score: 0 to 1.
    pub score_threshold: Part,
    /// How long a woken sandbox of profile batch is held at most until there is memory for it.
    pub hold_batch: Span,
    /// The same for profile interactive.
    pub hold_interactive: Span,
}

/// How pages are encoded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Encode {
    /// Leave pages alone that are written all the time: in five samples of a `schedule.period`.
    pub hot_skip: bool,
    /// How far a page may be from the one it is encoded against, as a part of a page: 0 to 1.
    pub max_template_distance: Part,
}

/// How much the store may take.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Store {
    /// Bound on arenas, reference pages and content indexes: `"20%"` of memory, `"2G"`, `"max"`.
    pub max_bytes: StoreSize,
}

/// What a sandbox is weighed by, for each profile.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Profiles {
    /// Somebody waits for the answer.
    pub interactive: Interactive,
    /// Nobody does.
    pub batch: Batch,
}

macro_rules! weights {
    ($(#[$doc:meta])* $name:ident, $w1:expr, $w2:expr, $w3:expr, $w4:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $name {
            /// Weight of the host's need for memory: 0 to 1.
            pub w1: Part,
            /// Weight of how long the sandbox will still wait: 0 to 1.
            pub w2: Part,
            /// Weight of how often it was in use of late, which counts against it: 0 to 1.
            pub w3: Part,
            /// Weight of what its return costs, which counts against it: 0 to 1.
            pub w4: Part,
            /// zstd's level of the second look: 3 or 6.
            #[serde(deserialize_with = "parse::level")]
            pub level: u32,
        }

        impl Default for $name {
            fn default() -> Self {
                $name {
                    w1: Part::new($w1),
                    w2: Part::new($w2),
                    w3: Part::new($w3),
                    w4: Part::new($w4),
                    level: 6,
                }
            }
        }

        impl From<$name> for Weights {
            fn from(profile: $name) -> Weights {
                Weights {
                    pressure: profile.w1.get(),
                    idle: profile.w2.get(),
                    access: profile.w3.get(),
                    resume: profile.w4.get(),
                    level: profile.level,
                }
            }
        }
    };
}

weights!(
    /// Weights of profile interactive.
    Interactive, 0.30, 0.30, 0.30, 0.10
);
weights!(
    /// Weights of profile batch.
    Batch, 0.50, 0.30, 0.10, 0.10
);

/// What a sandbox is weighed by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weights {
    /// w1: the host's need for memory.
    pub pressure: f64,
    /// w2: how long it will still wait.
    pub idle: f64,
    /// w3: how often it was in use of late.
    pub access: f64,
    /// w4: what its return costs.
    pub resume: f64,
    /// zstd's level of the second look.
    pub level: u32,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            time_scale: 1.0,
            holders: Vec::new(),
            watch: WatchSettings::default(),
            socket: Socket::default(),
            schedule: Schedule::default(),
            encode: Encode::default(),
            prefetch: Prefetch::default(),
            slo: Slo::default(),
            store: Store::default(),
            profile: Profiles::default(),
            tenants: Vec::new(),
        }
    }
}

impl Default for Socket {
    fn default() -> Self {
        Socket {
            path: "/run/agentzip.sock".into(),
            mode: Mode(0o660),
            group: String::new(),
            max_clients: Within::new(256),
        }
    }
}

impl Default for Schedule {
    fn default() -> Self {
        Schedule {
            period: Span::s(5),
            sample_period: Span::s(1),
            cooling: Span::s(30),
            expect: Span::s(10),
            cpu_budget: Percent::new(25),
            compress_workers: Within::new(2),
            keep_if_expected_within: Span::s(30),
            min_residency: Span::s(10),
            hysteresis_low: Percent::new(60),
            hysteresis_high: Percent::new(75),
            batch_resume_below: Percent::new(80),
            psi_limit: Percent::new(10),
            score_threshold: Part::new(0.1),
            hold_batch: Span::s(30),
            hold_interactive: Span::s(2),
        }
    }
}

impl Default for Encode {
    fn default() -> Self {
        Encode {
            hot_skip: false,
            max_template_distance: Part::new(1.0),
        }
    }
}

impl Default for Store {
    fn default() -> Self {
        Store {
            max_bytes: StoreSize::OfMemory(Percent::new(20)),
        }
    }
}

impl Config {
    /// A time of this configuration in the time of this machine.
    pub fn time(&self, span: Span) -> Duration {
        span.scaled(self.time_scale).get()
    }

    /// Bound on the store on a machine with this much memory.
    pub fn store_limit(&self, total: u64) -> Limit {
        self.store.max_bytes.limit(total)
    }
}
