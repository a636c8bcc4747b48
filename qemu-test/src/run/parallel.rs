// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Several sandboxes at work at once.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Mutex;

use anyhow::{anyhow, Context, Result};

use super::zygote::Sandbox;

/// Does something with every sandbox, `parallel` at a time; results in order.
pub fn each<T: Send>(
    parallel: usize,
    sandboxes: &mut [Sandbox],
    work: impl Fn(usize, &mut Sandbox) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let next = AtomicUsize::new(0);
    let slots: Vec<_> = sandboxes
        .iter_mut()
        .map(|sandbox| Mutex::new((sandbox, None)))
        .collect();
    std::thread::scope(|scope| {
        for _ in 0..parallel.max(1) {
            scope.spawn(|| loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(slot) = slots.get(index) else { break };
                // Each index is taken once, so the lock is free and cannot be poisoned.
                if let Ok(mut slot) = slot.lock() {
                    let result = work(index, slot.0);
                    slot.1 = Some(result);
                }
            });
        }
    });
    slots
        .into_iter()
        .enumerate()
        .map(|(index, slot)| {
            let result = slot.into_inner().ok().and_then(|(_, result)| result);
            result
                .unwrap_or_else(|| Err(anyhow!("its worker died")))
                .with_context(|| format!("sandbox {index}"))
        })
        .collect()
}
