// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Which tools a sandbox calls in which turn: the same in every configuration.

/// The tools of tool_sandbox.py that agents choose from, each as often as agents do.
const TOOLS: [&str; 10] = [
    "search",
    "search",
    "read",
    "read",
    "edit",
    "edit",
    "tests",
    "query",
    "interface",
    "table",
];
/// Ends every turn.
const LAST: &str = "message";

/// The tool calls of a turn, in order: one or two, and the note of what they found.
pub fn calls(seed: u64, sandbox: usize, turn: usize) -> Vec<&'static str> {
    let mut random = Random::new(seed, sandbox as u64, turn as u64);
    let mut calls = vec![random.tool()];
    if random.next() % 2 == 0 {
        calls.push(random.tool());
    }
    calls.push(LAST);
    calls
}

/// How long the answer goes on before its tool call, as a part of the usual time: from a half to three halves,
/// for answers differ, and sandboxes that began together would stay together.
pub fn gap(seed: u64, sandbox: usize, turn: usize) -> f64 {
    let mut random = Random::new(!seed, sandbox as u64, turn as u64);
    0.5 + (random.next() >> 11) as f64 / (1u64 << 53) as f64
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn new(seed: u64, sandbox: u64, turn: u64) -> Self {
        let mut random = Self(seed);
        for part in [sandbox, turn] {
            random.0 = random.next() ^ part;
        }
        random
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }

    fn tool(&mut self) -> &'static str {
        let index = self.next() % TOOLS.len() as u64;
        TOOLS.get(index as usize).copied().unwrap_or(LAST)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn turns_differ_and_are_always_the_same() {
        let all = |seed| {
            let turns = (0..8).flat_map(|sandbox| (0..20).map(move |turn| (sandbox, turn)));
            turns
                .map(|(sandbox, turn)| calls(seed, sandbox, turn))
                .collect::<Vec<_>>()
        };
        assert_eq!(all(1), all(1));
        assert_ne!(all(1), all(2));
        let first: BTreeSet<_> = all(1).iter().map(|calls| calls[0]).collect();
        assert_eq!(first, TOOLS.into_iter().collect());
        assert!(all(1).iter().all(|calls| calls.last() == Some(&LAST)));
        let gaps: Vec<f64> = (0..400).map(|turn| gap(1, turn % 8, turn)).collect();
        assert!(gaps.iter().all(|gap| (0.5..1.5).contains(gap)));
        let mean = gaps.iter().sum::<f64>() / 400.0;
        assert!((0.9..1.1).contains(&mean), "{mean}");
    }
}
