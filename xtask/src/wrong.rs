// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Builds of the module that are wrong on purpose: the debug kernel must catch each.
//!
//! This tests the tests: a checker that is not at work finds nothing.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{ensure, Context, Result};

use crate::build::{self, Artifacts};
use crate::guest::Guest;
use crate::kernel::Kernel;
use crate::paths;
use crate::setup::Cache;
use crate::test::Total;

/// One of them.
struct Wrong {
    /// qemu-test/debug-kernel/wrong/NAME.patch
    name: &'static str,
    /// Guest tests that run into it.
    filter: &'static str,
    /// What the guest's log must say.
    report: &'static str,
}

const ALL: &[Wrong] = &[
    Wrong {
        name: "sleep-in-invalidate",
        filter: "unload.refused_with_entries",
        report: "sleeping function called from invalid context",
    },
    Wrong {
        name: "use-after-free",
        filter: "unload.refused_with_entries",
        report: "KASAN: use-after-free",
    },
    Wrong {
        name: "lost-reference",
        filter: "template.two_templates",
        report: "unreferenced object",
    },
];

/// Builds and runs those whose name contains `filter`.
pub fn all(cache: &Cache, filter: Option<&str>, total: &mut Total) {
    for wrong in ALL {
        let what = format!("wrong.{}", wrong.name);
        if filter.is_none_or(|f| what.contains(f)) {
            total.check(&what, wrong.is_caught(cache));
        }
    }
}

/// Whether all patches fit the module as it is.
pub fn all_fit() -> Result<()> {
    ALL.iter().try_for_each(|wrong| {
        let check = ["apply", "--check"];
        wrong.patch(Command::new("git").args(check).current_dir(paths::repo()))
    })
}

impl Wrong {
    fn is_caught(&self, cache: &Cache) -> Result<()> {
        let dir = paths::target().join("wrong").join(self.name);
        let sources = dir.join("repo");
        self.patched_copy(&sources)?;
        let name = format!("wrong-{}", self.name);
        let mut files =
            build::modules_of(cache, Kernel::Debug, &sources, &dir.join("kmod"), &name)?;
        files.extend(build::programs()?);
        let mut guest = Guest::new(&name, "suite");
        guest.kernel = Kernel::Debug;
        guest.limit = Duration::from_secs(15 * 60);
        guest.silence = Duration::from_secs(10 * 60);
        guest.args = ["--debug", "--filter", self.filter]
            .map(String::from)
            .into();
        let failed = match guest.boot(cache, &Artifacts { files }, false) {
            Ok(outcome) => outcome.failed > 0,
            // The report ended the guest.
            Err(_) => true,
        };
        ensure!(failed, "the guest found nothing wrong");
        let log = paths::target()
            .join("guest")
            .join(&name)
            .with_extension("log");
        let text = fs::read(&log).with_context(|| format!("read {}", log.display()))?;
        ensure!(
            String::from_utf8_lossy(&text).contains(self.report),
            "the guest failed without \"{}\", log: {}",
            self.report,
            log.display()
        );
        Ok(())
    }

    /// Copies the module's sources and applies the patch.
    fn patched_copy(&self, to: &Path) -> Result<()> {
        if to.exists() {
            fs::remove_dir_all(to).with_context(|| format!("remove {}", to.display()))?;
        }
        fs::create_dir_all(to.join("qemu-test"))?;
        for (from, into) in [
            ("Kbuild", to.to_path_buf()),
            ("rust", to.to_path_buf()),
            ("qemu-test/testmod", to.join("qemu-test")),
        ] {
            run(Command::new("cp")
                .arg("-a")
                .arg(paths::in_repo(from))
                .arg(into))?;
        }
        // Outside of any repository for git: paths are those of the copy.
        self.patch(
            Command::new("git")
                .arg("apply")
                .current_dir(to)
                .env("GIT_CEILING_DIRECTORIES", to.parent().unwrap_or(to)),
        )
    }

    /// Gives the patch to a command.
    fn patch(&self, git: &mut Command) -> Result<()> {
        let patch = format!("qemu-test/debug-kernel/wrong/{}.patch", self.name);
        run(git.arg(paths::in_repo(&patch)))
            .with_context(|| format!("{patch} does not fit the module any more"))
    }
}

fn run(command: &mut Command) -> Result<()> {
    let status = command
        .status()
        .with_context(|| format!("run {:?}", command.get_program()))?;
    ensure!(
        status.success(),
        "{:?} ended with {status}",
        command.get_program()
    );
    Ok(())
}
