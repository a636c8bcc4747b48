// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What was done: how often each operation, and what it showed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Operations that a thread chooses from: name and function, and how often each is chosen, as a share of the
/// sum.
pub type Table<F> = &'static [((&'static str, F), usize)];

/// The names of the operations of a table.
pub fn names<F>(table: Table<F>) -> impl Iterator<Item = &'static str> {
    table.iter().map(|((name, _), _)| *name)
}

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// As it should.
    Done,
    /// The kernel refused it, as it may.
    Refused,
}

/// Counts of one thread, of a round, or of all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Operations that were done, by name.
    pub operations: BTreeMap<String, u64>,
    /// Operations that the kernel refused, by name.
    pub refused: BTreeMap<String, u64>,
    /// Pages that were compared with what they should hold, byte by byte.
    pub pages_verified: u64,
    /// Allocations of the module that were made to fail.
    pub faults_injected: u64,
}

impl Counts {
    /// Counts an operation.
    pub fn add(&mut self, name: &str, ended: Ended) {
        let counts = match ended {
            Ended::Done => &mut self.operations,
            Ended::Refused => &mut self.refused,
        };
        *counts.entry(name.to_owned()).or_default() += 1;
    }

    /// Adds those of others.
    pub fn merge(&mut self, others: &Counts) {
        for (mine, theirs) in [
            (&mut self.operations, &others.operations),
            (&mut self.refused, &others.refused),
        ] {
            for (name, count) in theirs {
                *mine.entry(name.clone()).or_default() += count;
            }
        }
        self.pages_verified += others.pages_verified;
        self.faults_injected += others.faults_injected;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_summed() {
        let mut one = Counts::default();
        one.add("fork", Ended::Done);
        one.add("fork", Ended::Refused);
        one.pages_verified = 3;
        let mut sum = one.clone();
        sum.add("exec", Ended::Done);
        sum.merge(&one);
        assert_eq!((sum.operations["fork"], sum.operations["exec"]), (2, 1));
        assert_eq!((sum.refused["fork"], sum.pages_verified), (2, 6));
    }
}
