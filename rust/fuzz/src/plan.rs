// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Plan files: any text is refused, or is a plan that reads back what it writes, that a learner takes, and
//! of which it hands on what is a plan again.

use agentzip_ctl::predict::{FileRun, Learner, PlanFile, Settings, MAX_FILE_PAGES};

/// By how much a number may change when it is written and read: in its last place.
const LAST_PLACE: f64 = 1e-9;

/// The target.
pub fn target(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let Ok(plan) = PlanFile::parse(text) else {
        return;
    };
    assert!(plan.pages() <= MAX_FILE_PAGES);
    check_written(&plan);
    let mut learner = Learner::new(Settings::default());
    let taken = learner.import(&plan);
    assert!(taken as u64 <= plan.pages());
    let known = learner.export(&plan.template, plan.tool.as_ref());
    check_written(&known.expect("what was imported is known"));
}

fn check_written(plan: &PlanFile) {
    let text = plan.to_text();
    let again = PlanFile::parse(&text).expect("what was written is read");
    assert_eq!(again.template, plan.template);
    assert_eq!(again.tool, plan.tool);
    assert!(alike(again.turns, plan.turns), "{text}");
    assert_eq!(again.runs.len(), plan.runs.len());
    for (a, b) in again.runs.iter().zip(&plan.runs) {
        let touched = b.touched;
        assert!(alike(a.touched, touched), "{text}");
        assert_eq!(
            FileRun {
                touched,
                ..a.clone()
            },
            *b
        );
    }
}

fn alike(a: f64, b: f64) -> bool {
    (a - b).abs() <= LAST_PLACE
}
