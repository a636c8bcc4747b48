// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Knowledge out of the learner and into it, as plan files.

use super::learner::Learner;
use super::place::Place;
use super::plan_file::{FileRun, PlanFile, MAX_FILE_PAGES};
use crate::{ObjectName, ToolName};

/// Least share of turns with which a page is exported.
const LEAST: f32 = 0.05;

/// Turns that imported knowledge counts as, at most: a few of the sandboxes' own overrule it.
const MOST_TURNS: f64 = 4.0;

impl Learner {
    /// The templates and tools that something is known about, with the number of pages; `None` is what all
    /// turns of the template touch.
    pub fn known(&self) -> impl Iterator<Item = (&ObjectName, Option<&ToolName>, usize)> {
        self.templates.iter().flat_map(|(name, template)| {
            let tools = template.tools.iter();
            tools.map(move |(tool, set)| (name, tool.as_ref(), set.set.len()))
        })
    }

    /// What is known about a template and a tool (`None`: about all its turns). Shares are rounded to
    /// hundredths.
    pub fn export(&self, template: &ObjectName, tool: Option<&ToolName>) -> Option<PlanFile> {
        let set = self.templates.find(template)?.set(tool)?;
        let mut pages: Vec<(u64, f32)> = set.history().filter(|p| p.1 >= LEAST).collect();
        if pages.len() as u64 > MAX_FILE_PAGES {
            pages.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
            pages.truncate(MAX_FILE_PAGES as usize);
            pages.sort_by_key(|page| page.0);
        }
        let mut runs: Vec<FileRun> = Vec::new();
        for (key, share) in pages {
            let place = Place::from_key(key);
            let Some((command, ordinal)) = self.role_name(place.role) else {
                continue;
            };
            let touched = f64::from((share * 100.0).round()) / 100.0;
            match runs.last_mut() {
                Some(run)
                    if run.command == command
                        && run.ordinal == ordinal
                        && run.page + run.pages == place.page
                        && run.touched == touched =>
                {
                    run.pages += 1;
                }
                _ => runs.push(FileRun {
                    command: command.to_owned(),
                    ordinal,
                    page: place.page,
                    pages: 1,
                    touched,
                }),
            }
        }
        Some(PlanFile {
            template: template.clone(),
            tool: tool.cloned(),
            turns: (f64::from(set.turns()) * 100.0).round() / 100.0,
            runs,
        })
    }

    /// Takes what others learned. It counts as at most four turns, so that what is seen here soon
    /// overrules it. Returns the number of pages; those of processes for which there is no role
    /// any more are left out.
    pub fn import(&mut self, file: &PlanFile) -> usize {
        let mut shares = Vec::new();
        for run in &file.runs {
            let Some(role) = self.role_of_file(&run.command, run.ordinal) else {
                continue;
            };
            for page in (run.page..).take(run.pages.min(MAX_FILE_PAGES) as usize) {
                if let Some(key) = (Place { role, page }).key() {
                    shares.push((key, run.touched.clamp(0.0, 1.0) as f32));
                }
            }
        }
        shares.sort_by_key(|share| share.0);
        shares.dedup_by_key(|share| share.0);
        let turns = file.turns.clamp(0.0, MOST_TURNS) as f32;
        let settings = self.settings().clone();
        let tool = file.tool.as_ref();
        self.templates
            .teach(&file.template, tool, &settings, |set| {
                set.prior(&shares, turns)
            });
        shares.len()
    }
}
