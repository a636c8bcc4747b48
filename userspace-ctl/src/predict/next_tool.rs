// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Which tool comes next, as long as nobody has said it: by what followed the last one.

use crate::ToolName;

/// Most pairs of tools that are remembered.
const MOST: usize = 128;

/// Most tools that are predicted.
pub(super) const MOST_TOOLS: usize = 6;

/// What a count becomes when another one is added.
const AGING: f32 = 0.97;

#[derive(Clone, Debug)]
struct Pair {
    before: Option<ToolName>,
    tool: ToolName,
    count: f32,
}

/// How often which tool followed which.
#[derive(Clone, Debug, Default)]
pub(super) struct NextTool(Vec<Pair>);

impl NextTool {
    /// A tool followed another one.
    pub(super) fn learn(&mut self, before: Option<&ToolName>, tool: &ToolName) {
        for pair in &mut self.0 {
            pair.count *= AGING;
        }
        let known = self
            .0
            .iter_mut()
            .find(|pair| pair.before.as_ref() == before && pair.tool == *tool);
        if let Some(pair) = known {
            pair.count += 1.0;
            return;
        }
        if self.0.len() == MOST {
            let least = (0..MOST).min_by(|&a, &b| self.0[a].count.total_cmp(&self.0[b].count));
            self.0.swap_remove(least.unwrap_or(0));
        }
        self.0.push(Pair {
            before: before.cloned(),
            tool: tool.clone(),
            count: 1.0,
        });
    }

    /// Adds what is known about the tool after `before`, times `factor`. What followed other tools
    /// counts a tenth.
    fn vote(&self, before: Option<&ToolName>, factor: f32, votes: &mut Vec<(ToolName, f32)>) {
        for pair in &self.0 {
            let fits = pair.before.as_ref() == before;
            let weight = pair.count * factor * if fits { 1.0 } else { 0.1 };
            match votes.iter_mut().find(|(tool, _)| *tool == pair.tool) {
                Some((_, sum)) => *sum += weight,
                None => votes.push((pair.tool.clone(), weight)),
            }
        }
    }
}

/// Tools that may follow `before` and their probabilities, the likeliest first: what the sandbox itself did
/// counts as much as three times that of its siblings. Nothing when nothing is known.
pub(super) fn predict(
    own: &NextTool,
    siblings: &NextTool,
    before: Option<&ToolName>,
) -> Vec<(ToolName, f32)> {
    let mut votes = Vec::new();
    own.vote(before, 3.0, &mut votes);
    siblings.vote(before, 1.0, &mut votes);
    votes.sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    votes.truncate(MOST_TOOLS);
    let sum: f32 = votes.iter().map(|vote| vote.1).sum();
    for vote in &mut votes {
        vote.1 /= sum.max(f32::MIN_POSITIVE);
    }
    votes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(name: &str) -> ToolName {
        name.parse().unwrap()
    }

    #[test]
    fn follows_the_order_of_tools() {
        let mut own = NextTool::default();
        let nobody = NextTool::default();
        assert!(predict(&own, &nobody, None).is_empty());
        let cycle = [tool("read"), tool("edit"), tool("pytest")];
        for turn in 0..30 {
            own.learn(Some(&cycle[turn % 3]), &cycle[(turn + 1) % 3]);
        }
        let next = predict(&own, &nobody, Some(&cycle[0]));
        assert_eq!(next[0].0, cycle[1]);
        assert!(next[0].1 > 0.7, "{next:?}");
        assert!((next.iter().map(|n| n.1).sum::<f32>() - 1.0).abs() < 1e-5);
        // A sandbox that did nothing yet has its siblings' experience.
        assert_eq!(predict(&nobody, &own, Some(&cycle[2]))[0].0, cycle[0]);
        // After an unknown tool it is as after any.
        let unknown = tool("unknown");
        assert_eq!(predict(&own, &nobody, Some(&unknown)).len(), 3);
    }

    #[test]
    fn bounded_and_aged() {
        let mut own = NextTool::default();
        own.learn(None, &tool("old"));
        for number in 0..1000 {
            own.learn(None, &tool(&format!("t{number}")));
        }
        assert_eq!(own.0.len(), MOST);
        assert!(own.0.iter().all(|pair| pair.tool != tool("old")));
        assert_eq!(predict(&own, &own, None).len(), MOST_TOOLS);
    }
}
