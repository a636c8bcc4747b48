// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Builds programs of the kernel's tests in the toolchain root, from the source of the guest's kernel.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use anyhow::{ensure, Context, Result};

use crate::build::logged;
use crate::kernel::Kernel;
use crate::setup::Cache;
use crate::{paths, pinned};

/// Makes the kernel's headers, copies its tests, which write to their own folder, and makes the programs
/// that `programs` names, folder and name each.
const SCRIPT: &str = r#"
umask 022
cd /agentzip/module
mkdir -p headers tree out
if [ ! -e headers/usr/include/linux/mman.h ]; then
    make -C /agentzip/source "O=$PWD/headers" headers
fi
cd /agentzip/source
rsync -a --relative mm/gup_test.h tools/include tools/arch/x86 tools/build tools/scripts tools/lib scripts \
    tools/testing/selftests /agentzip/module/tree/
cd /agentzip/module
for program in $programs; do
    make -C "tree/tools/testing/selftests/${program%/*}" "OUTPUT=$PWD/out" "top_srcdir=$PWD/tree" \
        "KHDR_INCLUDES=-isystem $PWD/headers/usr/include" "$PWD/out/${program#*/}"
done
"#;

/// Builds them; what was built before stays. Returns the files.
pub fn programs(cache: &Cache, programs: &BTreeSet<&str>) -> Result<Vec<PathBuf>> {
    // Named as the source in the cache: another kernel's are built anew.
    let recipe = cache.kernel.file_name().context("no kernel in the cache")?;
    let stage = paths::target().join("selftests").join(recipe);
    fs::create_dir_all(&stage).with_context(|| format!("mkdir {}", stage.display()))?;
    let list: Vec<&str> = programs.iter().copied().collect();
    let script = format!("programs='{}'\n{SCRIPT}", list.join(" "));
    logged(
        "selftests",
        "build selftests",
        &mut pinned::kernel_script(cache, Kernel::Stock, &paths::repo(), &stage, &script)?,
    )?;
    let mut files = Vec::new();
    for program in programs {
        let (_, name) = program
            .split_once('/')
            .with_context(|| format!("{program} has no folder"))?;
        let file = stage.join("out").join(name);
        ensure!(file.exists(), "the build made no {}", file.display());
        files.push(file);
    }
    Ok(files)
}
