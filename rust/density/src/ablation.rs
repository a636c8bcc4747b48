// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What each mechanism is worth: lives with one of them off, or with another effort.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Mutex;
use std::thread;

use agentzip_codec::Level;
use agentzip_store::engine::Policy;
use serde::Serialize;

use crate::corpus::Scenario;
use crate::lab::Blind;
use crate::platform::Bounds;
use crate::replay;

/// Lives that run at a time; nothing is timed.
const THREADS: usize = 2;

/// A change of the policy.
struct Variant {
    name: &'static str,
    change: fn(&mut Policy),
}

const VARIANTS: [Variant; 14] = [
    Variant {
        name: "everything",
        change: |_| {},
    },
    Variant {
        name: "no template pages of the same index",
        change: |policy| policy.template = false,
    },
    Variant {
        name: "no similar template pages",
        change: |policy| policy.template_sketch = false,
    },
    Variant {
        name: "no template",
        change: |policy| {
            policy.template = false;
            policy.template_sketch = false;
        },
    },
    Variant {
        name: "no siblings' pages of the same index",
        change: |policy| policy.sibling_index = false,
    },
    Variant {
        name: "no similar pages of siblings",
        change: |policy| policy.sibling_sketch = false,
    },
    Variant {
        name: "no siblings",
        change: |policy| {
            policy.sibling_index = false;
            policy.sibling_sketch = false;
        },
    },
    Variant {
        name: "no sketches",
        change: |policy| {
            policy.template_sketch = false;
            policy.sibling_sketch = false;
        },
    },
    Variant {
        name: "each page by itself",
        change: |policy| {
            policy.template = false;
            policy.template_sketch = false;
            policy.sibling_index = false;
            policy.sibling_sketch = false;
        },
    },
    Variant {
        name: "no prefixes",
        change: |policy| policy.limits.prefix = false,
    },
    Variant {
        name: "no compressed deltas",
        change: |policy| policy.limits.delta_zstd = false,
    },
    Variant {
        name: "no dictionary",
        change: |policy| policy.dictionary = false,
    },
    Variant {
        name: "zstd with less effort",
        change: |policy| policy.limits.level = Level::Fast,
    },
    Variant {
        name: "no second look: everything in reclaim",
        change: |policy| *policy = Policy::AT_ONCE,
    },
];

/// What is left with a change.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ablated {
    /// What was changed.
    pub name: &'static str,
    /// Owned bytes for each byte of the store at the last wait.
    pub ratio: f64,
    /// Metadata of a page, bytes.
    pub metadata_bytes_per_page: f64,
    /// Bytes of a template-backed page.
    pub template_backed_bytes: f64,
    /// Bytes of a fresh page.
    pub fresh_bytes: f64,
}

/// Lets the group live with each change. Every page is compared here too.
pub fn run(scenario: &Scenario, sandboxes: usize, base: Policy) -> Vec<Ablated> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let Some(variant) = VARIANTS.get(number) else {
                    return;
                };
                let mut policy = base;
                (variant.change)(&mut policy);
                let life = replay::live(scenario, sandboxes, policy, Bounds::DEFAULT, &mut Blind);
                let last = life.last();
                let ablated = Ablated {
                    name: variant.name,
                    ratio: last.ratio(),
                    metadata_bytes_per_page: last.metadata_per_page(),
                    template_backed_bytes: last.template_backed.bytes_per_page(),
                    fresh_bytes: last.fresh.bytes_per_page(),
                };
                done.lock().expect("no panic").push((number, ablated));
            });
        }
    });
    let mut done = done.into_inner().expect("no panic");
    done.sort_unstable_by_key(|&(number, _)| number);
    done.into_iter().map(|(_, ablated)| ablated).collect()
}
