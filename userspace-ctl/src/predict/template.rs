// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What the sandboxes of a template have in common: the working sets of its tools, which tool follows
//! which, and what the predictors are worth.

use std::collections::BTreeMap;

use super::mixer::Mixer;
use super::next_tool::NextTool;
use super::settings::Settings;
use super::transitions::Space;
use super::working_set::WorkingSet;
use crate::{ObjectName, ToolName};

/// Most pages of one working set.
const MOST_PAGES: usize = 16_384;

/// Most templates that are remembered.
const MOST_TEMPLATES: usize = 256;

/// Most working sets of all templates.
const MOST_SETS: usize = 4096;

/// The working set of a tool.
#[derive(Debug)]
pub(super) struct ToolSet {
    pub(super) set: WorkingSet,
    /// When it was last taught.
    taught: u64,
}

#[derive(Debug)]
pub(super) struct Template {
    pub(super) space: Space,
    pub(super) tools: BTreeMap<Option<ToolName>, ToolSet>,
    pub(super) next: NextTool,
    pub(super) mixer: Mixer,
    /// Sandboxes that are attached.
    pub(super) sandboxes: usize,
    used: u64,
}

impl Template {
    /// What is known about a tool; `None`: about all turns.
    pub(super) fn set(&self, tool: Option<&ToolName>) -> Option<&WorkingSet> {
        self.tools.get(&tool.cloned()).map(|tool| &tool.set)
    }

    fn pages(&self) -> usize {
        self.tools.values().map(|tool| tool.set.len()).sum()
    }
}

/// All templates.
#[derive(Debug, Default)]
pub(super) struct Templates {
    by_name: BTreeMap<ObjectName, Template>,
    spaces: Space,
    clock: u64,
    most: usize,
}

impl Templates {
    /// Room for so many pages.
    pub(super) fn limit(&mut self, most: usize) {
        self.most = most;
    }

    /// What is known about a template; nothing is, of a new one. One that was not used for longest, and
    /// has no sandboxes, goes when there are too many.
    pub(super) fn get(&mut self, name: &ObjectName) -> &mut Template {
        self.clock += 1;
        if self.by_name.len() >= MOST_TEMPLATES && !self.by_name.contains_key(name) {
            let unused = self.by_name.iter().filter(|(_, t)| t.sandboxes == 0);
            let oldest = unused.min_by_key(|(_, t)| t.used).map(|(n, _)| n.clone());
            if let Some(oldest) = oldest {
                self.by_name.remove(&oldest);
            }
        }
        let spaces = &mut self.spaces;
        let template = self.by_name.entry(name.clone()).or_insert_with(|| {
            *spaces = spaces.wrapping_add(1);
            Template {
                space: *spaces,
                tools: BTreeMap::new(),
                next: NextTool::default(),
                mixer: Mixer::default(),
                sandboxes: 0,
                used: 0,
            }
        });
        template.used = self.clock;
        template
    }

    /// What is known about a template, if anything is.
    pub(super) fn find(&self, name: &ObjectName) -> Option<&Template> {
        self.by_name.get(name)
    }

    /// Forgets what is known about a template; its sandboxes stay. Returns what it was known by.
    pub(super) fn forget(&mut self, name: &ObjectName) -> Option<Space> {
        let sandboxes = self.by_name.get(name)?.sandboxes;
        let space = self.by_name.remove(name)?.space;
        if sandboxes > 0 {
            self.get(name).sandboxes = sandboxes;
        }
        Some(space)
    }

    /// Teaches the working set of a tool, or tells it what others learned.
    pub(super) fn teach(
        &mut self,
        name: &ObjectName,
        tool: Option<&ToolName>,
        settings: &Settings,
        lesson: impl FnOnce(&mut WorkingSet),
    ) {
        let template = self.get(name);
        let taught = template.used;
        let tool = template
            .tools
            .entry(tool.cloned())
            .or_insert_with(|| ToolSet {
                set: WorkingSet::new(settings.half_life, MOST_PAGES),
                taught,
            });
        tool.taught = taught;
        lesson(&mut tool.set);
        self.shrink();
    }

    /// Every template.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&ObjectName, &Template)> {
        self.by_name.iter()
    }

    /// Bytes that grow with what it is taught.
    pub(super) fn bytes(&self) -> usize {
        let sets = self.by_name.values().flat_map(|t| t.tools.values());
        sets.map(|tool| tool.set.bytes()).sum()
    }

    /// Forgets the pages that `keep` says no to.
    pub(super) fn retain(&mut self, keep: impl Fn(u64) -> bool) {
        for template in self.by_name.values_mut() {
            for tool in template.tools.values_mut() {
                tool.set.retain(&keep);
            }
        }
    }

    /// Makes room: of the template that has most pages the set that is worth least goes. So nobody's flood
    /// of tools drives out what others know.
    fn shrink(&mut self) {
        loop {
            let pages: usize = self.by_name.values().map(Template::pages).sum();
            let sets: usize = self.by_name.values().map(|t| t.tools.len()).sum();
            if pages <= self.most && sets <= MOST_SETS {
                return;
            }
            let clock = self.clock;
            let largest = self.by_name.values_mut().max_by_key(|template| {
                let pages = template.pages();
                match pages > self.most || sets <= MOST_SETS {
                    true => pages,
                    false => template.tools.len(),
                }
            });
            let Some(largest) = largest else { return };
            let worth = |tool: &ToolSet| {
                let age = (clock - tool.taught) as f32;
                tool.set.turns() / (1.0 + age / 256.0)
            };
            let least = largest
                .tools
                .iter()
                .min_by(|a, b| worth(a.1).total_cmp(&worth(b.1)))
                .map(|(tool, _)| tool.clone());
            match least {
                Some(least) => largest.tools.remove(&least),
                None => return,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn teach(templates: &mut Templates, name: &str, tool: &str, keys: std::ops::Range<u64>) {
        let keys: Vec<u64> = keys.collect();
        let tool = tool.parse().unwrap();
        let settings = Settings::default();
        templates.teach(&name.parse().unwrap(), Some(&tool), &settings, |set| {
            set.learn(&keys, &[]);
        });
    }

    #[test]
    fn a_flood_of_tools_drives_out_itself() {
        let mut templates = Templates::default();
        templates.limit(3000);
        for _ in 0..5 {
            teach(&mut templates, "good", "pytest", 0..1000);
        }
        for number in 0..500 {
            teach(&mut templates, "bad", &format!("t{number}"), 0..900);
        }
        let good = templates.find(&"good".parse().unwrap()).unwrap();
        assert_eq!(good.pages(), 1000);
        let bad = templates.find(&"bad".parse().unwrap()).unwrap();
        assert_eq!(bad.pages(), 1800);
        // Sets without pages are bounded, too.
        for number in 0..5000 {
            teach(&mut templates, "bad", &format!("t{number}"), 0..0);
        }
        let bad = templates.find(&"bad".parse().unwrap()).unwrap();
        assert!(bad.tools.len() <= MOST_SETS);
        assert_eq!(
            templates.find(&"good".parse().unwrap()).unwrap().pages(),
            1000
        );
    }

    #[test]
    fn templates_without_sandboxes_go_first() {
        let mut templates = Templates::default();
        templates.limit(3000);
        templates.get(&"kept".parse().unwrap()).sandboxes = 1;
        for number in 0..1000 {
            templates.get(&format!("t{number}").parse().unwrap());
        }
        assert_eq!(templates.iter().count(), MOST_TEMPLATES);
        assert!(templates.find(&"kept".parse().unwrap()).is_some());
    }
}
