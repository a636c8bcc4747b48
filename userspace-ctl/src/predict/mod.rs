// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What a sandbox will touch after its next resume.
//!
//! Pure: no input or output, no clock, nothing random. The same calls give the same plans. What is
//! wrong here restores a page too many or too few; it changes no memory.
//!
//! The daemon tells a [`Learner`] what happens to sandboxes, in the order of time, and asks it for
//! [`Plan`]s:
//!
//! ```text
//! attach ─▶ turn_ends ─▶ wait_begins ─▶ plan(MidWait, Message, Background)
//!   ▲                                          │
//!   │                                          ▼
//! seen ◀── plan(Demand) ◀── seen ◀── tool_starts, plan(ToolStart) ◀── resume, plan(FirstToken)
//! ```
//!
//! Pages are named by [`Place`]: the [`Role`] of the process and the page's number. Sandboxes that were
//! forked from one template share its addresses, so that what one of them taught serves all.

#![forbid(unsafe_code)]

mod alarm;
mod bitmap;
mod feedback;
mod learner;
mod mixer;
mod next_tool;
mod place;
mod plan;
mod plan_file;
mod propose;
mod sandbox;
mod scope;
mod sequential;
mod settings;
mod share;
mod template;
pub mod trace;
mod transitions;
mod turn;
mod weigh;
mod window;
mod working_set;

pub use alarm::{Alarm, Cause, Change};
pub use feedback::{Figures, Latencies};
pub use learner::{Learner, PageState};
pub use place::{Place, Role, Roles, Seen, What, MAX_COMMAND, MAX_ROLES};
pub use plan::{Basis, Plan, Predictor, Run, Trigger};
pub use plan_file::{BadPlan, FileRun, PlanFile, MAX_FILE, MAX_FILE_PAGES};
pub use scope::{Scope, MIN_SCOPE};
pub use settings::{Pools, Settings};
pub use window::{Window, MAX_WINDOW, MIN_WINDOW, PLAN_FACTOR};
