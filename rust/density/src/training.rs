// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The dictionary of a group, made of what its first sandboxes have stored: as the controller makes it.

use std::sync::Arc;

use agentzip_codec::host::Dictionary;
use agentzip_codec::MAX_PAYLOAD;
use agentzip_store::engine::Platform;
use agentzip_store::{Entry, Slot};

use crate::lab::Lab;
use crate::platform::Native;

/// When and of what a dictionary is made.
#[derive(Clone, Copy, Debug)]
pub struct Training {
    /// After this round of waits, counted from 0.
    pub round: usize,
    /// Samples come from so many sandboxes.
    pub sandboxes: usize,
    /// One in so many of their pages is one.
    pub one_in: usize,
    /// Pages are samples whose payload has at least so many bytes.
    pub least_payload: usize,
    /// Bytes of the dictionary's content.
    pub bytes: usize,
}

impl Training {
    /// What measured best. A smaller content serves half as well, a larger one costs what it saves;
    /// later samples are no better than early ones.
    pub const DEFAULT: Self = Self {
        round: 0,
        sandboxes: 4,
        one_in: 3,
        least_payload: 600,
        bytes: 128 << 10,
    };

    /// Makes a dictionary of what the sandboxes of `lab` have stored. `None` when zstd's trainer makes
    /// none of it.
    pub fn train(&self, lab: &Lab<'_>) -> Option<Arc<Dictionary>> {
        let mut samples = Vec::new();
        for sandbox in lab.sandboxes().values().take(self.sandboxes) {
            for out in &sandbox.out {
                let stored = out.slot.map(|slot| payload_bytes(lab.native(), slot));
                if stored.is_some_and(|bytes| bytes >= self.least_payload) {
                    samples.push(*lab.contents().page(out.page.page));
                }
            }
        }
        let samples: Vec<_> = samples.iter().step_by(self.one_in).collect();
        let content = zstd::dict::from_samples(&samples, self.bytes).ok()?;
        Dictionary::new(&content)
    }
}

/// Bytes of the payload of an entry.
fn payload_bytes(native: &Native<'_>, slot: Slot) -> usize {
    let bytes = native.entry(slot, |descriptor| match descriptor.unpack() {
        Entry::Payload {
            owner,
            place,
            provisional,
        } => native
            .arena(owner, |arenas| {
                arenas.of(provisional).read(place, &mut [0; MAX_PAYLOAD])
            })
            .flatten(),
        Entry::Fill { .. } | Entry::Ref { .. } => None,
    });
    bytes.flatten().unwrap_or(0)
}
