// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Alarms of `agentzip status`: sandboxes that their template does not serve, and dictionaries that do
//! not serve their group any more.

use std::collections::BTreeMap;
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
/// How much larger payloads may be than the first ones made with the same dictionary.
pub const MAX_GROWTH: f64 = 1.25;

/// Something that is not as it should be.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "about", rename_all = "lowercase")]
pub enum Alarm {
    /// A sandbox of which few pages have a page in its template.
    Template(FarFromTemplate),
    /// A dictionary that pages have moved away from.
    Dictionary(Aged),
}

/// A sandbox of which few pages have a page in its template.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FarFromTemplate {
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

/// A dictionary that pages have moved away from.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Aged {
    /// Its group.
    pub group: String,
    /// The group's domain.
    pub domain: String,
    /// Cgroup of a sandbox of the group, to train another one with; `None` when that is gone.
    pub cgroup: Option<String>,
    /// Mean bytes of the first payloads made with it.
    pub first_bytes: u64,
    /// Mean bytes of the last ones.
    pub recent_bytes: u64,
}

impl fmt::Display for Alarm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Template(alarm) => alarm.fmt(f),
            Self::Dictionary(alarm) => alarm.fmt(f),
        }
    }
}

impl fmt::Display for FarFromTemplate {
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

impl fmt::Display for Aged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            group,
            domain,
            first_bytes,
            recent_bytes,
            ..
        } = self;
        write!(
            f,
            "group {group} of domain {domain}: its dictionary has aged, pages take {recent_bytes} bytes \
             with it of late, {first_bytes} at first; train another one: agentzip dict train --sandbox "
        )?;
        f.write_str(self.cgroup.as_deref().unwrap_or("CGROUP"))
    }
}

/// The alarms that these sandboxes and their groups give.
pub(super) fn alarms(sandboxes: &[Listed]) -> Vec<Alarm> {
    let far = far_from_template(sandboxes).into_iter();
    let aged = aged(sandboxes).into_iter();
    far.map(Alarm::Template)
        .chain(aged.map(Alarm::Dictionary))
        .collect()
}

fn aged(sandboxes: &[Listed]) -> Vec<Aged> {
    let mut groups = BTreeMap::new();
    for listed in sandboxes {
        let sandbox = &listed.sandbox;
        let [first, recent] = [
            sandbox.group_dictionary_first,
            sandbox.group_dictionary_recent,
        ];
        if recent as f64 > first as f64 * MAX_GROWTH {
            let key = (&sandbox.domain, &sandbox.group, &sandbox.template);
            let aged = groups.entry(key).or_insert_with(|| Aged {
                group: sandbox.group.clone(),
                domain: sandbox.domain.clone(),
                cgroup: None,
                first_bytes: first,
                recent_bytes: recent,
            });
            aged.cgroup = aged.cgroup.take().or_else(|| listed.cgroup.clone());
        }
    }
    groups.into_values().collect()
}

/// Sandboxes that their template does not serve.
fn far_from_template(sandboxes: &[Listed]) -> Vec<FarFromTemplate> {
    let share = |listed: &Listed| {
        let pages = &listed.sandbox.pages;
        // Of a sensitive one no page has anything to do with the template.
        let counts = pages.stores >= MIN_STORES && !listed.sandbox.sensitive;
        counts.then(|| pages.template_backed as f64 / pages.stores as f64)
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
        (template_share < MIN_SHARE || group_median.is_some()).then(|| FarFromTemplate {
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
                sensitive: false,
                max_bytes: Limit::NONE,
                arena_bytes: 0,
                group_references: 0,
                group_reference_bytes: 0,
                group_sketch_bytes: 0,
                group_dictionaries: 0,
                group_dictionary_bytes: 0,
                group_dictionary_users: 0,
                group_dictionary_first: 0,
                group_dictionary_recent: 0,
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
        far_from_template(sandboxes)
            .iter()
            .map(|a| a.cgroup_id)
            .collect()
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
    fn sensitive_ones_have_nothing_of_the_template() {
        let mut group: Vec<Listed> = (1..4).map(|id| listed(id, "a", 2000, 1600)).collect();
        for other in 4..8 {
            let mut sensitive = listed(other, "a", 2000, 0);
            sensitive.sandbox.sensitive = true;
            group.push(sensitive);
        }
        assert_eq!(ids(&group), [] as [u64; 0]);
        // Nor do they pull the median down.
        group[1] = listed(2, "a", 2000, 780);
        assert_eq!(ids(&group), [2]);
    }

    #[test]
    fn behind_the_group() {
        let mut group = vec![
            listed(1, "a", 2000, 1600),
            listed(2, "a", 2000, 780),
            listed(3, "a", 2000, 1700),
        ];
        assert_eq!(ids(&group), [2]);
        let alarm = &far_from_template(&group)[0];
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

    #[test]
    fn a_dictionary_that_serves_worse() {
        let mut sandboxes = vec![listed(1, "a", 0, 0), listed(2, "a", 0, 0)];
        let mut served = |first, recent| {
            for listed in &mut sandboxes {
                listed.sandbox.group_dictionary_first = first;
                listed.sandbox.group_dictionary_recent = recent;
            }
            sandboxes[1].cgroup = Some("/box".to_owned());
            alarms(&sandboxes)
        };
        for (first, recent) in [(0, 0), (800, 800), (800, 1000), (800, 300)] {
            assert_eq!(served(first, recent), [], "{first} {recent}");
        }
        let alarms = served(800, 1001);
        assert_eq!(alarms.len(), 1, "one a group: {alarms:?}");
        let text = alarms[0].to_string();
        for part in [
            "group a",
            "800",
            "1001",
            "agentzip dict train --sandbox /box",
        ] {
            assert!(text.contains(part), "{text}");
        }
    }
}
