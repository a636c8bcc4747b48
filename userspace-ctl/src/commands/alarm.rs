// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Alarms of `agentzip status`: sandboxes that their template does not serve.

use std::fmt;

use serde::Serialize;

use super::sandbox::Listed;

/// Stores before which the share of a sandbox says nothing.
pub const MIN_STORES: u64 = 1000;
/// Share of template-backed stores below which a sandbox has the wrong template, whatever its
/// siblings do.
pub const MIN_SHARE: f64 = 0.05;
/// Part of its group's median below which the share of a sandbox is out of the ordinary.
pub const MIN_OF_MEDIAN: f64 = 0.5;
/// Sandboxes that a group must have for its median to say anything.
pub const MIN_GROUP: usize = 3;

/// A sandbox of which few pages have a page in its template.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Alarm {
    /// Id of its cgroup.
    pub cgroup_id: u64,
    /// Path of its cgroup; `None` when that is gone.
    pub cgroup: Option<String>,
    /// Its template.
    pub template: String,
    /// Share of its stores with a page in the template, 0 to 1.
    pub template_share: f64,
    /// The median of its group, where that is what it fell behind.
    pub group_median: Option<f64>,
}

impl fmt::Display for Alarm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |share: f64| format!("{:.1}%", share * 100.0);
        match &self.cgroup {
            Some(cgroup) => write!(f, "sandbox {cgroup} (id {})", self.cgroup_id)?,
            None => write!(f, "sandbox id {}", self.cgroup_id)?,
        }
        let share = percent(self.template_share);
        write!(
            f,
            ": {share} of its pages have one in template {}",
            self.template
        )?;
        if let Some(median) = self.group_median {
            write!(f, ", {} in the median of its group", percent(median))?;
        }
        f.write_str("; was it cloned from another one, or did it exec? Or are its ranges wrong?")
    }
}

/// The alarms that these sandboxes give.
pub(super) fn alarms(sandboxes: &[Listed]) -> Vec<Alarm> {
    let share = |listed: &Listed| {
        let pages = &listed.sandbox.pages;
        (pages.stores >= MIN_STORES).then(|| pages.template_backed as f64 / pages.stores as f64)
    };
    let median = |of: &Listed| {
        let siblings = sandboxes.iter().filter(|other| {
            (&other.sandbox.domain, &other.sandbox.group) == (&of.sandbox.domain, &of.sandbox.group)
        });
        let mut shares: Vec<f64> = siblings.filter_map(share).collect();
        shares.sort_by(f64::total_cmp);
        (shares.len() >= MIN_GROUP).then(|| shares[shares.len() / 2])
    };
    let alarm = |listed: &Listed| {
        let template_share = share(listed)?;
        let group_median = median(listed).filter(|median| template_share < median * MIN_OF_MEDIAN);
        (template_share < MIN_SHARE || group_median.is_some()).then(|| Alarm {
            cgroup_id: listed.sandbox.cgroup_id,
            cgroup: listed.cgroup.clone(),
            template: listed.sandbox.template.clone(),
            template_share,
            group_median,
        })
    };
    sandboxes.iter().filter_map(alarm).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sysfs::{PageCounters, Sandbox};
    use crate::Limit;

    fn listed(cgroup_id: u64, group: &str, stores: u64, template_backed: u64) -> Listed {
        Listed {
            cgroup: None,
            sandbox: Sandbox {
                cgroup_id,
                phase: "waiting".to_owned(),
                template: "t".to_owned(),
                group: group.to_owned(),
                domain: "default".to_owned(),
                attached: true,
                max_bytes: Limit::NONE,
                arena_bytes: 0,
                group_references: 0,
                group_reference_bytes: 0,
                group_sketch_bytes: 0,
                group_dictionaries: 0,
                group_dictionary_bytes: 0,
                group_dictionary_users: 0,
                ranges: 0,
                pages: PageCounters {
                    stores,
                    template_backed,
                    ..PageCounters::default()
                },
            },
        }
    }

    fn ids(sandboxes: &[Listed]) -> Vec<u64> {
        alarms(sandboxes).iter().map(|a| a.cgroup_id).collect()
    }

    #[test]
    fn below_the_least_share() {
        let cases = [
            listed(1, "a", 1000, 49),
            listed(2, "b", 1000, 50),
            listed(3, "c", 999, 0),
            listed(4, "d", 0, 0),
        ];
        assert_eq!(ids(&cases), [1]);
    }

    #[test]
    fn behind_the_group() {
        let mut group = vec![
            listed(1, "a", 2000, 1600),
            listed(2, "a", 2000, 780),
            listed(3, "a", 2000, 1700),
        ];
        assert_eq!(ids(&group), [2]);
        let alarm = &alarms(&group)[0];
        assert_eq!(alarm.group_median, Some(0.8));
        let text = alarm.to_string();
        assert!(text.contains("39.0%") && text.contains("80.0%"), "{text}");
        // Half of the median is enough.
        group[1] = listed(2, "a", 2000, 800);
        assert_eq!(ids(&group), [] as [u64; 0]);
        // Two are no group, and others do not count.
        group[1] = listed(2, "a", 2000, 780);
        group[2] = listed(3, "b", 2000, 1700);
        assert_eq!(ids(&group), [] as [u64; 0]);
        // Nor do siblings that have stored little.
        group[2] = listed(3, "a", 999, 900);
        assert_eq!(ids(&group), [] as [u64; 0]);
    }
}
