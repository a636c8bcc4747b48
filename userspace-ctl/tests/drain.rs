// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `agentzip drain` on a fake machine.

mod common;

use agentzip_ctl::commands::drain;
use common::machine;

const TWO_DEVICES: &str = "Filename Type Size Used Priority\n\
    /dev/vdb partition 4194300 1000 5\n/dev/vdc partition 4194300 1000 -3\n";

#[test]
fn an_empty_store_needs_nothing() {
    let (_trees, state, context) = machine();
    let report = drain::drain(&context, true).unwrap();
    assert_eq!(state.calls(), ["drain"]);
    assert!(report.complete());
    assert!(report
        .to_string()
        .contains("`agentzip disarm` and rmmod are possible now"));
}

#[test]
fn restores_then_empties_swap_until_no_entry_is_left() {
    let (trees, state, context) = machine();
    let id = trees.cgroup("sb", "10\n");
    trees.sandbox(id, true, 2);
    trees.process(10, 'S', &[0x10, 0x11]);
    trees.write("sysfs/stats/entries", "2\n");
    trees.write("proc/swaps", TWO_DEVICES);
    state.entries.set(2);
    let report = drain::drain(&context, true).unwrap();
    // The first device emptied the store: the second is left alone.
    assert_eq!(
        state.calls(),
        [
            "drain",
            "will_need 10 10000-12000",
            "swap_off /dev/vdb",
            "swap_on /dev/vdb 5"
        ]
    );
    assert!(report.complete());
    assert_eq!(
        (report.entries_before, report.entries, report.pages_restored),
        (2, 0, 2)
    );
    assert!(report
        .to_string()
        .contains("swap /dev/vdb: 1000.0 KiB emptied, in use again"));
}

#[test]
fn without_swapoff_entries_remain_and_that_is_said() {
    let (trees, state, context) = machine();
    trees.write("sysfs/stats/entries", "2\n");
    state.entries.set(2);
    let report = drain::drain(&context, false).unwrap();
    assert_eq!(state.calls(), ["drain"]);
    assert!(!report.complete());
    let text = report.to_string();
    assert!(
        text.contains("2 entries left") && text.contains("NOT EMPTY"),
        "{text}"
    );
}

#[test]
fn refuses_when_memory_does_not_suffice() {
    let (trees, state, context) = machine();
    trees.write("sysfs/stats/entries", "2\n");
    trees.write(
        "proc/meminfo",
        "MemTotal: 99000 kB\nMemAvailable: 33000 kB\nSwapCached: 0 kB\n",
    );
    state.entries.set(2);
    let error = drain::drain(&context, true).unwrap_err().to_string();
    assert!(
        error.contains("1000.0 KiB in swap must come back"),
        "{error}"
    );
    assert!(error.contains("32.2 MiB of memory is available"), "{error}");
    assert_eq!(state.calls(), ["drain"]);
    // What is in memory already needs no room.
    trees.write(
        "proc/meminfo",
        "MemTotal: 99000 kB\nMemAvailable: 33000 kB\nSwapCached: 900 kB\n",
    );
    assert!(drain::drain(&context, true).unwrap().complete());
}

#[test]
fn a_device_that_cannot_come_back_is_a_loud_failure() {
    let (trees, state, context) = machine();
    trees.write("sysfs/stats/entries", "2\n");
    trees.write("proc/swaps", TWO_DEVICES);
    state.entries.set(2);
    state.swap_on_errno.set(libc::EINVAL);
    let report = drain::drain(&context, true).unwrap();
    assert!(!report.complete());
    let text = report.to_string();
    assert!(text.contains("FAILED: swapon /dev/vdb: "), "{text}");
    assert!(text.contains("repair: swapon -p 5 /dev/vdb"), "{text}");
    assert!(text.contains("NOT IN USE"), "{text}");
}

#[test]
fn a_deleted_swap_file_is_left_alone() {
    let (trees, state, context) = machine();
    trees.write("sysfs/stats/entries", "2\n");
    trees.write(
        "proc/swaps",
        "Filename Type Size Used Priority\n/swap\\040(deleted) file 2048 1000 -2\n",
    );
    state.entries.set(2);
    let report = drain::drain(&context, true).unwrap();
    assert_eq!(state.calls(), ["drain"]);
    assert!(report.to_string().contains("/swap was deleted"));
    assert!(!report.complete());
}
