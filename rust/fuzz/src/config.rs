// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The daemon's configuration: any text is refused with a line that it has, or is one that reads back
//! what `agentzip config show` writes.

use std::path::Path;

use agentzip_ctl::commands::config::Shown;
use agentzip_ctl::config::Config;
use agentzip_ctl::Authority;

/// Name of the file in messages.
const FILE: &str = "agentzip.toml";

/// The target.
pub fn target(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    match Config::parse(Path::new(FILE), text) {
        Ok(config) => {
            let shown = Shown(config.clone()).to_string();
            let again = Config::parse(Path::new(FILE), &shown);
            assert_eq!(again.as_ref(), Ok(&config), "{shown}");
            // What the daemon makes of it. Tenants may be refused.
            let _ = Authority::new(&config.tenants, Path::new("/sys/fs/cgroup"));
            config.store_limit(u64::MAX);
            config.time(config.schedule.period);
        }
        Err(problem) => {
            let lines = text.split('\n').count();
            let there = problem.line.is_none_or(|line| (1..=lines).contains(&line));
            assert!(there, "{problem}");
            assert!(problem.to_string().starts_with(FILE), "{problem}");
        }
    }
}
