// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What `agentzip status` shows of the daemon.

use std::fmt;
use std::path::Path;

use serde::Serialize;
use serde_json::Value;

use crate::client::Client;
use crate::format::{Bytes, Table};

/// What the daemon knows, in the words of its socket.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The host, and the daemon itself.
    pub overview: Value,
    /// Sandboxes that the caller may see.
    pub sandboxes: Vec<Value>,
}

/// Asks the daemon; `None` when there is none, or it may not be asked.
pub fn ask(socket: &Path) -> Option<Report> {
    let mut client = Client::connect(socket).ok()?;
    let overview = client.status(None).ok()?;
    let Value::Array(sandboxes) = client.list().ok()? else {
        return None;
    };
    Some(Report {
        overview,
        sandboxes,
    })
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = &self.overview["host"];
        let memory = |field: &str| host["memory"][field].as_u64().unwrap_or(0);
        let short = match host["short"] == true {
            true => "memory is short",
            false => "memory suffices",
        };
        let without = match self.overview["module"] == false {
            true => "; without the module",
            false => "",
        };
        let counts = &host["counts"];
        let count = |field: &str| counts[field].as_u64().unwrap_or(0);
        writeln!(
            f,
            "Daemon: {short}, {} of {} available; {} compressing, {} queued, {} held{without}",
            Bytes(memory("available")),
            Bytes(memory("total")),
            count("jobs"),
            count("queued"),
            count("held"),
        )?;
        let mut table = Table::new(&[
            "CGROUP", "STATE", "PROFILE", ">TAKEN", ">MEMORY", ">SCORE", "REMARK",
        ]);
        for sandbox in &self.sandboxes {
            let text = |field: &str| sandbox[field].as_str().unwrap_or("").to_owned();
            let bytes = |field: &str| Bytes(sandbox[field].as_u64().unwrap_or(0)).to_string();
            table.row([
                text("cgroup"),
                text("state"),
                match sandbox["profile"].as_str() {
                    Some(profile) => profile.to_owned(),
                    None => "interactive".to_owned(),
                },
                bytes("taken"),
                bytes("current"),
                format!("{:.2}", sandbox["score"].as_f64().unwrap_or(0.0)),
                remark(sandbox),
            ]);
        }
        if !self.sandboxes.is_empty() {
            write!(f, "{table}")?;
        }
        prefetch(f, &self.overview["prefetch"], &self.sandboxes)
    }
}

/// What is restored ahead of need, if anything is.
fn prefetch(f: &mut fmt::Formatter<'_>, total: &Value, sandboxes: &[Value]) -> fmt::Result {
    if total["able"] != true {
        return Ok(());
    }
    for (alarm, text) in [
        (
            "alarm_hit_ratio",
            "pages are restored that are not accessed, far more than usual",
        ),
        ("alarm_first_tool", "slo.first_tool_p99 is missed"),
    ] {
        if total[alarm] == true {
            writeln!(f, "warning: prefetch: {text}")?;
        }
    }
    let mut table = Table::new(&[
        "PREFETCH",
        ">FAULTS",
        ">HITS",
        ">COVERAGE",
        ">HIT RATIO",
        ">WASTE",
        ">NS/HIT",
        ">WINDOW",
        ">EVERY RESUME",
        ">CAPPED",
        ">FIRST TOOL",
    ]);
    let rows = sandboxes
        .iter()
        .map(|sandbox| {
            (
                sandbox["cgroup"].as_str().unwrap_or(""),
                &sandbox["prefetch"],
            )
        })
        .filter(|(_, shown)| !shown.is_null());
    for (name, shown) in rows.chain([("all", total)]) {
        let number = |field: &str| shown[field].as_u64().map(|number| number.to_string());
        let share = |field: &str| {
            let part = shown[field].as_f64();
            part.map_or("-".to_owned(), |part| format!("{:.0}%", part * 100.0))
        };
        let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        table.row([
            name.to_owned(),
            or_none(number("demand_faults")),
            or_none(number("hits")),
            share("coverage"),
            share("hit_ratio"),
            share("waste"),
            or_none(
                shown["cost_per_hit_ns"]
                    .as_f64()
                    .map(|ns| format!("{ns:.0}")),
            ),
            or_none(number("window_pages")),
            or_none(number("pages_at_every_resume")),
            or_none(number("capped_plans")),
            or_none(number("first_tool_p99_us").map(|us| us + " us")),
        ]);
    }
    write!(f, "{table}")
}

/// What is out of the ordinary.
fn remark(sandbox: &Value) -> String {
    let flags = [
        ("quiesced", "quiesced"),
        ("held", "held for want of memory"),
        ("compressing", "compressing"),
        ("restoring", "restoring"),
        ("tool", "a tool runs"),
    ];
    let mut remarks: Vec<&str> = flags
        .into_iter()
        .filter(|(field, _)| sandbox[*field] == true)
        .map(|(_, remark)| remark)
        .collect();
    remarks.extend(sandbox["problem"].as_str());
    remarks.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn text() {
        let report = Report {
            overview: json!({"module": false, "host": {
                "memory": {"total": 1024, "available": 512},
                "short": true, "counts": {"jobs": 1, "queued": 2, "held": 3}}}),
            sandboxes: vec![json!({
                "cgroup": "/agents/sb1", "state": "compressed", "profile": "batch", "taken": 4096,
                "current": 8192, "score": 0.25, "held": true, "problem": "no swap is free"})],
        };
        let text = report.to_string();
        for part in [
            "memory is short, 512 B of 1.0 KiB available; 1 compressing, 2 queued, 3 held; without",
            "/agents/sb1",
            "batch",
            "0.25",
            "held for want of memory; no swap is free",
        ] {
            assert!(text.contains(part), "{part:?} is not in {text}");
        }
        assert!(!text.contains("PREFETCH"), "{text}");
        let shown = json!({
            "demand_faults": 30, "hits": 70, "coverage": 0.7, "hit_ratio": 0.875, "waste": 0.125,
            "cost_per_hit_ns": 12345.6, "window_pages": 48, "pages_at_every_resume": 17,
            "capped_plans": 1, "first_tool_p99_us": null});
        let mut total = shown.clone();
        total["able"] = true.into();
        total["alarm_hit_ratio"] = true.into();
        let planned = Report {
            overview: json!({ "prefetch": total }),
            sandboxes: vec![json!({"cgroup": "/agents/sb1", "prefetch": shown})],
        };
        let text = planned.to_string();
        for part in [
            "warning: prefetch: pages are",
            "COVERAGE",
            "88%",
            "12346",
            "17",
            "all",
        ] {
            assert!(text.contains(part), "{part:?} is not in {text}");
        }
        // Whatever else the daemon says.
        let odd = Report {
            overview: Value::Null,
            sandboxes: vec![Value::Null],
        };
        assert!(odd.to_string().contains("Daemon: "));
    }

    #[test]
    fn no_daemon() {
        assert!(ask(Path::new("/nonexistent/socket")).is_none());
    }
}
