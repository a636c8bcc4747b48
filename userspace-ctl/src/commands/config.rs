// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `agentzip config check` and `show`.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::config::{self, Config, Problem};

/// What `config check` found: nothing wrong.
#[derive(Debug, Serialize)]
pub struct Checked {
    /// The file.
    pub file: PathBuf,
}

impl fmt::Display for Checked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: good", self.file.display())
    }
}

/// Checks a file; [`config::PATH`] when none is named.
///
/// # Errors
///
/// What is wrong with it.
pub fn check(file: Option<&Path>) -> Result<Checked, Problem> {
    let file = file.unwrap_or(Path::new(config::PATH));
    Config::read(file)?;
    Ok(Checked {
        file: file.to_owned(),
    })
}

/// The configuration that the daemon would take.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub struct Shown(pub Config);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&toml::to_string(&self.0).map_err(|_| fmt::Error)?)
    }
}

/// Shows what the daemon would take.
///
/// # Errors
///
/// What is wrong with the file.
pub fn show(file: Option<&Path>) -> Result<Shown, Problem> {
    Config::load(file).map(Shown)
}
