// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Builds of the module that are wrong on purpose: the checkers of the debug kernel, or the torture, must
//! catch each.
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
    /// qemu-test/wrong/NAME.patch
    name: &'static str,
    /// What runs into it.
    by: By,
    /// What the guest's log must say.
    report: &'static str,
}

/// What finds a wrong build.
enum By {
    /// These tests of the suite, on the debug kernel.
    Suite(&'static str),
    /// The torture, on the stock kernel.
    Torture,
}

const ALL: &[Wrong] = &[
    Wrong {
        name: "sleep-in-invalidate",
        by: By::Suite("unload.refused_with_entries"),
        report: "sleeping function called from invalid context",
    },
    Wrong {
        name: "use-after-free",
        by: By::Suite("unload.refused_with_entries"),
        report: "KASAN: use-after-free",
    },
    Wrong {
        name: "lost-reference",
        by: By::Suite("template.two_templates"),
        report: "unreferenced object",
    },
    Wrong {
        name: "missed-invalidate",
        by: By::Torture,
        report: "the store should have 0 entries",
    },
    Wrong {
        name: "reference-given-up-twice",
        by: By::Torture,
        report: "the page is lost (EIO)",
    },
    Wrong {
        name: "update-without-lock",
        by: By::Torture,
        report: "the page is lost (EIO)",
    },
    Wrong {
        name: "other-base",
        by: By::Torture,
        report: "the page is lost (EIO)",
    },
];

/// Builds and runs those that the debug kernel must catch, and whose name contains `filter`.
pub fn by_debug_kernel(cache: &Cache, filter: Option<&str>, total: &mut Total) {
    all(cache, Kernel::Debug, filter, total);
}

/// Builds and runs those that the torture must catch.
pub fn by_torture(cache: &Cache, total: &mut Total) {
    all(cache, Kernel::Stock, None, total);
}

fn all(cache: &Cache, kernel: Kernel, filter: Option<&str>, total: &mut Total) {
    for wrong in ALL.iter().filter(|wrong| wrong.kernel() == kernel) {
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
    fn kernel(&self) -> Kernel {
        match self.by {
            By::Suite(_) => Kernel::Debug,
            By::Torture => Kernel::Stock,
        }
    }

    /// The guest that must find it.
    fn guest<'a>(&self, name: &'a str) -> Guest<'a> {
        let job = match self.by {
            By::Suite(_) => "suite",
            By::Torture => "torture",
        };
        let mut guest = Guest::new(name, job);
        guest.kernel = self.kernel();
        guest.limit = Duration::from_secs(15 * 60);
        guest.silence = Duration::from_secs(10 * 60);
        let args = match self.by {
            By::Suite(filter) => vec!["--debug", "--filter", filter],
            By::Torture => vec!["--minutes", "5", "--first-failure", "--no-patching"],
        };
        guest.args = args.into_iter().map(String::from).collect();
        guest
    }

    fn is_caught(&self, cache: &Cache) -> Result<()> {
        let dir = paths::target().join("wrong").join(self.name);
        let sources = dir.join("repo");
        self.patched_copy(&sources)?;
        let name = format!("wrong-{}", self.name);
        let kmod = dir.join("kmod");
        let mut files = build::modules_of(cache, self.kernel(), &sources, &kmod, &name)?;
        files.extend(build::programs()?);
        let guest = self.guest(&name);
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
        let patch = format!("qemu-test/wrong/{}.patch", self.name);
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
